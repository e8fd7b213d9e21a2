"""Arguments that several verbs have; it imports nothing that takes time, as `--help` does not."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_runs(parser: argparse.ArgumentParser, besides: str = "") -> None:
    """Add the argument that names runs (`config.runs` says which), or what `besides` tells."""
    help = f"results/<run>, or the config that featuremill run takes{besides}"
    parser.add_argument("run_folder", type=Path, metavar="RUN", help=help)
