"""records.parquet, the ledger of a run: one row an input record, in input order.

Each record is planned (its values stand in a shard's row), refused (with a reason), or a duplicate
of another. plan writes it and retry moves rows in it; who reads it never has all of it in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
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
"""`shard` and `row` say where its values stand; null where a record has none of its own. A run of
samples has one column more, and says in the schema's metadata what is known of each."""
SAMPLE = "sample"


def schema_of(samples: Mapping[str, Sequence[str]]) -> pa.Schema:
    """Return the schema of a ledger of these `samples`: their names, and their own columns."""
    if not samples:
        return SCHEMA
    return SCHEMA.append(pa.field(SAMPLE, NAMES)).with_metadata({SAMPLE: json.dumps(samples)})


def samples_of(path: Path) -> dict[str, list[str]]:
    """Return what the ledger at `path` says of its samples, by column, the names in their order;
    nothing of a run without."""
    told: bytes = (pq.read_schema(path).metadata or {}).get(SAMPLE.encode(), b"{}")
    found: dict[str, list[str]] = json.loads(told)
    return found


def full_ids(rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """Return what tells each of the `rows` from all others of a run: the id, and with samples
    <sample>/<id>, as names of samples have no "/"."""
    if SAMPLE not in rows.schema.names:
        return rows["id"]
    return pc.binary_join_element_wise(rows[SAMPLE].cast(pa.string()), rows["id"], "/")


def split_id(full: str) -> tuple[str, str]:
    """Return the sample and the id that `full_ids` made one of, in a run with samples."""
    sample, _, id = full.partition("/")
    return sample, id


def with_full_ids(rows: Rows) -> Rows:
    """Return `rows` with what `full_ids` returns in place of the ids, and without samples."""
    if SAMPLE not in rows.schema.names:
        return rows
    place = rows.schema.get_field_index("id")
    named: Rows = rows.set_column(place, "id", full_ids(rows)).drop_columns([SAMPLE])
    return named


def batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the ledger at `path`, `READ_ROWS` rows together, in input order."""
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        yield from file.iter_batches(READ_ROWS, columns=list(columns))
