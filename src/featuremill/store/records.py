"""records.parquet of a run: one row for each input record, in input order.

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
from featuremill.base.id_columns import ID, KEYS, SAMPLE, IdColumns

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
"""`shard` and `row` locate the values; they are null for a record without its own. A run of a
sheet of samples has one more column, and the sheet's other columns in the schema's metadata."""


def schema_of(about: Mapping[str, Sequence[str]]) -> pa.Schema:
    """Return the schema of records; `about` has the columns of their sheet of samples."""
    keys = [pa.field(key, NAMES) for key in IdColumns.among(about).keys]
    return pa.schema([*SCHEMA, *keys], {SAMPLE: json.dumps(about)} if keys else None)


def samples_of(path: Path) -> dict[str, list[str]]:
    """Return the sheet of samples in the records at `path`, by column; empty without one."""
    text: bytes = (pq.read_schema(path).metadata or {}).get(SAMPLE.encode(), b"{}")
    samples: dict[str, list[str]] = json.loads(text)
    return samples


def id_columns_of(path: Path) -> IdColumns:
    """Return the columns of ids in the records.parquet at `path`."""
    return IdColumns.among(pq.read_schema(path).names)


def with_keys(rows: Rows) -> Rows:
    """Return `rows` with each of the KEYS of ids; those that they lack are empty."""
    for key in KEYS:
        if key not in rows.schema.names:
            empty = pa.DictionaryArray.from_arrays(np.zeros(rows.num_rows, np.int32), [""])
            rows = rows.append_column(key, empty)
    return rows


def whole_ids(rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """Return the whole id of each of the `rows`, which have the columns `WHOLE`."""
    ids = rows[ID]
    for key in reversed(KEYS):
        ids = pc.binary_join_element_wise(_before_id(rows[key]), ids, "")
    return ids


def _before_id(key: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the beginning of whole ids: `<sample>/`, nothing for the empty sample."""
    if isinstance(key, pa.ChunkedArray):
        return pa.chunked_array(list(map(_before_id, key.chunks)), pa.string())
    names = key if isinstance(key, pa.DictionaryArray) else key.dictionary_encode()
    known = names.dictionary
    before = pc.if_else(pc.equal(known, ""), "", pc.binary_join_element_wise(known, "/", ""))
    return before.take(names.indices)


def with_whole_ids(rows: Rows) -> Rows:
    """Return `rows` with whole ids in place of the ids, and without their keys."""
    named: Rows = rows.set_column(rows.schema.get_field_index(ID), ID, whole_ids(rows))
    return named.drop_columns(list(KEYS))


def shard_numbers(
    rows: pa.Table | pa.RecordBatch, shards: pa.Array, path: Path
) -> npt.NDArray[np.int64]:
    """Return the index in `shards`, names, of the shard of each of the `rows` of records.parquet at
    `path`; -1 for none.

    Raises:
        IntegrityError: a row names a shard that is not among `shards`.
    """
    names = rows["shard"]
    chunks = names.chunks if isinstance(names, pa.ChunkedArray) else [names]
    numbers = [np.empty(0, np.int64)]
    for chunk in chunks:
        known = pc.index_in(chunk.dictionary, value_set=shards)
        if known.take(chunk.indices.drop_null()).null_count:
            raise IntegrityError(f"{path}: it names a shard that plan.json does not.")
        numbers.append(np.asarray(known.take(chunk.indices).fill_null(-1)).astype(np.int64))
    return np.concatenate(numbers)


def read_records(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the records.parquet at `path`, `READ_ROWS` rows at a time, in input
    order; keys of ids are empty if the run has no sheet."""
    existing = pq.read_schema(path).names
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        wanted = [name for name in columns if name in existing or name not in KEYS]
        for batch in file.iter_batches(READ_ROWS, columns=wanted):
            yield with_keys(batch).select(list(columns))
