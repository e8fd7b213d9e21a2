"""A threshold of the score of one class, for a precision or a recall.

It is chosen by scores of records that the fits did not see: those of the inner folds, which also
choose the setting. So the outer folds measure the choice, too: each fold's records are decided by a
threshold that was chosen without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped, listed, records
from featuremill.steps.heads.card import Card, Threshold
from featuremill.steps.heads.figures import estimates
from featuremill.steps.heads.fitting import Fitted, Fold, Rows

FEWEST = 5
"""Records that must reach a threshold: the precision of fewer is chance."""
NEVER = np.inf
"""A threshold that no score reaches."""
Scores = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Wanted(NamedTuple):
    """What a threshold is asked to reach."""

    class_name: str
    of: Literal["precision", "recall"]
    level: float


def wanted(class_name: str, precision: float | None, recall: float | None) -> Wanted:
    """Return what the words of a user ask for.

    Raises:
        UserError: it is not one of the two, or no share.
    """
    if (precision is None) == (recall is None):
        raise UserError("--threshold: give --precision or --recall, one of the two, as in 0.95.")
    asked = Wanted(class_name, "recall", recall or 0)
    if precision is not None:
        asked = Wanted(class_name, "precision", precision)
    if not 0 < asked.level <= 1:
        raise UserError(
            f"--{asked.of}: this is a share above 0, at most 1, and {asked.level:g} is none; give "
            "one such as 0.95."
        )
    return asked


def choose(score_N: Scores, is_it_N: Flags, asked: Wanted) -> float:
    """Return the threshold: the lowest with the precision, or the highest with the recall; NEVER if
    none of at least FEWEST records has the precision."""
    cut_T, precision_T, recall_T = _curve(score_N, is_it_N)
    if asked.of == "recall":
        return float(cut_T[recall_T >= asked.level].max())
    reached = cut_T[precision_T >= asked.level]
    return float(reached.min()) if len(reached) else NEVER


def _curve(score_N: Scores, is_it_N: Flags) -> tuple[Scores, Scores, Scores]:
    """Return each threshold that enough records reach, with its precision and recall."""
    order = np.argsort(-score_N, kind="stable")
    score_N, found_N = score_N[order], np.cumsum(is_it_N[order])
    called_N = np.arange(1, len(score_N) + 1)
    is_last = np.append(np.diff(score_N) != 0, True)  # equal scores are called together
    is_last &= called_N >= min(FEWEST, len(score_N))
    found_T, called_T = found_N[is_last], called_N[is_last]
    return score_N[is_last], found_T / called_T, found_T / max(1, int(is_it_N.sum()))


def decided(
    scores_NC: Scores, place: int | None, cut: float | Scores = NEVER
) -> npt.NDArray[np.int64]:
    """Return the number of the class of each record: that at `place` where its score reaches `cut`,
    else the one of the others with the highest score; without a `place`, that of all."""
    numbers: npt.NDArray[np.int64] = scores_NC.argmax(1)
    if place is not None:
        others_NC = scores_NC.copy()
        others_NC[:, place] = -1
        numbers = np.where(scores_NC[:, place] >= cut, place, others_NC.argmax(1))
    return numbers


def classes_of(card: Card, scores_NC: Scores) -> npt.NDArray[np.int64]:
    """Return the number of the class that a head predicts for each record."""
    if card.threshold is None:
        return decided(scores_NC, None)
    place = card.classes.index(card.threshold.class_name)
    return decided(scores_NC, place, card.threshold.score)


class Cuts:
    """The thresholds for the class of a user: one for all records, and one for each fold."""

    def __init__(
        self, asked: Wanted, rows: Rows, classes: list[str], fitted: Fitted, where: str
    ) -> None:
        """Choose that of the final head.

        Raises:
            UserError: there is no such class, or the precision is not reached.
        """
        if asked.class_name not in classes:
            raise UserError(
                f"{where}: no record with features has the label {clipped(asked.class_name)!r}, "
                f"which the threshold is for; name one of {listed(classes)}."
            )
        self._asked, self._place = asked, classes.index(asked.class_name)
        self._is_it_N, self._groups_N = rows.y_N == self._place, rows.groups_N
        score_N = fitted.held_out_NC[:, self._place]
        self.cut = choose(score_N, self._is_it_N, asked)
        if self.cut == NEVER:
            cut_T, precision_T, _ = _curve(score_N, self._is_it_N)
            best = int(precision_T.argmax())
            raise UserError(
                f"{where}: no threshold has a precision of {asked.level:g} for "
                f"{clipped(asked.class_name)!r}: on held-out records the highest is "
                f"{precision_T[best]:.3f}, of {records(int((score_N >= cut_T[best]).sum()))}; ask "
                "for less, or label more."
            )

    def _of_folds(self, folds: Iterable[Fold]) -> Scores:
        """Return the threshold for each record: chosen by the records that the head of its fold
        learnt from."""
        cut_N = np.full(len(self._is_it_N), NEVER)
        for fold in folds:
            score_N = fold.fitted.held_out_NC[:, self._place]
            cut = choose(score_N, self._is_it_N[fold.learns_N], self._asked)
            cut_N[fold.held_out_N] = cut
        return cut_N

    def decided(self, scores_NC: Scores, folds: Iterable[Fold]) -> npt.NDArray[np.int64]:
        """Return the class of each record by the threshold of its fold."""
        return decided(scores_NC, self._place, self._of_folds(folds))

    def measured(self, scores_NC: Scores, folds: Iterable[Fold]) -> Threshold:
        """Return the threshold of the head, with what those of the folds reach."""
        is_it_N = self._is_it_N
        is_called_N = scores_NC[:, self._place] >= self._of_folds(folds)

        def figures_of(weight_N: Scores) -> dict[str, float]:
            both = weight_N @ (is_called_N & is_it_N)
            called, of_it = weight_N @ is_called_N, weight_N @ is_it_N
            return {
                "precision": float(both / called) if called else float("nan"),
                "recall": float(both / of_it) if of_it else float("nan"),
            }

        found = estimates(figures_of, self._groups_N)
        return Threshold(
            class_name=self._asked.class_name,
            of=self._asked.of,
            level=self._asked.level,
            score=self.cut,
            precision=[*found["precision"]] if is_called_N.any() else [],
            recall=[*found["recall"]],
            share=float(is_it_N.mean()),
        )


def said(card: Card) -> str:
    """Return sentences about the threshold of a head; "" if it has none."""
    if (one := card.threshold) is None:
        return ""
    name = clipped(one.class_name)
    reached = "no held-out record reached it"
    if one.precision:
        reached = f"precision {_told(one.precision)}, recall {_told(one.recall)}"
    return (
        f" A record is called {name!r} if its score is at least {one.score:.3g}, for a {one.of} of "
        f"{one.level:g}. On records of unseen groups: {reached}; in brackets, 95 % intervals. "
        f"Calling every record {name!r} has a precision of {one.share:.3f}."
    )


def _told(estimate: list[float]) -> str:
    value, low, high = estimate
    return f"{value:.3f} ({low:.3f}–{high:.3f})"
