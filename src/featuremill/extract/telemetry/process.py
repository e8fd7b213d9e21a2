"""What a process takes of the CPU and of memory: seen from outside, as its interpreter may be held,
and its peaks, which it tells itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from featuremill.base import this_process
from featuremill.lease.devices import Device

LEAST_SECONDS = 0.2
"""Below it the kernel's clock of CPU time is too coarse for a share."""


class ProcessMeter:
    """Reads one process until it ends."""

    def __init__(self, pid: int) -> None:
        import psutil  # here, so that importing featuremill costs nothing

        self.pid = pid
        self._gone = psutil.Error
        self._process: Any = None
        try:
            self._process = psutil.Process(pid)
            self._last = self._process.create_time(), 0.0
        except psutil.Error:  # dead at birth
            self._process = None

    def read(self) -> dict[str, float]:
        """Return `cpu_percent` (of one core, since the last reading) and `memory_mb` (resident)."""
        if self._process is None:
            return {}
        try:
            with self._process.oneshot():
                memory = self._process.memory_info().rss
                times = self._process.cpu_times()
        except self._gone:
            return {}
        found: dict[str, float] = {"memory_mb": memory // 2**20} if memory else {}
        now, used = time.time(), times.user + times.system
        then, used_before = self._last
        if now - then >= LEAST_SECONDS:
            self._last = now, used
            found["cpu_percent"] = round(max(0.0, 100 * (used - used_before) / (now - then)), 1)
        return found


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


def allocated_peak_mb(devices: Sequence[Device]) -> int | None:
    """Return the most that torch had in use on one of the devices; None where it has none."""
    torch = sys.modules.get("torch")
    if torch is None or devices[0].kind != "cuda":
        return None
    peaks = [torch.cuda.max_memory_allocated(place) for place in range(len(devices))]
    return int(max(peaks) // 2**20)
