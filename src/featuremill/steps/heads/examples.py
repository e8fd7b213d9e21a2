"""The labelled records that a head learns from, and what makes them too few."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import Listed, Matrix
from featuremill.inputs.labels import Label, NamedRecords, by_record
from featuremill.kit.errors import UserError
from featuremill.kit.ids import IdColumns
from featuremill.kit.text import clipped, counted, listed, records
from featuremill.steps.heads import card, labels
from featuremill.steps.heads.card import CONTIG, Task
from featuremill.steps.heads.figures import FOLDS
from featuremill.steps.heads.fitting import Rows, torn
from featuremill.steps.heads.joined import CHOOSING, Joined, Lacking, spread
from featuremill.steps.heads.threshold import Wanted

FEWEST_GROUPS = 3
"""Groups that a class needs: one to measure, one to choose the setting and calibrate, one to
learn."""
log = logging.getLogger("featuremill.head")


class Chosen(NamedTuple):
    """The arguments of `head train`."""

    runs: Sequence[Path]
    vectors: Sequence[str]
    output: Path
    labels: Path | None = None
    """The table; without one, `column` is a column of the sheet of samples."""
    column: str = ""
    group: str | None = None
    fragments: Path | None = None
    """The folder of a translation, if the labels are of its contigs."""
    kind: Literal["logistic", "mlp"] = "logistic"
    seed: int = 0
    threads: int = 1
    id_column: str = ""
    """The table's column of ids, if not found by its name."""
    threshold: Wanted | None = None
    task: Task | None = None
    """None: classification, unless labels look like something else."""
    mask: str = ""
    """Letters that stand for residues without a label."""


class Examples(NamedTuple):
    """Labelled records with features, sorted by their sha256 and then their id, so that no fit
    depends on the order of a run's rows."""

    ids: list[str]
    sha256s: list[str]
    """The sha256 of each payload; copies have the same."""
    labels: list[Label]
    groups_R: npt.NDArray[np.str_]
    payload_R: npt.NDArray[np.int64]
    """The number of each payload."""

    @classmethod
    def of(
        cls, ids: Iterable[str], sha256_of_id: Mapping[str, str], label_of: Mapping[str, Label]
    ) -> Examples:
        """Return the records `ids`, sorted."""
        in_order = [id for _, id in sorted((sha256_of_id[id], id) for id in ids)]
        sha256s = [sha256_of_id[id] for id in in_order]
        of_record = [label_of[id] for id in in_order]
        groups_R = np.array([label.group for label in of_record])
        payload_R = np.unique(sha256s, return_inverse=True)[1]
        return cls(in_order, sha256s, of_record, groups_R, payload_R)

    def rows(self, x_NF: Matrix, task: Task | None) -> tuple[Rows, list[str]]:
        """Return a row for each record, with its features, and the names of the classes."""
        names = [label.name for label in self.labels]
        if task == "regression":
            return Rows(x_NF, np.array([*map(float, names)]), self.groups_R, self.payload_R), []
        classes, y_N = np.unique(names, return_inverse=True)
        return Rows(x_NF, y_N, self.groups_R, self.payload_R, len(classes)), classes.tolist()


class Gathered(NamedTuple):
    """What a head learns from, of runs and labels."""

    examples: Examples
    rows: Rows
    record_N: npt.NDArray[np.int64]
    """The number of the record of each row."""
    classes: list[str]
    used: card.TableUsed
    parts: list[card.Part]
    id_columns: IdColumns
    missing: list[Lacking]
    counts: dict[str, int]
    """Those of a card."""


def gather(chosen: Chosen) -> Gathered:
    """Return the labelled records that have all features.

    Raises:
        UserError: runs or labels cannot be used.
    """
    columns = spread(chosen.vectors, len(chosen.runs))
    parts = [
        features.open(run, column, choosing=CHOOSING)
        for run, column in zip(chosen.runs, columns, strict=True)
    ]
    of_id, num_empty, used = _labelled(chosen, parts, log)
    joined, missing = Joined(parts, of_id), list[Lacking]()
    ids, blocks = list[str](), list[Matrix]()
    for some, vectors in joined.blocks(missing.append):
        ids += some
        blocks.append(vectors)
    if not ids:
        raise _without_features(of_id, used, parts)
    known = {*ids, *(lacking.id for lacking in missing)}
    missing += [
        joined.lacking_in_first(id, f"it has no such record (labelled in {used.file}:{label.line})")
        for id, label in of_id.items()
        if id not in known
    ]
    missing.sort(key=lambda lacking: (of_id[lacking.id].line, lacking.id))
    wanted = set(ids)
    sha256_of_id = {id: sha256 for id, sha256 in parts[0].digests() if id in wanted}
    examples = Examples.of(ids, sha256_of_id, of_id)
    row_of, start = {id: row for row, id in enumerate(examples.ids)}, 0
    x_NF = np.empty((len(ids), joined.width), blocks[0].dtype)
    for block in blocks:
        x_NF[[row_of[id] for id in ids[start : start + len(block)]]] = block
        start += len(block)
    rows, classes = examples.rows(x_NF, chosen.task)
    counts = {
        "records": len(ids),
        "groups": len(np.unique(examples.groups_R)),
        "missing": len(missing),
        "unlabelled": joined.num_unwanted,
        "rows_without_label": num_empty,
    }
    used_parts, number_N = [*map(card.Part.of, parts)], np.arange(len(ids))
    id_columns = joined.id_columns
    return Gathered(
        examples, rows, number_N, classes, used, used_parts, id_columns, missing, counts
    )


