"""What to type: the command that was typed last, or one like it, with what mends the problems."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from featuremill.owner import Owner
from featuremill.status.problems import Mend
from featuremill.store import read_json

GENERIC = "featuremill run YOUR.yaml"
RERUN = "--rerun-incomplete"
NAMING = ("--forcerun", "-R", "--until", "-U", "--omit-from", "-O")
"""Options of Snakemake that are followed by what they mean."""
FORCING = ("--forceall", "-F", "--force", "-f")
STACKS = "Fatal Python error|Timeout|Traceback"
"""What stands above a stack in a log."""
ORDER = ("plan", "extract", "merge")
MOST_NAMED = 10
"""Commands that differ in a shard's name only, before they would fill the screen."""


class Commands:
    """Makes commands for the run in `root`, which the user calls `given`."""

    def __init__(
        self,
        root: Path,
        given: Path,
        plan: dict[str, Any] | None,
        owner: Owner | None,
    ) -> None:
        self._given = shlex.quote(str(given))
        self._working = root.parent.parent
        self._plan = plan
        self._written = (read_json(root / "manifest.json") or {}).get("outputs", {})
        self._typed = owner.command if owner else GENERIC
        self._typed_in = self._working / (owner.folder if owner else ".")
        self._rules = owner.rules if owner else "{}"
        self.is_snakemakes = root.parent.name == "results" and (
            plan is None or plan["run"] == root.name
        )
        """Whether Snakemake would look for the run here."""

    def mending(self, mends: Iterable[Mend], pending: Iterable[str] = ()) -> list[str]:
        """Return what to type, in order, so that all `mends` are made; `pending` are the shards
        that are not computed yet."""
        mends = list(mends)
        paths = list(dict.fromkeys(path for mend in mends for path in mend.remove))
        remove = [f"rm {shlex.join(map(str, paths))}"] if paths else []
        again = {mend.again for mend in mends} - {""}
        if self.is_snakemakes:
            return [*remove, self._snakemake(again)]
        remove += [mend.verb for mend in mends if mend.verb]
        shards = [*pending, *(shard for mend in mends for shard in mend.shards)]
        return [*remove, *self._verbs(again, list(dict.fromkeys(shards)))]

    def retry(self, kind: str | None = None) -> str:
        """Return what lets failed records be tried again: all of them, or those of one kind."""
        return f"featuremill retry {self._given}" + (f" --reason {kind}" if kind else "")

    def logs(self) -> str | None:
        """Return what finds the shards' logs that have stacks; None where Snakemake kept none."""
        if not (self.is_snakemakes and self._plan):
            return None
        logs = self._working / "logs" / self._plan["run"] / "extract" / self._plan["recipe"]
        if not logs.is_dir():
            return None
        here = logs.relative_to(Path.cwd()) if logs.is_relative_to(Path.cwd()) else logs
        return f"grep -rlE {shlex.quote(STACKS)} {shlex.quote(str(here))}"

    def report(self) -> list[str]:
        """Return what draws the report."""
        if self.is_snakemakes:
            return self.mending([])
        return [f"featuremill report {self._given}"]

    def _snakemake(self, again: Collection[str]) -> str:
        words = _of_the_whole_run(shlex.split(self._typed))
        end = words.index("--") if "--" in words else len(words)
        words, targets = words[:end], words[end:]
        if RERUN not in words and "--ri" not in words:
            words.append(RERUN)
        if again:
            rules = (self._rules.format(verb) for verb in ORDER if verb in again)
            words += ["--forcerun", *rules]
        command = shlex.join([*words, *targets])
        folder = os.path.normpath(self._typed_in)
        is_here = Path(folder).is_dir() and Path(folder).samefile(".")
        if not is_here and "--directory" not in words and "-d" not in words:
            command = f"cd {shlex.quote(folder)} && {command}"
        return command

    def _verbs(self, again: Collection[str], shards: list[str]) -> list[str]:
        if "plan" in again or self._plan is None:
            weights = (self._plan or {}).get("weights")
            more = f" --weights {shlex.quote(weights)}" if weights else ""
            return [f"featuremill plan {self._given} --config YOUR.yaml{more}"]
        from featuremill.outputs import FILES  # brings pyarrow, which few calls need

        extract = [f"featuremill extract {self._given} {name}" for name in shards[:MOST_NAMED]]
        names = [name for name, file in FILES.items() if file in self._written] or ["parquet"]
        merge = f"featuremill merge {self._given} --outputs {' '.join(names)}"
        return [*extract, merge] if len(shards) <= MOST_NAMED else extract


def _of_the_whole_run(words: list[str]) -> list[str]:
    """Return the words of a command without what it was told to do again, or to stop after."""
    kept: list[str] = []
    is_named = False
    for word in words:
        is_named = word in NAMING or (is_named and not word.startswith("-"))
        if not is_named and word not in FORCING and word != "partial":
            kept.append(word)
    return kept
