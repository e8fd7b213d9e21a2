"""How good predictions are, and the folds by which that is found out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FOLDS = 5
Labels = npt.NDArray[np.int64]
"""The number of each item's class."""


def folds_of(groups_N: npt.NDArray[Any], num_folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold of each item; groups stay whole, and folds get nearly equally many items."""
    _, group_N, sizes = np.unique(groups_N, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold_of, filled = np.empty(len(sizes), np.int64), np.zeros(num_folds, np.int64)
    for group in order:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[group_N]


def confusion(predicted_N: Labels, true_N: Labels, num_classes: int) -> npt.NDArray[np.int64]:
    """Return how many items of each true class (rows) are predicted as each class (columns)."""
    places = true_N * num_classes + predicted_N
    return np.bincount(places, minlength=num_classes**2).reshape(num_classes, num_classes)


def accuracy(predicted_N: Labels, true_N: Labels) -> float:
    """Return the share of items whose class is predicted."""
    return float((predicted_N == true_N).mean())


def macro_f1(predicted_N: Labels, true_N: Labels) -> float:
    """Return the mean over classes of F1."""
    table = confusion(predicted_N, true_N, max(predicted_N.max(), true_N.max()) + 1)
    wrong = table.sum(0) + table.sum(1)
    present = wrong > 0
    return float(np.mean(2 * np.diag(table)[present] / wrong[present]))


def auc(score_N: npt.NDArray[Any], is_positive_N: npt.NDArray[np.bool_]) -> float:
    """Return the chance that a positive has a higher score than a negative; ties count half.

    NaN where there is no positive or no negative.
    """
    positives = int(is_positive_N.sum())
    negatives = len(score_N) - positives
    if not positives or not negatives:
        return float("nan")
    _, place, counts = np.unique(score_N, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float(
        (rank_N[is_positive_N].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    )
