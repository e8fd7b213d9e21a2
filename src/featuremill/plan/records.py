"""The rows that were spooled, in the order of the input, and records.parquet, which the last pass
of plan writes from them: a row for each record of the input."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from featuremill.base.id_columns import KEYS
from featuremill.base.progress import Progress
from featuremill.plan import spool
from featuremill.plan.buckets import NOWHERE
from featuremill.plan.spool import ROWS, rows_path
from featuremill.store.ours import delivering
from featuremill.store.plan import PlannedShard
from featuremill.store.records import READ_ROWS, STATUSES, schema_of


class Rows:
    """Rows of chunks that were dealt to `folders` in turn."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._paths = [rows_path(folder) for folder in folders]

    def blocks(self, num_rows: int) -> Iterator[pa.Table]:
        """Yield all rows in tables of `num_rows`, the last one with what is left."""
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in self._chunks():
            waiting.append(batch)
            count += len(batch)
            while count >= num_rows:
                table = pa.Table.from_batches(waiting)
                yield table.slice(0, num_rows)
                waiting = table.slice(num_rows).to_batches()
                count -= num_rows
        if count:
            yield pa.Table.from_batches(waiting)

    def _chunks(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches as one process would have cut them: the pages of records.parquet are
        as long."""
        waiting: list[pa.RecordBatch] = []
        count = size = 0
        for batch in self._in_order():
            sizes = np.cumsum(batch.column("size").to_numpy())
            start = before = 0
            while start < len(batch):
                full = int(np.searchsorted(sizes, before + spool.CHUNK_BYTES - size)) + 1
                end = min(start + spool.CHUNK_RECORDS - count, full, len(batch))
                waiting.append(batch.slice(start, end - start))
                count, size = count + end - start, size + int(sizes[end - 1]) - before
                start, before = end, int(sizes[end - 1])
                if count == spool.CHUNK_RECORDS or size >= spool.CHUNK_BYTES:
                    yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
                    waiting, count, size = [], 0, 0
        yield from pa.Table.from_batches(waiting, ROWS).combine_chunks().to_batches()

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they were dealt; read and not mapped, to leave no pages behind."""
        with ExitStack() as stack:
            files = [stack.enter_context(pa.OSFile(str(path), "rb")) for path in self._paths]
            for reader in itertools.cycle(map(pa.ipc.open_stream, files)):
                batch = next(reader, None)
                if batch is None:  # dealt in turn: nobody has another one
                    return
                yield batch

    def take(self, ordinals: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """Return `columns` of the rows with these ordinals, which ascend."""
        batches, starts = self.mapped
        schema = pa.schema([ROWS.field(name) for name in columns])
        edges = np.searchsorted(ordinals, starts)
        pieces = [
            batches[number].select(columns).take(pa.array(ordinals[low:high] - starts[number]))
            for number, (low, high) in enumerate(itertools.pairwise([*edges, len(ordinals)]))
            if high > low
        ]
        return pa.Table.from_batches(pieces, schema)

    @cached_property
    def mapped(self) -> tuple[list[pa.RecordBatch], npt.NDArray[np.int64]]:
        """All batches in input order, memory-mapped, and the ordinal at which each one starts."""
        streams = []
        for path in self._paths:
            with pa.memory_map(str(path)) as source:
                streams.append(pa.ipc.open_stream(source).read_all().to_batches())
        turns = itertools.zip_longest(*streams)
        batches = [batch for turn in turns for batch in turn if batch is not None]
        lengths = [len(batch) for batch in batches]
        return batches, np.cumsum([0, *lengths[:-1]])


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
            number = pa.array(numbers[where["shard"]], pa.int32(), mask=status != PLANNED)
            shard = pa.DictionaryArray.from_arrays(number, names)
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
