"""Second pass of planning: sort the spooled records, keep old shards, cut new ones.

A shard is an immutable Arrow file of (sha256, payload), sorted by sha256 and named by the digest of
its sha256 column. A shard of the last plan is kept while at least half of its payload bytes are
still wanted; its other rows are then just never asked for. Records that no kept shard holds are
cut, in hash order, into new shards of nearly equal cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from featuremill.plan.spool import NUM_BUCKETS, Spool
from featuremill.shardfile import SHARD, Digests, digests, read_shard, write_shard
from featuremill.store import RunFolder, digest_of

NOWHERE = -1
LOCATION = np.dtype([("shard", "<i4"), ("row", "<i4")])
"""Where a record is: index into the list of shards, and row there; shard NOWHERE when refused."""


class Shard(NamedTuple):
    """A shard of the plan and how much of it is wanted."""

    name: str
    records: int
    wanted: int
    cost: int
    bytes: int


class Bucket(NamedTuple):
    """The distinct records of one bucket, sorted by sha256, and who asked for them."""

    table: pa.Table
    sha256: Digests
    cost: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.int64]
    """Every row's ordinal, grouped by distinct record."""
    owner: npt.NDArray[np.int64]
    """For each of `ordinals`, the index of its distinct record."""


class OldShard:
    """A shard of the last plan, its sha256 column memory-mapped."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        table = read_shard(path)
        self.sha256 = digests(table["sha256"])
        self.payload_bytes = payload_lengths(table)
        first_bytes = self.sha256.view(np.uint8)[::32]
        self.edges = np.searchsorted(first_bytes, np.arange(NUM_BUCKETS + 1))
        self.file_bytes = path.stat().st_size


def open_old_shard(name: str, path: Path) -> OldShard | None:
    """Return the shard `name` of the last plan; None when it is gone or not what its name says."""
    try:
        old = OldShard(name, path)
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    return old if digest_of([old.sha256.tobytes()]) == name else None


def payload_lengths(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the length of each payload in bytes."""
    lengths: npt.NDArray[np.int64] = pa.compute.binary_length(table["payload"]).to_numpy()
    return lengths


def read_bucket(path: Path) -> Bucket:
    """Read, sort and deduplicate one bucket file."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_stream(source).read_all().combine_chunks()
    found = digests(table["sha256"])
    order = np.argsort(found, kind="stable")
    found = found[order]
    is_first = np.ones(len(found), bool)
    is_first[1:] = found[1:] != found[:-1]
    distinct = table.take(pa.array(order[is_first]))
    return Bucket(
        table=distinct,
        sha256=found[is_first],
        cost=distinct["cost"].to_numpy(),
        ordinals=table["ordinal"].to_numpy()[order],
        owner=np.cumsum(is_first) - 1,
    )


class Cutter:
    """Assigns every spooled record to a shard; `locations[ordinal]` says where it went."""

    def __init__(
        self, folder: RunFolder, spool: Spool, old: Sequence[OldShard], shard_cost: int
    ) -> None:
        self.folder = folder
        self.spool = spool
        self.shards: list[Shard] = []
        self.unique = 0
        self.locations = _file_backed(spool.folder / "locations.bin", spool.tally.records)
        self.locations["shard"] = NOWHERE
        self._old = old
        self._shard_cost = shard_cost

    def cut(self) -> None:
        """Decide which old shards stay, place their records, and cut the rest."""
        kept, new_cost = self._decide()
        statistics = np.zeros((len(kept), 2), np.int64)  # wanted records, wanted cost
        num_new = max(1, round(new_cost / self._shard_cost)) if new_cost else 0
        pending = _Pending(self, len(kept), new_cost / num_new if num_new else 0.0)
        for bucket, shard, row in self._matched(kept):
            self.unique += len(bucket.sha256)
            is_kept = shard >= 0
            np.add.at(statistics[:, 0], shard[is_kept], 1)
            np.add.at(statistics[:, 1], shard[is_kept], bucket.cost[is_kept])
            has_home = is_kept[bucket.owner]
            self.locations["shard"][bucket.ordinals[has_home]] = shard[bucket.owner[has_home]]
            self.locations["row"][bucket.ordinals[has_home]] = row[bucket.owner[has_home]]
            pending.add(bucket, ~is_kept)
        pending.flush()
        self.shards = [
            Shard(o.name, len(o.sha256), int(wanted), int(cost), o.file_bytes)
            for o, (wanted, cost) in zip(kept, statistics, strict=True)
        ] + pending.shards

    def _decide(self) -> tuple[list[OldShard], int]:
        """Return the old shards to keep and the cost of the records that none of them holds."""
        wanted_bytes = np.zeros(len(self._old), np.int64)
        cost_in = np.zeros(len(self._old), np.int64)
        total_cost = 0
        for bucket, shard, row in self._matched(self._old):
            total_cost += int(bucket.cost.sum())
            for index in np.unique(shard[shard >= 0]):
                here = shard == index
                wanted_bytes[index] += self._old[index].payload_bytes[row[here]].sum()
                cost_in[index] += bucket.cost[here].sum()
        keep = [
            2 * wanted >= old.payload_bytes.sum() and wanted > 0
            for old, wanted in zip(self._old, wanted_bytes, strict=True)
        ]
        kept = [old for old, stays in zip(self._old, keep, strict=True) if stays]
        return kept, total_cost - int(cost_in[keep].sum())

    def _matched(
        self, shards: Sequence[OldShard]
    ) -> Iterator[tuple[Bucket, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield each bucket with, for each distinct record, its index in `shards` (or -1) and
        row."""
        for number in range(NUM_BUCKETS):
            path = self.spool.bucket_path(number)
            if not path.exists():
                continue
            bucket = read_bucket(path)
            shard = np.full(len(bucket.sha256), NOWHERE, np.int64)
            row = np.zeros(len(bucket.sha256), np.int64)
            for index, old in enumerate(shards):
                start, end = old.edges[number], old.edges[number + 1]
                if start == end:
                    continue
                at = np.searchsorted(old.sha256[start:end], bucket.sha256)
                at[at == end - start] = 0
                found = (old.sha256[start:end][at] == bucket.sha256) & (shard == NOWHERE)
                shard[found] = index
                row[found] = start + at[found]
            yield bucket, shard, row


