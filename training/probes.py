"""What pooled features know of a protein's origin: linear probes, grouped by genus.

Logistic regression on standardised features, five folds: no genus is on both sides of a fold, and
one protein stands for each cluster. How strongly it is regularised is chosen by a fold inside each
training side, for every kind of features alike: what `featuremill head train` does. Figures are
over the predictions of all folds; intervals are a bootstrap over genera, with the same draws for
every kind of features.
"""

from __future__ import annotations

import numpy as np
from shards import AMINO_ACIDS

from featuremill.head.figures import auc, folds_of, macro_f1
from featuremill.head.fitting import Logistic, out_of_fold
from featuremill.head.intervals import Estimate, bootstrap

__all__ = ["Probes", "auc", "composition", "folds_of", "macro_f1"]


def composition(sequences: list[str]) -> np.ndarray:
    """Return each protein's amino-acid composition (N, 20)."""
    return np.array([[s.count(letter) / len(s) for letter in AMINO_ACIDS] for s in sequences])


class Probes:
    """What linear probes of one kind of features say of the proteins' origin, out of fold."""

    def __init__(self, x_NF: np.ndarray, kingdoms_N: np.ndarray, genera_N: np.ndarray) -> None:
        self.genera_N, self.is_viral_N = genera_N, kingdoms_N == "Viruses"
        _, self.kingdom_N = np.unique(kingdoms_N, return_inverse=True)
        self.predicted_N = out_of_fold(Logistic(), x_NF, self.kingdom_N, genera_N).argmax(1)
        odds_N2 = out_of_fold(Logistic(), x_NF, self.is_viral_N.astype(np.int64), genera_N)
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
