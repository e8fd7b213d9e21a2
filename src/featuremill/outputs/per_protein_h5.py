"""Write per-protein.h5 in UniProt's layout: a dataset for each record, named by its accession.

A dataset is the record's pooled vector. Several pooled columns are side by side in it, in the order
of the root's attribute `columns`. Each sample has a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, by_owner, need, own_ids

if TYPE_CHECKING:
    import pyarrow as pa

ONE_BY_ONE = (
    "a dataset a record takes minutes for each million of them, and such a file opens slowly; "
    "parquet_dataset is the output for so many."
)

FORMAT = Format(
    "per-protein.h5",
    "what reads UniProt's embeddings",
    400,
    "pooled",
    most_records=1_000_000,
    why_not_more=ONE_BY_ONE,
    also_called=("h5", "hdf5"),
)


class Writer:
    """Writes one small dataset for each record."""

    def __init__(self, target: Target) -> None:
        from featuremill.kit.hdf5 import DatasetFile

        self._columns = need(target.pooled(), "per_protein_h5", "a pooled value")
        self._file = DatasetFile(target, self._columns)

    def write(self, block: pa.Table) -> None:
        from featuremill.kit.arrays import side_by_side

        for keys, rows in by_owner(block):
            self._file.add(own_ids(rows), side_by_side(rows, self._columns), [*keys.values()])

    def close(self) -> None:
        self._file.close()
