"""One engine in a process of its own: for peak memory, and for several processes on one GPU.

Says `ready` when the model is loaded, starts at the next line of standard input, and answers with
one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import torch

from bench.clock import Clock
from bench.engines import line_up
from bench.engines.ours import Ours
from bench.place import Place, set_matmul_precision
from bench.processes import Child
from bench.shapes import SHAPES
from bench.subject import Subject
from featuremill.base import this_process
from featuremill.base.devices import cuda_devices
from featuremill.lease.nvml import nvml


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("engine", "shape", "place", "output", "fasta", "weights"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    this_process.die_with_parent(os.getppid(), signal.SIGKILL)
    set_matmul_precision()
    place = Place(given.place)
    before = _used_mb() if place.device == "cuda" else 0
    subject = Subject(SHAPES[given.shape], place, Path(given.weights))
    (engine,) = (found for found in line_up(subject)[0] if found.name == given.engine)
    answers = sys.stdout
    sys.stdout = sys.stderr
    engine.load()
    if isinstance(engine, Ours):
        engine.model_for(given.output)
    print("ready", file=answers, flush=True)
    sys.stdin.readline()
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        engine.extract(Path(given.fasta), Path(folder), given.output)
        place.synchronize()
        ended = time.time()
    answer: dict[str, Any] = {"started": started, "ended": ended, "peak_rss_mb": _peak_rss_mb()}
    if place.device == "cuda":
        answer |= {
            "peak_allocated_mb": torch.cuda.max_memory_allocated() // 2**20,
            "peak_reserved_mb": torch.cuda.max_memory_reserved() // 2**20,
            "gpu_process_mb": _process_mb(before),
        }
    print(json.dumps(answer), file=answers, flush=True)


def _used_mb() -> int:
    """Return the memory that is in use on the GPU, by whomever."""
    with nvml() as is_there:
        if not is_there:
            return 0
        handle = pynvml.nvmlDeviceGetHandleByUUID(cuda_devices()[0].uuid)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20


def _process_mb(before: int) -> int:
    """Return what this process has of the GPU at its end, where nobody else began or ended: the
    allocator gives nothing back before. Containers hide which process has how much."""
    return _used_mb() - before


def _peak_rss_mb() -> int:
    # getrusage would tell of the parent where that is larger: Linux hands its peak on to children.
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) // 2**10


def run_together(
    commands: Sequence[Sequence[str]], fasta: Path, clock: Clock
) -> list[dict[str, Any]]:
    """Run children side by side, started at the same moment once all are ready.

    Raises:
        ChildError: when one fails, or is not done when time is up.
    """
    log = fasta.with_suffix(".log")
    log.unlink(missing_ok=True)
    children = [Child([sys.executable, "-m", "bench.child", *each], log) for each in commands]
    try:
        for child in children:
            assert child.answer(clock.left()) == "ready\n"
        for child in children:
            child.tell("go")
        return [json.loads(child.answer(clock.left())) for child in children]
    finally:
        for child in children:
            child.close()


if __name__ == "__main__":
    main()
