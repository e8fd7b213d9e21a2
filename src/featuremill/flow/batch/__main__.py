"""`python -m featuremill.flow.batch SYSTEM submit SCRIPT`, and `… SYSTEM status JOB`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.flow.batch.status import status
from featuremill.flow.batch.submit import submit
from featuremill.flow.batch.systems import SYSTEMS


def main() -> int:
    """Carry out one command; print what Snakemake reads."""
    parser = argparse.ArgumentParser(prog="featuremill.flow.batch")
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("verb", choices=("submit", "status"))
    parser.add_argument("subject", help="a job script, or a job's number")
    given = parser.parse_args()
    system = SYSTEMS[given.system]
    try:
        if given.verb == "submit":
            print(submit(system, Path(given.subject)))
        else:
            print(status(system, given.subject))
    except UserError as error:
        print(f"featuremill: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
