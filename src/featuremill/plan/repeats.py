"""Find repeated ids: one row where the payload is the same, and refused where payloads differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.reasons import CONFLICT, head_of
from featuremill.plan.buckets import mapped
from featuremill.plan.records import Rows
from featuremill.plan.spool import BUCKET, ID_KEY, ROWS, Tally, bucket_path, rows_path

KEYS_A_PASS = 4_000_000
"""Keys held in memory at once (16 bytes each); more keys take more passes over the files."""
KEYS_A_BLOCK = 1_000_000
"""Keys that are read, or whose rows are looked up, at a time."""

KEY = ("id", "owner", "sha256")
"""Columns that repeats have in common; the last one alone tells an id's payloads apart."""
Ordinals = npt.NDArray[np.int64]


class Repeated(NamedTuple):
    """The rows whose id occurs several times: repeated rows and conflicting rows."""

    repeats: Ordinals
    """Rows that repeat an earlier row's id and payload, ascending."""
    conflicts: dict[int, str]
    """Rows whose id stands for different payloads, each with the reason to refuse it."""


def find(rows: Rows, ids_paths: Sequence[Path]) -> Repeated:
    """Return the rows whose id occurs several times, as repeats or as conflicts."""
    conflicts: dict[int, str] = {}
    rows_of_block = [_repeats(rows, *block, conflicts) for block in same_hash(ids_paths)]
    repeats = np.sort(np.concatenate(rows_of_block)) if rows_of_block else np.empty(0, np.int64)
    return Repeated(repeats, conflicts)


def _repeats(
    rows: Rows, ordinals: Ordinals, groups: Ordinals, conflicts: dict[int, str]
) -> Ordinals:
    """Return which of `ordinals` repeat another, and add `conflicts`; those of a group have ids of
    the same hash."""
    order = np.argsort(ordinals)
    few = rows.take(ordinals[order], KEY).combine_chunks()
    few = few.take(pa.array(np.argsort(order)))
    is_new = np.append(True, groups[1:] != groups[:-1])
    starts = np.flatnonzero(is_new)
    group = np.cumsum(is_new) - 1
    firsts = starts[group]
    same = np.ones(len(ordinals), bool)
    for name in KEY:
        column = few[name].combine_chunks()
        same &= pc.equal(column, column.take(pa.array(firsts))).to_numpy(zero_copy_only=False)
    is_plain = np.logical_and.reduceat(same, starts)[group]
    is_repeat = is_plain & (firsts != np.arange(len(ordinals)))
    others = _compared(rows, ordinals[~is_plain], few.filter(pa.array(~is_plain)), conflicts)
    return np.concatenate([ordinals[is_repeat], others])


def _compared(rows: Rows, ordinals: Ordinals, few: pa.Table, conflicts: dict[int, str]) -> Ordinals:
    """Return which of `ordinals` repeat another; compare ids themselves, as hashes may collide."""
    order = np.argsort(ordinals)
    columns = few.take(pa.array(order)).to_pydict().values()
    of_id: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
    for ordinal, id, owner, sha256 in zip(ordinals[order].tolist(), *columns, strict=True):
        of_id.setdefault((owner, id), []).append((ordinal, sha256))
    repeats = []
    for (first, first_sha256), *others in of_id.values():
        another = next((ordinal for ordinal, sha256 in others if sha256 != first_sha256), None)
        if another is None:
            repeats += [ordinal for ordinal, _ in others]
            continue
        positions = rows.take(np.array([first, another]), ["source", "line"]).to_pylist()
        to_first, to_another = (
            CONFLICT.reason(f"the other one is at {position['source']}:{position['line']}")
            for position in positions
        )
        conflicts |= {
            ordinal: to_another if sha256 == first_sha256 else to_first
            for ordinal, sha256 in [(first, first_sha256), *others]
        }
    return np.array(repeats, np.int64)


