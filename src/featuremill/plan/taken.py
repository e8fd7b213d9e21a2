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
from featuremill.plan.buckets import Bucket, Integers, OldShard, buckets_of
from featuremill.plan.processes import Processes
from featuremill.store import remote, shared
from featuremill.store.parts import OTHER_COLUMNS, columns_of
from featuremill.store.plan import PlannedShard, Settings, SharedPart
from featuremill.store.remote import RemoteShelf
from featuremill.store.results import Results
from featuremill.store.shared_index import Level, Numbers, find, keep_index, levels_of
from featuremill.workload.recipe import recipe_of

HIT = np.dtype([("position", "<i8"), ("part", "<i4"), ("row", "<i4")])
"""Of a payload that a store has: its place in its bucket, and where it is."""
TRIES = 5
"""How often levels are looked for again that became one with others meanwhile."""
log = logging.getLogger("featuremill.plan")

Levels = list[tuple[Level, Numbers]]
"""Each with the numbers of its parts among all; -1 for one that is not to be used."""


class Offer(NamedTuple):
    """The parts of stores, and which payloads they give."""

    paths: Mapping[str, Path]
    """Where each part is, by its name."""
    parts: Sequence[OldShard]
    hits: Path | None
    """The folder with the `HIT`s of each bucket; None where there is no store."""

    def of_bucket(self, number: int) -> npt.NDArray[np.void]:
        """Return the hits in a bucket."""
        return np.fromfile(self.hits / str(number), HIT) if self.hits else np.empty(0, HIT)

    def taken(self, shards: Sequence[PlannedShard]) -> list[SharedPart]:
        """Return what the plan says of those of the `shards` that are parts of stores."""
        return [
            SharedPart(
                shard=one.shard,
                path=str(self.paths[one.shard]),
                records=one.records,
                wanted=one.wanted,
                cost=one.cost,
                bytes=self.paths[one.shard].stat().st_size,
            )
            for one in shards
            if one.shard in self.paths
        ]


NOTHING = Offer({}, (), None)


class Lookup(NamedTuple):
    """What is looked up where."""

    folder: Results
    stores: Sequence[Path]
    """Folders; the first is written."""
    remote: Sequence[str]
    settings: Settings
    values: pa.Schema
    """The columns that a part has to have."""

    @property
    def recipe(self) -> str:
        return recipe_of(self.settings)


class Found(NamedTuple):
    """The parts of all stores, each once."""

    levels: Levels
    paths: dict[str, Path]
    """Where each is, or is going to be when it is fetched."""
    remote: dict[str, RemoteShelf]
    """Where those are that are not here."""
    sizes: dict[str, int]
    """How many rows each has."""


def look_up(lookup: Lookup, spools: list[Path], scratch: Path, processes: Processes) -> Offer:
    """Look up every distinct spooled payload; fetch the parts that are not here. Parts that cannot
    be used are noted, and what they have is looked up elsewhere.

    Raises:
        OSError: where a store cannot be read.
        UserError: where a remote one cannot.
    """
    shared.forget_remote(lookup.folder)
    hits = scratch / "hits"
    hits.mkdir()
    left = TRIES
    asked = set[str]()
    while True:
        try:
            keep_index(lookup.stores[0], lookup.recipe)
        except OSError as error:  # another run of this user keeps it just now; it only saves time
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
        in_stores = _found(lookup, Path(tempfile.mkdtemp(dir=scratch)), asked)
        tasks = [(spools, number, in_stores.levels, hits) for number in buckets_of(spools)]
        try:
            for _ in processes.map(_look_up_bucket, tasks):
                pass
        except OSError as error:
            left -= 1
            if not left or error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            continue
        if not _is_changed(lookup, in_stores, _hit(hits), asked):
            break
    parts = [OldShard(name, in_stores.sizes[name], 0, 0) for name in in_stores.paths]
    return Offer(in_stores.paths, parts, hits)


def _hit(hits: Path) -> set[int]:
    """Return the numbers of the parts that have any hit."""
    return set[int]().union(
        *(np.unique(np.fromfile(path, HIT)["part"]).tolist() for path in hits.iterdir())
    )


def _is_changed(lookup: Lookup, in_stores: Found, wanted: Collection[int], asked: set[str]) -> bool:
    """Fetch those of the `wanted` parts that are not here, and add their addresses to `asked`; note
    those that cannot be used. Tell whether there are any of either: a part that was fetched is
    looked up anew, by what it holds and not by what its publisher says. One here that cannot be
    read is left to merge."""
    num_before = len(asked)
    bad: dict[str, tuple[shared.Identity, str]] = {}
    parts = [part for number, part in enumerate(in_stores.paths.items()) if number in wanted]
    fetched = Progress(log, "fetching", "parts")
    for number, (name, path) in enumerate(parts, 1):
        if shelf := in_stores.remote.get(name):
            asked.add(shelf.part(name))
            if problem := shelf.take(name, lookup.stores[0], lookup.settings, lookup.values):
                bad[shelf.part(name)] = None, problem
            fetched.at(number, len(parts))
            continue
        identity = shared.identity_of(path)
        with suppress(OSError, pa.ArrowException):
            if not columns_of(path).equals(lookup.values):
                bad[str(path)] = identity, f"{path}: {OTHER_COLUMNS}"
    for _, problem in bad.values():
        log.warning("%s; it is not taken.", problem)
    shared.note_unusable(lookup.folder, bad)
    return bool(bad) or len(asked) > num_before


def _found(lookup: Lookup, scratch: Path, asked: Collection[str]) -> Found:
    """Return the indices of all publishers' parts, and the parts that can be used; without remote
    ones that were `asked` for."""
    bad = shared.unusable(lookup.folder).union(asked)
    numbers: dict[str, int] = {}
    result = Found([], {}, {}, {})

    def add(level: Level, there: Mapping[str, Path], shelf: RemoteShelf | None = None) -> None:
        for name in level.parts:
            path = there.get(name)
            address = shelf.part(name) if shelf else str(path)
            if path and name not in result.paths and address not in bad:
                numbers[name], result.paths[name] = len(result.paths), path
                result.sizes[name] = level.parts[name]
                if shelf:
                    result.remote[name] = shelf
        # An index counts for the parts beside it alone.
        own = {
            name: numbers[name]
            for name, path in there.items()
            if result.paths.get(name) == path and result.remote.get(name) is shelf
        }
        result.levels.append((level, level.numbered(own)))

    for store in lookup.stores:
        for here in shared.shelves(store, lookup.recipe):
            there = here.parts()
            for level in levels_of(here, scratch / str(len(result.levels))):
                add(level, there)
    own = shared.Shelf(shared.own_folder(lookup.stores[0]) / lookup.recipe)
    for url in lookup.remote:
        for shelf in remote.shelves(url, lookup.recipe):
            there = {name: own.part(name) for name in shelf.parts()}
            for level in shelf.levels(lookup.stores[0]) if there else ():
                add(level, there, shelf)
    return result


def _look_up_bucket(spools: Sequence[Path], number: int, levels: Levels, to: Path) -> None:
    """Write the hits of a bucket, of several the first."""
    sha256 = Bucket(spools, number).sha256
    left: Integers = np.arange(len(sha256))
    with (to / str(number)).open("wb") as file:
        for level, numbers in levels:
            where, part, row = find(sha256[left], level.chosen(number, numbers))
            hits = np.empty(len(where), HIT)
            hits["position"], hits["part"], hits["row"] = left[where], part, row
            file.write(hits.tobytes())
            left = np.delete(left, where)
