"""A threshold of the score of one class, for a precision or a recall.

It is chosen by scores of records that the fits did not see: those of the inner folds, which also
choose the setting. So the outer folds measure the choice, too: each fold's records are decided by a
threshold that was chosen without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped, listed, records
from featuremill.steps.heads.card import Card, Threshold
from featuremill.steps.heads.figures import Labels, Values, estimates
from featuremill.steps.heads.fitting import Fitted, Flags, Fold, Rows

FEWEST = 5
"""Records that must reach a threshold: the precision of fewer is chance."""
NEVER = np.inf
"""A threshold that no score reaches."""


class Wanted(NamedTuple):
    """The class with a threshold, and the precision or recall that it has to reach."""

    class_name: str
    of: Literal["precision", "recall"]
    level: float


def choose(score_N: Values, is_it_N: Flags, wanted: Wanted) -> float:
    """Return the threshold: the lowest with the precision, or the highest with the recall; NEVER if
    none of at least FEWEST records has the precision."""
    cut_T, precision_T, recall_T = _curve(score_N, is_it_N)
    if wanted.of == "recall":
        return float(cut_T[recall_T >= wanted.level].max())
    return float(cut_T[precision_T >= wanted.level].min(initial=NEVER))


def _curve(score_N: Values, is_it_N: Flags) -> tuple[Values, Values, Values]:
    """Return each threshold that enough records reach, with its precision and recall."""
    order = np.argsort(-score_N, kind="stable")
    score_N, right_N = score_N[order], np.cumsum(is_it_N[order])
    called_N = np.arange(1, len(score_N) + 1)
    is_last = np.append(np.diff(score_N) != 0, True)  # equal scores are called together
    is_last &= called_N >= min(FEWEST, len(score_N))
    right_T, called_T = right_N[is_last], called_N[is_last]
    return score_N[is_last], right_T / called_T, right_T / max(1, int(is_it_N.sum()))


def decided(scores_NC: Values, number: int | None, cut: float | Values = NEVER) -> Labels:
    """Return the number of the class of each record: `number` where the score of this class reaches
    `cut`, else the other class with the highest score. Without a `number`, the class with the
    highest score."""
    numbers: Labels = scores_NC.argmax(1)
    if number is not None:
        others_NC = scores_NC.copy()
        others_NC[:, number] = -1
        numbers = np.where(scores_NC[:, number] >= cut, number, others_NC.argmax(1))
    return numbers


def classes_of(card: Card, scores_NC: Values) -> Labels:
    """Return the number of the class that a head predicts for each record."""
    if card.threshold is None:
        return decided(scores_NC, None)
    number = card.classes.index(card.threshold.class_name)
    return decided(scores_NC, number, card.threshold.score)


class Cuts:
    """The thresholds for the class of a user: one for all records, and one for each fold."""

    def __init__(
        self, wanted: Wanted, rows: Rows, classes: list[str], fitted: Fitted, where: str
    ) -> None:
        """Choose that of the final head.

        Raises:
            UserError: there is no such class, or the precision is not reached.
        """
        if wanted.class_name not in classes:
            raise UserError(
                f"{where}: no record with features has the label {clipped(wanted.class_name)!r}, "
                f"which the threshold is for; name one of {listed(classes)}."
            )
        self._wanted, self._number = wanted, classes.index(wanted.class_name)
        self._is_it_N, self._groups_N = rows.y_N == self._number, rows.groups_N
        score_N = fitted.held_out_NC[:, self._number]
        self.cut = choose(score_N, self._is_it_N, wanted)
        if self.cut == NEVER:
            cut_T, precision_T, _ = _curve(score_N, self._is_it_N)
            best = int(precision_T.argmax())
            raise UserError(
                f"{where}: no threshold has a precision of {wanted.level:g} for "
                f"{clipped(wanted.class_name)!r}: on held-out records the highest is "
                f"{precision_T[best]:.3f}, of {records(int((score_N >= cut_T[best]).sum()))}; ask "
                "for less, or label more."
            )

    def _of_folds(self, folds: Iterable[Fold]) -> Values:
        """Return the threshold for each record: chosen by the records that the head of its fold
        learnt from."""
        cut_N = np.full(len(self._is_it_N), NEVER)
        for fold in folds:
            score_N = fold.fitted.held_out_NC[:, self._number]
            cut_N[fold.held_out_N] = choose(score_N, self._is_it_N[fold.learns_N], self._wanted)
        return cut_N

    def decided(self, scores_NC: Values, folds: Iterable[Fold]) -> Labels:
        """Return the class of each record by the threshold of its fold."""
        return decided(scores_NC, self._number, self._of_folds(folds))

    def measured(self, scores_NC: Values, folds: Iterable[Fold]) -> Threshold:
        """Return the threshold of the head, with the precision and recall of those of the folds."""
        is_it_N = self._is_it_N
        is_called_N = scores_NC[:, self._number] >= self._of_folds(folds)

        def figures_of(weight_N: Values) -> dict[str, float]:
            both = weight_N @ (is_called_N & is_it_N)
            called, of_it = weight_N @ is_called_N, weight_N @ is_it_N
            return {
                "precision": float(both / called) if called else float("nan"),
                "recall": float(both / of_it) if of_it else float("nan"),
            }

        reached = estimates(figures_of, self._groups_N)
        return Threshold(
            class_name=self._wanted.class_name,
            of=self._wanted.of,
            level=self._wanted.level,
            score=self.cut,
            precision=[*reached["precision"]] if is_called_N.any() else [],
            recall=[*reached["recall"]],
            share=float(is_it_N.mean()),
        )


def sentences(card: Card) -> str:
    """Return sentences about the threshold of a head; "" if it has none."""
    if (cut := card.threshold) is None:
        return ""
    name, reached = clipped(cut.class_name), "no held-out record reached it"
    if cut.precision:
        (precision, low, high), recall = cut.precision, cut.recall
        reached = (
            f"precision {precision:.3f} ({low:.3f}–{high:.3f}), recall {recall[0]:.3f} "
            f"({recall[1]:.3f}–{recall[2]:.3f})"
        )
    return (
        f" A record is called {name!r} if its score is at least {cut.score:.3g}, for a {cut.of} of "
        f"{cut.level:g}. On records of unseen groups: {reached}; in brackets, 95 % intervals. "
        f"Calling every record {name!r} has a precision of {cut.share:.3f}."
    )
