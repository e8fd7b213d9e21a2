"""The index of a store: sorted files of (sha256, part, row), which can be rebuilt from the parts.

A level is an Arrow file of 256 batches, one for each first byte of the sha256. Its schema lists the
parts that it covers, and its name is the digest of its bytes. A publisher's new parts become a new
level. Levels of similar size are merged, as in a log-structured merge tree, so each entry is
written only a few times. Rows that failed are left out. Levels are read and never memory-mapped: if
one is removed while it is read, that is an error and no crash.

A lost, damaged, wrong or old index only costs time: parts that no level covers are read again.
Files that are named by content need no lock: two processes that index the same parts write the same
file.
"""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.arrays import Digests, digests
from featuremill.base.errors import IntegrityError
from featuremill.base.progress import Progress
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import beginnings, order_of, read_columns
from featuremill.store.shared import Shelf, open_folder, own_folder, publishing

NUM_BUCKETS = 256
LEVEL = pa.schema({"sha256": pa.binary(32), "part": pa.int32(), "row": pa.int32()})
PARTS = b"parts"
"""Key of the schema's metadata: the names of the covered parts, each with its number of rows."""
ENTRIES_AT_ONCE = 2_000_000
"""About how many entries are in memory until they are written as a level."""
GROWTH = 4
"""A level is merged with all smaller ones unless it is more than so many times their size."""
log = logging.getLogger("featuremill.store")

Numbers: TypeAlias = npt.NDArray[np.int32]
Entries = tuple[Digests, Numbers, Numbers]
"""sha256, part and row, sorted by sha256."""


class WrongIndexError(IntegrityError):
    """An index that names rows which its parts do not have."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: this index names rows that its parts do not have"


class Level(NamedTuple):
    """An index file whose bytes were checked."""

    path: Path
    parts: dict[str, int]
    """The number of rows of each part that it covers, failed ones too, by name. The part of an
    entry is a position in this order."""

    @property
    def size(self) -> int:
        return sum(self.parts.values())

    def is_sound(self) -> bool:
        """Return whether each entry is of a row of a covered part."""
        try:
            for number in range(NUM_BUCKETS):
                self.bucket(number)
        except WrongIndexError:
            return False
        return True

    def numbered(self, numbers: Mapping[str, int]) -> Numbers:
        """Return the numbers of its parts in `numbers`, -1 for parts without one."""
        return np.array([numbers.get(name, -1) for name in self.parts], np.int32)

    def chosen(self, bucket: int, numbers: Numbers) -> Entries:
        """Return those entries of a bucket whose part has a number other than -1, with that number
        as their part."""
        sha256, part, row = self.bucket(bucket)
        new = numbers[part]
        return sha256[new >= 0], new[new >= 0], row[new >= 0]

    def bucket(self, number: int) -> Entries:
        """Return the entries whose sha256 begins with this byte.

        Raises:
            WrongIndexError: one is of no row of a covered part. Any user can write an index.
        """
        sizes = np.array([*self.parts.values()], np.int64)
        try:
            with pa.OSFile(str(self.path)) as source, pa.ipc.open_file(source) as file:
                if not file.schema.equals(LEVEL) or file.num_record_batches != NUM_BUCKETS:
                    raise WrongIndexError(self.path)
                batch = file.get_batch(number)
            sha256 = digests(batch["sha256"])
            part, row = batch["part"].to_numpy(), batch["row"].to_numpy()
        except ValueError:  # also pa.ArrowInvalid
            raise WrongIndexError(self.path) from None
        if len(part) and (part.min() < 0 or part.max() >= len(sizes) or row.min() < 0):
            raise WrongIndexError(self.path)
        if (row >= sizes[part]).any():
            raise WrongIndexError(self.path)
        return sha256, part, row


def opened(path: Path) -> Level | None:
    """Return the level at `path`; None, with a warning, where it is damaged."""
    try:
        if digest_of_file(path) != path.stem:
            log.warning("%s: this index is damaged, and not used.", path)
            return None
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            parts = json.loads(file.schema.metadata[PARTS])
            return Level(path, {str(name): int(rows) for name, rows in parts.items()})
    except OSError:  # its owner has just merged it with others
        return None
    except (AttributeError, KeyError, TypeError, ValueError, pa.ArrowException):
        log.warning("%s: this is no index, and not used.", path)
        return None


def levels_of(shelf: Shelf, scratch: Path, wrong: Collection[Path] = ()) -> list[Level]:
    """Return levels that cover every part of `shelf`: those of its index without the `wrong` files,
    and new ones in the folder `scratch` for parts that it lacks."""
    paths = [path for path in sorted(shelf.levels.glob("*.arrow")) if path not in wrong]
    levels = [level for path in paths if (level := opened(path))]  # without damaged ones
    return levels + levels_of_parts(_missing(shelf, levels), scratch)


def keep_index(store: Path, recipe: str) -> None:
    """Bring the index of this user's parts of `recipe` up to date.

    Raises:
        OSError: where the store cannot be written.
    """
    while True:
        try:
            return _keep_index(store, recipe)
        except WrongIndexError as error:
            pass_over(error.path, store)


def pass_over(path: Path, store: Path) -> None:
    """Warn that the index file `path` is wrong; remove it if it is of this user's parts."""
    is_own = path.is_relative_to(own_folder(store))
    remedy = "it is removed" if is_own else "it is not used, and its owner can remove it"
    log.warning("%s; %s.", WrongIndexError(path), remedy)
    if is_own:
        path.unlink(missing_ok=True)


