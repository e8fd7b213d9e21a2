"""predict: the class, the number or the letters of each record by its features, with scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
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
Scores = npt.NDArray[np.float64]
Tensors = Mapping[str, npt.NDArray[Any]]
log = logging.getLogger("featuremill.head")


class Counts(NamedTuple):
    """Counts of the records."""

    predicted: int
    missing: int


class Predicted(NamedTuple):
    """The predictions of some records; or those of the residues of one record."""

    ids: Sequence[str]
    texts: Sequence[Sequence[str]]
    """The cells between the id and the scores, such as the class."""
    scores_NC: Scores
    """Of the records, or of the residues."""
    seen: Sequence[str]
    """Whether the head was trained on each record."""


Tell = Callable[[Lacking], object]
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
) -> Counts:
    """Write the predictions of the head in `folder` for `runs` to `output`, and the records without
    one beside it. Records of the training get the scores of heads that did not see their group.
    Files of records among the `runs` are computed first, by the recipes of the head. The scores of
    each residue go to `probabilities`.

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
    names = [LETTERS] if is_of_residues else ["class"] if head.classes else []
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
    id_columns = parts[0].id_columns
    num_predicted = num_seen = num_missing = 0
    with ExitStack() as stack:
        enter = stack.enter_context
        path, lacking_path = (
            enter(delivering(output, is_named=True)),
            enter(delivering(missing_of(output))),
        )
        lacking_file = enter(lacking_path.open("w", encoding="utf-8", newline=""))
        write_lacking = lacking_writer(lacking_file, id_columns)
        writers: list[Callable[[Predicted], object]] = []
        if output.suffix == ".tsv":
            file = enter(path.open("w", encoding="utf-8", newline=""))
            scores = [] if is_of_residues else head.columns
            table = TsvWriter(file, [*id_columns.names, *names, *scores, held_out.COLUMN])
            writers.append(_tsv(table, id_columns, bool(scores)))
        else:
            writers.append(enter(_Parquet(path, head, id_columns, names)))
        if probabilities:
            scores_path = enter(delivering(probabilities, is_named=True))
            writers.append(enter(_Lists(scores_path, head, id_columns)))

        def tell(lacking: Lacking) -> None:
            nonlocal num_missing
            num_missing += 1
            write_lacking(lacking)

        for some in predicted_by(folder, head, tensors, tell):
            for write in writers:
                write(some)
            num_predicted += len(some.ids)
            num_seen += sum(seen == held_out.YES for seen in some.seen)
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
    return Counts(num_predicted, num_missing)


def _of_records(
    sources: Sequence[Source], folder: Path, head: card.Card, tensors: Tensors, tell: Tell
) -> Iterator[Predicted]:
    """Yield the predictions of records by their features side by side, in the order of the first
    source."""
    joined = Joined(sources)
    recall = held_out.Seen(held_out.read(folder, head), sources[0])
    for ids, vectors in joined.blocks(tell):
        scores_NC = network.logits(tensors, vectors)
        if head.task != "regression":
            scores_NC = network.softmax(scores_NC)
        scores_NC, seen = recall.held_out(ids, scores_NC)
        names: Sequence[Sequence[str]] = [()] * len(ids)
        if head.classes:
            names = [(head.classes[n],) for n in threshold.classes_of(head, scores_NC)]
        yield Predicted(ids, names, scores_NC, seen)
    for lacking in chain(joined.not_in_first(), joined.failed()):
        tell(lacking)


