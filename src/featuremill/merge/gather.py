"""Join records.parquet with the parts: every input record's values, in input order, block by block.

records.parquet is read from its beginning to its end, and so is each part: what belongs to a block
of its rows comes together in a `Shuffle`. In memory are a chunk of it and a few blocks, however
many records there are; what grows with them stands in files in `scratch`.
"""

from __future__ import annotations

import itertools
import logging
import mmap
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.arrays import digests, not_finite
from featuremill.base.errors import IntegrityError
from featuremill.base.id_columns import KEYS
from featuremill.base.progress import Progress
from featuremill.base.this_process import take_space
from featuremill.merge.shuffle import Shuffle
from featuremill.store.disk_space import expected_bytes
from featuremill.store.parts import Part, other_columns
from featuremill.store.records import id_columns_of, read_records, samples_of, shard_numbers
from featuremill.store.results import Results

Item = TypeVar("Item")
Result = TypeVar("Result")
Sizes = npt.NDArray[np.int64]


def bytes_of_rows(rows: pa.RecordBatch) -> Sizes:
    """Return the approximate bytes of the values in each row; shape (rows,)."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        sizes += _of_column(column)
    return sizes


def _of_column(column: pa.Array) -> Sizes:
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(map(_of_column, column.flatten()), start=np.zeros(len(column), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ends = np.concatenate(([0], np.cumsum(_of_column(column.values))))
        offsets = np.asarray(column.offsets)
        return _numbers(ends[offsets[1:]] - ends[offsets[:-1]])
    if pa.types.is_fixed_size_list(kind):
        inner = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        if not _is_plain(kind.value_type):
            return _numbers(_of_column(inner).reshape(len(column), -1).sum(axis=1))
        return np.full(len(column), kind.list_size * kind.value_type.bit_width // 8, np.int64)
    if pa.types.is_map(kind) or pa.types.is_dictionary(kind) or pa.types.is_union(kind):
        return np.full(len(column), column.nbytes // max(1, len(column)), np.int64)
    if _is_plain(kind):
        return np.full(len(column), -(-kind.bit_width // 8), np.int64)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    return _numbers(pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False))


def pieces_of(sizes: Sizes, num_bytes: int) -> Iterator[slice]:
    """Yield slices of rows of these `sizes`, each of about so many bytes."""
    pieces = np.cumsum(sizes) // num_bytes
    edges = [0, *(1 + np.flatnonzero(np.diff(pieces))).tolist(), len(sizes)]
    yield from itertools.starmap(slice, itertools.pairwise(edges))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _numbers(values: Any) -> Sizes:
    return np.asarray(values).astype(np.int64)


log = logging.getLogger("featuremill.merge")
IDENTITY = pa.schema(
    {
        "id": pa.string(),
        "description": pa.string(),
        "length": pa.int64(),
        "sha256": pa.binary(32),
        **dict.fromkeys(KEYS, pa.string()),
    }
)
"""The columns before the values in every block."""
BLOCK_BYTES = 64 * 2**20
"""Values of one block."""
LARGE_BYTES = 16 * 2**30
"""The bytes of all parts from which blocks and the shuffle's chunks are twice as large: otherwise a
disk would have to read too small pieces."""
ROW_BYTES = 256
"""Approximate bytes of a record's id, digest, place and reason. Its payload and its header are
added to that."""
MOST_BEYOND = 1.5
"""Rows are measured if parts are larger than this factor times what their types imply."""
BLOCKS_AT_ONCE = 2
"""Blocks that are gathered ahead of the writers: more would take more memory, not less time."""
NUM_SHUFFLED = 2
"""Columns of a shuffled row before its values: ordinal and sha256."""
PLACE = np.dtype([("row", "<i4"), ("ordinal", "<i8")])
"""A planned record's row in its shard, and its ordinal in the input."""


class Survey(NamedTuple):
    """What one reading of records.parquet finds."""

    counts: Counter[str]
    """Records by their status: planned, refused, duplicate."""
    rows_of_shard: npt.NDArray[np.int64]
    """Planned records of each shard; equal sequences count each time."""
    total_length: int
    """The length of the planned records, in the workload's unit."""
    edges: npt.NDArray[np.int64]
    """Block n has the ordinals from edges[n] up to edges[n + 1]."""


