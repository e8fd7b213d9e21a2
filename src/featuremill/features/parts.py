"""The vectors of a finished run, memory-mapped from the parts in its store.

A record has one vector (in a pooled column) or a vector per residue. Memory holds 29 bytes per
record of the shards and a view per batch; the vectors themselves are in the page cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.arrays import digests
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.id_columns import WHOLE
from featuremill.base.progress import Progress
from featuremill.features.table import Matrix, Rows, Table, allow_open, checked, chosen
from featuremill.store import command_line
from featuremill.store.delivery import Delivery
from featuremill.store.files import digest_of
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import order_of
from featuremill.store.plan import Plan
from featuremill.store.records import id_columns_of, read_records, whole_ids
from featuremill.store.results import Results

log = logging.getLogger("featuremill.features")


class Parts:
    """The vectors of one column of a run, for the payloads in its records.parquet.

    Rows are the payloads of all shards, in the order of the plan and, within a shard, of sha256. So
    equal payloads are one row, and rows do not depend on how parts were computed.
    """

    def __init__(
        self,
        folder: Results,
        plan: Plan,
        delivery: Delivery,
        column: str | None,
        choosing: str,
        of_residues: bool,
    ) -> None:
        """Map the parts, without comparing digests; `plan` is the plan of the `delivery`.

        Raises:
            UserError: if a part was removed, or there is no such column.
            IntegrityError: if the files contradict each other.
        """
        self.root = folder.root
        self.recipe, self.settings = plan.recipe, plan.settings
        self._folder, self._delivery = folder, delivery
        self.id_columns = id_columns_of(folder.records)
        names = [source.shard for source in plan.sources]
        paths = [folder.part(plan.recipe, entry.shard) for entry in plan.shards]
        paths += [Path(entry.path) for entry in plan.taken]
        if missing := next((path for path in paths if not path.is_file()), None):
            raise UserError(
                f"{missing}: this part of the run was removed, and vectors are read from parts; "
                f"have it computed anew ({command_line.again(self.root, ['merge'])})."
            )
        if not paths:
            raise self._without_vectors()
        allow_open(len(paths))
        schema, _ = self._read(paths[0])
        self.column = chosen(schema, column, self.root, choosing, of_residues)
        self._parts = dict(zip(names, paths, strict=True))
        self._views: list[Matrix] = []
        """The memory-mapped vectors (vectors, width) of each batch."""
        self._start_of_shard = np.cumsum([0, *(source.records for source in plan.sources)])
        num_rows = int(self._start_of_shard[-1])
        self._batch = np.zeros(num_rows, np.int32)
        self._first = np.zeros(num_rows, np.int64)
        self.num_of_row = np.zeros(num_rows, np.int64)
        """Number of vectors of each row; 0 if it failed or is not in records.parquet."""
        self.hash_of_row = np.zeros(num_rows, np.uint64)
        """The first eight bytes of the sha256 of each payload."""
        for number, path in enumerate(paths):
            self._open(path, number)
        self._shards = pa.array(names, pa.string())
        is_named = np.zeros(num_rows, bool)
        for _, rows in self._records(["shard", "row"]):
            is_named[rows[rows >= 0]] = True
        self.num_of_row[~is_named] = 0
        self.digest = digest_of(f"{name} {delivery.parts[name]}\n".encode() for name in self._parts)
        """A digest of the names and digests of all parts."""
        if not self.num_of_row.any():
            raise self._without_vectors()
        self.dtype: np.dtype[Any] = self._views[0].dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all vectors in the parts."""
        return sum(view.nbytes for view in self._views)

    def _read(self, path: Path) -> tuple[pa.Schema, list[pa.RecordBatch]]:
        try:
            stream = pa.ipc.open_stream(pa.memory_map(str(path)))
            return stream.schema, list(stream)
        except (pa.ArrowInvalid, OSError) as error:
            if getattr(error, "errno", None):
                raise
            raise self._damaged(path) from None

    def _open(self, path: Path, number: int) -> None:
        """Map the part at `path` of the shard `number` in the plan."""
        sha256, ok, firsts, counts, numbers = [], [], [], [], []
        for batch in self._read(path)[1]:
            values = batch[self.column.name]
            if self.column.is_per_residue:
                ends = values.offsets.to_numpy()
                firsts.append(ends[:-1].astype(np.int64))
                counts.append(np.diff(ends).astype(np.int64))
                values = values.values
            else:
                firsts.append(np.arange(len(values), dtype=np.int64))
                counts.append(np.ones(len(values), np.int64))
            numbers.append(np.full(batch.num_rows, len(self._views), np.int32))
            self._views.append(view(values))
            sha256.append(batch["sha256"])
            ok.append(batch["reason"].is_null().to_numpy(zero_copy_only=False))
        names = digests(pa.chunked_array(sha256, pa.binary(32)))
        here = slice(*self._start_of_shard[number : number + 2].tolist())
        if len(names) != here.stop - here.start:
            raise self._damaged(path)
        order = order_of(names)
        self._batch[here] = np.concatenate(numbers)[order]
        self._first[here] = np.concatenate(firsts)[order]
        self.num_of_row[here] = np.where(np.concatenate(ok), np.concatenate(counts), 0)[order]
        self.hash_of_row[here] = names[order].view(">u8").reshape(-1, 4)[:, 0]

    def check(self, number: int = 0, num_shares: int = 1) -> None:
        """Compare parts with their digests in manifest.json: share `number` of `num_shares`, for
        several processes.

        Raises:
            IntegrityError: if a part differs; the message names the first.
        """
        shown = Progress(log, "checking parts", "parts")
        share = list(self._parts.items())[number::num_shares]
        for count, (name, path) in enumerate(share, 1):
            if digest_of_file(path) != self._delivery.parts[name]:
                raise self._damaged(path)
            shown.at(count, len(share))

    def _without_vectors(self) -> UserError:
        return UserError(f"{self.root}: no record of this run has a vector; see failed.tsv there.")

    def _damaged(self, path: Path) -> IntegrityError:
        return IntegrityError(
            f"{path}: its bytes are not those that the results were made of; have it computed "
            f"anew ({command_line.again(self.root, ['merge'])}, which sets it aside, and the same "
            "once more)."
        )

    def _records(self, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, Rows]]:
        """Yield records.parquet in batches, and the row of each record; -1 if it has none."""
        for batch in read_records(self._folder.records, columns):
            column = batch["shard"]
            number_of = pc.index_in(column.dictionary, value_set=self._shards)
            number = np.asarray(number_of.take(column.indices).fill_null(-1)).astype(np.int64)
            rows = np.asarray(batch["row"].fill_null(0)).astype(np.int64)
            yield batch, np.where(number < 0, -1, self._start_of_shard[number] + rows)

    def _with_vectors(self, rows: Rows) -> Rows:
        """Return the indices of the records with vectors in a batch of records.parquet."""
        return np.flatnonzero((rows >= 0) & (self.num_of_row[rows] > 0))

    def records(self) -> Iterator[tuple[list[str], Rows]]:
        """Yield the whole ids and rows of all records with vectors, in the order of the input."""
        for batch, rows in self._records([*WHOLE, "shard", "row"]):
            indices = self._with_vectors(rows)
            ids = whole_ids(batch)
            yield ids.take(pa.array(indices)).to_pylist(), rows[indices]

    def take(self, rows: Rows, within: Rows, dtype: npt.DTypeLike = np.float32) -> Matrix:
        """Return the vectors (n, width) at the offsets `within` these rows, all of which exist."""
        rows = checked(rows, len(self._first))
        within = checked(within, self.num_of_row[rows])
        batch, position = self._batch[rows], self._first[rows] + within
        vectors = np.empty((len(rows), self.column.width), dtype)
        order = np.argsort(batch, kind="stable")
        numbers, starts = np.unique(batch[order], return_index=True)
        # Of no rows, `split` returns one empty piece.
        for number, here in zip(numbers, np.split(order, starts[1:]), strict=False):
            vectors[here] = self._views[number][position[here]]
        return vectors

    def of_rows(self, rows: Rows) -> tuple[Matrix, Rows]:
        """Return all vectors (n, width) of `rows` in float32, concatenated, and the number of
        vectors of each row."""
        counts = self.num_of_row[rows]
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
        return self.take(np.repeat(rows, counts), within), counts

    def by_record(self) -> tuple[Table, RecordVectors]:
        """Return the records with vectors, in the order of the input, and their vectors."""
        first, ordinals, rows_of = 0, [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch, rows in self._records(["shard", "row"]):
            places = self._with_vectors(rows)
            ordinals.append(first + places)
            rows_of.append(rows[places])
            first += batch.num_rows
        table = RecordsRows(self._folder.records, np.concatenate(ordinals))
        return table, RecordVectors(self, np.concatenate(rows_of))


class RecordVectors:
    """One vector per record, in the order of the input."""

    def __init__(self, parts: Parts, rows: Rows) -> None:
        self._parts, self._rows = parts, rows
        self.dtype = parts.dtype

    def __getitem__(self, records: Rows | slice) -> Matrix:
        """Return the vectors (records, width) of the selected records."""
        rows = self._rows[records]
        return self._parts.take(rows, np.zeros(len(rows), np.int64), self.dtype)


class RecordsRows(Table):
    """Some rows of records.parquet, by their `ordinals`."""

    def __init__(self, path: Path, ordinals: Rows) -> None:
        super().__init__(path)
        self._ordinals, self.num_rows = ordinals, len(ordinals)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for first, batch in super().batches(columns):
            begin, end = np.searchsorted(self._ordinals, [first, first + batch.num_rows]).tolist()
            yield begin, batch.take(pa.array(self._ordinals[begin:end] - first))

    def pieces(self, rows: Rows, columns: Sequence[str]) -> Iterator[tuple[Rows, pa.RecordBatch]]:
        return super().pieces(self._ordinals[rows], columns)


def view(vectors: pa.FixedSizeListArray) -> Matrix:
    """Return vectors (n, width) without a copy; vectors that are null have undefined numbers."""
    flat = vectors.values
    dtype = np.dtype(flat.type.to_pandas_dtype())
    mapped: Matrix = np.frombuffer(
        flat.buffers()[1], dtype, len(flat), flat.offset * dtype.itemsize
    )
    return mapped.reshape(-1, vectors.type.list_size)
