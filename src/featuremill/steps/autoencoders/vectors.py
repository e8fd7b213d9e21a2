"""The vectors of a finished run, memory-mapped from its parts, and whose each one is.

A record's vectors are one (a pooled column) or one a residue. Memory holds 29 bytes a record of the
shards and a view a batch; what was read of the vectors is the page cache's.
"""

from __future__ import annotations

import logging
import resource
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.progress import Progress
from featuremill.base.words import listed
from featuremill.steps.autoencoders.order import key_of, mixed
from featuremill.store import command_line, ledger
from featuremill.store.delivery import Delivery
from featuremill.store.files import digest_of
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import order_of
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.store.shard_file import digests

Matrix = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
SPARE_FILES = 100
"""What a process has open besides the parts."""
log = logging.getLogger("featuremill.sae")


class Vectors:
    """The vectors of one column of a run, of those records that its ledger tells of.

    A row is a record's place among those of all shards, in the plan's order and each shard's own
    (that of sha256), so it does not depend on how parts were computed.
    """

    def __init__(self, root: Path, column: str | None) -> None:
        """Open the run in `root`; nothing is checked against digests yet.

        Raises:
            UserError: when the run is not whole, or has no such column.
            IntegrityError: when its files contradict each other.
        """
        self.root = root
        self._folder = Results(root)
        self.plan, self._delivery = _whole(self._folder)
        self.recipe = self.plan.recipe
        names = [entry.shard for entry in self.plan.shards]
        paths = [self._folder.part(self.recipe, name) for name in names]
        if missing := next((path for path in paths if not path.is_file()), None):
            raise UserError(
                f"{missing}: this part of the run was removed, and vectors are read from parts; "
                f"have it computed anew ({command_line.again(root, ['merge'])})."
            )
        _allow_open(len(paths))
        self._parts = dict(zip(names, paths, strict=True))
        self._views: list[Matrix] = []
        """The vectors of each batch (vectors, width), mapped."""
        self.start_of_shard = np.cumsum([0, *(entry.records for entry in self.plan.shards)])
        num_rows = int(self.start_of_shard[-1])
        self._batch = np.zeros(num_rows, np.int32)
        self._first = np.zeros(num_rows, np.int64)
        self.num_of_row = np.zeros(num_rows, np.int64)
        """Vectors of each row: none of one that failed or that the ledger does not have."""
        self._hash = np.zeros(num_rows, np.uint64)
        self.column, self.is_per_residue = "", False
        for number, path in enumerate(paths):
            self._open(path, number, column)
        self._shards = pa.array(names, pa.string())
        wanted = np.zeros(num_rows, bool)
        for batch in ledger.batches(self._folder.manifest, ["shard", "row"]):
            rows = self.rows_of(batch)
            wanted[rows[rows >= 0]] = True
        self.num_of_row[~wanted] = 0
        self.digest = digest_of(
            f"{name} {self._delivery.parts[name]}\n".encode() for name in self._parts
        )
        """Of the names and digests of all parts."""
        if not self.num_of_row.any():
            raise UserError(f"{root}: no record of this run has a vector; see failed.tsv there.")

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return int(self._views[0].shape[1])

    @property
    def num_bytes(self) -> int:
        """Bytes of all vectors, as they stand in the parts."""
        return sum(view.nbytes for view in self._views)

    def _open(self, path: Path, number: int, column: str | None) -> None:
        """Map the part at `path`, that of the plan's shard `number`."""
        try:
            source = pa.memory_map(str(path))
            batches = list(pa.ipc.open_stream(source))
        except pa.ArrowInvalid:
            raise self._damaged(path) from None
        schema = batches[0].schema if batches else pa.schema([])
        if not self.column and batches:
            self.column, self.is_per_residue = _chosen(schema, column, self.root)
        sha256, ok, firsts, counts, numbers = [], [], [], [], []
        for batch in batches:
            values = batch[self.column]
            if self.is_per_residue:
                ends = values.offsets.to_numpy()
                firsts.append(ends[:-1].astype(np.int64))
                counts.append(np.diff(ends).astype(np.int64))
                values = values.values
            else:
                firsts.append(np.arange(len(values), dtype=np.int64))
                counts.append(np.ones(len(values), np.int64))
            numbers.append(np.full(batch.num_rows, len(self._views), np.int32))
            self._views.append(_view(values))
            sha256.append(batch["sha256"])
            ok.append(batch["reason"].is_null().to_numpy(zero_copy_only=False))
        names = digests(pa.chunked_array(sha256, pa.binary(32)))
        here = slice(*self.start_of_shard[number : number + 2].tolist())
        if len(names) != here.stop - here.start:
            raise self._damaged(path)
        order = order_of(names)
        self._batch[here] = np.concatenate(numbers)[order]
        self._first[here] = np.concatenate(firsts)[order]
        self.num_of_row[here] = np.where(np.concatenate(ok), np.concatenate(counts), 0)[order]
        self._hash[here] = names[order].view(">u8").reshape(-1, 4)[:, 0]

    def check(self, rank: int = 0, num_ranks: int = 1) -> None:
        """Compare each part's bytes with the digest that the results tell; of several ranks, each
        has its share of the parts.

        Raises:
            IntegrityError: names the first that differs.
        """
        shown = Progress(log, "checking parts", "parts")
        shares = list(self._parts.items())[rank::num_ranks]
        for number, (name, path) in enumerate(shares, 1):
            if digest_of_file(path) != self._delivery.parts[name]:
                raise self._damaged(path)
            shown.at(number, len(shares))

    def _damaged(self, path: Path) -> IntegrityError:
        return IntegrityError(
            f"{path}: its bytes are not those that the results were made of; have it computed "
            f"anew ({command_line.again(self.root, ['merge'])}, which sets it aside, and the same "
            "once more)."
        )

    def is_held_out(self, share: float, seed: int) -> npt.NDArray[np.bool_]:
        """Tell of each row whether its record is kept from training: by its sha256 and the seed
        alone, so that no edit of the input moves another record."""
        hashes = mixed(self._hash ^ np.uint64(key_of(seed, 2)))
        return hashes < np.uint64(min(share * 2.0**64, 2**64 - 1))

    def rows_of(self, batch: pa.RecordBatch) -> Rows:
        """Return the row of each record of the ledger; -1 where it has none."""
        column = batch["shard"]
        known = pc.index_in(column.dictionary, value_set=self._shards)
        number = np.asarray(known.take(column.indices).fill_null(-1)).astype(np.int64)
        rows = np.asarray(batch["row"].fill_null(0)).astype(np.int64)
        return np.where(number < 0, -1, self.start_of_shard[number] + rows)

    def take(self, rows: Rows, within: Rows) -> Matrix:
        """Return the vectors (n, width) in float32 that stand at `within` their rows."""
        batch, place = self._batch[rows], self._first[rows] + within
        found = np.empty((len(rows), self.width), np.float32)
        order = np.argsort(batch, kind="stable")
        numbers, starts = np.unique(batch[order], return_index=True)
        for number, here in zip(numbers, np.split(order, starts[1:]), strict=True):
            found[here] = self._views[number][place[here]]
        return found

    def of_rows(self, rows: Rows) -> tuple[Matrix, Rows]:
        """Return all vectors of `rows` one after the other, and how many each has."""
        counts = self.num_of_row[rows]
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
        return self.take(np.repeat(rows, counts), within), counts


