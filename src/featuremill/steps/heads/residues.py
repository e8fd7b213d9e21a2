"""Residues with labels and vectors: what a head for residues learns from and is measured by.

All residues measure it, as they stand in the parts of the run, some at a time. Memory holds the
letters of the labelled records, and the vectors of at most MOST_LEARNT residues, drawn evenly: the
fits learn from these. A fold has whole groups of records.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill import features
from featuremill.features import Failure, Listed, Matrix, Parts
from featuremill.kit.arrays import matrices
from featuremill.kit.errors import UserError
from featuremill.kit.ids import ID_ALONE, IdColumns
from featuremill.kit.runs import Settings
from featuremill.kit.text import Progress
from featuremill.steps.heads import card, labels
from featuremill.steps.heads.computed import Choices, Read, origin_of, read
from featuremill.steps.heads.examples import Chosen, Examples, Gathered, refuse_unfit
from featuremill.steps.heads.figures import FOLDS
from featuremill.steps.heads.fitting import Rows, Tensors
from featuremill.steps.heads.joined import Lacking
from featuremill.steps.heads.labels import UNLABELLED, Numbers
from featuremill.steps.heads.network import logits
from featuremill.steps.transfer.search.recipe import Recipe

MOST_LEARNT = 2**16
"""Residues that the fits learn from, of all records together."""
AT_ONCE = 2**15
"""Residues whose vectors are in memory together."""
REMEDY = "name the letter in the mask"
log = logging.getLogger("featuremill.head")


class Residues(NamedTuple):
    """The labelled residues, all of them."""

    parts: Parts
    row_R: npt.NDArray[np.int64]
    """Of the parts, by record."""
    numbers_R: list[Numbers]
    """The number of the class of each residue, by record."""


def gather(chosen: Chosen) -> tuple[Gathered, Residues]:
    """Return the labelled records that have vectors of residues, with the residues to learn from.

    Raises:
        UserError: the run or the labels cannot be used.
    """
    run = _only_run(chosen)
    parts = open_residues(run, chosen.vectors[0] if chosen.vectors else None)
    planned = features.Planned(run)
    assert chosen.labels
    found, num_empty, used = labels.read_letters(
        chosen.labels, chosen.column, chosen.group, chosen.id_column, planned
    )
    row_of: dict[str, int] = {}
    for some, rows in parts.records():
        row_of |= {id: row for id, row in zip(some, rows.tolist(), strict=True) if id in found}
    if not row_of:
        raise labels.without_features(found, used.file, planned.name, planned.ids_of(np.arange(1)))
    for id, row in row_of.items():
        num_residues = int(parts.num_of_row[row])
        labels.refuse_length(id, found[id], num_residues, planned.name, used.file)
    sha256_of_id = {id: sha256 for id, sha256 in planned.digests() if id in found}
    examples = Examples.of(row_of, sha256_of_id, found)
    classes = labels.letters_of(found, examples.ids, chosen.mask, used.file)
    numbers = [labels.numbers_of(label.name, classes) for label in examples.labels]
    _refuse_few(numbers, examples.groups_R, classes, used)
    residues = Residues(parts, np.array([row_of[id] for id in examples.ids]), numbers)
    learnt, record_N = drawn(residues, examples, len(classes), chosen.seed)
    reason = f"it has no vectors of residues; {planned.name}/failed.tsv has the reason"
    missing = [Lacking(id, planned.name, reason) for id in found if id not in row_of]
    num_labelled = sum(int((own != UNLABELLED).sum()) for own in numbers)
    part = card.Part(
        width=parts.column.width,
        column=parts.column.name,
        recipe=parts.recipe,
        settings=parts.settings,
        run=planned.name,
    )
    counts = {
        "records": len(examples.ids),
        "groups": len(np.unique(examples.groups_R)),
        "residues": num_labelled,
        "residues_learnt": len(record_N),
        "residues_masked": sum(map(len, numbers)) - num_labelled,
        "missing": len(missing),
        "rows_without_label": num_empty,
    }
    gathered = Gathered(
        examples, learnt, record_N, classes, used, [part], planned.id_columns, missing, counts
    )
    return gathered, residues


def refuse_ahead(chosen: Chosen, parts: Sequence[Listed]) -> None:
    """Refuse labels of residues that are of no planned record, of too few records, or more than
    there are residues: before there are vectors.

    Raises:
        UserError: as `train` does.
    """
    run, planned = _only_run(chosen), parts[0]
    if not isinstance(planned, features.Planned) or not chosen.labels:
        return
    arguments = chosen.labels, chosen.column, chosen.group, chosen.id_column
    found, _, used = labels.read_letters(*arguments, planned, None)
    row_of = planned.rows_of(found)
    if not row_of:
        raise labels.without_features(found, used.file, str(run), planned.ids_of(np.arange(1)))
    lengths = planned.records_of(np.array([*row_of.values()], np.int64))
    for id, row in row_of.items():
        if len(found[id].name) > (longest := lengths[row].length):  # fewer may be cut
            labels.refuse_length(id, found[id], longest, str(run), used.file)
    classes = labels.letters_of(found, [*row_of], chosen.mask, used.file)
    numbers = [labels.numbers_of(found[id].name, classes) for id in row_of]
    _refuse_few(numbers, np.array([found[id].group for id in row_of]), classes, used)


def _refuse_few(
    numbers: Sequence[Numbers],
    groups_R: npt.NDArray[np.str_],
    classes: Sequence[str],
    used: card.TableUsed,
) -> None:
    """Raise UserError where classes or groups are too few: by a row for each class of a record."""
    present = [np.unique(own[own != UNLABELLED]) for own in numbers]
    record_N = np.repeat(np.arange(len(present)), [*map(len, present)])
    if not len(record_N):
        raise UserError(f"{used.file}: all labels of records with vectors are masked; label some.")
    y_N = np.concatenate(present).astype(np.int64)
    rows = Rows(np.empty((len(y_N), 0)), y_N, groups_R[record_N], np.arange(len(y_N)), len(classes))
    refuse_unfit(rows, record_N, classes, used, REMEDY)


def _only_run(chosen: Chosen) -> Path:
    if len(chosen.runs) != 1 or len(chosen.vectors) > 1:
        raise UserError(
            "--task per_residue: a head for residues takes one column of one set of features; name "
            "one."
        )
    if chosen.fragments or not chosen.labels:
        raise UserError(
            "--task per_residue: labels of residues are of records, in a table or a FASTA file; "
            "name it with --labels."
        )
    return chosen.runs[0]


def open_residues(run: Path, column: str | None) -> Parts:
    """Open the column of vectors of residues.

    Raises:
        UserError: there is none, or there are several and no choice.
    """
    parts = features.open_parts(run, column)
    if not parts.column.is_per_residue:
        raise UserError(
            f"{run}: {parts.column.name} has one vector a record, and a head for residues takes "
            "one a residue; compute those (for proteins: per_residue: true in the options)."
        )
    return parts


def drawn(
    residues: Residues, examples: Examples, num_classes: int, seed: int
) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Draw the residues to learn from, evenly over all; return them and the record of each."""
    is_labelled_M = np.concatenate(residues.numbers_R) != UNLABELLED
    sizes = [*map(len, residues.numbers_R)]
    record_N = np.repeat(np.arange(len(sizes)), sizes)[is_labelled_M]
    within_N = np.concatenate([*map(np.arange, sizes)])[is_labelled_M]
    y_N = np.concatenate(residues.numbers_R)[is_labelled_M].astype(np.int64)
    if len(y_N) > MOST_LEARNT:
        random = np.random.default_rng(seed)
        some = np.sort(random.choice(len(y_N), MOST_LEARNT, replace=False, shuffle=False))
        record_N, within_N, y_N = record_N[some], within_N[some], y_N[some]
    x_NF = residues.parts.take(residues.row_R[record_N], within_N)
    groups_N, payload_N = examples.groups_R[record_N], examples.payload_R[record_N]
    return Rows(x_NF, y_N, groups_N, payload_N, num_classes), record_N


