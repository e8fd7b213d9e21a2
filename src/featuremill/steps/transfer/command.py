"""`featuremill transfer`: assign each record the label of its nearest labelled records."""

from __future__ import annotations

import argparse
from pathlib import Path

from featuremill.kit.tables import add_options
from featuremill.steps.transfer.section import Transfer

KEYS = ("column", "id_column", "group", "vectors", "k", "metric")
"""Keys of a section that are also options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=Path, help="results/<run> with the records to label")
    add(
        "reference",
        type=Path,
        nargs="?",
        help="the run of the labelled records, if that is another one",
    )
    add("--labels", type=Path, required=True, metavar="TABLE", help="CSV, TSV or Parquet with ids")
    add_options(parser, Transfer, *KEYS)
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="beside it go .missing.tsv and .json",
    )


def run(arguments: argparse.Namespace) -> None:
    from featuremill.steps.transfer.write import transfer

    options = {key: getattr(arguments, key) for key in KEYS}
    section = Transfer.model_construct(labels=str(arguments.labels), **options)
    transfer(arguments.run_folder, arguments.reference, section, arguments.output)
