"""Parquet tables, read in batches of rows.

A record's line is its row, from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import UserError
from featuremill.inputs import cells, source
from featuremill.inputs.kinds import Kind, Taken
from featuremill.workload import Record

BATCH_ROWS = 10_000
BUFFER_SIZE = 2**20
"""Bytes of a column that are held at a time; without it, Arrow holds a row group of any size."""


def read(path: Path, kind: Kind) -> Iterator[Record]:
    """Stream the rows of a Parquet table."""
    source.check(path)
    if source.compression_of(path):
        raise UserError(f"{path}: a compressed Parquet file is not read; unpack it first.")
    try:
        with pq.ParquetFile(path, buffer_size=BUFFER_SIZE, pre_buffer=False) as table:
            names = table.schema_arrow.names
            taken = kind.taken(path, names)
            wanted = [names[place] for place in taken.places]
            row = 0
            for batch in table.iter_batches(BATCH_ROWS, columns=wanted):
                yield from _records(path, batch.select(wanted), taken, row)
                row += batch.num_rows
    except MemoryError as error:
        raise UserError(
            f"{path}: this Parquet file unpacks to more than there is memory ({error}); look what "
            "it holds."
        ) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = str(error).split("\n")[0].rstrip(".")
        raise UserError(
            f"{path}: this Parquet file cannot be read ({problem}); write it again."
        ) from None


def names_of(path: Path) -> list[str]:
    names: list[str] = pq.read_schema(path).names
    return names


def _records(path: Path, batch: pa.RecordBatch, taken: Taken, row: int) -> Iterator[Record]:
    columns = [
        cells.texts(column) if place < taken.num_texts else column.to_pylist()
        for place, column in enumerate(batch.columns)
    ]
    name = str(path)
    for number, values in enumerate(zip(*columns, strict=True), row + 1):
        yield taken.of_row(values, name, number)
