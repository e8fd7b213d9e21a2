"""Features of the records of a file, computed here by the recipes of a head.

They are what a run of that file has: the same records, refused and failed for the same reasons, and
the same vectors. Payloads and ids are in memory, vectors in temporary files.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from featuremill.features import Failure, Index, Matrix, Rows
from featuremill.kit.arrays import matrix
from featuremill.kit.devices import DeviceChoice
from featuremill.kit.errors import UserError
from featuremill.kit.ids import ID_ALONE
from featuremill.kit.reasons import kind_of
from featuremill.kit.runs import Results, Settings
from featuremill.kit.text import Progress, counted, records
from featuremill.kit.workloads import Record
from featuremill.steps.heads.card import Part
from featuremill.steps.transfer.search.recipe import Origin, Recipe

ROWS_AT_ONCE = 4096
CONFLICT = kind_of("the id stands for two different sequences")
"""The core's reason; a test compares with what a run gives."""
log = logging.getLogger("featuremill.head")


class Choices(NamedTuple):
    """Where to compute."""

    device: DeviceChoice | None = None
    """That of the run on which the head was trained, if not given."""
    weights: Sequence[Path] = ()
    """Files weights/<name>.json, if not where the run has them."""


class Read(NamedTuple):
    """The records of a file, as a run accounts for them."""

    path: Path
    good: list[Record]
    """Each once, in the order of the file."""
    places: list[int]
    """Where each stands among all records of the file."""
    refused: dict[int, Failure]
    """By that place."""


def read(path: Path, found: Iterator[Record]) -> Read:
    """Return the records `found` in `path`. An id that stands for two payloads is refused, and a
    record that is there twice counts once, as in a run."""
    of_id: dict[str, list[tuple[int, Record]]] = {}
    refused, notes, num_read = dict[int, Failure](), Counter[str](), 0
    for place, record in enumerate(found):
        num_read += 1
        if record.reason:
            refused[place] = _without(record, "refused", record.reason)
        else:
            notes.update(filter(None, record.note.split("; ")))
            of_id.setdefault(record.id, []).append((place, record))
    good, places = [], []
    for (first_place, first), *others in of_id.values():
        another = next((other for _, other in others if other.payload != first.payload), None)
        if another is None:
            good.append(first)
            places.append(first_place)
            continue
        for place, one in ((first_place, first), *others):
            other = another if one.payload == first.payload else first
            reason = CONFLICT.reason(f"the other one is at {other.source}:{other.line}")
            refused[place] = _without(one, "refused", reason)
    for note, count in sorted(notes.items()):
        log.info("%s: %s.", counted(count, "record"), note)
    if num_again := num_read - len(good) - len(refused):
        says = counted(num_again, "record is", "records are")
        log.info("%s there again, with the same id and sequence: each counts once.", says)
    return Read(path, good, places, refused)


def _without(record: Record, status: str, reason: str) -> Failure:
    return Failure(record.id, record.source, str(record.line), status, reason)


class Vectors:
    """Vectors of records that are in files, one for each id, read as those of a run."""

    id_columns = ID_ALONE

    def __init__(
        self,
        name: str,
        column: str,
        ids: Sequence[str],
        vectors: Matrix,
        sha256s: Sequence[str] = (),
        failures: Sequence[Failure] = (),
        made: Part | None = None,
        rows: Rows | None = None,
    ) -> None:
        """`made` has the recipe. `sha256s` are those of the payloads; none if unknown. `rows` are
        those of `vectors` that the ids have, if not all.

        Raises:
            UserError: an id occurs twice.
        """
        self.name, self.column = name, column
        self.num_rows, self.width = len(ids), vectors.shape[1]
        self._rows = np.arange(len(ids)) if rows is None else rows
        self.recipe: str | None = made.recipe if made else None
        self.settings: Settings | None = made.settings if made else None
        self._ids, self._vectors, self._sha256s, self._failures = ids, vectors, sha256s, failures
        Index(self)

    def blocks(self) -> Iterator[tuple[list[str], Matrix]]:
        for start in range(0, self.num_rows, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, self.num_rows))
            yield self.ids_of(rows), self.take(rows)

    def ids_of(self, rows: Rows) -> list[str]:
        return [self._ids[row] for row in rows.tolist()]

    def take(self, rows: Rows) -> Matrix:
        return self._vectors[self._rows[rows]]

    def digests(self) -> Iterator[tuple[str, str]]:
        return zip(self._ids, self._sha256s, strict=False)

    def failures(self) -> Iterator[Failure]:
        return iter(self._failures)


