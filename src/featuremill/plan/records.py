"""Last pass of planning: records.parquet, one row an input record in input order."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from featuremill.base.id_columns import KEYS
from featuremill.base.progress import Progress
from featuremill.plan.buckets import NOWHERE
from featuremill.plan.rows import Rows
from featuremill.store.ours import delivering
from featuremill.store.plan import PlannedShard
from featuremill.store.records import READ_ROWS, STATUSES, schema_of

log = logging.getLogger("featuremill.plan")
PLANNED, REFUSED, DUPLICATE = 0, 1, 2


def write_records(
    path: Path,
    rows: Rows,
    locations: npt.NDArray[np.void],
    numbers: npt.NDArray[np.int64],
    repeats: npt.NDArray[np.int64],
    shards: list[PlannedShard],
    about: Mapping[str, Sequence[str]],
) -> None:
    """Join the spooled `rows` with where each one went, and write them block by block.

    `numbers` are the indices in `shards` of what `locations` call their shard, and `about` has
    the columns of the sheet of samples: none without one.
    """
    schema = schema_of(about)
    names = pa.array([shard.shard for shard in shards], pa.string())
    keys = {key: pa.array(about[key], pa.string()) for key in KEYS if key in about}
    shown = Progress(log, "writing records.parquet")
    start = 0
    with (
        delivering(path) as temporary,
        pa.parquet.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for block in rows.blocks(READ_ROWS):
            end = start + block.num_rows
            where = locations[start:end]
            is_refused = where["shard"] == NOWHERE
            low, high = np.searchsorted(repeats, [start, end])
            status = np.where(is_refused, REFUSED, PLANNED)
            status[repeats[low:high] - start] = DUPLICATE
            shard = pa.DictionaryArray.from_arrays(
                pa.array(numbers[where["shard"]], pa.int32(), mask=status != PLANNED), names
            )
            writer.write_table(_block(schema, block, start, status, shard, where["row"], keys))
            start = end
            shown.at(start, len(locations))


def _block(
    schema: pa.Schema,
    block: pa.Table,
    start: int,
    status: npt.NDArray[np.int64],
    shard: pa.DictionaryArray,
    row: npt.NDArray[np.int32],
    keys: Mapping[str, pa.Array],
) -> pa.Table:
    columns = {
        "ordinal": pa.array(np.arange(start, start + block.num_rows)),
        **{name: block[name] for name in ("id", "description", "line", "sha256", "length")},
        "cost": block["cost"],
        "source": block["source"].combine_chunks().dictionary_encode(),
        "status": pa.DictionaryArray.from_arrays(status.astype(np.int32), list(STATUSES)),
        "reason": block["reason"],
        "note": block["note"],
        "shard": shard,
        "row": pa.array(row, mask=status != PLANNED),
    }
    owner = block["owner"].combine_chunks()
    columns |= {key: pa.DictionaryArray.from_arrays(owner, keys[key]) for key in keys}
    return pa.table([columns[name] for name in schema.names], schema=schema)
