"""First pass of planning: what is read once goes to disk, chunk by chunk, in bounded memory.

Three things are written: `rows.arrows` (what records.parquet needs, in input order), 256 bucket
files by the first byte of the payload's sha256 (what is sorted and cut into shards), and `ids.bin`
(a hash of each id, to find the repeated ones). With several processes each writes its own, in a
folder of its own; chunk n belongs to process n modulo their number.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import xxhash

from featuremill.base.errors import WorkloadError
from featuremill.base.reasons import head_of
from featuremill.inputs import Stream
from featuremill.inputs.fasta import Piece
from featuremill.inputs.residues import NUCLEOTIDES
from featuremill.workload import Record, find_workload
from featuremill.workload.plugin_errors import costs_of

Value = TypeVar("Value")
NUM_BUCKETS = 256
CHUNK_RECORDS = 20_000
CHUNK_BYTES = 64 * 2**20
"""A chunk is spooled when it holds this many records or letters, whichever comes first."""
PIECES_BYTES = 2**22
"""Text of pieces that goes to a process at a time."""

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
        "owner": pa.int32(),
        "size": pa.int64(),
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


class Chunk(NamedTuple):
    """Some records that follow one another, by column."""

    first: int
    """Ordinal of the first of them."""
    ids: tuple[str, ...]
    descriptions: tuple[str, ...]
    payloads: tuple[bytes, ...]
    sources: tuple[str, ...]
    lines: tuple[int, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    lengths: tuple[int, ...]
    """In the workload's unit: what a record says itself, else the bytes of its payload."""
    owners: tuple[int, ...]
    """The number of each record's owner in the sheet of samples; 0 without a sheet."""
    sizes: tuple[int, ...]
    """The bytes of each record, of `CHUNK_BYTES` in all."""

    @property
    def end(self) -> int:
        """The ordinal of the next chunk's first record."""
        return self.first + len(self.ids)

    def good(self, column: Sequence[Value]) -> list[Value]:
        """Return what `column` has of the records that are not refused."""
        if not any(self.reasons):
            return list(column)
        return [value for value, reason in zip(column, self.reasons, strict=True) if not reason]


class Pieces(NamedTuple):
    """Pieces of files that follow one another; their records are still to be made."""

    first: int
    end: int
    pieces: Sequence[Piece]
    owners: Mapping[str, int]


@dataclass
class Tally:
    """What an input holds: records, what they were refused for, what was fixed or cut in them."""

    records: int = 0
    total_length: int = 0
    """The length of the good records, in the workload's unit."""
    longest: int = 0
    costliest: int = 0
    """The highest cost of one."""
    total_bytes: int = 0
    """The bytes of the good records' payloads."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Records by the head of the reason they were refused for."""
    notes: Counter[str] = field(default_factory=Counter)
    by_source: Counter[str] = field(default_factory=Counter)

    @property
    def refused(self) -> int:
        return self.refusals.total()

    @property
    def is_nucleotides(self) -> bool:
        """Whether most of the good records look like nucleotides where proteins are meant."""
        return 2 * self.notes[NUCLEOTIDES] > self.records - self.refused

    def count(self, chunk: Chunk) -> None:
        self.records += len(chunk.ids)
        self.by_source.update(chunk.sources)
        for note in filter(None, chunk.notes):
            self.notes.update(map(head_of, note.split("; ")))
        self.refusals.update(head_of(reason) for reason in chunk.reasons if reason)
        good = chunk.good(chunk.lengths)
        self.total_length += sum(good)
        self.longest = max(self.longest, max(good, default=0))
        self.total_bytes += sum(map(len, chunk.good(chunk.payloads)))

    def add(self, other: Tally) -> None:
        """Count in what another process counted."""
        self.records += other.records
        self.total_length += other.total_length
        self.longest = max(self.longest, other.longest)
        self.costliest = max(self.costliest, other.costliest)
        self.total_bytes += other.total_bytes
        self.refusals += other.refusals
        self.notes += other.notes
        self.by_source += other.by_source


def lots_of(items: Iterable[Piece | Record], owners: Mapping[str, int]) -> Iterator[Chunk | Pieces]:
    """Yield `items` in lots, each for one process; `owners` as in `chunks_of`."""
    first = 0
    for is_made, group in itertools.groupby(items, lambda each: isinstance(each, Record)):
        cut: Any = chunks_of if is_made else _pieces
        for lot in cut(group, first, owners):
            yield lot
            first = lot.end


def _pieces(pieces: Iterable[Piece], first: int, owners: Mapping[str, int]) -> Iterator[Pieces]:
    waiting: list[Piece] = []
    end, size, failed = first, 0, None
    try:
        for piece in pieces:
            waiting.append(piece)
            end, size = end + piece.num_records, size + len(piece.text)
            if end - first >= CHUNK_RECORDS or size >= PIECES_BYTES:
                yield Pieces(first, end, waiting, owners)
                first, size, waiting = end, 0, []
    except Exception as error:
        failed = error
    if waiting:  # their own errors stand before that one
        yield Pieces(first, end, waiting, owners)
    if failed:
        raise failed


