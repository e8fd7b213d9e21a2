"""Aggregate the scores of fragments to contigs, count the verdicts, and compare those on contigs
that a head was trained on with their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.errors import UserError
from featuremill.kit.text import listed
from featuremill.steps.heads import card, figures
from featuremill.steps.heads.figures import Estimate, estimates
from featuremill.steps.translate.folder import fragments
from featuremill.steps.verdicts.predictions import Scored

Scores = npt.NDArray[np.float64]
RULES = {
    "max": "the highest score of each class among its fragments",
    "mean": "the mean over its fragments of each class's score",
}
"""Descriptions of the rules that compute a contig's scores."""
OK, PARTLY, FAILED = "ok", "partly", "failed"
STATUSES = {
    OK: "every fragment has a prediction",
    PARTLY: "some fragments have none, and the verdict is by the others",
    FAILED: "no fragment has a prediction",
    "without": "the contig has no fragment",
    "refused": "the contig was refused when it was read",
}
"""The statuses of contigs; the last two are those of translate."""


class Counts(NamedTuple):
    """The numbers of contigs and fragments in a translation."""

    contigs: int
    fragments: int
    failed: int
    """The number of fragments without a prediction."""
    verdicts: Counter[str]
    """The number of contigs by class."""
    without: Counter[str]
    """The number of contigs without a verdict, by status."""
    seen: int
    """The number of contigs that the head was trained on."""
    unknown: int
    """The number of contigs of which it is unknown whether the head was trained on them."""
    samples: Mapping[str, Counter[str]] = {}
    """The number of contigs by class for each sample; the class "" is for no verdict."""


class Contig(NamedTuple):
    """The aggregated scores of a contig's fragments."""

    id: str
    """The id of the contig; `<sample>/<id>` where there are samples."""
    highest_C: Scores
    """The highest score of the fragments for each class; NaN without a prediction."""
    sum_C: Scores
    fragments: int
    failed: int
    seen: int
    """The index in `SEEN`: whether the head was trained on a fragment."""

    @property
    def status(self) -> str:
        """The status: `ok`, `partly` or `failed`."""
        if not self.failed:
            return OK
        return FAILED if self.failed == self.fragments else PARTLY

    def scores_C(self, by: str) -> Scores:
        """Return the score for each class by the rule `by`; NaN without a prediction."""
        num = self.fragments - self.failed
        return self.highest_C if by == "max" or not num else self.sum_C / num

    def __add__(self, more: object) -> Contig:
        """Return this contig, merged with more of its fragments."""
        assert isinstance(more, Contig)
        return Contig(
            self.id,
            np.fmax(self.highest_C, more.highest_C),
            self.sum_C + more.sum_C,
            self.fragments + more.fragments,
            self.failed + more.failed,
            max(self.seen, more.seen),
        )


def contigs(blocks: Iterable[Scored]) -> Iterator[Contig]:
    """Yield the contigs of fragments that are grouped by contig; a contig may span blocks."""
    current: Contig | None = None
    for block in blocks:
        for contig in _contigs(block):
            if current and current.id == contig.id:
                current += contig
                continue
            if current:
                yield current
            current = contig
    if current:
        yield current


def _contigs(block: Scored) -> Iterator[Contig]:
    names = np.array(block.fragments["contig"].to_pylist(), object)
    if not len(names):
        return
    starts = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
    highest = np.fmax.reduceat(block.scores_NC, starts)
    sums = np.add.reduceat(np.nan_to_num(block.scores_NC), starts)
    failed = np.add.reduceat(np.isnan(block.scores_NC[:, 0]), starts, dtype=np.int64)
    seen = np.maximum.reduceat(block.seen_N, starts)
    sizes = np.diff([*starts, len(names)])
    for name, *numbers in zip(
        names[starts], highest, sums, sizes.tolist(), failed.tolist(), seen.tolist(), strict=True
    ):
        yield Contig(name, *numbers)


def index_of_preferred(
    name: str | None, classes: Sequence[str], source: str, option: str = "--prefer"
) -> int:
    """Return the index of the class `name` in `classes`, or the last index if `name` is None.
    `source` and `option` are used in the message.

    Raises:
        UserError: there is no such class.
    """
    if name is None:
        return len(classes) - 1
    if name not in classes:
        raise UserError(f"{option} {name}: {source} has {listed(classes)}; name one.")
    return classes.index(name)


def class_of(scores_C: Scores, preferred: int) -> int:
    """Return the class with the highest score; of equal ones, the `preferred` class or the first.

    With `preferred` the virus, this is VirNucPro's rule.
    """
    return preferred if scores_C[preferred] >= scores_C.max() else int(scores_C.argmax())


def counts_in(table: Path) -> dict[str, int]:
    """Return the number of contigs by verdict or, without one, by status, sorted."""
    import pyarrow.csv as pc_csv

    names = ["verdict", "status"]
    types = pc_csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, "str"))
    verdicts: Counter[str] = Counter()
    without: Counter[str] = Counter()
    with pc_csv.open_csv(
        table, parse_options=pc_csv.ParseOptions(delimiter="\t"), convert_options=types
    ) as reader:
        for block in reader:
            counts = Counter(zip(*(column.to_pylist() for column in block.columns), strict=True))
            for (verdict, status), number in counts.items():
                if status in (OK, PARTLY):
                    verdicts[verdict] += number
                else:
                    without[status] += number
    return dict([*verdicts.most_common(), *without.most_common()])


class Label(NamedTuple):
    """The label of a contig in the training set of the head."""

    number: int
    group: str


class Trained(NamedTuple):
    """A head, and the contigs that it was trained on."""

    folder: Path
    card: card.Card
    labels: dict[str, Label]


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
