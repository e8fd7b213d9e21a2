"""predict: a letter for each residue, of a run's records or of those of a file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill import features, inputs
from featuremill.features import Failure, Matrix
from featuremill.kit.arrays import matrices
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering
from featuremill.kit.ids import ID_ALONE, IdColumns
from featuremill.kit.runs import Settings
from featuremill.kit.text import Progress, counted, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.heads import card, held_out, network
from featuremill.steps.heads.computed import Choices, Read, origin_of, read
from featuremill.steps.heads.joined import Lacking, lacking_writer
from featuremill.steps.heads.predict import missing_of, refuse_other_recipe
from featuremill.steps.heads.residues import AT_ONCE, letters, open_residues, pieces
from featuremill.steps.transfer.search.recipe import Recipe

COLUMN = "labels"
"""The column of letters in a table of predictions."""
log = logging.getLogger("featuremill.head")


class One(NamedTuple):
    """A record with vectors of its residues."""

    id: str
    sha256: str
    vectors: Matrix
    """Shape (residues, width)."""


class Residues(Protocol):
    """Vectors of residues: of a run, or computed here."""

    name: str
    column: str
    width: int
    recipe: str | None
    settings: Settings | None
    id_columns: IdColumns

    def records(self) -> Iterator[One]:
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
        self._num_of_record = 0
        self._met: set[str] = set()

    def records(self) -> Iterator[One]:
        sha256_of = dict(self._planned.digests())
        progress = Progress(log, "predicting residues")
        for ids, rows in self._parts.records():
            for start, end in pieces(rows, self._parts):
                vectors, sizes = self._parts.of_rows(rows[start:end])
                own = np.split(vectors, np.cumsum(sizes)[:-1])
                for id, one in zip(ids[start:end], own, strict=True):
                    self._met.add(id)
                    yield One(id, sha256_of[id], one)
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

    def records(self) -> Iterator[One]:
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

    def _piece(self, start: int, end: int) -> Iterator[One]:
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
                yield One(record.id, sha256, found[place])

    def lacking(self) -> Iterator[Lacking]:
        for _, failure in sorted(self._failures.items()):
            yield Lacking(failure.id, self.name, f"{failure.status}: {failure.reason}")


class Heads:
    """A head for residues, and the heads that measured it."""

    def __init__(self, folder: Path) -> None:
        """Read it.

        Raises:
            UserError: there is none.
            IntegrityError: it is damaged or was changed.
        """
        self.card, tensors = card.read(folder)
        self._tensors: dict[int | None, dict[str, npt.NDArray[Any]]] = {}
        for name, tensor in tensors.items():
            prefix, is_of_fold, rest = name.rpartition(".")
            fold = int(prefix.removeprefix("fold_")) if is_of_fold else None
            self._tensors.setdefault(fold, {})[rest] = tensor
        path = held_out.checked(folder, self.card)
        table = pq.read_table(path, columns=["sha256", "fold"])
        pairs = zip(table["sha256"].to_pylist(), table["fold"].to_pylist(), strict=True)
        self._fold_of: Mapping[str, int] = dict(pairs)

    def scores(self, one: One) -> tuple[npt.NDArray[np.float64], str]:
        """Return the scores (residues, C) of a record, by a head that did not see it or a copy, and
        whether the final one has."""
        fold = self._fold_of.get(one.sha256)
        tensors = self._tensors[fold]
        scores_NC = network.softmax(network.logits(tensors, one.vectors))
        return scores_NC, held_out.NO if fold is None else held_out.YES


def predict(
    folder: Path,
    runs: Sequence[Path],
    output: Path,
    columns: Sequence[str],
    takes_any_recipe: bool,
    choices: Choices,
    probabilities: Path | None,
) -> None:
    """Write the letters that the head in `folder` predicts for a run or a file to `output`, the
    records without beside it, and all scores to `probabilities`.

    Raises:
        UserError: the head, the features or an output cannot be used.
    """
    if output.suffix != ".tsv":
        raise UserError(f"{output}: letters of residues go to a .tsv; give a name that ends so.")
    if probabilities and probabilities.suffix != ".parquet":
        raise UserError(f"{probabilities}: probabilities are a .parquet; give a name that ends so.")
    heads = Heads(folder)
    source = _opened(runs, columns, heads.card, folder, choices)
    (part,) = heads.card.features
    if source.width != part.width:
        raise UserError(
            f"{folder}: this head takes {part.width:,} numbers ({part.column}), and {source.name} "
            f"has {source.width:,} ({source.column}); name features that it was made for."
        )
    if not takes_any_recipe:
        refuse_other_recipe(source, part, folder)
    num_predicted = num_seen = num_missing = 0
    with ExitStack() as stack:
        path = stack.enter_context(delivering(output, is_named=True))
        lacking_path = stack.enter_context(delivering(missing_of(output)))
        write_scores: Write = _ignore
        if probabilities:
            scores_path = stack.enter_context(delivering(probabilities, is_named=True))
            write_scores = stack.enter_context(_Scores(scores_path, heads.card, source.id_columns))
        with path.open("w", encoding="utf-8", newline="") as file:
            table = TsvWriter(file, [*source.id_columns.names, COLUMN, held_out.COLUMN])
            for one in source.records():
                scores_NC, seen = heads.scores(one)
                own = letters(scores_NC.argmax(1), heads.card.classes)
                table.row([*source.id_columns.cells(one.id), own, seen])
                write_scores(one.id, scores_NC)
                num_predicted += 1
                num_seen += seen == held_out.YES
        with lacking_path.open("w", encoding="utf-8", newline="") as file:
            write_lacking = lacking_writer(file, source.id_columns)
            for lacking in source.lacking():
                write_lacking(lacking)
                num_missing += 1
        if not num_predicted:
            raise UserError(f"{source.name}: no record of it has vectors of residues.")
    log.info("%s: %s", output, records(num_predicted))
    if num_seen:
        log.warning(
            "%s was trained on %s of these: their letters are held out, each by a head that did "
            "not see the record's group (%s: %s).",
            folder,
            records(num_seen),
            held_out.COLUMN,
            held_out.YES,
        )
    if num_missing:
        log.warning(
            "%s no prediction: %s lists them.",
            counted(num_missing, "record has", "records have"),
            missing_of(output),
        )


def _opened(
    runs: Sequence[Path],
    columns: Sequence[str],
    head: card.Card,
    folder: Path,
    choices: Choices,
) -> Residues:
    if len(runs) != 1 or len(columns) > 1:
        raise UserError(
            f"{folder}: this head takes one column of one set of features; name one run, or one "
            "file of records."
        )
    (run,), (part,) = runs, head.features
    if run.is_file() and inputs.evident_format(run):
        return OfFile(folder, part, run, choices)
    return OfRun(run, columns[0] if columns else part.column)


Write = Callable[[str, npt.NDArray[np.float64]], None]
"""Appends the scores (residues, C) of a record."""


def _ignore(id: str, scores_NC: npt.NDArray[np.float64]) -> None:
    """Write nothing."""


class _Scores:
    """Writes scores: a row a record, a list a class; about AT_ONCE residues at a time."""

    def __init__(self, path: Path, head: card.Card, id_columns: IdColumns) -> None:
        self._id_columns = id_columns
        self._columns = head.columns
        of_scores = dict.fromkeys(head.columns, pa.list_(pa.float32()))
        columns = {**dict.fromkeys(id_columns.names, pa.string()), **of_scores}
        self._schema = pa.schema(columns, metadata=head.metadata)
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._num_residues = 0

    def __enter__(self) -> Write:
        return self._write

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def _write(self, id: str, scores_NC: npt.NDArray[np.float64]) -> None:
        cells = zip(self._id_columns.names, self._id_columns.cells(id), strict=True)
        scores = zip(self._columns, scores_NC.T.astype(np.float32), strict=True)
        self._rows.append({**dict(cells), **dict(scores)})
        self._num_residues += len(scores_NC)
        if self._num_residues >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._file.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows, self._num_residues = [], 0