def _keep_index(store: Path, recipe: str) -> None:
    shelf = Shelf(own_folder(store) / recipe)
    if not shelf.folder.is_dir():
        return
    open_folder(shelf.levels, store)
    before = sorted(shelf.levels.glob("*.arrow"))
    levels = [level for path in before if (level := opened(path))]
    with tempfile.TemporaryDirectory(dir=shelf.levels, prefix=".new.") as name:
        levels += levels_of_parts(_missing(shelf, levels), Path(name))
        levels = _grown(levels, shelf.parts().keys(), Path(name))
        for level in levels:
            if level.path.parent != shelf.levels:
                with publishing(shelf.levels / level.path.name, store) as new:
                    level.path.rename(new)
    for path in {*before} - {shelf.levels / level.path.name for level in levels}:
        path.unlink(missing_ok=True)


def _missing(shelf: Shelf, levels: Iterable[Level]) -> dict[str, Path]:
    covered = set[str]().union(*(level.parts for level in levels))
    return {name: path for name, path in shelf.parts().items() if name not in covered}


def levels_of_parts(parts: Mapping[str, Path], folder: Path) -> list[Level]:
    """Write levels of `parts`. A part that cannot be read is left out; a run that takes it reports
    that."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = Progress(log, "indexing", "parts")
    levels: list[Level] = []
    names: dict[str, int] = {}
    held: list[Entries] = []
    for count, (name, path) in enumerate(parts.items(), 1):
        with suppress(OSError, pa.ArrowException, KeyError, ValueError):
            sha256, reasons = read_columns(path)
            held.append(_entries(sha256, reasons, len(names)))
            names[name] = len(sha256)
        if sum(names.values()) >= ENTRIES_AT_ONCE:
            levels.append(_written(folder, names, _cut(held)))
            names, held = {}, []
        shown.at(count, len(parts))
    if names:
        levels.append(_written(folder, names, _cut(held)))
    return levels


def _entries(sha256: Digests, reasons: pa.Array, part: int) -> Entries:
    """Return the entries of the good rows of a part. The number of a row is its position after
    sorting by sha256, with failed rows counted."""
    order = order_of(sha256)
    is_good = np.asarray(reasons.is_null())[order]
    rows = np.flatnonzero(is_good).astype(np.int32)
    return sha256[order][is_good], np.full(len(rows), part, np.int32), rows


def _cut(held: Sequence[Entries]) -> Iterator[Entries]:
    sha256, part, row = joined(held)
    first_byte = np.ascontiguousarray(sha256).view(np.uint8)[::32]
    edges = np.searchsorted(first_byte, np.arange(NUM_BUCKETS + 1))
    for start, end in itertools.pairwise(edges):
        yield sha256[start:end], part[start:end], row[start:end]


def joined(several: Sequence[Entries]) -> Entries:
    """Return all entries, sorted by sha256; those of one payload keep their order."""
    sha256, part, row = (np.concatenate(column) for column in zip(*several, strict=True))
    order = np.argsort(beginnings(sha256), kind="stable")
    in_order = sha256[order]
    if (in_order[1:] < in_order[:-1]).any():  # the first eight bytes are rarely equal
        order = np.argsort(sha256, kind="stable")
    return sha256[order], part[order], row[order]


def _written(folder: Path, parts: Mapping[str, int], buckets: Iterable[Entries]) -> Level:
    path = folder / "new"
    schema = LEVEL.with_metadata({PARTS: json.dumps(parts).encode()})
    with pa.ipc.new_file(str(path), schema) as file:
        for sha256, part, row in buckets:
            keys = pa.Array.from_buffers(
                pa.binary(32), len(sha256), [None, pa.py_buffer(np.ascontiguousarray(sha256))]
            )
            arrays = [keys, pa.array(part, pa.int32()), pa.array(row, pa.int32())]
            file.write_batch(pa.record_batch(arrays, schema=schema))
    return Level(path.rename(folder / f"{digest_of_file(path)}.arrow"), dict(parts))


def _grown(levels: Iterable[Level], there: Collection[str], folder: Path) -> list[Level]:
    """Return the levels after those of similar size were merged in `folder`, without parts that are
    not `there` any more."""
    left = sorted(levels, key=lambda level: level.size)
    together: list[Level] = []
    while left and left[0].size <= GROWTH * sum(level.size for level in together or left[:1]):
        together.append(left.pop(0))
    if len(together) < 2:
        return together + left
    parts: dict[str, int] = {}
    numbers = []
    for level in together:
        new = [name for name in level.parts if name in there and name not in parts]
        numbers.append(level.numbered({name: n for n, name in enumerate(new, len(parts))}))
        parts |= {name: level.parts[name] for name in new}

    def buckets() -> Iterator[Entries]:
        for bucket in range(NUM_BUCKETS):
            yield chosen(zip(together, numbers, strict=True), bucket)

    return [_written(folder, parts, buckets()), *left]


def chosen(levels: Iterable[tuple[Level, Numbers]], bucket: int) -> Entries:
    """Return the entries of a bucket in all levels, of the parts that have numbers."""
    return joined([level.chosen(bucket, numbers) for level, numbers in levels])


def find(sha256: Digests, entries: Entries) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the positions of those of the sorted, distinct `sha256` that have an entry, and the
    part and row of the first entry of each."""
    keys, part, row = entries
    if not len(keys):
        return (np.empty(0, np.int64),) * 3
    first, wanted = beginnings(keys), beginnings(sha256)
    at = np.minimum(np.searchsorted(first, wanted), len(keys) - 1)
    is_there = keys[at] == sha256
    doubtful = np.flatnonzero(~is_there & (first[at] == wanted))  # the same first eight bytes
    at[doubtful] = np.minimum(np.searchsorted(keys, sha256[doubtful]), len(keys) - 1)
    is_there[doubtful] = keys[at[doubtful]] == sha256[doubtful]
    where = np.flatnonzero(is_there)
    return where, part[at[where]].astype(np.int64), row[at[where]].astype(np.int64)
