"""Project vectors to a plane: principal components and t-SNE."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

PACKAGE = "openTSNE"
COMPONENTS = 50
"""The number of principal components that t-SNE uses."""
LEAST_RECORDS = 10
DIGITS = 6
"""The decimals of the components; further digits would depend on threads and processors."""
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
