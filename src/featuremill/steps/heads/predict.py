"""predict: the class of each record by its features, with a score for each class."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from featuremill import features, inputs
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering
from featuremill.kit.ids import IdColumns
from featuremill.kit.runs import Settings
from featuremill.kit.text import counted, listed, one_line, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.heads import card, held_out, network, threshold
from featuremill.steps.heads.computed import Choices, open_computed
from featuremill.steps.heads.joined import (
    CHOOSING,
    Joined,
    Lacking,
    Source,
    lacking_writer,
    spread,
)
from featuremill.steps.heads.virnucpro import FileFeatures, open_files

__all__ = ["missing_of"]
MOST_DIFFERENCES = 3
"""Settings that a message lists if two recipes differ in many."""
log = logging.getLogger("featuremill.head")


class Counts(NamedTuple):
    """Counts of the records."""

    predicted: int
    missing: int


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
) -> Counts:
    """Write the predictions of the head in `folder` for `runs` to `output`, and the records without
    one beside it. Records of the training get the scores of heads that did not see their group.
    Files of records among the `runs` are computed first, by the recipes of the head.

    Raises:
        UserError: the head, the features or the output cannot be used.
    """
    if output.suffix not in WRITERS:
        raise UserError(
            f"{output}: predictions are a .tsv or a .parquet; give a name that ends so."
        )
    head, tensors = card.read(folder)
    parts = _opened(runs, columns, head, folder, choices)
    _refuse_other_widths(parts, head, folder)
    if not takes_any_recipe:
        _refuse_other_recipes(parts, head, folder)
    joined = Joined(parts)
    seen = held_out.Seen(held_out.read(folder, head), parts[0])
    num_predicted = num_missing = 0
    with (
        delivering(output, is_named=True) as temporary,
        delivering(missing_of(output)) as lacking_path,
    ):
        with (
            lacking_path.open("w", encoding="utf-8", newline="") as file,
            WRITERS[output.suffix](temporary, head, joined.id_columns) as write,
        ):
            write_lacking = lacking_writer(file, joined.id_columns)

            def tell(lacking: Lacking) -> None:
                nonlocal num_missing
                num_missing += 1
                write_lacking(lacking)

            for ids, vectors in joined.blocks(tell):
                scores_NC = network.logits(tensors, vectors)
                if head.task != "regression":
                    scores_NC = network.softmax(scores_NC)
                write(ids, *seen.held_out(ids, scores_NC))
                num_predicted += len(ids)
            for lacking in chain(joined.not_in_first(), joined.failed()):
                tell(lacking)
        if not num_predicted:
            raise UserError(
                f"{listed(str(run) for run in runs)}: no record has all the features that {folder} "
                "takes; see that these are runs of the same records, with the same ids."
            )
    log.info("%s: %s", output, records(num_predicted))
    if seen.num_seen:
        log.warning(
            "%s was trained on %s of these: their scores are held out, each by a head that did not "
            "see the record's group (%s: %s).",
            folder,
            records(seen.num_seen),
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
    of_file = {path: files for files in opened for path in files.paths}
    sources: list[FileFeatures | Path] = []
    for run in runs:
        if (source := of_file.get(run, run)) not in opened or source not in sources:
            sources.append(source)
    is_merged = [source.column for source in opened] == ["merged"] and len(sources) == 1
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
        if isinstance(source, FileFeatures)
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


def _refuse_other_widths(parts: Sequence[Source], head: card.Card, folder: Path) -> None:
    given, wanted = [part.width for part in parts], [part.width for part in head.features]
    is_merged = len(parts) == 1 and parts[0].column == "merged"
    if given != wanted and not (is_merged and given == [sum(wanted)]):
        widths = listed(f"{part.width:,} ({part.name}, {part.column})" for part in parts)
        raise UserError(
            f"{folder}: this head takes {_told(head)}, and the features given have {widths}; name "
            "those that it was made for, in that order."
        )


def _refuse_other_recipes(parts: Sequence[Source], head: card.Card, folder: Path) -> None:
    for part, known in zip(parts, head.features, strict=False):
        refuse_other_recipe(part, known, folder)


class Recorded(Protocol):
    """Features that may say how they were made."""

    @property
    def name(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def recipe(self) -> str | None: ...
    @property
    def settings(self) -> Settings | None: ...


def refuse_other_recipe(part: Recorded, known: card.Part, folder: Path) -> None:
    """Raise UserError where features were made otherwise than those of a head."""
    if part.recipe is not None and part.recipe == known.recipe and part.column == known.column:
        return
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


Write = Callable[[Sequence[str], npt.NDArray[np.float64], Sequence[str]], None]
"""Appends rows to a table: ids, scores (N, C), and whether the head was trained on the record."""


def _names(head: card.Card, scores_NC: npt.NDArray[np.float64]) -> Sequence[Sequence[str]]:
    """Return the cell with the class of each record; of a regression, there is none."""
    if not head.classes:
        return [()] * len(scores_NC)
    return [(head.classes[number],) for number in threshold.classes_of(head, scores_NC)]


def _texts(head: card.Card, id_columns: IdColumns) -> list[str]:
    """Return the columns before the scores."""
    return [*id_columns.names, *(["class"] if head.classes else [])]


@contextmanager
def _tsv(path: Path, head: card.Card, id_columns: IdColumns) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = TsvWriter(file, [*_texts(head, id_columns), *head.columns, held_out.COLUMN])

        def write(
            ids: Sequence[str], scores_NC: npt.NDArray[np.float64], seen: Sequence[str]
        ) -> None:
            names = _names(head, scores_NC)
            for id, name, scores, is_seen in zip(ids, names, scores_NC.tolist(), seen, strict=True):
                texts = [*name, *(f"{score:.9g}" for score in scores)]
                table.row([*id_columns.cells(id), *texts, is_seen])

        yield write


@contextmanager
def _parquet(path: Path, head: card.Card, id_columns: IdColumns) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict.fromkeys(_texts(head, id_columns), pa.string())
    columns |= dict.fromkeys(map(one_line, head.columns), pa.float64())
    columns[held_out.COLUMN] = pa.string()
    schema = pa.schema(columns, metadata=head.metadata)
    with pq.ParquetWriter(path, schema, compression="zstd") as file:

        def write(
            ids: Sequence[str], scores_NC: npt.NDArray[np.float64], seen: Sequence[str]
        ) -> None:
            texts = zip(
                *(
                    [*id_columns.cells(id), *name]
                    for id, name in zip(ids, _names(head, scores_NC), strict=True)
                ),
                strict=True,
            )
            arrays = [
                *map(pa.array, texts),
                *map(pa.array, scores_NC.T.copy()),
                pa.array(seen),
            ]
            file.write_table(pa.table(arrays, schema=schema))

        yield write


WRITERS = {".tsv": _tsv, ".parquet": _parquet}
