"""How the runs of one config stand together."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from featuremill.base.log import last_error
from featuremill.config.runs import Runs
from featuremill.status.commands import Problem, removing
from featuremill.status.sources import again_after
from featuremill.status.state import (
    DONE,
    DONE_WITH_FAILURES,
    NOT_DONE,
    STATES,
    RunState,
    is_run,
    read_state,
)
from featuremill.store import run_lock
from featuremill.store.results import Results

VERSION = 1
"""Of the JSON."""


@dataclass
class ProjectState:
    """All of them, as they were found."""

    runs: Runs
    states: dict[str, RunState | None] = field(default_factory=dict)
    """Of each run, by its name in the config; None of one that was not begun."""
    steps: list[str] = field(default_factory=list)
    """Of what steps make, in the order of `runs.steps`: as `Made.stands` has it."""
    figures: list[Mapping[str, int]] = field(default_factory=list)
    """What is counted in it, in the same order."""
    problems: list[Problem] = field(default_factory=list)
    """How the last try of a step ended that is not there."""
    next: list[str] = field(default_factory=list)
    """What to type."""

    @property
    def begun(self) -> list[RunState]:
        """The runs that were begun."""
        return [state for state in self.states.values() if state]

    @property
    def is_running(self) -> bool:
        """Whether the Snakemake of one of them runs."""
        return any(state.is_running for state in self.begun)

    @property
    def is_at_work(self) -> bool:
        """Whether something goes on by itself."""
        return any(state.is_at_work for state in self.begun)

    @property
    def num_failed(self) -> int:
        """Records of the runs that failed, as far as is known."""
        return sum(state.num_failed for state in self.begun)

    @property
    def exit_status(self) -> int:
        """0 done, 1 not done, 2 done with failures: that of the least."""
        if not all(self.states.values()) or set(self.steps) - {"yes"}:
            return NOT_DONE
        found = {state.exit_status for state in self.begun}
        return next(one for one in (NOT_DONE, DONE_WITH_FAILURES, DONE) if one in found)

    def as_json(self) -> dict[str, Any]:
        """Return everything as one object, as docs/json.md explains it."""
        return {
            "version": VERSION,
            "config": str(self.runs.given),
            "state": STATES[self.exit_status],
            "exit_status": self.exit_status,
            "is_at_work": self.is_at_work,
            "runs": {name: one and one.as_json() for name, one in self.states.items()},
            "steps": {
                made.label: {"files": list(made.files), "made": state, "figures": dict(figures)}
                for made, state, figures in zip(
                    self.runs.steps, self.steps, self.figures, strict=True
                )
            },
            "problems": [problem.as_json() for problem in self.problems],
            "next": self.next,
        }

    def read_runs(self, verifies: bool) -> None:
        """Look at each run; hash the files if it `verifies`."""
        for name, folder in zip(self.runs.names, self.runs.folders, strict=True):
            is_begun = is_run(Results(folder), run_lock.read(folder))
            self.states[name] = read_state(folder, verifies, self.runs.given) if is_begun else None


def read_project(runs: Runs, verifies: bool = False) -> ProjectState:
    """Return how the `runs` stand; hash the files if it `verifies`.

    Raises:
        UserError: when files of theirs cannot be read.
    """
    state = ProjectState(runs)
    state.read_runs(verifies)
    state.steps = [made.stands() for made in runs.steps]
    for made, one in zip(runs.steps, state.steps, strict=True):
        state.figures.append({} if one == "no" else made.figures())
    if not state.is_at_work:
        found = zip(runs.steps, state.steps, strict=True)
        failed = [made for made, one in found if one != "yes"]
        logs = [(made.label, Path(log)) for made in failed for log in made.logs]
        state.problems = [*step_problems(logs)]
    state.next = what_to_type(state)
    return state


def step_problems(logs: Iterable[tuple[str, Path]]) -> Iterator[Problem]:
    """Yield how the last tries ended of steps, each with a log, that are not there."""
    for label, log in logs:
        if error := last_error(log):
            yield Problem("step_failed", f"{label}: the last try failed: {error}", again_after(log))


def what_to_type(state: ProjectState) -> list[str]:
    """Return what to type: nothing while a Snakemake is at work, or when all is done."""
    if state.is_running:
        return []
    is_blocked = any(one.needs == "retry" and one.exit_status == NOT_DONE for one in state.begun)
    is_done = state.exit_status != NOT_DONE
    retries = is_blocked or (is_done and any(one.needs == "retry" for one in state.begun))
    if is_done and not any(one.needs for one in state.begun):
        return []
    forced = dict.fromkeys(rule for one in state.begun for rule in one.forced)
    fixes = [p.fix for one in state.begun if one.needs == "run" for p in one.problems]
    retry = [f"featuremill retry {shlex.quote(str(state.runs.given))}"] if retries else []
    return [*removing(fixes), *retry, state.runs.again(list(forced))]
