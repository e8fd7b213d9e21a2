"""The type of a run's problems, and the commands that fix them and continue the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from featuremill.base.words import Change
from featuremill.store import command_line, formats, run_lock
from featuremill.store.plan import Plan
from featuremill.store.results import Results

STACKS = "Fatal Python error|Timeout|Traceback"
"""A regular expression for the line above a stack trace in a log."""
ORDER = ("plan", "extract", "merge")
FILE_OF = {"plan": "plan.json", "merge": "manifest.json"}
"""The file that a command writes; extract writes a receipt for each shard."""
Again = Literal["", "plan", "extract", "merge"]
RerunBy = Literal["snakemake", "start", "forcerun"]
MOST_NAMED = 10
"""Largest number of printed commands that differ only in the shard's name."""


class Fix(NamedTuple):
    """How to fix a problem; `Commands` turns it into commands."""

    again: Again = ""
    """The command to rerun although its results exist."""
    shards: tuple[str, ...] = ()
    remove: tuple[Path, ...] = ()
    verb: str = ""
    """A command for runs without Snakemake, if `again` is empty."""
    by_hand: str = ""
    """Advice, if no command fixes the problem."""
    rerun_by: RerunBy = "start"
    """What reruns the command `again` in the next run: Snakemake, the start of the run
    (`flow.reruns`), or, if only hashing finds the problem, `--forcerun` in the printed command."""


class Problem(NamedTuple):
    """A problem of a run, and its fix."""

    code: str
    """The name for scripts, as listed in docs/json.md."""
    what: str
    fix: Fix
    is_in_the_way: bool = True
    """Whether the run is not done because of this problem; else it is only a note."""
    commands: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    """The keys of the config that have changed, if the problem is their change."""

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "is_in_the_way": self.is_in_the_way,
            "what": self.what,
            "remedy": self.fix.by_hand or None,
            "commands": list(self.commands),
        }


def shown(path: Path) -> Path:
    """Return `path` relative to the working directory, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def removing(fixes: Iterable[Fix]) -> list[str]:
    """Return the command that removes the files of `fixes`, if there are any."""
    paths = dict.fromkeys(path for fix in fixes for path in fix.remove)
    return [f"rm {shlex.join(map(str, paths))}"] if paths else []


class Commands:
    """Builds commands for the run in `root`. The commands name the config or folder `run`."""

    def __init__(self, root: Path, run: Path, plan: Plan | None) -> None:
        self._root = root
        self._run = shlex.quote(str(run))
        self._plan = plan
        last = run_lock.read(root)
        self._is_imported = bool(last and last.is_imported)
        # A workflow that imports this one may request a single result; Snakemake then ignores the
        # files that the start of a run removes.
        self._forced_by = {"forcerun", "start"} if self._is_imported else {"forcerun"}
        self._rules = last.rules if last else "{}"
        self.is_snakemakes = run_lock.is_in_results(root) and (
            plan is None or plan.run == run_lock.name_of(root)
        )
        """Whether the run's folder is where Snakemake expects it."""

    def fixing(self, fixes: Iterable[Fix], pending: Iterable[str] = ()) -> list[str]:
        """Return the commands that apply all `fixes`, in order; `pending` are shards to compute."""
        fixes = list(fixes)
        remove = removing(fixes)
        if self.is_snakemakes:
            return [*remove, command_line.again(self._root, self.forced(fixes))]
        remove += [fix.verb for fix in fixes if fix.verb]
        if self._plan is None or any(fix.again == "plan" for fix in fixes):
            weights = self._plan.weights if self._plan else None
            more = f" --weights {shlex.quote(weights)}" if weights else ""
            plan = f"featuremill plan {self._run} --config {command_line.UNKNOWN}{more}"
            return [*remove, plan]
        shards = dict.fromkeys([*pending, *(shard for fix in fixes for shard in fix.shards)])
        extract = [f"featuremill extract {self._run} {name}" for name in [*shards][:MOST_NAMED]]
        if len(shards) > MOST_NAMED:
            return [*remove, *extract]
        delivery = Results(self._root).find_delivery()
        names = formats.outputs_of(delivery.outputs if delivery else {}).values()
        merge = f"featuremill merge {self._run} --outputs {' '.join(names) or 'parquet'}"
        return [*remove, *extract, merge]

    def forced(self, fixes: Iterable[Fix]) -> list[str]:
        """Return the rules that the command has to force to apply all `fixes`."""
        forced = {fix.again for fix in fixes if fix.rerun_by in self._forced_by}
        return [self._rule(verb) for verb in ORDER if verb in forced]

    def _rule(self, verb: str) -> str:
        """Return the rule of a command; if several runs share the rule, its output file."""
        name = run_lock.name_of(self._root)
        is_shared = "/" in name and self._rules == "{}" and verb in FILE_OF
        return f"results/{name}/{FILE_OF[verb]}" if is_shared else self._rules.format(verb)

    def retry(self, kind: str | None = None) -> str:
        """Return the command that retries failed records, all of them or those of one `kind`."""
        return f"featuremill retry {self._run}" + (f" --reason {kind}" if kind else "")

    def logs(self) -> str | None:
        if not (self.is_snakemakes and self._plan):
            return None
        logs = Results(self._root).logs / "extract" / self._plan.recipe
        if not logs.is_dir():
            return None
        return f"grep -rlE {shlex.quote(STACKS)} {shlex.quote(str(shown(logs)))}"

    def report(self) -> list[str]:
        if self.is_snakemakes and not self._is_imported:  # the importing one may need no report
            return self.fixing([])
        return [f"featuremill report {shlex.quote(str(shown(self._root)))}"]
