"""Shards and their parts on disk: Arrow files of (sha256, payload) and of values.

A shard is immutable and sorted by sha256. A part is checked against its receipt. Its rows are in
the order of batches: the n-th row of the shard is the n-th of the part after sorting by sha256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.arrays import Digests, digests
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.words import counted
from featuremill.store import command_line, files, shared
from featuremill.store.files import digest_of, replacing
from featuremill.store.journal import COLUMNS
from featuremill.store.journal_log import digest_of_file
from featuremill.store.plan import Plan, PlannedShard, SharedPart
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

SHARD = pa.schema({"sha256": pa.binary(32), "payload": pa.large_binary()})


def read_shard(path: Path) -> pa.Table:
    """Return the shard's table, memory-mapped.

    Raises:
        pa.ArrowInvalid: its bytes are no shard.
    """
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
    except OSError as error:
        if error.errno:
            raise
        raise pa.ArrowInvalid(str(error)) from None  # of damaged metadata, without errno
    if not table.schema.equals(SHARD):
        raise pa.ArrowInvalid(f"{path}: its columns are not those of a shard")
    table.validate(full=True)  # wrong offsets would crash a reader
    return table


def write_shard(folder: Results, table: pa.Table) -> str:
    """Write the shard of `table`, whose rows are in the order of sha256; return its name."""
    name = digest_of([digests(table["sha256"]).tobytes()])
    with replacing(folder.shard(name)) as temporary, pa.ipc.new_file(str(temporary), SHARD) as file:
        file.write_table(table)
    return name


def read_verified(path: Path) -> pa.Table:
    """Return the shard's table after a check of its name, digests and payloads.

    Raises:
        IntegrityError: they do not agree; the file is then set aside.
    """
    try:
        table = read_shard(path)
        sha256 = table["sha256"].to_pylist()
        right = digest_of(sha256) == path.stem and all(
            hashlib.sha256(payload.as_py()).digest() == digest
            for payload, digest in zip(table["payload"], sha256, strict=True)
        )
    except pa.ArrowInvalid:
        right = False
    if not right:
        path.replace(path.with_suffix(".bad"))
        raise IntegrityError(
            f"{path}: its bytes are not those that were written; delete the run's plan.json "
            "and run the same command again to have it written anew."
        )
    return table


def beginnings(sha256: Digests) -> npt.NDArray[np.uint64]:
    """Return the first eight bytes of each digest, as a number of the same order."""
    return np.ascontiguousarray(sha256).view(">u8")[::4].astype(np.uint64)


NUM_CORE_COLUMNS = len(COLUMNS)
OTHER_COLUMNS = "its columns are not those that the workload gives now"
OTHER_BYTES = "its bytes are not those that were written"


class Part(NamedTuple):
    """A part whose bytes and rows were checked."""

    path: Path
    receipt: Receipt
    values: pa.Schema
    num_failed: int
    share: float = 1.0
    """The share of its rows that the run wants; less than 1 only for a part of a store."""

    @property
    def wanted_bytes(self) -> float:
        """About how many of its bytes are of wanted rows."""
        return self.share * self.path.stat().st_size

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the part's batches one after the other, with one in memory."""
        with pa.OSFile(str(self.path)) as source:
            yield from pa.ipc.open_stream(source)

    def row_numbers(self) -> npt.NDArray[np.int64]:
        """Return the row in the part of each row of the shard."""
        return order_of(self.columns()[0])

    def columns(self) -> tuple[Digests, pa.Array]:
        """Return each row's sha256 and its reason (null if it did not fail), without the values."""
        return read_columns(self.path)

    def has_wrong_row(self) -> IntegrityError:
        return IntegrityError(
            f"{self.path}: a row of this part is not that of its record; please report this. To "
            "have the part computed anew, delete it and run the same command again."
        )


def open_source(
    folder: Results, plan: Plan, source: PlannedShard, only_look: bool = False
) -> Part | None:
    """Return the part of a source of `plan`, by `open_part` or `open_taken`."""
    if isinstance(source, SharedPart):
        return open_taken(folder, plan, source, only_look)
    return open_part(folder, plan, source, only_look)


def open_part(
    folder: Results, plan: Plan, shard: PlannedShard, only_look: bool = False
) -> Part | None:
    """Return the part of `shard`, an entry of `plan`, after a check of its bytes, rows and
    versions.

    `only_look` is for a run that may be computing. Then the receipt beside the part counts too, a
    missing part is None, and no file is changed.

    Raises:
        IntegrityError: the receipt or the bytes are wrong, or of another version than the plan. The
            part is then set aside and the receipt removed, so that the next run computes it again.
    """
    recipe, name = plan.recipe, shard.shard
    path, receipt_path = folder.part(recipe, name), folder.receipt(recipe, name)
    if only_look and not path.exists():
        return None
    readers = [folder.find_receipt]
    if only_look:
        readers.append(folder.find_kept_receipt)
    receipts = [receipt for read in readers if (receipt := read(recipe, name))]
    if not (receipts or only_look):
        if not receipt_path.exists():
            raise IntegrityError(
                f"{path}: this part is not computed yet; let the run come to its end "
                f"({command_line.again(folder.root)}), or take what there is with --partial."
            )
        receipt_path.unlink()  # the part may be good: its other receipt is beside it
        raise IntegrityError(
            f"{receipt_path}: this receipt is incomplete, or for another part; run the same "
            "command again to have it written anew."
        )
    try:
        part = checked(path, receipts, shard.records)
        versions = part.receipt.workload_version, part.receipt.engine_version
        if others := plan.settings.other_versions(*versions):
            raise _damaged(path, f"it was computed by {others}, as planned")
        return part
    except IntegrityError:
        if not only_look:
            if path.exists():
                path.replace(path.with_suffix(".bad"))
            receipt_path.unlink(missing_ok=True)
        raise