def refuse_ahead(chosen: Chosen, parts: Sequence[Listed]) -> None:
    """Refuse labels of which no head can be made, as far as the records show: before they have
    features.

    Raises:
        UserError: as `train` does.
    """
    of_id, _, used = _labelled(chosen, parts, None)
    sha256_of_id = {id: sha256 for id, sha256 in parts[0].digests() if id in of_id}
    for part in parts[1:]:
        there = part.rows_of(sha256_of_id)
        sha256_of_id = {id: sha256 for id, sha256 in sha256_of_id.items() if id in there}
    if not sha256_of_id:
        raise _without_features(of_id, used, parts)
    examples = Examples.of(sha256_of_id, sha256_of_id, of_id)
    rows, classes = examples.rows(np.empty((len(examples.ids), 0)), chosen.task)
    refuse_unfit(rows, np.arange(len(examples.ids)), classes, used)


def _without_features(
    of_id: Mapping[str, Label], used: card.TableUsed, parts: Sequence[Listed]
) -> UserError:
    runs = listed(part.name for part in parts)
    return labels.without_features(of_id, used.file, runs, parts[0].ids_of(np.arange(1)))


def _labelled(chosen: Chosen, parts: Sequence[Listed], log: logging.Logger | None) -> labels.Labels:
    """Return the labels by the ids of records; `log` warns of those that are of none."""
    table, id_columns = chosen.labels, parts[0].id_columns
    of_id, num_empty, used = labels.read(
        parts[0], table, chosen.column, chosen.group, chosen.id_column, log
    )
    if chosen.task == "regression":
        labels.refuse_no_numbers(of_id, used.file, chosen.column)
    elif chosen.task is None:
        names = {label.name for label in of_id.values()}
        labels.refuse_many_numbers(names, used.file, chosen.column)
    if chosen.fragments and table:  # labels of samples are those of fragments, too
        of_id, num_without = labels.of_fragments(of_id, table, chosen.fragments, id_columns, log)
        if not of_id:
            raise UserError(
                f"{table}: none of its ids is a contig with fragments in {chosen.fragments}; write "
                "the ids as the contigs have them."
            )
        if num_without and log:
            says = counted(num_without, "labelled contig has", "labelled contigs have")
            log.warning("%s no fragment in %s.", says, chosen.fragments)
        used = used.model_copy(update={"group": used.group or CONTIG})
    elif table:
        called = f"record of {listed(part.name for part in parts)}"
        of_id = by_record(of_id, table, parts, NamedRecords(called, id_columns, log))
    return labels.Labels(of_id, num_empty, used)


def refuse_unfit(
    rows: Rows,
    record_N: npt.NDArray[Any],
    classes: Sequence[str],
    used: card.TableUsed,
    remedy: str = "leave it out",
) -> None:
    """Raise UserError if classes and groups are too few to learn or to measure. `remedy` is for a
    class of which there is too little."""
    where = f"{used.file}: {used.column!r}" if used.column else f"{used.file}: the label"
    group, y_N, groups_N = used.group, rows.y_N, rows.groups_N
    if len(np.unique(y_N)) < 2:
        only, needs = f"{y_N[0]:g}", "there is nothing to learn from one number"
        if classes:
            only, needs = repr(clipped(classes[0])), "a head needs at least two classes"
        num = records(len(np.unique(record_N)))
        raise UserError(
            f"{where} is {only} in all {num} that have features; {needs}, so label others, too."
        )
    for number, class_name in enumerate(classes):
        names = np.unique(groups_N[y_N == number]).tolist()
        if len(names) < FEWEST_GROUPS:
            num = records(len(np.unique(record_N[y_N == number])))
            in_groups = listed(repr(clipped(name)) for name in names)
            raise UserError(
                f"{where}: the class {clipped(class_name)!r} has "
                f"{f'its {num} in {in_groups} of {group}' if group else num}, and a head needs "
                f"{FEWEST_GROUPS} {f'values of {group}' if group else 'records'} of each class, so "
                "that there are others to learn from while it is judged and calibrated; label more "
                f"of the class, or {remedy}."
            )
    if (num_groups := len(np.unique(groups_N))) < FOLDS:
        raise UserError(
            f"{where}: {num_groups} different {f'values of {group}' if group else 'records'} are "
            f"too few for {FOLDS} folds; label more, or name another column of groups, or the "
            "group id, which is each record."
        )
    for number in torn(rows):
        shared = f"each {group} with other classes, or its sequences" if group else "its sequences"
        raise UserError(
            f"{where}: the class {clipped(classes[number])!r} shares {shared} with other records, "
            "so that a fold would leave none of it to learn from; label more of the class "
            f"elsewhere, or {remedy}."
            if classes
            else f"{where}: so many records have equal sequences that a fold would leave none to "
            "learn from; label other sequences."
        )
