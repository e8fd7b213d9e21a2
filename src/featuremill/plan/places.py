"""Where records.parquet has the records, and how to say that some of them are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Places = npt.NDArray[np.int64]
"""The index of a shard in the plan's list times 2**32, plus the row there; -1 for no place."""
ELSEWHERE = -1


class Rows(NamedTuple):
    """Consecutive rows of records.parquet."""

    table: pa.Table
    places: Places
    costs: npt.NDArray[np.int64]


def place_of(shard: int, rows: npt.NDArray[np.int64]) -> Places:
    """Return the places of these rows of the plan's shard number `shard`."""
    return (np.int64(shard) << 32) + rows.astype(np.int64)


def places_in(records_path: Path, shards: Sequence[str]) -> Iterator[Rows]:
    """Yield the row groups of records.parquet, and the place of each row in the plan's `shards`."""
    index = {name: number for number, name in enumerate(shards)}
    with pq.ParquetFile(records_path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            shard = table["shard"].unify_dictionaries().combine_chunks()
            if isinstance(shard, pa.ChunkedArray):
                shard = shard.chunk(0)
            numbers = [index.get(name, ELSEWHERE) for name in shard.dictionary.to_pylist()]
            is_planned = np.asarray(shard.is_valid())
            places = np.full(table.num_rows, ELSEWHERE, np.int64)
            if is_planned.any():
                number = np.array(numbers, np.int64)[shard.indices.drop_null().to_numpy()]
                places[is_planned] = (number << 32) + table["row"].drop_null().to_numpy()
            yield Rows(table, places, table["cost"].to_numpy())


def move_rows(
    records_path: Path,
    moved: Path,
    old: Sequence[str],
    new: Sequence[str],
    origins: Places,
    targets: Places,
) -> None:
    """Write records.parquet to `moved` with the records of `origins` at `targets`, all others in
    place.

    `old` and `new` are the names of the plan's shards before and after; `origins` are sorted.
    """
    index = {name: number for number, name in enumerate(new)}
    translation = np.array([index.get(name, ELSEWHERE) for name in old], np.int64)
    names = pa.array(new, pa.string())
    schema = pq.read_schema(records_path)
    with pq.ParquetWriter(moved, schema, compression="zstd") as writer:
        for table, places, _ in places_in(records_path, old):
            absent = places < 0
            at = np.minimum(np.searchsorted(origins, places), len(origins) - 1)
            is_moved = origins[at] == places
            shard = np.where(is_moved, targets[at] >> 32, translation[places >> 32])
            row = np.where(is_moved, targets[at], places) & 0xFFFFFFFF
            columns = {name: table[name] for name in schema.names} | {
                "shard": pa.DictionaryArray.from_arrays(
                    pa.array(shard.astype(np.int32), mask=absent), names
                ),
                "row": pa.array(row.astype(np.int32), mask=absent),
            }
            writer.write_table(pa.table(list(columns.values()), schema=schema))
