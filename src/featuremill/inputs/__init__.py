"""Read input files as records: FASTA, FASTQ, tables and flat files, compressed or not.

Workloads call `proteins`, `nucleotides`, `sequences` (either of these) or `rows`. Each format has
one reader, for each kind of records (`featuremill.inputs.kinds`). The suffix determines the format,
the first bytes the compression. An invalid record is yielded as refused, with a reason. A file that
is invalid as a whole (truncated, not text, another format, other records) raises `UserError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, cast

from pydantic import BaseModel

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.inputs import columns, fasta, kinds, letters, source
from featuremill.inputs.fasta import Piece
from featuremill.workload import Record as Record
from featuremill.workload import WorkloadOptions


class Format(NamedTuple):
    """A file format: its name in messages, the module that reads it, and its suffixes."""

    name: str
    module: str
    suffixes: tuple[str, ...]


FASTA = Format("FASTA", "fasta", (".fa", ".fasta", ".faa", ".fas", ".pep", ".fna", ".ffn", ".frn"))
"""Also the format of files with an unknown suffix; the first line must begin with '>'."""
FASTQ = Format("FASTQ", "fastq", (".fastq", ".fq"))
FORMATS = (
    FASTA,
    FASTQ,
    Format("CSV table", "table", (".csv",)),
    Format("TSV table", "table", (".tsv", ".tab")),
    Format("Parquet table", "parquet", (".parquet", ".pq")),
    Format("Arrow table", "parquet", (".arrow", ".arrows", ".feather", ".ipc")),
    Format("GenBank", "flatfile", (".gb", ".gbk", ".gbff", ".genbank", ".gp", ".gpff")),
    Format("EMBL", "flatfile", (".embl",)),
)
SUFFIXES = {suffix for format in FORMATS for suffix in format.suffixes}
FLAT = Format("flat file", "flatfile", ())
"""A flat file that is recognised by its first line, not by its name."""
FLAT_NAMES = {"swiss": "UniProt", "embl": "EMBL", "pir": "NBRF/PIR"}
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
COMPRESSED = (".gz", ".bgz", ".zst", ".bz2", ".xz")


class TableOptions(WorkloadOptions):
    """Options of a workload that reads proteins: the columns of tables."""

    EXECUTION = frozenset({"id_column", "sequence_column"})

    id_column: str = ""
    """Column of the ids in CSV, TSV and Parquet inputs. If not given, the column `id`; else the
    only one of `accession`, `acc`, `entry`, `identifier`, `uniprot`, `uniprot_id`, `protein_id`,
    `seq_id`, `sequence_id`; else of `name`, `header`, `locus_tag`, `label`. Capitals and separators
    of words (underscores, hyphens, dots, spaces) are ignored."""
    sequence_column: str = ""
    """Column of the sequences in CSV, TSV and Parquet inputs. If not given, the only one of
    `sequence`, `seq`, `protein_sequence`, `protein_seq`, `aa_sequence`, `aa_seq`,
    `amino_acid_sequence`, `sequence_aa`; else of `aa`, `protein`, `residues`, `peptide`. A column
    `description` (else `protein_names`, `protein_name`, `product`) is read, too."""


class NucleotideOptions(TableOptions):
    """Options of a workload that reads nucleotides: the columns of tables."""

    sequence_column: str = ""
    """Column of the sequences in CSV, TSV and Parquet inputs. If not given, the only one of
    `sequence`, `seq`, `nucleotide_sequence`, `dna_sequence`, `rna_sequence`, `nt_sequence`,
    `dna_seq`, `rna_seq`, `nt_seq`; else of `nucleotides`, `dna`, `rna`, `cds`, `read`. A column
    `description` (else `protein_names`, `protein_name`, `product`) is read, too."""


class SequenceOptions(TableOptions):
    """Options of a workload that reads proteins or nucleotides, by the option `alphabet`."""

    sequence_column: str = ""
    """Column of the sequences in CSV, TSV and Parquet inputs. If not given, it is found by its
    name, such as `sequence`, `protein` or `dna`. A column `description` is read, too."""
    alphabet: Literal["proteins", "nucleotides"]
    """What the inputs are: `proteins`, or `nucleotides` (DNA or RNA, with U read as T)."""

    def row_columns(self) -> Mapping[str, type] | None:
        """Return the columns of tables with their types, or None if records are sequences."""
        return None


class RowOptions(WorkloadOptions):
    """Options of a workload that reads the rows of tables: the columns."""

    EXECUTION = frozenset({"id_column"})

    id_column: str = ""
    """Column of the ids in the inputs; if not given, a column such as `id` or `name`."""

    def payload_columns(self) -> Mapping[str, type] | Sequence[str] | None:
        """Return the columns whose values are a record's payload; None: all but the ids.

        With types (str, int, float, bool, list, dict), a row of a CSV or TSV file has the same
        payload as the same values in Parquet; without types, its cells are texts.
        """
        return None


class NamedColumns(RowOptions):
    """Options that read the columns `names`."""

    names: tuple[str, ...]

    def payload_columns(self) -> tuple[str, ...]:
        return self.names


def proteins(inputs: Sequence[Path], options: TableOptions | None = None) -> Stream:
    """Yield the protein records of `inputs`, file by file and in order; invalid ones have a reason.

    `options` name the columns of tables. Memory is bounded by the longest record. All files are
    checked before the first one is read, so that a wrong last name is reported at once.
    """
    return Stream(inputs, _kind(options or TableOptions()))


def nucleotides(
    inputs: Sequence[Path],
    options: NucleotideOptions | None = None,
    fasta: str = kinds.NUCLEOTIDES.fasta,
) -> Stream:
    """Yield the records of DNA or RNA in `inputs`, as `proteins` does: IUPAC letters in upper case,
    U as T; qualities of FASTQ are dropped. `fasta` is another module with `read(path, kind)` for
    FASTA."""
    return Stream(inputs, _kind(options or NucleotideOptions())._replace(fasta=fasta))


def sequences(inputs: Sequence[Path], options: SequenceOptions) -> Stream:
    """Yield the records of `inputs` as `proteins` or `nucleotides` does, by `options.alphabet`."""
    return Stream(inputs, _kind(options))


def spelled(
    inputs: Sequence[Path],
    make: letters.Make,
    options: TableOptions,
    fasta: str = kinds.PROTEINS.fasta,
    of_entry: Callable[[Any], Iterator[tuple[str, str, str]]] | None = None,
) -> Stream:
    """Yield the records of letters of another alphabet, as `proteins` does; `make` makes them
    (`featuremill.inputs.letters.maker`). `fasta` and `of_entry` are fields of `kinds.Sequences`."""
    return Stream(inputs, _kind(options)._replace(make=make, fasta=fasta, of_entry=of_entry))


def rows(inputs: Sequence[Path], options: RowOptions | SequenceOptions | None = None) -> Stream:
    """Yield the rows of the tables `inputs` as records: a payload is the JSON object of the values
    of `options.payload_columns()` or `row_columns()` (`featuremill.inputs.cells`)."""
    return Stream(inputs, _kind_of(options or RowOptions()))


def columns_taken(path: Path, options: BaseModel) -> str:
    """Describe the columns that are read of the table `path`; "" for other formats."""
    if not isinstance(options, TableOptions | RowOptions) or not is_table(path):
        return ""
    names = import_module(_module(format_of(path))).names_of(path)
    return _kind_of(options).taken(path, names).described


def names_in_table(path: Path, what: str) -> list[str]:
    """Return the names of the columns of the table `path`.

    Raises:
        UserError: if it cannot be read or is not a table; `what` is for the message.
    """
    source.check(path)
    if not is_table(path):
        raise UserError(f"{path}: {what} are read from a table; give a .csv, .tsv or .parquet.")
    names: list[str] = import_module(_module(format_of(path))).names_of(path)
    return names


def _kind_of(options: TableOptions | RowOptions) -> kinds.Kind:
    if isinstance(options, RowOptions):
        return kinds.Rows(options.id_column, options.payload_columns())
    if isinstance(options, SequenceOptions) and (columns := options.row_columns()):
        return kinds.Rows(options.id_column, columns)
    return _kind(options)


def _kind(options: TableOptions) -> kinds.Sequences:
    is_dna = isinstance(options, NucleotideOptions)
    if isinstance(options, SequenceOptions):
        is_dna = options.alphabet == "nucleotides"
    chosen = columns.Named(options.id_column, options.sequence_column)
    return (kinds.NUCLEOTIDES if is_dna else kinds.PROTEINS)._replace(chosen=chosen)


def format_of(path: Path) -> Format:
    """Return the format of the file `path`, by its suffix."""
    suffix = _suffix(path)
    if suffix in SPREADSHEETS:
        raise UserError(f"{path}: spreadsheets are not read; save it as CSV (UTF-8) and give that.")
    return next((format for format in FORMATS if suffix in format.suffixes), FASTA)


def evident_format(path: Path) -> str:
    """Return the name of the format of `path`, by its suffix or first byte; "" if unknown."""
    suffix = _suffix(path)
    if suffix in SUFFIXES:
        return format_of(path).name
    with path.open("rb") as file:
        return FASTA.name if file.read(1) == b">" else ""


def _suffix(path: Path) -> str:
    """Return the last suffix in small letters, without suffixes of compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def is_table(path: Path) -> bool:
    return format_of(path).module in ("table", "parquet")


