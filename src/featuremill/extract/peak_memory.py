"""The most memory that a worker has had: of its devices, or its own on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from featuremill.base import this_process
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
