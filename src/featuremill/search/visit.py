"""One search: open the results, read the queries, say what is near."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import pandas as pd

from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.search.hits import Hit, hits_of, num_queries_at_once
from featuremill.search.nearest import Metric
from featuremill.search.opening import Searched, open_results
from featuremill.search.queries import NOWHERE, Queries, Reader
from featuremill.search.recipe import DeviceChoice, Recipe
from featuremill.search.view import VIEWS, Format
from featuremill.store import files

log = logging.getLogger("featuremill.search")


class Chosen(NamedTuple):
    """How to search."""

    k: int = 10
    column: str | None = None
    metric: Metric = "cosine"
    excludes_self: bool = False
    wants_partial: bool = False
    device: DeviceChoice | None = None
    weights: str | Path | None = None


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill search`."""
    chosen = Chosen(
        arguments.k,
        arguments.column,
        arguments.metric,
        arguments.exclude_self,
        arguments.partial,
        arguments.device,
        arguments.weights,
    )
    searched = _opened(arguments.run_folder, chosen)
    found = _found(searched, _reader(searched, chosen).read(arguments.query), chosen)
    with _output(arguments.output) as out:
        shown: Format = arguments.format or ("table" if out.isatty() else "tsv")
        view = VIEWS[shown](out)
        for hits in found:
            view.write(hits)
            out.flush()
    return 0


def frame(
    root: Path,
    queries: str | Path | Sequence[str | Path] | Mapping[str, str] | np.ndarray[Any, Any],
    chosen: Chosen,
) -> pd.DataFrame:
    """Return the hits as `featuremill.search` does."""
    searched = _opened(root, chosen)
    reader = _reader(searched, chosen)
    if isinstance(queries, np.ndarray):
        pieces: Iterator[Queries] = _of_matrix(queries, searched, chosen.k)
    elif isinstance(queries, Mapping):
        pieces = reader.of_sequences(queries)
    else:
        words = [queries] if isinstance(queries, str | Path) else list(queries)
        pieces = reader.read([str(word) for word in words])
    hits = [hit for some in _found(searched, pieces, chosen) for hit in some]
    return pd.DataFrame(hits, columns=list(Hit._fields))


def _opened(root: Path, chosen: Chosen) -> Searched:
    if chosen.k < 1:
        raise UserError(f"-k: {chosen.k} records are none; give 1 or more.")
    searched = open_results(root, chosen.column, chosen.wants_partial)
    log.info(
        "%s of %s, %s numbers each, %s; by %s",
        counted(searched.num_rows, "vector"),
        searched.column,
        f"{searched.table.column.width:,}",
        "memory-mapped" if searched.vectors is not searched.table else "read from the table",
        chosen.metric,
    )
    return searched


def _reader(searched: Searched, chosen: Chosen) -> Reader:
    weights = None if chosen.weights is None else Path(chosen.weights)
    num_at_once = num_queries_at_once(min(chosen.k, searched.num_rows))
    return Reader(
        searched,
        lambda: Recipe(searched, chosen.device, weights),
        num_at_once,
        chosen.excludes_self,
    )


def _found(
    searched: Searched, pieces: Iterator[Queries], chosen: Chosen
) -> Iterator[Iterator[Hit]]:
    for queries in pieces:
        yield hits_of(searched, queries, chosen.k, chosen.metric, chosen.excludes_self)


def _of_matrix(vectors: np.ndarray[Any, Any], searched: Searched, k: int) -> Iterator[Queries]:
    """Yield vectors as queries that are called by their row."""
    width = searched.table.column.width
    if vectors.ndim != 2 or vectors.shape[1] != width or vectors.dtype.kind not in "fiu":
        raise UserError(
            f"queries: these are {vectors.dtype} of shape {vectors.shape}; give numbers of shape "
            f"(queries, {width})."
        )
    if not np.isfinite(vectors).all():
        raise UserError("queries: some of these numbers are not finite; leave those vectors out.")
    size = num_queries_at_once(min(k, searched.num_rows))
    for start in range(0, len(vectors), size):
        some = vectors[start : start + size]
        ids = [str(number) for number in range(start, start + len(some))]
        yield Queries(ids, some, [NOWHERE] * len(some))


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Yield where hits go: standard output, or a file that is there when it is whole."""
    if path and path.exists() and not path.is_file():  # a pipe or a device is not replaced
        with path.open("w", encoding="utf-8") as out:
            yield out
        return
    if path:
        with files.replacing(path) as temporary, temporary.open("w", encoding="utf-8") as out:
            yield out
        return
    try:
        yield sys.stdout
    except BrokenPipeError:  # whoever reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