def _module(format: Format) -> str:
    return f"featuremill.inputs.{format.module}"


def _reader(path: Path, kind: kinds.Kind) -> ModuleType:
    format = format_of(path)
    if isinstance(kind, kinds.Rows):
        _refuse_no_table(path, format)
    elif format in (FASTA, FASTQ):  # decided by the first line, not by the name
        line = _first_line(path)
        is_fastq = kind.has_fastq and line.startswith("@") and not line.startswith(source.SAM)
        format = FASTQ if is_fastq else FASTA
        if format is FASTA and not (kind.fasta == kinds.PROTEINS.fasta and _flat(path, line)):
            return import_module(kind.fasta)
        format = FLAT if format is FASTA else FASTQ
    # pandas, pyarrow and Biopython take longer to import than most inputs to read.
    return import_module(_module(format))


def _flat(path: Path, first: str) -> str:
    """Return the format of the flat file `path`, by its `first` line; "" if it is not one."""
    if not first.startswith("ID   ") and first[3:4] != ";":
        return ""
    from featuremill.inputs.flatfile import format_of as flat_format  # it imports Biopython

    return flat_format(path)


def name_of(path: Path) -> str:
    """Return the name of the format of `path` for messages."""
    format = format_of(path)
    flat = _flat(path, _first_line(path)) if format is FASTA else ""
    return FLAT_NAMES[flat] if flat else format.name


