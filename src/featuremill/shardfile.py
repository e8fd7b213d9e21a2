"""A shard's file: an immutable Arrow table of (sha256, payload), sorted by sha256."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SHARD = pa.schema({"sha256": pa.binary(32), "payload": pa.large_binary()})
Digests = npt.NDArray[np.bytes_]


def read_shard(path: Path) -> pa.Table:
    """Return the shard's table, memory-mapped."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def digests(column: pa.ChunkedArray) -> Digests:
    """Return a binary(32) column as a NumPy array of 32-byte strings."""
    chunks = [
        np.frombuffer(c.buffers()[1], "S32", count=len(c), offset=c.offset * 32)
        for c in column.chunks
        if len(c)
    ]
    return np.concatenate(chunks) if chunks else np.empty(0, "S32")
