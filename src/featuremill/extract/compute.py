"""Around one batch: what to do about an error, and rows of a part from a workload's values."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featuremill.base import faults, finite, reasons
from featuremill.extract.batches import Batch, Queue
from featuremill.store.journal import part_schema
from featuremill.workload import RecordFailed, Workload

NOT_FINITE = reasons.NOT_FINITE.reason("try a wider dtype (or output_dtype)")


def values_of(
    workload: Workload, model: Any, payloads: Sequence[bytes], batch_cost: int
) -> pa.RecordBatch:
    """Return a workload's values for one batch, from its payloads to its rows."""
    batch = workload.prepare(model, payloads, batch_cost)
    return workload.collect(model, workload.run(model, batch))


def free_device_memory() -> None:
    """Give cached device memory back, so that a smaller batch has all of it."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.empty_cache()


def make_room(queue: Queue, batch: Batch, error: Exception) -> bool:
    """Queue a failed batch again in smaller pieces; False when there is no other way to try it."""
    is_short = faults.is_out_of_memory(error)
    if is_short:
        error.__traceback__ = None  # its frames would keep the batch's tensors alive
        free_device_memory()
    return queue.split(batch, is_short)


def reason_of(error: Exception) -> str:
    """Return why a record failed that was computed by itself."""
    if isinstance(error, RecordFailed):
        return error.kind.reason(faults.one_line(error))
    kind = reasons.OUT_OF_MEMORY if faults.is_out_of_memory(error) else reasons.ERROR
    return kind.reason(f"{type(error).__name__}: {faults.one_line(error)}")


def failed(schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return `num_rows` rows without values."""
    return pa.record_batch([pa.nulls(num_rows, field.type) for field in schema], schema=schema)


def check(values: pa.RecordBatch, schema: pa.Schema, num_rows: int) -> None:
    """Refuse a workload's answer that has another schema or another number of rows."""
    assert values.schema.equals(schema), f"collect gave {values.schema}, schema says {schema}"
    assert values.num_rows == num_rows, f"collect gave {values.num_rows} rows for {num_rows}"


def rows_of_part(
    sha256: Sequence[bytes], values: pa.RecordBatch, reason: str | None
) -> pa.RecordBatch:
    """Return `values` with the core's columns before them.

    All rows failed when there is a `reason`; without one, rows with a value that is not finite do.
    """
    num_rows = len(sha256)
    bad = np.ones(num_rows, bool) if reason else finite.not_finite(values)
    if bad.any() and not reason:
        values = values.take(pa.array(np.arange(num_rows), mask=bad))
    digests = pa.py_buffer(b"".join(sha256))
    columns = [
        pa.Array.from_buffers(pa.binary(32), num_rows, [None, digests]),
        # Of values, Arrow's own makers import pandas, for a third of a second.
        _repeated(b"ok", num_rows),
        pa.nulls(num_rows, pa.string()),
    ]
    if bad.any():
        reasons_of = [(reason or NOT_FINITE) if is_bad else None for is_bad in bad]
        columns[1] = pa.array(np.where(bad, "failed", "ok"), pa.string())
        columns[2] = pa.array(reasons_of, pa.string())
    return pa.record_batch([*columns, *values.columns], schema=part_schema(values.schema))


def _repeated(text: bytes, count: int) -> pa.StringArray:
    ends = np.arange(count + 1, dtype=np.int32) * len(text)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(text * count))
