"""From queries to hits: the pass over the vectors, and who the nearest are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from featuremill.base.errors import IntegrityError
from featuremill.search import names
from featuremill.search.nearest import Found, Metric, Nearest, NotFiniteError, rows_of_block
from featuremill.search.opening import Searched
from featuremill.search.queries import Queries

MOST_QUERIES = 1000
MOST_HITS = 200_000
"""Hits in memory, unless one query alone has more."""


class Hit(NamedTuple):
    """One of the nearest records of one query."""

    query: str
    rank: int
    """1 is the nearest."""
    id: str
    score: float
    """Cosine or dot product, where more is nearer, or Euclidean distance."""
    length: int
    description: str


def num_queries_at_once(k: int) -> int:
    """Return how many queries to look for in one pass, so that memory holds their hits."""
    return max(1, min(MOST_QUERIES, MOST_HITS // k))


def hits_of(
    searched: Searched, queries: Queries, k: int, metric: Metric, excludes_self: bool
) -> Iterator[Hit]:
    """Yield the `k` nearest of each query, in the order of the queries, nearest first.

    Raises:
        IntegrityError: when the results are damaged.
    """
    if not queries.ids:
        return
    found = _nearest(searched, queries, min(k + excludes_self, searched.num_rows), metric)
    everybody = np.concatenate([rows for rows, _ in found])
    records = names.records_of(searched.table, everybody)
    for query, own_row, (rows, scores) in zip(queries.ids, queries.own_rows, found, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        others = [pair for pair in pairs if not (excludes_self and pair[0] == own_row)]
        for rank, (row, score) in enumerate(others[:k], 1):
            record = records[row]
            yield Hit(query, rank, record.id, score, record.length, record.description)


def _nearest(searched: Searched, queries: Queries, k: int, metric: Metric) -> list[Found]:
    """Return the rows and scores of the `k` nearest to each query."""
    vectors = searched.vectors
    nearest = Nearest(queries.vectors, k, metric, vectors.dtype)
    row_bytes = queries.vectors.shape[1] * vectors.dtype.itemsize
    try:
        for first_row, block in vectors.blocks(rows_of_block(len(queries.ids), row_bytes)):
            nearest.add(first_row, block)
    except NotFiniteError as error:
        root = searched.folder.root
        raise IntegrityError(
            f"{root}: {error}, so these results are damaged; featuremill merge {root} writes them "
            "anew from the parts."
        ) from None
    return nearest.found()
