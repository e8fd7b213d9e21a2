"""A telemetry file that is being written: only what is new in it is read at each look."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from featuremill.store.telemetry import TAIL_BYTES, State, events_of, followed

MOST_CHANGES = 600
"""Moments that rates are taken from; there is one a batch, or one a second."""
LEAST_SILENCE_SECONDS = 20.0
MISSED = 4
"""Samples that may be late before a job counts as silent."""
COMPUTING = ("run", "finish")


class Tail:
    """The last attempt in one file, followed from look to look."""

    def __init__(self, path: Path) -> None:
        self.state: State | None = None
        self.changes: deque[tuple[float, float]] = deque(maxlen=MOST_CHANGES)
        """When the job had computed how much, by its own clock: the moments when that changed."""
        self.devices_since: float | None = None
        """By the job's clock."""
        self.startup_seconds: float | None = None
        """From the device to the first batch."""
        self._path = path
        self._offset = 0
        self._heard = 0.0
        self._gap = 1.0

    def look(self) -> None:
        """Read what was appended since the last look."""
        events, offset = events_of(self._path, TAIL_BYTES, self._offset)
        if offset < self._offset:  # another file by now
            self.__init__(self._path)  # type: ignore[misc]
        is_first, self._offset = self._offset == 0, offset
        for event in events:
            self._take(event)
        if events:
            # What was there before tells its age by the job's clock; growth no clock can deny.
            age = max(0.0, time.time() - self.state.time) if is_first and self.state else 0.0
            self._heard = time.monotonic() - age

    def silent_seconds(self) -> float:
        """Return how long nothing was appended; before the first growth, by the job's clock."""
        return max(0.0, time.monotonic() - self._heard)

    def is_silent(self) -> bool:
        """Tell whether samples are missing that should have come."""
        return self.silent_seconds() > max(LEAST_SILENCE_SECONDS, MISSED * self._gap)

    def _take(self, event: dict[str, Any]) -> None:
        before, self.state = self.state, followed(self.state, event)
        kind, now = event["event"], event["time"]
        if kind in ("start", "device"):
            self.changes.clear()
            self.startup_seconds = None
            self.devices_since = now if kind == "device" and event.get("devices") else None
        elif kind == "sample":
            if before and before.sample:
                self._gap = max(1.0, now - before.sample["time"])
            if event.get("stage") in COMPUTING and "cost_done" in event:
                self._take_cost(now, event["cost_done"])

    def _take_cost(self, now: float, cost: float) -> None:
        if not self.changes and self.devices_since is not None:
            self.startup_seconds = max(0.0, now - self.devices_since)
        if self.changes and cost < self.changes[-1][1]:  # another worker
            self.changes.clear()
        if not self.changes or cost > self.changes[-1][1]:
            self.changes.append((now, cost))

    def rate(self, seconds: float) -> float | None:
        """Return the cost a second over about the last `seconds`, whole batches of it; None before
        the first one."""
        if len(self.changes) < 2 or self.state is None or self.state.sample is None:
            return None
        now, newest = float(self.state.sample["time"]), self.changes[-1][1]
        started, cost = self.changes[0]
        for moment, there in self.changes:
            if moment > now - seconds or there == newest:
                break
            started, cost = moment, there
        return (newest - cost) / (now - started) if now > started else None
