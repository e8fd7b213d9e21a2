"""Second pass of planning: sort the spooled records, keep old shards, cut new ones.

A shard is an immutable Arrow file of (sha256, payload), sorted by sha256 and named by the digest of
its sha256 column. Shards of the last plan of which nothing is computed may be cut anew
(`Cutter.release`). Any other is kept while at least half of its payload bytes are still wanted,
whether or not other shards hold the same records. Of those that are kept, the last one that holds a
record is asked for it, and one that is asked for nothing is dropped; the other rows of a kept shard
are just never asked for. Records that no kept shard holds are cut, in hash order, into new shards
of nearly equal cost.

Buckets are worked on side by side, and so are groups of new shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.progress import Progress
from featuremill.base.this_process import take_space
from featuremill.plan.buckets import (
    LOCATION,
    NOWHERE,
    Bucket,
    Integers,
    OldShard,
    OldShards,
    buckets_of,
)
from featuremill.plan.processes import Processes
from featuremill.plan.taken import NOTHING, Offer
from featuremill.store.parts import write_shard
from featuremill.store.plan import PlannedShard
from featuremill.store.results import Results

Result = TypeVar("Result")
log = logging.getLogger("featuremill.plan")
NUM_GROUPS = 32
"""Groups of new shards that are written side by side."""


class Work(NamedTuple):
    """What every task needs."""

    folder: Results
    spools: list[Path]
    buckets: list[int]
    """The numbers of the buckets that hold a record."""
    own: OldShards
    locations: Path
    """A file of `LOCATION`s, one a record: shards are numbered old ones first, then the parts of
    stores, then new ones. A refused record has none."""
    offer: Offer


class Piece(NamedTuple):
    """A part of a new shard: records of a bucket without a home, from `start` to `end`."""

    bucket: int
    start: int
    end: int
    cost: int


class Placed(NamedTuple):
    """What placing a bucket's records in old shards came to; lists have an entry a shard."""

    unique: int
    used: Integers
    used_cost: Integers
    lost: Integers
    """Records that a store has and an old shard too."""
    unassigned_cost: int


class Unassigned(NamedTuple):
    """The records that no old shard and no part of a store holds."""

    cost: int
    records: int


class Used(NamedTuple):
    """The records that the plan takes from some old shards."""

    cost: int
    records: int
    shards: int
    """The number of shards with a wanted record."""


