"""Read Parquet and Arrow tables (Feather is Arrow's file format) in batches of rows.

The first bytes determine the format. The line of a record is its row, from 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import UserError
from featuremill.inputs import cells, source
from featuremill.inputs.kinds import Kind, Taken
from featuremill.workload import Record

BATCH_ROWS = 10_000
BUFFER_SIZE = 2**20
"""Bytes of a column that are buffered; without it, Arrow buffers a whole row group."""
ARROW_FILE, ARROW_STREAM = b"ARROW1", b"\xff\xff\xff\xff"
"""The first bytes of Arrow's IPC file format and stream format."""
PARQUET, FEATHER_1 = b"PAR1", b"FEA1"
Batches: TypeAlias = Callable[[Sequence[int]], Iterator[pa.RecordBatch]]
"""A function that yields rows of the columns with these indices."""


def read(path: Path, kind: Kind) -> Iterator[Record]:
    """Yield the rows of a Parquet or Arrow table."""
    source.check(path)
    with _opened(path) as (names, batches):
        taken = kind.taken(path, names)
        row = 0
        for batch in batches(taken.indices):
            yield from _records(path, batch, taken, row)
            row += batch.num_rows


def names_of(path: Path) -> list[str]:
    with _opened(path) as (names, _):
        return names


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Batches]]:
    """Yield the names of the columns, and a function that reads columns by index.

    Raises:
        UserError: if the file is not such a table, or its content cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(len(ARROW_FILE))
    if source.compression_of(path):
        raise UserError(f"{path}: a table of this format is not read compressed; unpack it first.")
    if start.startswith(FEATHER_1):
        raise UserError(
            f"{path}: this is a Feather file of version 1, which is not read; write version 2."
        )
    format = "Arrow" if start.startswith((ARROW_FILE, ARROW_STREAM)) else "Parquet"
    if format == "Parquet" and not start.startswith(PARQUET):
        raise UserError(
            f"{path}: this is no Parquet or Arrow file, whatever its name is; give it the name "
            "of its format, or write it again."
        )
    try:
        with _reader(path, start) as reader:
            yield reader
    except MemoryError as error:
        raise UserError(
            f"{path}: this {format} file unpacks to more than there is memory ({error}); look what "
            "it holds."
        ) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = str(error).split("\n")[0].rstrip(".")
        raise UserError(
            f"{path}: this {format} file cannot be read ({problem}); write it again."
        ) from None


@contextlib.contextmanager
def _reader(path: Path, start: bytes) -> Iterator[tuple[list[str], Batches]]:
    if start.startswith(ARROW_FILE):
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            names, count = reader.schema.names, reader.num_record_batches
            yield names, lambda indices: _slices(map(reader.get_batch, range(count)), indices)
    elif start.startswith(ARROW_STREAM):
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            yield reader.schema.names, lambda indices: _slices(reader, indices)
    else:
        with pq.ParquetFile(path, buffer_size=BUFFER_SIZE, pre_buffer=False) as table:
            names = table.schema_arrow.names

            def batches(indices: Sequence[int]) -> Iterator[pa.RecordBatch]:
                chosen = [names[index] for index in indices]
                for batch in table.iter_batches(BATCH_ROWS, columns=chosen):
                    yield batch.select(chosen)

            yield names, batches


def _slices(batches: Iterator[pa.RecordBatch], indices: Sequence[int]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS).select(list(indices))


def _records(path: Path, batch: pa.RecordBatch, taken: Taken, row: int) -> Iterator[Record]:
    columns = [
        cells.texts(column) if index < taken.num_texts else column.to_pylist()
        for index, column in enumerate(batch.columns)
    ]
    name = str(path)
    for number, values in enumerate(zip(*columns, strict=True), row + 1):
        yield taken.of_row(values, name, number)
