"""status: what is done, what is running where, what failed and why, and what to type next.

Reads what the other commands write, at any time and beside them; changes nothing. Reads plan.json
and not the config: an edit of the config after the plan is Snakemake's to notice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path

from featuremill.base.arguments import add_runs
from featuremill.base.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, without="; without it, the runs in results/ are listed")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--verify", action="store_true", help="also hash inputs, parts and results: reads them all"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill status`; return 0 done, 1 not done, 2 done with failures."""
    # Here and not above: other commands, and --help, do not pay for it.
    from featuremill.config.runs import named
    from featuremill.status import view
    from featuremill.status.project import ProjectReader

    if arguments.run_folder is None:
        return _say_runs(arguments)
    project = ProjectReader(named(arguments.run_folder)).look_closely(arguments.verify)
    if arguments.json:
        said = json.dumps(project.as_json(), indent=2, ensure_ascii=False)
    else:
        said = "\n".join(view.lines(project))
    sys.stdout.write(f"{said}\n")
    return project.exit_status


def _say_runs(arguments: argparse.Namespace) -> int:
    """Print a line, or with `--json` the object, of each run in results/; return 0."""
    from featuremill.config.runs import named
    from featuremill.status import view
    from featuremill.status.project import ProjectReader
    from featuremill.status.reader import is_run
    from featuremill.store import results, run_lock

    folders = sorted(Path(run_lock.RESULTS).glob("*"))
    runs = [folder for folder in folders if is_run(folder) or results.runs_below(folder)]
    if not runs:
        raise UserError(
            "there is no run in results/ of this folder; featuremill init YOUR.fasta writes a "
            "config, which featuremill run computes."
        )
    looks = [ProjectReader(named(run)).look_closely(arguments.verify) for run in runs]
    said = [" ".join(itertools.takewhile(bool, view.lines(look))) for look in looks]
    if arguments.json:
        said = [json.dumps([look.as_json() for look in looks], indent=2, ensure_ascii=False)]
    sys.stdout.write("".join(f"{line}\n" for line in said))
    return 0