def folds_of_records(gathered: Gathered) -> npt.NDArray[np.int64]:
    """Return the fold of each record: that of its group. Groups of which nothing was drawn are
    spread over the folds."""
    _, group_R = np.unique(gathered.examples.groups_R, return_inverse=True)
    fold_of_group = np.arange(int(group_R.max()) + 1) % FOLDS
    fold_of_group[group_R[gathered.record_N]] = gathered.rows.folds(0)
    return fold_of_group[group_R]


def pieces(rows: npt.NDArray[np.int64], parts: Parts) -> Iterator[tuple[int, int]]:
    """Yield slices of `rows` with about AT_ONCE residues each, at least one row."""
    ends = np.cumsum(parts.num_of_row[rows])
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + AT_ONCE, "right")))
        yield start, end
        start = end


def predicted_by(
    residues: Residues, folds_R: npt.NDArray[np.int64], heads: Sequence[Tensors]
) -> list[npt.NDArray[np.int64]]:
    """Return the number of the class of each residue, by record: by the head of its fold."""
    predicted: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)] * len(folds_R)
    progress, num_done = Progress(log, "judging"), 0
    for fold, head in enumerate(heads):
        here = np.flatnonzero(folds_R == fold)
        for start, end in pieces(residues.row_R[here], residues.parts):
            some = here[start:end]
            vectors, sizes = residues.parts.of_rows(residues.row_R[some])
            numbers = np.split(logits(head, vectors).argmax(1), np.cumsum(sizes)[:-1])
            for record, own in zip(some.tolist(), numbers, strict=True):
                predicted[record] = own
            num_done += len(some)
            progress.at(num_done, len(folds_R))
    return predicted


