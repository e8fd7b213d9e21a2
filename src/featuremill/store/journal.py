"""The journal of one part: batches of rows on disk, and a log that says which of them count.

The data file holds Arrow stream bytes (schema, then record batches) and becomes the part by a
rename. A cut at a batch border or a page of zeros both read as clean Arrow, so the log decides, not
the reader: a batch counts when its `commit` line is there and the hash of its bytes agrees. The
log:

    featuremill-journal 1 <batch_cost>     the budget that batches were made with
    begin <row>,<row>,…                    rows of the shard that go to the device now
    commit <end offset> <xxh3> <rows>      the rows up to this offset of the data file are good, and
                                           how many this batch has (early logs do not tell)
    abort                                  what was begun failed without harm to the worker
    strike <row>,<row>,…                   the worker died with these rows in flight

Batches commit in the order in which they began, and several may have begun.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import xxhash

from featuremill.store.messages import Messages, Piece

MAGIC = "featuremill-journal 1"
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


class Commit(NamedTuple):
    """A batch that counts."""

    end: int
    """Its end in the data file."""
    digest: str
    """The xxh3-64 of its bytes."""
    num_rows: int | None = None


class LogState(NamedTuple):
    """What a log says: the budget, the committed batches, the strikes, and all rows in flight."""

    batch_cost: int
    commits: list[Commit]
    strikes: list[tuple[int, ...]]
    in_flight: tuple[int, ...]

    def num_rows(self, data: Path) -> int | None:
        """Return how many rows are committed of those that the data file `data` holds, by its size;
        None where an early log does not tell."""
        num_bytes = data.stat().st_size if data.exists() else 0
        told = [commit.num_rows for commit in self.commits if commit.end <= num_bytes]
        known = [rows for rows in told if rows is not None]
        return sum(known) if len(known) == len(told) else None


def read_log(path: Path) -> LogState | None:
    """Return what the log at `path` says, up to its first unreadable line; None for no usable
    log."""
    if not path.exists():
        return None
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline was cut off
    commits: list[Commit] = []
    strikes: list[tuple[int, ...]] = []
    in_flight: deque[tuple[int, ...]] = deque()
    try:
        magic, _, budget = lines[0].decode("ascii").rpartition(" ")
        if magic != MAGIC:
            return None
        batch_cost = _natural(budget)
    except (IndexError, ValueError):
        return None
    for line in lines[1:]:
        try:
            word, *rest = line.decode("ascii").split(" ")
            if not line:
                continue
            if word == "commit":
                rows = _natural(rest[2], least=0) if len(rest) > 2 else None
                commits.append(Commit(_natural(rest[0]), rest[1], rows))
                if in_flight:  # what is condemned is committed without a beginning
                    in_flight.popleft()
            elif word == "begin":
                in_flight.append(_rows(rest[0]))
            elif word == "strike":
                strikes.append(_rows(rest[0]))
                in_flight.clear()
            elif word == "abort":
                in_flight.clear()
            else:
                break
        except (IndexError, ValueError):
            break
    return LogState(batch_cost, commits, strikes, tuple(row for rows in in_flight for row in rows))


def _rows(text: str) -> tuple[int, ...]:
    return tuple(_natural(row, least=0) for row in text.split(","))


def _natural(text: str, least: int = 1) -> int:
    if not text.isdecimal() or not least <= (number := int(text)) < 2**63:
        raise ValueError(text)
    return number


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
        lines += [f"strike {_join(rows)}" for rows in strikes]
        fresh = self.log_path.with_suffix(".log.new")
        fresh.write_text("\n".join(lines) + "\n", "ascii")
        fresh.replace(self.log_path)

    def begin(self, rows: Iterable[int]) -> None:
        """Note that these rows of the shard go to the device now."""
        self._write_log(f"begin {_join(rows)}")

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


def num_rows_in(path: Path) -> int:
    """Return how many rows the journal at `path` holds. Where an early log does not tell, its data
    are read: by one who holds the lock, as a writer may cut them."""
    state = read_log(path.with_suffix(".log"))
    if state is None or not path.exists():
        return 0
    if (told := state.num_rows(path)) is not None:
        return told
    total = 0
    with contextlib.suppress(pa.ArrowInvalid, OSError, StopIteration), pa.OSFile(str(path)) as data:
        reader = pa.ipc.open_stream(data)
        for _ in state.commits:
            total += reader.read_next_batch().num_rows
    return total


def add_strike(log_path: Path, rows: Iterable[int]) -> None:
    """Note in a closed journal's log that a worker died with `rows` in flight."""
    with log_path.open("ab") as log:  # a new line first, in case the dead writer's last one is torn
        log.write(f"\nstrike {_join(rows)}\n".encode("ascii"))
        log.flush()
        os.fsync(log.fileno())


def remove(path: Path) -> None:
    """Remove what a finished journal leaves beside its part."""
    path.with_suffix(".log").unlink(missing_ok=True)


def digest_of_file(path: Path) -> str:
    """Return the digest that `Journal.finish` gave for the file, computed from the disk."""
    state = xxhash.xxh3_128()
    with path.open("rb") as handle:
        while block := handle.read(4 * 2**20):
            state.update(block)
    return state.hexdigest()


def _join(rows: Iterable[int]) -> str:
    return ",".join(map(str, rows))
