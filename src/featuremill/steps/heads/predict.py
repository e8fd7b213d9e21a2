"""featuremill head predict: write the class, number or letters of each record, with scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
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
from featuremill.steps.heads import card, network, residues, threshold
from featuremill.steps.heads.card import Tensors
from featuremill.steps.heads.computed import Choices, Vectors, open_computed, open_files
from featuremill.steps.heads.joined import (
    CHOOSING,
    Joined,
    Lacking,
    Report,
    Source,
    lacking_writer,
    part_of,
)
from featuremill.steps.heads.section import spread

__all__ = ["missing_of"]
LETTERS = "labels"
"""The column of letters in a table of predictions."""
MOST_DIFFERENCES = 3
"""Largest number of differing settings in a message."""
log = logging.getLogger("featuremill.head")


class Predicted(NamedTuple):
    """The predictions of some records, or of their residues."""

    ids: Sequence[str]
    texts: Sequence[Sequence[str]]
    """The cells between the id and the scores, such as the class."""
    scores_NC: npt.NDArray[np.float64]
    """A row for each record, or for each residue."""
    seen: Sequence[str]
    """For each record, whether the head was trained on it: YES, NO or UNKNOWN."""
    sizes: npt.NDArray[np.int64] | None = None
    """Number of residues of each record, if scores are of residues."""


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
) -> None:
    """Write the predictions of the head in `folder` for `runs` to `output`, and a list of records
    without a prediction beside it. Records of the training data get held-out scores. Features of
    files of records among the `runs` are computed first, by the recipes of the head. The scores of
    each residue go to `probabilities`.

    Raises:
        UserError: if the head, the features or an output cannot be used.
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
        if len(runs) != 1 or len(columns) > 1:
            raise UserError(
                f"{folder}: this head takes one column of one set of features; name one run, or "
                "one file of records."
            )
        (run,), (part,) = runs, head.features
        if _has_records(run):
            source = residues.of_file(folder, part, run, choices)
        else:
            source = residues.of_run(run, columns[0] if columns else part.column)
        parts, id_columns = [source.part], source.id_columns
        predicted_by = partial(_of_residues, source)
    else:
        sources = _opened(runs, columns, head, folder, choices)
        parts, id_columns = [*map(part_of, sources)], sources[0].id_columns
        predicted_by = partial(_of_records, sources)
    refuse_other_features(parts, head, folder, takes_any_recipe)
    num_predicted = num_seen = num_missing = 0
    with ExitStack() as stack:
        enter = stack.enter_context
        path = enter(delivering(output, is_named=True))
        lacking_path = enter(delivering(missing_of(output)))
        lacking_file = enter(lacking_path.open("w", encoding="utf-8", newline=""))
        write_lacking = lacking_writer(lacking_file, id_columns)
        table = _tsv if output.suffix == ".tsv" else _parquet
        writers = [enter(table(path, head, id_columns))]
        if probabilities:
            scores_path = enter(delivering(probabilities, is_named=True))
            writers.append(enter(_parquet(scores_path, head, id_columns)))

        def report(lacking: Lacking) -> None:
            nonlocal num_missing
            num_missing += 1
            write_lacking(lacking)

        for some in predicted_by(folder, head, tensors, report):
            for write in writers:
                write(some)
            num_predicted += len(some.ids)
            num_seen += some.seen.count(card.YES)
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
            card.IS_SEEN,
            card.YES,
        )
    if num_missing:
        log.warning(
            "%s no prediction: %s lists them, with the reasons.",
            counted(num_missing, "record has", "records have"),
            missing_of(output),
        )


def training_rows(held_out: card.HeldOut | None, features: Source) -> dict[str, int] | None:
    """Return the row of the held-out scores for each record that the head was trained on; None if
    it is unknown which these are."""
    if held_out is None or features.recipe is None:
        return None
    pairs = zip(held_out.ids, held_out.sha256s, strict=True)
    by_pair = {pair: row for row, pair in enumerate(pairs)}
    # Any copy's score is right: its head was trained without all copies.
    by_sha256 = {sha256: row for (_, sha256), row in by_pair.items()}
    return {
        id: by_pair.get((id, sha256), by_sha256[sha256])
        for id, sha256 in features.digests()
        if sha256 in by_sha256
    }


