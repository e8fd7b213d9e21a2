"""Arguments that several commands have; it imports nothing that takes time, as `--help` does
not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_runs(parser: argparse.ArgumentParser, without: str = "") -> None:
    """Add the argument that names runs; `config.runs` says which. `without` says what is done if
    there is none, where that may be."""
    help = "results/<run>, or the config that featuremill run takes"
    more: dict[str, Any] = {"nargs": "?"} if without else {}
    parser.add_argument("run_folder", type=Path, metavar="RUN", help=help + without, **more)
    parser.set_defaults(takes_configs=True)
