"""First pass of planning: read each record once and spool it to disk, in bounded memory.

Three things are written: `rows.arrows` (what the manifest needs, in input order), 256 bucket files
by the first byte of the payload's sha256 (what is sorted and cut into shards), and `ids.bin` (a
hash of each id, to find the repeated ones).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import xxhash

from featuremill.workload import Record

NUM_BUCKETS = 256
CHUNK_RECORDS = 20_000
CHUNK_BYTES = 64 * 2**20
"""A chunk is spooled when it holds this many records or payload bytes, whichever comes first."""

ROWS = pa.schema(
    {
        "id": pa.string(),
        "description": pa.string(),
        "source": pa.string(),
        "line": pa.int64(),
        "sha256": pa.binary(32),
        "length": pa.int64(),
        "cost": pa.int64(),
        "reason": pa.string(),
        "note": pa.string(),
    }
)
BUCKET = pa.schema(
    {
        "sha256": pa.binary(32),
        "cost": pa.int64(),
        "ordinal": pa.int64(),
        "payload": pa.large_binary(),
    }
)
ID_KEY = np.dtype([("hash", "<u8"), ("ordinal", "<i8")])


@dataclass
class Tally:
    """What the first pass counted."""

    records: int = 0
    refused: int = 0
    total_length: int = 0
    longest: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    by_source: Counter[str] = field(default_factory=Counter)


class Spool:
    """The spool files in `folder` and the tally of what went in; a context manager while
    written."""

    def __init__(self, folder: Path, cost: Callable[[bytes], int]) -> None:
        self.folder = folder
        self.tally = Tally()
        self._cost = cost
        self._stack = ExitStack()
        folder.mkdir(parents=True)
        self._rows = self._open_stream(self.rows_path, ROWS)
        self._buckets: dict[int, pa.RecordBatchStreamWriter] = {}
        self._ids = self._stack.enter_context(self.ids_path.open("wb"))

    rows_path = property(lambda self: self.folder / "rows.arrows")
    ids_path = property(lambda self: self.folder / "ids.bin")

    def bucket_path(self, number: int) -> Path:
        return self.folder / f"bucket-{number:03d}.arrows"

    def _open_stream(self, path: Path, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        return self._stack.enter_context(pa.ipc.new_stream(str(path), schema))

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def add_all(self, records: Iterable[Record], tick: Callable[[Tally], None]) -> None:
        """Spool every record; call `tick` with the tally after each chunk."""
        for chunk in _chunks(records):
            self._add(chunk)
            tick(self.tally)

    def _add(self, chunk: list[Record]) -> None:
        first = self.tally.records
        accepted = [n for n, record in enumerate(chunk) if not record.reason]
        digests = [
            None if record.reason else hashlib.sha256(record.payload).digest() for record in chunk
        ]
        costs = [0 if record.reason else self._cost(record.payload) for record in chunk]
        columns: list[list[object]] = [
            [record.id for record in chunk],
            [record.description for record in chunk],
            [record.source for record in chunk],
            [record.line for record in chunk],
            list(digests),
            [len(record.payload) for record in chunk],
            list(costs),
            [record.reason or None for record in chunk],
            [record.note or None for record in chunk],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
        self._rows.write_batch(pa.record_batch(arrays, schema=ROWS))
        self._add_to_buckets(chunk, first, accepted, digests, costs)
        self._count(chunk)

    def _add_to_buckets(
        self,
        chunk: list[Record],
        first: int,
        accepted: list[int],
        digests: list[bytes | None],
        costs: list[int],
    ) -> None:
        if not accepted:
            return
        wanted = [digest for digest in digests if digest is not None]
        batch = pa.record_batch(
            [
                pa.array(wanted, pa.binary(32)),
                pa.array([costs[n] for n in accepted], pa.int64()),
                pa.array([first + n for n in accepted], pa.int64()),
                pa.array([chunk[n].payload for n in accepted], pa.large_binary()),
            ],
            schema=BUCKET,
        )
        buckets = np.frombuffer(b"".join(wanted), np.uint8)[::32]
        order = np.argsort(buckets, kind="stable")
        batch = batch.take(pa.array(order))
        edges = np.searchsorted(buckets[order], np.arange(NUM_BUCKETS + 1))
        for number, (start, end) in enumerate(itertools.pairwise(edges)):
            if end > start:
                if number not in self._buckets:
                    path = self.bucket_path(number)
                    self._buckets[number] = self._open_stream(path, BUCKET)
                self._buckets[number].write_batch(batch.slice(start, end - start))
        keys = np.empty(len(accepted), ID_KEY)
        keys["ordinal"] = [first + n for n in accepted]
        keys["hash"] = [xxhash.xxh3_64_intdigest(chunk[n].id.encode()) for n in accepted]
        self._ids.write(keys.tobytes())

    def _count(self, chunk: list[Record]) -> None:
        tally = self.tally
        tally.records += len(chunk)
        for record in chunk:
            tally.by_source[record.source] += 1
            if record.note:
                tally.notes.update(_kind(note) for note in record.note.split("; "))
            if record.reason:
                tally.refused += 1
                tally.refusals[_kind(record.reason)] += 1
            else:
                tally.total_length += len(record.payload)
                tally.longest = max(tally.longest, len(record.payload))


def _chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.payload)
        if len(chunk) == CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _kind(text: str) -> str:
    """Return the countable part of a reason or note: what stands before the specifics."""
    return text.partition(":")[0]
