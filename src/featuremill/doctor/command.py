"""`featuremill doctor`: report whether this machine is ready for a run, and how to fix it if not.

NVML and torch are called in child processes, so that a driver that hangs or crashes is reported.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from featuremill.lease import GpuOptions
from featuremill.lease.request import HELP_OF_DEVICES
from featuremill.workload import DEFAULT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--gpus", metavar="N", help="number of GPUs that must be ready")
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
    """Run `featuremill doctor`; return 0 if a run can start (on --gpus GPUs), else 1."""
    from featuremill.doctor import checks, findings, report

    gpus = GpuOptions.parse(arguments.gpus, arguments.devices)
    gpus.check()
    arguments.devices = gpus.devices
    if arguments.slurm:
        answer = report.of_cluster(*checks.look_at_cluster(arguments))
        lines = report.lines_of_cluster(answer)
    else:
        facts = findings.examine(arguments)
        issues, recommended = checks.issues_of(facts), report.recommended(facts)
        if (gpus.number or 0) > len(recommended):
            few = checks.issue("too few", count=len(recommended), number=gpus.number)
            issues.insert(0, few)
        answer = report.as_json(facts, issues, recommended)
        lines = report.lines(answer)
    page = json.dumps(answer, indent=2, ensure_ascii=False) if arguments.json else "\n".join(lines)
    sys.stdout.write(page + "\n")
    return 0 if answer["ready"] else 1
