"""The exact k nearest of some vectors, block by block.

A matrix product in float64 gives each closeness within a bound that rounding cannot leave, whatever
the order of its sums (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).
What may be among the k nearest within that bound is measured again, pair by pair. So distances and
ranks depend on neither blocks nor threads nor the BLAS, and equal vectors are equally far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Metric = Literal["cosine", "euclidean"]
Matrix = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
PRODUCTS = 2**21
"""Numbers of one block: 16 MiB in float64."""


class Found(NamedTuple):
    """The nearest of one query, nearest first; of those equally far, the first."""

    rows: Rows
    distances: npt.NDArray[np.float64]


def _norms(vectors: Matrix) -> Matrix:
    norms: Matrix = np.sqrt(np.square(vectors).sum(1))
    return norms


def distances(ones: Matrix, others: Matrix, metric: Metric) -> npt.NDArray[np.float64]:
    """Return the distance of each row of `ones` to the same row of `others`, both in float64.

    The cosine with a vector of zeros is 0.
    """
    if metric == "euclidean":
        return _norms(ones - others)
    products, norms = (ones * others).sum(1), _norms(ones) * _norms(others)
    cosines = np.divide(products, norms, out=np.zeros_like(products), where=norms != 0)
    found: npt.NDArray[np.float64] = 1 - np.clip(cosines, -1, 1)
    return found


class Reference:
    """The vectors among which the nearest are looked for."""

    def __init__(self, vectors: Matrix, metric: Metric) -> None:
        self._vectors = np.ascontiguousarray(vectors, np.float64)
        self._norms = _norms(self._vectors)
        self._metric: Metric = metric
        self._bound = (1.5 * vectors.shape[1] + 16) * np.finfo(np.float64).eps

    @property
    def queries_at_once(self) -> int:
        """How many queries to give to `nearest` at once."""
        return max(1, PRODUCTS // len(self._vectors))

    def nearest(self, queries: Matrix, k: int, excluded: Matrix | None = None) -> Iterator[Found]:
        """Yield the `k` nearest of each query, or all there are; `excluded` (queries, rows) says
        which rows do not count."""
        queries = np.ascontiguousarray(queries, np.float64)
        closeness, slack = self._approximate(queries)
        if excluded is not None:
            closeness[excluded] = -np.inf
        at = closeness.shape[1] - min(k, closeness.shape[1])
        floors = np.partition(closeness, at, axis=1)[:, at, None] - 2 * slack
        numbers, rows = np.nonzero((closeness >= floors) & (closeness > -np.inf))
        measured = np.empty(len(rows))
        step = max(1, PRODUCTS // queries.shape[1])
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            measured[some] = distances(
                self._vectors[rows[some]], queries[numbers[some]], self._metric
            )
        starts = np.searchsorted(numbers, np.arange(len(queries) + 1))
        for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            order = np.argsort(measured[start:end], kind="stable")[:k]
            yield Found(rows[start:end][order], measured[start:end][order])

    def _approximate(self, queries: Matrix) -> tuple[Matrix, Matrix]:
        """Return how close each row is to each query, which grows as the distance falls, and by how
        much that can be wrong (queries, 1)."""
        products = queries @ self._vectors.T
        norms = _norms(queries)[:, None]
        if self._metric == "cosine":
            products /= np.where(self._norms, self._norms, 1)
            return products, self._bound * norms
        products -= np.square(self._norms) / 2
        return products, self._bound * np.square(norms + self._norms.max(initial=0))