def chunks_of(
    records: Iterable[Record], first: int = 0, owners: Mapping[str, int] = MappingProxyType({})
) -> Iterator[Chunk]:
    """Yield the records in chunks, none of them empty; the first record has the ordinal `first`,
    and `owners` are the numbers of whose files are."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += _size(record)
        if len(chunk) == CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield _chunk(first, chunk, owners)
            first += len(chunk)
            chunk, size = [], 0
    if chunk:
        yield _chunk(first, chunk, owners)


def _size(record: Record) -> int:
    return len(record.payload) + len(record.id) + len(record.description)


def _chunk(first: int, records: Sequence[Record], owners: Mapping[str, int]) -> Chunk:
    *columns, lengths_given = zip(*records, strict=True)
    payloads = columns[Record._fields.index("payload")]
    lengths = tuple(map(len, payloads))
    if any(length is not None for length in set(lengths_given)):
        lengths = tuple(
            own if length is None else int(length)
            for own, length in zip(lengths, lengths_given, strict=True)
        )
    sources = columns[Record._fields.index("source")]
    try:
        numbers = tuple(map(owners.__getitem__, sources)) if owners else (0,) * len(sources)
    except KeyError as error:
        raise WorkloadError(
            f"a record is of {error}, which is no file of the sheet of samples; that is for the "
            "author of the workload to fix."
        ) from None
    return Chunk._make([first, *columns, lengths, numbers, tuple(map(_size, records))])


def spool(folder: Path, workload: str, options: str, chunks: Iterable[Chunk | Pieces]) -> Tally:
    """Write `chunks` into the new `folder`; return what was counted.

    `options` are those of `workload`, as JSON.
    """
    module = find_workload(workload)
    settled = module.Options.model_validate_json(options)
    stream = None
    with Spool(folder, lambda payloads: costs_of(workload, module, payloads, settled)) as files:
        for chunk in chunks:
            if isinstance(chunk, Pieces):
                stream = stream or cast("Stream", module.records([], settled))
                records = [record for piece in chunk.pieces for record in stream.records_of(piece)]
                assert len(records) == chunk.end - chunk.first, chunk.pieces[0][:2]
                chunk = _chunk(chunk.first, records, chunk.owners)
            files.add(chunk)
    return files.tally


def rows_path(folder: Path) -> Path:
    return folder / "rows.arrows"


def ids_path(folder: Path) -> Path:
    return folder / "ids.bin"


def bucket_path(folder: Path, number: int) -> Path:
    """Return a bucket that is spooled in `folder`; it is not there when nothing fell into it."""
    return folder / f"bucket-{number:03d}.arrows"


class Spool(ExitStack):
    """The files that one process spools into; a context manager."""

    def __init__(self, folder: Path, costs: Callable[[Sequence[bytes]], Sequence[int]]) -> None:
        super().__init__()
        self.tally = Tally()
        self._folder = folder
        self._costs = costs
        folder.mkdir(parents=True)
        self._rows = self._open_stream(rows_path(folder), ROWS)
        self._buckets: dict[int, pa.RecordBatchStreamWriter] = {}
        self._ids = self.enter_context(ids_path(folder).open("wb"))

    def _open_stream(self, path: Path, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        return self.enter_context(pa.ipc.new_stream(str(path), schema))

    def add(self, chunk: Chunk) -> None:
        """Spool the records of a chunk, and count them."""
        digests = [
            None if reason else hashlib.sha256(payload).digest()
            for payload, reason in zip(chunk.payloads, chunk.reasons, strict=True)
        ]
        accepted = [n for n, reason in enumerate(chunk.reasons) if not reason]
        costs = np.zeros(len(chunk.payloads), np.int64)
        payloads = chunk.good(chunk.payloads)
        costs[accepted] = self._costs(payloads)
        self.tally.costliest = max(self.tally.costliest, int(costs.max(initial=0)))
        columns = [
            chunk.ids,
            chunk.descriptions,
            chunk.sources,
            chunk.lines,
            digests,
            chunk.lengths,
            costs,
            [reason or None for reason in chunk.reasons],
            [note or None for note in chunk.notes],
            chunk.owners,
            chunk.sizes,
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
        self._rows.write_batch(pa.record_batch(arrays, schema=ROWS))
        self._add_to_buckets(chunk, accepted, payloads, digests, costs)
        self.tally.count(chunk)

    def _add_to_buckets(
        self,
        chunk: Chunk,
        accepted: list[int],
        payloads: list[bytes],
        digests: list[bytes | None],
        costs: np.ndarray[tuple[int], np.dtype],
    ) -> None:
        if not accepted:
            return
        ordinals = chunk.first + np.array(accepted, np.int64)
        wanted = [digest for digest in digests if digest is not None]
        batch = pa.record_batch(
            [
                pa.array(wanted, pa.binary(32)),
                pa.array(costs[accepted]),
                pa.array(ordinals),
                pa.array(payloads, pa.large_binary()),
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
                    path = bucket_path(self._folder, number)
                    self._buckets[number] = self._open_stream(path, BUCKET)
                self._buckets[number].write_batch(batch.slice(start, end - start))
        keys = np.empty(len(accepted), ID_KEY)
        keys["ordinal"] = ordinals
        # The hash of an id is that of one record in each sample.
        ids_and_owners = zip(chunk.good(chunk.ids), chunk.good(chunk.owners), strict=True)
        keys["hash"] = [xxhash.xxh3_64_intdigest(id.encode(), seed=n) for id, n in ids_and_owners]
        self._ids.write(keys.tobytes())