class Chosen:
    """Vectors of some rows, numbered through."""

    def __init__(self, vectors: Vectors, is_chosen: npt.NDArray[np.bool_]) -> None:
        self._vectors = vectors
        self._rows = np.flatnonzero(is_chosen & (vectors.num_of_row > 0))
        self._ends = np.cumsum(vectors.num_of_row[self._rows])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def num_records(self) -> int:
        return len(self._rows)

    def take(self, numbers: Rows) -> Matrix:
        """Return the vectors (n, width) of these `numbers`, in float32."""
        place = np.searchsorted(self._ends, numbers, side="right")
        rows = self._rows[place]
        return self._vectors.take(
            rows, numbers - self._ends[place] + self._vectors.num_of_row[rows]
        )


def _whole(folder: Results) -> tuple[Plan, Delivery]:
    """Return plan and delivery of a finished run."""
    root = folder.root
    if not (folder.plan.exists() or folder.delivery.exists()):
        raise UserError(f"{root}: this is no run's folder; name one, such as results/demo.")
    plan, delivery = folder.find_plan(), folder.find_delivery()
    if plan is None or delivery is None or not delivery.is_of(plan):
        raise UserError(
            f"{root}: this run is not whole, and a sparse autoencoder is for whole runs; let it "
            f"come to its end ({command_line.again(root)})."
        )
    return folder.read_plan_of_manifest(), delivery


def _chosen(schema: pa.Schema, column: str | None, root: Path) -> tuple[str, bool]:
    """Return the column of vectors that is meant, and whether it has one a residue."""
    found = {}
    for field in schema:
        is_list = pa.types.is_list(field.type)
        inner = field.type.value_type if is_list else field.type
        if pa.types.is_fixed_size_list(inner) and pa.types.is_floating(inner.value_type):
            found[field.name] = is_list
    if column is None and len(found) == 1:
        column = next(iter(found))
    if column is None or column not in found:
        said = f"there is no column {column!r}" if column else "it has several columns"
        known = listed(found) if found else "no column"
        raise UserError(f"{root}: {said} of vectors; choose one with --column: it has {known}.")
    return column, found[column]


def _view(vectors: pa.FixedSizeListArray) -> Matrix:
    """Return vectors (n, width) where they stand; what is null is there, too, as anything."""
    flat = vectors.values
    dtype = np.dtype(flat.type.to_pandas_dtype())
    found = np.frombuffer(flat.buffers()[1], dtype, len(flat), flat.offset * dtype.itemsize)
    return found.reshape(-1, vectors.type.list_size)


def _allow_open(num_files: int) -> None:
    """Let this process have so many files open and more, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_files + SPARE_FILES
    if soft < needed and soft != resource.RLIM_INFINITY:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
