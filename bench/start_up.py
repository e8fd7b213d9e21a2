"""The product as a user starts it: what a whole `featuremill extract` costs besides computing."""

from __future__ import annotations

import compileall
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import processes
from bench.clock import Clock
from bench.engines.ours import ONE_SHARD
from bench.lengths import tokens_of
from bench.record import ROOT
from bench.sample import write_fasta
from bench.stage import Stage, say
from featuremill.base import this_process
from featuremill.base.environment import DIE_WITH_PARENT, TRITON_CACHE_DIR
from featuremill.store.results import Results
from featuremill.workload import weights

BARE_LOAD = """
import json, sys, time
began = time.perf_counter()
import torch
imported = time.perf_counter()
from safetensors.torch import load_file
tensors = load_file(sys.argv[1], device=sys.argv[2])
assert sum(float(tensor.sum()) for tensor in tensors.values())
print(json.dumps({"torch": imported - began, "weights": time.perf_counter() - imported}))
"""
"""What any program does that computes with these weights; it prints the seconds of its parts."""


class Asked(NamedTuple):
    """What the product is asked to do."""

    workload: str
    device: str
    weights: Path | None


def of_stage(stage: Stage) -> Asked:
    """Return what a user would ask for; a rehearsal takes a workload that needs no GPU of torch's,
    on whatever NVML says is here."""
    if stage.place.name == "rehearsal":
        return Asked("composition", "auto", None)
    return Asked("esm2", stage.place.device, stage.subject.weights)


def start_up(stage: Stage, num_tokens: int, clock: Clock) -> dict[str, Any]:
    """Return the wall time of one `featuremill extract` and what of it was not computing."""
    say(f"{stage.shape.name}: a whole featuremill extract")
    compileall.compile_dir(ROOT / "src", quiet=1)  # as pip does when it installs
    bare, bare_parts = _bare_load(stage, clock)
    proteins = stage.sample.take(num_tokens)
    fasta = write_fasta(stage.folder / "start_up.fasta", proteins)
    kernels = stage.fresh_folder() / "kernels"
    told = {"shape": stage.shape.name, "tokens": sum(tokens_of(proteins))}
    told |= {"bare_load_seconds": round(bare, 3)}
    found: dict[str, dict[str, Any]] = {}
    for name in ("cold", "warm"):  # with and without kernels to compile
        found[name] = timed(fasta, kernels.with_name(name), of_stage(stage), clock, kernels)
        stage.so_far(told | found[name])
    cold, warm = found["cold"], found["warm"]
    return {
        **told,
        **warm,
        "cold_start_up_seconds": cold["start_up_seconds"],
        "parts": _parts(cold, warm, bare_parts),
    }


def _parts(
    cold: dict[str, Any], warm: dict[str, Any], bare: dict[str, float]
) -> list[dict[str, Any]]:
    """Return the seconds of each stage of the receipts, and of each part of `load`, beside those
    of the bare load."""
    every = [{**of["receipt_seconds"], **of["load_seconds"]} for of in (cold, warm)] + [bare]
    names = dict.fromkeys(name for of in every for name in of)
    kinds = zip(("cold", "warm", "bare load"), every, strict=True)
    columns = {kind: {name: round(of.get(name, 0.0), 3) for name in names} for kind, of in kinds}
    return [{"part": n, **{kind: of[n] for kind, of in columns.items()}} for n in names]


def _bare_load(stage: Stage, clock: Clock) -> tuple[float, dict[str, float]]:
    """Return the wall time of a process that brings the weights to the device, and no more, and of
    its parts; of two, the second, which finds the files in memory as the extract does."""
    path = stage.subject.weights
    assert path
    file = weights.read(path).path
    command = [sys.executable, "-c", BARE_LOAD, str(file), stage.place.device]
    log = stage.folder / "bare_load.log"
    for _ in range(2):
        log.unlink(missing_ok=True)
        started = time.perf_counter()
        if status := processes.run(command, clock.left(), log):
            told = processes.last_words(log)
            raise processes.ChildError(f"a bare load ended with {status}{told}")
        seconds = time.perf_counter() - started
    parts = [line for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    return seconds, json.loads(parts[-1])


def timed(
    fasta: Path, root: Path, asked: Asked, clock: Clock, kernels: Path | None = None
) -> dict[str, Any]:
    """Plan and extract a FASTA file as one shard in the run folder `root`; compiled kernels are in
    `kernels`, or where they always are.

    Raises:
        ChildError: when a verb fails, or is not done when time is up.
    """
    folder = Results(root)
    config = {
        "run": "bench",
        "inputs": [str(fasta)],
        "workload": asked.workload,
        "shards": {"cost": ONE_SHARD},
        "device": asked.device,
    }
    weights = ["--weights", str(asked.weights)] if asked.weights else []
    log = fasta.with_suffix(".log")
    log.unlink(missing_ok=True)
    written = fasta.with_suffix(".yaml")
    written.write_text(json.dumps(config))
    words = ("plan", str(folder.root), "--config", str(written), *weights)
    more = {TRITON_CACHE_DIR.name: str(kernels)} if kernels else {}
    plan_seconds = _verb(words, log, clock, more)
    plan = json.loads(folder.plan.read_text())
    (shard,) = (entry["shard"] for entry in plan["shards"])
    wall = _verb(("extract", str(folder.root), shard), log, clock, more)
    receipt = json.loads(folder.receipt(plan["recipe"], shard).read_text())
    computing = receipt["seconds"]["compute"]  # from the first batch to the last commit
    return {
        "workload": asked.workload,
        "dtype": plan["settings"]["options"].get("dtype", ""),
        "device": ", ".join(device["name"] for device in receipt["devices"]),
        "plan_seconds": round(plan_seconds, 3),
        "extract_seconds": round(wall, 3),
        "receipt_seconds": receipt["seconds"],
        "load_seconds": receipt.get("load_seconds", {}),
        "start_up_seconds": round(wall - computing, 3),
    }


def _verb(words: tuple[str, ...], log: Path, clock: Clock, more: dict[str, str]) -> float:
    """Run `featuremill …` with these variables besides; return its wall time."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, DIE_WITH_PARENT.name: this_process.name_of_process()}
    environment |= more
    started = time.perf_counter()
    command = [sys.executable, "-m", "featuremill", *words]
    status = processes.run(command, clock.left(), log, environment)
    if status:
        told = processes.last_words(log)
        raise processes.ChildError(f"featuremill {words[0]} ended with {status}{told}")
    return time.perf_counter() - started