def open_taken(folder: Results, plan: Plan, entry: SharedPart, only_look: bool = False) -> Part:
    """Return a part that `plan` takes from a store, after a check of its bytes and rows.

    Raises:
        IntegrityError: it is gone or not what was published. Without `only_look` it is then noted
            and plan.json removed, so that the next run does not use it.
    """
    path = Path(entry.path)
    before = files.identity_of(path)
    try:
        receipt = Receipt.find(path.with_suffix(".json"))
        part = checked(path, [receipt] if receipt else [], entry.records)
        if part.receipt.part != entry.shard or part.receipt.recipe != plan.recipe:
            raise _damaged(path, "it is another part")
    except (IntegrityError, UserError, OSError) as error:  # also a receipt of a newer featuremill
        problem = error if isinstance(error, IntegrityError) else _damaged(path, str(error))
        if not only_look:
            _do_without(folder, path, before, problem)
        raise problem from None
    # Failed rows are not taken. The receipt's shard may also be one of this run.
    renamed = part.receipt.model_copy(update={"shard": entry.shard})
    return part._replace(receipt=renamed, num_failed=0, share=entry.wanted / entry.records)


def refuse_taken(folder: Results, part: Part, only_look: bool = False) -> IntegrityError:
    """Return the error for a taken part with other columns than the run's own parts; it is noted
    as in `open_taken`."""
    problem = _damaged(part.path, OTHER_COLUMNS)
    if not only_look:
        _do_without(folder, part.path, files.identity_of(part.path), problem)
    return problem


def _do_without(
    folder: Results, path: Path, identity: files.Identity, problem: IntegrityError
) -> None:
    """Note that a part of a store cannot be used, and have Snakemake plan again."""
    shared.note_unusable(folder, {str(path): (identity, str(problem).rpartition("; ")[0])})
    folder.plan.unlink(missing_ok=True)


def checked(path: Path, receipts: Sequence[Receipt], num_records: int) -> Part:
    """Return the part at `path` with the one of `receipts` that has the digest of its bytes.

    Raises:
        IntegrityError: it is gone, damaged, or has not `num_records` rows.
    """
    if not path.exists():
        raise _damaged(path, "it is gone")
    if not receipts:
        raise _damaged(path, f"its receipt {path.with_suffix('.json').name} is gone or incomplete")
    digest = digest_of_file(path)
    receipt = next((known for known in receipts if known.part == digest), None)
    if receipt is None:
        raise _damaged(path, OTHER_BYTES)
    try:
        (sha256, reasons), values = read_columns(path), columns_of(path)
    except (pa.ArrowException, KeyError, ValueError):
        raise _damaged(path, "it is no part") from None
    if len(sha256) != num_records or len(np.unique(sha256)) != num_records:
        raise _damaged(
            path, f"it holds {counted(len(sha256), 'row')} for {counted(num_records, 'record')}"
        )
    num_failed = len(reasons) - reasons.null_count
    if not receipt.counts(len(sha256), num_failed):
        raise _damaged(path, "its receipt counts other records")
    return Part(path, receipt, values, num_failed)


def other_columns(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path}: its columns are not those of the other parts; raise the workload's VERSION, and "
        "run the same command again."
    )


def columns_of(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as source:
        return pa.schema(list(pa.ipc.open_stream(source).schema)[NUM_CORE_COLUMNS:])


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(f"{path}: {problem}; run the same command again to compute it anew.")


def failed_rows(path: Path) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the failed rows of the shard, by their numbers, and the reasons in the part `path`.

    Raises:
        pa.ArrowInvalid: its bytes are no part.
    """
    import pyarrow.compute as pc  # here: a worker reads its shard, and starts faster without

    sha256, reasons = read_columns(path)
    failed = np.array(pc.indices_nonzero(reasons.is_valid()).to_pylist(), np.int64)
    rows = np.searchsorted(np.sort(sha256), sha256[failed])
    order = np.argsort(rows)
    return rows[order], reasons.take(pa.array(failed[order])).to_pylist()


def order_of(sha256: Digests) -> npt.NDArray[np.int64]:
    # Numbers sort several times faster than bytes, and the first eight bytes mostly differ.
    first = beginnings(sha256)
    order = np.argsort(first)
    in_order = first[order]
    return np.argsort(sha256) if (in_order[1:] == in_order[:-1]).any() else order


def read_columns(path: Path) -> tuple[Digests, pa.Array]:
    """Return each row's sha256 and its reason (null if it did not fail) of the part at `path`.

    Raises:
        pa.ArrowInvalid: its bytes are no part.
    """
    with pa.memory_map(str(path)) as source:
        batches = list(pa.ipc.open_stream(source))
        sha256 = pa.chunked_array([batch.column("sha256") for batch in batches], pa.binary(32))
        reasons = pa.chunked_array([batch.column("reason") for batch in batches], pa.string())
        # Copies, so that no page of the part stays mapped.
        return digests(sha256), pa.concat_arrays([pa.nulls(0, pa.string()), *reasons.chunks])
