"""Find the exact k nearest of many vectors, block by block, in bounded memory.

A matrix product in the vectors' precision (float32 for float16) approximates each score, within a
bound on the rounding error for any order of its sums (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 3.1). Vectors that may be among the k best within that bound are scored
again in float64, pair by pair. So scores and ranks do not depend on blocks, threads or the BLAS,
and equal vectors have equal scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.base.errors import UserError
from featuremill.features.table import Matrix, Rows

Metric = Literal["cosine", "euclidean", "dot"]
METRICS: dict[str, Metric] = {"cosine": "cosine", "euclidean": "euclidean", "dot": "dot"}
SYNONYMS: dict[str, Metric] = {"l2": "euclidean"}
"""Synonyms of the metrics."""
Scores = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FEW_QUERIES = 8
FEW_BYTES = 2**20
"""Bytes of vectors in a block for up to FEW_QUERIES queries, so that it fits a core's cache."""
MANY_BYTES = 2**23
"""Bytes of vectors in a block for more queries."""
MANY_PAIRS = 2**22
"""Largest number of pairs of a query and a vector that are compared together."""
MOST_QUERIES = 1000
MOST_FOUND = 200_000
"""Largest number of nearest vectors in memory for all queries, unless one query has more."""
NUMBERS_AT_ONCE = 2**20
"""Numbers that are scored together in float64: 8 MiB."""


class NotFiniteError(Exception):
    """A vector cannot be compared."""


Ranks = Callable[[Rows], Rows]
"""A function that returns the ranks of rows, which order equally near rows."""


class Neighbours(NamedTuple):
    """The nearest rows to one query, nearest first; equally near rows by rank, or in order."""

    rows: Rows
    scores: Scores
    """The cosines, dot products or Euclidean distances of the rows."""


def metric_of(word: str) -> Metric:
    """Return the metric with this name or synonym.

    Raises:
        UserError: if there is no such metric.
    """
    if word not in METRICS | SYNONYMS:
        raise UserError(f"metric: there is no {word!r}; give one of {', '.join(METRICS)}.")
    return (METRICS | SYNONYMS)[word]


