"""The vectors of a run as blocks of rows: mapped from embeddings.npy, or decoded from the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import IntegrityError
from featuremill.merge.loading import Pooled
from featuremill.merge.outputs.vectors import matrix
from featuremill.search.nearest import Matrix

ROWS_AT_ONCE = 4096
"""Rows that are decoded together."""
NUMBERS = "fiu"
"""Kinds of NumPy types that can be compared: floats and integers."""


@contextmanager
def decoding(path: Path) -> Iterator[None]:
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


class Vectors(Protocol):
    """One vector a row of the results."""

    dtype: np.dtype[Any]

    def blocks(self, num_rows: int) -> Iterator[tuple[int, Matrix]]:
        """Yield blocks of at most `num_rows` rows (rows, width), each with its first row."""

    def take(self, rows: npt.NDArray[np.int64]) -> Matrix:
        """Return the vectors of `rows`, shape (rows, width)."""


class Mapped:
    """A column of embeddings.npy, memory-mapped.

    Raises:
        ValueError, EOFError: when the file is not an array of numbers of this shape.
    """

    def __init__(self, path: Path, column: Pooled, num_rows: int) -> None:
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
        with decoding(self.path):
            return self.file.read_row_group(self.number, columns=columns)

    def batches(self, column: str) -> Iterator[Matrix]:
        """Yield the vectors of `column`, `ROWS_AT_ONCE` together."""
        with decoding(self.path):
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

    def __init__(self, path: Path, files: list[pq.ParquetFile], column: Pooled) -> None:
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
