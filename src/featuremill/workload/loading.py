"""The current step of a workload's `load`, for messages about a crash or a hang."""

from __future__ import annotations

from collections.abc import Callable

STEP_SECONDS = 600.0
"""Seconds that a step of a load may take. Even compiling a kernel takes less."""
Watcher = Callable[[str, float], object]
_watchers: list[Watcher] = []


def at(step: str, seconds: float = STEP_SECONDS) -> None:
    """Announce the next step, such as "attention by FA3"; "" ends it.

    If the worker dies, its message names the step. A worker that takes longer than `seconds` is
    ended.
    """
    for watcher in _watchers:
        watcher(step, seconds)


def watched_by(watcher: Watcher) -> None:
    """Call `watcher` with each step that `at` announces in this process."""
    _watchers.append(watcher)
