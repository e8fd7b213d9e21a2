"""The journal of one part: batches of rows on disk, and a log of the committed ones.

The data file is an Arrow stream (schema, then record batches) and becomes the part by a rename.
Arrow reads a file that was cut between two batches, or that ends with zeros, without an error. So
the log decides: a batch is valid if it has a `commit` line with the hash of its bytes. The log:

    featuremill-journal 1 <batch_cost>     the budget of a batch
    begin <row>,<row>,…                    rows of the shard that are prepared for the device now
    commit <end offset> <xxh3> <rows>      the rows up to this offset of the data file are good, and
                                           how many this batch has
    abort                                  rows in flight failed, the worker did not
    strike <row>,<row>,…                   the worker died with these rows in flight

Batches are committed in the order of their `begin` lines; several may be in flight.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, TypeAlias

import pyarrow as pa
import xxhash

from featuremill.store.journal_log import MAGIC, Commit, LogState, joined, read_log

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


SYNC_SECONDS = 3.0
"""Time between syncs. One takes up to 0.1 s; a batch that was not synced may be computed again."""
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
COLUMNS = [
    pa.field("sha256", pa.binary(32), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("reason", pa.string()),
]
"""The core's columns before the workload's values; status is "ok" or "failed"."""


def part_schema(values: pa.Schema) -> pa.Schema:
    """Return the schema of a part whose workload delivers `values`."""
    return pa.schema([*COLUMNS, *values])


class Journal:
    """An open journal: append batches, then finish. The caller's lock keeps other processes away.
    One thread may begin batches while another commits earlier ones."""

    def __init__(self, path: Path, schema: pa.Schema, batch_cost: int) -> None:
        """Open the journal at `path` and keep the batches that an earlier writer committed.

        `batch_cost` is the budget of a new journal; an existing one keeps its own.
        """
        self.path = path
        self.log_path = path.with_suffix(".log")
        self.schema = schema
        self._messages = Messages(schema)
        self._hasher = ThreadPoolExecutor(1, "hash")
        self._hasher.submit(int).result()  # the thread starts now, while there is memory for it
        path.parent.mkdir(parents=True, exist_ok=True)
        self._hash = xxhash.xxh3_128()
        state = read_log(self.log_path)
        self.batch_cost = state.batch_cost if state else batch_cost
        commits = self._good_commits(state)
        self.num_resumed = len(commits)
        self.rows_done: set[bytes] = set()
        self.counts: Counter[str] = Counter()
        self._data: BinaryIO = path.open("ab")
        if commits:
            self._data.truncate(commits[-1].end)
            commits = self._recalled(commits)
        else:
            self._data.truncate(0)
            self._write(schema.serialize().to_pybytes())
        lines = [f"{MAGIC} {self.batch_cost}"]
        lines += [f"commit {end} {digest} {num_rows}" for end, digest, num_rows in commits]
        lines += [f"strike {joined(rows)}" for rows in (state.strikes if state else ())]
        new = self.log_path.with_suffix(".log.new")
        new.write_text("\n".join(lines) + "\n", "ascii")
        new.replace(self.log_path)
        self._log = self.log_path.open("ab")
        self._log_lock = threading.Lock()
        self._synced = time.monotonic()

    def _good_commits(self, state: LogState | None) -> list[Commit]:
        """Return the commits up to the first whose bytes do not match; hash the bytes."""
        if state is None or not self.path.exists():
            return []
        header = self.schema.serialize().to_pybytes()
        good: list[Commit] = []
        with self.path.open("rb") as data:
            if data.read(len(header)) != header:
                return []
            running, start = xxhash.xxh3_128(header), len(header)
            for commit in state.commits:
                size = commit.end - start
                content = data.read(max(0, size))
                if len(content) != size or xxhash.xxh3_64_hexdigest(content) != commit.digest:
                    break
                running.update(content)
                good.append(commit)
                start = commit.end
        if good:
            self._hash = running
        return good

    def _recalled(self, commits: list[Commit]) -> list[Commit]:
        """Count the rows of good commits; return the commits with their numbers of rows."""
        counted = []
        with pa.memory_map(str(self.path)) as source:
            reader = pa.ipc.open_stream(source)
            for commit in commits:
                batch = reader.read_next_batch()
                self._count(batch)
                counted.append(commit._replace(num_rows=batch.num_rows))
        return counted

    def begin(self, rows: Iterable[int]) -> None:
        """Log that these rows of the shard are going to be prepared and computed."""
        self._write_log(f"begin {joined(rows)}")

    def abort(self) -> None:
        """Log that rows in flight have failed, so that none is in flight any more."""
        self._write_log("abort")

    def commit(self, batch: pa.RecordBatch) -> None:
        """Append one batch of finished rows."""
        pieces = self._messages.of(batch)
        if len(pieces) == 1:  # for small batches this is faster than a thread
            digest = self._hashed(pieces)
            self._data.writelines(pieces)
        else:
            hashed = self._hasher.submit(self._hashed, pieces)
            self._data.writelines(pieces)
            digest = hashed.result()
        self._data.flush()
        self._write_log(f"commit {self._data.tell()} {digest} {batch.num_rows}")
        self._count(batch)
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self._sync()

    def finish(self) -> str:
        """Close the stream, sync it, and return the digest of the whole file."""
        self._write(END_OF_STREAM)
        self._data.flush()
        self._sync()
        self.close()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the files; committed batches stay for the next writer."""
        self._hasher.shutdown()
        self._data.close()
        self._log.close()

    def _write_log(self, line: str) -> None:
        with self._log_lock:
            self._log.write(f"{line}\n".encode("ascii"))
            self._log.flush()

    def _write(self, content: bytes) -> None:
        self._data.write(content)
        self._hash.update(content)

    def _hashed(self, pieces: Sequence[Piece]) -> str:
        """Return the hash of a batch's bytes, and add the bytes to the hash of the file."""
        digest = xxhash.xxh3_64()
        for piece in pieces:
            digest.update(piece)
            self._hash.update(piece)
        return digest.hexdigest()

    def _count(self, batch: pa.RecordBatch) -> None:
        sha256 = batch.column("sha256")
        start, end = 32 * sha256.offset, 32 * (sha256.offset + len(sha256))
        content = bytes(memoryview(sha256.buffers()[1])[start:end])
        self.rows_done.update(content[at : at + 32] for at in range(0, len(content), 32))
        # Counting row by row would take as long as writing a batch of thousands.
        num_failed = len(sha256) - batch.column("reason").null_count
        self.counts.update(ok=len(sha256) - num_failed, failed=num_failed)

    def _sync(self) -> None:
        os.fsync(self._data.fileno())
        os.fsync(self._log.fileno())
        self._synced = time.monotonic()
