"""`featuremill groups`: pool the vectors of groups of records."""

from __future__ import annotations

import argparse
from pathlib import Path

from featuremill.steps.groups.section import POOLS, Groups


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=Path, help="results/<run> with the records to pool")
    add(
        "--table", type=Path, help="CSV, TSV or Parquet with ids (and samples, where a run has any)"
    )
    add(
        "--column",
        help="its column of groups, such as a gene; without a table, one of the sheet of samples "
        "(default: each sample)",
    )
    add("--id-column", metavar="COLUMN", help="of the table, if not found by its name")
    add("--vectors", metavar="COLUMN", help="which vectors, where a run has several")
    add("--pool", nargs="+", choices=POOLS, default=["mean"], help="one or several (default mean)")
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.parquet",
        help="beside it go .members.tsv and .json",
    )


def run(arguments: argparse.Namespace) -> None:
    from featuremill.steps.groups.write import pool

    keys = ("column", "id_column", "pool", "vectors")
    options = {key: getattr(arguments, key) for key in keys}
    table = arguments.table and str(arguments.table)
    section = Groups.model_construct(table=table, **options)
    pool(arguments.run_folder, section, arguments.output)
