"""Refuse spooled records whose id also occurs with another payload.

Their buckets, and all rows, are written again. That is rare, and takes one more pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.reasons import head_of
from featuremill.plan.records import Rows
from featuremill.plan.spool import BUCKET, ROWS, Tally, bucket_path, rows_path

Ordinals = npt.NDArray[np.int64]


def refuse(folders: Sequence[Path], rows: Rows, reasons: Mapping[int, str], tally: Tally) -> None:
    """Refuse the rows whose ordinals `reasons` has, in what is spooled and in the `tally`."""
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
    batches = rows.numbered()
    for number, folder in enumerate(folders):
        path = rows_path(folder)
        new = path.with_suffix(".new")
        with pa.ipc.new_stream(str(new), ROWS) as writer:
            for start, batch in batches[number :: len(folders)]:
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
    num_bytes, kept = 0, list[pa.RecordBatch]()
    for batch in _batches(path):
        is_gone = np.isin(batch.column("ordinal").to_numpy(), ordinals)
        gone = batch.filter(pa.array(is_gone)).column("payload")
        num_bytes += pc.sum(pc.binary_length(gone)).as_py() or 0
        kept.append(batch.filter(pa.array(~is_gone)))
    if not any(map(len, kept)):
        path.unlink()
        return num_bytes
    new = path.with_suffix(".new")
    with pa.ipc.new_stream(str(new), BUCKET) as writer:
        for batch in kept:
            writer.write_batch(batch)
    new.replace(path)
    return num_bytes


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        yield from pa.ipc.open_stream(source)
