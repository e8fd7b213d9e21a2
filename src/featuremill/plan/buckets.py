"""The buckets of spooled records, sorted, and which shards of the last plan hold them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.arrays import Digests, digests
from featuremill.plan.spool import BUCKET, NUM_BUCKETS, bucket_path
from featuremill.store.files import digest_of
from featuremill.store.parts import SHARD, read_shard
from featuremill.store.results import Results

NOWHERE = -1
LOCATION = np.dtype([("shard", "<i4"), ("row", "<i4")])
"""A record's shard number and its row there; both NOWHERE without one."""
OLD_KEY = np.dtype([("sha256", "S32"), ("shard", "<i4"), ("row", "<i4"), ("bytes", "<i8")])
OLD_KEYS_A_BLOCK = 500_000
"""Keys of old shards that are held in memory until they go to their buckets."""

Integers = npt.NDArray[np.int64]


class OldShard(NamedTuple):
    """A shard of the last plan."""

    name: str
    records: int
    payload_bytes: int
    file_bytes: int


class Bucket:
    """The distinct records of one bucket, sorted by sha256, and who asked for them."""

    def __init__(self, folders: Sequence[Path], number: int) -> None:
        paths = [bucket_path(folder, number) for folder in folders]
        tables = [mapped(path) for path in paths if path.exists()]
        table = pa.concat_tables([BUCKET.empty_table(), *tables])
        buffers = [each.buffers() for each in table["payload"].chunks]
        self._views = [(memoryview(o).cast("q"), memoryview(letters)) for _, o, letters in buffers]
        """The offsets of the payloads of each batch, and their bytes."""
        self._edges = np.cumsum([0, *map(len, table["payload"].chunks)])
        hashes = digests(table["sha256"])
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        is_first = np.ones(len(hashes), bool)
        is_first[1:] = hashes[1:] != hashes[:-1]
        self._rows = order[is_first]
        self.sha256: Digests = hashes[is_first]
        self.cost: Integers = table["cost"].to_numpy()[self._rows]
        self.ordinals: Integers = table["ordinal"].to_numpy()[order]
        """Every row's ordinal, grouped by distinct record."""
        self.owner: Integers = np.cumsum(is_first) - 1
        """The index of the distinct record of each of `ordinals`."""

    def take(self, positions: Integers) -> pa.Table:
        """Return the distinct records at these positions, as a shard holds them.

        Arrow itself would copy all payloads to take a few.
        """
        rows = self._rows[positions]
        batches = np.searchsorted(self._edges, rows, "right") - 1
        places = np.column_stack([batches, rows - self._edges[batches]]).tolist()
        views = self._views
        ends = [(views[batch], row) for batch, row in places]
        payloads = [letters[offsets[row] : offsets[row + 1]] for (offsets, letters), row in ends]
        offsets = np.append(0, np.cumsum(list(map(len, payloads))))
        sha256 = pa.py_buffer(self.sha256[positions].tobytes())
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(payloads))]
        columns = [
            pa.Array.from_buffers(pa.binary(32), len(rows), [None, sha256]),
            pa.Array.from_buffers(pa.large_binary(), len(rows), buffers),
        ]
        return pa.Table.from_arrays(columns, schema=SHARD)

    def requesters(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return the ordinals of the rows that ask for the distinct records at these positions,
        which ascend, and for each the index in `positions` of the record it asks for.
        """
        start = np.searchsorted(self.owner, positions[0])
        end = np.searchsorted(self.owner, positions[-1], "right")
        owner = self.owner[start:end]
        rank = np.searchsorted(positions, owner)
        is_asked = positions[rank] == owner
        return self.ordinals[start:end][is_asked], rank[is_asked]


def buckets_of(folders: Sequence[Path]) -> list[int]:
    """Return the numbers of the buckets that hold anything, ascending."""
    return [
        number
        for number in range(NUM_BUCKETS)
        if any(bucket_path(folder, number).exists() for folder in folders)
    ]


def mapped(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


def spool_old_shards(folder: Results, names: Iterable[str], to: Path) -> list[OldShard]:
    """Write the keys of shards of the last plan to their buckets in `to`, in their order.

    Shards that are gone, or are not what their name says, are left out.
    """
    to.mkdir()
    shards: list[OldShard] = []
    waiting: list[npt.NDArray[np.void]] = []
    for name in names:
        keys = _keys_of(name, folder.shard(name))
        if keys is None:
            continue
        keys["shard"] = len(shards)
        size = folder.shard(name).stat().st_size
        shards.append(OldShard(name, len(keys), int(keys["bytes"].sum()), size))
        waiting.append(keys)
        if sum(map(len, waiting)) >= OLD_KEYS_A_BLOCK:
            _append(to, waiting)
            waiting = []
    _append(to, waiting)
    return shards


def _keys_of(name: str, path: Path) -> npt.NDArray[np.void] | None:
    try:
        table = read_shard(path)
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    sha256 = digests(table["sha256"])
    if digest_of([sha256.tobytes()]) != name:
        return None
    keys = np.empty(len(sha256), OLD_KEY)
    keys["sha256"] = sha256
    keys["row"] = np.arange(len(sha256))
    keys["bytes"] = pc.binary_length(table["payload"]).to_numpy()
    return keys


def _append(to: Path, waiting: list[npt.NDArray[np.void]]) -> None:
    if not waiting:
        return
    keys = np.concatenate(waiting)
    buckets = np.ascontiguousarray(keys["sha256"]).view(np.uint8)[::32]
    order = np.argsort(buckets, kind="stable")
    edges = np.searchsorted(buckets[order], np.arange(NUM_BUCKETS + 1))
    keys = keys[order]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        if end > start:
            with _old_path(to, number).open("ab") as file:
                file.write(keys[start:end].tobytes())


class OldShards(NamedTuple):
    """The old shards of a run: their keys, which of them stay, and which are not computed."""

    keys: Path
    """The folder with their keys, by bucket."""
    kept: npt.NDArray[np.bool_]
    """Which of them stay; all of them until that is decided."""
    not_computed: npt.NDArray[np.bool_]
    """Whether each is not computed yet: then a store's values are preferred. The last entry is for
    NOWHERE (-1), and is True."""

    def held(self, bucket: Bucket, number: int) -> tuple[Integers, npt.NDArray[np.void]]:
        """Return the positions of the bucket's distinct records that kept shards hold, and their
        keys there, in the order of the shards."""
        path = _old_path(self.keys, number)
        keys = np.fromfile(path, OLD_KEY) if path.exists() else np.empty(0, OLD_KEY)
        keys = keys[self.kept[keys["shard"]]]
        position = np.searchsorted(bucket.sha256, keys["sha256"])
        is_there = position < len(bucket.sha256)
        is_there[is_there] = bucket.sha256[position[is_there]] == keys["sha256"][is_there]
        return position[is_there], keys[is_there]

    def homes(self, bucket: Bucket, number: int) -> npt.NDArray[np.void]:
        """Return the shard and row of each distinct record of the bucket, as `LOCATION`."""
        locations = np.full(len(bucket.sha256), NOWHERE, LOCATION)
        position, keys = self.held(bucket, number)
        for name in LOCATION.names or ():
            locations[name][position] = keys[name]  # of several shards, the last one counts
        return locations


def _old_path(folder: Path, number: int) -> Path:
    return folder / f"old-{number:03d}.bin"
