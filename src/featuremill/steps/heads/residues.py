"""train: fits a logistic regression to residues, each with a letter as label, and measures it.

All residues measure it, as they stand in the parts of the run, some at a time. Memory holds the
letters of the labelled records, and the vectors of at most MOST_LEARNT residues, drawn evenly: the
fits learn from these. A fold has whole groups of records.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill import features
from featuremill.features import Listed, Matrix, Parts
from featuremill.inputs.labels import Label
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering_folder, sha256_of
from featuremill.kit.ids import IdColumns
from featuremill.kit.processes import versions
from featuremill.kit.text import Progress, count, counted, listed, records
from featuremill.kit.workloads import refuse_without_packages
from featuremill.steps.heads import card, residue_figures, residue_labels, task_page
from featuremill.steps.heads.figures import FOLDS
from featuremill.steps.heads.fitting import Found, Logistic, chosen_and_fitted, outer_folds
from featuremill.steps.heads.joined import Lacking
from featuremill.steps.heads.network import logits
from featuremill.steps.heads.page import confusion_figure
from featuremill.steps.heads.residue_labels import UNLABELLED
from featuremill.steps.heads.train import FEWEST_GROUPS, Chosen, tell_missing, write_missing

MOST_LEARNT = 2**16
"""Residues that the fits learn from, of all records together."""
AT_ONCE = 2**15
"""Residues whose vectors are in memory together."""
log = logging.getLogger("featuremill.head")


class Labelled(NamedTuple):
    """The labelled records that have vectors of residues, by their sha256 and then their id: no fit
    depends on the order of a run's records."""

    ids: list[str]
    sha256s: list[str]
    labels: list[Label]
    rows: npt.NDArray[np.int64]
    """Of the parts."""
    groups: npt.NDArray[np.int64]
    """The number of each one's group."""
    payloads: npt.NDArray[np.int64]
    """The number of each one's payload."""
    classes: list[str]


def train(chosen: Chosen) -> card.Card:
    """Train a head for residues, write it and return its card.

    Raises:
        UserError: the run or the labels cannot be used.
    """
    refuse_without_packages(card.NeedsTorch)
    card.refuse_other_folder(chosen.output)
    run = _only_run(chosen)
    parts = open_residues(run, chosen.vectors[0] if chosen.vectors else None)
    planned = features.Planned(run)
    assert chosen.labels
    found, num_empty, used = residue_labels.read(
        chosen.labels, chosen.column, chosen.group, chosen.id_column, planned
    )
    of, missing = _labelled(found, parts, planned, chosen.mask, used)
    numbers_of = [residue_labels.numbers_of(label.name, of.classes) for label in of.labels]
    _refuse_few(of.classes, of.groups.tolist(), numbers_of, used.file, used.group)

    import torch

    torch.set_num_threads(max(1, chosen.threads))
    learnt = _drawn(of, numbers_of, parts, chosen.seed)
    folds = _folds(of, learnt)
    _refuse_torn(of, learnt, folds, used)
    num_residues = sum(int((numbers != UNLABELLED).sum()) for numbers in numbers_of)
    log.info(
        "%s of %s, classes %s, %s numbers each; the fits learn from %s; %s",
        counted(num_residues, "residue"),
        records(len(of.ids)),
        listed(of.classes),
        f"{parts.column.width:,}",
        count(len(learnt.y_N)),
        f"no {used.group} is on both sides of a fold" if used.group else "folds by record",
    )
    heads = [_fitted(of, learnt, folds, fold) for fold in range(FOLDS)]
    final, penalty = _fitted(of, learnt, folds, None)
    counts_GCC, predicted = _judged(of, numbers_of, folds, [head for head, _ in heads], parts)
    scores, of_classes = residue_figures.judged(counts_GCC, of.classes)
    confusion = counts_GCC.sum(0)
    tensors = dict(final)
    for fold, (head, _) in enumerate(heads):
        tensors |= {f"fold_{fold}.{name}": tensor for name, tensor in head.items()}
    with delivering_folder(chosen.output) as folder:
        write_missing(folder / card.MISSING, missing, planned.id_columns)
        made = card.Card(
            version=card.Card.NEWEST,
            task="per_residue",
            kind="logistic",
            classes=of.classes,
            features=[
                card.Part(
                    width=parts.column.width,
                    column=parts.column.name,
                    recipe=parts.recipe,
                    settings=parts.settings,
                    run=planned.name,
                )
            ],
            sha256=card.write_tensors(folder / card.TENSORS, tensors),
            held_out_sha256=_write_held_out(
                folder / card.HELD_OUT, of, folds, predicted, planned.id_columns
            ),
            counts={
                "records": len(of.ids),
                "groups": len(counts_GCC),
                "residues": num_residues,
                "residues_learnt": len(learnt.y_N),
                "residues_masked": sum(map(len, numbers_of)) - num_residues,
                "missing": len(missing),
                "rows_without_label": num_empty,
            },
            scores={name: [*estimate] for name, estimate in scores.items()},
            guesses=residue_figures.of_guesses(confusion),
            of_classes={
                letter: {name: [*estimate] for name, estimate in figures.items()}
                for letter, figures in of_classes.items()
            },
            mask=chosen.mask,
            confusion=confusion.tolist(),
            setting={"penalty": penalty},
            setting_bounds=[*Logistic.bounds],
            labels=used,
            seed=chosen.seed,
            threads=chosen.threads,
            versions=versions(("torch",)),
        )
        _write_page(folder / card.PAGE, chosen.output.name, made)
        made.write(folder / card.CARD)
    task_page.say(made)
    tell_missing(made, chosen.output)
    return made


