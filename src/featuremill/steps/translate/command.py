"""`featuremill translate`: translate contigs or reads to proteins, with their nucleotides.

Reads FASTA, FASTQ, GenBank or tables. Writes proteins.faa.gz and nucleotides.fna.gz (with the same
ids and order), fragments.parquet (their positions on the contigs), untranslated.tsv and, last,
translate.json. A folder that is complete for the same files and options is not changed. With a
sheet of samples, each sample has a folder, and further sheets list the files of fragments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.tables import add_options
from featuremill.steps.translate.options import DEFAULTS, SECTION, SINGLE_DEFAULTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="*", type=Path, metavar="INPUT", help="FASTA, FASTQ, GenBank, table")
    add(
        "--samples",
        type=Path,
        metavar="SHEET",
        help="instead of INPUT, a sheet of samples with their files; each is translated separately",
    )
    add("--output", type=Path, required=True, metavar="FOLDER", help="output folder")
    add_options(parser, SECTION, *SECTION.model_fields)


def run(arguments: argparse.Namespace) -> None:
    keys = {key for defaults in (*DEFAULTS.values(), SINGLE_DEFAULTS) for key in defaults}
    options = {key: value for key in keys if (value := getattr(arguments, key)) is not None}
    if bool(arguments.inputs) == bool(arguments.samples):
        raise UserError("name files, or a sheet with --samples, and not both.")
    from featuremill.steps.translate.write import translate

    inputs = arguments.samples or arguments.inputs
    translate(inputs, arguments.output, arguments.by, **options)