def _first_line(path: Path) -> str:
    with source.open_text(path, "surrogateescape") as text:
        return next((line.lstrip() for line in text if line.strip()), "")


def _refuse_no_table(path: Path, format: Format) -> None:
    """Raise UserError if the file is not a table, by its name or its first line."""
    if format.module == "parquet":
        return
    line = _first_line(path)
    is_fasta = line.startswith(">")
    if format.module == "table" and not is_fasta:
        return
    problem = f"is {format.name}"
    if is_fasta:
        problem = f"is FASTA (it begins with {line.strip()[:40]!r})"
    elif line.startswith("@") and format in (FASTA, FASTQ):
        problem = f"is FASTQ (it begins with {line.strip()[:40]!r})"
    elif format is FASTA:
        problem = "has no suffix of a table"
    raise UserError(
        f"{path}: this {problem}, but rows of tables are read here; give a .csv, .tsv or .parquet."
    )


class Stream(Iterator[Record]):
    """An iterator over the records of files, or over pieces of files to be parsed elsewhere."""

    def __init__(self, inputs: Sequence[Path], kind: kinds.Kind) -> None:
        self._inputs, self._kind = inputs, kind
        self._change: Callable[[Record], Record] = lambda record: record
        self._records = chain.from_iterable(map(self.records_of, self.pieces()))

    def __next__(self) -> Record:
        return next(self._records)

    def each(self, change: Callable[[Record], Record]) -> Stream:
        """Apply `change` to every record, including those from pieces; return the stream."""
        self._change = change
        return self

    def pieces(self) -> Iterator[Piece | Record]:
        """Yield pieces of FASTA files and records of other files, in order."""
        for path in self._inputs:
            source.check(path)
            format_of(path)
        for path in self._inputs:
            for piece in _read(path, self._kind):
                yield self._change(piece) if isinstance(piece, Record) else piece

    def records_of(self, piece: Piece | Record) -> Iterator[Record]:
        """Return the records of an item of `pieces`."""
        if isinstance(piece, Record):
            return iter((piece,))
        records = fasta.records_of(piece, cast("kinds.Sequences", self._kind))
        if piece.is_first:
            records = _refusing_proteins(piece.path, records)
        return map(self._change, records)