class Cutter:
    """Assigns every spooled record to a shard; `locations[ordinal]` says where it went."""

    def __init__(
        self,
        folder: Results,
        spools: list[Path],
        num_records: int,
        old: Sequence[OldShard],
        processes: Processes,
        not_computed: Collection[str] = (),
    ) -> None:
        self.shards: list[PlannedShard] = []
        self.numbers: Integers
        """The index in `shards` of what a location calls its shard."""
        self.unique = 0
        scratch = spools[0].parent
        locations, size = scratch / "locations.bin", max(1, num_records)
        with locations.open("wb") as file:
            take_space(file.fileno(), 0, size * LOCATION.itemsize)
        self.locations = np.memmap(locations, LOCATION, "r+", shape=(size,))
        self._work = Work(
            folder,
            spools,
            buckets_of(spools),
            OldShards(
                scratch / "old",
                np.ones(len(old), bool),
                np.array([*(shard.name in not_computed for shard in old), True]),
            ),
            locations,
            NOTHING,
        )
        self._own = old
        self._old = old
        self._processes = processes
        self._used: Integers
        self._used_cost: Integers
        self._lost: Integers
        self._unassigned = Unassigned(0, 0)

    def keep(self) -> OldShards:
        """Decide which old shards stay, and return them."""
        own = self._work.own
        if self._own:
            wanted = sum(self._for_each_bucket(_wanted_bytes), np.zeros(len(self._own), np.int64))
            size = np.array([shard.payload_bytes for shard in self._own])
            own.kept[:] = (2 * wanted >= size) & (wanted > 0)
        return own

    def assign(self, offer: Offer = NOTHING) -> Unassigned:
        """Assign the records that old shards and stores have; return those that need new shards."""
        self._work = self._work._replace(offer=offer)
        self._old = [*self._own, *offer.parts]
        return self._assign_to_kept()

    def used_of(self, names: Collection[str]) -> Used:
        """Return what old shards of these `names` are asked for, and how many of them are asked."""
        is_used = np.array([shard.name in names for shard in self._old], bool) & (self._used > 0)
        cost, records = self._used_cost[is_used].sum(), self._used[is_used].sum()
        return Used(int(cost), int(records), int(is_used.sum()))

    def release(self, names: Collection[str]) -> Unassigned:
        """Release the old shards of these `names`, and place all records again. Return the records
        that have to be cut.

        If another old shard holds any of these records, nothing is released. Failed records that
        are to be computed again are in two shards: one of their own, and the one in which they
        failed.
        """
        kept, held = self._work.own.kept, self.used_of(names)
        before = kept.copy()
        was_unassigned = self.unique - int(self._used.sum())
        kept[:] &= [shard.name not in names for shard in self._own]
        unassigned = self._assign_to_kept()
        if unassigned.records == was_unassigned + held.records:
            return unassigned
        kept[:] = before
        return self._assign_to_kept()

    def _assign_to_kept(self) -> Unassigned:
        self.unique = unassigned_cost = 0
        self.locations["shard"] = NOWHERE
        self._used, self._used_cost, self._lost = np.zeros((3, len(self._old)), np.int64)
        for placed in self._for_each_bucket(_placed):
            self.unique += placed.unique
            self._used += placed.used
            self._used_cost += placed.used_cost
            self._lost += placed.lost
            unassigned_cost += placed.unassigned_cost
        self._unassigned = Unassigned(unassigned_cost, self.unique - int(self._used.sum()))
        return self._unassigned

    def num_lost_by(self, names: Collection[str]) -> int:
        """Return how many records old shards of these `names` hold that a store has as well."""
        lost = zip(self._old, self._lost.tolist(), strict=True)
        return sum(num for shard, num in lost if shard.name in names)

    def cuts(self, shard_cost: float) -> Iterator[list[Piece]]:
        """Yield the pieces of each shard that what has no home is cut into; writes nothing."""
        work = self._work
        costs = ((number, np.load(_costs_path(work, number))) for number in work.buckets)
        return cuts(costs, *self._unassigned, shard_cost)

    def cut(self, shard_cost: float) -> None:
        """Write the unassigned records into new shards."""
        work, used, used_cost = self._work, self._used, self._used_cost
        new = list(self.cuts(shard_cost))
        size_of_group = -(-len(new) // NUM_GROUPS)
        groups = [
            (work, len(self._old) + first, new[first : first + size_of_group])
            for first in range(0, len(new), size_of_group or 1)
        ]
        written: list[PlannedShard] = []
        shown = Progress(log, "cutting new shards", "shards")
        for shards in self._processes.map(_write_shards, groups):
            written += shards
            shown.at(len(written), len(new))
        stays = np.append(used > 0, np.ones(len(new), bool))
        self.numbers = np.where(stays, np.cumsum(stays) - 1, NOWHERE)
        self.shards = [
            PlannedShard(old.name, old.records, int(num), int(cost), old.file_bytes)
            for old, num, cost in zip(self._old, used, used_cost, strict=True)
            if num
        ] + written

    def _for_each_bucket(self, function: Callable[[Work, int], Result]) -> Iterator[Result]:
        buckets = self._work.buckets
        shown = Progress(log, "sorting", "buckets")
        results = self._processes.map(function, [(self._work, number) for number in buckets])
        for number, result in enumerate(results, 1):
            yield result
            shown.at(number, len(buckets))


def _wanted_bytes(work: Work, number: int) -> Integers:
    """Return how many payload bytes of each old shard records of the bucket want."""
    bucket = Bucket(work.spools, number)
    _, keys = work.own.held(bucket, number)
    wanted = np.zeros(len(work.own.kept), np.int64)
    np.add.at(wanted, keys["shard"], keys["bytes"])
    return wanted


def _homes(work: Work, bucket: Bucket, number: int) -> tuple[npt.NDArray[np.void], Integers]:
    """Return the location of each distinct record of the bucket in old shards and stores. Also
    return, for each record that moves from an old shard to a store, that shard."""
    homes = work.own.homes(bucket, number)
    hits = work.offer.of_bucket(number)
    before = homes["shard"][hits["position"]]
    is_taken = work.own.not_computed[before]  # `release` may have changed what the look-up left out
    hits = hits[is_taken]
    homes["shard"][hits["position"]] = len(work.own.kept) + hits["part"]
    homes["row"][hits["position"]] = hits["row"]
    lost = before[is_taken]
    return homes, lost[lost != NOWHERE]


def _placed(work: Work, number: int) -> Placed:
    """Place the records that old shards or stores hold; leave the cost of each other in a file."""
    bucket = Bucket(work.spools, number)
    homes, lost = _homes(work, bucket, number)
    has_home = homes["shard"] != NOWHERE
    num_old = len(work.own.kept) + len(work.offer.parts)
    used, used_cost = np.zeros((2, num_old), np.int64)
    np.add.at(used, homes["shard"][has_home], 1)
    np.add.at(used_cost, homes["shard"][has_home], bucket.cost[has_home])
    is_placed = has_home[bucket.owner]
    locations = np.memmap(work.locations, LOCATION, "r+")
    locations[bucket.ordinals[is_placed]] = homes[bucket.owner[is_placed]]
    costs = bucket.cost[~has_home]
    np.save(_costs_path(work, number), costs)
    lost_by = np.bincount(lost, minlength=num_old)
    return Placed(len(bucket.sha256), used, used_cost, lost_by, int(costs.sum()))


def _costs_path(work: Work, number: int) -> Path:
    return work.own.keys.parent / f"costs-{number:03d}.npy"


def cuts(
    costs_of_buckets: Iterable[tuple[int, Integers]], cost: int, records: int, shard_cost: float
) -> Iterator[list[Piece]]:
    """Yield the pieces of each new shard: the records, in hash order, at nearly equal cost.

    `costs_of_buckets` are the numbers of the buckets in their order, each with the cost of every
    record in it, `cost` is the sum of all, and so many `records` there are.
    """
    if not cost:
        return
    num_shards = max(1, round(cost / shard_cost))
    cost_a_shard = cost / num_shards
    num_done = cost_before = num_before = 0
    pieces: list[Piece] = []
    for number, costs in costs_of_buckets:
        running = cost_before + np.cumsum(costs)
        start = 0
        while start < len(running):
            # The k-th border is at k times the mean, so that rounding never piles up in the last
            # one.
            border = cost_a_shard * (num_done + 1) - 0.5
            # Few records of uneven cost: each of the shards to come has one at least.
            most = records - num_before - (num_shards - num_done - 1)
            wanted = min(int(np.searchsorted(running, border)) + 1, most)
            end = min(max(wanted, start + 1), len(running))
            before = running[start - 1] if start else cost_before
            pieces.append(Piece(number, start, end, int(running[end - 1] - before)))
            start = end
            if running[end - 1] >= border or end >= most:
                yield pieces
                pieces = []
                num_done += 1
        cost_before = running[-1] if len(running) else cost_before
        num_before += len(running)
    if pieces:
        yield pieces


def _write_shards(work: Work, first: int, cuts: Sequence[Sequence[Piece]]) -> list[PlannedShard]:
    """Write new shards, of which the first has the number `first`, and place their records."""
    shards = []
    locations = np.memmap(work.locations, LOCATION, "r+")
    bucket, number = None, NOWHERE
    for index, pieces in enumerate(cuts, first):
        tables = []
        rows = 0
        for piece in pieces:
            if bucket is None or piece.bucket != number:
                number = piece.bucket
                bucket = Bucket(work.spools, number)
                unassigned = np.flatnonzero(_homes(work, bucket, number)[0]["shard"] == NOWHERE)
            taken = unassigned[piece.start : piece.end]
            tables.append(bucket.take(taken))
            ordinals, rank = bucket.requesters(taken)
            locations["shard"][ordinals] = index
            locations["row"][ordinals] = rows + rank
            rows += len(taken)
        table = pa.concat_tables(tables).combine_chunks()
        shards.append(write_new(work.folder, table, sum(piece.cost for piece in pieces)))
    return shards


def write_new(folder: Results, table: pa.Table, cost: int) -> PlannedShard:
    """Write a new shard, of which all is wanted; return what the plan says of it."""
    name = write_shard(folder, table)
    size = folder.shard(name).stat().st_size
    return PlannedShard(name, table.num_rows, table.num_rows, cost, size)
