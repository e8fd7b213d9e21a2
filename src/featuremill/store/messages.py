"""Arrow's messages of record batches, without copies of large buffers."""

from __future__ import annotations

from itertools import groupby
from typing import TypeAlias

import pyarrow as pa

Piece: TypeAlias = bytes | pa.Buffer
LARGE_BYTES = 2**20
"""A buffer of this size is a piece of its own and is not copied; smaller ones are joined."""


class Messages:
    """Makes messages of one schema, as `RecordBatch.serialize` does."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = _Sink()
        self._stream = pa.ipc.new_stream(self._sink, schema)
        # Arrow puts the schema before the first batch: here a batch without rows, which is dropped.
        nothing = [pa.nulls(0, field.type) for field in schema]
        self.of(pa.record_batch(nothing, schema=schema))

    def of(self, batch: pa.RecordBatch) -> list[Piece]:
        """Return the message of a batch as consecutive pieces."""
        self._stream.write_batch(batch)
        pieces: list[Piece] = []
        for is_large, group in groupby(self._sink.take(), lambda piece: len(piece) >= LARGE_BYTES):
            neighbours = list(group)
            pieces += neighbours if is_large else [b"".join(neighbours)]
        return pieces


class _Sink:
    """What Arrow needs of a file; Arrow writes each buffer, and the bytes between, in one call."""

    closed = False

    def __init__(self) -> None:
        self._written: list[Piece] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Piece) -> int:
        self._written.append(piece)
        return len(piece)

    def flush(self) -> None:
        pass

    def take(self) -> list[Piece]:
        written, self._written = self._written, []
        return written
