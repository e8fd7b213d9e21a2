"""`featuremill verdict`: classify contigs by the scores of their fragments.

Joins the folder of `featuremill translate` and the predictions of `featuremill head predict` by the
ids of fragments. Writes a table with one row per contig, and a page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from featuremill.kit.tables import add_options
from featuremill.steps.verdicts import SECTION


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("translated", type=Path, metavar="FOLDER", help="output folder of featuremill translate")
    add(
        "predictions",
        type=Path,
        metavar="PREDICTIONS",
        help="output of featuremill head predict, .tsv or .parquet",
    )
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="table of verdicts to write; the page is FILE.html",
    )
    add_options(parser, SECTION, "by", "prefer")
    add(
        "--head",
        type=Path,
        metavar="HEAD",
        help="head of the predictions, whose metrics the page shows",
    )
    add(
        "--runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="results/RUN",
        help="runs of the predictions, which the page shows",
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
