"""The exact k nearest of many vectors, block by block, in bounded memory.

A matrix product in the vectors' own precision (float32 for float16) gives each score within a bound
on the rounding error that holds for any order of its sums (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, section 3.1). Vectors that may be among the k best within that bound are
scored again in float64, row by row. So scores and ranks do not depend on blocks, threads or the
BLAS, and equal vectors have equal scores.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Metric = Literal["cosine", "l2", "dot"]
METRICS: tuple[Metric, ...] = ("cosine", "l2", "dot")
Matrix = npt.NDArray[Any]
Scores = npt.NDArray[np.float64]
Found = tuple[npt.NDArray[np.int64], Scores]
"""Rows, nearest first, and their scores."""

FEW_QUERIES = 8
FEW_BYTES = 2**20
"""Bytes of vectors in a block for few queries: a core's cache holds the block between passes."""
MANY_BYTES = 2**23
"""For many queries, whose products take longer than Python's work for a block."""


class NotFiniteError(Exception):
    """A vector cannot be compared."""


def rows_of_block(num_queries: int, row_bytes: int) -> int:
    """Return how many vectors to pass to `Nearest.add` at once."""
    size = FEW_BYTES if num_queries <= FEW_QUERIES else MANY_BYTES
    return max(1, size // max(1, row_bytes))


def exact_scores(vectors: Matrix, query: Matrix, metric: Metric) -> Scores:
    """Return the score of each row of `vectors` (rows, width) for `query` (width,), in float64.

    The cosine with a vector of zeros is 0. NaN where the numbers are not finite.
    """
    rows = vectors.astype(np.float64)
    with np.errstate(all="ignore"):
        if metric == "l2":
            distances: Scores = np.sqrt(np.square(rows - query).sum(1))
            return distances
        scores: Scores = (rows * query).sum(1)
        if metric == "dot":
            return scores
        norms = np.sqrt(np.square(rows).sum(1)) * np.sqrt(np.square(query).sum())
        np.divide(scores, norms, out=scores, where=norms != 0)
        return np.clip(scores, -1, 1, out=scores)


class Nearest:
    """The k nearest to each query of the vectors added so far; the earlier ones win ties."""

    def __init__(self, queries: Matrix, k: int, metric: Metric, dtype: npt.DTypeLike) -> None:
        """Start empty; `queries` is (queries, width), `dtype` is the vectors' type."""
        self.k = k
        self._metric: Metric = metric
        self._queries = np.ascontiguousarray(queries, np.float64)
        self._dtype = np.result_type(dtype, np.float32)
        self._sign = -1 if metric == "l2" else 1
        limits = np.finfo(self._dtype)
        self._bound = self._dtype.type((1.5 * queries.shape[1] + 16) * limits.eps)
        self._squares = (float(limits.tiny) * 1e8, float(limits.max) * 1e-8)
        """Squared norms outside these bounds lost digits to underflow, or may overflow."""
        norms = np.sqrt(np.square(self._queries).sum(1, keepdims=True))
        factors = self._queries / np.where(norms, norms, 1) if metric == "cosine" else self._queries
        self._is_sure = metric == "cosine" or bool(self._are_usual(np.square(norms)).all())
        with np.errstate(over="ignore"):
            self._factors = np.ascontiguousarray(factors, self._dtype)
            self._norms = norms.astype(self._dtype)
        self._floors = np.full(len(queries), -np.inf, self._dtype)
        """For each query the least closeness, as from `_approximate`, of a vector among the k
        best."""
        self._kept = [_Kept(k) for _ in queries]

    def add(self, first_row: int, vectors: Matrix) -> None:
        """Add a block (rows, width); `first_row` is its place among all, in ascending order.

        Raises:
            NotFiniteError: a number in it is not finite.
        """
        rows = np.ascontiguousarray(vectors, self._dtype)
        with np.errstate(all="ignore"):
            closeness, slack, is_sure = self._approximate(rows)
            floors = self._floors[:, None]
            is_near = (closeness >= floors - slack) | ~is_sure
            for number in np.flatnonzero(is_near.any(1)).tolist():
                near = np.flatnonzero(is_near[number])
                if len(near) > self.k:
                    about, is_bound = closeness[number, near], is_sure[near]
                    give = np.broadcast_to(slack, closeness.shape)[number, near]
                    lower = np.where(is_bound, about - give, -np.inf)
                    floor = np.partition(lower, -self.k)[-self.k]
                    near = near[(about + give >= floor) | ~is_bound]
                self._look_closely(number, first_row, near, rows)

    def _are_usual(self, squares: Matrix) -> Matrix:
        return (squares > self._squares[0]) & (squares < self._squares[1])

    def _approximate(self, rows: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """Return each row's closeness to each query and the largest error of it (both of shape
        (queries, rows), or 1 in place of either), and for which rows the bound holds (rows,).

        Closeness is the cosine, the dot product, or the negative squared distance.
        """
        squares = np.einsum("ij,ij->i", rows, rows)
        is_sure = self._are_usual(squares) & self._is_sure
        lengths = np.sqrt(squares)
        if len(self._factors) <= FEW_QUERIES:
            # For so little work, the threads of a BLAS wait longer than they compute.
            products = np.stack([np.einsum("ij,j->i", rows, each) for each in self._factors])
        else:
            products = self._factors @ rows.T
        if self._metric == "cosine":
            products /= lengths
            return products, np.full((1, 1), self._bound), is_sure
        if self._metric == "dot":
            return products, self._bound * self._norms * lengths, is_sure
        distances = squares + self._norms**2 - 2 * products
        return -distances, self._bound * (self._norms + lengths) ** 2, is_sure

    def _look_closely(
        self, number: int, first_row: int, near: npt.NDArray[np.int64], rows: Matrix
    ) -> None:
        scores = exact_scores(rows[near], self._queries[number], self._metric)
        is_bad = ~np.isfinite(rows[near]).all(1) | np.isnan(scores)
        if is_bad.any():
            row = first_row + int(near[is_bad][0])
            raise NotFiniteError(
                f"vector {row + 1:,} has numbers that are not finite, or too large to compare"
            )
        kept = self._kept[number]
        kept.add(first_row + near, self._sign * scores)
        if kept.worst > -np.inf:
            floor = -(kept.worst**2) if self._metric == "l2" else kept.worst
            # The next lower number: rounding up must not exclude a vector.
            below = np.nextafter(np.array(floor, self._dtype), -self._dtype.type(np.inf))
            self._floors[number] = below

    def found(self) -> list[Found]:
        """Return for each query the rows of its nearest, best first, and their scores."""
        return [(rows, self._sign * closeness) for rows, closeness in map(_Kept.best, self._kept)]


class _Kept:
    """The k best of one query, and later candidates that are not sorted yet."""

    def __init__(self, k: int) -> None:
        self.worst = -np.inf
        """The closeness of the k-th best; -inf while there are fewer."""
        self._k = k
        self._rows: list[npt.NDArray[np.int64]] = []
        self._closeness: list[Scores] = []
        self._num_new = 0
        self._num_sorted = 0

    def add(self, rows: npt.NDArray[np.int64], closeness: Scores) -> None:
        is_better = closeness > self.worst  # a tie with the worst is a later row, so it loses
        self._rows.append(rows[is_better])
        self._closeness.append(closeness[is_better])
        self._num_new += int(is_better.sum())
        # A share of k, so that a large k is not sorted again for every block.
        if self._num_new + self._num_sorted >= self._k and 4 * self._num_new >= self._k:
            self.best()

    def best(self) -> tuple[npt.NDArray[np.int64], Scores]:
        """Return the k best, and drop the others."""
        rows = np.concatenate([np.empty(0, np.int64), *self._rows])
        closeness = np.concatenate([np.empty(0), *self._closeness])
        order = np.argsort(-closeness, kind="stable")[: self._k]  # ties by rows
        self._rows, self._closeness = [rows[order]], [closeness[order]]
        self._num_new, self._num_sorted = 0, len(order)
        if self._num_sorted == self._k:
            self.worst = float(self._closeness[0][-1])
        return self._rows[0], self._closeness[0]
