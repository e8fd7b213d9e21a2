"""transfer: give each record the label of its nearest labelled records."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=Path, help="results/<run>: its records get labels")
    add(
        "reference",
        type=Path,
        nargs="?",
        help="the run of the labelled records, if that is another one",
    )
    add("--labels", type=Path, required=True, metavar="TABLE", help="CSV, TSV or Parquet with ids")
    add("--column", required=True, help="its column of labels")
    add("--id-column", default="", metavar="COLUMN", help="of TABLE, if not found by its name")
    add(
        "--group",
        metavar="COLUMN",
        help="its column of groups: no labelled record gets its label from one of its group "
        "(default: each record by itself)",
    )
    add("--vectors", metavar="COLUMN", help="which vectors, where a run has several")
    add("-k", "--k", type=int, default=5, metavar="N", help="nearest that vote (default 5)")
    add("--metric", choices=("cosine", "euclidean"), default="cosine", help="default: cosine")
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="beside it go .missing.tsv and .json",
    )


def run(arguments: argparse.Namespace) -> None:
    from featuremill.steps.transfer import write

    options = vars(arguments)
    write.transfer(write.Chosen(*(options[name] for name in write.Chosen._fields)))
