"""Residues with labels and vectors: what a head for residues learns from and is measured by.

All residues measure it, as they stand in the parts of the run, some at a time. Memory holds the
letters of the labelled records, and the vectors of at most MOST_LEARNT residues, drawn evenly: the
fits learn from these. A fold has whole groups of records.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill import features
from featuremill.features import Listed, Matrix, Parts
from featuremill.inputs.labels import Label
from featuremill.kit.arrays import matrices
from featuremill.kit.errors import UserError
from featuremill.kit.ids import ID_ALONE, IdColumns
from featuremill.kit.runs import Settings
from featuremill.kit.text import Progress
from featuremill.steps.heads import card, labels
from featuremill.steps.heads.computed import Choices, NewRecords, origin_of
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
    """The row of each record in the parts."""
    numbers_R: list[Numbers]
    """The number of the class of each residue, by record."""


def gather(chosen: Chosen) -> tuple[Gathered, Residues]:
    """Return the labelled records that have vectors of residues, with the residues to learn from.

    Raises:
        UserError: the run or the labels cannot be used.
    """
    run, table = _only_run(chosen)
    parts = open_residues(run, chosen.vectors[0] if chosen.vectors else None)
    planned = features.Planned(run)
    of_id, num_empty, used = labels.read_letters(
        table, chosen.column, chosen.group, chosen.id_column, planned
    )
    row_of: dict[str, int] = {}
    for ids, rows_of_ids in parts.records():
        pairs = zip(ids, rows_of_ids.tolist(), strict=True)
        row_of |= {id: row for id, row in pairs if id in of_id}
    if not row_of:
        raise labels.without_features(of_id, used.file, planned.name, planned.ids_of(np.arange(1)))
    for id, row in row_of.items():
        num_residues = int(parts.num_of_row[row])
        labels.refuse_length(id, of_id[id], num_residues, planned.name, used.file)
    sha256_of_id = {id: sha256 for id, sha256 in planned.digests() if id in of_id}
    examples = Examples.of(row_of, sha256_of_id, of_id)
    classes, numbers_R = _numbered(of_id, examples.ids, chosen.mask, used)
    residues = Residues(parts, np.array([row_of[id] for id in examples.ids]), numbers_R)
    rows, record_N = drawn(residues, examples, len(classes), chosen.seed)
    missing = [_lacking(id, planned.name) for id in of_id if id not in row_of]
    num_labelled = sum(int((numbers != UNLABELLED).sum()) for numbers in numbers_R)
    counts = {
        "records": len(examples.ids),
        "groups": len(np.unique(examples.groups_R)),
        "residues": num_labelled,
        "residues_learnt": len(record_N),
        "residues_masked": sum(map(len, numbers_R)) - num_labelled,
        "missing": len(missing),
        "rows_without_label": num_empty,
    }
    part = card.Part(
        width=parts.column.width,
        column=parts.column.name,
        recipe=parts.recipe,
        settings=parts.settings,
        run=planned.name,
    )
    return Gathered(
        examples, rows, record_N, classes, used, [part], planned.id_columns, missing, counts
    ), residues


def refuse_ahead(chosen: Chosen, parts: Sequence[Listed]) -> None:
    """Refuse labels of residues that are of no planned record, of too few records, or more than
    there are residues: before there are vectors.

    Raises:
        UserError: as `train` does.
    """
    (run, table), planned = _only_run(chosen), parts[0]
    if not isinstance(planned, features.Planned):
        return
    arguments = table, chosen.column, chosen.group, chosen.id_column
    of_id, _, used = labels.read_letters(*arguments, planned, None)
    row_of = planned.rows_of(of_id)
    if not row_of:
        raise labels.without_features(of_id, used.file, str(run), planned.ids_of(np.arange(1)))
    lengths = planned.records_of(np.array([*row_of.values()], np.int64))
    for id, row in row_of.items():
        if len(of_id[id].name) > (longest := lengths[row].length):  # fewer may be cut
            labels.refuse_length(id, of_id[id], longest, str(run), used.file)
    _numbered(of_id, [*row_of], chosen.mask, used)


def _numbered(
    of_id: Mapping[str, Label], ids: Sequence[str], mask: str, used: card.TableUsed
) -> tuple[list[str], list[Numbers]]:
    """Return the classes, and the numbers of the residues of each record.

    Raises:
        UserError: classes or groups are too few.
    """
    classes = labels.letters_of(of_id, ids, mask, used.file)
    numbers_R = [labels.numbers_of(of_id[id].name, classes) for id in ids]
    groups_R = np.array([of_id[id].group for id in ids])
    present = [np.unique(numbers[numbers != UNLABELLED]) for numbers in numbers_R]
    record_N = np.repeat(np.arange(len(present)), [*map(len, present)])
    y_N = np.concatenate(present).astype(np.int64)  # a row for each class of a record
    rows = Rows(np.empty((len(y_N), 0)), y_N, groups_R[record_N], np.arange(len(y_N)), len(classes))
    refuse_unfit(rows, record_N, classes, used, REMEDY)
    return classes, numbers_R


def _only_run(chosen: Chosen) -> tuple[Path, Path]:
    """Return the run and the labels."""
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
    return chosen.runs[0], chosen.labels


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


def _lacking(id: str, run: str) -> Lacking:
    return Lacking(id, run, f"it has no vectors of residues; {run}/failed.tsv has the reason")


def drawn(
    residues: Residues, examples: Examples, num_classes: int, seed: int
) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Draw the residues to learn from, evenly over all; return them and the record of each."""
    sizes, numbers_M = [*map(len, residues.numbers_R)], np.concatenate(residues.numbers_R)
    is_labelled_M = numbers_M != UNLABELLED
    record_N = np.repeat(np.arange(len(sizes)), sizes)[is_labelled_M]
    within_N = np.concatenate([*map(np.arange, sizes)])[is_labelled_M]
    y_N = numbers_M[is_labelled_M].astype(np.int64)
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


