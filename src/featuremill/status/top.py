"""featuremill top: show a run in progress: progress, speed, time left, devices and failures.

It only reads files, so it also works on another node of a shared file system.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from featuremill.base.arguments import add_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument("--once", action="store_true", help="print the screen once, and exit")
    parser.add_argument(
        "--json", action="store_true", help="for programs: one object a look, each on a line"
    )
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help="between two looks (default: 1 on a terminal, 10 elsewhere)",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="keep a page with a curve for each GPU there"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill top`; return 0 done, 1 not done, 2 done with failures."""
    from featuremill.status import watch  # here, so that other commands start fast

    return watch.run(arguments)
