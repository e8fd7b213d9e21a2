"""verdict: say of each contig what it is, by the scores of its fragments.

Reads the folder of `featuremill translate` and the predictions of `featuremill head predict`, and
joins them by the fragments' ids; writes a table with a row for each contig that was read, and a
page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from featuremill.steps.verdicts.choices import RULES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("translated", type=Path, metavar="FOLDER", help="what featuremill translate wrote")
    add(
        "predictions",
        type=Path,
        metavar="PREDICTIONS",
        help="what featuremill head predict wrote, .tsv or .parquet",
    )
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="the verdicts; FILE.html beside them draws them",
    )
    add(
        "--by",
        choices=RULES,
        default="max",
        help="what of its fragments' scores is a contig's: the highest of each class (default), or "
        "the mean",
    )
    add(
        "--prefer",
        metavar="CLASS",
        help="the class that a contig is of where two score the same (default: the last one)",
    )
    add(
        "--head",
        type=Path,
        metavar="HEAD",
        help="the head that predicted, so that the page shows how good it is",
    )
    add(
        "--runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="results/RUN",
        help="the runs that the predictions are of, so that the page shows them, too",
    )


def run(arguments: argparse.Namespace) -> None:
    from featuremill.steps.verdicts.write import write

    write(
        arguments.translated,
        arguments.predictions,
        arguments.output,
        arguments.by,
        arguments.prefer,
        arguments.runs,
        arguments.head,
    )
