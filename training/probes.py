"""What pooled features know of a protein's origin: linear probes, grouped by genus.

Logistic regression on standardised features, five folds: no genus is on both sides of a fold, and
one protein stands for each cluster. How strongly it is regularised is chosen by a fold inside each
training side, for every kind of features alike. Figures are over the predictions of all folds;
intervals are a bootstrap over genera, with the same draws for every kind of features.
"""

from __future__ import annotations

import numpy as np
import torch
from intervals import Estimate, bootstrap
from shards import AMINO_ACIDS
from torch.nn import functional

FOLDS = 5
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of the sum of squared weights, beside the mean loss


def composition(sequences: list[str]) -> np.ndarray:
    """Return each protein's amino-acid composition (N, 20)."""
    return np.array([[s.count(letter) / len(s) for letter in AMINO_ACIDS] for s in sequences])


def folds_of(groups_N: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Return the fold of each item; groups stay whole, and folds get nearly equally many items."""
    names, sizes = np.unique(groups_N, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold_of, filled = {}, np.zeros(num_folds, np.int64)
    for group in order:
        fold_of[names[group]] = int(filled.argmin())
        filled[filled.argmin()] += sizes[group]
    return np.array([fold_of[group] for group in groups_N])


def fit(x_NF: np.ndarray, y_N: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (F, C) and biases (C) of a logistic regression, classes weighted alike."""
    x, y = torch.from_numpy(x_NF).float(), torch.from_numpy(y_N)
    counts = torch.bincount(y).float()
    weight = torch.zeros(x.shape[1], len(counts), requires_grad=True)
    bias = torch.zeros(len(counts), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(x @ weight + bias, y, weight=1 / counts)
        loss = loss + penalty * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach().numpy(), bias.detach().numpy()


def scores(
    x_NF: np.ndarray, y_N: np.ndarray, is_training_N: np.ndarray, penalty: float
) -> np.ndarray:
    """Return the log-odds (n, C) of those that are not trained on."""
    mean, deviation = x_NF[is_training_N].mean(0), x_NF[is_training_N].std(0) + 1e-8
    standard = (x_NF - mean) / deviation
    weight, bias = fit(standard[is_training_N], y_N[is_training_N], penalty)
    return standard[~is_training_N] @ weight + bias


def out_of_fold(x_NF: np.ndarray, y_N: np.ndarray, groups_N: np.ndarray) -> np.ndarray:
    """Return the scores (N, C) of each protein by a probe that saw nothing of its genus."""
    found = np.empty((len(y_N), y_N.max() + 1))
    folds_N = folds_of(groups_N, FOLDS, 0)
    for fold in range(FOLDS):
        outside = folds_N != fold
        x, y = x_NF[outside], y_N[outside]
        inner = folds_of(groups_N[outside], FOLDS, 1) != 0
        figures = [
            macro_f1(scores(x, y, inner, penalty).argmax(1), y[~inner]) for penalty in PENALTIES
        ]
        found[~outside] = scores(x_NF, y_N, outside, PENALTIES[int(np.argmax(figures))])
    return found


def macro_f1(predicted_N: np.ndarray, true_N: np.ndarray) -> float:
    """Return the mean over classes of F1."""
    size = max(predicted_N.max(), true_N.max()) + 1
    table = np.bincount(true_N * size + predicted_N, minlength=size * size).reshape(size, size)
    wrong = table.sum(0) + table.sum(1)
    present = wrong > 0
    return float(np.mean(2 * np.diag(table)[present] / wrong[present]))


def auc(score_N: np.ndarray, is_positive_N: np.ndarray) -> float:
    """Return the chance that a positive has a higher score than a negative; ties count half."""
    _, place, counts = np.unique(score_N, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives = int(is_positive_N.sum())
    negatives = len(score_N) - positives
    return float(
        (rank_N[is_positive_N].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    )


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
        return auc(self.odds_N[drawn], self.is_viral_N[drawn])

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
