"""Which runs somebody means, by the folder of one or by a config."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill import config as configs
from featuremill.base.errors import UserError
from featuremill.config import contigs, project
from featuremill.config.contigs import ContigsConfig
from featuremill.step import Made
from featuremill.store import command_line, lock_holder, run_lock
from featuremill.store.results import runs_below
from featuremill.translate.folder import LOCK, SUMMARY, is_ours


class Runs(NamedTuple):
    """One run, or those of a config with several sets of features, or of one of contigs."""

    given: Path
    """What was typed: a folder, or a config."""
    folders: list[Path]
    """results/<run>, or results/<run>/<name>, of each."""
    contigs: ContigsConfig | None = None
    """The config, where it is one of contigs."""
    steps: Sequence[Made] = ()
    """What steps make of them."""

    @property
    def names(self) -> list[str]:
        """What each is called in the config."""
        return self.contigs.kinds if self.contigs else [folder.name for folder in self.folders]

    @property
    def is_one(self) -> bool:
        """Whether there is one run and nothing around it."""
        return not (self.contigs or self.steps) and len(self.folders) == 1

    def again(self, forced: Sequence[str] = ()) -> str:
        """Return what computes all of them, or goes on with it; `forced` is as in
        `command_line.again`."""
        known = next(filter(run_lock.read, self.folders), None)
        if known or self.given.is_dir() or self.given in self.folders:
            return command_line.again(known or self.folders[0], forced)
        if self.contigs:  # which only that verb's workflow takes
            return f"featuremill run {shlex.quote(str(self.given))}"
        return command_line.first(self.given)

    def around(self) -> dict[str, list[Path]]:
        """Return what the workflow left around the runs of a config of contigs, by place and in the
        order in which it may be removed; without the head, which may judge others, too.

        Raises:
            UserError: when somebody translates the contigs.
        """
        asked = self.contigs
        assert asked
        translated, logs = Path(asked.translated), Path("logs", asked.run)
        verdicts, scores = Path(asked.verdicts), Path(asked.predictions)
        if lock_holder.is_held(translated / LOCK):
            raise UserError(
                f"{translated}: a featuremill translate is at it; wait for it, or stop it."
            )
        made = [verdicts, verdicts.with_suffix(".html"), scores, scores.with_suffix(".missing.tsv")]
        # Without its summary, which goes first, a translation is not finished.
        fragments = [translated / SUMMARY]
        fragments += [path for path in translated.glob("*") if is_ours(path.name)]
        found = {str(path): [path] for path in made}
        found |= {asked.translated: fragments, str(logs): [*logs.glob("*.log")]}
        there = {place: [path for path in paths if path.exists()] for place, paths in found.items()}
        return {place: paths for place, paths in there.items() if paths}


def named(given: Path) -> Runs:
    """Return the runs that `given` names, whether they were begun or not.

    Raises:
        UserError: when it is a file that is no config, or would be a config and is not there.
    """
    if given.suffix in (".yaml", ".yml") and not given.exists():
        raise UserError(f"{given}: there is no such config; check the path, or name results/<run>.")
    if not given.is_file():
        below = runs_below(given)
        is_project = below and run_lock.is_in_results(given) and not _is_run(given)
        return Runs(given, below if is_project else [given])
    raw, places = configs.load(given)
    if "contigs" in raw:
        asked = contigs.validate(raw, str(given), places)
        return Runs(given, [Path(folder) for folder in asked.runs], asked)
    found = project.validate(raw, str(given), places)
    return Runs(given, found.folders, steps=found.made)


def _is_run(folder: Path) -> bool:
    return (folder / "plan.json").exists() or (folder / "store").exists()
