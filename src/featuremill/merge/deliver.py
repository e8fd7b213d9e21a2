"""deliver: write the rows of some shards as files of the results, beside other jobs that do so.

Reads plan.json, records.parquet, the receipts and parts of its shards and, of failed records, the
shards; writes a folder a shard in store/delivered, named by all that it is made of, and last a JSON
file for merge. Each part is checked as merge checks it. What is there already is compared with its
digests, and stays.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base import run_log
from featuremill.base.arrays import digests
from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID
from featuremill.base.progress import Progress
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted
from featuremill.config import read_run
from featuremill.features.index import sorted_hashes
from featuremill.features.parts import view
from featuremill.merge.accounts import FAILURE, payloads_of
from featuremill.merge.delivery import opened
from featuremill.merge.gather import IDENTITY, bytes_of_rows, check_values, in_order, pieces_of
from featuremill.merge.identities import Identities, lay_out
from featuremill.merge.provenance import provenance_of
from featuremill.store import disk_space
from featuremill.store.delivered_shards import (
    ANSWER,
    FAILURES,
    Delivered,
    DeliveredFile,
    DeliveredShard,
    folder_of,
    receipt_of,
)
from featuremill.store.files import digest_of, replacing_folder, sha256_of, sync_folder
from featuremill.store.formats import errors_of, format_of, index_of, kind_of
from featuremill.store.parts import Part, open_source, order_of
from featuremill.store.plan import Plan, PlannedShard, SharedPart
from featuremill.store.receipt import Receipt
from featuremill.store.records import whole_ids
from featuremill.store.results import Results, enter
from featuremill.store.row_order import groups_of, is_by_shard
from featuremill.workload.outputs import Target, by_owner

BLOCK_BYTES = 16 * 2**20
"""Values of one block, which is a row group: what a reader of a single row reads."""
VERSION = 1
"""Increase it if the same records and values result in other files."""
OF_FAILURES = pa.schema([("place", pa.int64()), *FAILURE])
"""A failed record's place among those of its shard, and what the lists need of it."""
NOT_OWN = ("ordinal", "number")
"""Columns that say where a record stands among others."""
log = logging.getLogger("featuremill.deliver")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill deliver`."""
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument("job", type=int, nargs="?", help="number of the job (all, one by one)")
    parser.add_argument("--lay-out", action="store_true", help="only lay out records by shard")
    parser.add_argument("--threads", type=int, default=num_cores())


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill deliver`."""
    folder = Results(enter(arguments))
    config = read_run(folder)
    outputs = list(config.outputs)
    plan = folder.read_plan()
    if not is_by_shard(config.order, outputs, folder, plan):
        raise UserError(
            f"{folder.run}: its results are in the order of the input, which merge writes; "
            "order: shard in the config changes that."
        )
    threads = max(1, arguments.threads)
    pa.set_cpu_count(threads)
    groups = groups_of(plan)
    if arguments.job is not None and not 0 <= arguments.job < len(groups):
        raise UserError(
            f"{folder.plan}: there are {counted(len(groups), 'delivering job')}, from 0, and no "
            f"{arguments.job}."
        )
    chosen = range(len(groups)) if arguments.job is None else [arguments.job]
    with closing(lay_out(folder, plan)) as identities:
        delivering = Delivering(folder, plan, outputs, identities)
        for number in () if arguments.lay_out else chosen:
            with run_log.line(folder.root, "deliver", f"{number}") as line:
                line.text = delivering.job(number, groups[number], threads).summary


class Job(NamedTuple):
    """What a job did."""

    delivered: Delivered
    num_kept: int

    @property
    def summary(self) -> str:
        shards = self.delivered.shards
        rows = sum(shard.rows - shard.failed for shard in shards)
        kept = f", {self.num_kept:,} kept" if self.num_kept else ""
        return f"{counted(rows, 'record')} of {counted(len(shards), 'shard')}{kept}"


class Delivering:
    """A run that is delivered shard by shard."""

    def __init__(
        self, folder: Results, plan: Plan, outputs: Sequence[str], identities: Identities
    ) -> None:
        self.folder, self.plan, self.outputs = folder, plan, list(outputs)
        self.identities = identities

    def job(self, number: int, shards: Sequence[int], num_threads: int) -> Job:
        """Deliver these of the plan's shards, and write down what was delivered as job `number`.

        Raises:
            IntegrityError: when a part is not what its receipt says.
            UserError: when the disk cannot hold them.
        """
        delivered_shards, num_kept = self.shards(shards, num_threads)
        delivered = Delivered(
            records_sha256=self.plan.records_sha256,
            recipe=self.plan.recipe,
            outputs=self.outputs,
            shards=delivered_shards,
        )
        delivered.write(receipt_of(self.folder, number))
        return Job(delivered, num_kept)

    def shards(self, numbers: Sequence[int], num_threads: int) -> tuple[list[DeliveredShard], int]:
        """Deliver these of the plan's shards; return what that is, and how many were there.

        Raises:
            IntegrityError: when a part is not what its receipt says.
            UserError: when the disk cannot hold them.
        """
        delivered: list[DeliveredShard] = []
        new: list[Path] = []
        shown = Progress(log, "delivering", "shards")
        for shard, is_kept in in_order(self.shard, numbers, num_threads):
            delivered.append(shard)
            new += [] if is_kept else [folder_of(self.folder, shard.key)]
            shown.at(len(delivered), len(numbers))
        for folder in new:  # together, as the disk takes longer for each by itself
            sync_folder(folder)
        return delivered, len(numbers) - len(new)

    def shard(self, number: int) -> tuple[DeliveredShard, bool]:
        """Deliver one shard without a sync; return its receipt, and whether it existed."""
        part = open_source(self.folder, self.plan, self.plan.sources[number])
        assert part, "only one that is only looked at may be missing"
        records = self.identities.records_of(number)
        receipt = part.receipt
        provenance = provenance_of(self.plan, [receipt])
        key = self._key(receipt.shard, receipt.part, records, provenance)
        folder = folder_of(self.folder, key)
        seen = part.path.stat().st_mtime_ns
        if (answer := standing(folder)) is not None:
            return answer.model_copy(update={"part_mtime_ns": seen}), True
        self._check_room(part, records)
        with replacing_folder(folder, is_synced=False) as new:
            shard = _Shard(new, part, records, provenance)
            failed = shard.list_failures(self.folder)
            answer = DeliveredShard(
                shard=receipt.shard,
                key=key,
                part=receipt.part,
                values=digest_of([str(part.values).encode()]),
                rows=records.num_rows,
                failed=failed,
                files=shard.write(self.outputs),
                part_mtime_ns=seen,
            )
            answer.write(new / ANSWER, is_synced=False)
        return answer, False

    def known(self) -> dict[int, DeliveredShard]:
        """Return the delivered shards of the plan by number, if their part and files have the same
        times as then. Their bytes are not read."""
        shards: dict[str, DeliveredShard] = {}
        for path in sorted(receipt_of(self.folder, 0).parent.glob("*.json")):
            content = Delivered.find(path)
            about = content and (content.records_sha256, content.recipe, content.outputs)
            if content and about == (self.plan.records_sha256, self.plan.recipe, self.outputs):
                shards |= {shard.shard: shard for shard in content.shards}
        return {
            number: shard
            for number, source in enumerate(self.plan.sources)
            if (shard := shards.get(source.shard)) and self._is_as_left(source, shard)
        }

    def _is_as_left(self, source: PlannedShard, shard: DeliveredShard) -> bool:
        part = self.folder.part_of(self.plan, source)
        if isinstance(source, SharedPart):
            receipt = Receipt.find(part.with_suffix(".json"))
        else:
            receipt = self.folder.find_receipt(self.plan.recipe, source.shard)
        if not (receipt and receipt.part == shard.part):
            return False
        folder = folder_of(self.folder, shard.key)
        expected = [(part, shard.part_mtime_ns)]
        expected += [(folder / file.path, file.mtime_ns) for file in shard.files]
        return (folder / ANSWER).is_file() and all(
            path.is_file() and path.stat().st_mtime_ns == mtime_ns for path, mtime_ns in expected
        )

    def _key(
        self, shard: str, part: str, records: pa.RecordBatch, provenance: dict[str, str]
    ) -> str:
        """Return the digest of everything that determines the bytes of a shard's files. The places
        of its records in the input are left out."""
        own = records.select([name for name in records.schema.names if name not in NOT_OWN])
        formats = [format_of(name).part_name for name in self.outputs]
        about = [VERSION, shard, part, self.outputs, formats, provenance, pa.__version__]
        return digest_of([json.dumps(about, sort_keys=True).encode(), own.serialize()])

    def _check_room(self, part: Part, records: pa.RecordBatch) -> None:
        num_residues = sum(records.column("length").to_pylist())
        about = (part.values, records.num_rows, num_residues)
        needs = disk_space.needs_of_outputs(self.outputs, *about, self.folder.store)
        disk_space.check(needs, self.folder.root)


def standing(folder: Path) -> DeliveredShard | None:
    """Return the receipt of the delivered shard in `folder` if its files are unchanged."""
    answer = DeliveredShard.find(folder / ANSWER) if folder.is_dir() else None
    if answer is None:
        return None
    for file in answer.files:
        path = folder / file.path
        if not path.is_file() or sha256_of(path) != file.sha256:
            log.warning("%s: its bytes are not those that were written; writing it again", path)
            return None
    files = [
        file.model_copy(update={"mtime_ns": (folder / file.path).stat().st_mtime_ns})
        for file in answer.files
    ]
    return answer.model_copy(update={"files": files})


class _Shard:
    """The rows of one shard, to be written to `folder`."""

    def __init__(
        self, folder: Path, part: Part, records: pa.RecordBatch, provenance: dict[str, str]
    ) -> None:
        self._folder, self._part, self._records = folder, part, records
        self._provenance = provenance
        sha256, self._reasons = part.columns()
        self._rows = order_of(sha256)[records.column("row").to_numpy()]
        """The row of each record in the part."""
        named = digests(records.column("sha256"))
        if not np.array_equal(sha256[self._rows], named):
            raise part.has_wrong_row()
        self._is_ok = np.asarray(self._reasons.is_null())[self._rows]

    def list_failures(self, folder: Results) -> int:
        """Write down the failed records, and return how many there are.

        Raises:
            IntegrityError: when their shard is gone or not what it was.
        """
        positions = np.flatnonzero(~self._is_ok)
        if not len(positions):
            return 0
        failed = self._records.take(pa.array(positions))
        sha256 = digests(failed.column("sha256"))
        rows_of_shard = failed.column("row").to_numpy()
        payloads = payloads_of(folder, self._part, self._part.receipt.shard, rows_of_shard, sha256)
        reasons = self._reasons.take(pa.array(self._rows[positions]))
        rows = pa.record_batch([pa.array(positions), reasons, payloads], schema=OF_FAILURES)
        with pa.ipc.new_file(str(self._folder / FAILURES), OF_FAILURES) as file:
            file.write_batch(rows)
        return len(positions)

    def write(self, outputs: Sequence[str]) -> list[DeliveredFile]:
        """Write the ok rows, of each sample to files of its own."""
        ok = np.flatnonzero(self._is_ok)
        sizes = self._sizes()
        files: list[DeliveredFile] = []
        with pa.memory_map(str(self._part.path)) as source:
            values = _Values(source, self._part)
            for number, (folder, positions) in enumerate(self._by_folder(ok)):
                paths = {name: self._folder / f"{name}-{number}" for name in outputs}
                with ExitStack() as stack:
                    writers = {}
                    for name, path in paths.items():
                        about = self._part.values, len(positions), self._provenance
                        writer = opened(name, Target(path, *about), is_part=True)
                        writers[name] = stack.enter_context(writer)
                    for rows in pieces_of(sizes[self._rows[positions]], BLOCK_BYTES):
                        block = self._block(values, positions[rows])
                        for name, writing in writers.items():
                            with errors_of(name, "write"):
                                writing.write(block)
                ids = whole_ids(self._records.take(pa.array(positions))).to_pylist()
                for path in paths.values():
                    np.save(path.with_name(index_of(path.name)), sorted_hashes(ids))
                files += [
                    DeliveredFile(
                        output=name,
                        path=path.name,
                        rows=len(positions),
                        bytes=path.stat().st_size,
                        sha256=sha256_of(path),
                        mtime_ns=path.stat().st_mtime_ns,
                        folder=folder,
                    )
                    for name, path in paths.items()
                ]
        return files

    def _by_folder(
        self, positions: npt.NDArray[np.int64]
    ) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """Yield the folder of each sample, and which of its records are to be written."""
        if not len(positions):
            return
        rows = pa.Table.from_batches([self._records.take(pa.array(positions))])
        start = 0
        for keys, owned in by_owner(rows):
            end = start + owned.num_rows
            yield "/".join(map("=".join, keys.items())), positions[start:end]
            start = end

    def _sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of the values of each row of the part."""
        names = self._part.values.names
        with pa.memory_map(str(self._part.path)) as source:
            sizes = [bytes_of_rows(batch.select(names)) for batch in pa.ipc.open_stream(source)]
        return np.concatenate([np.empty(0, np.int64), *sizes])

    def _block(self, values: _Values, positions: npt.NDArray[np.int64]) -> pa.Table:
        records = self._records.take(pa.array(positions)).select(IDENTITY.names)
        identity = records.set_column(0, IDENTITY.field(ID), whole_ids(records))
        rows = values.take(self._rows[positions])
        schema = pa.schema([*IDENTITY, *rows.schema])
        return pa.table([*identity.columns, *rows.columns], schema=schema)


