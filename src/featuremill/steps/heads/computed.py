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
from typing import NamedTuple

import numpy as np
import pyarrow as pa

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
"""The core's reason; a test compares with that of a run."""
log = logging.getLogger("featuremill.head")


class Choices(NamedTuple):
    """Where to compute."""

    device: DeviceChoice | None = None
    """The device; None: that of the run on which the head was trained."""
    weights: Sequence[Path] = ()
    """Files weights/<name>.json, if not where the run has them."""


class NewRecords:
    """The records of a file, accounted for as a run does, and their values by a recipe."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        """Read the file. An id that stands for two payloads is refused, and a record that is there
        twice counts once."""
        self._recipe = recipe
        self.good: list[Record] = []
        """Each record once, in the order of the file."""
        self._positions: list[int] = []
        """The position of each good record among all records of the file."""
        self._failures: dict[int, Failure] = {}
        of_id: dict[str, list[tuple[int, Record]]] = {}
        notes, num_read = Counter[str](), 0
        for position, record in enumerate(recipe.records(path)):
            num_read += 1
            if record.reason:
                self._refuse(position, record, "refused", record.reason)
            else:
                notes.update(filter(None, record.note.split("; ")))
                of_id.setdefault(record.id, []).append((position, record))
        for same_id in of_id.values():
            position, first = same_id[0]
            another = next((other for _, other in same_id if other.payload != first.payload), None)
            if another is None:
                self.good.append(first)
                self._positions.append(position)
                continue
            for position, record in same_id:
                other = another if record.payload == first.payload else first
                reason = CONFLICT.reason(f"the other one is at {other.source}:{other.line}")
                self._refuse(position, record, "refused", reason)
        for note, count in sorted(notes.items()):
            log.info("%s: %s.", counted(count, "record"), note)
        if num_again := num_read - len(self.good) - len(self._failures):
            says = counted(num_again, "record is", "records are")
            log.info("%s there again, with the same id and sequence: each counts once.", says)

    def _refuse(self, position: int, record: Record, status: str, reason: str) -> None:
        failure = Failure(record.id, record.source, str(record.line), status, reason)
        self._failures[position] = failure

    def batches(self, start: int, end: int) -> Iterator[tuple[list[list[int]], pa.RecordBatch]]:
        """Yield the values of good records, and the indices of each row counted from `start`. What
        cannot be computed becomes a failure."""

        def refuse(index: int, reason: str) -> None:
            record = self.good[start + index]
            self._refuse(self._positions[start + index], record, "failed", reason)

        payloads = [record.payload for record in self.good[start:end]]
        yield from self._recipe.batches(payloads, refuse)

    def failures(self) -> list[Failure]:
        """Return the records without values so far, in the order of the file."""
        return [failure for _, failure in sorted(self._failures.items())]


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
        part: Part | None = None,
        rows: Rows | None = None,
    ) -> None:
        """`part` has the recipe. `sha256s` are those of the payloads; none if unknown. `rows` are
        those of `vectors` that the ids have, if not all.

        Raises:
            UserError: an id occurs twice.
        """
        self.name, self.column = name, column
        self.num_rows, self.width = len(ids), vectors.shape[1]
        self._rows = np.arange(len(ids)) if rows is None else rows
        self.recipe: str | None = part.recipe if part else None
        self.settings: Settings | None = part.settings if part else None
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
    opened: dict[Path, list[Vectors]] = {}
    for path, its_parts in parts.items():
        by_recipe: dict[str, list[Part]] = {}
        for part in its_parts:
            by_recipe.setdefault(str(part.recipe), []).append(part)
        by_column: dict[tuple[str, str | None], Vectors] = {}
        for name, some in by_recipe.items():
            recipe = Recipe(origin_of(folder, some[0], path), choices.device, choices.weights, log)
            for vectors in _computed(path, recipe, some):
                by_column[name, vectors.column] = vectors
        opened[path] = [by_column[str(part.recipe), part.column] for part in its_parts]
    return opened


def origin_of(folder: Path, part: Part, path: Path) -> Origin:
    """Return what computed one of the vectors of the head in `folder`, to compute the same of the
    records in `path`.

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


def _computed(path: Path, recipe: Recipe, parts: Sequence[Part]) -> list[Vectors]:
    """Return the vectors of all `parts`, which have one recipe."""
    new = NewRecords(path, recipe)
    vectors: dict[str, Matrix] = {}
    is_there = np.zeros(len(new.good), bool)
    progress, num_done = Progress(log, "computing features"), 0
    columns = {part.column for part in parts if part.column}
    for indices, values in new.batches(0, len(new.good)):
        rows = np.array([index for equal in indices for index in equal], np.int64)
        of_row = np.repeat(np.arange(len(indices)), [len(equal) for equal in indices])
        for column in columns:
            of_column = matrix(values.column(column))
            if column not in vectors:
                vectors[column] = _scratch(len(new.good), of_column.shape[1], of_column.dtype)
            vectors[column][rows] = of_column[of_row]
        is_there[rows] = True
        num_done += len(rows)
        progress.at(num_done, len(new.good))
    failures = new.failures()
    if not is_there.any():
        first = failures[0]
        raise UserError(
            f"{path}: none of its {records(len(failures))} has features; the first is "
            f"{first.id or f'at line {first.line}'!r} ({first.status}: {first.reason})."
        )
    rows = np.flatnonzero(is_there)
    ids = [new.good[row].id for row in rows.tolist()]
    sha256s = [hashlib.sha256(new.good[row].payload).hexdigest() for row in rows.tolist()]
    return [
        Vectors(str(path), part.column, ids, vectors[part.column], sha256s, failures, part, rows)
        for part in parts
        if part.column
    ]


def _scratch(num_rows: int, width: int, dtype: np.dtype[np.generic]) -> Matrix:
    """Return an array of numbers in a temporary file, which ends with it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(num_rows * width * dtype.itemsize)
        return np.memmap(file, dtype, "r+", 0, (num_rows, width))
