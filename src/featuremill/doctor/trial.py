"""Try torch on each device, in a child process that sees only this device: import torch, allocate
memory, multiply matrices, then run the operations of a workload.

`python -m featuremill.doctor.trial cuda|cpu WORKLOAD METADATA` is the child. CUDA_VISIBLE_DEVICES
names the GPU; METADATA has the shape of the weights as JSON. It prints a line of JSON, and another
if the product is correct.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pydantic import BaseModel

from featuremill.base import devices, faults
from featuremill.base.errors import WorkloadError
from featuremill.doctor.gpus import ask
from featuremill.workload import Device, Weights, find_workload, optional

log = logging.getLogger("featuremill.doctor")
MAX_AT_ONCE = 8
NUM_FLOATS = 16 * 2**20
"""The allocated numbers: 64 MiB."""
WIDTH = 256


class Trial(BaseModel):
    """The result of a trial of one device."""

    error: str = ""
    is_missing: bool = False
    """Whether torch is not installed."""
    torch: str | None = None
    cuda: str | None = None
    arch_list: list[str] = []
    multiprocessors: int | None = None
    is_of_workload: bool = False
    """Whether the error is of the workload's operations; the product was correct."""
    ways: dict[str, str] = {}
    """The method of each operation of the workload; empty after an error."""
    why: list[str] = []
    """The reason of each fallback."""


def try_devices(
    uuids: Sequence[str], workload: str, weights: Weights | None, timeout: float
) -> dict[str, Trial]:
    """Return the trials by UUID, or of "cpu". `weights` has the shape of the network; None is a
    common shape. A trial is killed after `timeout` seconds."""
    metadata = json.dumps(weights and weights.metadata)
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        trials = pool.map(lambda uuid: _try(uuid, workload, metadata, timeout), uuids)
        return dict(zip(uuids, trials, strict=True))


def _try(uuid: str, workload: str, metadata: str, timeout: float) -> Trial:
    kind, mask, where = ("cpu", "", "the CPU") if uuid == "cpu" else ("cuda", uuid, uuid)
    if sys.stderr.isatty():
        log.info("torch computes a little on %s, which takes up to half a minute", where)
    environment = {"CUDA_VISIBLE_DEVICES": mask, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    answers, end = ask("trial", kind, workload, metadata, timeout=timeout, environment=environment)
    if not answers:
        return Trial(error=end)
    if len(answers) == 1 and not answers[0].get("error"):
        answers.append({"error": end, "is_of_workload": True})
    return Trial.model_validate(
        {name: value for answer in answers for name, value in answer.items()}
    )


def main(kind: str, workload: str, metadata: Mapping[str, str] | None) -> None:
    """Print the version of torch, the result of the product, and the methods on the device."""
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"error": str(error), "is_missing": error.name == "torch"}))
        return
    answer: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if kind == "cuda" and torch.version.cuda:
        answer["arch_list"] = torch.cuda.get_arch_list()
    try:
        allocated, ones = torch.ones(NUM_FLOATS, device=kind), torch.ones(WIDTH, WIDTH, device=kind)
        if (total := float((ones @ ones).sum()) + float(allocated[-1])) != WIDTH**3 + 1:
            raise WorkloadError(f"a product of ones gave {total} in place of {WIDTH**3 + 1}")
        if kind == "cuda":
            properties = torch.cuda.get_device_properties(0)
            answer["multiprocessors"] = properties.multi_processor_count
    except Exception as error:  # report every error of torch and the driver
        answer["error"] = _text(error)
    print(json.dumps(answer), flush=True)
    if "error" in answer:
        return
    try:
        weights = Weights("", Path(), "", dict(metadata)) if metadata else None
        print(json.dumps(_ways(torch, kind, workload, weights)))
    except Exception as error:
        print(json.dumps({"error": _text(error), "is_of_workload": True}))


def _text(error: Exception) -> str:
    name = "" if isinstance(error, WorkloadError) else f"{type(error).__name__}: "
    return name + faults.one_line(error)


def _ways(torch: Any, kind: str, name: str, weights: Weights | None) -> dict[str, Any]:
    workload = find_workload(name)
    device = devices.cpu()
    if kind == "cuda":
        has_bf16 = torch.cuda.get_device_capability(0) >= devices.BF16_CAPABILITY
        device = Device("cuda", "", torch.cuda.get_device_name(0), has_bf16)
    queue = SimpleQueue[logging.LogRecord]()
    warnings = QueueHandler(queue)
    warnings.setLevel(logging.WARNING)
    logging.getLogger("featuremill").addHandler(warnings)
    ways = dict(optional(workload, "ways")(device, weights))
    return {"ways": ways, "why": [queue.get().getMessage() for _ in range(queue.qsize())]}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
