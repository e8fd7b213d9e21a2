"""embeddings.npy: the pooled vectors as one array that NumPy maps without reading it.

Row n belongs to row n of embeddings.parquet. Shape (records, width); several pooled values stand
side by side in a row, in the order of the parquet's columns.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from featuremill.outputs import Target, need
from featuremill.outputs.vectors import side_by_side


class Writer:
    """Fills an array of known shape block by block."""

    def __init__(self, target: Target) -> None:
        self._columns = need(target.pooled(), "npy", "a pooled value")
        kinds = [target.values.field(name).type for name in self._columns]
        dtype = np.result_type(*(kind.value_type.to_pandas_dtype() for kind in kinds))
        shape = (target.num_rows, sum(kind.list_size for kind in kinds))
        self._filled = 0
        if target.num_rows:
            self._array = np.lib.format.open_memmap(target.path, "w+", dtype, shape)
        else:  # a memory map cannot be empty, a plain array can
            with target.path.open("wb") as empty:
                np.save(empty, np.empty(shape, dtype))

    def write(self, block: pa.Table) -> None:
        """Fill the next rows."""
        if block.num_rows:
            rows = slice(self._filled, self._filled + block.num_rows)
            self._array[rows] = side_by_side(block, self._columns)
            self._filled += block.num_rows

    def close(self) -> None:
        """Write what is still in memory."""
        if self._filled:
            self._array.flush()
            del self._array
