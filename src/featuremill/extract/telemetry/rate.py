"""How fast a worker is, by what it reported and when."""

from __future__ import annotations

import time

LEAST_SECONDS = 0.5
"""Reports closer together say more about when batches end than about speed."""


class Reports:
    """What the worker reported: added on one thread, asked for on another."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._latest: tuple[float, float] | None = None

    def add(self, cost_done: float) -> None:
        """Note that so much is done now."""
        self._latest = time.monotonic(), cost_done
        if self._before is None:
            self._before = self._latest

    def rate(self) -> float | None:
        """Return the cost a second since the last time this was known; None when nothing new was
        reported."""
        before, latest = self._before, self._latest
        if before is None or latest is None or latest[0] - before[0] < LEAST_SECONDS:
            return None
        self._before = latest
        return round(max(0.0, latest[1] - before[1]) / (latest[0] - before[0]), 1)