def refuse_unfit(chosen: Chosen, parts: Sequence[Listed]) -> None:
    """Refuse labels of residues that are of no planned record, or more than one has residues.

    Raises:
        UserError: as `train` does.
    """
    run = _only_run(chosen)
    if isinstance(parts[0], features.Planned) and chosen.labels:
        arguments = chosen.labels, chosen.column, chosen.group, chosen.id_column
        found = residue_labels.read(*arguments, parts[0], None).of_id
        row_of = parts[0].rows_of(found)
        if not row_of:
            raise _without_vectors(found, str(chosen.labels), str(run))
        lengths = parts[0].records_of(np.array([*row_of.values()], np.int64))
        for id, row in row_of.items():
            if len(found[id].name) > (longest := lengths[row].length):  # fewer may be cut
                residue_labels.refuse_length(id, found[id], longest, str(run), str(chosen.labels))
        file = str(chosen.labels)
        classes = residue_labels.classes_of(found, [*row_of], chosen.mask, file)
        numbers_of = (residue_labels.numbers_of(found[id].name, classes) for id in row_of)
        _refuse_few(classes, _groups(found, row_of), numbers_of, file, chosen.group)


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


def _labelled(
    found: Mapping[str, Label],
    parts: Parts,
    planned: features.Planned,
    mask: str,
    used: card.TableUsed,
) -> tuple[Labelled, list[Lacking]]:
    """Return the labelled records with vectors, and those without."""
    ids, rows = list[str](), list[int]()
    for some, its_rows in parts.records():
        for id, row in zip(some, its_rows.tolist(), strict=True):
            if id in found:
                ids.append(id)
                rows.append(row)
    if not ids:
        raise _without_vectors(found, used.file, planned.name)
    for id, row in zip(ids, rows, strict=True):
        num_residues = int(parts.num_of_row[row])
        residue_labels.refuse_length(id, found[id], num_residues, planned.name, used.file)
    sha256_of = {id: sha256 for id, sha256 in planned.digests() if id in found}
    order = sorted(range(len(ids)), key=lambda place: (sha256_of[ids[place]], ids[place]))
    ids, rows = [ids[place] for place in order], [rows[place] for place in order]
    there = {*ids}
    reason = f"it has no vectors of residues; {planned.name}/failed.tsv has the reason"
    missing = [Lacking(id, planned.name, reason) for id in found if id not in there]
    groups = _groups(found, ids)
    return (
        Labelled(
            ids,
            [sha256_of[id] for id in ids],
            [found[id] for id in ids],
            np.array(rows, np.int64),
            np.array(groups, np.int64),
            np.unique(rows, return_inverse=True)[1],
            residue_labels.classes_of(found, ids, mask, used.file),
        ),
        missing,
    )


