"""How many bytes each row of values really takes: strings and long lists do not tell beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Sizes = npt.NDArray[np.int64]


def bytes_of_rows(rows: pa.RecordBatch) -> Sizes:
    """Return the bytes that the values of each row take, about; shape (rows,)."""
    found = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        found += _of_column(column)
    return found


def _of_column(column: pa.Array) -> Sizes:
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(map(_of_column, column.flatten()), start=np.zeros(len(column), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ends = np.concatenate(([0], np.cumsum(_of_column(column.values))))
        offsets = np.asarray(column.offsets)
        return _numbers(ends[offsets[1:]] - ends[offsets[:-1]])
    if pa.types.is_fixed_size_list(kind):
        inner = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        if not _is_plain(kind.value_type):
            return _numbers(_of_column(inner).reshape(len(column), -1).sum(axis=1))
        return np.full(len(column), kind.list_size * kind.value_type.bit_width // 8, np.int64)
    if pa.types.is_map(kind) or pa.types.is_dictionary(kind) or pa.types.is_union(kind):
        return np.full(len(column), column.nbytes // max(1, len(column)), np.int64)
    if _is_plain(kind):
        return np.full(len(column), -(-kind.bit_width // 8), np.int64)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    return _numbers(pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _numbers(values: Any) -> Sizes:
    return np.asarray(values).astype(np.int64)
