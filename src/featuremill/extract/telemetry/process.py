"""What a process takes of the CPU and of memory, seen from outside: its interpreter may be held."""

from __future__ import annotations

import time
from typing import Any

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
