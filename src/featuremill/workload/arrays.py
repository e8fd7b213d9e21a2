"""NumPy matrices as Arrow columns of vectors, without a copy, and the columns of layers. Imports
neither torch nor pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from featuremill.workload.networks import ResidueOptions

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


def layer_columns(options: ResidueOptions, width: int, each: str = "residues") -> pa.Schema:
    """Return the columns: for each layer the pooled vectors, then a vector for `each` token."""
    fields: dict[str, pa.DataType] = {}
    vector = pa.list_(pa.float32(), width)
    number = pa.float16() if options.output_dtype == "float16" else pa.float32()
    for layer in options.layers:
        fields |= {f"{pool}_layer_{layer}": vector for pool in options.pools}
        if options.per_residue:
            fields[f"{each}_layer_{layer}"] = pa.list_(pa.list_(number, width))
    return pa.schema(fields)


def layer_batch(
    values: Sequence[Matrix], lengths: Sequence[int], columns: pa.Schema
) -> pa.RecordBatch:
    """Return a row per record. `values` are those of each column; `lengths` has the number
    of vectors of tokens of each record."""
    arrays = [
        lists_of_vectors(rows, lengths) if pa.types.is_list(field.type) else vectors(rows)
        for field, rows in zip(columns, values, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
