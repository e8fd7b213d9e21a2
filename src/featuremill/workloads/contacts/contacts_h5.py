"""Write contacts.h5: for each protein the matrix of contact probabilities, residues × residues.

The name of a dataset is the accession, as in per-residue.h5. Each sample has a group.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, by_owner, need, own_ids

if TYPE_CHECKING:
    import pyarrow as pa

OF_CONTACTS = re.compile("contacts|contact_map|attention")
"""Matches the columns of the workload contacts."""
FORMAT = Format(
    "contacts.h5",
    "h5py, any HDF5 reader",
    400,
    "table",
    columns=OF_CONTACTS,
    columns_like="contact_map",
    most_records=1_000_000,
    why_not_more="a dataset a record takes minutes for each million of them.",
)


class Writer:
    """Writes one dataset a record."""

    COLUMN, NEEDS = "contact_map", "maps: true"

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        columns = [name for name in values.names if name == cls.COLUMN]
        need(columns, cls.__module__.rpartition(".")[2], cls.NEEDS)

    def __init__(self, target: Target) -> None:
        from featuremill.kit.hdf5 import DatasetFile

        self._file = DatasetFile(target, [self.COLUMN])

    def write(self, block: pa.Table) -> None:
        import pyarrow.compute as pc

        from featuremill.workloads.contacts import columns

        array_of = columns.square if self.COLUMN == columns.MAP else columns.stack
        for keys, rows in by_owner(block):
            filled = rows.filter(pc.greater(pc.list_value_length(rows[self.COLUMN]), 0))
            values = (array_of(cell) for cell in filled[self.COLUMN])
            self._file.add(own_ids(filled), values, [*keys.values()])

    def close(self) -> None:
        self._file.close()
