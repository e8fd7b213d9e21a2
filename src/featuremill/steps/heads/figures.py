"""Scores of predictions (accuracy, AUC, R² and others) with 95 % intervals, and stratified folds.

A score is a function of weights, the number of times that each item counts. In a bootstrap draw of
whole groups, the weight of an item is how often its group was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.steps.heads.card import Bin

__all__ = ["Estimate", "confusion", "estimates", "of_counts"]
FOLDS = 5
RESAMPLES = 1000
FEW_GROUPS = 20
"""Number of groups below which an interval is rough."""
SHARED = 2.0
"""The ratio of a score's variance to that of the held-out records alone. Heads of two folds learn
from each other's records, so without a signal each pair of records counts twice."""
NORMAL = 1.959964
"""The 97.5 % quantile of the normal distribution."""
RANGES = {
    "mcc": (-1, 1),
    "spearman": (-1, 1),
    "gain": (-1, 1),
    "r2": (-np.inf, 1),
    "rmse": (0, np.inf),
}
"""The range of scores that are not between 0 and 1."""
TINY = 1e-12
"""Sums of shares that differ by less count as equal."""
BINS = 10
Labels = npt.NDArray[np.int64]
"""The class number of each item."""
Values = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A score and its 95 % interval."""

    value: float
    low: float
    high: float


def estimates(
    figures_of: Callable[[Values], Mapping[str, float]], groups_N: npt.NDArray[Any]
) -> dict[str, Estimate]:
    """Return each score with its interval, from the deviation over bootstrap draws of groups.

    Student's t allows for few groups, and SHARED for heads that learn from each other's records.
    `groups_N` has the group of each item. Draws for which a score is NaN are ignored.
    """
    _, group_N = np.unique(groups_N, return_inverse=True)
    num_groups, random = int(group_N.max()) + 1, np.random.default_rng(0)
    values = figures_of(np.ones(len(group_N)))
    draws_DK = np.empty((RESAMPLES, len(values)))
    for row_K in draws_DK:
        drawn = np.bincount(random.integers(num_groups, size=num_groups), minlength=num_groups)
        row_K[:] = [*figures_of(drawn[group_N].astype(np.float64)).values()]
    wider = _student(num_groups - 1) * np.sqrt(SHARED * num_groups / max(1, num_groups - 1))
    intervals = {}
    for (name, value), draws_D in zip(values.items(), draws_DK.T, strict=True):
        draws_D = draws_D[~np.isnan(draws_D)]
        least, most = RANGES.get(name, (0, 1))
        intervals[name] = Estimate(0.0, least, most)  # a class never predicted has no precision
        if not np.isnan(value) and len(draws_D):
            reach = float(wider * draws_D.std())
            low, high = max(least, value - reach), min(most, value + reach)
            intervals[name] = Estimate(float(value), low, high)
    return intervals


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, by the expansion of Cornish and Fisher."""
    z, n = NORMAL, max(1, freedom)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def folds_of(
    groups_N: npt.NDArray[Any], y_N: Labels, num_folds: int, seed: int
) -> npt.NDArray[np.int64]:
    """Return the fold of each item: groups stay whole, and each fold gets about the same share of
    every class.

    Groups with large shares of a class are assigned first, each to the fold where the sum of
    squared shares grows least; among equal folds, to the fold with the fewest items. This takes
    20 µs per group, scikit-learn's StratifiedGroupKFold more than 1 ms.
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


def confusion(
    predicted_N: Labels, true_N: Labels, num_classes: int, weight_N: Values | None = None
) -> npt.NDArray[Any]:
    """Return the confusion matrix: items of each true class (rows) by predicted class (columns)."""
    cell_N = true_N * num_classes + predicted_N
    counts = np.bincount(cell_N, weight_N, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def of_counts(counts_CC: npt.NDArray[Any]) -> dict[str, float]:
    """Return the figures that follow from the confusion matrix.

    They are those of `accuracy_score`, `balanced_accuracy_score`, `f1_score(average="macro")` and
    `matthews_corrcoef` of scikit-learn, without what these take to read labels for each draw.
    """
    true_C, predicted_C = counts_CC.sum(1).astype(float), counts_CC.sum(0).astype(float)
    right_C, num = np.diag(counts_CC).astype(float), float(counts_CC.sum())
    covariance = num * right_C.sum() - true_C @ predicted_C
    spread = (num**2 - true_C @ true_C) * (num**2 - predicted_C @ predicted_C)
    return {
        "accuracy": float(right_C.sum() / num),
        "balanced_accuracy": float(np.nanmean(_ratio(right_C, true_C))),
        "macro_f1": float(np.nanmean(_ratio(2 * right_C, true_C + predicted_C))),
        "mcc": float(covariance / np.sqrt(spread)) if spread > 0 else 0.0,
    }


OF_CLASSES = ("precision", "recall", "f1")


def of_classes(counts_CC: npt.NDArray[Any]) -> dict[str, Values]:
    """Return precision, recall and F1 of each class; NaN where there is none."""
    true_C, predicted_C, right_C = counts_CC.sum(1), counts_CC.sum(0), np.diag(counts_CC)
    ratios = ((right_C, predicted_C), (right_C, true_C), (2 * right_C, true_C + predicted_C))
    return {name: _ratio(*ratio) for name, ratio in zip(OF_CLASSES, ratios, strict=True)}


def _ratio(above_C: npt.NDArray[Any], below_C: npt.NDArray[Any]) -> Values:
    """Return above / below; NaN where below is 0."""
    ratio_C = np.full(len(above_C), np.nan)
    np.divide(above_C, below_C, out=ratio_C, where=below_C > 0)
    return ratio_C


def of_guesses(sizes_C: npt.NDArray[Any]) -> dict[str, float]:
    """Return the figures of guesses: always the most frequent class, and the shares as scores."""
    rates_C = sizes_C / sizes_C.sum()
    most, num_classes = float(rates_C.max()), len(sizes_C)
    return {
        "accuracy": most,
        "balanced_accuracy": 1 / num_classes,
        "macro_f1": 2 * most / (1 + most) / num_classes,
        "mcc": 0.0,
        "auc": 0.5,
        "brier": float(1 - np.square(rates_C).sum()) / 2,
    }


def ranks(score_N: Values, folds_N: Labels) -> Callable[[Values], Values]:
    """Return a function of weights: for each item, the weight of items of its fold with a lower
    score, plus half the weight of items with the same score. Scores are sorted once."""
    order = np.lexsort((score_N, folds_N))
    in_order, fold_N = score_N[order], folds_N[order]
    is_new = np.append(True, (np.diff(in_order) != 0) | (np.diff(fold_N) != 0))
    tie_N, fold_T = np.cumsum(is_new) - 1, fold_N[is_new]

    def ranks_of(weight_N: Values) -> Values:
        weight_T = np.bincount(tie_N, weight_N[order])
        weight_F = np.bincount(folds_N, weight_N)
        before_F = np.cumsum(weight_F) - weight_F
        rank_N = np.empty(len(order))
        rank_N[order] = (np.cumsum(weight_T) - weight_T / 2 - before_F[fold_T])[tie_N]
        return rank_N

    return ranks_of


def auc(
    score_N: Values, is_positive_N: npt.NDArray[np.bool_], folds_N: Labels
) -> Callable[[Values], float]:
    """Return a function of weights: the probability that a positive has a higher score than a
    negative of its fold; ties count half. NaN if no fold has both.

    Each fold has its own head. If a fold has many items of a class, its head learnt from few and
    gives the class lower scores. Pairs across folds would give random labels an AUC below 0.5
    (Parker, Günter and Bedo 2007, doi:10.1186/1471-2105-8-326).
    """
    ranks_of = ranks(score_N, folds_N)

    def auc_of(weight_N: Values) -> float:
        positive_N, negative_N = weight_N * is_positive_N, weight_N * ~is_positive_N
        pairs = np.bincount(folds_N, positive_N) @ np.bincount(folds_N, negative_N)
        return float(positive_N @ ranks_of(negative_N) / pairs) if pairs else float("nan")

    return auc_of


def mean_auc(scores_NC: Values, y_N: Labels, folds_N: Labels) -> Callable[[Values], float]:
    """Return a function of weights: the mean over classes of the AUC within folds."""
    # With two classes, both scores have the same AUC.
    classes = range(1 if scores_NC.shape[1] == 2 else 0, scores_NC.shape[1])
    aucs = [auc(scores_NC[:, number], y_N == number, folds_N) for number in classes]
    return lambda weight_N: float(np.mean([auc_of(weight_N) for auc_of in aucs]))


def brier(scores_NC: Values, y_N: Labels) -> Values:
    """Return the Brier score of each item: half the sum over classes of the squared difference
    between the score and 1 for the true class, 0 for another."""
    score_N: Values = np.square(scores_NC - np.eye(scores_NC.shape[1])[y_N]).sum(1) / 2
    return score_N


def r2(value_N: Values, y_N: Values, weight_N: Values) -> float:
    """Return the explained share of the variance; NaN if the variance is 0."""
    total = weight_N @ np.square(y_N - np.average(y_N, weights=weight_N))
    return float(1 - weight_N @ np.square(value_N - y_N) / total) if total > 0 else float("nan")


def rmse(value_N: Values, y_N: Values, weight_N: Values) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.average(np.square(value_N - y_N), weights=weight_N)))


def spearman(value_N: Values, y_N: Values, folds_N: Labels) -> Callable[[Values], float]:
    """Return a function of weights: Spearman's rank correlation within folds, the mean over items;
    NaN if no fold has different numbers.

    As for the AUC, values of different folds come from different regressions. Each predicts about
    the mean of its training data, which is high if the numbers of its fold are low.
    """
    functions = [ranks(each_N, folds_N) for each_N in (value_N, y_N)]

    def spearman_of(weight_N: Values) -> float:
        weight_F = np.bincount(folds_N, weight_N)
        x_N, z_N = (ranks_of(weight_N) - weight_F[folds_N] / 2 for ranks_of in functions)
        x_F, z_F, xz_F = (
            np.bincount(folds_N, weight_N * product_N) for product_N in (x_N**2, z_N**2, x_N * z_N)
        )
        varies_F = z_F > TINY
        both_F = x_F * z_F
        r_F = np.divide(xz_F, np.sqrt(both_F), out=np.zeros(len(xz_F)), where=both_F > TINY)
        num = weight_F[varies_F].sum()
        return float(weight_F[varies_F] @ r_F[varies_F] / num) if num else float("nan")

    return spearman_of


def reliability(scores_NC: Values, y_N: Labels, classes: Sequence[str]) -> list[Bin]:
    """Return, for each class, the items in tenths of the score; of two classes, for the second."""
    bins = []
    for number in range(1 if len(classes) == 2 else 0, len(classes)):
        score_N = scores_NC[:, number]
        bin_N = np.minimum((score_N * BINS).astype(np.int64), BINS - 1)
        for bin in np.unique(bin_N).tolist():
            is_in_N = bin_N == bin
            bins.append(
                Bin(
                    class_name=classes[number],
                    low=bin / BINS,
                    high=(bin + 1) / BINS,
                    records=int(is_in_N.sum()),
                    mean_score=float(score_N[is_in_N].mean()),
                    share=float((y_N[is_in_N] == number).mean()),
                )
            )
    return bins