def open_computed(
    folder: Path, parts: Mapping[Path, Sequence[Part]], choices: Choices
) -> dict[Path, list[Vectors]]:
    """Return the features of each file: those of each of its `parts` of the head in `folder`.

    Raises:
        UserError: a recipe is unknown or cannot be repeated here, or no record of a file can be
            computed.
    """
    made: dict[Path, list[Vectors]] = {}
    for path, its_parts in parts.items():
        by_recipe: dict[str, list[Part]] = {}
        for part in its_parts:
            by_recipe.setdefault(str(part.recipe), []).append(part)
        done: dict[tuple[str, str | None], Vectors] = {}
        for name, some in by_recipe.items():
            recipe = Recipe(origin_of(folder, some[0], path), choices.device, choices.weights, log)
            of = read(path, recipe.records(path))
            for one in _computed(of, recipe, some):
                done[name, one.column] = one
        made[path] = [done[str(part.recipe), part.column] for part in its_parts]
    return made


def origin_of(folder: Path, part: Part, path: Path) -> Origin:
    """Return what one of the vectors of the head in `folder` was computed by, to do the same with
    the records in `path`.

    Raises:
        UserError: it is not known.
    """
    if part.settings is None or part.column is None:
        config = shlex.quote(path.with_suffix(".yaml").name)
        raise UserError(
            f"{path}: {folder} was imported and does not contain how its features are computed; "
            f"compute them first: featuremill init {shlex.quote(str(path))}, with the model and "
            f"options of the head, then featuremill run {config}, and name the folder of that run "
            "here."
        )
    run = Results(Path(part.run)) if part.run and Path(part.run).is_dir() else None
    return Origin(str(folder), part.settings, part.recipe, part.column, run, run)


def _computed(of: Read, recipe: Recipe, parts: Sequence[Part]) -> list[Vectors]:
    """Return the vectors of all `parts`, which have one recipe."""
    vectors: dict[str, Matrix] = {}
    is_there = np.zeros(len(of.good), bool)
    failures = dict(of.refused)

    def refuse(place: int, why: str) -> None:
        failures[of.places[place]] = _without(of.good[place], "failed", why)

    progress, num_done = Progress(log, "computing features"), 0
    columns = {part.column for part in parts if part.column}
    for places, values in recipe.batches([record.payload for record in of.good], refuse):
        rows = np.array([place for equal in places for place in equal], np.int64)
        of_row = np.repeat(np.arange(len(places)), [len(equal) for equal in places])
        for column in columns:
            found = matrix(values.column(column))
            if column not in vectors:
                vectors[column] = _scratch(len(of.good), found.shape[1], found.dtype)
            vectors[column][rows] = found[of_row]
        is_there[rows] = True
        num_done += len(rows)
        progress.at(num_done, len(of.good))
    without = [failures[place] for place in sorted(failures)]
    if not is_there.any():
        raise nothing_left(of, without)
    rows = np.flatnonzero(is_there)
    good = [of.good[row] for row in rows.tolist()]
    ids = [record.id for record in good]
    sha256s = [hashlib.sha256(record.payload).hexdigest() for record in good]
    return [
        Vectors(str(of.path), part.column, ids, vectors[part.column], sha256s, without, part, rows)
        for part in parts
        if part.column
    ]


def nothing_left(of: Read, failures: Sequence[Failure]) -> UserError:
    """Return the error for a file of which no record has values."""
    first = failures[0]
    return UserError(
        f"{of.path}: none of its {records(len(failures))} has features; the first is "
        f"{first.id or f'at line {first.line}'!r} ({first.status}: {first.reason})."
    )


def _scratch(num_rows: int, width: int, dtype: np.dtype[np.generic]) -> Matrix:
    """Return an array of numbers in a temporary file, which ends with it."""
    file: BinaryIO
    with tempfile.TemporaryFile() as file:
        file.truncate(num_rows * width * dtype.itemsize)
        return np.memmap(file, dtype, "r+", 0, (num_rows, width))
