"""per-protein.h5, as UniProt lays its embeddings out: one dataset a record, named by its id.

Each dataset is the record's pooled vector; several pooled values stand side by side in it, in the
order of the root's attribute `columns`. `original_id` keeps the id as it was, and the file's own
attributes say how it was made.
"""

from __future__ import annotations

import h5py
import pyarrow as pa

from featuremill.outputs import Target, need
from featuremill.outputs.vectors import side_by_side


def dataset_name(id: str) -> str:
    """Return `id` as an HDF5 name: "/" would make a group, so it is written %2F (and % as %25)."""
    name = id.replace("%", "%25").replace("/", "%2F")
    return "%2E" if name == "." else name


def open_file(target: Target, columns: list[str]) -> h5py.File:
    """Return a new HDF5 file with the provenance and the column names as attributes of its root."""
    file = h5py.File(target.path, "w", libver="latest")
    for key, value in target.provenance.items():
        file.attrs[key] = value
    file.attrs["columns"] = ",".join(columns)
    return file


class Writer:
    """Writes one small dataset a record."""

    def __init__(self, target: Target) -> None:
        self._columns = need(target.pooled(), "per_protein_h5", "a pooled value")
        self._file = open_file(target, self._columns)

    def write(self, block: pa.Table) -> None:
        """Add a dataset for each record of the block."""
        values = side_by_side(block, self._columns)
        for id, vector in zip(block["id"].to_pylist(), values, strict=True):
            dataset = self._file.create_dataset(dataset_name(id), data=vector)
            dataset.attrs["original_id"] = id

    def close(self) -> None:
        """Close the file."""
        self._file.close()
