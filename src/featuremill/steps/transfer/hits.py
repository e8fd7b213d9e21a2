"""Search the vectors of results for the nearest to batches of queries; write them as TSV or as an
aligned table."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

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
from featuremill.kit.files import replacing
from featuremill.kit.processes import is_output_read
from featuremill.kit.text import counted, one_line, plain
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.transfer.queries import Queries, Reader
from featuremill.steps.transfer.recipe import Origin, Recipe

QueryInput = Sequence[str] | Mapping[str, str] | np.ndarray[Any, Any]
"""Files and ids; sequences by name; or vectors (queries, width), with row numbers as names."""
Format = Literal["table", "tsv"]
GAP = "  "
NUMERIC = {"rank", "score", "length"}
MIN_DESCRIPTION = 20
"""The least width of a description on a narrow terminal."""
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


def write(batches: Iterable[Iterable[Hit]], path: Path | None, format: Format | None) -> None:
    """Write hits, as they are found, to `path` or standard output. Without `format`, terminals get
    a table, and others TSV."""
    with _output(path) as out:
        shown = format or ("table" if out.isatty() else "tsv")
        view = Aligned(out) if shown == "table" else Tsv(out)
        for hits in batches:
            view.write(hits)
            out.flush()
            if not path and not is_output_read():  # the reader has closed the pipe, like `head`
                return


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a temporary file that is renamed to `path` at the end."""
    if path and path.exists() and not path.is_file():  # do not replace a pipe or a device
        with path.open("w", encoding="utf-8") as out:
            yield out
        return
    if path:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as out:
            yield out
        return
    yield sys.stdout


class Tsv:
    """Writes tab-separated values."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._table: TsvWriter | None = None
        self._shown = plain if out.isatty() else str

    def write(self, hits: Iterable[Hit]) -> None:
        """Append the hits of some queries."""
        for hit in hits:
            self._table = self._table or TsvWriter(self._out, Hit._fields)
            texts = [self._shown(str(field)) for field in hit._replace(score=0)]
            texts[Hit._fields.index("score")] = f"{hit.score:.9g}"
            self._table.row(texts)


class Aligned:
    """Writes a table with aligned columns; on a terminal, the last column is clipped."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._widths = [len(name) for name in Hit._fields]
        self._has_headings = False

    def write(self, hits: Iterable[Hit]) -> None:
        """Append the hits of some queries."""
        rows = []
        for hit in hits:
            numbers = f"{hit.score:.6f}", f"{hit.length:,}"
            texts = [*map(str, hit[:3]), *numbers, hit.description]
            rows.append([plain(one_line(text)) for text in texts])
        columns = zip(*rows, strict=True) if rows else [()] * len(self._widths)
        self._widths = [
            max([width, *map(len, column)])
            for width, column in zip(self._widths, columns, strict=True)
        ]
        if not self._has_headings:
            self._has_headings = True
            rows.insert(0, list(Hit._fields))
        self._out.writelines(f"{self._line(row)}\n" for row in rows)

    def _line(self, row: list[str]) -> str:
        *cells, description = (
            f"{text:{'>' if name in NUMERIC else '<'}{width}}"
            for name, text, width in zip(Hit._fields, row, self._widths, strict=True)
        )
        start = GAP.join(cells) + GAP
        if self._out.isatty():
            left = max(shutil.get_terminal_size().columns - len(start), MIN_DESCRIPTION)
            description = description.rstrip()
            if len(description) > left:
                description = f"{description[: left - 1]}…"
        return f"{start}{description}".rstrip()
