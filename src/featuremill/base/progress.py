"""Progress lines of long work: one every ten seconds, on a terminal or not.

A job that runs in parallel with others writes them only to its log file. On the screen, Snakemake's
main process shows the progress of all jobs.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from featuremill.base.environment import DIE_WITH_PARENT
from featuremill.base.words import clock, counted

EVERY_SECONDS = 10.0
CallBack = Callable[[int, int], object]
"""Called with (records done, records in all) by a call in Python; equal ones count once."""


class Progress:
    """Logs the progress of `what`, counted in `unit`, every ten seconds; `has_others_beside` is for
    one of many jobs."""

    def __init__(
        self, log: logging.Logger, what: str, unit: str = "records", has_others_beside: bool = False
    ) -> None:
        self._log = log
        self._what = what
        self._unit = unit
        is_one_of_many = has_others_beside and DIE_WITH_PARENT.text() is not None
        self._level = logging.DEBUG if is_one_of_many else logging.INFO
        self._started = self._last = time.monotonic()

    def show(self, event: dict[str, Any]) -> None:
        """Log a worker's progress event: rows, speed and the time left, by cost."""
        if not event["cost_run"] or not self._is_time():
            return
        speed = event["cost_run"] / event["seconds"]
        self._say(
            f"{event['rows']:,} of {counted(event['of'], 'record')}",
            f"{speed:,.0f} {self._unit}/s",
            f"{clock(event['cost_left'] / speed)} left",
        )

    def at(self, done: int, total: int | None = None) -> None:
        """Log that `done` units of `total` are done; None for an unknown total."""
        if not done or not self._is_time():
            return
        speed = done / (self._last - self._started)
        if total is None:
            self._say(f"{done:,} {self._unit}", f"{speed:,.0f}/s")
        else:
            left = clock(max(0, total - done) / speed)
            self._say(f"{done:,} of {total:,} {self._unit}", f"{speed:,.0f}/s", f"{left} left")

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._last < EVERY_SECONDS:
            return False
        self._last = now
        return True

    def _say(self, *facts: str) -> None:
        self._log.log(self._level, "%s: %s", self._what, ", ".join(facts))


@contextlib.contextmanager
def on_terminal() -> Iterator[CallBack | None]:
    """Yield a function that shows progress on a line of a terminal or notebook; None elsewhere."""
    if not (sys.stderr.isatty() or type(sys.stderr).__name__ == "OutStream"):  # ipykernel's
        yield None
        return
    end = ""

    def show(done: int, total: int) -> None:
        nonlocal end
        end = "\n"
        sys.stderr.write(f"\rfeaturemill: {done:,} of {counted(total, 'record')}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write(end)
