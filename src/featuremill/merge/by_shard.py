"""Results shard by shard: what the delivering jobs have written becomes the results.

No value is read here. The jobs' JSON files (rows and failures of each shard) are compared with the
plan and the receipts, and added up. Shards that no job has delivered are delivered first.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import IntegrityError
from featuremill.base.words import counted
from featuremill.features.table import allow_open
from featuremill.merge.accounts import FAILURE, LISTED_COLUMNS, Lists
from featuremill.merge.deliver import Delivering
from featuremill.merge.identities import Identities, lay_out
from featuremill.merge.shuffle import Shuffle
from featuremill.store import delivered_shards, ours
from featuremill.store.delivered_shards import FAILURES, DeliveredFile, DeliveredShard
from featuremill.store.delivery import Accounts, Written
from featuremill.store.files import remove_left, scratch, sha256_of
from featuremill.store.formats import format_of, index_of
from featuremill.store.parts import columns_of, open_taken, other_columns, refuse_taken
from featuremill.store.plan import Plan, PlannedShard, SharedPart
from featuremill.store.receipt import Receipt
from featuremill.store.records import STATUSES, with_keys
from featuremill.store.results import Results
from featuremill.workload.outputs import Target, open_part_writer

ROWS_A_BUCKET = 2**20
"""Ids whose hashes are sorted together."""
log = logging.getLogger("featuremill.merge")


class ByShard:
    """The delivered shards of a run, in the order of its plan."""

    def __init__(
        self,
        folder: Results,
        plan: Plan,
        scratch: Path,
        identities: Identities,
        shards: Sequence[DeliveredShard],
    ) -> None:
        self._folder, self._plan, self.scratch = folder, plan, scratch
        self._identities, self._shards = identities, shards
        self.receipts = [_receipt(folder, plan, source) for source in plan.sources]
        self.samples = identities.samples
        self.rows_of_shard = identities.rows_of_shard
        self.keys = frozenset(shard.key for shard in shards)

    def shard_numbers(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the index into the plan's shards of each row of records.parquet."""
        return self._identities.shard_numbers(rows)

    def account(self, table: Path, fasta: Path) -> Accounts:
        """Write `table` and `fasta` and return how many records are ok, failed, and so on.

        Raises:
            IntegrityError: when a shard was delivered with other records than it has.
        """
        outputs = {file.output for shard in self._shards for file in shard.files}
        for number, shard in enumerate(self._shards):
            written = dict.fromkeys(outputs, 0)
            for file in shard.files:
                written[file.output] += file.rows
            sums = {rows + shard.failed for rows in written.values()} | {shard.rows}
            if sums != {int(self.rows_of_shard[number])}:
                raise IntegrityError(
                    f"merge: of shard {shard.shard}, {shard.rows:,} records were delivered and "
                    f"{self.rows_of_shard[number]:,} planned; please report this."
                )
        self._list(table, fasta)
        failed = sum(shard.failed for shard in self._shards)
        planned, refused, duplicate = (self._identities.counts[status] for status in STATUSES)
        return Accounts(
            input=planned + refused + duplicate,
            ok=planned - failed,
            failed=failed,
            refused=refused,
            duplicate=duplicate,
        )

    def _list(self, table: Path, fasta: Path) -> None:
        """List the failed and the refused records, reading those row groups of records.parquet that
        have any."""
        with ExitStack() as stack:
            records = stack.enter_context(pq.ParquetFile(self._folder.records))
            groups = range(records.num_row_groups)
            sizes = [records.metadata.row_group(group).num_rows for group in groups]
            edges = np.cumsum([0, *sizes], dtype=np.int64)
            path = self.scratch / "failed.bin"
            failures = stack.enter_context(closing(Shuffle(path, FAILURE, edges)))
            listed = set(self._identities.with_refused)
            for number, shard in enumerate(self._shards):
                if shard.failed:
                    ordinals = self._add_failures(failures, number)
                    listed.update((np.searchsorted(edges, ordinals, side="right") - 1).tolist())
            failures.finish()
            id_columns = self._identities.id_columns
            lists = stack.enter_context(Lists.opened(table, fasta, id_columns))
            columns = [name for name in LISTED_COLUMNS if name in records.schema_arrow.names]
            for group in sorted(listed):
                block = with_keys(records.read_row_group(group, columns))
                nothing = np.empty(0, np.int64)
                lists.add(block, failures.read(group), int(edges[group]), nothing)

    def _add_failures(self, failures: Shuffle, number: int) -> npt.NDArray[np.int64]:
        """Add the failed records of a shard to `failures`; return their ordinals in the input."""
        shard = self._shards[number]
        path = delivered_shards.folder_of(self._folder, shard.key) / FAILURES
        with pa.OSFile(str(path)) as file:
            rows = pa.ipc.open_file(file).read_all()
        (failed,) = rows.combine_chunks().to_batches()
        if failed.num_rows != shard.failed:
            raise IntegrityError(
                f"{path}: it has other failed records than were counted; remove "
                f"{path.parent} and run the same command again."
            )
        column = self._identities.records_of(number).column("number").take(failed.column("place"))
        ordinals: npt.NDArray[np.int64] = column.to_numpy()
        failures.add(ordinals, failed.select(FAILURE.names))
        return ordinals

    def write(
        self, paths: Mapping[str, Path], provenance: dict[str, str], num_ok: int
    ) -> dict[str, Written]:
        """Give the delivered files their names in the results, with an index of their ids beside
        each folder; return its size and sha256.

        Raises:
            IntegrityError: when there are not `num_ok` rows in them.
        """
        written: dict[str, Written] = {}
        for output, path in paths.items():
            files = self._named(output)
            num_rows = sum(file.rows for _, file in files.values())
            if num_rows != num_ok:
                raise IntegrityError(f"merge: {num_rows} rows written for {num_ok} ok records.")
            sha256 = {str(name): file.sha256 for name, (_, file) in files.items()}
            with ours.delivering_folder(path, partial(_known, sha256)) as new:
                for name, (source, file) in files.items():
                    _link(source, new / name, file)
                if not files:  # no row is ok: one without rows
                    name = Path(format_of(output).part_name.format(0))
                    target = Target(new / name, self._values, 0, provenance)
                    open_part_writer(output, target).close()
                    sha256[str(name)] = sha256_of(new / name)
                written[path.name] = Written.of(new, sha256)
            with ours.delivering(path.with_name(index_of(path.name))) as new:
                _write_index(new, files)
        return written

    def _named(self, output: str) -> dict[Path, tuple[Path, DeliveredFile]]:
        """Return the paths of the delivered files of an output, by name in its folder and
        sorted."""
        files = {}
        for number, shard in enumerate(self._shards):
            folder = delivered_shards.folder_of(self._folder, shard.key)
            name = format_of(output).part_name.format(number)
            for file in shard.files:
                if file.output == output:
                    files[Path(file.folder, name)] = folder / file.path, file
        return dict(sorted(files.items()))

    @property
    def _values(self) -> pa.Schema:
        """The columns of the parts, in which no row is ok."""
        paths = [self._folder.part_of(self._plan, source) for source in self._plan.sources]
        return columns_of(paths[0]) if paths else pa.schema([])