def letters(numbers: npt.NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return the letter of each residue."""
    return "".join(classes[number] for number in numbers.tolist())


class Vectors(NamedTuple):
    """The vectors of the residues of a record."""

    id: str
    sha256: str
    vectors: Matrix
    """Shape (residues, width)."""


class Source(Protocol):
    """Records with vectors of residues: of a run, or computed here."""

    name: str
    column: str
    width: int
    recipe: str | None
    settings: Settings | None
    id_columns: IdColumns

    def records(self) -> Iterator[Vectors]:
        """Yield the records in the order of the input."""

    def lacking(self) -> Iterator[Lacking]:
        """Yield the records without vectors, after all others."""


class OfRun:
    """Those of a finished run."""

    def __init__(self, run: Path, column: str | None) -> None:
        self._parts = open_residues(run, column)
        self._planned = features.Planned(run)
        self.name, self.column = self._planned.name, self._parts.column.name
        self.width: int = self._parts.column.width
        self.recipe: str | None = self._parts.recipe
        self.settings: Settings | None = self._parts.settings
        self.id_columns = self._planned.id_columns
        self._met: set[str] = set()

    def records(self) -> Iterator[Vectors]:
        sha256_of = dict(self._planned.digests())
        progress = Progress(log, "predicting residues")
        for ids, rows in self._parts.records():
            for start, end in pieces(rows, self._parts):
                vectors, sizes = self._parts.of_rows(rows[start:end])
                own = np.split(vectors, np.cumsum(sizes)[:-1])
                for id, one in zip(ids[start:end], own, strict=True):
                    self._met.add(id)
                    yield Vectors(id, sha256_of[id], one)
                progress.at(len(self._met), self._planned.num_rows)

    def lacking(self) -> Iterator[Lacking]:
        reason = f"it has no vectors of residues; {self.name}/failed.tsv has the reason"
        for id, _ in self._planned.digests():
            if id not in self._met:
                yield Lacking(id, self.name, reason)
        for failure in self._planned.failures():
            yield Lacking(failure.id, self.name, reason)


class OfFile:
    """Those of the records of a file, computed by the recipe of a head."""

    id_columns = ID_ALONE

    def __init__(self, folder: Path, part: card.Part, path: Path, choices: Choices) -> None:
        origin = origin_of(folder, part, path)
        self.name, self.column, self.width = str(path), origin.column, part.width
        self.recipe, self.settings = part.recipe, part.settings
        self._recipe = Recipe(origin, choices.device, choices.weights, log)
        self._of: Read = read(path, self._recipe.records(path))
        self._failures: dict[int, Failure] = dict(self._of.refused)

    def records(self) -> Iterator[Vectors]:
        progress, good = Progress(log, "computing and predicting residues"), self._of.good
        start = 0
        while start < len(good):
            end, num_residues = start, 0
            while end < len(good) and num_residues < AT_ONCE:
                num_residues += len(good[end].payload)
                end += 1
            yield from self._piece(start, end)
            progress.at(end, len(good))
            start = end

    def _piece(self, start: int, end: int) -> Iterator[Vectors]:
        some = self._of.good[start:end]
        found: dict[int, Matrix] = {}

        def refuse(place: int, why: str) -> None:
            record = some[place]
            failure = Failure(record.id, record.source, str(record.line), "failed", why)
            self._failures[self._of.places[start + place]] = failure

        payloads = [record.payload for record in some]
        for places, values in self._recipe.batches(payloads, refuse):
            vectors = matrices(pa.chunked_array([values.column(self.column)]))
            for equal, one in zip(places, vectors, strict=True):
                found |= dict.fromkeys(equal, one)
        for place, record in enumerate(some):
            if place in found:
                sha256 = hashlib.sha256(record.payload).hexdigest()
                yield Vectors(record.id, sha256, found[place])

    def lacking(self) -> Iterator[Lacking]:
        for _, failure in sorted(self._failures.items()):
            yield Lacking(failure.id, self.name, f"{failure.status}: {failure.reason}")
