"""NumPy matrices as Arrow columns of vectors, without a copy. Imports neither torch nor pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Matrix = np.ndarray[tuple[int, int], Any]


def vectors(rows: Matrix) -> pa.FixedSizeListArray:
    """Return an array of vectors, the `rows` of a matrix."""
    return pa.FixedSizeListArray.from_arrays(numbers(rows.reshape(-1)), rows.shape[1])


def lists_of_vectors(rows: Matrix, lengths: Sequence[int]) -> pa.ListArray:
    """Return an array of lists of vectors: for each of `lengths`, a list of that many rows."""
    return lists(vectors(rows), lengths)


def lists(values: pa.Array, lengths: Sequence[int]) -> pa.ListArray:
    """Return an array of lists with these `lengths`, of consecutive `values`."""
    bounds = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(numbers(bounds), values)


def numbers(array: npt.NDArray[Any]) -> pa.Array:
    """Return a one-dimensional array as an Arrow array; `pa.array` would import pandas."""
    array = np.ascontiguousarray(array)
    kind = pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])