def _refusing_proteins(path: Path | str, records: Iterator[Record]) -> Iterator[Record]:
    """Return `records`; raise UserError if the first one is a protein in place of nucleotides."""
    first = next(records, None)
    if first is None:
        return records
    if first.reason and reasons.kind_of(first.reason) is reasons.PROTEIN:
        detail = first.reason.partition(": ")[2]
        raise UserError(
            f"{path}:{first.line}: record {first.id[:60]!r} is a protein ({detail}), but "
            "nucleotides are read here; give DNA or RNA, or choose a workload for proteins."
        )
    return chain([first], records)


def _read(path: Path, kind: kinds.Kind) -> Iterator[Piece | Record]:
    num_records = 0
    try:
        reader: Any = _reader(path, kind)
        items = getattr(reader, "pieces" if reader is fasta else "read")(path, kind)
        for each in items if reader is fasta else _refusing_proteins(path, items):
            num_records += each.num_records if isinstance(each, Piece) else 1
            yield each
    except source.DamagedError as damage:
        where = f"at about record {num_records + 1:,}"
        raise UserError(f"{path}: this file {damage.problem} {where}; {damage.remedy}.") from None
    if not num_records:
        what = "rows" if isinstance(kind, kinds.Rows) else "sequences"
        raise UserError(f"{path}: there is no record in this file; give a file with {what}.")


def distinct_records(
    records: Iterable[Record],
) -> tuple[dict[int, Record], dict[int, tuple[Record, str]]]:
    """Return the records to compute, each id once, and those that are refused, with the reason: by
    themselves, or because their id stands for different payloads. The keys are the positions among
    `records`."""
    of_id: dict[str, dict[int, Record]] = {}
    good, refused = dict[int, Record](), dict[int, tuple[Record, str]]()
    for position, record in enumerate(records):
        if record.reason:
            refused[position] = record, record.reason
        else:
            of_id.setdefault(record.id, {})[position] = record
    for same_id in of_id.values():
        position, first = next(iter(same_id.items()))
        others = (record for record in same_id.values() if record.payload != first.payload)
        if (another := next(others, None)) is None:
            good[position] = first
            continue
        for position, record in same_id.items():
            other = another if record.payload == first.payload else first
            at = f"the other one is at {other.source}:{other.line}"
            refused[position] = record, reasons.CONFLICT.reason(at)
    return good, refused
