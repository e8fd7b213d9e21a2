"""The journal of one part: batches of rows on disk, and a log that says which of them count.

The data file holds Arrow stream bytes (schema, then record batches) and becomes the part by a
rename. A cut at a batch border or a page of zeros both read as clean Arrow, so the log decides, not
the reader: a batch counts when its `commit` line is there and the hash of its bytes agrees. The
log:

    featuremill-journal 1 <batch_cost>     the budget that batches were made with
    begin <row>,<row>,…                    rows of the shard that go to the device now
    commit <end offset> <xxh3> <rows>      the rows up to this offset of the data file are good, and
                                           how many this batch has
    abort                                  what was begun failed without harm to the worker
    strike <row>,<row>,…                   the worker died with these rows in flight

Batches commit in the order in which they began, and several may have begun.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import xxhash

from featuremill.store.journal_log import MAGIC, Commit, LogState, joined, read_log
from featuremill.store.messages import Messages, Piece

SYNC_SECONDS = 3.0
"""Time between syncs: one costs up to a tenth of a second, a lost batch is only computed again."""
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
COLUMNS = [
    pa.field("sha256", pa.binary(32), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("reason", pa.string()),
]
"""What the core puts before a workload's values; status is "ok" or "failed"."""


def part_schema(values: pa.Schema) -> pa.Schema:
    """Return the schema of a part whose workload delivers `values`."""
    return pa.schema([*COLUMNS, *values])


class Journal:
    """An open journal: append batches, then finish. One process at a time (the caller holds a
    lock); in it, batches may begin on one thread while another commits those before them."""

    def __init__(self, path: Path, schema: pa.Schema, batch_cost: int) -> None:
        """Open the journal at `path`, keeping what an earlier writer committed.

        The budget `batch_cost` only counts for a new journal; an old one keeps its own.
        """
        self.path = path
        self.log_path = path.with_suffix(".log")
        self.schema = schema
        self._messages = Messages(schema)
        self._hasher = ThreadPoolExecutor(1, "hash")
        self._hasher.submit(int).result()  # its thread starts now, while memory is left for it
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
        self._start_log(commits, state.strikes if state else [])
        self._log = self.log_path.open("ab")
        self._log_lock = threading.Lock()
        self._synced = time.monotonic()

    def _good_commits(self, state: LogState | None) -> list[Commit]:
        """Return the leading commits whose bytes are as the log says, hashing them on the way."""
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
        """Count the rows of good commits; return these with their numbers of rows."""
        counted = []
        with pa.memory_map(str(self.path)) as source:
            reader = pa.ipc.open_stream(source)
            for commit in commits:
                batch = reader.read_next_batch()
                self._count(batch)
                counted.append(commit._replace(num_rows=batch.num_rows))
        return counted

    def _start_log(self, commits: list[Commit], strikes: list[tuple[int, ...]]) -> None:
        lines = [f"{MAGIC} {self.batch_cost}"]
        lines += [f"commit {end} {digest} {num_rows}" for end, digest, num_rows in commits]
        lines += [f"strike {joined(rows)}" for rows in strikes]
        fresh = self.log_path.with_suffix(".log.new")
        fresh.write_text("\n".join(lines) + "\n", "ascii")
        fresh.replace(self.log_path)

    def begin(self, rows: Iterable[int]) -> None:
        """Note that these rows of the shard go to the device now."""
        self._write_log(f"begin {joined(rows)}")

    def abort(self) -> None:
        """Note that nothing is on the device any more, and that what was begun has failed."""
        self._write_log("abort")

    def commit(self, batch: pa.RecordBatch) -> None:
        """Append one batch of finished rows."""
        pieces = self._messages.of(batch)
        if len(pieces) == 1:  # nothing large: this takes less time than asking a thread does
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
        """Close the files; what is committed stays for the next writer."""
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
        """Return the hash of a batch's bytes, and add them to that of the whole file."""
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
        # Counted in a batch of thousands this takes as long as writing it, so not one by one.
        num_failed = len(sha256) - batch.column("reason").null_count
        self.counts.update(ok=len(sha256) - num_failed, failed=num_failed)

    def _sync(self) -> None:
        os.fsync(self._data.fileno())
        os.fsync(self._log.fileno())
        self._synced = time.monotonic()
