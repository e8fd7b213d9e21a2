"""What a plan takes from stores: which of its payloads a part there holds already."""

from __future__ import annotations

import errno
import logging
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.progress import Progress
from featuremill.base.words import counted, human_bytes
from featuremill.plan.buckets import Bucket, OldShard, OldShards, buckets_of
from featuremill.plan.processes import Processes
from featuremill.store import remote, shared
from featuremill.store.files import Identity, identity_of
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import (
    OTHER_BYTES,
    OTHER_COLUMNS,
    beginnings,
    columns_of,
    order_of,
    read_columns,
)
from featuremill.store.plan import PlannedShard, Settings, SharedPart
from featuremill.store.remote import RemoteShelf
from featuremill.store.results import Results
from featuremill.store.shared_index import (
    Level,
    Numbers,
    WrongIndexError,
    find,
    keep_index,
    levels_of,
    pass_over,
)
from featuremill.workload.recipe import recipe_of

HIT = np.dtype([("position", "<i8"), ("first", "<u8"), ("part", "<i4"), ("row", "<i4")])
"""A payload that a store has: its position in its bucket, the first eight bytes of its sha256, its
part, and its row there."""
ROWS_AT_ONCE = 2_000_000
"""About how many rows of parts are compared with an index at once."""
TRIES = 5
"""Attempts at the look-up: index files may be merged with others, and removed, during it."""
log = logging.getLogger("featuremill.plan")

Levels = list[tuple[Level, Numbers]]
"""The levels with the numbers of their parts among all parts; -1 for an unused part."""


class Offer(NamedTuple):
    """The parts of stores, and which payloads they give."""

    paths: Mapping[str, Path]
    parts: Sequence[OldShard]
    hits: Path | None
    """The folder with the `HIT`s of each bucket; None where there is no store."""

    def of_bucket(self, number: int) -> npt.NDArray[np.void]:
        return np.fromfile(self.hits / str(number), HIT) if self.hits else np.empty(0, HIT)

    def taken(self, shards: Sequence[PlannedShard]) -> list[SharedPart]:
        """Return what the plan says of those of the `shards` that are parts of stores."""
        return [
            SharedPart(
                shard=shard.shard,
                path=str(self.paths[shard.shard]),
                records=shard.records,
                wanted=shard.wanted,
                cost=shard.cost,
                bytes=self.paths[shard.shard].stat().st_size,
            )
            for shard in shards
            if shard.shard in self.paths
        ]


NOTHING = Offer({}, (), None)


class Lookup(NamedTuple):
    folder: Results
    stores: Sequence[Path]
    """Folders; the first is written."""
    remote: Sequence[str]
    settings: Settings
    values: pa.Schema
    """The columns that a part has to have."""
    own: OldShards
    """The run's own shards: what they have computed is not looked up."""

    @property
    def recipe(self) -> str:
        return recipe_of(self.settings)


class Parts(NamedTuple):
    levels: Levels
    paths: dict[str, Path]
    """The path of each, or the one that it gets when it is fetched."""
    remote: dict[str, RemoteShelf]
    """The address of each part that only a remote store has."""
    sizes: dict[str, int]
    """How many rows each has, by the index."""


def look_up(lookup: Lookup, spools: list[Path], scratch: Path, processes: Processes) -> Offer:
    """Look up every distinct spooled payload that the run has not computed; fetch the parts that
    only remote stores have. A part that cannot be used is noted, and its payloads are looked up in
    the other parts. In place of an index that is wrong, its parts are read.

    Raises:
        OSError: where a store cannot be read.
        UserError: where a remote one cannot.
    """
    shared.forget_remote(lookup.folder)
    hits = scratch / "hits"
    hits.mkdir()
    left = TRIES
    fetched, wrong = set[str](), set[Path]()
    while True:
        try:
            keep_index(lookup.stores[0], lookup.recipe)
        except OSError as error:  # another run of this user writes it; it only saves time
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
        parts = _parts(lookup, Path(tempfile.mkdtemp(dir=scratch)), fetched, wrong)
        tasks = [(lookup.own, spools, number, parts.levels, hits) for number in buckets_of(spools)]
        try:
            for _ in processes.map(_look_up_bucket, tasks):
                pass
        except WrongIndexError as error:
            pass_over(error.path, lookup.stores[0])
            wrong.add(error.path)
            continue
        except OSError as error:
            left -= 1
            if not left or error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            continue
        num_wrong = len(wrong)
        if not (_is_changed(lookup, parts, hits, fetched, wrong) or len(wrong) > num_wrong):
            break
    offered = [OldShard(name, parts.sizes[name], 0, 0) for name in parts.paths]
    return Offer(parts.paths, offered, hits)


def _is_changed(
    lookup: Lookup, parts: Parts, hits: Path, fetched: set[str], wrong: set[Path]
) -> bool:
    """Fetch those of the parts with a hit that only remote stores have, and add their addresses
    to `fetched`; note those that cannot be used. Return whether there are any of either.

    A fetched part is looked up again: its own rows count, and not its publisher's index. A local
    part that cannot be read is left to merge. Index files whose hits are of other rows are added to
    `wrong`.
    """
    num_before = len(fetched)
    parts_hit = (np.unique(np.fromfile(path, HIT)["part"]).tolist() for path in hits.iterdir())
    hit = set[int]().union(*parts_hit)
    wanted = [part for number, part in enumerate(parts.paths.items()) if number in hit]
    bad = _fetch(lookup, parts, [name for name, _ in wanted if name in parts.remote], fetched)
    for name, path in wanted:
        identity = identity_of(path)
        with suppress(OSError, pa.ArrowException):
            if name not in parts.remote and not columns_of(path).equals(lookup.values):
                bad[str(path)] = identity, f"{path}: {OTHER_COLUMNS}"
    for number in _misplaced(parts, hit, hits):
        path = [*parts.paths.values()][number]
        if digest_of_file(path) != path.stem:
            bad[str(path)] = identity_of(path), f"{path}: {OTHER_BYTES}"
            continue
        listing = {level.path for level, numbers in parts.levels if number in numbers}
        for index in sorted(listing - wrong):
            pass_over(index, lookup.stores[0])
        wrong |= listing
    for _, problem in bad.values():
        log.warning("%s; it is not taken.", problem)
    shared.note_unusable(lookup.folder, bad)
    return bool(bad) or len(fetched) > num_before


