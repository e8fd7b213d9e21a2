"""Choose a threshold for the score of one class that reaches a precision or a recall.

The threshold is chosen on scores of inner folds, which were fitted without the scored records. The
outer folds measure this choice, too: a record is classified by a threshold chosen without it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped, records
from featuremill.steps.heads.card import Card
from featuremill.steps.heads.figures import Labels, Values
from featuremill.steps.heads.fitting import Flags, Fold
from featuremill.steps.heads.section import Wanted

FEWEST = 5
"""Records that must reach a threshold; the precision of fewer records is chance."""
NEVER = np.inf
"""A threshold that no score reaches."""


def choose(score_N: Values, is_class_N: Flags, wanted: Wanted) -> float:
    """Return the lowest threshold with the precision, or the highest with the recall; NEVER if no
    threshold that FEWEST records reach has the precision."""
    cut_T, precision_T, recall_T = _curve(score_N, is_class_N)
    if wanted.of == "recall":
        return float(cut_T[recall_T >= wanted.level].max())
    return float(cut_T[precision_T >= wanted.level].min(initial=NEVER))


def _curve(score_N: Values, is_class_N: Flags) -> tuple[Values, Values, Values]:
    """Return the thresholds that at least FEWEST records reach, with their precision and recall."""
    order = np.argsort(-score_N, kind="stable")
    score_N, right_N = score_N[order], np.cumsum(is_class_N[order])
    called_N = np.arange(1, len(score_N) + 1)
    is_last = np.append(np.diff(score_N) != 0, True)  # equal scores share a threshold
    is_last &= called_N >= min(FEWEST, len(score_N))
    right_T, called_T = right_N[is_last], called_N[is_last]
    return score_N[is_last], right_T / called_T, right_T / max(1, int(is_class_N.sum()))


def decided(scores_NC: Values, number: int, cut: float | Values) -> Labels:
    """Return the class number of each record: `number` if the score of this class reaches `cut`,
    else the other class with the highest score."""
    others_NC = scores_NC.copy()
    others_NC[:, number] = -1
    return np.where(scores_NC[:, number] >= cut, number, others_NC.argmax(1))


def classes_of(card: Card, scores_NC: Values) -> Labels:
    """Return the class number that a head predicts for each record."""
    if card.threshold is None:
        best_N: Labels = scores_NC.argmax(1)
        return best_N
    return decided(scores_NC, card.classes.index(card.threshold.class_name), card.threshold.score)


def of_class(score_N: Values, is_class_N: Flags, wanted: Wanted, where: str) -> float:
    """Return the threshold that `choose` returns; `where` begins the error message.

    Raises:
        UserError: if the precision is not reached.
    """
    cut = choose(score_N, is_class_N, wanted)
    if cut == NEVER:
        cut_T, precision_T, _ = _curve(score_N, is_class_N)
        best = int(precision_T.argmax())
        raise UserError(
            f"{where}: no threshold has a precision of {wanted.level:g} for "
            f"{clipped(wanted.class_name)!r}: on held-out records the highest is "
            f"{precision_T[best]:.3f}, of {records(int((score_N >= cut_T[best]).sum()))}; ask for "
            "less, or label more."
        )
    return cut


def of_folds(folds: Iterable[Fold], number: int, is_class_N: Flags, wanted: Wanted) -> Values:
    """Return the threshold for each record, chosen on the training data of its fold."""
    cut_N = np.full(len(is_class_N), NEVER)
    for fold in folds:
        score_N = fold.fitted.held_out_NC[:, number]
        cut_N[fold.held_out_N] = choose(score_N, is_class_N[fold.learns_N], wanted)
    return cut_N


def sentences(card: Card) -> str:
    """Describe the threshold of a head; "" if it has none."""
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
