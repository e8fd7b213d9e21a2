"""Read a table of results, find its columns of vectors, and read these: decoded from the table, or
mapped from embeddings.npy.

A table is embeddings.parquet, the files of embeddings/, or another Parquet file of rows with ids.
It is read in batches of a few thousand rows, in bounded memory.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.arrays import matrix
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.id_columns import KEYS, IdColumns
from featuremill.store.formats import files_of
from featuremill.store.records import with_keys

CHOOSING = "--vectors (in Python, column=)"
"""The default advice, in messages, how to choose one column of several."""
ROWS_AT_ONCE = 4096
"""Number of rows that are decoded together."""
MOST_READ = 100_000_000
"""Largest number of values that `Table.spread` causes to be read."""
SPARE_FILES = 100
"""File descriptors of the process for other purposes."""
NUMBERS = "fiu"
"""Kinds of NumPy dtypes of vectors: floats and integers."""
Matrix = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


class Column(NamedTuple):
    """A column of vectors."""

    name: str
    width: int
    """The length of a vector."""
    is_per_residue: bool
    start: int
    """The index of its first number in a row of embeddings.npy, which has all pooled columns."""
    total: int
    """The length of such a row."""


def columns_of(schema: pa.Schema, of_residues: bool = False) -> dict[str, Column]:
    """Return the columns with a vector per record (also per residue if `of_residues`), by name."""
    columns: dict[str, Column] = {}
    total = 0
    for name, kind in zip(schema.names, schema.types, strict=True):
        is_list = pa.types.is_list(kind)
        vector = kind.value_type if is_list else kind
        if pa.types.is_fixed_size_list(vector) and (of_residues or not is_list):
            columns[name] = Column(name, vector.list_size, is_list, total, 0)
            total += 0 if is_list else vector.list_size
    return {name: column._replace(total=total) for name, column in columns.items()}


def chosen(
    schema: pa.Schema,
    column: str | None,
    where: Path | str,
    choosing: str = CHOOSING,
    of_residues: bool = False,
) -> Column:
    """Return the column called `column`, or the only one, of the columns that `columns_of` returns.
    `choosing` is the advice in messages how to choose one of several.

    Raises:
        UserError: if there is no such column, or several and `column` is None.
    """
    columns = columns_of(schema, of_residues)
    names = list(columns)
    if column is None and len(names) > 1:
        raise UserError(
            f"{where}: it has several columns; choose one of {', '.join(names)} with {choosing}."
        )
    column = column or next(iter(names), "")
    if column not in names:
        what = "of vectors" if of_residues else "with one vector a record"
        raise UserError(
            f"{where}: there is no column {column!r} {what}; it has {', '.join(names) or 'none'}."
        )
    return columns[column]


class Group(NamedTuple):
    """A row group of a table."""

    file: pq.ParquetFile
    number: int
    first_row: int
    num_rows: int
    key_of: Mapping[str, str]
    """The keys of the ids of all its rows, from the names of folders."""


def checked(rows: Rows, ends: int | Rows) -> Rows:
    """Return `rows`, and refuse those that are not from 0 up to `ends`: NumPy accepts -1, and would
    take a mask for the rows 0 and 1."""
    rows = np.asarray(rows)
    if rows.size and rows.dtype.kind not in "iu":
        raise UserError(f"rows: these are {rows.dtype}; give whole numbers, of a mask the indices.")
    rows = rows.astype(np.int64, copy=False)
    if (is_other := (rows < 0) | (rows >= ends)).any():
        raise UserError(f"there is no row {rows[is_other][0]} here; leave out ids that have none.")
    return rows


class Table:
    """Rows in one or several Parquet files, which stay open if they are replaced."""

    def __init__(self, path: Path) -> None:
        """Open the table at `path`: a file, or a folder whose files are concatenated.

        Raises:
            pa.ArrowInvalid: if a file is not Parquet, or has other columns than the first.
        """
        self.path = path
        self.groups: list[Group] = []
        files_of_table = files_of(path)
        allow_open(len(files_of_table))
        files = [pq.ParquetFile(file, memory_map=True) for file in files_of_table]
        self.schema: pa.Schema = files[0].schema_arrow
        if any(file.schema_arrow != self.schema for file in files):
            raise pa.ArrowInvalid(f"{path}: its files have different columns")
        # Only folders below `path` count: a single file may be in a folder such as sample=a.
        keys = [_keys_in(path_of_file.relative_to(path)) for path_of_file in files_of_table]
        for key in keys[0]:
            self.schema = self.schema.append(pa.field(key, pa.string()))
        self.id_columns = IdColumns.among(self.schema.names)
        self.num_rows = 0
        for file, key_of in zip(files, keys, strict=True):
            for number in range(file.num_row_groups):
                num_rows = file.metadata.row_group(number).num_rows
                self.groups.append(Group(file, number, self.num_rows, num_rows, key_of))
                self.num_rows += num_rows

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the first row and the `columns` of each batch of rows. Keys of ids that the table
        lacks are empty.

        Raises:
            IntegrityError: if the table is damaged.
        """
        for group in self.groups:
            yield from self._read(group, columns)

    def pieces(self, rows: Rows, columns: Sequence[str]) -> Iterator[tuple[Rows, pa.RecordBatch]]:
        """Yield `columns` of `rows`, in any order, in pieces: indices into `rows`, and the values
        there.

        Raises:
            IntegrityError: if the table is damaged.
        """
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        for group in self.groups:
            edges = [group.first_row, group.first_row + group.num_rows]
            begin, end = np.searchsorted(ascending, edges).tolist()
            if begin == end:
                continue
            for first, batch in self._read(group, columns):
                here = begin + int(np.searchsorted(ascending[begin:end], first + batch.num_rows))
                if begin < here:
                    yield order[begin:here], batch.take(pa.array(ascending[begin:here] - first))
                begin = here
                if begin == end:
                    break

    def spread(self, most: int, width: int) -> Rows:
        """Return at most `most` evenly spaced rows, ascending, deterministically. In a large table
        with vectors of this `width`, they are from some row groups only."""
        sizes = np.array([group.num_rows for group in self.groups])
        enough = max(1, min(len(sizes), MOST_READ // (int(sizes.max()) * width)))
        chosen = np.linspace(0, len(sizes) - 1, enough).round().astype(np.int64)
        ends = np.cumsum(sizes[chosen])
        wanted = np.linspace(0, ends[-1] - 1, min(most, int(ends[-1]))).round().astype(np.int64)
        places = np.searchsorted(ends, wanted, side="right")
        first_rows = np.array([group.first_row for group in self.groups])[chosen]
        rows: Rows = first_rows[places] + wanted - (ends - sizes[chosen])[places]
        return rows

    def _read(self, group: Group, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        first = group.first_row
        there = group.file.schema_arrow.names
        in_file = [name for name in columns if name in there or name not in KEYS]
        try:
            for batch in group.file.iter_batches(
                ROWS_AT_ONCE, row_groups=[group.number], columns=in_file
            ):
                for key, value in group.key_of.items():
                    batch = batch.append_column(key, pa.repeat(value, batch.num_rows))
                yield first, with_keys(batch).select(list(columns))
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None):
                raise
            what = " ".join(str(error).split())[:200].rstrip(".")
            raise IntegrityError(
                f"{self.path}: it is damaged ({what}); featuremill merge {self.path.parent} writes "
                "it anew from the parts."
            ) from None


def _keys_in(path: Path) -> dict[str, str]:
    """Return the keys of ids in the folder names of a table's file, such as sample=a."""
    pairs = (folder.name.partition("=") for folder in path.parents)
    return {key: value for key, _, value in pairs if key in KEYS}


def allow_open(num_files: int) -> None:
    """Raise the limit of open files of this process to `num_files` and some more, if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_files + SPARE_FILES
    if soft < needed and soft != resource.RLIM_INFINITY:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


class Stored:
    """The vectors in a column of a table."""

    def __init__(self, table: Table, column: Column) -> None:
        self._table, self._column = table, column
        kind = table.schema.field(column.name).type.value_type
        self.dtype = np.dtype(kind.to_pandas_dtype())

    def blocks(self, num_rows: int) -> Iterator[tuple[int, Matrix]]:
        """Yield the first row and the vectors of blocks of at most `num_rows`, in order."""
        for first, batch in self._table.batches([self._column.name]):
            vectors = matrix(batch.column(0))
            for start in range(0, len(vectors), num_rows):
                yield first + start, vectors[start : start + num_rows]

    def __getitem__(self, rows: Rows) -> Matrix:
        """Return the vectors (rows, width) of `rows`, in their order."""
        taken = np.empty((len(rows), self._column.width), self.dtype)
        for places, batch in self._table.pieces(rows, [self._column.name]):
            taken[places] = matrix(batch.column(0))
        return taken


def mapped(path: Path, column: Column, num_rows: int) -> Matrix:
    """Return a column (rows, width) of the embeddings.npy at `path`, memory-mapped.

    Raises:
        ValueError, EOFError: if it is not an array of numbers of this shape.
    """
    if not num_rows:  # nothing to map
        return np.empty((0, column.width), np.float32)
    whole: Matrix = np.asarray(np.load(path, mmap_mode="r"))
    if whole.shape != (num_rows, column.total) or whole.dtype.kind not in NUMBERS:
        raise ValueError(f"{path}: {whole.dtype} of shape {whole.shape}")
    return whole[:, column.start : column.start + column.width]
