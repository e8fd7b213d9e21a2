"""Write per-residue.h5 in UniProt's layout: a dataset (length, width) for each record, named by its
accession.

With several layers, a dataset is (columns, length, width). Each sample has a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featuremill.outputs.per_protein_h5 import ONE_BY_ONE
from featuremill.workload.outputs import Format, Target, by_owner, need, own_ids

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format(
    "per-residue.h5",
    "the same, a vector a residue",
    400,
    "per_residue",
    most_records=1_000_000,
    why_not_more=ONE_BY_ONE,
)


class Writer:
    """Writes one dataset for each record."""

    def __init__(self, target: Target) -> None:
        from featuremill.kit.hdf5 import DatasetFile

        self._columns = need(target.per_residue(), "per_residue_h5", "per_residue: true")
        self._file = DatasetFile(target, self._columns)

    def write(self, block: pa.Table) -> None:
        import numpy as np

        from featuremill.kit.arrays import matrices

        for keys, few in by_owner(block):
            columns = [matrices(few[name]) for name in self._columns]
            several = len(columns) > 1
            rows = zip(*columns, strict=True)
            values = (np.stack(row) if several else row[0] for row in rows)
            self._file.add(own_ids(few), values, [*keys.values()])

    def close(self) -> None:
        self._file.close()
