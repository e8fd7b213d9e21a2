"""Labelled residues and their vectors, to train and to measure a head for residues.

Fits learn from at most MOST_LEARNT residues, drawn evenly. All residues measure the head; their
vectors are read from the parts of the run in blocks. A fold has whole groups of records.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import Matrix, Parts
from featuremill.kit.arrays import matrices
from featuremill.kit.errors import UserError
from featuremill.kit.ids import ID_ALONE, IdColumns
from featuremill.kit.tables import without_features
from featuremill.kit.text import Progress
from featuremill.steps.heads import card, labels
from featuremill.steps.heads.computed import Choices, NewRecords, origin_of
from featuremill.steps.heads.examples import (
    Examples,
    Gathered,
    Training,
    labelled,
    numbered,
    sha256s_of,
)
from featuremill.steps.heads.fitting import Rows
from featuremill.steps.heads.joined import Lacking, Report
from featuremill.steps.heads.labels import UNLABELLED, Numbers
from featuremill.steps.heads.network import logits
from featuremill.steps.transfer.recipe import Recipe

MOST_LEARNT = 2**16
"""Largest number of residues that fits learn from."""
AT_ONCE = 2**15
"""Number of residues whose vectors are in memory together."""
log = logging.getLogger("featuremill.head")


class Residues(NamedTuple):
    """All residues of the labelled records."""

    parts: Parts
    row_R: npt.NDArray[np.int64]
    """The row of each record in the parts."""
    numbers_R: list[Numbers]
    """For each record, the class numbers of its residues."""


def gather(training: Training) -> tuple[Gathered, Residues]:
    """Return the labelled records that have vectors of residues, with the residues to learn from.

    Raises:
        UserError: if the run or the labels cannot be used.
    """
    head, run = training.head, training.runs[0]
    if len(training.runs) != 1 or len(head.vectors) > 1:
        raise UserError(
            "--task per_residue: a head for residues takes one column of one set of features; name "
            "one."
        )
    if training.fragments or not head.labels:
        raise UserError(
            "--task per_residue: labels of residues are of records, in a table or a FASTA file; "
            "name it with --labels."
        )
    parts = open_residues(run, head.vectors[0] if head.vectors else None)
    planned = features.Planned(run)
    of_id, num_empty, used = labelled(training, [planned], log)
    row_of: dict[str, int] = {}
    for ids, rows_of_ids in parts.records():
        pairs = zip(ids, rows_of_ids.tolist(), strict=True)
        row_of |= {id: row for id, row in pairs if id in of_id}
    if not row_of:
        raise without_features(used.file, of_id, [planned])
    for id, row in row_of.items():
        num_residues = int(parts.num_of_row[row])
        labels.refuse_length(id, of_id[id], num_residues, planned.name, used.file)
    examples = Examples.in_order(row_of, sha256s_of(planned, of_id), of_id)
    classes, numbers_R = numbered(of_id, examples.ids, head, used)
    residues = Residues(parts, np.array([row_of[id] for id in examples.ids]), numbers_R)
    rows, record_N = drawn(residues, examples, len(classes), training.seed)
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
    id_columns = planned.id_columns
    return Gathered(
        examples, rows, record_N, classes, used, [_part(parts)], id_columns, missing, counts
    ), residues


def _part(parts: Parts) -> card.Part:
    return card.Part(
        width=parts.column.width,
        column=parts.column.name,
        recipe=parts.recipe,
        settings=parts.settings,
        run=str(parts.root),
    )


def open_residues(run: Path, column: str | None) -> Parts:
    """Open the column of vectors of residues.

    Raises:
        UserError: if there is none, or there are several and `column` is None.
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
    """Draw the residues to learn from, evenly over all; return them and their record indices."""
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


