"""doctor: is this machine ready for a run, what is in the way, and how should it be run?

Asks NVML and torch in child processes, so a driver that hangs or crashes becomes an issue in the
answer. Reads nothing of the input and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from featuremill.lease import GpuOptions
from featuremill.lease.gpu_options import HELP_OF_DEVICES
from featuremill.workload import DEFAULT

NOT_READY = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--gpus", metavar="N", help="how many a run is to have: are they ready?")
    parser.add_argument("--devices", metavar="LIST", help=HELP_OF_DEVICES)
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--model", help="say where this model fits (a name or a path)")
    wanted.add_argument(
        "--config", type=Path, metavar="YAML", help="say where the model of this run fits"
    )
    parser.add_argument("--workload", metavar="NAME", help=f"of --model: whose it is ({DEFAULT})")
    parser.add_argument(
        "--set", metavar="NAME", help="of --config: which, where it has several sets of features"
    )
    parser.add_argument(
        "--slurm", action="store_true", help="look at the Slurm cluster, not at this machine"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where results go (default: results)"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for a device's answer"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill doctor`; return 0 when a run can start, else 1;
    with `--gpus`, when it can start on so many."""
    from featuremill.doctor import report, slurm

    gpus = GpuOptions.parse(arguments.gpus, arguments.devices)
    gpus.check()
    arguments.gpus, arguments.devices = gpus.number, gpus.devices
    if arguments.slurm:
        answer = slurm.answer(arguments)
        lines = slurm.lines(answer)
    else:
        answer = _of_machine(arguments)
        lines = report.lines(answer)
    page = json.dumps(answer, indent=2, ensure_ascii=False) if arguments.json else "\n".join(lines)
    sys.stdout.write(page + "\n")
    return 0 if answer["ready"] else NOT_READY


def _of_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    from featuremill.doctor import checks, findings, report

    found = findings.examine(arguments)
    advised, issues = report.advise(found), checks.issues_of(found)
    if (arguments.gpus or 0) > len(advised.counted):
        issues.insert(0, checks.too_few(len(advised.counted), arguments.gpus))
    return report.as_json(found, issues, advised)