def _of_records(
    sources: Sequence[Source], folder: Path, head: card.Card, tensors: Tensors, report: Report
) -> Iterator[Predicted]:
    """Yield the predictions of records, in the order of the first source."""
    joined, held_out = Joined(sources), card.read_held_out(folder, head)
    row_of = training_rows(held_out, sources[0])
    for ids, vectors in joined.blocks(report):
        scores_NC, seen = network.logits(tensors, vectors), [card.UNKNOWN] * len(ids)
        if head.task != "regression":
            scores_NC = network.softmax(scores_NC)
        if held_out and row_of is not None:
            rows = np.array([row_of.get(id, -1) for id in ids], np.int64)
            is_seen = rows >= 0
            scores_NC = np.where(is_seen[:, None], held_out.scores_NC[rows], scores_NC)
            seen = [card.YES if is_known else card.NO for is_known in is_seen]
        names: Sequence[Sequence[str]] = [()] * len(ids)
        if head.classes:
            names = [(head.classes[n],) for n in threshold.classes_of(head, scores_NC)]
        yield Predicted(ids, names, scores_NC, seen)
    for lacking in joined.others():
        report(lacking)


def _of_residues(
    source: residues.Source, folder: Path, head: card.Card, tensors: Tensors, report: Report
) -> Iterator[Predicted]:
    """Yield the letters of each record, of training data by the head of the record's fold."""
    by_fold: dict[int | None, dict[str, npt.NDArray[Any]]] = {}
    for name, tensor in tensors.items():
        prefix, is_of_fold, rest = name.rpartition(".")
        fold = int(prefix.removeprefix("fold_")) if is_of_fold else None
        by_fold.setdefault(fold, {})[rest] = tensor
    table = pq.read_table(card.held_out_at(folder, head), columns=["sha256", "fold"])
    fold_of = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    for block in source.blocks(report):
        folds = [fold_of.get(sha256) for sha256 in block.sha256s]
        lots = np.split(block.vectors, np.cumsum(block.sizes)[:-1])
        scores = [
            network.softmax(network.logits(by_fold[fold], own))
            for fold, own in zip(folds, lots, strict=True)
        ]
        letters = [(residues.letters(each.argmax(1), head.classes),) for each in scores]
        seen = [card.NO if fold is None else card.YES for fold in folds]
        yield Predicted(block.ids, letters, np.concatenate(scores), seen, block.sizes)


def _opened(
    runs: Sequence[Path],
    columns: Sequence[str],
    head: card.Card,
    folder: Path,
    choices: Choices,
) -> list[Source]:
    """Return the features in the order of `runs`. Files of VirNucPro with one layout are one set of
    features, at the position of the first file. A single file of records is used for all sets."""
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
    pairs = [*zip(sources, head.features, strict=False)]
    computed: dict[Path, Iterator[Vectors]] = {}
    for path in dict.fromkeys(source for source in sources if isinstance(source, Path)):
        if _has_records(path):
            parts = [part for source, part in pairs if source == path]
            computed[path] = iter(open_computed(folder, path, parts, choices))
    return [
        source
        if isinstance(source, Vectors)
        else next(computed[source])
        if source in computed
        else features.open(source, column, choosing=CHOOSING)
        for source, column in zip(sources, wanted, strict=False)
    ]


def _has_records(path: Path) -> bool:
    """Return whether `path` is a file of records, not of features."""
    return path.is_file() and bool(inputs.evident_format(path))


def _features_of(head: card.Card) -> str:
    texts = [
        f"{part.width:,} numbers" + (f" ({part.column})" if part.column else "")
        for part in head.features
    ]
    return listed(texts) + (" side by side" if len(texts) > 1 else "")


