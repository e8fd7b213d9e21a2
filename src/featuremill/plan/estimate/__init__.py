"""estimate: how long a run will take on so many devices, and what it needs, before it is started.

Reads the plan, or the input where there is none; writes nothing to the run's folder. What a speed
is taken from is always said: an earlier run, a number that was given, or an assumption.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill estimate`."""
    add = parser.add_argument
    add("config", type=Path, help="YAML file of the run")
    slots = parser.add_mutually_exclusive_group()
    slots.add_argument("--gpus", metavar="1,4,64", help="numbers of GPUs to estimate for")
    slots.add_argument(
        "--cpu-slots", metavar="1,2", help="numbers of jobs side by side that share this CPU"
    )
    add("--device", metavar="NAME", help='the GPUs\' model, such as "NVIDIA H100 80GB HBM3"')
    add(
        "--tokens-per-second",
        type=float,
        metavar="N",
        help="speed of one job, in the workload's unit of cost (instead of looking for one)",
    )
    add(
        "--startup-seconds",
        type=float,
        metavar="S",
        help="what a job takes besides computing; a cluster's queue adds seconds to each",
    )
    add(
        "--records",
        type=float,
        metavar="N",
        help="as if the input had so many records of the same kind: a sample is enough",
    )
    add("--bench", type=Path, nargs="+", default=[], metavar="FILE", help="records of make bench")
    add("--threads", type=int, help="processes that read the input (all cores)")
    add("--scratch", type=Path, help="folder for what reading the input needs (the system's)")
    add("--json", action="store_true", help="the same for programs")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill estimate`."""
    from featuremill.plan.estimate import visit  # here and not above: other verbs do not pay for it

    return visit.run(arguments)
