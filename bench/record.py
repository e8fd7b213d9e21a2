"""The JSON of one run: the machine, the code, and every measurement, written as it comes."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml
import torch

from featuremill.base import devices
from featuremill.base.devices import Device
from featuremill.lease.nvml import nvml

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "pyarrow",
    "fair-esm",
    "transformers",
    "openvino",
    "faesm",
    "flash-attn",
)
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "bf16", "asimd")
VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
    "FEATUREMILL_WITHOUT",
)


class Record:
    """A dictionary that is on disk after every `save`, so that a killed run leaves its results."""

    def __init__(
        self, path: Path | None, kind: str, is_result: bool, gpu: Device | None = None
    ) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self.content: dict[str, Any] = {
            "version": 1,
            "started": now.isoformat(timespec="seconds"),
            "command": ["python", "-m", "bench.run", *sys.argv[1:]],
            "machine": machine(gpu),
            "code": code(),
            "versions": versions(),
            "torch": torch_tried(),
            "complete": False,
        }
        place = self.content["machine"]
        name = re.sub(r"\W+", "-", place.get("gpu") or f"{place['cpu']} {place['cores']} cores")
        # A smoke test or a rehearsal is no result; and a run of the same day must not replace one.
        folder = RESULTS if is_result else Path(tempfile.gettempdir())
        name = f"{now:%Y-%m-%d}-{name}-{kind}"
        self.path = path or folder / f"{name}.json"
        if not path and self.path.exists():
            self.path = folder / f"{name}-{now:%H%M%S}.json"

    def save(self) -> None:
        """Write everything that is known so far."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(self.path)


TORCH_REQUIREMENT = re.compile(r"torch([<>=,.\d]+) *; *extra == .+")


def machine(gpu: Device | None = None) -> dict[str, Any]:
    """Return what the times depend on; `gpu` is the one that is measured."""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    found = {
        "cpu": devices.cpu().name,
        "flags": [flag for flag in FLAGS if flag in words],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load_at_start": os.getloadavg(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    if gpu:
        found |= {
            "gpu": gpu.name,
            "gpu_memory_gb": round(gpu.memory_mb / 2**10, 1),
            "multiprocessors": gpu.num_multiprocessors,
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return found


def _driver() -> str:
    with nvml() as is_there:
        return str(pynvml.nvmlSystemGetDriverVersion()) if is_there else ""


def code() -> dict[str, Any]:
    """Return the commit, and whether the files are as committed; nulls outside of a clone."""
    changes = _git("status", "--porcelain", "--", ".", ":!bench/results")
    return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def tried_torch() -> str:
    """Return the bounds that featuremill's own package has for torch, which are those of every
    extra that brings it."""
    try:
        requirements = metadata.requires("featuremill") or []
    except metadata.PackageNotFoundError:
        return ""
    found = filter(None, map(TORCH_REQUIREMENT.fullmatch, requirements))
    return ",".join(sorted({bound for one in found for bound in one[1].split(",")}, reverse=True))


def is_within(version: str, bounds: str) -> bool:
    """Tell whether a release is within bounds, each a `>=` or a `<` of numbers with dots.

    By these alone: what NVIDIA's containers call 2.11.0a0 is built from 2.11.
    """
    release = _numbers(version)
    for bound in filter(None, bounds.split(",")):
        operator, least = bound.rstrip("0123456789."), _numbers(bound.lstrip("<>="))
        if {">=": release < least, "<": release >= least}[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    assert found, version
    return tuple(map(int, found[0].split(".")))


def torch_tried() -> dict[str, Any]:
    """Return torch's version, the bounds of those that were tried, and whether it is within."""
    version, tried = torch.__version__, tried_torch()
    public = version.partition("+")[0]
    return {"version": public, "tried": tried, "is_tried": is_within(version, tried)}


def versions() -> dict[str, str]:
    """Return the versions of what is compared."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
