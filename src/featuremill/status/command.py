"""featuremill status: print progress, jobs, failures and problems of runs, and the next commands.

It only reads the files of other commands, so it can run at any time.
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
    # Imported here, so that other commands and --help start fast.
    from featuremill.config.project import runs_of
    from featuremill.status import view
    from featuremill.status.project import ProjectReader
    from featuremill.status.reader import is_run
    from featuremill.store import results, run_lock

    if is_listing := arguments.run_folder is None:
        folders = sorted(Path(run_lock.RESULTS).glob("*"))
        runs = [folder for folder in folders if is_run(folder) or results.runs_below(folder)]
        if not runs:
            raise UserError(
                "there is no run in results/ of this folder; featuremill init YOUR.fasta writes a "
                "config, which featuremill run computes."
            )
    else:
        runs = [arguments.run_folder]
    states = [ProjectReader(runs_of(run)).inspect(arguments.verify) for run in runs]
    if arguments.json:
        content = [state.as_json() for state in states]
        lines = [json.dumps(content if is_listing else content[0], indent=2, ensure_ascii=False)]
    elif is_listing:
        lines = [" ".join(itertools.takewhile(bool, view.lines(state))) for state in states]
    else:
        lines = [*view.lines(states[0])]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0 if is_listing else states[0].exit_status
