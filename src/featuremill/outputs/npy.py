"""Write embeddings.npy: the pooled vectors as one array (records, width), which NumPy can map.

Row n belongs to row n of embeddings.parquet, whose column `sample` has the samples. Several pooled
columns are side by side in a row, in the order of the parquet's columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, need

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format(
    "embeddings.npy",
    "NumPy, memory-mapped",
    0,
    "pooled",
    has_sidecar=True,
    also_called=("npz", "numpy"),
)


class Writer:
    """Writes the header, then the rows."""

    def __init__(self, target: Target) -> None:
        import numpy as np

        self._columns = need(target.pooled(), "npy", "a pooled value")
        kinds = [target.values.field(name).type for name in self._columns]
        self._dtype = np.result_type(*(kind.value_type.to_pandas_dtype() for kind in kinds))
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (target.num_rows, sum(kind.list_size for kind in kinds)),
        }
        self._file = target.path.open("wb")
        np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, block: pa.Table) -> None:
        import numpy as np

        from featuremill.kit.arrays import side_by_side

        rows = side_by_side(block, self._columns).astype(self._dtype, copy=False)
        self._file.write(np.ascontiguousarray(rows).data)

    def close(self) -> None:
        self._file.close()