def _known(sha256: Mapping[str, str], _: Path) -> Mapping[str, str]:
    return sha256


def _link(source: Path, path: Path, file: DeliveredFile) -> None:
    """Hard-link the file at `source` to `path`; copy it if the file system has no hard links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)
        if sha256_of(path) != file.sha256:
            raise IntegrityError(
                f"{source}: its bytes are not those that were written; run the same command again."
            ) from None


def _write_index(path: Path, files: Mapping[Path, tuple[Path, DeliveredFile]]) -> None:
    """Write the hashes of all ids in ascending order, and the row of each: a NumPy array of shape
    (2, ids). Rows are counted through the files in the order of their names."""
    num_rows = sum(file.rows for _, file in files.values())
    parts, first, start = [], [], 0
    allow_open(len(files))
    for data, file in files.values():
        index = data.with_name(index_of(data.name))
        parts.append(np.load(index, mmap_mode="r" if file.rows else None))
        first.append(start)
        start += file.rows
    with path.open("wb") as out:
        about = {"descr": "<u8", "fortran_order": False, "shape": (2, num_rows)}
        np.lib.format.write_array_header_1_0(out, about)
        begin = out.tell()
        out.truncate(begin + 16 * num_rows)
    if not num_rows:
        return
    both = np.memmap(path, np.uint64, "r+", begin, (2, num_rows))
    num_buckets = -(-num_rows // ROWS_A_BUCKET)
    limits = np.array([(number << 64) // num_buckets for number in range(num_buckets)], np.uint64)
    edges = [[*np.searchsorted(part[0], limits).tolist(), part.shape[1]] for part in parts]
    at = 0
    for bucket in range(num_buckets):
        here = [slice(*each[bucket : bucket + 2]) for each in edges]
        hashes = np.concatenate([part[0, cut] for part, cut in zip(parts, here, strict=True)])
        each = zip(parts, here, first, strict=True)
        rows = np.concatenate([part[1, cut] + np.uint64(before) for part, cut, before in each])
        order = np.argsort(hashes, kind="stable")
        both[0, at : at + len(order)], both[1, at : at + len(order)] = hashes[order], rows[order]
        at += len(order)
    both.flush()


@contextmanager
def collected(
    folder: Results, plan: Plan, outputs: Sequence[str], num_threads: int
) -> Iterator[ByShard]:
    """Yield the delivered shards of the run; a scratch folder exists meanwhile.

    Raises:
        IntegrityError: when a part is not what its receipt says.
    """
    remove_left(folder.store / "merge")
    with scratch(folder.store / "merge") as spool, closing(lay_out(folder, plan)) as identities:
        shards = _delivered(Delivering(folder, plan, outputs, identities), num_threads)
        _refuse_other_columns(folder, plan, shards)
        yield ByShard(folder, plan, spool, identities, shards)


def _delivered(delivering: Delivering, num_threads: int) -> list[DeliveredShard]:
    """Return what is delivered of each of the plan's shards, by jobs or now."""
    known = delivering.known()
    numbers = range(len(delivering.plan.sources))
    lacking = [number for number in numbers if number not in known]
    if lacking:
        log.info("%s to deliver first", counted(len(lacking), "shard"))
    now, _ = delivering.shards(lacking, num_threads)
    known |= dict(zip(lacking, now, strict=True))
    return [known[number] for number in numbers]


def _receipt(folder: Results, plan: Plan, source: PlannedShard) -> Receipt:
    if isinstance(source, SharedPart):
        receipt = Receipt.read(Path(source.path).with_suffix(".json"))
        return receipt.model_copy(update={"shard": source.shard})
    return Receipt.read(folder.receipt(plan.recipe, source.shard))


def _refuse_other_columns(folder: Results, plan: Plan, shards: Sequence[DeliveredShard]) -> None:
    for source, shard in zip(plan.sources, shards, strict=True):
        if shard.values == shards[0].values:
            continue
        if isinstance(source, SharedPart):
            raise refuse_taken(folder, open_taken(folder, plan, source))
        raise other_columns(folder.part_of(plan, source))