def _without_vectors(found: Mapping[str, Label], file: str, run: str) -> UserError:
    return UserError(
        f"{file}: none of its {len(found):,} ids has vectors of residues in {run}: its first is "
        f"{next(iter(found))!r}; write the ids as the run has them."
    )


def _groups(found: Mapping[str, Label], ids: Iterable[str]) -> list[int]:
    """Return the number of the group of each id."""
    number_of: dict[str, int] = {}
    return [number_of.setdefault(found[id].group, len(number_of)) for id in ids]


def _refuse_few(
    classes: Sequence[str],
    groups: Sequence[int],
    numbers_of: Iterable[residue_labels.Numbers],
    file: str,
    group_column: str | None,
) -> None:
    """Raise UserError where classes or groups are too few to learn or to measure."""
    if len(classes) < 2:
        only = f"only {classes[0]!r}" if classes else "nothing but the mask"
        raise UserError(
            f"{file}: the labels of records with vectors have {only}; a head needs at least "
            "two classes, so label others, too."
        )
    groups_of = defaultdict[int, set[int]](set)
    for numbers, group in zip(numbers_of, groups, strict=True):
        for number in np.unique(numbers[numbers != UNLABELLED]).tolist():
            groups_of[number].add(group)
    what = f"values of {group_column}" if group_column else "records"
    for number, letter in enumerate(classes):
        if len(groups_of[number]) < FEWEST_GROUPS:
            raise UserError(
                f"{file}: the class {letter!r} is in {len(groups_of[number])} {what}, and a "
                f"head needs {FEWEST_GROUPS} of each class; label more, or name the letter in the "
                "mask."
            )
    if (num_groups := max(groups) + 1) < FOLDS:
        raise UserError(
            f"{file}: {num_groups} different {what} are too few for {FOLDS} folds; label more."
        )


class Learnt(NamedTuple):
    """The residues that the fits learn from."""

    x_NF: Matrix
    y_N: npt.NDArray[np.int64]
    record_N: npt.NDArray[np.int64]
    """The number of each one's record."""


def _drawn(
    of: Labelled, numbers_of: Sequence[residue_labels.Numbers], parts: Parts, seed: int
) -> Learnt:
    """Draw the residues to learn from, evenly over all."""
    places = [np.flatnonzero(numbers != UNLABELLED) for numbers in numbers_of]
    ends = np.cumsum([len(own) for own in places])
    drawn = np.arange(ends[-1])
    if len(drawn) > MOST_LEARNT:
        random = np.random.default_rng(seed)
        drawn = np.sort(random.choice(ends[-1], MOST_LEARNT, replace=False, shuffle=False))
    record_N = np.searchsorted(ends, drawn, "right")
    nth_N = drawn - (ends - [len(own) for own in places])[record_N]
    pairs = [*zip(record_N.tolist(), nth_N.tolist(), strict=True)]
    within_N = np.array([places[record][nth] for record, nth in pairs], np.int64)
    y_N = np.array(
        [
            numbers_of[record][place]
            for (record, _), place in zip(pairs, within_N.tolist(), strict=True)
        ]
    )
    x_NF = parts.take(of.rows[record_N], within_N)
    return Learnt(x_NF, y_N.astype(np.int64), record_N)


def _folds(of: Labelled, learnt: Learnt) -> npt.NDArray[np.int64]:
    """Return the fold of each record: groups stay whole, and folds get about equal shares of each
    class. Groups of which nothing was drawn are spread over the folds."""
    group_N = of.groups[learnt.record_N]
    fold_N = outer_folds(group_N, learnt.y_N)
    fold_of_group = np.arange(int(of.groups.max()) + 1) % FOLDS
    fold_of_group[group_N] = fold_N
    return fold_of_group[of.groups]


def _learns(
    of: Labelled, learnt: Learnt, folds: npt.NDArray[np.int64], fold: int | None
) -> npt.NDArray[np.bool_]:
    """Return which of the residues the head of a fold may see: those of no record that it is
    measured by, and of no copy of one."""
    is_held_out = folds == (UNLABELLED if fold is None else fold)
    may_be_seen = ~np.isin(of.payloads, of.payloads[is_held_out])
    seen: npt.NDArray[np.bool_] = may_be_seen[learnt.record_N]
    return seen


