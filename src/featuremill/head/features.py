"""Features of several runs side by side, joined by id, in bounded memory.

The first run is read from its beginning to its end. Of each of the others memory holds 17 bytes a
record: a hash of its id and its row. A row is taken for a record only once the id that stands there
was read and is the same, so no id meets another's vector whatever the hashes are. Nothing is
padded: an id that one run lacks is told of, with the reason where that run knows one.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from featuremill.base.errors import UserError
from featuremill.base.progress import Progress
from featuremill.base.text import clipped
from featuremill.base.words import counted, listed
from featuremill.search.opening import Searched, open_results
from featuremill.store import command_line
from featuremill.store.plan import Settings

BLOCK_BYTES = 2**25
"""Vectors of the first run that are joined at a time."""
NOT_THERE = "it has no such record"
NOWHERE = -1
Matrix = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
log = logging.getLogger("featuremill.head")


class Features(Protocol):
    """One vector a record, by id."""

    name: str
    """What people call it: the run's folder, or a file."""
    column: str
    width: int
    """Numbers in a vector."""
    num_rows: int
    recipe: str | None
    """None where nobody knows it."""
    settings: Settings | None
    """What the recipe is the digest of."""

    def blocks(self) -> Iterator[tuple[list[str], Matrix]]:
        """Yield the ids and the vectors (rows, width) of all records, in order."""

    def ids_of(self, rows: Rows) -> list[str]:
        """Return the ids that stand in `rows`."""

    def take(self, rows: Rows) -> Matrix:
        """Return the vectors (rows, width) that stand in `rows`."""

    def digests(self) -> Iterator[tuple[str, str]]:
        """Yield the id and the payload's sha256 of all records; nothing where nobody knows it."""

    def failures(self) -> dict[str, str]:
        """Return why records have no vector, by id."""


