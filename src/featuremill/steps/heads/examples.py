"""The labelled records that a head learns from, and the checks that they are enough."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import Listed, Matrix
from featuremill.inputs.labels import Label, NamedRecords, by_record
from featuremill.kit.errors import UserError
from featuremill.kit.ids import IdColumns
from featuremill.kit.tables import without_features
from featuremill.kit.text import clipped, counted, listed, records
from featuremill.steps.heads import card, labels
from featuremill.steps.heads.card import CONTIG, Task
from featuremill.steps.heads.figures import FOLDS
from featuremill.steps.heads.fitting import Rows, lost_classes
from featuremill.steps.heads.joined import CHOOSING, Joined, Lacking, part_of
from featuremill.steps.heads.section import Head, spread

FEWEST_GROUPS = 3
"""Groups that a class needs: one to measure, one to choose the setting, one to learn."""
log = logging.getLogger("featuremill.head")


class Training(NamedTuple):
    """The arguments of `head train`."""

    head: Head
    """The section of a config, or the same keys from the options."""
    runs: Sequence[Path]
    output: Path
    fragments: Path | None = None
    """The folder of a translation, if the labels are of its contigs."""
    seed: int = 0
    threads: int = 1


class Examples(NamedTuple):
    """Labelled records with features, sorted by sha256 and id instead of the order of rows."""

    ids: list[str]
    sha256s: list[str]
    """The sha256 of each payload."""
    labels: list[Label]
    groups_R: npt.NDArray[np.str_]
    payload_R: npt.NDArray[np.int64]
    """A number for each payload; equal payloads have the same number."""

    @classmethod
    def in_order(
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
    """The training data of a head, from runs and labels."""

    examples: Examples
    rows: Rows
    record_N: npt.NDArray[np.int64]
    """The index of the record of each row."""
    classes: list[str]
    used: card.TableUsed
    parts: list[card.Part]
    id_columns: IdColumns
    missing: list[Lacking]
    counts: dict[str, int]
    """The counts of the card."""


def gather(training: Training) -> Gathered:
    """Return the labelled records that have all features.

    Raises:
        UserError: if runs or labels cannot be used.
    """
    head, runs = training.head, training.runs
    columns = spread(head.vectors, len(runs))
    parts = [
        features.open(run, column, choosing=CHOOSING)
        for run, column in zip(runs, columns, strict=True)
    ]
    of_id, num_empty, used = labelled(training, parts, log)
    joined, missing = Joined(parts, of_id), list[Lacking]()
    ids, blocks = list[str](), list[Matrix]()
    for some, vectors in joined.blocks(missing.append):
        ids += some
        blocks.append(vectors)
    if not ids:
        raise without_features(used.file, of_id, parts)
    known = {*ids, *(lacking.id for lacking in missing)}
    missing += [
        joined.lacking(id, 0, f"it has no such record (labelled in {used.file}:{label.line})")
        for id, label in of_id.items()
        if id not in known
    ]
    missing.sort(key=lambda lacking: (of_id[lacking.id].line, lacking.id))
    examples = Examples.in_order(ids, sha256s_of(parts[0], {*ids}), of_id)
    row_of, start = {id: row for row, id in enumerate(examples.ids)}, 0
    x_NF = np.empty((len(ids), joined.width), blocks[0].dtype)
    for block in blocks:
        x_NF[[row_of[id] for id in ids[start : start + len(block)]]] = block
        start += len(block)
    rows, classes = examples.rows(x_NF, head.task)
    counts = {
        "records": len(ids),
        "groups": len(np.unique(examples.groups_R)),
        "missing": len(missing),
        "unlabelled": joined.num_unwanted,
        "rows_without_label": num_empty,
    }
    used_parts, number_N = [*map(part_of, parts)], np.arange(len(ids))
    id_columns = joined.id_columns
    return Gathered(
        examples, rows, number_N, classes, used, used_parts, id_columns, missing, counts
    )


def sha256s_of(features: Listed, ids: Container[str]) -> dict[str, str]:
    """Return the sha256 of the payload of each of `ids` that the features have."""
    return {id: sha256 for id, sha256 in features.digests() if id in ids}


def refuse_ahead(training: Training, parts: Sequence[Listed]) -> list[str]:
    """Return the classes that a head will have, before the features are computed.

    Raises:
        UserError: if the labels are unfit for training, as `train` would find.
    """
    of_id, _, used = labelled(training, parts, None)
    sha256_of_id = sha256s_of(parts[0], of_id)
    for part in parts[1:]:
        there = part.rows_of(sha256_of_id)
        sha256_of_id = {id: sha256 for id, sha256 in sha256_of_id.items() if id in there}
    if not sha256_of_id:
        raise without_features(used.file, of_id, parts)
    if training.head.task == "per_residue":
        rows_of_ids = parts[0].rows_of(sha256_of_id)
        lengths = parts[0].records_of(np.array([*rows_of_ids.values()], np.int64))
        for id, row in rows_of_ids.items():
            # Fewer letters are no error yet: the model may cut the record.
            if len(of_id[id].name) > (longest := lengths[row].length):
                labels.refuse_length(id, of_id[id], longest, parts[0].name, used.file)
        return numbered(of_id, [*sha256_of_id], training.head, used)[0]
    examples = Examples.in_order(sha256_of_id, sha256_of_id, of_id)
    rows, classes = examples.rows(np.empty((len(examples.ids), 0)), training.head.task)
    refuse_unfit(rows, np.arange(len(examples.ids)), classes, used, training.head)
    return classes


def labelled(
    training: Training, parts: Sequence[Listed], log: logging.Logger | None
) -> labels.Labels:
    """Return the labels by the ids of records. `log` gets warnings of labels without a record.

    Raises:
        UserError: if there are no such labels, or few of them belong to a record.
    """
    head, id_columns = training.head, parts[0].id_columns
    of_residues = head.task == "per_residue"
    of_id, num_empty, used = labels.read(parts[0], head, None if of_residues else log)
    table = Path(head.labels) if head.labels else None
    if training.fragments and table:  # labels of samples are those of fragments, too
        of_id, num_without = labels.of_fragments(of_id, table, training.fragments, id_columns, log)
        if not of_id:
            raise UserError(
                f"{table}: none of its ids is a contig with fragments in {training.fragments}; "
                "write the ids as the contigs have them."
            )
        if num_without and log:
            says = counted(num_without, "labelled contig has", "labelled contigs have")
            log.warning("%s no fragment in %s.", says, training.fragments)
        used = used.model_copy(update={"group": used.group or CONTIG})
    elif table:
        called = f"record of {listed(part.name for part in parts)}"
        of_id = by_record(of_id, table, parts, NamedRecords(called, id_columns, log))
    return labels.Labels(of_id, num_empty, used)


def numbered(
    of_id: Mapping[str, Label], ids: Sequence[str], head: Head, used: card.TableUsed
) -> tuple[list[str], list[labels.Numbers]]:
    """Return the letters that are classes of residues, and for each record the class numbers of its
    residues.

    Raises:
        UserError: if classes or groups are too few.
    """
    classes = labels.letters_of(of_id, ids, head.mask or "", used.file)
    numbers_R = [labels.numbers_of(of_id[id].name, classes) for id in ids]
    groups_R = np.array([of_id[id].group for id in ids])
    present = [np.unique(numbers[numbers != labels.UNLABELLED]) for numbers in numbers_R]
    record_N = np.repeat(np.arange(len(present)), [*map(len, present)])
    y_N = np.concatenate(present).astype(np.int64)  # a row for each class of a record
    rows = Rows(np.empty((len(y_N), 0)), y_N, groups_R[record_N], np.arange(len(y_N)), len(classes))
    refuse_unfit(rows, record_N, classes, used, head)
    return classes, numbers_R


def refuse_unfit(
    rows: Rows,
    record_N: npt.NDArray[Any],
    classes: Sequence[str],
    used: card.TableUsed,
    head: Head,
) -> None:
    """Raise UserError if classes or groups are too few to learn or to measure, or the class of the
    threshold has no record."""
    where = f"{used.file}: {used.column!r}" if used.column else f"{used.file}: the label"
    group, y_N, groups_N = used.group, rows.y_N, rows.groups_N
    remedy = "name the letter in the mask" if head.task == "per_residue" else "leave it out"
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
    for number in lost_classes(rows):
        shared = f"each {group} with other classes, or its sequences" if group else "its sequences"
        raise UserError(
            f"{where}: the class {clipped(classes[number])!r} shares {shared} with other records, "
            "so that a fold would leave none of it to learn from; label more of the class "
            f"elsewhere, or {remedy}."
            if classes
            else f"{where}: so many records have equal sequences that a fold would leave none to "
            "learn from; label other sequences."
        )
    if head.wanted and head.wanted.class_name not in classes:
        raise UserError(
            f"{where}: no record with features has the label {clipped(head.wanted.class_name)!r}, "
            f"which the threshold is for; name one of {listed(classes)}."
        )
