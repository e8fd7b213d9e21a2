"""What pooled features know of a protein's origin: linear probes, grouped by genus.

Logistic regression on standardised features, five folds: no genus is on both sides of a fold, and
one protein stands for each cluster. How strongly it is regularised is chosen by macro-F1 on a fold
inside each training side, for every kind of features alike. Figures are over the predictions of all
folds; intervals are a bootstrap over genera, with the same draws for every kind of features.

This protocol stays as it was when the cards' figures were measured. `featuremill head train` fits
the same regression, spreads classes over folds, and chooses by the log-loss of calibrated scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from shards import AMINO_ACIDS
from sklearn.metrics import f1_score, roc_auc_score

from featuremill.steps.heads.fitting import Logistic, Rows
from featuremill.steps.heads.network import logits

__all__ = ["Estimate", "Probes", "bootstrap", "composition", "folds_of"]

FOLDS = 5
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
DRAWS = 1000


class Estimate(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} | {self.low:.3f}–{self.high:.3f}"


def bootstrap(statistic: Callable[[np.ndarray], float], groups_N: np.ndarray) -> Estimate:
    """Return `statistic` of all N items, and its 95 % interval from draws of whole groups. It gets
    the items' indices. Draws whose statistic is NaN do not count."""
    random = np.random.default_rng(0)
    order = np.argsort(groups_N, kind="stable")
    _, sizes = np.unique(groups_N, return_counts=True)
    members = np.split(order, np.cumsum(sizes)[:-1])
    values = []
    for _ in range(DRAWS):
        drawn = random.integers(len(members), size=len(members))
        values.append(statistic(np.concatenate([members[group] for group in drawn])))
    low, high = np.nanpercentile(values, (2.5, 97.5))
    return Estimate(statistic(np.arange(len(groups_N))), float(low), float(high))


def macro_f1(predicted_N: np.ndarray, true_N: np.ndarray) -> float:
    """Return the mean over classes of F1."""
    return float(f1_score(true_N, predicted_N, average="macro"))


def composition(sequences: list[str]) -> np.ndarray:
    """Return each protein's amino-acid composition (N, 20)."""
    return np.array([[s.count(letter) / len(s) for letter in AMINO_ACIDS] for s in sequences])


def folds_of(groups_N: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Return the fold of each item; groups stay whole, and folds get nearly equally many items."""
    _, group_N, sizes = np.unique(groups_N, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold_of, filled = np.empty(len(sizes), np.int64), np.zeros(num_folds, np.int64)
    for group in order:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[group_N]


def out_of_fold(x_NF: np.ndarray, y_N: np.ndarray, groups_N: np.ndarray) -> np.ndarray:
    """Return the log-odds (N, C) of each item by a head that saw nothing of its group."""
    num_classes, folds_N = int(y_N.max()) + 1, folds_of(groups_N, FOLDS, 0)
    found_NC = np.empty((len(y_N), num_classes))
    for fold in range(FOLDS):
        outside = folds_N != fold
        x, y = x_NF[outside], y_N[outside]
        inner_N = folds_of(groups_N[outside], FOLDS, 1) != 0
        penalty = _penalty(x, y, inner_N, num_classes)
        head = _fitted(x, y, penalty, num_classes)
        found_NC[~outside] = logits(head, x_NF[~outside])
    return found_NC


def _penalty(x: np.ndarray, y: np.ndarray, inner_N: np.ndarray, num_classes: int) -> float:
    """Return the penalty that predicts best, by macro-F1, what is not in `inner_N` from what is."""
    found = []
    for penalty in PENALTIES:
        head = _fitted(x[inner_N], y[inner_N], penalty, num_classes)
        found.append(macro_f1(logits(head, x[~inner_N]).argmax(1), y[~inner_N]))
    return PENALTIES[int(np.argmax(found))]


def _fitted(x: np.ndarray, y: np.ndarray, penalty: float, num_classes: int) -> dict:
    each_N = np.arange(len(y))
    return next(Logistic().heads(Rows(x, y, each_N, each_N, num_classes), [penalty]))


def pooled_auc(odds_N: np.ndarray, is_positive_N: np.ndarray) -> float:
    """Return the AUC over pairs of all folds, as when the cards' figures were measured."""
    if is_positive_N.all() or not is_positive_N.any():
        return float("nan")
    return float(roc_auc_score(is_positive_N, odds_N))


class Probes:
    """What linear probes of one kind of features say of the proteins' origin, out of fold."""

    def __init__(self, x_NF: np.ndarray, kingdoms_N: np.ndarray, genera_N: np.ndarray) -> None:
        self.genera_N, self.is_viral_N = genera_N, kingdoms_N == "Viruses"
        _, self.kingdom_N = np.unique(kingdoms_N, return_inverse=True)
        self.predicted_N = out_of_fold(x_NF, self.kingdom_N, genera_N).argmax(1)
        odds_N2 = out_of_fold(x_NF, self.is_viral_N.astype(np.int64), genera_N)
        self.odds_N = odds_N2[:, 1] - odds_N2[:, 0]

    def kingdom(self, drawn: np.ndarray) -> float:
        """Return the kingdom probe's macro-F1 on some of the proteins."""
        return macro_f1(self.predicted_N[drawn], self.kingdom_N[drawn])

    def viral(self, drawn: np.ndarray) -> float:
        """Return the viral probe's AUC on some of the proteins."""
        return pooled_auc(self.odds_N[drawn], self.is_viral_N[drawn])

    def figures(self) -> dict[str, Estimate]:
        """Return both figures."""
        tasks = (self.kingdom, self.viral)
        return {task.__name__: bootstrap(task, self.genera_N) for task in tasks}

    def gain(self, other: Probes) -> dict[str, Estimate]:
        """Return how much higher both figures are than those of other features, pair by pair."""
        pairs = ((self.kingdom, other.kingdom), (self.viral, other.viral))
        return {
            mine.__name__: bootstrap(lambda i, a=mine, b=theirs: a(i) - b(i), self.genera_N)
            for mine, theirs in pairs
        }
