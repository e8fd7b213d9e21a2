"""doctor: is this machine ready for a run, what is in the way, and how should it be run?

Asks NVML and torch in child processes, so a driver that hangs or crashes becomes an issue in the
answer. Reads nothing of the input and writes nothing but a `--bundle`.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill doctor`."""
    parser.add_argument("--json", action="store_true", help="the same for programs")
    parser.add_argument("--devices", metavar="0,2", help="look only at these (numbers or UUIDs)")
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--model", help="say where this model fits (a name or a path)")
    wanted.add_argument("--memory-mb", type=int, metavar="M", help="say where M MB fit")
    parser.add_argument(
        "--run", action="store_true", dest="is_timed", help="time work, see if it scales"
    )
    parser.add_argument(
        "--slurm", action="store_true", help="look at the Slurm cluster, not at this machine"
    )
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE.zip", help="pack a bug report, no data"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where results go (default: results)"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for a device's answer"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill doctor`; return 0 when a run with device: auto can start, else 1."""
    # The children import this package, and not all of it.
    if arguments.slurm:
        from featuremill.doctor import slurm_view

        return slurm_view.run(arguments)
    from featuremill.doctor import visit

    return visit.run(arguments)
