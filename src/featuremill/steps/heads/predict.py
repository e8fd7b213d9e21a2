"""predict: the class, the number or the letters of each record by its features, with scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill import features, inputs
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering
from featuremill.kit.ids import IdColumns
from featuremill.kit.runs import Settings
from featuremill.kit.text import counted, listed, one_line, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.heads import card, held_out, network, residues, threshold
from featuremill.steps.heads.card import Tensors
from featuremill.steps.heads.computed import Choices, Vectors, open_computed
from featuremill.steps.heads.joined import (
    CHOOSING,
    Joined,
    Lacking,
    Source,
    lacking_writer,
    spread,
)
from featuremill.steps.heads.virnucpro import open_files

__all__ = ["missing_of"]
LETTERS = "labels"
"""The column of letters in a table of predictions."""
MOST_DIFFERENCES = 3
"""Settings that a message lists if two recipes differ in many."""
log = logging.getLogger("featuremill.head")


class Predicted(NamedTuple):
    """The predictions of some records; or those of the residues of one record."""

    ids: Sequence[str]
    texts: Sequence[Sequence[str]]
    """The cells between the id and the scores, such as the class."""
    scores_NC: npt.NDArray[np.float64]
    """A row for each record, or for each residue."""
    seen: Sequence[str]
    """Whether the head was trained on each record."""


Report = Callable[[Lacking], object]
"""Gets each record that has no prediction."""


def missing_of(output: Path) -> Path:
    """Return the path of the list of records without a prediction."""
    return output.with_suffix(".missing.tsv")


def predict(
    folder: Path,
    runs: Sequence[Path],
    output: Path,
    columns: Sequence[str] = (),
    takes_any_recipe: bool = False,
    choices: Choices = Choices(),  # noqa: B008  (it is a constant)
    probabilities: Path | None = None,
) -> tuple[int, int]:
    """Write the predictions of the head in `folder` for `runs` to `output`, and the records without
    one beside it. Records of the training get the scores of heads that did not see their group.
    Files of records among the `runs` are computed first, by the recipes of the head. The scores of
    each residue go to `probabilities`. Return the numbers of records with and without a prediction.

    Raises:
        UserError: the head, the features or an output cannot be used.
    """
    head, tensors = card.read(folder)
    is_of_residues = head.task == "per_residue"
    if is_of_residues and output.suffix != ".tsv":
        raise UserError(f"{output}: letters of residues go to a .tsv; give a name that ends so.")
    if output.suffix not in (".tsv", ".parquet"):
        raise UserError(
            f"{output}: predictions are a .tsv or a .parquet; give a name that ends so."
        )
    if probabilities and not is_of_residues:
        raise UserError(
            "--probabilities: this is of heads for residues; the scores of records are in --output."
        )
    if probabilities and probabilities.suffix != ".parquet":
        raise UserError(f"{probabilities}: probabilities are a .parquet; give a name that ends so.")
    if is_of_residues:
        source = _opened_residues(runs, columns, head, folder, choices)
        parts: Sequence[Source | residues.Source] = [source]
        predicted_by = partial(_of_residues, source)
    else:
        parts = sources = _opened(runs, columns, head, folder, choices)
        predicted_by = partial(_of_records, sources)
    _refuse_other_widths(parts, head, folder)
    if not takes_any_recipe:
        _refuse_other_recipes(parts, head, folder)
    num_predicted = num_seen = num_missing = 0
    with ExitStack() as stack:
        enter = stack.enter_context
        path, lacking_path = (
            enter(delivering(output, is_named=True)),
            enter(delivering(missing_of(output))),
        )
        id_columns = parts[0].id_columns
        lacking_file = enter(lacking_path.open("w", encoding="utf-8", newline=""))
        write_lacking = lacking_writer(lacking_file, id_columns)
        if output.suffix == ".tsv":
            file = enter(path.open("w", encoding="utf-8", newline=""))
            writers = [_tsv(file, head, id_columns)]
        else:
            writers = [enter(_Parquet(path, head, id_columns))]
        if probabilities:
            scores_path = enter(delivering(probabilities, is_named=True))
            writers.append(enter(_Lists(scores_path, head, id_columns)))

        def report(lacking: Lacking) -> None:
            nonlocal num_missing
            num_missing += 1
            write_lacking(lacking)

        for some in predicted_by(folder, head, tensors, report):
            for write in writers:
                write(some)
            num_predicted += len(some.ids)
            num_seen += some.seen.count(held_out.YES)
        if not num_predicted:
            raise UserError(
                f"{listed(str(run) for run in runs)}: no record has all the features that {folder} "
                "takes; see that these are runs of the same records, with the same ids."
            )
    log.info("%s: %s", output, records(num_predicted))
    if num_seen:
        log.warning(
            "%s was trained on %s of these: their %s are held out, each by a head that did not "
            "see the record's group (%s: %s).",
            folder,
            records(num_seen),
            "letters" if is_of_residues else "scores",
            held_out.COLUMN,
            held_out.YES,
        )
    if num_missing:
        log.warning(
            "%s no prediction: %s lists them, with the reasons.",
            counted(num_missing, "record has", "records have"),
            missing_of(output),
        )
    return num_predicted, num_missing


def _of_records(
    sources: Sequence[Source], folder: Path, head: card.Card, tensors: Tensors, report: Report
) -> Iterator[Predicted]:
    """Yield the predictions of records by their features side by side, in the order of the first
    source."""
    joined = Joined(sources)
    recall = held_out.Seen(held_out.read(folder, head), sources[0])
    for ids, vectors in joined.blocks(report):
        scores_NC = network.logits(tensors, vectors)
        if head.task != "regression":
            scores_NC = network.softmax(scores_NC)
        scores_NC, seen = recall.held_out(ids, scores_NC)
        names: Sequence[Sequence[str]] = [()] * len(ids)
        if head.classes:
            names = [(head.classes[n],) for n in threshold.classes_of(head, scores_NC)]
        yield Predicted(ids, names, scores_NC, seen)
    for lacking in chain(joined.not_in_first(), joined.failed()):
        report(lacking)


def _of_residues(
    source: residues.Source, folder: Path, head: card.Card, tensors: Tensors, report: Report
) -> Iterator[Predicted]:
    """Yield the letters of each record, by a head that did not see it or a copy: that of its fold,
    if the head was trained on it."""
    by_fold: dict[int | None, dict[str, npt.NDArray[Any]]] = {}
    for name, tensor in tensors.items():
        prefix, is_of_fold, rest = name.rpartition(".")
        fold = int(prefix.removeprefix("fold_")) if is_of_fold else None
        by_fold.setdefault(fold, {})[rest] = tensor
    table = pq.read_table(held_out.checked(folder, head), columns=["sha256", "fold"])
    fold_of = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    for record in source.records():
        fold = fold_of.get(record.sha256)
        scores_NC = network.softmax(network.logits(by_fold[fold], record.vectors))
        letters = residues.letters(scores_NC.argmax(1), head.classes)
        seen = held_out.NO if fold is None else held_out.YES
        yield Predicted([record.id], [(letters,)], scores_NC, [seen])
    for lacking in source.lacking():
        report(lacking)


def _opened_residues(
    runs: Sequence[Path],
    columns: Sequence[str],
    head: card.Card,
    folder: Path,
    choices: Choices,
) -> residues.Source:
    if len(runs) != 1 or len(columns) > 1:
        raise UserError(
            f"{folder}: this head takes one column of one set of features; name one run, or one "
            "file of records."
        )
    (run,), (part,) = runs, head.features
    if _has_records(run):
        return residues.OfFile(folder, part, run, choices)
    return residues.OfRun(run, columns[0] if columns else part.column)


def _opened(
    runs: Sequence[Path],
    columns: Sequence[str],
    head: card.Card,
    folder: Path,
    choices: Choices,
) -> list[Source]:
    """Return the features in the order of `runs`. VirNucPro's files of one layout are one set of
    features, at the position of the first file. A single file of records is that of all
    features."""
    if len(runs) == 1 and _has_records(runs[0]):
        runs = [*runs] * len(head.features)
    opened = open_files([run for run in runs if run.is_file() and not _has_records(run)])
    sources: list[Vectors | Path] = []
    for run in runs:
        source = opened.get(run, run)
        if isinstance(source, Path) or source not in sources:
            sources.append(source)
    is_merged = bool(opened) and {source.column for source in opened.values()} == {"merged"}
    if len(sources) != len(head.features) and not (is_merged and len(sources) == 1):
        raise UserError(
            f"{folder}: this head takes {_features_of(head)}, and {len(sources)} are given; name "
            "those that it takes, in that order."
        )
    wanted = spread(columns, len(sources)) if columns else [part.column for part in head.features]
    to_compute: dict[Path, list[card.Part]] = {}
    for source, part in zip(sources, head.features, strict=False):
        if isinstance(source, Path) and _has_records(source):
            to_compute.setdefault(source, []).append(part)
    computed = {path: iter(own) for path, own in open_computed(folder, to_compute, choices).items()}
    return [
        source
        if isinstance(source, Vectors)
        else next(computed[source])
        if source in computed
        else features.open(source, column, choosing=CHOOSING)
        for source, column in zip(sources, wanted, strict=False)
    ]


def _has_records(path: Path) -> bool:
    """Return whether `path` is a file of records, and not of features."""
    return path.is_file() and bool(inputs.evident_format(path))


def _features_of(head: card.Card) -> str:
    """Return in words the features that a head takes."""
    texts = [
        f"{part.width:,} numbers" + (f" ({part.column})" if part.column else "")
        for part in head.features
    ]
    return listed(texts) + (" side by side" if len(texts) > 1 else "")


def _refuse_other_widths(parts: Sequence[card.Recorded], head: card.Card, folder: Path) -> None:
    here, wanted = [part.width for part in parts], [part.width for part in head.features]
    is_merged = len(parts) == 1 and parts[0].column == "merged"
    if here != wanted and not (is_merged and here == [sum(wanted)]):
        widths = listed(f"{part.width:,} ({part.name}, {part.column})" for part in parts)
        raise UserError(
            f"{folder}: this head takes {_features_of(head)}, and the features given have "
            f"{widths}; name those that it was made for, in that order."
        )


def _refuse_other_recipes(parts: Sequence[card.Recorded], head: card.Card, folder: Path) -> None:
    """Raise UserError where features were computed otherwise than those of a head."""
    for part, known in zip(parts, head.features, strict=False):
        if part.recipe is not None and (part.recipe, part.column) == (known.recipe, known.column):
            continue
        theirs, ours = (
            "an unknown one" if source.recipe is None else f"{source.recipe} ({source.column})"
            for source in (part, known)
        )
        others = differences(part.settings, known.settings)
        raise UserError(
            f"{part.name}: the recipe of its features is {theirs}, and {folder} was made with "
            f"{ours}{others}, so that scores may mean nothing; compute the features by the head's "
            "recipe, or let these be taken with --any-recipe."
        )


def differences(ours: Settings | None, theirs: Settings | None) -> str:
    """Return in words how two recipes differ; "" if unknown."""
    if not ours or not theirs:
        return ""
    here, there = (
        {**content.pop("options", {}), **content} for content in (ours.as_json(), theirs.as_json())
    )
    differing = [
        f"{name} {here.get(name)} and not {there.get(name)}"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    shown, more = differing[:MOST_DIFFERENCES], len(differing) - MOST_DIFFERENCES
    return f" (here {listed([*shown, *[f'{more} more'] * (more > 0)])})" if differing else ""


Write = Callable[[Predicted], object]
"""Writes some predictions."""


def _columns(head: card.Card) -> list[str]:
    """Return the columns between the id and the scores."""
    return [LETTERS] if head.task == "per_residue" else ["class"] if head.classes else []


def _tsv(file: Any, head: card.Card, id_columns: IdColumns) -> Write:
    """Return the writer of a table of text, of which a head for residues has no scores."""
    columns = head.columns if head.task != "per_residue" else []
    table = TsvWriter(file, [*id_columns.names, *_columns(head), *columns, held_out.COLUMN])

    def write(some: Predicted) -> None:
        scores = some.scores_NC.tolist() if columns else [()] * len(some.ids)
        for id, texts, own, seen in zip(some.ids, some.texts, scores, some.seen, strict=True):
            table.row([*id_columns.cells(id), *texts, *(f"{score:.9g}" for score in own), seen])

    return write


class _Parquet:
    """Writes predictions, a row a record."""

    def __init__(self, path: Path, head: card.Card, id_columns: IdColumns) -> None:
        self._id_columns, self._head = id_columns, head
        self._schema = pa.schema(self._fields(), metadata=head.metadata)
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")

    def _fields(self) -> dict[str, pa.DataType]:
        texts = dict.fromkeys([*self._id_columns.names, *_columns(self._head)], pa.string())
        scores = dict.fromkeys(map(one_line, self._head.columns), pa.float64())
        return {**texts, **scores, held_out.COLUMN: pa.string()}

    def __enter__(self) -> Write:
        return self._write

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()

    def _write(self, some: Predicted) -> None:
        cells = zip(map(self._id_columns.cells, some.ids), some.texts, strict=True)
        texts = zip(*([*ids, *own] for ids, own in cells), strict=True)
        arrays = [*map(pa.array, texts), *map(pa.array, some.scores_NC.T.copy())]
        self._file.write_table(pa.table([*arrays, pa.array(some.seen)], schema=self._schema))


class _Lists(_Parquet):
    """Writes the scores of residues: a row a record, a list a class; some residues at a time."""

    def __init__(self, path: Path, head: card.Card, id_columns: IdColumns) -> None:
        super().__init__(path, head, id_columns)
        self._rows: list[dict[str, Any]] = []
        self._num_residues = 0

    def _fields(self) -> dict[str, pa.DataType]:
        scores = dict.fromkeys(self._head.columns, pa.list_(pa.float32()))
        return {**dict.fromkeys(self._id_columns.names, pa.string()), **scores}

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def _write(self, some: Predicted) -> None:
        cells = zip(self._id_columns.names, self._id_columns.cells(some.ids[0]), strict=True)
        scores = zip(self._head.columns, some.scores_NC.T.astype(np.float32), strict=True)
        self._rows.append({**dict(cells), **dict(scores)})
        self._num_residues += len(some.scores_NC)
        if self._num_residues >= residues.AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._file.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows, self._num_residues = [], 0
