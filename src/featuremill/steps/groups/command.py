"""`featuremill groups`: pool the vectors of groups of records."""

from __future__ import annotations

import argparse
from pathlib import Path

from featuremill.kit.tables import add_options
from featuremill.steps.groups.section import POOLS, Groups

KEYS = ("column", "id_column", "vectors")
"""Keys of a section that are also options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=Path, help="results/<run> with the records to pool")
    add(
        "--table", type=Path, help="CSV, TSV or Parquet with ids (and samples, where a run has any)"
    )
    add_options(parser, Groups, *KEYS)
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

    options = {key: getattr(arguments, key) for key in (*KEYS, "pool")}
    table = arguments.table and str(arguments.table)
    section = Groups.model_construct(table=table, **options)
    pool(arguments.run_folder, section, arguments.output)