def queries_at_once(k: int) -> int:
    """Return the number of queries for one `Nearest`."""
    return max(1, min(MOST_QUERIES, MOST_FOUND // k))


def rows_of_block(num_queries: int, row_bytes: int) -> int:
    """Return the number of vectors for one call of `Nearest.add`."""
    size = FEW_BYTES if num_queries <= FEW_QUERIES else MANY_BYTES
    return max(1, min(size // max(1, row_bytes), MANY_PAIRS // num_queries))


def exact_scores(vectors: Matrix, queries: Matrix, metric: Metric) -> Scores:
    """Return the score of each row of `vectors` (rows, width) for the same row of `queries`, in
    float64.

    The cosine with a vector of zeros is 0. The score is NaN if a number is not finite.
    """
    rows = vectors.astype(np.float64)
    with np.errstate(all="ignore"):
        if metric == "euclidean":
            return _lengths(rows - queries)
        scores: Scores = (rows * queries).sum(1)
        if metric == "dot":
            return scores
        norms = _lengths(rows) * _lengths(queries)
        np.divide(scores, norms, out=scores, where=norms != 0)
        return np.clip(scores, -1, 1, out=scores)


def _lengths(vectors: Matrix) -> Scores:
    lengths: Scores = np.sqrt(np.square(vectors).sum(1))
    return lengths


class Nearest:
    """The k nearest of the added vectors to each query; of ties, the lowest rank or first."""

    def __init__(
        self,
        queries: Matrix,
        k: int,
        metric: Metric,
        dtype: npt.DTypeLike,
        ranks: Ranks | None = None,
    ) -> None:
        """Start without vectors; `queries` is (queries, width), `dtype` is that of the vectors.
        `ranks` is called for equally near rows."""
        self.k = k
        self._metric: Metric = metric
        self._queries = np.ascontiguousarray(queries, np.float64)
        self._dtype = np.result_type(dtype, np.float32)
        self._sign = -1 if metric == "euclidean" else 1
        limits = np.finfo(self._dtype)
        self._bound = self._dtype.type((1.5 * queries.shape[1] + 16) * limits.eps)
        self._squares = (float(limits.tiny) * 1e8, float(limits.max) * 1e-8)
        """Bounds of squared norms; outside, digits were lost to underflow, or sums may overflow."""
        with np.errstate(all="ignore"):
            norms = _lengths(self._queries)[:, None]
            is_cosine = metric == "cosine"
            factors = self._queries / np.where(norms, norms, 1) if is_cosine else self._queries
            self._is_sure = is_cosine or bool(self._are_usual(np.square(norms)).all())
            self._factors = np.ascontiguousarray(factors, self._dtype)
            self._norms = norms.astype(self._dtype)
        self._floors = np.full((len(queries), 1), -np.inf, self._dtype)
        """For each query, a lower bound of the closeness of its k best, as by `_approximate`."""
        self._best = _Best(len(queries), k, ranks)

    def add(self, first_row: int, vectors: Matrix, is_excluded: Mask | None = None) -> None:
        """Add a block (rows, width) with the row number `first_row`; blocks are in ascending order.
        `is_excluded` (queries, rows) is the mask of pairs to skip.

        Raises:
            NotFiniteError: if a number in it is not finite.
        """
        rows = np.ascontiguousarray(vectors, self._dtype)
        with np.errstate(all="ignore"):
            closeness, slack, is_sure = self._approximate(rows)
            is_near = (closeness >= self._floors - slack) | ~is_sure
            if is_excluded is not None:
                is_near &= ~is_excluded
            if np.count_nonzero(is_near) > 2 * self.k * len(self._queries) and len(rows) > self.k:
                # At least k of this block are as close as `floors`.
                lowest = np.where(is_near & is_sure, closeness - slack, -np.inf)
                floors = np.partition(lowest, -self.k, axis=1)[:, -self.k, None]
                is_near &= (closeness + slack >= floors) | ~is_sure
            pairs = np.flatnonzero(is_near)
            at_once = max(1, NUMBERS_AT_ONCE // rows.shape[1])
            for start in range(0, len(pairs), at_once):
                numbers, near = np.divmod(pairs[start : start + at_once], len(rows))
                self._score_exactly(numbers, near, first_row, rows)

    def _are_usual(self, squares: Matrix) -> Matrix:
        return (squares > self._squares[0]) & (squares < self._squares[1])

    def _approximate(self, rows: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """Return the closeness of each row to each query and its largest error (both (queries,
        rows), broadcastable), and the mask of rows for which the error holds (rows,).

        Closeness is the cosine, the dot product, or the negative squared distance.
        """
        squares = np.einsum("ij,ij->i", rows, rows)
        is_sure = self._are_usual(squares) & self._is_sure
        lengths = np.sqrt(squares)
        if len(self._factors) <= FEW_QUERIES:
            # For few queries, the threads of a BLAS wait longer than they compute.
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

    def _score_exactly(self, numbers: Rows, near: Rows, first_row: int, rows: Matrix) -> None:
        """Score pairs of a query and a row exactly, and add them to the candidates."""
        scores = exact_scores(rows[near], self._queries[numbers], self._metric)
        is_bad = ~np.isfinite(rows[near]).all(1) | np.isnan(scores)
        if is_bad.any():
            row = first_row + int(near[is_bad][0])
            raise NotFiniteError(
                f"vector {row + 1:,} has numbers that are not finite, or too large to compare"
            )
        if self._best.add(numbers, first_row + near, self._sign * scores):
            worst = self._best.worst
            floors = -np.square(worst) if self._metric == "euclidean" else worst
            # The next lower number, so that rounding up excludes no vector.
            below = np.nextafter(floors.astype(self._dtype), -self._dtype.type(np.inf))
            self._floors = below[:, None]

    def hits(self) -> list[Neighbours]:
        """Return the nearest rows of each query, with their scores."""
        rows, closeness, ends = self._best.sorted()
        scores = self._sign * closeness
        starts = [0, *ends[:-1].tolist()]
        return [
            Neighbours(rows[start:end], scores[start:end])
            for start, end in zip(starts, ends.tolist(), strict=True)
        ]


class _Best:
    """The k best rows of each query, and unsorted later candidates."""

    def __init__(self, num_queries: int, k: int, ranks: Ranks | None) -> None:
        self.worst = np.full(num_queries, -np.inf)
        """The closeness of the k-th best row of each query; -inf while there are fewer."""
        self._num_queries, self._k, self._ranks = num_queries, k, ranks
        self._pieces: list[tuple[Rows, Rows, Scores]] = [
            (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        ]
        """Query numbers, rows, and their closeness; the first piece is sorted."""
        self._num_new = 0

    def add(self, numbers: Rows, rows: Rows, closeness: Scores) -> bool:
        """Add candidates with later rows than before; return whether `worst` has changed."""
        worst = self.worst[numbers]
        is_better = closeness >= worst if self._ranks else closeness > worst  # ties lose
        self._pieces.append((numbers[is_better], rows[is_better], closeness[is_better]))
        self._num_new += int(np.count_nonzero(is_better))
        # Sort only after a share of new candidates, so that a large k is not sorted per block.
        enough = self._num_queries * self._k
        if 4 * self._num_new < enough or self._num_new + len(self._pieces[0][0]) < enough:
            return False
        self.sorted()
        return True

    def sorted(self) -> tuple[Rows, Scores, Rows]:
        """Return rows and closeness of the k best of all queries, concatenated, and the end of each
        query; drop all others."""
        numbers, rows, closeness = map(np.concatenate, zip(*self._pieces, strict=True))
        order = np.lexsort((-closeness, numbers))  # stable, so ties stay in the order of rows
        if self._ranks:
            follows = (np.diff(numbers[order]) == 0) & (np.diff(closeness[order]) == 0)
            tied = order[np.append(follows, False) | np.insert(follows, 0, False)]
            ranks = np.zeros(len(order), np.int64)
            ranks[tied] = self._ranks(rows[tied])
            order = np.lexsort((ranks, -closeness, numbers))
        places = np.arange(len(order)) - np.searchsorted(numbers[order], numbers[order])
        order = order[places < self._k]
        numbers, rows, closeness = numbers[order], rows[order], closeness[order]
        self._pieces, self._num_new = [(numbers, rows, closeness)], 0
        counts = np.bincount(numbers, minlength=self._num_queries)
        ends = np.cumsum(counts)
        is_full = counts == self._k
        self.worst[is_full] = closeness[ends[is_full] - 1]
        return rows, closeness, ends


def nearest_in_memory(
    vectors: Matrix,
    queries: Matrix,
    k: int,
    metric: Metric,
    excluded: Callable[[slice, slice], Mask] | None = None,
) -> Iterator[Neighbours]:
    """Yield the `k` nearest of `vectors` (rows, width), or all, to each query (queries, width);
    `excluded` returns the mask of pairs to skip for a slice of queries and a slice of rows.

    Raises:
        NotFiniteError: if a number in the vectors is not finite.
    """
    k = min(k, len(vectors))
    num_queries = queries_at_once(k)
    for start in range(0, len(queries), num_queries):
        some_queries = slice(start, min(start + num_queries, len(queries)))
        nearest = Nearest(queries[some_queries], k, metric, vectors.dtype)
        num_rows = rows_of_block(len(queries[some_queries]), vectors[:1].nbytes)
        for first_row in range(0, len(vectors), num_rows):
            rows = slice(first_row, first_row + num_rows)
            nearest.add(first_row, vectors[rows], excluded and excluded(some_queries, rows))
        yield from nearest.hits()
