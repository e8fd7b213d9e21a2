"""The steps of a workload's `load`: for messages about a crash or a hang, and for its clock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

STEP_SECONDS = 600.0
"""Seconds that a step of a load may take. Even compiling a kernel takes less."""
BESIDE = "beside: "
"""The prefix of the name of a part that ran on a thread beside the others."""
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
    """Call `watcher` with each step that `at` announces in this process."""
    _watchers.append(watcher)


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Count the seconds of the block for the part `name`; blocks of one name are added up."""
    began = time.monotonic()
    try:
        yield
    finally:
        _add(name, began)


def beside(name: str, work: Callable[[], object]) -> None:
    """Start `work` on a thread, to do it while `load` does something else.

    It only makes a load faster: what fails there fails again where it is needed.
    """

    def run() -> None:
        with contextlib.suppress(Exception), part(BESIDE + name):
            work()

    _beside[name] = threading.Thread(target=run, name=name, daemon=True)
    _beside[name].start()


def wait_for(name: str) -> None:
    """Wait until what was started as `name` has ended; return at once if nothing was."""
    if thread := _beside.get(name):
        thread.join()


def parts() -> dict[str, float]:
    """Return the seconds of each part and step so far, in this process."""
    return dict(_seconds)


def _add(name: str, began: float) -> None:
    _seconds[name] = _seconds.get(name, 0.0) + time.monotonic() - began
