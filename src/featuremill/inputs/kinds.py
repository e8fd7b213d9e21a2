"""What the readers are told to make of a record: a sequence of some alphabet, or a table's row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.inputs import cells, columns
from featuremill.inputs.bases import nucleotide
from featuremill.inputs.letters import Make, wrong_id
from featuremill.inputs.residues import protein
from featuremill.workload import Record

if TYPE_CHECKING:
    import pyarrow as pa


class Sequences(NamedTuple):
    """Records of letters, out of any format."""

    make: Make
    readable: str
    """What files can be read, for somebody who gave another."""
    names: Sequence[Sequence[str]]
    """How tables call the column of sequences, the surest names first."""
    has_fastq: bool = False
    of_entries: bool = False
    """Of a flat file's entries themselves; else of the proteins that they code."""
    chosen: columns.Named = columns.Named()

    def places(self, path: Path, names: Sequence[str]) -> Sequence[int]:
        """Return which columns of a table with these names are wanted: the id's, the sequence's
        and, where there is one, the description's."""
        found = columns.find(path, names, self.chosen, self.names)
        return [place for place in found if place is not None]

    def described(self, names: Sequence[str]) -> str:
        """Return in words which of its columns are taken, by the names at `places`."""
        id, sequence, *description = map(repr, names)
        words = f"id from column {id}, sequence from {sequence}"
        return f"{words}, description from {description[0]}" if description else words

    def of_row(self, names: Sequence[str], values: Sequence[str], source: str, line: int) -> Record:
        """Return the record of a table's row, of which `values` stand at `places`."""
        id, letters, *description = values
        return self.make(
            id.strip(), description[0].strip() if description else "", letters, source, line
        )

    def of_arrow(self, column: pa.Array, place: int) -> list[Any]:
        """Return the values of the column at one of `places`, as `of_row` takes them."""
        return cells.texts(column)

    def refusing(self, path: Path, records: Iterator[Record]) -> Iterator[Record]:
        """Yield `records`; refuse the file where the first one shows that it is of another kind."""
        for record in records:
            if record.reason and reasons.kind_of(record.reason) is reasons.PROTEIN:
                detail = record.reason.partition(": ")[2]
                raise UserError(
                    f"{path}:{record.line}: record {record.id[:60]!r} is a protein ({detail}), but "
                    "nucleotides are read here; give DNA or RNA, or choose a workload for proteins."
                )
            yield record
            break
        yield from records


PROTEINS = Sequences(
    protein,
    "featuremill reads FASTA, tables (.csv, .tsv, .parquet) and flat files (.gb, .gbk, .embl)",
    columns.SEQUENCES,
)
NUCLEOTIDES = Sequences(
    nucleotide,
    "nucleotides are read from FASTA, FASTQ, tables (.csv, .tsv, .parquet) and flat files (.gb, "
    ".gbk, .embl)",
    columns.NUCLEOTIDES,
    has_fastq=True,
    of_entries=True,
)


class Rows(NamedTuple):
    """Records of the rows of a table: the values of some columns, as one payload."""

    id_column: str = ""
    columns: Mapping[str, type] | Sequence[str] | None = None
    """Those of the payload, with the types that their cells have; None: all but the id's."""

    def places(self, path: Path, names: Sequence[str]) -> Sequence[int]:
        """Return which columns of a table with these names are wanted: the id's, and those of the
        payload."""
        if twice := next((name for name in names if list(names).count(name) > 1), None):
            raise UserError(f"{path}: two columns are called {twice!r}; rename one of them.")
        id = columns.one(path, names, self.id_column, columns.IDS, "id")
        wanted = [name for name in names if name != names[id]]
        if self.columns is not None:
            wanted = list(self.columns)
        if not wanted:
            raise UserError(
                f"{path}: there is no column but {names[id]!r}; give a table with values as well."
            )
        if missing := next((name for name in wanted if name not in names), None):
            raise UserError(
                f"{path}: there is no column {missing!r}, which this workload reads; it has "
                f"{columns.listed(names)}, so add it or rename one."
            )
        return [id, *(names.index(name) for name in wanted)]

    def described(self, names: Sequence[str]) -> str:
        """Return in words which of its columns are taken, by the names at `places`."""
        id, *others = names
        return f"id from column {id!r}, values from {columns.listed(others)}"

    def of_row(self, names: Sequence[str], values: Sequence[Any], source: str, line: int) -> Record:
        """Return the record of a table's row, of which `values` stand at `places`."""
        id = values[0].strip()
        if not (reason := wrong_id(id)):
            types = self.columns if isinstance(self.columns, Mapping) else {}
            payload, reason = cells.payload(names[1:], values[1:], types)
        return Record(id, "", b"" if reason else payload, source, line, reason)

    def of_arrow(self, column: pa.Array, place: int) -> list[Any]:
        """Return the values of the column at one of `places`, as `of_row` takes them."""
        values: list[Any] = cells.texts(column) if place == 0 else column.to_pylist()
        return values

    def refusing(self, path: Path, records: Iterator[Record]) -> Iterator[Record]:
        """Yield `records`; a table's rows have no alphabet to be of."""
        return records


Kind = Sequences | Rows
