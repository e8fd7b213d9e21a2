"""From queries to hits: the pass over the vectors, and who the nearest are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from featuremill.errors import IntegrityError
from featuremill.search import names
from featuremill.search.nearest import Metric, Nearest, rows_of_block
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
    with _undamaged(searched):
        vectors, num_wanted = searched.vectors, min(k + excludes_self, searched.num_rows)
        nearest = Nearest(queries.vectors, num_wanted, metric, vectors.dtype)
        row_bytes = queries.vectors.shape[1] * vectors.dtype.itemsize
        for first_row, block in vectors.blocks(rows_of_block(len(queries.ids), row_bytes)):
            nearest.add(first_row, block)
        found = nearest.found()
        everybody = np.concatenate([rows for rows, _ in found])
        records = names.records_of(searched.table, everybody)
    told = names.descriptions_of(searched.folder.manifest, records.values())
    for query, own_row, (rows, scores) in zip(queries.ids, queries.own_rows, found, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        others = [pair for pair in pairs if not (excludes_self and pair[0] == own_row)]
        for rank, (row, score) in enumerate(others[:k], 1):
            record = records[row]
            description = told.get(record.id, "")
            yield Hit(query, rank, record.id, score, record.length, description)


@contextmanager
def _undamaged(searched: Searched) -> Iterator[None]:
    """Say what to do where the bytes turn out not to be vectors."""
    root = searched.folder.root
    try:
        yield
    except (pa.ArrowInvalid, IntegrityError, OSError) as error:
        if getattr(error, "errno", None):
            raise
        what = " ".join(str(error).split())[:200].rstrip(".")
        raise IntegrityError(
            f"{root}: these results are damaged ({what}); featuremill merge {root} writes them "
            "anew from the parts."
        ) from None
