"""A file of rows that are added in any order and read by bucket, in the order of their ordinals.

What comes in is held until it fills a chunk; the chunk is sorted by bucket and appended to one
file, with a note of where each bucket's piece begins. So the file is written from its beginning to
its end, and a bucket is read as one piece of each chunk: no row is ever looked up by itself, which
on a disk or a shared file system costs a thousand times what reading it in its turn does.
"""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

CHUNK_BYTES = 128 * 2**20
"""Rows held before they are written; three times this much memory while they are sorted."""
ORDINAL = pa.field("ordinal", pa.int64(), nullable=False)


class Shuffle:
    """One file of rows and the index of its pieces; rows may be added on several threads."""

    def __init__(
        self, path: Path, columns: pa.Schema, edges: npt.NDArray[np.int64], times: int = 1
    ) -> None:
        """Make the file `path`; bucket n takes the ordinals from edges[n] up to edges[n + 1].

        Chunks are so many `times` as large as `CHUNK_BYTES`.
        """
        self._chunk_bytes = CHUNK_BYTES * times
        self.columns = columns
        self.schema = pa.schema([ORDINAL, *columns])
        self.num_rows = 0
        self._edges = edges
        self._pieces: list[npt.NDArray[np.int64]] = []
        """For each chunk, the offset of each bucket's piece in the file, and the end of the
        last."""
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._file: BinaryIO = path.open("w+b")

    @classmethod
    def opened(cls, path: Path, columns: pa.Schema, edges: npt.NDArray[np.int64]) -> Self:
        """Return one that was saved, with the same columns and edges, for its buckets to be
        read."""
        shuffle = cls(Path(os.devnull), columns, edges)
        shuffle._file.close()
        shuffle._file = path.open("rb")
        shuffle._pieces = list(np.load(path.with_suffix(".npy"), mmap_mode="r"))
        return shuffle

    def save(self) -> None:
        """Finish, and write beside the file where the pieces begin."""
        self.finish()
        pieces = np.array(self._pieces, np.int64).reshape(-1, len(self._edges))
        np.save(Path(self._file.name).with_suffix(".npy"), pieces)

    def add(self, ordinals: npt.NDArray[np.int64], rows: pa.RecordBatch) -> None:
        """Add `rows`, whose places in the end are `ordinals`."""
        batch = pa.record_batch([pa.array(ordinals), *rows.columns], schema=self.schema)
        with self._lock:  # and whoever comes meanwhile waits: only one chunk is in memory
            self._held.append(batch)
            self._held_bytes += batch.get_total_buffer_size()
            self.num_rows += batch.num_rows
            if self._held_bytes >= self._chunk_bytes:
                self._write()

    def finish(self) -> None:
        """Write what is held; then buckets may be read."""
        if self._held:
            self._write()
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self) -> None:
        chunk = pa.Table.from_batches(self._held, self.schema)
        self._held, self._held_bytes = [], 0
        (rows,) = chunk.combine_chunks().to_batches() or [None]
        del chunk
        if rows is None:
            return
        bucket = np.searchsorted(self._edges, rows.column(0).to_numpy(), side="right") - 1
        rows = rows.take(pa.array(np.argsort(bucket, kind="stable")))
        limits = np.concatenate(([0], np.cumsum(np.bincount(bucket, minlength=len(self._edges)))))
        begins = np.empty(len(self._edges), np.int64)
        offset = self._file.tell()
        for number, (start, end) in enumerate(itertools.pairwise(limits[: len(self._edges)])):
            begins[number] = offset
            if end > start:
                offset += self._file.write(rows.slice(start, end - start).serialize())
        begins[-1] = offset
        self._pieces.append(begins)

    def read(self, bucket: int) -> pa.RecordBatch:
        """Return the bucket's rows in the order of their ordinals; on any thread."""
        handle = self._file.fileno()
        pieces = [
            (int(begins[bucket]), int(begins[bucket + 1] - begins[bucket]))
            for begins in self._pieces
            if begins[bucket + 1] > begins[bucket]
        ]
        if hasattr(os, "posix_fadvise"):  # all at once, so that none waits for the one before
            for offset, size in pieces:
                os.posix_fadvise(handle, offset, size, os.POSIX_FADV_WILLNEED)
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(_read(handle, size, offset)), self.schema)
            for offset, size in pieces
        ]
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        del batches
        return rows.take(pa.array(np.argsort(rows.column(0).to_numpy())))


def _read(handle: int, size: int, offset: int) -> bytes:
    """Return `size` bytes of an open file; one call of the system gives 2 GiB at most."""
    content = os.pread(handle, size, offset)
    while len(content) < size:
        more = os.pread(handle, size - len(content), offset + len(content))
        assert more, "the file is as long as it was written"
        content += more
    return content
