"""Metrics of the agreement of vectors with labels: silhouette and kNN purity.

Distances are Euclidean, between vectors and not between points of the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MOST_RECORDS = 2_000
"""The most records that are compared; all their distances take seconds at 5,120 dimensions."""
NEIGHBOURS = 10
ROWS = 256
"""Records whose distances are computed at a time."""


class Agreement(NamedTuple):
    """The metrics of the compared records."""

    silhouette: float
    """The mean of (b - a) / max(a, b), with a the mean distance to other records of the label, and
    b to records of the nearest other label; 0 for a label with one record (Rousseeuw 1987)."""
    purity: float
    """The mean share of the `num_neighbours` nearest records that have the same label."""
    chance: float
    """The expected purity with random neighbours."""
    num_records: int
    num_labels: int
    num_neighbours: int


def agreement(vectors_ND: npt.NDArray[Any], labels: Sequence[str | None]) -> Agreement | None:
    """Return the metrics of evenly spaced labelled records; None with too few."""
    labelled = np.flatnonzero([label is not None for label in labels])
    few = np.linspace(0, len(labelled) - 1, min(MOST_RECORDS, len(labelled))).round().astype(int)
    chosen = labelled[few]
    names, code_N = np.unique([str(labels[row]) for row in chosen], return_inverse=True)
    if len(names) < 2 or len(chosen) < 3:
        return None
    # Sort by label, so that the distances to each label are adjacent columns.
    order = np.argsort(code_N, kind="stable")
    code_N = code_N[order]
    wide_ND = vectors_ND[chosen[order]].astype(np.float64)
    wide_ND -= wide_ND.mean(axis=0)
    squares_N = np.einsum("nd,nd->n", wide_ND, wide_ND)
    starts, sizes = np.unique(code_N, return_index=True, return_counts=True)[1:]
    num_neighbours = min(NEIGHBOURS, len(chosen) - 1)
    silhouettes, shares = [], []
    for first in range(0, len(chosen), ROWS):
        rows = np.arange(first, min(first + ROWS, len(chosen)))
        products = wide_ND[rows] @ wide_ND.T
        distances = np.sqrt(np.maximum(squares_N[rows, None] + squares_N - 2 * products, 0))
        distances[rows - first, rows] = 0
        silhouettes.append(_silhouettes(distances, code_N[rows], starts, sizes))
        distances[rows - first, rows] = np.inf
        nearest = np.argpartition(distances, num_neighbours - 1, axis=1)[:, :num_neighbours]
        shares.append((code_N[nearest] == code_N[rows, None]).mean(axis=1))
    silhouette, purity = (float(np.concatenate(pieces).mean()) for pieces in (silhouettes, shares))
    chance = float((sizes * (sizes - 1)).sum() / (len(chosen) * (len(chosen) - 1)))
    return Agreement(silhouette, purity, chance, len(chosen), len(names), num_neighbours)


def _silhouettes(distances_RN: Any, code_R: Any, starts_L: Any, sizes_L: Any) -> Any:
    sums_RL = np.add.reduceat(distances_RN, starts_L, axis=1)
    rows, others_R = np.arange(len(code_R)), sizes_L[code_R] - 1
    own_R = sums_RL[rows, code_R] / np.maximum(others_R, 1)
    means_RL = sums_RL / sizes_L
    means_RL[rows, code_R] = np.inf
    nearest_R = means_RL.min(axis=1)
    largest_R = np.maximum(own_R, nearest_R)
    silhouettes_R = np.divide(
        nearest_R - own_R, largest_R, out=np.zeros(len(rows)), where=largest_R > 0
    )
    return np.where(others_R > 0, silhouettes_R, 0.0)
