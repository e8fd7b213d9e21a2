"""The rows of a run's results: their vectors, mapped from embeddings.npy or decoded from the table,
and who each one is.

Vectors come in blocks of rows (rows, width), so memory holds a few thousand at a time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base.accession import accessions
from featuremill.base.errors import IntegrityError
from featuremill.base.text import clipped, one_line
from featuremill.features.arrays import matrix
from featuremill.features.columns import Column
from featuremill.search.nearest import Matrix

ROWS_AT_ONCE = 4096
"""Rows that are decoded together."""
NUMBERS = "fiu"
"""Kinds of NumPy types that can be compared: floats and integers."""
MOST_NAMED = 3
"""Ids that are named where several records have the accession asked for."""


class Record(NamedTuple):
    """What a row of the results is."""

    id: str
    length: int
    sha256: str
    description: str = ""
    """Tables of early versions had none."""


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Say that the table is damaged where its bytes turn out to be no rows."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise
        what = " ".join(str(error).split())[:200].rstrip(".")
        raise IntegrityError(
            f"{path}: it is damaged ({what}); featuremill merge {path.parent} writes it anew from "
            "the parts."
        ) from None


class Mapped:
    """A column of embeddings.npy, memory-mapped.

    Raises:
        ValueError, EOFError: when the file is not an array of numbers of this shape.
    """

    def __init__(self, path: Path, column: Column, num_rows: int) -> None:
        if not num_rows:  # nothing to map
            self.vectors: Matrix = np.empty((0, column.width), np.float32)
        else:
            whole = np.asarray(np.load(path, mmap_mode="r"))
            if whole.shape != (num_rows, column.total) or whole.dtype.kind not in NUMBERS:
                raise ValueError(f"{path}: {whole.dtype} of shape {whole.shape}")
            self.vectors = whole[:, column.start : column.start + column.width]
        self.dtype = self.vectors.dtype

    def blocks(self, num_rows: int) -> Iterator[tuple[int, Matrix]]:
        for start in range(0, len(self.vectors), num_rows):
            yield start, self.vectors[start : start + num_rows]

    def take(self, rows: npt.NDArray[np.int64]) -> Matrix:
        return self.vectors[rows]


class Group(NamedTuple):
    """A row group of a table."""

    path: Path
    """Of the table."""
    file: pq.ParquetFile
    number: int
    first_row: int
    num_rows: int

    def read(self, columns: list[str]) -> pa.Table:
        """Read `columns` of the group."""
        with _decoding(self.path):
            return self.file.read_row_group(self.number, columns=columns)

    def batches(self, column: str) -> Iterator[Matrix]:
        """Yield the vectors of `column`, `ROWS_AT_ONCE` together."""
        with _decoding(self.path):
            for batch in self.file.iter_batches(
                ROWS_AT_ONCE, row_groups=[self.number], columns=[column]
            ):
                yield matrix(pa.chunked_array([batch.column(0)]))

    def rows_in(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places, among ascending `rows`, of those in this group."""
        low, high = np.searchsorted(rows, [self.first_row, self.first_row + self.num_rows])
        return np.arange(low, high)


class Table:
    """embeddings.parquet, or the files of embeddings/, read by row groups."""

    def __init__(self, path: Path, files: list[pq.ParquetFile], column: Column) -> None:
        self.path = path
        self.column = column
        self.groups: list[Group] = []
        first = 0
        for file in files:
            for number in range(file.num_row_groups):
                num_rows = file.metadata.row_group(number).num_rows
                self.groups.append(Group(path, file, number, first, num_rows))
                first += num_rows
        self.num_rows = first
        kind = files[0].schema_arrow.field(column.name).type.value_type
        self.dtype = np.dtype(kind.to_pandas_dtype())

    def blocks(self, num_rows: int) -> Iterator[tuple[int, Matrix]]:
        for group in self.groups:
            first = group.first_row
            for vectors in group.batches(self.column.name):
                for start in range(0, len(vectors), num_rows):
                    yield first + start, vectors[start : start + num_rows]
                first += len(vectors)

    def take(self, rows: npt.NDArray[np.int64]) -> Matrix:
        taken = np.empty((len(rows), self.column.width), self.dtype)
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        for group in self.groups:
            if len(places := group.rows_in(ascending)):
                wanted = pa.array(ascending[places] - group.first_row)
                column = group.read([self.column.name])[self.column.name].take(wanted)
                taken[order[places]] = matrix(column)
        return taken


Vectors = Mapped | Table
"""One vector a row of the results."""


def rows_of(table: Table, ids: Iterable[str]) -> dict[str, int]:
    """Return the rows of those of `ids` that are there."""
    found: dict[str, int] = {}
    wanted = set(ids)
    asked = pa.array(wanted, pa.string())
    for group in table.groups:
        if len(found) == len(wanted):
            break
        here = group.read(["id"])["id"]
        places = pc.indices_nonzero(pc.is_in(here, value_set=asked))
        names = here.take(places).to_pylist()
        rows = (group.first_row + int(place) for place in places.to_numpy())
        found.update(zip(names, rows, strict=True))
    return found


def ids_of_accessions(table: Table, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the ids of the records that have one of `names` as accession, `MOST_NAMED` at most."""
    found: dict[str, list[str]] = {}
    asked = pa.array(set(names), pa.string())
    for group in table.groups if len(asked) else ():
        ids = group.read(["id"])["id"]
        here = accessions(ids)  # as in the column of that name, which early tables lack
        places = pc.indices_nonzero(pc.is_in(here, value_set=asked))
        pairs = zip(here.take(places).to_pylist(), ids.take(places).to_pylist(), strict=True)
        for name, id in pairs:
            if len(of_name := found.setdefault(name, [])) < MOST_NAMED:
                of_name.append(id)
    return found


def records_of(table: Table, rows: npt.NDArray[np.int64]) -> dict[int, Record]:
    """Return what the `rows` are."""
    found: dict[int, Record] = {}
    ascending = np.unique(rows)
    for group in table.groups:
        if len(places := group.rows_in(ascending)):
            here = ascending[places]
            block = group.read(list(Record._fields)).take(pa.array(here - group.first_row))
            columns = (block[name] for name in Record._fields if name in block.column_names)
            told = map(Record, *(column.to_pylist() for column in columns))
            found.update(zip(here.tolist(), told, strict=True))
    return found


def why_missing(failed: Path, id: str) -> str:
    """Return in a sentence why `id` has no vector."""
    if told := _listed(failed, id):
        status, reason = told
        state = {"pending": "is not computed yet", "refused": "was refused"}.get(status, "failed")
        why = "" if status == "pending" else f" ({reason})"
        return f"the record {id!r} has no vector: it {state}{why}"
    return f"there is no record '{clipped(id)}'"


def _listed(failed: Path, id: str) -> tuple[str, str] | None:
    """Return the status and the reason that failed.tsv has for `id`."""
    try:
        with failed.open(encoding="utf-8", newline="") as rows:
            for row in csv.DictReader(rows, delimiter="\t"):
                if row["id"] == one_line(id):
                    return str(row["status"]), str(row["reason"])
    except (OSError, ValueError, KeyError, csv.Error):
        pass  # it only explains
    return None
