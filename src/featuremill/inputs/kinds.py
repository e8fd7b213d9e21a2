"""The kinds of records that readers make: sequences of an alphabet, or rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.errors import UserError
from featuremill.inputs import cells, columns
from featuremill.inputs.letters import Make, doubtful_id, wrong_id
from featuremill.inputs.residues import nucleotide, protein
from featuremill.workload import Record


class Taken(NamedTuple):
    """The columns to read of one table, and the function that makes records of its rows."""

    indices: Sequence[int]
    """Indices of the columns to read, from 0; the first is the column of ids."""
    num_texts: int
    """Number of leading columns that are read as text."""
    of_row: Callable[[Sequence[Any], str, int], Record]
    """A function that makes a record of the values at `indices`, a source and a line."""
    described: str


class Sequences(NamedTuple):
    """Records of letters, from any format."""

    make: Make
    readable: str
    """The readable formats, for error messages."""
    names: Sequence[Sequence[str]]
    """Names of the column of sequences in tables by rank, the first rank preferred."""
    has_fastq: bool = False
    of_entry: Callable[[Any], Iterator[tuple[str, str, str]]] | None = None
    """A function that yields id, description and letters for an entry of a flat file; None: for
    each protein of the entry."""
    fasta: str = "featuremill.inputs.fasta"
    """The module that reads FASTA."""
    chosen: columns.Named = columns.Named()

    def taken(self, path: Path, names: Sequence[str]) -> Taken:
        """Return how rows of the table `path` with these columns become records."""
        indices = columns.find(path, names, self.chosen, self.names)
        words = f"id from column {names[indices.id]!r}, sequence from {names[indices.sequence]!r}"
        if indices.description is None:
            return Taken(indices[:2], 2, self._of_row, words)
        words += f", description from {names[indices.description]!r}"
        return Taken((*indices[:2], indices.description), 3, self._of_row, words)

    def _of_row(self, values: Sequence[str], source: str, line: int) -> Record:
        id, letters, *description = values
        described = description[0].strip() if description else ""
        id = id.strip()
        return self.make(id, described, letters, source, line, doubtful_id(id))


def whole(entry: Any) -> Iterator[tuple[str, str, str]]:
    """Yield id, description and letters of an entry of a flat file."""
    yield entry.id, entry.description, str(entry.seq) if entry.seq.defined else ""


PROTEINS = Sequences(
    protein,
    "featuremill reads FASTA, tables (.csv, .tsv, .parquet) and flat files (.gb, .gbk, .embl, "
    ".dat)",
    columns.SEQUENCES,
)
NUCLEOTIDES = Sequences(
    nucleotide,
    "nucleotides are read from FASTA, FASTQ, tables (.csv, .tsv, .parquet) and flat files (.gb, "
    ".gbk, .embl)",
    columns.NUCLEOTIDES,
    has_fastq=True,
    of_entry=whole,
)


class Rows(NamedTuple):
    """Records that are rows of a table: the values of some columns are the payload."""

    id_column: str = ""
    columns: Mapping[str, type] | Sequence[str] | None = None
    """The columns of the payload and the types of their cells; None: all but the ids."""

    def taken(self, path: Path, names: Sequence[str]) -> Taken:
        """Return how rows of the table `path` with these columns become records."""
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"{path}: two columns are called {twice!r}; rename one of them.")
        id = columns.find_column(path, names, self.id_column, columns.IDS, "id")
        wanted = [name for name in names if name != names[id]]
        if self.columns is not None:
            wanted = list(self.columns)
        if missing := next((name for name in wanted if name not in names), None):
            raise UserError(
                f"{path}: there is no column {missing!r}, which this workload reads; it has "
                f"{columns.listed(names)}, so add it or rename one."
            )
        if not wanted:
            raise UserError(
                f"{path}: there is no column but {names[id]!r}; give a table with values as well."
            )
        types = self.columns if isinstance(self.columns, Mapping) else {}
        if unknown := next((name for name, type in types.items() if type not in cells.TYPES), None):
            known = ", ".join(type.__name__ for type in cells.TYPES)
            raise TypeError(f"column {unknown!r} can have one of the types {known}")
        return Taken(
            [id, *map(names.index, wanted)],
            1,
            partial(_of_row, wanted, types),
            f"id from column {names[id]!r}, values from {columns.listed(wanted)}",
        )


def _of_row(
    names: Sequence[str], types: Mapping[str, type], values: Sequence[Any], source: str, line: int
) -> Record:
    id, payload = values[0].strip(), b""
    if not (reason := wrong_id(id)):
        payload, reason = cells.payload(names, values[1:], types)
    return Record(id, "", payload, source, line, reason, doubtful_id(id))


Kind = Sequences | Rows