class RunFeatures:
    """The pooled features of a finished run."""

    def __init__(self, searched: Searched) -> None:
        self._searched = searched
        self.name = str(searched.folder.root)
        self.column = searched.table.column.name
        self.width = searched.table.column.width
        self.num_rows = searched.num_rows
        self.recipe: str | None = searched.results.recipe
        self.settings: Settings | None = searched.results.settings

    def blocks(self) -> Iterator[tuple[list[str], Matrix]]:
        enough = max(1, BLOCK_BYTES // (self.width * self._searched.vectors.dtype.itemsize))
        first, lot = 0, list[Matrix]()
        for start, vectors in self._searched.vectors.blocks(enough):
            lot.append(vectors)
            end = start + len(vectors)
            if end - first >= enough or end == self.num_rows:
                yield self.ids_of(np.arange(first, end)), np.concatenate(lot)
                first, lot = end, []

    def ids_of(self, rows: Rows) -> list[str]:
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        found = np.empty(len(rows), object)
        for group in self._searched.table.groups:
            if len(places := group.rows_in(ascending)):
                wanted = pa.array(ascending[places] - group.first_row)
                found[order[places]] = group.read(["id"])["id"].take(wanted).to_pylist()
        ids: list[str] = found.tolist()
        return ids

    def take(self, rows: Rows) -> Matrix:
        return self._searched.vectors.take(rows)

    def digests(self) -> Iterator[tuple[str, str]]:
        for group in self._searched.table.groups:
            table = group.read(["id", "sha256"])
            yield from zip(table["id"].to_pylist(), table["sha256"].to_pylist(), strict=True)

    def failures(self) -> dict[str, str]:
        path = self._searched.place.root / "failed.tsv"
        if not path.exists():  # early versions, or somebody's tidying
            return {}
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t")
            return {row["id"]: f"{row['status']}: {row['reason']}" for row in rows}


def open_run(root: Path, column: str | None) -> RunFeatures:
    """Open the features of the run in `root`: the vectors `column`, or the only ones.

    Raises:
        UserError: when the run is not finished or has no such vectors.
    """
    searched = open_results(root, column, False, "--feature")
    if searched.results.partial:
        raise UserError(
            f"{root}: this run is not finished, and a head is for whole results; let it come to "
            f"its end ({command_line.again(root)})."
        )
    return RunFeatures(searched)


def spread(columns: Sequence[str], num_runs: int) -> list[str | None]:
    """Return the column of each run: one of `columns` for each, one for all, or none where each run
    has only one.

    Raises:
        UserError: when there are others.
    """
    if len(columns) not in (0, 1, num_runs):
        raise UserError(
            f"--feature: {listed(columns)} are {len(columns)} columns for "
            f"{counted(num_runs, 'run')}; name one for each run, in their order, or one for all."
        )
    return [*columns] if len(columns) == num_runs else [*columns, None][:1] * num_runs


def _hashes(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.fromiter((xxh3_64_intdigest(id.encode()) for id in ids), np.uint64, len(ids))


class Index:
    """Which row of some features is which record's."""

    def __init__(self, features: Features) -> None:
        """Read all ids.

        Raises:
            UserError: when two records have the same one.
        """
        self._features = features
        hashes = [np.empty(0, np.uint64)]
        for start in range(0, features.num_rows, 2**17):
            end = min(features.num_rows, start + 2**17)
            hashes.append(_hashes(features.ids_of(np.arange(start, end))))
        hash_N = np.concatenate(hashes)
        self._order = np.argsort(hash_N, kind="stable")
        self._sorted = hash_N[self._order]
        self.is_met = np.zeros(len(hash_N), bool)
        """Rows that somebody asked for by their id."""
        self._refuse_twins()

    def _refuse_twins(self) -> None:
        equal = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        rows = np.unique(np.concatenate([self._order[equal], self._order[equal + 1]]))
        seen: dict[str, int] = {}
        for id, row in zip(self._features.ids_of(rows), rows.tolist(), strict=True):
            if id in seen:
                raise UserError(
                    f"{self._features.name}: records {seen[id] + 1:,} and {row + 1:,} are both "
                    f"called {clipped(id)!r}, so nobody can tell whose vector is whose; give each "
                    "an id of its own."
                )
            seen[id] = row

    def rows_of(self, ids: Sequence[str]) -> Rows:
        """Return the row of each id, NOWHERE for one that is not there."""
        found = np.full(len(ids), NOWHERE)
        asked, wanted = np.array(ids, object), _hashes(ids)
        places = np.searchsorted(self._sorted, wanted)
        left = np.arange(len(ids))
        while True:
            left = left[places[left] < len(self._sorted)]
            left = left[self._sorted[places[left]] == wanted[left]]
            if not len(left):
                break
            rows = self._order[places[left]]
            is_same = np.array(self._features.ids_of(rows), object) == asked[left]
            found[left[is_same]] = rows[is_same]
            left = left[~is_same]  # another id with the same hash: look at the next one
            places[left] += 1
        self.is_met[found[found != NOWHERE]] = True
        return found


class Lacking(NamedTuple):
    """A record that has no vector in one of the runs."""

    id: str
    run: str
    """Where it has none."""
    reason: str


class Joined:
    """Features side by side: those records that have all of them, in the order of the first."""

    def __init__(self, parts: Sequence[Features], wanted: Container[str] | None = None) -> None:
        """Read the ids of all but the first; `wanted` are the only ids of interest."""
        self._parts, self._wanted = parts, wanted
        self._others = [Index(part) for part in parts[1:]]
        self._failures = [part.failures() for part in parts]
        self.width = sum(part.width for part in parts)
        self.num_unwanted = 0
        """Records of the first that are of no interest, once all blocks are read."""

    def blocks(self, tell: Callable[[Lacking], object]) -> Iterator[tuple[list[str], Matrix]]:
        """Yield ids and vectors (rows, sum of widths); `tell` hears of each record that is lacking
        in one of the others.

        Raises:
            UserError: when a number is not finite.
        """
        first, num_read = self._parts[0], 0
        progress = Progress(log, "joining features" if self._others else "reading features")
        for ids, vectors in first.blocks():
            num_read += len(ids)
            if self._wanted is not None:
                of_interest = np.array([id in self._wanted for id in ids], bool)
                self.num_unwanted += int((~of_interest).sum())
                vectors = vectors[of_interest]
                ids = [id for id, is_one in zip(ids, of_interest, strict=True) if is_one]
            rows = [other.rows_of(ids) for other in self._others]
            for number, of_other in enumerate(rows, 1):
                for place in np.flatnonzero(of_other == NOWHERE):
                    tell(self._lacking(ids[place], number))
            whole = np.ones(len(ids), bool)
            for of_other in rows:
                whole &= of_other != NOWHERE
            ids = [id for id, is_whole in zip(ids, whole, strict=True) if is_whole]
            lots = [vectors[whole]]
            others = zip(self._parts[1:], rows, strict=True)
            lots += [part.take(of_other[whole]) for part, of_other in others]
            for part, lot in zip(self._parts, lots, strict=True):
                _refuse_not_finite(part, ids, lot)
            if ids:
                yield ids, lots[0] if len(lots) == 1 else np.concatenate(lots, axis=1)
            progress.at(num_read, first.num_rows)

    def not_in_first(self) -> Iterator[Lacking]:
        """Yield the records that others have and the first lacks, once all blocks are read."""
        for number, other in enumerate(self._others, 1):
            rows = np.flatnonzero(~other.is_met)
            for start in range(0, len(rows), 2**17):
                ids = self._parts[number].ids_of(rows[start : start + 2**17])
                known = np.zeros(len(ids), bool)
                for earlier in self._others[: number - 1]:  # these told of it already
                    known |= earlier.rows_of(ids) != NOWHERE
                for place in np.flatnonzero(~known):
                    yield self._lacking(ids[place], 0)

    def failed(self) -> Iterator[Lacking]:
        """Yield the failed and refused records of all that nobody was told of yet, each once."""
        for number, failures in enumerate(self._failures):
            for id in list(failures):
                yield self._lacking(id, number)
                for others in self._failures[number + 1 :]:
                    others.pop(id, None)

    def first_id(self) -> str:
        """Return an id that the first has."""
        return self._parts[0].ids_of(np.arange(1))[0]

    def lacking_in_first(self, id: str, otherwise: str) -> Lacking:
        """Return what there is to say of an id that the first has not."""
        return self._lacking(id, 0, otherwise)

    def _lacking(self, id: str, number: int, otherwise: str = NOT_THERE) -> Lacking:
        reason = self._failures[number].pop(id, otherwise)
        return Lacking(id, self._parts[number].name, reason)


def _refuse_not_finite(part: Features, ids: Sequence[str], vectors: Matrix) -> None:
    if not np.isfinite(vectors).all():
        place = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise UserError(
            f"{part.name}: the vector of record {clipped(ids[place])!r} in {part.column} has a "
            "number that is not finite, of which no score can be made; leave that record out, or "
            "have its features computed anew."
        )