def _of_residues(
    source: residues.Source, folder: Path, head: card.Card, tensors: Tensors, tell: Tell
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
        tell(lacking)


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
    """Return the features in the order of `runs`. VirNucPro's files of one layout are one of them,
    at the place of the first file. A single file of records is that of all features."""
    if len(runs) == 1 and _has_records(runs[0]):
        runs = [*runs] * len(head.features)
    opened = open_files([run for run in runs if run.is_file() and not _has_records(run)])
    sources: list[Vectors | Path] = []
    for run in runs:
        source = opened.get(run, run)
        if isinstance(source, Path) or source not in sources:
            sources.append(source)
    is_merged = len(sources) == 1 and all(one.column == "merged" for one in opened.values())
    is_merged &= bool(opened)
    if len(sources) != len(head.features) and not is_merged:
        raise UserError(
            f"{folder}: this head takes {_told(head)}, and {len(sources)} are given; name those "
            "that it takes, in that order."
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


def _told(head: card.Card) -> str:
    """Return in words the features that a head takes."""
    texts = [
        f"{part.width:,} numbers" + (f" ({part.column})" if part.column else "")
        for part in head.features
    ]
    return listed(texts) + (" side by side" if len(texts) > 1 else "")


def _refuse_other_widths(parts: Sequence[card.Recorded], head: card.Card, folder: Path) -> None:
    given, wanted = [part.width for part in parts], [part.width for part in head.features]
    is_merged = len(parts) == 1 and parts[0].column == "merged"
    if given != wanted and not (is_merged and given == [sum(wanted)]):
        widths = listed(f"{part.width:,} ({part.name}, {part.column})" for part in parts)
        raise UserError(
            f"{folder}: this head takes {_told(head)}, and the features given have {widths}; name "
            "those that it was made for, in that order."
        )


def _refuse_other_recipes(parts: Sequence[card.Recorded], head: card.Card, folder: Path) -> None:
    """Raise UserError where features were made otherwise than those of a head."""
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
    one, other = _flat(ours), _flat(theirs)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    differing = [f"{name} {one.get(name)} and not {other.get(name)}" for name in names]
    more = (
        [f"{len(differing) - MOST_DIFFERENCES} more"] if len(differing) > MOST_DIFFERENCES else []
    )
    return f" (here {listed([*differing[:MOST_DIFFERENCES], *more])})" if differing else ""


def _flat(settings: Settings) -> dict[str, Any]:
    content = settings.as_json()
    return {**content.pop("options", {}), **content}


def _tsv(
    table: TsvWriter, id_columns: IdColumns, has_scores: bool
) -> Callable[[Predicted], object]:
    """Return what writes rows to a table of text."""

    def write(some: Predicted) -> None:
        scores = some.scores_NC.tolist() if has_scores else [()] * len(some.ids)
        for id, texts, own, seen in zip(some.ids, some.texts, scores, some.seen, strict=True):
            table.row([*id_columns.cells(id), *texts, *(f"{score:.9g}" for score in own), seen])

    return write


class _Parquet:
    """Writes predictions, a row a record."""

    def __init__(
        self, path: Path, head: card.Card, id_columns: IdColumns, names: Sequence[str]
    ) -> None:
        self._id_columns = id_columns
        columns = dict.fromkeys([*id_columns.names, *names], pa.string())
        columns |= dict.fromkeys(map(one_line, head.columns), pa.float64())
        columns[held_out.COLUMN] = pa.string()
        self._schema = pa.schema(columns, metadata=head.metadata)
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> Callable[[Predicted], object]:
        return self._write

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, some: Predicted) -> None:
        cells = zip(map(self._id_columns.cells, some.ids), some.texts, strict=True)
        texts = zip(*([*ids, *own] for ids, own in cells), strict=True)
        arrays = [*map(pa.array, texts), *map(pa.array, some.scores_NC.T.copy())]
        self._file.write_table(pa.table([*arrays, pa.array(some.seen)], schema=self._schema))


class _Lists:
    """Writes the scores of residues: a row a record, a list a class; some residues at a time."""

    def __init__(self, path: Path, head: card.Card, id_columns: IdColumns) -> None:
        self._id_columns, self._columns = id_columns, head.columns
        of_scores = dict.fromkeys(head.columns, pa.list_(pa.float32()))
        columns = {**dict.fromkeys(self._id_columns.names, pa.string()), **of_scores}
        self._schema = pa.schema(columns, metadata=head.metadata)
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._num_residues = 0

    def __enter__(self) -> Callable[[Predicted], object]:
        return self._write

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def _write(self, some: Predicted) -> None:
        cells = zip(self._id_columns.names, self._id_columns.cells(some.ids[0]), strict=True)
        scores = zip(self._columns, some.scores_NC.T.astype(np.float32), strict=True)
        self._rows.append({**dict(cells), **dict(scores)})
        self._num_residues += len(some.scores_NC)
        if self._num_residues >= residues.AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._file.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows, self._num_residues = [], 0
