"""Last pass of planning: the manifest, one row an input record in input order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from featuremill.plan.shards import NOWHERE, Shard
from featuremill.store import replacing

PLANNED, REFUSED, DUPLICATE = 0, 1, 2
STATUSES = ["planned", "refused", "duplicate"]
ROWS_A_GROUP = 100_000

NAMES = pa.dictionary(pa.int32(), pa.string())
MANIFEST = pa.schema(
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


def write_manifest(
    path: Path,
    rows: pa.Table,
    locations: npt.NDArray[np.void],
    repeats: npt.NDArray[np.int64],
    shards: list[Shard],
) -> None:
    """Join the spooled `rows` with where each one went, and write them block by block."""
    names = pa.array([shard.name for shard in shards], pa.string())
    with (
        replacing(path) as temporary,
        pa.parquet.ParquetWriter(temporary, MANIFEST, compression="zstd") as writer,
    ):
        for start in range(0, rows.num_rows, ROWS_A_GROUP):
            block = rows.slice(start, ROWS_A_GROUP)
            where = locations[start : start + block.num_rows]
            low, high = np.searchsorted(repeats, [start, start + block.num_rows])
            is_repeat = np.zeros(block.num_rows, bool)
            is_repeat[repeats[low:high] - start] = True
            writer.write_table(_block(block, start, where, is_repeat, names))


def _block(
    block: pa.Table,
    start: int,
    where: npt.NDArray[np.void],
    is_repeat: npt.NDArray[np.bool_],
    names: pa.Array,
) -> pa.Table:
    status = np.where(where["shard"] == NOWHERE, REFUSED, np.where(is_repeat, DUPLICATE, PLANNED))
    absent = status != PLANNED
    columns = {
        "ordinal": pa.array(np.arange(start, start + block.num_rows)),
        **{name: block[name] for name in ("id", "description", "line", "sha256", "length")},
        "cost": block["cost"],
        "source": block["source"].combine_chunks().dictionary_encode(),
        "status": pa.DictionaryArray.from_arrays(status.astype(np.int32), STATUSES),
        "reason": block["reason"],
        "note": block["note"],
        "shard": pa.DictionaryArray.from_arrays(pa.array(where["shard"], mask=absent), names),
        "row": pa.array(where["row"], mask=absent),
    }
    return pa.table([columns[name] for name in MANIFEST.names], schema=MANIFEST)
