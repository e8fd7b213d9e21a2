"""The peak of a worker's memory, on the devices or the host."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from featuremill.base import this_process
from featuremill.base.devices import Device


def peak_memory_mb(devices: Sequence[Device]) -> int:
    """Return the peak in MiB: of the devices' memory, or of the process on a CPU.

    Of several devices, that of the fullest, since each device must have so much. It is 0 for a
    workload on a GPU that computes without torch.
    """
    if devices[0].kind == "cuda":
        torch = sys.modules.get("torch")
        if torch is None:
            return 0
        peaks = [torch.cuda.max_memory_reserved(place) for place in range(len(devices))]
        return int(max(peaks) // 2**20)
    return this_process.peak_of_process_mb()
