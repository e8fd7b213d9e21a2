"""A threshold of the score of one class, for a precision or a recall.

It is chosen by scores of records that the fits did not see: those of the inner folds, which also
choose the setting. So the outer folds measure the choice, too: each fold's records are decided by a
threshold that was chosen without them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped, listed, records
from featuremill.steps.heads.card import Card, Threshold
from featuremill.steps.heads.intervals import bootstrap

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

    def place(self, classes: list[str], where: str) -> int:
        """Return the number of the class.

        Raises:
            UserError: there is no such class.
        """
        if self.class_name not in classes:
            raise UserError(
                f"{where}: no record with features has the label {clipped(self.class_name)!r}, "
                f"which the threshold is for; name one of {listed(classes)}."
            )
        return classes.index(self.class_name)


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


def refuse_unreached(score_N: Scores, is_it_N: Flags, asked: Wanted, where: str) -> None:
    """Raise UserError with the highest precision that is reached."""
    cut_T, precision_T, _ = _curve(score_N, is_it_N)
    best = int(precision_T.argmax())
    raise UserError(
        f"{where}: no threshold has a precision of {asked.level:g} for "
        f"{clipped(asked.class_name)!r}: on held-out records the highest is "
        f"{precision_T[best]:.3f}, of {records(int((score_N >= cut_T[best]).sum()))}; ask for "
        "less, or label more."
    )


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


def measured(
    asked: Wanted, cut: float, is_called_N: Flags, is_it_N: Flags, groups_N: npt.NDArray[np.str_]
) -> Threshold:
    """Return a threshold with what is reached by records whose group its choice did not see."""

    def precision(i: npt.NDArray[np.intp]) -> float:
        called = is_called_N[i]
        return float(is_it_N[i][called].mean()) if called.any() else float("nan")

    def recall(i: npt.NDArray[np.intp]) -> float:
        of_it = is_it_N[i]
        return float(is_called_N[i][of_it].mean()) if of_it.any() else float("nan")

    return Threshold(
        class_name=asked.class_name,
        of=asked.of,
        level=asked.level,
        score=cut,
        precision=[*bootstrap(precision, groups_N)] if is_called_N.any() else [],
        recall=[*bootstrap(recall, groups_N)],
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
