"""Input files become records: FASTA, tables and flat files, compressed or not.

The suffix says what a file is; whether it is compressed is read from its first bytes. Every bad
record comes out refused with a reason; a file that as a whole cannot be trusted (cut short, not
text, not what its name says) is a `UserError`. Nothing here knows what a record is used for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.inputs import columns, source
from featuremill.workload import Record, WorkloadOptions


class Format(NamedTuple):
    """A kind of file: its name for people, the module here that reads it, and its suffixes."""

    name: str
    module: str
    suffixes: tuple[str, ...]


FASTA = Format("FASTA", "fasta", (".fa", ".fasta", ".faa", ".fas", ".pep"))
"""Also the format of every file whose suffix says nothing: its first line must begin with '>'."""
FORMATS = (
    FASTA,
    Format("CSV table", "table", (".csv",)),
    Format("TSV table", "table", (".tsv", ".tab")),
    Format("Parquet table", "parquet", (".parquet", ".pq")),
    Format("GenBank", "flatfile", (".gb", ".gbk", ".gbff", ".genbank", ".gp", ".gpff")),
    Format("EMBL", "flatfile", (".embl",)),
)
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
COMPRESSED = (".gz", ".bgz", ".zst", ".bz2", ".xz")


class TableOptions(WorkloadOptions):
    """Options of a workload whose inputs may be tables: which of their columns count."""

    EXECUTION = frozenset({"id_column", "sequence_column"})

    id_column: str = ""
    """Column of the ids in CSV, TSV and Parquet inputs. If not given, the one called `id`; else the
    only one of `accession`, `acc`, `entry`, `identifier`, `uniprot`, `uniprot_id`,
    `protein_id`, `seq_id`, `sequence_id`; else of `name`, `header`, `locus_tag`, `label`, whatever
    their capitals and whatever joins their words."""
    sequence_column: str = ""
    """Column of the sequences in them. If not given, the only one of
    `sequence`, `seq`, `protein_sequence`, `protein_seq`, `aa_sequence`, `aa_seq`,
    `amino_acid_sequence`; else of `aa`, `protein`, `residues`, `peptide`. A `description` (else
    `protein_names`, `protein_name`, `product`) is taken along where there is one."""


def proteins(inputs: Sequence[Path], options: TableOptions | None = None) -> Iterator[Record]:
    """Stream the protein records of `inputs`, file by file and in order, bad ones with a reason.

    `options` say which columns of tables count. Memory is bounded by the longest record. All files
    are looked at before the first one is read, so that a wrong last name doesn't cost the time of
    the others.
    """
    for path in inputs:
        source.check(path)
        format_of(path)
    for path in inputs:
        yield from _read(path, _chosen(options))


def columns_taken(path: Path, options: TableOptions) -> str:
    """Return in words which columns of the table `path` are read; "" for other formats."""
    if not _is_table(path):
        return ""
    names = _reader(path).names_of(path)
    taken = columns.find(path, names, _chosen(options))
    words = f"id from column {names[taken.id]!r}, sequence from {names[taken.sequence]!r}"
    if taken.description is None:
        return words
    return f"{words}, description from {names[taken.description]!r}"


def _chosen(options: TableOptions | None) -> columns.Named:
    return columns.Named(options.id_column, options.sequence_column) if options else columns.Named()


def format_of(path: Path) -> Format:
    """Return what kind of file `path` is, by its suffix."""
    suffix = _suffix(path)
    if suffix in SPREADSHEETS:
        raise UserError(f"{path}: spreadsheets are not read; save it as CSV (UTF-8) and give that.")
    return next((format for format in FORMATS if suffix in format.suffixes), FASTA)


def evident_format(path: Path) -> str:
    """Return what kind of input `path` is if its suffix or its first byte says so, else ''."""
    suffix = _suffix(path)
    if suffix in {suffix for format in FORMATS for suffix in format.suffixes}:
        return format_of(path).name
    with path.open("rb") as file:
        return FASTA.name if file.read(1) == b">" else ""


def _suffix(path: Path) -> str:
    """Return the last suffix in small letters, without those of compressed files."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _is_table(path: Path) -> bool:
    return format_of(path).module in ("table", "parquet")


def _reader(path: Path) -> ModuleType:
    # Imported when needed: pandas, pyarrow and Biopython take longer to load than most inputs.
    return import_module(f"featuremill.inputs.{format_of(path).module}")


def _read(path: Path, chosen: columns.Named) -> Iterator[Record]:
    arguments = (path, chosen) if _is_table(path) else (path,)
    num_records = 0
    try:
        for record in _reader(path).read(*arguments):
            num_records += 1
            yield record
    except source.DamagedError as damage:
        where = f"at about record {num_records + 1:,}"
        raise UserError(f"{path}: this file {damage.problem} {where}; {damage.remedy}.") from None
    if not num_records:
        raise UserError(f"{path}: there is no record in this file; give a file with sequences.")
