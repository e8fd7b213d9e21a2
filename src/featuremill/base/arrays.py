"""Arrow columns of vectors as NumPy arrays, without copying where Arrow allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Digests = npt.NDArray[np.bytes_]


def matrix(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return a fixed_size_list[width] column of n rows as an array of shape (n, width)."""
    width = column.type.list_size
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    flat = [_numbers(chunk.flatten()) for chunk in chunks]
    dtype = column.type.value_type.to_pandas_dtype()
    joined = np.concatenate(flat) if flat else np.empty(0, dtype)
    return joined.reshape(-1, width)


def side_by_side(block: pa.Table, columns: list[str]) -> npt.NDArray[Any]:
    """Return the fixed-size vectors of `columns` as one array of shape (rows, sum of widths)."""
    found = [matrix(block[name]) for name in columns]
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def matrices(column: pa.ChunkedArray) -> list[npt.NDArray[Any]]:
    """Return a list<fixed_size_list[width]> column as one array of shape (length, width) a row."""
    found = []
    for chunk in column.chunks:
        for row in chunk:
            inner = row.values
            width = inner.type.list_size
            found.append(_numbers(inner.flatten()).reshape(-1, width))
    return found


def digests(column: pa.ChunkedArray) -> Digests:
    """Return a binary(32) column as a NumPy array of 32-byte strings."""
    chunks = [
        np.frombuffer(c.buffers()[1], "S32", count=len(c), offset=c.offset * 32)
        for c in column.chunks
        if len(c)
    ]
    return np.concatenate(chunks) if chunks else np.empty(0, "S32")


def _numbers(flat: pa.Array) -> npt.NDArray[Any]:
    """Return them without pandas, which Arrow's own way imports, where none is missing."""
    return flat.to_numpy(zero_copy_only=False) if flat.null_count else np.from_dlpack(flat)
