"""records.parquet, the ledger of a run: one row for each input record, in input order.

Each record is planned (a row of a shard gets its values), refused (with a reason), or a duplicate
of another. plan writes it, and retry changes the shards of rows. Readers hold a part of it in
memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base.errors import IntegrityError

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
STATUSES = ("planned", "refused", "duplicate")
READ_ROWS = 100_000
"""Rows of a row group, and of a batch that is read."""
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
"""`shard` and `row` locate the values; they are null for a record without its own. A run with
samples has one more column, and the table of samples in the schema's metadata."""
SAMPLE = "sample"


def schema_of(samples: Mapping[str, Sequence[str]]) -> pa.Schema:
    """Return the schema of a ledger of these `samples`, the columns of their table."""
    if not samples:
        return SCHEMA
    return SCHEMA.append(pa.field(SAMPLE, NAMES)).with_metadata({SAMPLE: json.dumps(samples)})


def samples_of(path: Path) -> dict[str, list[str]]:
    """Return the table of samples in the ledger at `path`, by column; empty for a run without
    samples."""
    text: bytes = (pq.read_schema(path).metadata or {}).get(SAMPLE.encode(), b"{}")
    samples: dict[str, list[str]] = json.loads(text)
    return samples


def full_ids(rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """Return an id of each of the `rows` that is unique in the run: its id; with samples
    <sample>/<id>, as names of samples have no "/"."""
    if SAMPLE not in rows.schema.names:
        return rows["id"]
    return pc.binary_join_element_wise(rows[SAMPLE].cast(pa.string()), rows["id"], "/")


def split_id(full: str) -> tuple[str, str]:
    """Return the sample and the id of a full id, in a run with samples."""
    sample, _, id = full.partition("/")
    return sample, id


def with_full_ids(rows: Rows) -> Rows:
    """Return `rows` with full ids in place of the ids, and without the column of samples."""
    if SAMPLE not in rows.schema.names:
        return rows
    place = rows.schema.get_field_index("id")
    named: Rows = rows.set_column(place, "id", full_ids(rows)).drop_columns([SAMPLE])
    return named


def shard_numbers(
    rows: pa.Table | pa.RecordBatch, shards: pa.Array, path: Path
) -> npt.NDArray[np.int64]:
    """Return the index in `shards`, names, of the shard of each of the `rows` of the ledger at
    `path`; -1 where it has none.

    Raises:
        IntegrityError: when there is another one.
    """
    names = rows["shard"]
    chunks = names.chunks if isinstance(names, pa.ChunkedArray) else [names]
    found = [np.empty(0, np.int64)]
    for chunk in chunks:
        known = pc.index_in(chunk.dictionary, value_set=shards)
        if known.take(chunk.indices.drop_null()).null_count:
            raise IntegrityError(f"{path}: it names a shard that plan.json does not.")
        numbers = known.take(chunk.indices).fill_null(-1)
        found.append(np.asarray(numbers).astype(np.int64))
    return np.concatenate(found)


def batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the ledger at `path`, `READ_ROWS` rows at a time, in input order."""
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        yield from file.iter_batches(READ_ROWS, columns=list(columns))