def _file_backed(path: Path, num_records: int) -> npt.NDArray[np.void]:
    """Return an array of locations that lives in the file `path`.

    The disk space is taken now: a hole in the file would end in SIGBUS on a full disk.
    """
    size = max(1, num_records)
    with path.open("wb") as handle:
        os.posix_fallocate(handle.fileno(), 0, size * LOCATION.itemsize)
    return np.memmap(path, LOCATION, "r+", shape=(size,))


class _Pending:
    """Records without a shard, gathered in hash order and written out at nearly equal cost."""

    def __init__(self, cutter: Cutter, first_index: int, cost_a_shard: float) -> None:
        self.shards: list[Shard] = []
        self._cutter = cutter
        self._first_index = first_index
        self._cost_a_shard = cost_a_shard
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._cost = 0
        self._cost_before = 0

    def add(self, bucket: Bucket, homeless: npt.NDArray[np.bool_]) -> None:
        positions = np.flatnonzero(homeless)
        while len(positions):
            # The k-th border is at k times the mean, so that rounding never piles up in the last
            # one.
            border = self._cost_a_shard * (len(self.shards) + 1)
            running = self._cost_before + self._cost + np.cumsum(bucket.cost[positions])
            count = int(np.searchsorted(running, border - 0.5)) + 1
            taken, positions = positions[:count], positions[count:]
            self._take(bucket, taken)
            if running[min(count, len(running)) - 1] >= border - 0.5:
                self.flush()

    def _take(self, bucket: Bucket, positions: npt.NDArray[np.int64]) -> None:
        rank = np.full(len(bucket.sha256), NOWHERE, np.int64)
        rank[positions] = self._rows + np.arange(len(positions))
        row = rank[bucket.owner]
        ordinals = bucket.ordinals[row >= 0]
        self._cutter.locations["shard"][ordinals] = self._first_index + len(self.shards)
        self._cutter.locations["row"][ordinals] = row[row >= 0]
        self._tables.append(bucket.table.select(SHARD.names).take(pa.array(positions)))
        self._rows += len(positions)
        self._cost += int(bucket.cost[positions].sum())

    def flush(self) -> None:
        if not self._rows:
            return
        table = pa.concat_tables(self._tables).combine_chunks()
        name = write_shard(self._cutter.folder, table)
        size = self._cutter.folder.shard(name).stat().st_size
        self.shards.append(Shard(name, self._rows, self._rows, self._cost, size))
        self._cost_before += self._cost
        self._tables, self._rows, self._cost = [], 0, 0
