"""The runs of a command's argument, which is the folder of a run or a config."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.config import Run, project, yaml_lines
from featuremill.step import Product
from featuremill.store import command_line, run_lock
from featuremill.store.results import runs_below


class Runs(NamedTuple):
    """One run, or those of a config with several sets of features."""

    path: Path
    """The path that was typed: of a folder, or of a config."""
    folders: list[Path]
    """The folder of each run: results/<run>, or results/<run>/<name>."""
    steps: Sequence[Product] = ()
    """The products of steps; those that are inputs of features come first."""
    num_before: int = 0
    """Number of products of steps that are inputs of features."""
    configs: Sequence[Run] = ()
    """The config of each run; empty if a folder was typed."""

    @property
    def names(self) -> list[str]:
        return [folder.name for folder in self.folders]

    @property
    def is_one(self) -> bool:
        return not self.steps and len(self.folders) == 1

    def again(self, forced: Sequence[str] = ()) -> str:
        """Return the command that computes all runs; `forced` as in `command_line.again`."""
        known = next(filter(run_lock.read, self.folders), None)
        if known or self.path.is_dir() or self.path in self.folders:
            return command_line.again(known or self.folders[0], forced)
        return command_line.first(self.path, run_lock.working_folder(self.folders[0]))


def named(typed: Path) -> Runs:
    """Return the runs of the `typed` path, started or not.

    Raises:
        UserError: if it is a missing config, or a file that is not a config.
    """
    if typed.suffix in (".yaml", ".yml") and not typed.exists():
        raise UserError(f"{typed}: there is no such config; check the path, or name results/<run>.")
    if not typed.is_file():
        run_lock.refuse_lost(typed)
        below = runs_below(typed)
        is_run = (typed / "plan.json").exists() or (typed / "store").exists()
        is_project = below and run_lock.is_in_results(typed) and not is_run
        return Runs(typed, below if is_project else [typed])
    raw, places = yaml_lines.read(typed)
    config = project.validate(raw, str(typed), places)
    elsewhere = [typed.parent / folder for folder in config.folders]
    for folder in (*config.folders, *elsewhere):
        run_lock.refuse_lost(folder)
    runs = [*config.runs.values()]
    if any(map(Path.exists, config.folders)) or not any(map(Path.exists, elsewhere)):
        before, after = config.products_around
        return Runs(typed, config.folders, [*before, *after], len(before), runs)
    if config.sections:  # steps have paths relative to that folder
        raise UserError(
            f"{typed}: its results are below {typed.parent}, not here; type: "
            f"cd {shlex.quote(str(typed.parent))} and then the same with {typed.name}."
        )
    return Runs(typed, elsewhere, configs=runs)


def only_folder(typed: Path) -> Path:
    """Return the folder of the only run of the config `typed`.

    Raises:
        UserError: if it is not a config, or it has several sets of features.
    """
    folders = named(typed).folders
    if len(folders) > 1:
        raise UserError(
            f"{typed}: it has {len(folders)} sets of features; name one of their folders: "
            f"{', '.join(map(str, folders))}."
        )
    return folders[0]
