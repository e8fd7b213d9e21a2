"""embeddings.parquet: id, length, sha256 (hex) and one fixed-size list of float32 a pooled
value."""

from __future__ import annotations

import binascii
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from featuremill.outputs import Target
from featuremill.shardfile import digests

HEX_DIGITS = 64


class Writer:
    """Writes every column; per-residue ones too, as nested lists. Embeddings don't compress."""

    def __init__(self, target: Target) -> None:
        metadata = {"featuremill": json.dumps(target.provenance, sort_keys=True)}
        self._schema = pa.schema(
            [
                pa.field("id", pa.string()),
                pa.field("length", pa.int32()),
                pa.field("sha256", pa.string()),
                *target.values,
            ],
            metadata=metadata,
        )
        compression = dict.fromkeys(target.values.names, "none")
        self._file = pa.parquet.ParquetWriter(
            target.path,
            self._schema,
            compression={**dict.fromkeys(("id", "length", "sha256"), "zstd"), **compression},
            use_dictionary=False,
        )

    def write(self, block: pa.Table) -> None:
        """Append a block as one row group."""
        columns = [
            block["id"],
            block["length"].cast(pa.int32()),
            _hexadecimal(block["sha256"]),
            *(block[name] for name in self._schema.names[3:]),
        ]
        self._file.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._file.close()


def _hexadecimal(sha256: pa.ChunkedArray) -> pa.Array:
    found = digests(sha256)
    edges = np.arange(len(found) + 1, dtype=np.int32) * HEX_DIGITS
    text = binascii.hexlify(found.tobytes())
    return pa.StringArray.from_buffers(len(found), pa.py_buffer(edges), pa.py_buffer(text))
