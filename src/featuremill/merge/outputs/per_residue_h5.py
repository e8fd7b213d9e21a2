"""per-residue.h5, as UniProt lays its embeddings out: one dataset of (length, width) a record.

With several layers a dataset is (columns, length, width). A dataset's name is the accession.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from featuremill.merge.outputs import Target, need
from featuremill.merge.outputs.hdf5 import DatasetFile
from featuremill.merge.outputs.vectors import matrices


class Writer:
    """Writes one dataset a record."""

    def __init__(self, target: Target) -> None:
        self._columns = need(target.per_residue(), "per_residue_h5", "per_residue: true")
        self._file = DatasetFile(target, self._columns)

    def write(self, block: pa.Table) -> None:
        """Add a dataset for each record of the block."""
        columns = [matrices(block[name]) for name in self._columns]
        several = len(columns) > 1
        rows = zip(*columns, strict=True)
        self._file.add(block["id"], (np.stack(row) if several else row[0] for row in rows))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
