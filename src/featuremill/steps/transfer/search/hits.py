"""Search the vectors of results for the nearest to batches of queries."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from featuremill import features
from featuremill.features import NOWHERE, Features
from featuremill.features.nearest import (
    Metric,
    Nearest,
    Neighbours,
    NotFiniteError,
    queries_at_once,
    rows_of_block,
)
from featuremill.features.table import NUMBERS, Stored
from featuremill.kit.devices import DeviceChoice
from featuremill.kit.errors import IntegrityError, UserError
from featuremill.kit.text import counted
from featuremill.steps.transfer.search.queries import Queries, Reader
from featuremill.steps.transfer.search.recipe import Origin, Recipe

QueryInput = Sequence[str] | Mapping[str, str] | np.ndarray[Any, Any]
"""Files and ids; sequences by name; or vectors (queries, width), with row numbers as names."""
log = logging.getLogger("featuremill.search")


class Settings(NamedTuple):
    """The settings of a search."""

    k: int = 10
    column: str | None = None
    metric: Metric = "cosine"
    excludes_self: bool = False
    wants_partial: bool = False
    device: DeviceChoice | None = None
    weights: str | Path | None = None


class Hit(NamedTuple):
    """A nearest record of a query."""

    query: str
    rank: int
    """1 is the nearest."""
    id: str
    score: float
    """The cosine or dot product (higher is nearer), or the Euclidean distance."""
    length: int
    description: str


def search(root: Path, all_queries: QueryInput, settings: Settings) -> Iterator[Iterator[Hit]]:
    """Open the results in `root`; yield the hits of each batch of queries.

    Raises:
        UserError: there are no vectors to search, or a query is missing.
    """
    if settings.k < 1:
        raise UserError(f"-k: {settings.k} is too few; give 1 or more.")
    searched = features.open(root, settings.column, partial=settings.wants_partial or None)
    log.info(
        "%s of %s, %s numbers each, %s; by %s",
        counted(searched.num_rows, "vector"),
        searched.column,
        f"{searched.width:,}",
        "read from the table" if isinstance(searched.vectors, Stored) else "memory-mapped",
        settings.metric,
    )
    num_at_once = queries_at_once(min(settings.k, searched.num_rows))
    if isinstance(all_queries, np.ndarray):
        batches = _of_matrix(all_queries, searched, num_at_once)
    else:
        weights = [] if settings.weights is None else [Path(settings.weights)]
        reader = Reader(
            searched,
            lambda: Recipe(Origin.of(searched), settings.device, weights),
            num_at_once,
            settings.excludes_self,
        )
        batches = (
            reader.of_sequences(all_queries)
            if isinstance(all_queries, Mapping)
            else reader.read(all_queries)
        )
    for queries in batches:
        yield hits_of(searched, queries, settings)


def hits_of(searched: Features, queries: Queries, settings: Settings) -> Iterator[Hit]:
    """Yield the hits of each query, nearest first.

    Raises:
        IntegrityError: the results are damaged.
    """
    if not queries.ids:
        return
    nearest = _nearest(searched, queries, settings)
    records = searched.records_of(np.concatenate([rows for rows, _ in nearest]))
    for query, own_row, (rows, scores) in zip(queries.ids, queries.own_rows, nearest, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        others = [pair for pair in pairs if not (settings.excludes_self and pair[0] == own_row)]
        for rank, (row, score) in enumerate(others[: settings.k], 1):
            record = records[row]
            yield Hit(query, rank, record.id, score, record.length, record.description)


def _nearest(searched: Features, queries: Queries, settings: Settings) -> list[Neighbours]:
    dtype = searched.vectors.dtype
    k = min(settings.k + settings.excludes_self, searched.num_rows)
    nearest = Nearest(queries.vectors, k, settings.metric, dtype, searched.ranks_of)
    num_rows = rows_of_block(len(queries.ids), queries.vectors.shape[1] * dtype.itemsize)
    try:
        for first_row, block in searched.vectors_in_blocks(num_rows):
            nearest.add(first_row, block)
    except NotFiniteError as error:
        root = searched.folder.root
        raise IntegrityError(
            f"{root}: {error}, so these results are damaged; featuremill merge {root} writes them "
            "anew from the parts."
        ) from None
    return nearest.hits()


def _of_matrix(vectors: Any, searched: Features, num_at_once: int) -> Iterator[Queries]:
    width = searched.width
    if vectors.ndim != 2 or vectors.shape[1] != width or vectors.dtype.kind not in NUMBERS:
        raise UserError(
            f"queries: these are {vectors.dtype} of shape {vectors.shape}; give numbers of shape "
            f"(queries, {width})."
        )
    if not np.isfinite(vectors).all():
        raise UserError("queries: some of these numbers are not finite; leave those vectors out.")
    for start in range(0, len(vectors), num_at_once):
        some = vectors[start : start + num_at_once]
        ids = [str(number) for number in range(start, start + len(some))]
        yield Queries(ids, some, [NOWHERE] * len(some))
