"""A worker's memory: the most that it has had (of its devices, or its own), and what is free."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from featuremill.base import this_process
from featuremill.base.words import human_bytes
from featuremill.lease.devices import Device


def peak_memory_mb(devices: Sequence[Device]) -> int:
    """Return the peak of the memory that counts: the devices' own, or the process's on a CPU.

    Of several devices, that of the fullest: it says what a device must have. A workload that
    computes without torch has no number for a GPU's memory: then it is 0.
    """
    if devices[0].kind == "cuda":
        torch = sys.modules.get("torch")
        if torch is None:
            return 0
        peaks = [torch.cuda.max_memory_reserved(place) for place in range(len(devices))]
        return int(max(peaks) // 2**20)
    return this_process.peak_of_process_mb()


def free_on_gpu() -> str:
    """Return how much of the first GPU is free, as in "1.2 GB of 80.0 GB are free"; "" where it
    is unknown."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        free, whole = torch.cuda.mem_get_info(0)
    except RuntimeError:
        return ""
    return f"{human_bytes(free)} of {human_bytes(whole)} are free"
