"""Arguments that several commands have; it imports nothing that takes time, as `--help` does
not."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names runs; `config.runs` says which."""
    help = "results/<run>, or the config that featuremill run takes"
    parser.add_argument("run_folder", type=Path, metavar="RUN", help=help)
    parser.set_defaults(takes_configs=True)
