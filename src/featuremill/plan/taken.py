"""What a plan takes from stores: which of its payloads a part there holds already."""

from __future__ import annotations

import errno
import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.plan.buckets import Bucket, Integers, OldShard, buckets_of
from featuremill.plan.processes import Processes
from featuremill.store import shared
from featuremill.store.parts import OTHER_COLUMNS, columns_of
from featuremill.store.plan import PlannedShard, SharedPart
from featuremill.store.results import Results
from featuremill.store.shared_index import Level, chosen, find, keep_index, levels_of

HIT = np.dtype([("position", "<i8"), ("part", "<i4"), ("row", "<i4")])
"""Of a payload that a store has: its place in its bucket, and where it is."""
TRIES = 5
"""How often levels are looked for again that became one with others meanwhile."""
log = logging.getLogger("featuremill.plan")

Levels = list[tuple[Level, npt.NDArray[np.int32]]]
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


def look_up(
    folder: Results,
    stores: Sequence[Path],
    recipe: str,
    values: pa.Schema,
    spools: list[Path],
    scratch: Path,
    processes: Processes,
) -> Offer:
    """Look up every distinct spooled payload in `stores`, the first of which is written. A part
    whose columns are not these `values` is not taken, and noted.

    Raises:
        OSError: where a store cannot be read.
    """
    try:
        keep_index(stores[0], recipe)
    except OSError as error:  # another run of this user keeps it just now; it only saves time
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
    hits = scratch / "hits"
    hits.mkdir()
    left = TRIES
    while True:
        new = Path(tempfile.mkdtemp(dir=scratch))
        levels, paths = _levels(folder, stores, recipe, new)
        tasks = [(spools, number, levels, hits) for number in buckets_of(spools)]
        try:
            for _ in processes.map(_look_up_bucket, tasks):
                pass
        except OSError as error:
            left -= 1
            if not left or error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            continue
        if not _refused(folder, [list(paths.values())[number] for number in _hit(hits)], values):
            break
    sizes = {name: size for level, _ in levels for name, size in level.parts.items()}
    return Offer(paths, [OldShard(name, sizes[name], 0, 0) for name in paths], hits)


def _hit(hits: Path) -> list[int]:
    """Return the numbers of the parts that have any hit."""
    found = [np.unique(np.fromfile(path, HIT)["part"]).tolist() for path in hits.iterdir()]
    return sorted(set[int]().union(*found))


def _refused(folder: Results, paths: Sequence[Path], values: pa.Schema) -> bool:
    """Note those of the parts at `paths` that have other columns, and tell whether there are any;
    one that cannot be read is left to merge."""
    found: dict[str, tuple[shared.Identity, str]] = {}
    for path in paths:
        before = shared.identity_of(path)
        with suppress(OSError, pa.ArrowException):
            if not columns_of(path).equals(values):
                found[str(path)] = before, f"{path}: {OTHER_COLUMNS}"
    shared.note_unusable(folder, found)
    return bool(found)


def _levels(
    folder: Results, stores: Sequence[Path], recipe: str, scratch: Path
) -> tuple[Levels, dict[str, Path]]:
    """Return the indices of all publishers' parts, and the path of each part that can be used."""
    bad = shared.unusable(folder)
    numbers: dict[str, int] = {}
    paths: dict[str, Path] = {}
    found: Levels = []
    for store in stores:
        for shelf in shared.shelves(store, recipe):
            there = shelf.parts()
            for level in levels_of(shelf, scratch / str(len(found))):
                for name in level.parts:
                    path = there.get(name)
                    if path and name not in paths and str(path) not in bad:
                        numbers[name], paths[name] = len(paths), path
                usable = [numbers.get(name, -1) for name in level.parts]
                found.append((level, np.array(usable, np.int32)))
    return found, paths


def _look_up_bucket(spools: Sequence[Path], number: int, levels: Levels, to: Path) -> None:
    """Write the hits of a bucket, of several the first."""
    sha256 = Bucket(spools, number).sha256
    left: Integers = np.arange(len(sha256))
    with (to / str(number)).open("wb") as file:
        for level, numbers in levels:
            where, part, row = find(sha256[left], chosen(level.bucket(number), numbers))
            hits = np.empty(len(where), HIT)
            hits["position"], hits["part"], hits["row"] = left[where], part, row
            file.write(hits.tobytes())
            left = np.delete(left, where)
