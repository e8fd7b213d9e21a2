"""What a workload's `load` is at: the name of a crash or a hang in it."""

from __future__ import annotations

from collections.abc import Callable

STEP_SECONDS = 600.0
"""Nothing that a workload tries out while it loads takes as long: not even to compile a kernel."""
Watcher = Callable[[str, float], object]
_watchers: list[Watcher] = []


def at(step: str, seconds: float = STEP_SECONDS) -> None:
    """Say what comes next, as in "attention by FA3"; "" when that is over.

    A worker that dies then says so, and one that takes longer than `seconds` is ended.
    """
    for watcher in _watchers:
        watcher(step, seconds)


def watched_by(watcher: Watcher) -> None:
    """Have `watcher` called with what each `at` of this process says."""
    _watchers.append(watcher)