class Measured(NamedTuple):
    """How many bytes the values of each row of the parts take."""

    starts: npt.NDArray[np.int64]
    """The first row of each shard in `sizes`."""
    sizes: npt.NDArray[np.int64] | None
    """The bytes of all rows, shard by shard; None without rows."""

    def num_bytes(self, shard: npt.NDArray[np.int64], row: pa.Array) -> npt.NDArray[np.int64]:
        """Return the bytes of rows of records.parquet; `shard` is -1 where it has none."""
        sizes = np.zeros(len(shard), np.int64)
        planned = np.flatnonzero(shard >= 0)
        if self.sizes is not None:
            rows = row.fill_null(0).to_numpy()[planned]
            # Pending parts have no sizes: their records get the size of another row.
            at = np.minimum(self.starts[shard[planned]] + rows, len(self.sizes) - 1)
            sizes[planned] = self.sizes[at]
        return sizes


class Gatherer:
    """The records.parquet and the parts of one run; `parts[n]` belongs to the plan's n-th shard.

    A part that is None is pending: its records have no values yet. `scratch` is for files that are
    of no use afterwards.
    """

    def __init__(
        self,
        folder: Results,
        shards: Sequence[str],
        parts: Sequence[Part | None],
        scratch: Path,
        num_threads: int,
    ) -> None:
        self.folder, self.shards, self.parts = folder, shards, parts
        self.receipts = [part.receipt if part else None for part in parts]
        self.num_threads = num_threads
        self.scratch = scratch
        there = [part for part in parts if part]
        self.values = there[0].values if there else pa.schema([])
        for part in there:
            if not part.values.equals(self.values):
                raise other_columns(part.path)
        self.beyond_bytes = 0
        self._times = 2 if sum(part.wanted_bytes for part in there) > LARGE_BYTES else 1
        self._records_path = folder.records
        self.samples = samples_of(folder.records)
        self.id_columns = id_columns_of(folder.records)
        self._shards = pa.array(shards, pa.string())
        self._sizes = self._measured(scratch / "sizes.bin") if self._are_larger(there) else None
        self.survey = self._surveyed()
        self.rows_of_shard = self.survey.rows_of_shard
        self.num_rows = int(self.rows_of_shard.sum())
        """How many records there are values of, if none failed."""
        self._starts = np.concatenate(([0], np.cumsum(self.rows_of_shard)))
        self._places = scratch / "places.bin"
        self._place_all()

    def _are_larger(self, parts: Sequence[Part]) -> bool:
        """Return whether the values take more bytes than their types and the lengths of records
        imply, as strings do."""
        stored = sum(part.path.stat().st_size for part in parts)
        num_rows = sum(part.receipt.rows for part in parts)
        length = sum(part.receipt.payload_bytes for part in parts)
        expected = expected_bytes(self.values, num_rows, length) + ROW_BYTES * num_rows
        return stored > MOST_BEYOND * expected

    def _measured(self, path: Path) -> Measured:
        """Write down how many bytes the values of each row take, shard by shard."""
        starts, start = [], 0
        with path.open("wb") as file:
            for part in self.parts:
                starts.append(start)
                if part is None:
                    continue
                batches = (batch.select(self.values.names) for batch in part.batches())
                sizes = np.concatenate([np.empty(0, np.int64), *map(bytes_of_rows, batches)])
                sizes[part.row_numbers()].tofile(file)
                start += len(sizes)
        return Measured(np.array(starts), np.memmap(path, np.int64, "r") if start else None)

    @property
    def num_residues(self) -> int:
        """Return an upper bound of the number of residues with vectors: long proteins may be
        cut."""
        a_residue = expected_bytes(self.values, 0, 1)
        there = [part for part in self.parts if part]
        stored = sum(part.path.stat().st_size for part in there)
        num_stored = sum(part.receipt.rows for part in there)
        if not (a_residue and num_stored):
            return self.survey.total_length
        # A part has each distinct sequence once.
        bound = stored * max(1, self.num_rows / num_stored) // a_residue
        return min(self.survey.total_length, int(bound))

    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield these columns of the rows of records.parquet, block by block."""
        held: list[pa.RecordBatch] = []
        first, number = 0, 1
        for batch in read_records(self._records_path, columns):
            while first + batch.num_rows >= self.survey.edges[number]:
                here = int(self.survey.edges[number]) - first
                yield pa.Table.from_batches([*held, batch.slice(0, here)])
                held, batch = [], batch.slice(here)
                first, number = first + here, number + 1
                if number == len(self.survey.edges):
                    return
            held.append(batch)
            first += batch.num_rows

    def shard_numbers(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the index into the plan's shards of each row; -1 where it has none."""
        return shard_numbers(rows, self._shards, self._records_path)

    def _surveyed(self) -> Survey:
        """Count the rows of records.parquet and cut them into blocks of values: about
        `BLOCK_BYTES`, or twice that."""
        counts: Counter[str] = Counter()
        rows_of_shard = np.zeros(len(self._shards), np.int64)
        fixed = ROW_BYTES + expected_bytes(self.values, 1, 0)
        a_residue = 1 + expected_bytes(self.values, 0, 1)  # its letter counts too
        edges, first, held, total_length = [np.zeros(1, np.int64)], 0, 0, 0
        block_bytes = BLOCK_BYTES * self._times
        columns = ["status", "shard", "length", "description", *(["row"] if self._sizes else [])]
        for batch in read_records(self._records_path, columns):
            for pair in batch.column("status").cast(pa.string()).value_counts().to_pylist():
                counts[pair["values"]] += pair["counts"]
            shard = self.shard_numbers(batch)
            rows_of_shard += np.bincount(shard[shard >= 0], minlength=len(rows_of_shard))
            length = batch.column("length").to_numpy()
            total_length += int(length[shard >= 0].sum())
            # Headers may be longer than vectors, as those of NCBI's merged entries.
            letters = pc.fill_null(pc.binary_length(batch.column("description")), 0).to_numpy()
            values = fixed + a_residue * length
            if self._sizes:
                here = self._sizes.num_bytes(shard, batch.column("row"))
                self.beyond_bytes += int(here.sum()) - int(values[shard >= 0].sum())
                values = ROW_BYTES + length + here
            size = np.cumsum(values + letters) + held
            block = np.concatenate(([held], size)) // block_bytes
            edges.append(first + 1 + np.flatnonzero(block[1:] > block[:-1]))
            first, held = first + batch.num_rows, int(size[-1]) % block_bytes
        edges.append(np.array([first], np.int64))
        return Survey(counts, rows_of_shard, total_length, np.unique(np.concatenate(edges)))

    def _place_all(self) -> None:
        """Write down where each shard's records stand in the input, shard by shard."""
        num_places = int(self._starts[-1])
        with self._places.open("w+b") as file:
            take_space(file.fileno(), 0, max(1, num_places) * PLACE.itemsize)
            mapped = mmap.mmap(file.fileno(), 0)
        places = np.frombuffer(mapped, PLACE)
        filled = self._starts[:-1].copy()
        first = 0
        for batch in read_records(self._records_path, ["shard", "row"]):
            planned, where = placed_by_shard(self.shard_numbers(batch), filled)
            row = batch.column("row").fill_null(-1).to_numpy()
            places["row"][where] = row[planned]
            places["ordinal"][where] = first + planned
            first += batch.num_rows
            mapped.madvise(mmap.MADV_DONTNEED)  # the file keeps it; the process's memory need not
        del places
        mapped.close()

    def places_in(self, number: int) -> npt.NDArray[np.void]:
        """Return the `PLACE` of each planned record of the plan's shard `number`."""
        start, count = int(self._starts[number]), int(self.rows_of_shard[number])
        return np.fromfile(self._places, PLACE, count, offset=start * PLACE.itemsize)

    def pieces(self) -> Iterator[pa.Table]:
        """Yield id, length, sha256 and values of each block's ok rows, in order, checked.

        Raises:
            IntegrityError: when a row is not that of its record, or its values are not all there.
        """
        columns = pa.schema([IDENTITY.field("sha256"), *self.values])
        path = self.scratch / "values.bin"
        shuffle = Shuffle(path, columns, self.survey.edges, self._times)
        try:
            numbers = [number for number, part in enumerate(self.parts) if part]
            spool = partial(self._spool, shuffle=shuffle)
            spooled = in_order(spool, numbers, self.num_threads)
            shown = Progress(log, "reading the parts", "parts")
            for count, _ in enumerate(spooled, 1):
                shown.at(count, len(numbers))
            shuffle.finish()
            blocks = enumerate(self.blocks(IDENTITY.names))
            together = min(self.num_threads, BLOCKS_AT_ONCE)
            yield from in_order(lambda numbered: self._join(*numbered, shuffle), blocks, together)
        finally:
            shuffle.close()

    def _spool(self, number: int, shuffle: Shuffle) -> None:
        """Read one part and hand on the rows that are wanted, each with its place in the input."""
        part = self.parts[number]
        assert part is not None
        places = self.places_in(number)
        rows = part.row_numbers()[places["row"]]
        order = np.argsort(rows)
        rows, ordinals = rows[order], places["ordinal"][order]
        first = 0
        for batch in part.batches():
            start, end = np.searchsorted(rows, [first, first + batch.num_rows])
            inside, here = rows[start:end] - first, ordinals[start:end]
            first += batch.num_rows
            is_ok = np.asarray(batch.column("reason").is_null())[inside]
            if not is_ok.any():
                continue
            inside, here = inside[is_ok], here[is_ok]
            for few in self._in_pieces(batch, inside):
                wanted = batch.take(pa.array(inside[few]))
                values = wanted.select(self.values.names)
                check_values(values, part.path)
                columns = [wanted.column("sha256"), *values.columns]
                shuffle.add(here[few], pa.record_batch(columns, schema=shuffle.columns))

    def _in_pieces(self, batch: pa.RecordBatch, inside: npt.NDArray[np.int64]) -> Iterator[slice]:
        """Yield slices of `inside`, rows of `batch`, whose values take about a block each: equal
        sequences are many rows of one, and a row may be large."""
        if self._sizes is None:
            yield slice(None)
            return
        yield from pieces_of(bytes_of_rows(batch.select(self.values.names))[inside], BLOCK_BYTES)

    def _join(self, number: int, rows: pa.Table, shuffle: Shuffle) -> pa.Table:
        """Return a block's identities and values, side by side."""
        shuffled = shuffle.read(number)
        positions = shuffled.column("ordinal").to_numpy() - self.survey.edges[number]
        identity = rows.take(pa.array(positions)).select(IDENTITY.names).cast(IDENTITY)
        is_other = digests(identity["sha256"]) != digests(shuffled.column("sha256"))
        is_other[1:] |= np.diff(positions) <= 0
        if is_other.any():
            ordinal = shuffled.column("ordinal")[int(np.argmax(is_other))].as_py()
            numbered = ((n, part) for n, part in enumerate(self.parts) if part)
            part = next(part for n, part in numbered if ordinal in self.places_in(n)["ordinal"])
            raise part.has_wrong_row()
        values = shuffled.columns[NUM_SHUFFLED:]
        return pa.table([*identity.columns, *values], schema=pa.schema([*IDENTITY, *self.values]))


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], num_threads: int
) -> Iterator[Result]:
    """Yield `function` of each item, in the items' order, computed on `num_threads` threads.

    Never more than `num_threads` results wait to be taken, so memory does not grow with the items.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def placed_by_shard(shard: Sizes, filled: Sizes) -> tuple[Sizes, Sizes]:
    """Return the planned rows of a batch, shard by shard, and the place of each among all rows.

    `shard` is the shard of each row, -1 where it has none; `filled` is the next free place of each
    shard, to which the rows are added.
    """
    planned = np.flatnonzero(shard >= 0)
    planned = planned[np.argsort(shard[planned], kind="stable")]
    numbers = np.bincount(shard[planned], minlength=len(filled))
    before = np.cumsum(numbers) - numbers
    where = (filled - before)[shard[planned]] + np.arange(len(planned))
    filled += numbers
    return planned, where


def check_values(values: pa.RecordBatch, path: Path) -> None:
    """Check the values of ok rows of the part at `path`.

    Raises:
        IntegrityError: when one is missing or not finite.
    """
    for name, column in zip(values.schema.names, values.columns, strict=True):
        if column.null_count:
            raise IntegrityError(
                f"{path}: {column.null_count} ok rows have no {name}; please report this."
            )
    if not_finite(values).any():
        raise IntegrityError(
            f"{path}: an ok row has a value that is not finite; please report this."
        )
