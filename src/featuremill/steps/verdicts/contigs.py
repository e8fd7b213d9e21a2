"""Contigs and what their fragments' scores come to, contig by contig."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.steps.verdicts.predictions import Scored

Scores = npt.NDArray[np.float64]
OK, PARTLY, FAILED = "ok", "partly", "failed"
STATUSES = {
    OK: "every fragment has a prediction",
    PARTLY: "some fragments have none, and the verdict is by the others",
    FAILED: "no fragment has a prediction",
    "without": "the contig has no fragment",
    "refused": "the contig was refused when it was read",
}
"""The last two as translate tells them."""


class Counts(NamedTuple):
    """All contigs that were read, and their fragments."""

    contigs: int
    fragments: int
    failed: int
    """Fragments that have no prediction."""
    verdicts: Counter[str]
    """Contigs by class."""
    without: Counter[str]
    """Contigs that have no verdict, by status."""
    seen: int
    """Contigs that the head was trained on."""
    unknown: int
    """Contigs of which it is unknown."""
    samples: Mapping[str, Counter[str]] = {}
    """Contigs by class, for each sample; of contigs without a verdict it is empty."""


class Contig(NamedTuple):
    """What is known of one contig."""

    id: str
    """The id of the contig; `<sample>/<id>` where there are samples."""
    highest_C: Scores
    """The highest score of its fragments for each class; NaN without a prediction."""
    sum_C: Scores
    fragments: int
    failed: int
    """Fragments that have no prediction."""
    seen: int
    """The place among `SEEN` of whether the head was trained on one of its fragments."""

    @property
    def status(self) -> str:
        """Which of the first three of `STATUSES` it is."""
        if not self.failed:
            return OK
        return FAILED if self.failed == self.fragments else PARTLY

    def scores_C(self, by: str) -> Scores:
        """Return its score a class by the rule `by`; NaN where no fragment has one."""
        num = self.fragments - self.failed
        return self.highest_C if by == "max" or not num else self.sum_C / num

    def __add__(self, more: object) -> Contig:
        """Return this contig with `more` of its fragments."""
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
    """Yield the contigs of fragments that come contig after contig."""
    open_one: Contig | None = None
    for block in blocks:
        for contig in _of_block(block):
            if open_one and open_one.id == contig.id:
                open_one += contig
                continue
            if open_one:
                yield open_one
            open_one = contig
    if open_one:
        yield open_one


def _of_block(block: Scored) -> Iterator[Contig]:
    names = np.array(block.fragments["contig"].to_pylist(), object)
    if not len(names):
        return
    starts = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
    highest = np.fmax.reduceat(block.scores_NC, starts)
    sums = np.add.reduceat(np.nan_to_num(block.scores_NC), starts)
    failed = np.add.reduceat(np.isnan(block.scores_NC[:, 0]), starts, dtype=np.int64)
    seen = np.maximum.reduceat(block.seen_N, starts)
    sizes = np.diff([*starts, len(names)])
    for name, *figures in zip(
        names[starts], highest, sums, sizes.tolist(), failed.tolist(), seen.tolist(), strict=True
    ):
        yield Contig(name, *figures)


def class_of(scores_C: Scores, preferred: int) -> int:
    """Return which class scores highest; where several do, the `preferred` one, else the first.

    VirNucPro's rule for its two: a virus, where that scores at least as high as the rest.
    """
    return preferred if scores_C[preferred] >= scores_C.max() else int(scores_C.argmax())


def counts_in(table: Path) -> dict[str, int]:
    """Return the numbers of contigs of a table by verdict, and without a verdict by status; the
    most common first."""
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
