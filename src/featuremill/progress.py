"""Progress lines of long work: on a terminal for people, otherwise only in the log file."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any


class Progress:
    """Logs how far a worker is, at most every `every_seconds`."""

    def __init__(self, log: logging.Logger, what: str, every_seconds: float = 10.0) -> None:
        self._log = log
        self._what = what
        self._every_seconds = every_seconds
        self._level = logging.INFO if sys.stderr.isatty() else logging.DEBUG
        self._last = time.monotonic()

    def show(self, event: dict[str, Any]) -> None:
        """Log a worker's progress event: rows, speed and the time left, by cost."""
        now = time.monotonic()
        if now - self._last < self._every_seconds or not event["cost_run"]:
            return
        self._last = now
        speed = event["cost_run"] / event["seconds"]
        self._log.log(
            self._level,
            "%s: %s of %s records, %s/s, %s left",
            self._what,
            f"{event['rows']:,}",
            f"{event['of']:,}",
            f"{speed:,.0f}",
            clock(event["cost_left"] / speed),
        )


def clock(seconds: float) -> str:
    """Return `seconds` as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
