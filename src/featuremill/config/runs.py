"""Which runs somebody means, by the folder of one or by a config."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill import config as configs
from featuremill.config import contigs
from featuremill.config.contigs import ContigsConfig
from featuremill.store import command_line, run_lock


class Runs(NamedTuple):
    """One run, or those of a config of contigs."""

    given: Path
    """What was typed: a folder, or a config."""
    folders: list[Path]
    """results/<run> of each."""
    contigs: ContigsConfig | None = None
    """The config, where it is one of contigs."""

    def again(self, forced: Sequence[str] = ()) -> str:
        """Return what computes all of them, or goes on with it; `forced` is as in
        `command_line.again`."""
        known = next(filter(run_lock.read, self.folders), None)
        if known or self.given in self.folders:
            return command_line.again(known or self.given, forced)
        if self.contigs:  # which only that verb's workflow takes
            return f"featuremill run {shlex.quote(str(self.given))}"
        return command_line.first(self.given)


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names runs."""
    help = "results/<run>, or the config that featuremill run takes"
    parser.add_argument("run_folder", type=Path, metavar="RUN", help=help)


def named(given: Path) -> Runs:
    """Return the runs that `given` names, whether they were begun or not.

    Raises:
        UserError: when it is a file that is no config.
    """
    if not given.is_file():
        return Runs(given, [given])
    raw, places = configs.load(given)
    if "contigs" in raw:
        asked = contigs.validate(raw, str(given), places)
        return Runs(given, [Path(folder) for folder in asked.runs], asked)
    return Runs(given, [Path("results") / configs.validate(raw, str(given), places).run])