def _ranges(ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of records with about AT_ONCE residues; `ends` are cumulative residue counts."""
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + AT_ONCE, "right")))
        yield start, end
        start = end


def _pieces(
    rows: npt.NDArray[np.int64], parts: Parts
) -> Iterator[tuple[slice, Matrix, npt.NDArray[np.int64]]]:
    """Yield slices of `rows`, the vectors of their residues, and the number of residues of each."""
    for start, end in _ranges(np.cumsum(parts.num_of_row[rows])):
        yield slice(start, end), *parts.of_rows(rows[start:end])


def predicted_by(
    residues: Residues, folds_R: npt.NDArray[np.int64], heads: Sequence[card.Tensors]
) -> list[npt.NDArray[np.int64]]:
    """Return the predicted class numbers of residues, by record: by the head of its fold."""
    predicted: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)] * len(folds_R)
    progress, num_done = Progress(log, "measuring"), 0
    for fold, head in enumerate(heads):
        of_fold = np.flatnonzero(folds_R == fold)
        for some, vectors, sizes in _pieces(residues.row_R[of_fold], residues.parts):
            numbers = np.split(logits(head, vectors).argmax(1), np.cumsum(sizes)[:-1])
            for record, own in zip(of_fold[some].tolist(), numbers, strict=True):
                predicted[record] = own
            num_done += len(numbers)
            progress.at(num_done, len(folds_R))
    return predicted


def letters(numbers: npt.NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return the class letters of residues as one string."""
    return "".join(classes[number] for number in numbers.tolist())


class Block(NamedTuple):
    """Some records with the vectors of their residues."""

    ids: Sequence[str]
    sha256s: Sequence[str]
    vectors: Matrix
    """Shape (residues of all records, width)."""
    sizes: npt.NDArray[np.int64]
    """Number of residues of each record."""


class Source(NamedTuple):
    """Records with vectors of residues: of a run, or computed here."""

    part: card.Part
    id_columns: IdColumns
    blocks: Callable[[Report], Iterator[Block]]
    """A function that yields records in the order of the input, then reports those without any."""


def of_run(run: Path, column: str | None) -> Source:
    """Return the residues of a finished run."""
    parts, planned = open_residues(run, column), features.Planned(run)

    def blocks(report: Report) -> Iterator[Block]:
        sha256_of = dict(planned.digests())
        progress = Progress(log, "predicting residues")
        for ids, rows in parts.records():
            for some, vectors, sizes in _pieces(rows, parts):
                yield Block(ids[some], [sha256_of.pop(id) for id in ids[some]], vectors, sizes)
                progress.at(planned.num_rows - len(sha256_of), planned.num_rows)
        for id in (*sha256_of, *(failure.id for failure in planned.failures())):
            report(_lacking(id, planned.name))

    return Source(_part(parts), planned.id_columns, blocks)


def of_file(folder: Path, part: card.Part, path: Path, choices: Choices) -> Source:
    """Return the residues of the records in a file; they are computed by the recipe of a head."""
    origin = origin_of(folder, part, path)
    new = NewRecords(path, Recipe(origin, choices.device, choices.weights, log))

    def blocks(report: Report) -> Iterator[Block]:
        progress, good, start = Progress(log, "computing and predicting residues"), new.good, 0
        ends = np.cumsum([len(record.payload) for record in good])
        for start, end in _ranges(ends):
            of_index: dict[int, Matrix] = {}
            for indices, values in new.batches(start, end):
                vectors = matrices(values.column(origin.column))
                for equal, own in zip(indices, vectors, strict=True):
                    of_index |= dict.fromkeys(equal, own)
            if computed := sorted(of_index):
                some = [good[start + index] for index in computed]
                lots = [of_index[index] for index in computed]
                sha256s = [hashlib.sha256(record.payload).hexdigest() for record in some]
                ids, sizes = [record.id for record in some], np.array([*map(len, lots)])
                yield Block(ids, sha256s, np.concatenate(lots), sizes)
            progress.at(end, len(good))
        for failure in new.failures():
            report(Lacking(failure.id, str(path), f"{failure.status}: {failure.reason}"))

    return Source(part.model_copy(update={"run": str(path)}), ID_ALONE, blocks)
