"""Figures of predictions, and the folds to measure them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["accuracy", "confusion"]
FOLDS = 5
TINY = 1e-12
"""Sums of shares that differ by less are equal."""
BINS = 10
"""Bins of a reliability table."""
Labels = npt.NDArray[np.int64]
"""The number of each item's class."""


class OfSample(NamedTuple):
    """The labelled records of a sample."""

    sample: str
    records: int
    right: int
    """Records with a correct prediction by a head that did not see their group."""


def folds_of(
    groups_N: npt.NDArray[Any], y_N: Labels, num_folds: int, seed: int
) -> npt.NDArray[np.int64]:
    """Return the fold of each item: groups stay whole, and each fold gets about the same share of
    every class.

    Groups with large shares of a class are placed first, each in the fold where the sum of squared
    shares grows least; among equal folds, in the one with fewest items.
    """
    _, group_N, sizes = np.unique(groups_N, return_inverse=True, return_counts=True)
    num_classes = int(y_N.max()) + 1
    counts_GC = np.zeros((len(sizes), num_classes))
    np.add.at(counts_GC, (group_N, y_N), 1)
    shares_GC = counts_GC / np.maximum(1, counts_GC.sum(0))
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-np.square(shares_GC[order]).sum(1), kind="stable")]
    fold_of, filled_F = np.empty(len(sizes), np.int64), np.zeros(num_folds)
    shares_FC = np.zeros((num_folds, num_classes))
    for group in order:
        growth_F = shares_FC @ shares_GC[group]
        least = np.flatnonzero(growth_F <= growth_F.min() + TINY)
        fold = fold_of[group] = least[filled_F[least].argmin()]
        filled_F[fold] += sizes[group]
        shares_FC[fold] += shares_GC[group]
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


def balanced_accuracy(predicted_N: Labels, true_N: Labels) -> float:
    """Return the mean over the classes that there are of the share of a class that is predicted."""
    table = confusion(predicted_N, true_N, max(predicted_N.max(), true_N.max()) + 1)
    sizes = table.sum(1)
    return float((np.diag(table)[sizes > 0] / sizes[sizes > 0]).mean())


def mcc(predicted_N: Labels, true_N: Labels) -> float:
    """Return Matthews' correlation of predicted and true classes, for any number of them (Gorodkin
    2004, doi:10.1016/j.compbiolchem.2004.09.006); 0 where one side has a single class."""
    table = confusion(predicted_N, true_N, max(predicted_N.max(), true_N.max()) + 1)
    true_C, predicted_C, num = table.sum(1).astype(float), table.sum(0).astype(float), len(true_N)
    covariance = num * np.trace(table) - true_C @ predicted_C
    spread = (num**2 - true_C @ true_C) * (num**2 - predicted_C @ predicted_C)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def auc(score_N: npt.NDArray[Any], is_positive_N: npt.NDArray[np.bool_], folds_N: Labels) -> float:
    """Return the chance that a positive has a higher score than a negative of its fold; ties count
    half. NaN if no fold has both.

    Each fold has a head of its own. Where a fold holds many of a class, its head learnt from few
    and gives the class lower scores, so over pairs of different folds random labels have an AUC
    below 0.5 (Parker, Günter and Bedo 2007, doi:10.1186/1471-2105-8-326).
    """
    order = np.lexsort((score_N, folds_N))
    score_N, is_positive_N, folds_N = score_N[order], is_positive_N[order], folds_N[order]
    is_new = (np.diff(score_N) != 0) | (np.diff(folds_N) != 0)
    tied_N = np.append(0, np.cumsum(is_new))
    counts = np.bincount(tied_N)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[tied_N]
    sizes_F, positives_F = np.bincount(folds_N), np.bincount(folds_N[is_positive_N])
    positives_F = np.pad(positives_F, (0, len(sizes_F) - len(positives_F)))
    rank_N -= (np.cumsum(sizes_F) - sizes_F)[folds_N]
    pairs = int((positives_F * (sizes_F - positives_F)).sum())
    if not pairs:
        return float("nan")
    wins = rank_N[is_positive_N].sum() - (positives_F * (positives_F + 1)).sum() / 2
    return float(wins / pairs)


def mean_auc(scores_NC: npt.NDArray[np.float64], y_N: Labels, folds_N: Labels) -> float:
    """Return the mean over classes of the AUC of a class's score within folds; for two classes, the
    AUC."""
    # With two classes, both scores have the same AUC.
    classes = range(1 if scores_NC.shape[1] == 2 else 0, scores_NC.shape[1])
    aucs = [auc(scores_NC[:, number], y_N == number, folds_N) for number in classes]
    return float(np.mean(aucs))


def brier(scores_NC: npt.NDArray[np.float64], y_N: Labels) -> float:
    """Return the mean over items of the Brier score: half the sum over classes of the squared
    difference between the score and 1 for the true class, 0 for another."""
    return float(np.square(scores_NC - np.eye(scores_NC.shape[1])[y_N]).sum(1).mean() / 2)


def log_loss(scores_NC: npt.NDArray[np.float64], y_N: Labels) -> float:
    """Return the mean of -log of the true class's score."""
    true_N = scores_NC[np.arange(len(y_N)), y_N]
    return float(-np.log(np.maximum(true_N, np.finfo(np.float64).tiny)).mean())


def of_guesses(y_N: Labels, num_classes: int) -> dict[str, float]:
    """Return the figures of guessing without features: the most frequent class for all items, and
    the frequencies of the classes as scores."""
    rates_C = np.bincount(y_N, minlength=num_classes) / len(y_N)
    most = float(rates_C.max())
    return {
        "accuracy": most,
        "balanced_accuracy": 1 / num_classes,
        "macro_f1": 2 * most / (1 + most) / num_classes,
        "mcc": 0.0,
        "auc": 0.5,
        "brier": float(1 - np.square(rates_C).sum()) / 2,
    }


class Bin(NamedTuple):
    """Items with similar scores for a class."""

    number: int
    """Number of the class."""
    low: float
    high: float
    items: int
    mean_score: float
    share: float
    """Share of these items that are of the class."""


def reliability(scores_NC: npt.NDArray[np.float64], y_N: Labels) -> list[Bin]:
    """Return, for each class, the items in tenths of the score; of two classes, for the second."""
    bins = []
    for number in range(1 if scores_NC.shape[1] == 2 else 0, scores_NC.shape[1]):
        score_N = scores_NC[:, number]
        bin_N = np.minimum((score_N * BINS).astype(np.int64), BINS - 1)
        for place in np.unique(bin_N).tolist():
            inside = bin_N == place
            mean, share = score_N[inside].mean(), (y_N[inside] == number).mean()
            bounds = place / BINS, (place + 1) / BINS
            bins.append(Bin(number, *bounds, int(inside.sum()), float(mean), float(share)))
    return bins
