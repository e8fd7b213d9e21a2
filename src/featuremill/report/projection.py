"""The embeddings in two dimensions: a sample of rows, and its first two principal components."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MAX_POINTS = 5_000
MAX_READ = 100_000_000
"""Values that are read to take the sample from; a larger file gives some of its row groups."""
MAX_FILES = 50
"""Files of a dataset that are read."""
BATCH_ROWS = 2_048


class Projection(NamedTuple):
    """A map of the embedding space."""

    column: str
    """The column of values that is shown."""
    others: list[str]
    """Further columns of values that the file has."""
    ids: list[str]
    """As long as they are."""
    lengths: list[int]
    xy: np.ndarray
    """(N, 2) float64."""
    explained: tuple[float, float]
    """Share of the sample's variance along each axis."""
    total: int
    """Rows in the file, or the files."""


def read(paths: Sequence[Path], total: int) -> Projection | str:
    """Return the map of a run's Parquet files, or the sentence that says why there is none.

    Of many files, some that stand at even distances are read; `total` is the rows of all.
    """
    with ExitStack() as stack:
        files = [
            # With a buffer, or a row group is read as a whole.
            stack.enter_context(pq.ParquetFile(path, buffer_size=2**20))
            for path in paths[:: -(-len(paths) // MAX_FILES)]
        ]
        columns = [field.name for field in files[0].schema_arrow if _is_vector(field.type)]
        if not columns:
            return "This workload delivers no vectors of a fixed width, so there is nothing to map."
        if total < 3:
            return f"A map needs at least three records; this run has {total}."
        column, *others = columns
        ids, lengths, values = _sample(files, column)
    if values.shape[1] < 2:
        return f"The values of {column} have one dimension, so there is nothing to map."
    xy, explained = principal_plane(values)
    return Projection(column, others, ids, lengths, xy, explained, total)


def _is_vector(type: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(type) and pa.types.is_floating(type.value_type))


def _sample(files: Sequence[Any], column: str) -> tuple[list[str], list[int], np.ndarray]:
    """Take evenly spaced rows: the same each time, and from every region of an ordered file."""
    places = [(file, group) for file in files for group in range(file.num_row_groups)]
    sizes = [file.metadata.row_group(group).num_rows for file, group in places]
    width = files[0].schema_arrow.field(column).type.list_size
    enough = max(1, min(len(sizes), MAX_READ // (max(sizes) * width)))
    groups = [int(i) for i in np.linspace(0, len(sizes) - 1, enough).round()]
    readable = sum(sizes[group] for group in groups)
    wanted = np.linspace(0, readable - 1, min(MAX_POINTS, readable)).round().astype(np.int64)
    ids, lengths, values = list[str](), list[int](), list[np.ndarray]()
    first = 0
    for batch in _batches([places[group] for group in groups], ["id", "length", column]):
        begin, end = np.searchsorted(wanted, [first, first + batch.num_rows])
        first += batch.num_rows
        chosen = batch.take(pa.array(wanted[begin:end] - (first - batch.num_rows)))
        if not chosen.num_rows:
            continue
        ids += chosen.column("id").to_pylist()
        lengths += chosen.column("length").to_pylist()
        flat = chosen.column(column).flatten().to_numpy(zero_copy_only=False)
        values.append(flat.astype(np.float32).reshape(chosen.num_rows, -1))
    return ids, lengths, np.concatenate(values)


def _batches(places: Sequence[tuple[Any, int]], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for file, group in places:
        yield from file.iter_batches(BATCH_ROWS, [group], columns=columns)


def principal_plane(values: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Return `values` (N, D) on their first two principal axes, and the variance along each.

    Wide values are first narrowed by a randomised range finder with a fixed seed (Halko, Martinsson
    and Tropp 2011, algorithm 4.4): the exact SVD of 5,000 × 5,120 takes minutes on one core, this
    takes seconds, and the first two components agree beyond what a screen shows.
    """
    centred = values - values.mean(axis=0, dtype=np.float64).astype(np.float32)
    variance = float(np.square(centred, dtype=np.float64).sum())
    rows, width = centred.shape
    narrow = centred
    if min(rows, width) > 64:
        guess = np.random.default_rng(0).standard_normal((width, 32), dtype=np.float32)
        for _ in range(20):
            guess = np.linalg.qr(centred.T @ (centred @ guess))[0]
        narrow = centred @ guess
    u, scale, _ = np.linalg.svd(narrow.astype(np.float64), full_matrices=False)
    xy = u[:, :2] * scale[:2]
    for axis in range(2):  # a sign is arbitrary: the farthest point lies on the positive side
        xy[:, axis] *= 1.0 if xy[np.abs(xy[:, axis]).argmax(), axis] >= 0 else -1.0
    share = np.square(scale[:2]) / variance if variance > 0 else np.zeros(2)
    return xy, (float(share[0]), float(share[1]))
