"""records.parquet, the ledger of a run: one row an input record, in input order.

Each record is planned (its values stand in a shard's row), refused (with a reason), or a duplicate
of another. plan writes it and retry moves rows in it; who reads it never has all of it in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

STATUSES = ("planned", "refused", "duplicate")
READ_ROWS = 100_000
"""Rows that are read together, and that stand together in a row group."""
NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    {
        "ordinal": pa.int64(),
        "id": pa.string(),
        "description": pa.string(),
        "source": NAMES,
        "line": pa.int64(),
        "sha256": pa.binary(32),
        "length": pa.int64(),
        "cost": pa.int64(),
        "status": NAMES,
        "reason": pa.string(),
        "note": pa.string(),
        "shard": NAMES,
        "row": pa.int32(),
    }
)
"""`shard` and `row` say where its values stand; null where a record has none of its own."""


def batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the ledger at `path`, `READ_ROWS` rows together, in input order."""
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        yield from file.iter_batches(READ_ROWS, columns=list(columns))