class _Values:
    """The values of a part, by rows in any order."""

    def __init__(self, source: pa.MemoryMappedFile, part: Part) -> None:
        self._part = part
        self._batches = [batch.select(part.values.names) for batch in pa.ipc.open_stream(source)]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._room: dict[str, npt.NDArray[Any]] = {}
        """For each column of vectors, an array that blocks share: new memory for each block would
        take as long as filling it."""

    def take(self, rows: npt.NDArray[np.int64]) -> pa.Table:
        """Return the values of these rows, checked, until they are taken again.

        Raises:
            IntegrityError: when one is missing or not finite.
        """
        order = np.argsort(rows)
        ascending = rows[order]
        edges = np.searchsorted(ascending, self._starts).tolist()
        pieces = [
            (batch, ascending[start:end] - first, order[start:end])
            for batch, first, (start, end) in zip(
                self._batches, self._starts, itertools.pairwise(edges), strict=False
            )
            if start < end
        ]
        columns = [self._column(field, pieces, len(rows)) for field in self._part.values]
        values = pa.record_batch(columns, schema=self._part.values)
        check_values(values, self._part.path)
        return pa.Table.from_batches([values])

    def _column(self, field: pa.Field, pieces: Sequence[_Piece], num_rows: int) -> pa.Array:
        """Return a column from `pieces`: a batch, its rows, and their positions in the column."""
        columns = [batch.column(field.name) for batch, _, _ in pieces]
        if kind_of(field.type) != "pooled" or any(column.null_count for column in columns):
            taken = [
                column.take(pa.array(inside))
                for column, (_, inside, _) in zip(columns, pieces, strict=True)
            ]
            back = np.empty(num_rows, np.int64)
            back[np.concatenate([positions for _, _, positions in pieces])] = np.arange(num_rows)
            return pa.concat_arrays(taken).take(pa.array(back))
        views = [view(column) for column in columns]
        room = self._room.get(field.name)
        if room is None or len(room) < num_rows:
            room = self._room[field.name] = np.empty((num_rows, views[0].shape[1]), views[0].dtype)
        for vectors, (_, inside, positions) in zip(views, pieces, strict=True):
            room[positions] = vectors[inside]
        flat = pa.array(room[:num_rows].reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, type=field.type)


_Piece = tuple[pa.RecordBatch, npt.NDArray[np.int64], npt.NDArray[np.int64]]