def _misplaced(parts: Parts, hit: Collection[int], hits: Path) -> list[int]:
    """Return the numbers of local parts whose rows differ from those that an index lists: each user
    with write access to a store can write a wrong index."""
    names = [*parts.paths]
    left = sorted(number for number in hit if names[number] not in parts.remote)
    misplaced = set[int]()
    while left:
        start, num_rows = np.full(len(names), -1), 0
        rows: list[npt.NDArray[np.uint64]] = []
        while left and num_rows < ROWS_AT_ONCE:
            number = left.pop(0)
            with suppress(OSError, pa.ArrowException, KeyError, ValueError):
                sha256, reasons = read_columns(parts.paths[names[number]])
                order = order_of(sha256)
                is_failed = np.asarray(reasons.is_valid())[order]
                first = beginnings(sha256)[order]
                if len(first) != parts.sizes[names[number]]:
                    misplaced.add(number)
                    continue
                start[number], num_rows = num_rows, num_rows + len(first)
                rows.append(np.where(is_failed, ~first, first))  # a failed row is not to be taken
        together = np.concatenate([np.empty(0, np.uint64), *rows])
        for path in hits.iterdir():
            entries = np.fromfile(path, HIT)
            entries = entries[start[entries["part"]] >= 0]
            there = together[start[entries["part"]] + entries["row"]]
            misplaced |= {*entries["part"][there != entries["first"]].tolist()}
    return sorted(misplaced)


def _fetch(
    lookup: Lookup, parts: Parts, names: Sequence[str], addresses: set[str]
) -> dict[str, tuple[Identity, str]]:
    """Fetch the remote parts `names` into the first store; return those that cannot be used, by
    address, and why."""
    bad: dict[str, tuple[Identity, str]] = {}
    if lookup.remote and (names or not addresses):
        rows = counted(sum(parts.sizes[name] for name in names), "record")
        wanted = f"fetching {len(names):,} of them ({rows})" if names else "none of them is needed"
        listed = counted(len(parts.remote), "part")
        log.info("%s: %s not here yet; %s", ", ".join(lookup.remote), listed, wanted)
    shown, num_bytes = Progress(log, "fetching", "parts"), 0
    for number, name in enumerate(names, 1):
        shelf = parts.remote[name]
        addresses.add(shelf.part(name))
        if problem := shelf.take(name, lookup.stores[0], lookup.settings, lookup.values):
            bad[shelf.part(name)] = None, problem
        else:
            num_bytes += parts.paths[name].stat().st_size
        shown.at(number, len(names))
    if names:
        fetched = counted(len(names) - len(bad), "part")
        log.info("fetched: %s, %s", fetched, human_bytes(num_bytes))
    return bad


def _parts(
    lookup: Lookup, scratch: Path, fetched: Collection[str], wrong: Collection[Path]
) -> Parts:
    """Return the indices of all publishers' parts without `wrong` ones, and the parts that can be
    used without remote ones that were `fetched`."""
    bad = shared.unusable(lookup.folder).union(fetched)
    numbers: dict[str, int] = {}
    parts = Parts([], {}, {}, {})

    def add(level: Level, paths: Mapping[str, Path], shelf: RemoteShelf | None = None) -> None:
        for name in level.parts:
            path = paths.get(name)
            address = shelf.part(name) if shelf else str(path)
            if path and name not in parts.paths and address not in bad:
                numbers[name], parts.paths[name] = len(parts.paths), path
                parts.sizes[name] = level.parts[name]
                if shelf:
                    parts.remote[name] = shelf
        # An index counts for the parts beside it alone.
        own = {
            name: numbers[name]
            for name, path in paths.items()
            if parts.paths.get(name) == path and parts.remote.get(name) is shelf
        }
        parts.levels.append((level, level.numbered(own)))

    for store in lookup.stores:
        for here in shared.shelves(store, lookup.recipe):
            paths = here.parts()
            for level in levels_of(here, scratch / str(len(parts.levels)), wrong):
                add(level, paths)
    own = shared.Shelf(shared.own_folder(lookup.stores[0]) / lookup.recipe)
    for url in lookup.remote:
        for shelf in remote.shelves(url, lookup.recipe):
            paths = {name: own.part(name) for name in shelf.parts()}
            for level in shelf.levels(lookup.stores[0]) if paths else ():
                add(level, paths, shelf)
    return parts


def _look_up_bucket(
    own: OldShards, spools: Sequence[Path], number: int, levels: Levels, to: Path
) -> None:
    """Write the hits of a bucket; where several parts have a payload, the first one's."""
    bucket = Bucket(spools, number)
    sha256, home = bucket.sha256, own.homes(bucket, number)["shard"]
    left = np.flatnonzero(own.not_computed[home])
    with (to / str(number)).open("wb") as file:
        for level, numbers in levels:
            where, part, row = find(sha256[left], level.chosen(number, numbers))
            hits = np.empty(len(where), HIT)
            hits["position"], hits["part"], hits["row"] = left[where], part, row
            hits["first"] = beginnings(sha256[left[where]])
            file.write(hits.tobytes())
            left = np.delete(left, where)
