"""status: what is done, what is running where, what failed and why, and what to type next.

Reads what the other commands write, at any time and beside them; changes nothing. Reads plan.json
and not the config: an edit of the config after the plan is Snakemake's to notice.
"""

from __future__ import annotations

import argparse
import json
import sys

from featuremill.base.arguments import add_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
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

    project = ProjectReader(named(arguments.run_folder)).look_closely(arguments.verify)
    if arguments.json:
        said = json.dumps(project.as_json(), indent=2, ensure_ascii=False)
    else:
        said = "\n".join(view.lines(project))
    sys.stdout.write(f"{said}\n")
    return project.exit_status
