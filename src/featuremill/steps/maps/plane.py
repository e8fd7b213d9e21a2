"""Project vectors to a plane (principal components and t-SNE), and measure how well they
agree with labels (silhouette and kNN purity).

Distances to labels are Euclidean, between vectors and not between points of the map.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

PACKAGE = "openTSNE"
COMPONENTS = 50
"""The number of principal components that t-SNE uses."""
LEAST_RECORDS = 10
DIGITS = 6
"""The decimals of the components; further digits would depend on threads and processors."""
MOST_COMPARED = 2_000
"""The most records that are compared; all their distances take seconds at 5,120 dimensions."""
NEIGHBOURS = 10
ROWS = 256
"""Records whose distances are computed at a time."""
Plane = npt.NDArray[np.float64]


def is_installed() -> bool:
    """Return whether openTSNE is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def components(vectors: npt.NDArray[Any], number: int) -> tuple[Plane, Plane]:
    """Return the first `number` principal components of `vectors` (N, D), and their shares of the
    variance.

    Large matrices are first reduced by a randomised range finder with a fixed seed (Halko,
    Martinsson and Tropp 2011, algorithm 4.4). For 5,000 × 5,120 it takes seconds on one core, where
    the exact SVD takes minutes, and the difference is invisible on a map.
    """
    centred = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    variance = float(np.square(centred, dtype=np.float64).sum())
    rows, width = centred.shape
    narrow: npt.NDArray[Any] = centred
    most = number + 30
    if min(rows, width) > 2 * most:
        guess = np.random.default_rng(0).standard_normal((width, most), dtype=np.float32)
        for _ in range(20 if number <= 2 else 8):
            guess = np.linalg.qr(centred.T @ (centred @ guess))[0]
        narrow = centred @ guess
    u, scale, _ = np.linalg.svd(narrow.astype(np.float64), full_matrices=False)
    axes = u[:, :number] * scale[:number]
    for axis in range(axes.shape[1]):  # signs are arbitrary: make the farthest point positive
        axes[:, axis] *= 1.0 if axes[np.abs(axes[:, axis]).argmax(), axis] >= 0 else -1.0
    share = np.square(scale[:number]) / variance if variance > 0 else np.zeros(axes.shape[1])
    return axes, share


def neighbour_plane(vectors: npt.NDArray[Any], seed: int, perplexity: float) -> Plane:
    """Return the t-SNE (N, 2) of the principal components of `vectors` (N, D) (van der Maaten and
    Hinton 2008; openTSNE, Poličar et al. 2024).

    Uses one thread, as the order of sums changes the map.
    """
    from openTSNE import TSNE

    axes, _ = components(vectors.astype(np.float64), COMPONENTS)
    axes = (axes / (np.abs(axes).max() or 1.0)).round(DIGITS)
    first = axes[:, :2] / (axes[:, 0].std() or 1.0) * 1e-4
    perplexity = perplexity_of(len(axes), perplexity)
    plane = TSNE(perplexity=perplexity, initialization=first, random_state=seed, n_jobs=1).fit(axes)
    return np.asarray(plane, np.float64)


def perplexity_of(num_records: int, wanted: float) -> float:
    """Return `wanted`, or the highest perplexity that is possible for the number of records."""
    return min(wanted, (num_records - 1) / 3)


def versions() -> Mapping[str, Any]:
    """Return the versions of the packages that affect the map."""
    from importlib import metadata

    return {name: metadata.version(name) for name in ("numpy", "openTSNE", "scikit-learn", "scipy")}


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
    few = np.linspace(0, len(labelled) - 1, min(MOST_COMPARED, len(labelled))).round().astype(int)
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
