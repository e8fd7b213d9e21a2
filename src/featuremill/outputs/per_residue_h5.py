"""per-residue.h5, as UniProt lays its embeddings out: one dataset of (length, width) a record.

With several layers a dataset is (columns, length, width).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from featuremill.outputs import Target, need
from featuremill.outputs.per_protein_h5 import dataset_name, open_file
from featuremill.outputs.vectors import matrices


class Writer:
    """Writes one dataset a record."""

    def __init__(self, target: Target) -> None:
        self._columns = need(target.per_residue(), "per_residue_h5", "per_residue: true")
        self._file = open_file(target, self._columns)

    def write(self, block: pa.Table) -> None:
        """Add a dataset for each record of the block."""
        columns = [matrices(block[name]) for name in self._columns]
        for id, *layers in zip(block["id"].to_pylist(), *columns, strict=True):
            values = layers[0] if len(layers) == 1 else np.stack(layers)
            dataset = self._file.create_dataset(dataset_name(id), data=values)
            dataset.attrs["original_id"] = id

    def close(self) -> None:
        """Close the file."""
        self._file.close()
