"""The time that a benchmark may take."""

from __future__ import annotations

import time


class Clock:
    """Counts down from `minutes`."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    def left(self) -> float:
        """Return the seconds that are left; fewer than 0 when they are overdrawn."""
        return self._end - time.monotonic()
