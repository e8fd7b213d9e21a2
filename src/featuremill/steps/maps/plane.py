"""Vectors on a plane: principal components, and a neighbour embedding (t-SNE)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

PACKAGE = "openTSNE"
COMPONENTS = 50
"""The principal components of the vectors in which neighbours are sought."""
LEAST_RECORDS = 10
DIGITS = 6
"""The decimal digits of the components: the last digits of sums depend on threads and on the
processor, and t-SNE would make another map of each."""
Plane = npt.NDArray[np.float64]


def is_installed() -> bool:
    """Return whether t-SNE can be computed here."""
    return importlib.util.find_spec(PACKAGE) is not None


def components(vectors: npt.NDArray[Any], number: int) -> tuple[Plane, Plane]:
    """Return `vectors` (N, D) on their first principal axes, at most `number`, and the share of
    the variance along each.

    Wide values are first narrowed by a randomised range finder with a fixed seed (Halko, Martinsson
    and Tropp 2011, algorithm 4.4): the exact SVD of 5,000 × 5,120 takes minutes on one core, this
    takes seconds, and the first components agree beyond what a screen shows.
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
    for axis in range(axes.shape[1]):  # a sign is arbitrary: the farthest point is positive
        axes[:, axis] *= 1.0 if axes[np.abs(axes[:, axis]).argmax(), axis] >= 0 else -1.0
    share = np.square(scale[:number]) / variance if variance > 0 else np.zeros(axes.shape[1])
    return axes, share


def neighbour_plane(vectors: npt.NDArray[Any], seed: int, perplexity: float) -> Plane:
    """Return t-SNE of `vectors` (N, D), as (N, 2), from their principal components (van der Maaten
    and Hinton 2008; by openTSNE, Poličar et al. 2024).

    One thread: sums in another order would end in another picture.
    """
    from openTSNE import TSNE

    axes, _ = components(vectors.astype(np.float64), COMPONENTS)
    axes = (axes / (np.abs(axes).max() or 1.0)).round(DIGITS)
    first = axes[:, :2] / (axes[:, 0].std() or 1.0) * 1e-4
    perplexity = perplexity_of(len(axes), perplexity)
    plane = TSNE(perplexity=perplexity, initialization=first, random_state=seed, n_jobs=1).fit(axes)
    return np.asarray(plane, np.float64)


def perplexity_of(num_records: int, wanted: float) -> float:
    """Return the perplexity for so many records: `wanted`, or the highest possible."""
    return min(wanted, (num_records - 1) / 3)


def versions() -> Mapping[str, Any]:
    """Return the versions that t-SNE depends on."""
    from importlib import metadata

    return {name: metadata.version(name) for name in ("numpy", "openTSNE", "scikit-learn", "scipy")}