def refuse_other_features(
    parts: Sequence[card.Part], head: card.Card, folder: Path, takes_any_recipe: bool
) -> None:
    """Raise UserError if the features have other widths or recipes than those of the head."""
    here, wanted = [part.width for part in parts], [part.width for part in head.features]
    is_merged = len(parts) == 1 and parts[0].column == "merged"
    if here != wanted and not (is_merged and here == [sum(wanted)]):
        widths = listed(f"{part.width:,} ({part.run}, {part.column})" for part in parts)
        raise UserError(
            f"{folder}: this head takes {_features_of(head)}, and the features given have "
            f"{widths}; name those that it was made for, in that order."
        )
    for part, known in zip(parts, head.features, strict=False):
        settings = part.settings
        is_known = part.recipe is not None or (settings and settings == known.settings)
        is_same = (part.recipe, part.column) == (known.recipe, known.column)
        if takes_any_recipe or (is_known and is_same):
            continue
        unknown = "another one" if settings else "an unknown one"
        actual, expected = (
            f"{each.recipe} ({each.column})" if each.recipe else which
            for each, which in ((part, unknown), (known, "an unknown one"))
        )
        raise UserError(
            f"{part.run}: the recipe of its features is {actual}, and {folder} was made with "
            f"{expected}{_differences(settings, known.settings)}, so that scores may mean nothing; "
            "compute the features by the head's recipe, or let these be taken with --any-recipe "
            "(any_recipe in a config)."
        )


def _differences(actual: Settings | None, expected: Settings | None) -> str:
    """Describe how two recipes differ; "" if unknown."""
    if not actual or not expected:
        return ""
    new, old = (
        {**content.pop("options", {}), **content}
        for content in (actual.as_json(), expected.as_json())
    )
    differing = [
        f"{name} {new.get(name)} and not {old.get(name)}"
        for name in {**new, **old}
        if new.get(name) != old.get(name)
    ]
    shown, more = differing[:MOST_DIFFERENCES], len(differing) - MOST_DIFFERENCES
    return f" (here {listed([*shown, *[f'{more} more'] * (more > 0)])})" if differing else ""


Write = Callable[[Predicted], object]
"""A function that writes some predictions."""


def _columns(head: card.Card) -> list[str]:
    """Return the columns between the id and the scores."""
    return [LETTERS] if head.task == "per_residue" else ["class"] if head.classes else []


@contextmanager
def _tsv(path: Path, head: card.Card, id_columns: IdColumns) -> Iterator[Write]:
    """Write a TSV table; for a head of residues, it has no scores."""
    columns = head.columns if head.task != "per_residue" else []
    with path.open("w", encoding="utf-8", newline="") as file:
        table = TsvWriter(file, [*id_columns.names, *_columns(head), *columns, card.IS_SEEN])

        def write(some: Predicted) -> None:
            scores = some.scores_NC.tolist() if columns else [()] * len(some.ids)
            for id, texts, own, seen in zip(some.ids, some.texts, scores, some.seen, strict=True):
                numbers = (f"{score:.9g}" for score in own)
                table.row([*id_columns.cells(id), *texts, *numbers, seen])

        yield write


@contextmanager
def _parquet(path: Path, head: card.Card, id_columns: IdColumns) -> Iterator[Write]:
    """Write a Parquet file with a row per record: texts, and scores or lists of scores."""
    of_residues = head.task == "per_residue"
    kind = pa.list_(pa.float32()) if of_residues else pa.float64()
    texts, seen = ([], []) if of_residues else (_columns(head), [card.IS_SEEN])
    fields = dict.fromkeys([*id_columns.names, *texts], pa.string())
    fields |= dict.fromkeys(map(one_line, head.columns), kind)
    fields |= dict.fromkeys(seen, pa.string())
    provenance = {"head_sha256": head.sha256, "features": [x.as_json() for x in head.features]}
    metadata = {"featuremill": json.dumps(provenance, sort_keys=True)}
    schema = pa.schema(fields, metadata=metadata)
    with pq.ParquetWriter(path, schema, compression="zstd") as file:

        def write(some: Predicted) -> None:
            arrays = [*map(pa.array, zip(*map(id_columns.cells, some.ids), strict=True))]
            if some.sizes is None:
                arrays += [*map(pa.array, zip(*some.texts, strict=True))]
                arrays += [*map(pa.array, some.scores_NC.T.copy()), pa.array(some.seen)]
            else:
                ends = pa.array(np.append(0, np.cumsum(some.sizes)), pa.int32())
                scores = map(pa.array, some.scores_NC.T.astype(np.float32))
                arrays += [pa.ListArray.from_arrays(ends, score) for score in scores]
            file.write_table(pa.table(arrays, schema=schema))

        yield write
