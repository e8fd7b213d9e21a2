"""Steps of a workload's `load`: names for messages about a crash or hang, and times."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

STEP_SECONDS = 600.0
"""Seconds that a step of a load may take. Even compiling a kernel takes less."""
BESIDE = "beside: "
"""The prefix of the name of a part that ran on a thread."""
Watcher = Callable[[str, float], object]
_watchers: list[Watcher] = []
_seconds: dict[str, float] = {}
_now: tuple[str, float] = "", 0.0
_beside: dict[str, threading.Thread] = {}


def at(step: str, seconds: float = STEP_SECONDS) -> None:
    """Announce the next step, such as "attention by FA3"; "" ends it.

    If the worker dies, its message names the step. A worker that takes longer than `seconds` is
    ended.
    """
    global _now
    before, began = _now
    if before:
        _add(before.partition(" (")[0], began)
    _now = step, time.monotonic()
    for watcher in _watchers:
        watcher(step, seconds)


def watched_by(watcher: Watcher) -> None:
    """Register `watcher` to be called with each step that `at` announces in this process."""
    _watchers.append(watcher)


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Add the seconds of the block to the part `name`."""
    began = time.monotonic()
    try:
        yield
    finally:
        _add(name, began)


def beside(name: str, work: Callable[[], object]) -> None:
    """Start `work` on a thread, while `load` continues.

    An exception of `work` is ignored: it only prepares what `load` does again where it is needed.
    """

    def run() -> None:
        with contextlib.suppress(Exception), part(BESIDE + name):
            work()

    _beside[name] = threading.Thread(target=run, name=name, daemon=True)
    _beside[name].start()


def wait_for(name: str) -> None:
    """Wait for the end of the work that `beside` started as `name`, if any."""
    if thread := _beside.get(name):
        thread.join()


def parts() -> dict[str, float]:
    """Return the seconds of each part and step so far, in this process."""
    return dict(_seconds)


def _add(name: str, began: float) -> None:
    _seconds[name] = _seconds.get(name, 0.0) + time.monotonic() - began
