"""Arguments of several commands. The imports are few, so that `--help` starts fast."""

import argparse
from pathlib import Path


def add_runs(parser: argparse.ArgumentParser, without: str = "") -> None:
    """Add the argument that names runs; `without` ends its help if it may be omitted."""
    words = "results/<run>, or the config that featuremill run takes" + without
    nargs = "?" if without else None
    parser.add_argument("run_folder", type=Path, metavar="RUN", help=words, nargs=nargs)
    parser.set_defaults(takes_configs=True)
