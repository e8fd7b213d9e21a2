"""What is wrong with a run, and which commands fix and continue it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from featuremill.store import command_line, formats, run_lock
from featuremill.store.plan import Plan
from featuremill.store.results import Results

STACKS = "Fatal Python error|Timeout|Traceback"
"""The line above a stack in a log."""
ORDER = ("plan", "extract", "merge")
FILE_OF = {"plan": "plan.json", "merge": "manifest.json"}
"""What a command makes; extract makes a receipt for each shard."""
SeenBy = Literal["snakemake", "start", "nobody"]
MOST_NAMED = 10
"""Commands that differ in a shard's name only, before they would fill the screen."""


class Fix(NamedTuple):
    """What makes a problem go away; `Commands` makes a command of it."""

    again: Literal["", "plan", "extract", "merge"] = ""
    """The command that has to run again, although its results are there."""
    shards: tuple[str, ...] = ()
    """Those that extract has to look at again."""
    remove: tuple[Path, ...] = ()
    """Files that have to go first."""
    verb: str = ""
    """What does it where Snakemake is not used, if it is none of these."""
    by_hand: str = ""
    """What no command can do."""
    seen_by: SeenBy = "start"
    """What notices, when the run's command is given again, that this has to run: Snakemake itself,
    `flow.reruns`, or nothing, as only hashing finds it: then the command has to name it."""


class Problem(NamedTuple):
    """Something that is not as it should be."""

    code: str
    """Its name for scripts; docs/json.md lists them."""
    what: str
    fix: Fix
    is_in_the_way: bool = True
    """False for information: the run may be done all the same."""
    commands: tuple[str, ...] = ()
    """What to type, in order."""

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "is_in_the_way": self.is_in_the_way,
            "what": self.what,
            "remedy": self.fix.by_hand or None,
            "commands": list(self.commands),
        }


def removing(fixes: Iterable[Fix]) -> list[str]:
    """Return what removes the files that have to go for `fixes`."""
    paths = dict.fromkeys(path for fix in fixes for path in fix.remove)
    return [f"rm {shlex.join(map(str, paths))}"] if paths else []


class Commands:
    """Makes commands for the run in `root`; the user calls it, or it and others, `run`."""

    def __init__(self, root: Path, run: Path, plan: Plan | None) -> None:
        self._root = root
        self._run = shlex.quote(str(run))
        self._plan = plan
        last = run_lock.read(root)
        # The target of a workflow that imports this one may be a single result: then Snakemake does
        # not look at what the start of a run could take away.
        self._unseen_by = {"nobody", "start"} if last and last.is_imported else {"nobody"}
        self._rules = last.rules if last else "{}"
        self.is_snakemakes = run_lock.is_in_results(root) and (
            plan is None or plan.run == run_lock.name_of(root)
        )
        """Whether Snakemake would look for the run here."""

    def fixing(self, fixes: Iterable[Fix], pending: Iterable[str] = ()) -> list[str]:
        """Return what to type, in order, so that all `fixes` are made; `pending` are the shards
        that are not computed yet."""
        fixes = list(fixes)
        remove = removing(fixes)
        if self.is_snakemakes:
            return [*remove, command_line.again(self._root, self.forced(fixes))]
        remove += [fix.verb for fix in fixes if fix.verb]
        shards = [*pending, *(shard for fix in fixes for shard in fix.shards)]
        again = {fix.again for fix in fixes}
        return [*remove, *self._verbs(again, list(dict.fromkeys(shards)))]

    def forced(self, fixes: Iterable[Fix]) -> list[str]:
        """Return the rules that the command has to force, so that all `fixes` are made."""
        unseen = {fix.again for fix in fixes if fix.seen_by in self._unseen_by}
        return [self._rule(verb) for verb in ORDER if verb in unseen]

    def _rule(self, verb: str) -> str:
        """Return the rule of a command; where several runs share it, a file that it makes."""
        name = run_lock.name_of(self._root)
        is_shared = "/" in name and self._rules == "{}" and verb in FILE_OF
        return f"results/{name}/{FILE_OF[verb]}" if is_shared else self._rules.format(verb)

    def retry(self, kind: str | None = None) -> str:
        """Return what lets failed records be tried again: all of them, or those of one kind."""
        return f"featuremill retry {self._run}" + (f" --reason {kind}" if kind else "")

    def logs(self) -> str | None:
        """Return what finds the shards' logs that have stacks; None where Snakemake kept none."""
        if not (self.is_snakemakes and self._plan):
            return None
        logs = Results(self._root).logs / "extract" / self._plan.recipe
        if not logs.is_dir():
            return None
        here = logs.relative_to(Path.cwd()) if logs.is_relative_to(Path.cwd()) else logs
        return f"grep -rlE {shlex.quote(STACKS)} {shlex.quote(str(here))}"

    def report(self) -> list[str]:
        if self.is_snakemakes:
            return self.fixing([])
        return [f"featuremill report {self._run}"]

    def _verbs(self, again: Collection[str], shards: list[str]) -> list[str]:
        if "plan" in again or self._plan is None:
            weights = self._plan.weights if self._plan else None
            more = f" --weights {shlex.quote(weights)}" if weights else ""
            return [f"featuremill plan {self._run} --config {command_line.UNKNOWN}{more}"]
        extract = [f"featuremill extract {self._run} {name}" for name in shards[:MOST_NAMED]]
        delivery = Results(self._root).find_delivery()
        written = delivery.outputs if delivery else {}
        names = list(formats.outputs_of(written).values()) or ["parquet"]
        merge = f"featuremill merge {self._run} --outputs {' '.join(names)}"
        return [*extract, merge] if len(shards) <= MOST_NAMED else extract
