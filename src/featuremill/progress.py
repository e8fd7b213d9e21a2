"""Progress lines of long work: on a terminal for people, otherwise only in the log file."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

EVERY_SECONDS = 10.0


class Progress:
    """Logs how far a worker is, now and then."""

    def __init__(self, log: logging.Logger, what: str, cost_unit: str) -> None:
        self._log = log
        self._what = what
        self._cost_unit = cost_unit
        self._level = logging.INFO if sys.stderr.isatty() else logging.DEBUG
        self._last = time.monotonic()

    def show(self, event: dict[str, Any]) -> None:
        """Log a worker's progress event: rows, speed and the time left, by cost."""
        now = time.monotonic()
        if now - self._last < EVERY_SECONDS or not event["cost_run"]:
            return
        self._last = now
        speed = event["cost_run"] / event["seconds"]
        self._log.log(
            self._level,
            "%s: %s of %s records, %s %s/s, %s left",
            self._what,
            f"{event['rows']:,}",
            f"{event['of']:,}",
            f"{speed:,.0f}",
            self._cost_unit,
            clock(event["cost_left"] / speed),
        )


def clock(seconds: float) -> str:
    """Return `seconds` as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
