"""Tries each device as a worker would use it, in a child process that sees only that one: torch, an
allocation, a product, and then by what a workload would compute there.

`python -m featuremill.doctor.trial cuda|cpu WORKLOAD METADATA` is that child; which GPU is meant
stands in CUDA_VISIBLE_DEVICES, and METADATA are of the weights whose shape is wanted, as JSON. One
JSON line on standard output, and where the product went well a second.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from featuremill.base import devices, faults
from featuremill.base.errors import WorkloadError
from featuremill.doctor.gpus import Gpu, ask
from featuremill.workload import Device, ReportsWays, Weights, find_workload

log = logging.getLogger("featuremill.doctor")
MAX_AT_ONCE = 8
NUM_FLOATS = 16 * 2**20
"""What is allocated: 64 MiB."""
WIDTH = 256


class Trial(BaseModel):
    """What came of using one device through torch."""

    error: str = ""
    is_missing: bool = False
    """torch is."""
    torch: str | None = None
    cuda: str | None = None
    arch_list: list[str] = []
    multiprocessors: int | None = None
    lacks_memory: bool = False
    """The error is want of memory."""
    is_silent: bool = False
    """The child crashed or hung: no answer at all."""
    is_of_workload: bool = False
    """The product went well, and the error is of the workload's operations."""
    ways: dict[str, str] = {}
    """By what the workload would compute; empty where it did not come to that."""
    why: list[str] = []
    """What each step down was for."""


class Asked(NamedTuple):
    workload: str
    weights: Weights | None
    """Whose shape is wanted; None for a usual one."""
    timeout: float


def environment_of(uuid: str | None) -> dict[str, str]:
    """Return what makes a child see that GPU only, or none."""
    return {"CUDA_VISIBLE_DEVICES": uuid or "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def try_cpu(asked: Asked) -> Trial:
    return _try("cpu", None, asked)


def try_gpus(gpus: Sequence[Gpu], asked: Asked) -> dict[str, Trial]:
    """Return the trial of each GPU that can be tried, by UUID."""
    uuids = [g.uuid for g in gpus if g.uuid and g.is_visible and not g.trouble and not g.is_divided]
    if not uuids:
        return {}
    first = _try("cuda", uuids[0], asked)
    if first.is_missing or (first.torch and not first.cuda):
        return dict.fromkeys(uuids, first)  # torch's own lack: the others would say the same
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        others = pool.map(lambda uuid: _try("cuda", uuid, asked), uuids[1:])
        return dict(zip(uuids, [first, *others], strict=True))


def _try(kind: str, uuid: str | None, asked: Asked) -> Trial:
    if sys.stderr.isatty():  # a person waits
        where = "the CPU" if uuid is None else uuid
        log.info("torch computes a little on %s, which takes up to half a minute", where)
    metadata = json.dumps(asked.weights and asked.weights.metadata)
    words = ("trial", kind, asked.workload, metadata)
    answers, end = ask(*words, timeout=asked.timeout, environment=environment_of(uuid))
    if not answers:
        return Trial(error=end, is_silent=True)
    if len(answers) == 1 and not answers[0].get("error"):
        answers.append({"error": end, "is_silent": True, "is_of_workload": True})
    return Trial.model_validate(
        {name: value for answer in answers for name, value in answer.items()}
    )


def main(kind: str, workload: str, metadata: Mapping[str, str] | None) -> None:
    """Print what torch is, whether it can use the device, and by what is computed there."""
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"error": str(error), "is_missing": error.name == "torch"}))
        return
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if kind == "cuda" and torch.version.cuda:
        found["arch_list"] = torch.cuda.get_arch_list()
    try:
        found |= _tried(torch, kind)
    except Exception as error:  # whatever a driver makes torch say is the answer
        found |= _failed(error)
    print(json.dumps(found), flush=True)
    if "error" in found:
        return
    try:
        weights = Weights("", Path(), "", dict(metadata)) if metadata else None
        print(json.dumps(_ways(torch, kind, workload, weights)))
    except Exception as error:
        print(json.dumps(_failed(error) | {"is_of_workload": True}))


def _tried(torch: Any, kind: str) -> dict[str, Any]:
    held = torch.ones(NUM_FLOATS, device=kind)
    ones = torch.ones(WIDTH, WIDTH, device=kind)
    total = float((ones @ ones).sum()) + float(held[-1])
    if total != WIDTH**3 + 1:
        return {"error": f"a product of ones gave {total} in place of {WIDTH**3 + 1}"}
    count = torch.cuda.get_device_properties(0).multi_processor_count if kind == "cuda" else None
    return {"multiprocessors": count}


def _failed(error: Exception) -> dict[str, Any]:
    name = "" if isinstance(error, WorkloadError) else f"{type(error).__name__}: "
    lacks_memory = faults.is_out_of_memory(error)
    return {"error": name + faults.one_line(error), "lacks_memory": lacks_memory}


def _ways(torch: Any, kind: str, name: str, weights: Weights | None) -> dict[str, Any]:
    workload = find_workload(name)
    if not isinstance(workload, ReportsWays):
        return {}
    device = devices.cpu()
    if kind == "cuda":
        has_bf16 = torch.cuda.get_device_capability(0) >= devices.BF16_CAPABILITY
        device = Device("cuda", "", torch.cuda.get_device_name(0), has_bf16)
    heard = _Heard(logging.WARNING)
    logging.getLogger("featuremill").addHandler(heard)
    return {"ways": dict(workload.ways(device, weights)), "why": heard.sentences}


class _Heard(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
