"""Arguments of several commands. Its imports are cheap, for `--help`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_runs(parser: argparse.ArgumentParser, without: str = "") -> None:
    """Add the argument that names runs; `without` ends its help if it may be omitted."""
    help = "results/<run>, or the config that featuremill run takes"
    more: dict[str, Any] = {"nargs": "?"} if without else {}
    parser.add_argument("run_folder", type=Path, metavar="RUN", help=help + without, **more)
    parser.set_defaults(takes_configs=True)