def _refuse_torn(
    of: Labelled, learnt: Learnt, folds: npt.NDArray[np.int64], used: card.TableUsed
) -> None:
    """Raise UserError where a fit would see nothing of a class."""
    for fold in range(FOLDS):
        seen = np.bincount(learnt.y_N[_learns(of, learnt, folds, fold)], minlength=len(of.classes))
        if not seen.all():
            letter = of.classes[int(seen.argmin())]
            raise UserError(
                f"{used.file}: the class {letter!r} is so rare, or in so few different sequences, "
                "that a fold would leave none of it to learn from; label more of it, or name the "
                "letter in the mask."
            )


def _fitted(
    of: Labelled, learnt: Learnt, folds: npt.NDArray[np.int64], fold: int | None
) -> tuple[Found, float]:
    """Return the head that measures a fold, or the final one, and its penalty."""
    sees_N = _learns(of, learnt, folds, fold)
    record_N = learnt.record_N[sees_N]
    one = chosen_and_fitted(
        Logistic(),
        learnt.x_NF[sees_N],
        learnt.y_N[sees_N],
        of.groups[record_N],
        of.payloads[record_N],
        len(of.classes),
    )
    if fold is not None:
        log.info("fold %d of %d: penalty %g", fold + 1, FOLDS, one.setting)
    return one.head, one.setting


def pieces(rows: npt.NDArray[np.int64], parts: Parts) -> Iterator[tuple[int, int]]:
    """Yield slices of `rows` with about AT_ONCE residues each, at least one row."""
    ends = np.cumsum(parts.num_of_row[rows])
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + AT_ONCE, "right")))
        yield start, end
        start = end


def _judged(
    of: Labelled,
    numbers_of: Sequence[residue_labels.Numbers],
    folds: npt.NDArray[np.int64],
    heads: Sequence[Found],
    parts: Parts,
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the counts of each group, and the letters that each record's head predicts."""
    num_classes = len(of.classes)
    counts = np.zeros((int(of.groups.max()) + 1, num_classes, num_classes), np.int64)
    predicted = [""] * len(of.ids)
    progress, num_done = Progress(log, "judging"), 0
    for fold, head in enumerate(heads):
        here = np.flatnonzero(folds == fold)
        for start, end in pieces(of.rows[here], parts):
            some = here[start:end]
            vectors, sizes = parts.of_rows(of.rows[some])
            number_N = logits(head, vectors).argmax(1)
            ends = np.cumsum(sizes)
            for record, own in zip(some.tolist(), np.split(number_N, ends[:-1]), strict=True):
                predicted[record] = letters(own, of.classes)
                true = numbers_of[record]
                is_one = true != UNLABELLED
                np.add.at(counts[of.groups[record]], (true[is_one], own[is_one]), 1)
            num_done += len(some)
            progress.at(num_done, len(of.ids))
    return counts, predicted


def letters(numbers: npt.NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return the letter of each residue."""
    return "".join(classes[number] for number in numbers.tolist())


def _write_held_out(
    path: Path,
    of: Labelled,
    folds: npt.NDArray[np.int64],
    predicted: list[str],
    id_columns: IdColumns,
) -> str:
    """Write the labelled records with the letters that were predicted by a head that did not see
    their group; return the file's sha256."""
    cells = zip(*map(id_columns.cells, of.ids), strict=True)
    columns = dict(zip(id_columns.names, map(list, cells), strict=True))
    table = pa.table(
        {
            **columns,
            "sha256": of.sha256s,
            "group": [label.group for label in of.labels],
            "fold": folds,
            "label": [label.name for label in of.labels],
            "predicted": predicted,
        }
    )
    pq.write_table(table, path, compression="zstd")
    return sha256_of(path)


def _write_page(path: Path, name: str, made: card.Card) -> None:
    rows = [
        (
            letter,
            count(sum(made.confusion[number])),
            *(f"{value:.3f} ({low:.3f}–{high:.3f})" for value, low, high in figures.values()),
        )
        for number, (letter, figures) in enumerate(made.of_classes.items())
    ]
    what = (
        f"{count(made.counts['residues'])} residues are predicted as what they are by a head that "
        "did not see the group of their record"
    )
    figure = confusion_figure(made.classes, made.confusion, what)
    task_page.write_page(path, name, made, [figure], rows)
