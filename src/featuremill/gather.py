"""Join the manifest with the parts: every input record's values, in input order, block by block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from featuremill.compute import not_finite
from featuremill.errors import IntegrityError
from featuremill.journal import COLUMNS
from featuremill.outputs import IDENTITY
from featuremill.parts import Part
from featuremill.shardfile import digests
from featuremill.sizes import expected_bytes

BLOCK_BYTES = 256 * 2**20
"""Values held in memory at once."""
NUM_CORE_COLUMNS = len(COLUMNS)


class Block(NamedTuple):
    """Consecutive rows of the manifest and where their values are."""

    rows: pa.Table
    shard: npt.NDArray[np.int64]
    """Index into the plan's shards, -1 for refused and duplicate rows."""
    row: npt.NDArray[np.int64]
    status: npt.NDArray[np.str_]
    """ok, failed, refused or duplicate."""
    reasons: list[str | None]
    """Why a failed or refused row has no values."""


class Gatherer:
    """The manifest and the parts of one run; `parts[n]` belongs to the plan's n-th shard."""

    def __init__(self, manifest: Path, shards: Sequence[str], parts: Sequence[Part]) -> None:
        self.parts = parts
        self._manifest = manifest
        self._index = {name: number for number, name in enumerate(shards)}
        self._failed = [part.statuses() for part in parts]
        self.values = pa.schema(list(parts[0].batches[0].schema)[NUM_CORE_COLUMNS:])

    def blocks(self) -> Iterator[Block]:
        """Yield the manifest in blocks whose values fit in memory."""
        with pa.parquet.ParquetFile(self._manifest) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group)
                lengths = rows["length"].to_numpy()
                fixed = expected_bytes(self.values, 1, 0)
                a_residue = expected_bytes(self.values, 0, 1)
                size = np.cumsum(fixed + a_residue * lengths)
                cuts = np.searchsorted(size, np.arange(BLOCK_BYTES, size[-1], BLOCK_BYTES))
                edges = [0, *np.unique(cuts[(cuts > 0) & (cuts < len(size))]), len(size)]
                for start, end in itertools.pairwise(edges):
                    yield self._block(rows.slice(start, end - start))

    def _block(self, rows: pa.Table) -> Block:
        status = np.array(rows["status"].cast(pa.string()).to_pylist(), dtype="U9")
        planned = status == "planned"
        names = rows["shard"].combine_chunks()
        if isinstance(names, pa.ChunkedArray):
            names = names.chunk(0)
        translate = np.array([self._index.get(n, -1) for n in names.dictionary.to_pylist()] or [-1])
        shard = np.full(rows.num_rows, -1, np.int64)
        shard[planned] = translate[names.indices.drop_null().to_numpy()]
        row = np.full(rows.num_rows, -1, np.int64)
        row[planned] = rows["row"].drop_null().to_numpy()
        if (shard[planned] < 0).any():
            raise IntegrityError(f"{self._manifest}: it names a shard that plan.json does not.")
        reasons: list[str | None] = rows["reason"].to_pylist()
        for position in np.flatnonzero(planned):
            reason = self._failed[shard[position]].get(int(row[position]))
            status[position] = "ok" if reason is None else "failed"
            reasons[position] = reason
        return Block(rows, shard, row, status, reasons)

    def values_of(self, block: Block) -> pa.Table:
        """Return id, length, sha256 and values of the block's ok rows, in order, checked.

        Raises:
            IntegrityError: when a row is not that of its record, or its values are not all there.
        """
        wanted = np.flatnonzero(block.status == "ok")
        positions: list[npt.NDArray[np.int64]] = []
        pieces: list[pa.RecordBatch] = []
        for number in np.unique(block.shard[wanted]):
            here = wanted[block.shard[wanted] == number]
            for inside, piece in self.parts[number].take(block.row[here]):
                positions.append(here[inside])
                pieces.append(piece)
        identity = block.rows.take(pa.array(wanted)).select(IDENTITY.names).cast(IDENTITY)
        schema = pa.schema([*IDENTITY, *self.values])
        if not pieces:
            return pa.table([*identity.columns, *self.values.empty_table().columns], schema=schema)
        gathered = pa.Table.from_batches(pieces).combine_chunks()
        in_order = gathered.take(pa.array(np.argsort(np.concatenate(positions))))
        values = in_order.select(self.values.names)
        if not np.array_equal(digests(identity["sha256"]), digests(in_order["sha256"])):
            raise IntegrityError(
                "merge: a part's row is not that of its record; please report this."
            )
        _check_values(values)
        return pa.table([*identity.columns, *values.columns], schema=schema)


def _check_values(values: pa.Table) -> None:
    for name, column in zip(values.column_names, values.columns, strict=True):
        if column.null_count:
            raise IntegrityError(f"merge: {column.null_count} ok rows have no {name}; report this.")
    for batch in values.to_batches():
        if not_finite(batch).any():
            raise IntegrityError("merge: an ok row has a value that is not finite; report this.")