def _pieces(
    rows: npt.NDArray[np.int64], parts: Parts
) -> Iterator[tuple[slice, Matrix, npt.NDArray[np.int64]]]:
    """Yield slices of `rows` with about AT_ONCE residues each, at least one row, with the vectors
    of their residues and the ends of the records but the last."""
    ends, start = np.cumsum(parts.num_of_row[rows]), 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + AT_ONCE, "right")))
        vectors, sizes = parts.of_rows(rows[start:end])
        yield slice(start, end), vectors, np.cumsum(sizes)[:-1]
        start = end


def predicted_by(
    residues: Residues, folds_R: npt.NDArray[np.int64], heads: Sequence[Tensors]
) -> list[npt.NDArray[np.int64]]:
    """Return the number of the class of each residue, by record: by the head of its fold."""
    predicted: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)] * len(folds_R)
    progress, num_done = Progress(log, "judging"), 0
    for fold, head in enumerate(heads):
        of_fold = np.flatnonzero(folds_R == fold)
        for some, vectors, ends in _pieces(residues.row_R[of_fold], residues.parts):
            numbers = np.split(logits(head, vectors).argmax(1), ends)
            for record, own in zip(of_fold[some].tolist(), numbers, strict=True):
                predicted[record] = own
            num_done += len(numbers)
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
    """The residues of a finished run."""

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
            for some, vectors, ends in _pieces(rows, self._parts):
                for id, own in zip(ids[some], np.split(vectors, ends), strict=True):
                    self._met.add(id)
                    yield Vectors(id, sha256_of[id], own)
                progress.at(len(self._met), self._planned.num_rows)

    def lacking(self) -> Iterator[Lacking]:
        ids = (id for id, _ in self._planned.digests() if id not in self._met)
        for id in (*ids, *(failure.id for failure in self._planned.failures())):
            yield _lacking(id, self.name)


class OfFile:
    """The residues of the records of a file, computed by the recipe of a head."""

    id_columns = ID_ALONE

    def __init__(self, folder: Path, part: card.Part, path: Path, choices: Choices) -> None:
        origin = origin_of(folder, part, path)
        self.name, self.column, self.width = str(path), origin.column, part.width
        self.recipe, self.settings = part.recipe, part.settings
        self._new = NewRecords(path, Recipe(origin, choices.device, choices.weights, log))

    def records(self) -> Iterator[Vectors]:
        progress, good = Progress(log, "computing and predicting residues"), self._new.good
        start = 0
        while start < len(good):
            end, num_residues = start, 0
            while end < len(good) and num_residues < AT_ONCE:
                num_residues += len(good[end].payload)
                end += 1
            of_index: dict[int, Matrix] = {}
            for indices, values in self._new.batches(start, end):
                vectors = matrices(pa.chunked_array([values.column(self.column)]))
                for equal, own in zip(indices, vectors, strict=True):
                    of_index |= dict.fromkeys(equal, own)
            for index, record in enumerate(good[start:end]):
                if index in of_index:
                    sha256 = hashlib.sha256(record.payload).hexdigest()
                    yield Vectors(record.id, sha256, of_index[index])
            progress.at(end, len(good))
            start = end

    def lacking(self) -> Iterator[Lacking]:
        for failure in self._new.failures():
            yield Lacking(failure.id, self.name, f"{failure.status}: {failure.reason}")
