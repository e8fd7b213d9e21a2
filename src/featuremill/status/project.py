"""The state of all runs of a folder or config, and of the results of its steps."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from featuremill.base.errors import UserError
from featuremill.config import Run
from featuremill.config.project import Runs
from featuremill.status.commands import Problem, removing
from featuremill.status.outdated import error_in_log
from featuremill.status.reader import RunReader
from featuremill.status.run_state import (
    DONE,
    DONE_WITH_FAILURES,
    NOT_DONE,
    STATES,
    VERSION,
    VERSION_NOW,
    Phase,
    RunState,
)
from featuremill.store.state import damaged


@dataclass
class ProjectState:
    """Runs and results of steps at one moment."""

    runs: Runs
    states: Mapping[str, RunState]
    """The state of each run, by its name in the config."""
    steps: list[str] = field(default_factory=list)
    """The state of each product of a step, in the order of `runs.steps`, from `Product.stands`."""
    figures: list[Mapping[str, int]] = field(default_factory=list)
    is_inspected: bool = False
    """Whether this is an inspection, which sets all fields below."""
    problems: list[Problem] = field(default_factory=list)
    """The errors of steps whose last try failed."""
    next: list[str] = field(default_factory=list)

    @property
    def alone(self) -> RunState | None:
        """The run, if there is only one and no step."""
        return next(iter(self.states.values())) if self.runs.is_one else None

    @property
    def time(self) -> float:
        """The moment of the first poll of a run, in seconds since 1970."""
        return min(run.time for run in self.states.values())

    @property
    def begun(self) -> list[RunState]:
        return [state for state in self.states.values() if state.is_begun]

    @property
    def phase(self) -> Phase:
        """The phase of the runs: of several phases, the first in the order of `Phase`."""
        return min((run.phase for run in self.states.values()), key=get_args(Phase).index)

    @property
    def is_running(self) -> bool:
        return any(state.is_running for state in self.begun)

    @property
    def is_at_work(self) -> bool:
        return any(state.is_at_work for state in self.begun)

    @property
    def num_failed(self) -> int:
        """Number of failed input records of all runs, as far as it is known."""
        return sum(state.num_failed for state in self.begun)

    @property
    def exit_status(self) -> int:
        """0 done, 1 not done, 2 done with failures: the worst of all runs and steps."""
        statuses = {state.exit_status for state in self.states.values()}
        if set(self.steps) - {"yes"}:
            return NOT_DONE
        return next(status for status in (NOT_DONE, DONE_WITH_FAILURES, DONE) if status in statuses)

    def as_json(self) -> dict[str, Any]:
        """Return an inspection as the object that docs/json.md describes."""
        if self.alone:
            return self.alone.as_json()
        products = zip(self.runs.steps, self.steps, self.figures, strict=True)
        return {
            "version": VERSION,
            "config": str(self.runs.path),
            "state": STATES[self.exit_status],
            "exit_status": self.exit_status,
            "is_at_work": self.is_at_work,
            "runs": {
                name: run.as_json() if run.is_begun else None for name, run in self.states.items()
            },
            "steps": {
                step.label: {"files": list(step.files), "made": status, "figures": dict(figures)}
                for step, status, figures in products
            },
            "problems": [problem.as_json() for problem in self.problems],
            "next": self.next,
        }

    def now_as_json(self) -> dict[str, Any]:
        """Return the progress as the object that docs/json.md describes."""
        if self.alone:
            return self.alone.now_as_json()
        return {
            "version": VERSION_NOW,
            "config": str(self.runs.path),
            "phase": self.phase,
            "runs": [run.now_as_json(is_alone=False) for run in self.states.values()],
            "status": self.as_json() if self.is_inspected else None,
        }


class ProjectReader:
    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        configs: Sequence[Run | None] = runs.configs or [None] * len(runs.folders)
        self._readers = [
            RunReader(folder, runs.path, run)
            for folder, run in zip(runs.folders, configs, strict=True)
        ]

    def poll(self) -> ProjectState:
        """Return the progress of the runs.

        Raises:
            IntegrityError: if a plan is damaged.
            UserError: if a newer featuremill wrote it.
        """
        states = [reader.poll() for reader in self._readers]
        return ProjectState(self._runs, dict(zip(self._runs.names, states, strict=True)))

    def inspect(self, verifies: bool = False) -> ProjectState:
        """Return the state of all runs and steps, with problems; hash the files if it `verifies`.

        Raises:
            UserError: if no run was started, or a run cannot be read.
        """
        runs, states = self._runs, {}
        folders = [*runs.folders, *(Path(step.files[-1]).parent for step in runs.steps)]
        if runs.path not in runs.folders and not any(folder.exists() for folder in folders):
            raise UserError(f"{runs.path}: this run has not started yet; type {runs.again()}.")
        for name, reader in zip(runs.names, self._readers, strict=True):
            states[name] = reader.inspect(verifies, must_be=runs.is_one)
        steps: list[str] = [step.stands() for step in runs.steps]
        state = ProjectState(runs, states, steps, is_inspected=True)
        pairs = [*zip(runs.steps, steps, strict=True)]
        state.figures = [
            {} if status == "no" or damaged(step.files) else step.figures()
            for step, status in pairs
        ]
        if not state.is_at_work:
            missing = [step for step, status in pairs if status != "yes"]
            logs = [(step.label, log) for step in missing for log in step.logs]
            for label, log in logs:
                state.problems += error_in_log("step_failed", f"{label}: the last try", Path(log))
        state.next = state.alone.next if state.alone else _what_to_type(state)
        return state


def _what_to_type(state: ProjectState) -> list[str]:
    """Return the commands to type: none while Snakemake runs, or when all is done."""
    if state.is_running:
        return []
    is_blocked = any(run.needs == "retry" and run.exit_status == NOT_DONE for run in state.begun)
    is_done = state.exit_status != NOT_DONE
    retries = is_blocked or (is_done and any(run.needs == "retry" for run in state.begun))
    if is_done and all(run.needs in ("", "report") for run in state.begun):
        return [*dict.fromkeys(command for run in state.begun for command in run.next)]
    forced = dict.fromkeys(rule for run in state.begun for rule in run.forced)
    fixes = [p.fix for run in state.begun if run.needs == "run" for p in run.problems]
    retry = [f"featuremill retry {shlex.quote(str(state.runs.path))}"] if retries else []
    return [*removing(fixes), *retry, state.runs.again(list(forced))]
