"""The labels of contigs that a head was trained on, and the accuracy of its held-out verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from featuremill.kit.errors import UserError
from featuremill.kit.text import listed
from featuremill.steps.heads import card, figures
from featuremill.steps.heads.figures import Estimate, estimates
from featuremill.steps.translate.folder import fragments


class Label(NamedTuple):
    """The label of a contig in the training set of the head."""

    number: int
    """The index of the class."""
    group: str


class Trained(NamedTuple):
    """A head, and the contigs that it was trained on."""

    folder: Path
    card: card.Card
    labels: dict[str, Label]
    """The label of each contig, by `<contig>` or `<sample>/<contig>`."""


class Judged(NamedTuple):
    """The accuracy of the verdicts on labelled contigs."""

    counts_CC: list[list[int]]
    """The number of contigs by class (rows) and verdict (columns)."""
    accuracy: Estimate


def trained_on(folder: Path, head: Path, num_classes: int) -> Trained:
    """Return the head in the folder `head`, and its labels of contigs of the translation in
    `folder`.

    Raises:
        UserError: the head is missing, or the number of its classes is wrong.
    """
    known, _ = card.read(head)
    if len(known.classes) != num_classes:
        raise UserError(
            f"{head}: this head has the classes {listed(known.classes)}, and the predictions have "
            f"{num_classes} classes; name the head that predicted."
        )
    labels: dict[str, Label] = {}
    if rows := card.read_held_out(head, known):
        of_id = {
            id: Label(known.classes.index(str(label)), group)
            for id, label, group in zip(rows.ids, rows.labels, rows.groups, strict=True)
        }
        for some in fragments(folder, ["id", "contig"]):
            columns = (column.to_pylist() for column in some.columns)
            for id, contig in zip(*columns, strict=True):
                if id in of_id:
                    labels[contig] = of_id[id]
    return Trained(head, known, labels)


def judged(pairs: list[tuple[Label, int]], num_classes: int) -> Judged | None:
    """Compare labels with verdicts (indices of classes); return None without labels."""
    if not pairs:
        return None
    true_N = np.array([label.number for label, _ in pairs])
    verdict_N = np.array([verdict for _, verdict in pairs])
    is_right_N = verdict_N == true_N
    figure_of = estimates(
        lambda weight_N: {"accuracy": float(np.average(is_right_N, weights=weight_N))},
        np.array([label.group for label, _ in pairs]),
    )
    return Judged(figures.confusion(verdict_N, true_N, num_classes).tolist(), figure_of["accuracy"])