def same_hash(ids_paths: Sequence[Path]) -> Iterator[tuple[Ordinals, Ordinals]]:
    """Yield ordinals whose ids' hash is there more than once, and a number for each hash.

    Those of a hash stand together, ascending, in one block.
    """
    files = [np.memmap(path, ID_KEY, "r") for path in ids_paths if path.stat().st_size]
    num_keys = sum(map(len, files))
    num_passes = max(1, -(-num_keys // KEYS_A_PASS))
    step = np.uint64(2**64 // num_passes + 1) if num_passes > 1 else None
    for number in range(num_passes):
        keys = _keys(files, step, number)
        keys = keys[np.lexsort((keys["ordinal"], keys["hash"]))]
        is_new = np.ones(len(keys), bool)
        is_new[1:] = keys["hash"][1:] != keys["hash"][:-1]
        several = ~(is_new & np.append(is_new[1:], True))
        ordinals, groups = keys["ordinal"][several], np.cumsum(is_new)[several]
        start = 0
        while start < len(groups):
            last = groups[min(start + KEYS_A_BLOCK, len(groups)) - 1]
            end = int(np.searchsorted(groups, last, "right"))
            yield ordinals[start:end], groups[start:end]
            start = end


def _keys(
    files: Sequence[npt.NDArray[np.void]], step: np.uint64 | None, number: int
) -> npt.NDArray[np.void]:
    """Return the keys whose hash falls into pass `number`."""
    if step is None:
        return np.concatenate([np.empty(0, ID_KEY), *files])
    pieces = [np.empty(0, ID_KEY)]
    for keys in files:
        for start in range(0, len(keys), KEYS_A_BLOCK):
            block = keys[start : start + KEYS_A_BLOCK]
            pieces.append(block[block["hash"] // step == number])
    return np.concatenate(pieces)


def refuse(folders: Sequence[Path], rows: Rows, reasons: Mapping[int, str], tally: Tally) -> None:
    """Refuse the rows whose ordinals `reasons` has, in what is spooled and in the `tally`.

    Their buckets, and all rows, are written again. That is rare, and takes one more pass.
    """
    ordinals = np.array(sorted(reasons), np.int64)
    gone = rows.take(ordinals, ["sha256", "length", "note"]).to_pylist()
    tally.refusals.update(head_of(reason) for reason in reasons.values())
    tally.total_length -= sum(row["length"] for row in gone)
    for row in gone:
        tally.notes.subtract(map(head_of, filter(None, (row["note"] or "").split("; "))))
    tally.notes = +tally.notes
    for number in {row["sha256"][0] for row in gone}:
        for folder in folders:
            tally.total_bytes -= _without(bucket_path(folder, number), ordinals)
    tally.longest = tally.costliest = 0
    batches, starts = rows.mapped
    num_folders = len(folders)
    for number, folder in enumerate(folders):
        path = rows_path(folder)
        new = path.with_suffix(".new")
        with pa.ipc.new_stream(str(new), ROWS) as writer:
            own = zip(starts[number::num_folders], batches[number::num_folders], strict=True)
            for start, batch in own:
                low, high = np.searchsorted(ordinals, [start, start + len(batch)])
                reason_of_row = {int(o) - start: reasons[int(o)] for o in ordinals[low:high]}
                written = _refused(batch, reason_of_row) if reason_of_row else batch
                lengths = written.column("length").filter(written.column("reason").is_null())
                tally.longest = max(tally.longest, pc.max(lengths).as_py() or 0)
                tally.costliest = max(tally.costliest, pc.max(written["cost"]).as_py())
                writer.write_batch(written)
        new.replace(path)


def _refused(batch: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """Return the batch with refused rows, by their indices, written as `Spool.add` writes them."""
    columns = batch.to_pydict()
    for row, reason in reasons.items():
        about = {"sha256": None, "length": 0, "cost": 0, "reason": reason, "note": None}
        for name, value in about.items():
            columns[name][row] = value
    return pa.RecordBatch.from_pydict(columns, ROWS)


def _without(path: Path, ordinals: Ordinals) -> int:
    """Take these records out of a bucket; return the bytes of their payloads."""
    if not path.exists():
        return 0
    table = mapped(path)
    is_gone = np.isin(table["ordinal"].to_numpy(), ordinals)
    num_bytes: int = pc.sum(pc.binary_length(table["payload"].filter(is_gone))).as_py() or 0
    kept = table.filter(~is_gone)
    if not kept.num_rows:
        path.unlink()
        return num_bytes
    new = path.with_suffix(".new")
    with pa.ipc.new_stream(str(new), BUCKET) as writer:
        writer.write_table(kept)
    new.replace(path)
    return num_bytes
