"""Parts: whether one is what its receipt says, and where in it the rows of its shard are.

A part's rows stand in the order of batches, a shard's in the order of sha256; so the n-th row of
the shard is the n-th of the part's sha256 column, sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.arrays import Digests, digests
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.words import counted
from featuremill.store import command_line, shared
from featuremill.store.journal import COLUMNS
from featuremill.store.journal_log import digest_of_file
from featuremill.store.plan import Plan, PlannedShard, SharedPart
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results
from featuremill.store.shard_file import beginnings

NUM_CORE_COLUMNS = len(COLUMNS)
OTHER_COLUMNS = "its columns are not those that the workload gives now"


class Part(NamedTuple):
    """A part whose bytes and rows were checked."""

    path: Path
    receipt: Receipt
    values: pa.Schema
    num_failed: int
    share: float = 1.0
    """How much of it is wanted, of a part that is taken from a store."""

    @property
    def wanted_bytes(self) -> float:
        """About how many of its bytes are of rows that are wanted."""
        return self.share * self.path.stat().st_size

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the part's batches one after the other; only one is in memory."""
        with pa.OSFile(str(self.path)) as source:
            yield from pa.ipc.open_stream(source)

    def row_numbers(self) -> npt.NDArray[np.int64]:
        """Return, for each row of the shard, its row in the part."""
        return order_of(self.columns()[0])

    def columns(self) -> tuple[Digests, pa.Array]:
        """Return each row's sha256, and why it failed or null, without reading the values."""
        return read_columns(self.path)


def open_part(
    folder: Results, plan: Plan, shard: PlannedShard, only_look: bool = False
) -> Part | None:
    """Return the part of `shard`, an entry of `plan`, its bytes, rows and versions checked.

    With `only_look` it may be at work meanwhile: the receipt beside the part counts as much as the
    declared one, a part that is not there is None, and nothing is set aside.

    Raises:
        IntegrityError: when the receipt or the bytes are not right, or of another version than the
            plan; the part is then set aside and the receipt removed, so that the next run computes
            it again.
    """
    recipe, name = plan.recipe, shard.shard
    path, receipt_path = folder.part(recipe, name), folder.receipt(recipe, name)
    if only_look and not path.exists():
        return None
    finds = [folder.find_receipt, folder.find_kept_receipt] if only_look else [folder.find_receipt]
    receipts = [receipt for find in finds if (receipt := find(recipe, name))]
    if not (receipts or only_look):
        if not receipt_path.exists():
            raise IntegrityError(
                f"{path}: this part is not computed yet; let the run come to its end "
                f"({command_line.again(folder.root)}), or take what there is with --partial."
            )
        receipt_path.unlink()  # the part may be good, and has its own beside it
        raise IntegrityError(
            f"{receipt_path}: this receipt is incomplete, or for another part; run the same "
            "command again to have it written anew."
        )
    try:
        part = checked(path, receipts, shard.records)
        told = part.receipt.workload_version, part.receipt.engine_version
        if others := plan.settings.other_versions(*told):
            raise _damaged(path, f"it was computed by {others}, as planned")
        return part
    except IntegrityError:
        if not only_look:
            if path.exists():
                path.replace(path.with_suffix(".bad"))
            receipt_path.unlink(missing_ok=True)
        raise


def open_taken(folder: Results, plan: Plan, entry: SharedPart, only_look: bool = False) -> Part:
    """Return a part that `plan` takes from a store, its bytes and rows checked.

    Raises:
        IntegrityError: when it is gone or not what was published; unless one may `only_look`, it is
            noted then and plan.json removed, so that the next run does without it.
    """
    path = Path(entry.path)
    before = shared.identity_of(path)
    try:
        found = Receipt.find(path.with_suffix(".json"))
        part = checked(path, [found] if found else [], entry.records)
        if part.receipt.part != entry.shard or part.receipt.recipe != plan.recipe:
            raise _damaged(path, "it is another part")
    except (IntegrityError, UserError, OSError) as error:  # also a receipt of a newer featuremill
        problem = error if isinstance(error, IntegrityError) else _damaged(path, str(error))
        if not only_look:
            _do_without(folder, path, before, problem)
        raise problem from None
    # What failed elsewhere is not taken. The shard may be one of this run's as well.
    receipt = part.receipt.model_copy(update={"shard": entry.shard})
    return part._replace(receipt=receipt, num_failed=0, share=entry.wanted / entry.records)


def refuse_taken(folder: Results, part: Part, only_look: bool = False) -> IntegrityError:
    """Return what is wrong with a taken part whose columns are not those of the run's own parts;
    it is noted as in `open_taken`."""
    problem = _damaged(part.path, OTHER_COLUMNS)
    if not only_look:
        _do_without(folder, part.path, shared.identity_of(part.path), problem)
    return problem


def _do_without(
    folder: Results, path: Path, identity: shared.Identity, problem: IntegrityError
) -> None:
    """Note that a part of a store cannot be used, and have Snakemake plan again."""
    found = {str(path): (identity, str(problem).rpartition("; ")[0])}
    shared.note_unusable(folder, found)
    folder.plan.unlink(missing_ok=True)


def checked(path: Path, receipts: Sequence[Receipt], num_records: int) -> Part:
    """Return the part at `path` with the one of `receipts` that is about these bytes."""
    if not path.exists():
        raise _damaged(path, "it is gone")
    digest = digest_of_file(path)
    receipt = next((found for found in receipts if found.part == digest), None)
    if receipt is None:
        raise _damaged(path, "its bytes are not those that were written")
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


def columns_of(path: Path) -> pa.Schema:
    """Return the values' columns of the part at `path`."""
    with pa.OSFile(str(path)) as source:
        return pa.schema(list(pa.ipc.open_stream(source).schema)[NUM_CORE_COLUMNS:])


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(f"{path}: {problem}; run the same command again to compute it anew.")


def failed_rows(path: Path) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return which rows of its shard failed, in their order, by the part `path`; and each one's
    reason.

    Raises:
        pa.ArrowInvalid: when its bytes are no part.
    """
    sha256, reasons = read_columns(path)
    failed = np.array(pc.indices_nonzero(reasons.is_valid()).to_pylist(), np.int64)
    rows = np.searchsorted(np.sort(sha256), sha256[failed])
    order = np.argsort(rows)
    return rows[order], reasons.take(pa.array(failed[order])).to_pylist()


def order_of(sha256: Digests) -> npt.NDArray[np.int64]:
    """Return the order that sorts distinct digests."""
    # Numbers sort several times faster than bytes, and eight of these decide nearly always.
    first = beginnings(sha256)
    order = np.argsort(first)
    in_order = first[order]
    return np.argsort(sha256) if (in_order[1:] == in_order[:-1]).any() else order


def read_columns(path: Path) -> tuple[Digests, pa.Array]:
    """Return each row's sha256, and why it failed or null, of the part at `path`.

    Raises:
        pa.ArrowInvalid: when its bytes are no part.
    """
    with pa.memory_map(str(path)) as source:
        batches = list(pa.ipc.open_stream(source))
        sha256 = pa.chunked_array([batch.column("sha256") for batch in batches], pa.binary(32))
        reasons = pa.chunked_array([batch.column("reason") for batch in batches], pa.string())
        # Copies, so that no page of the part stays mapped.
        return digests(sha256), pa.concat_arrays([pa.nulls(0, pa.string()), *reasons.chunks])
