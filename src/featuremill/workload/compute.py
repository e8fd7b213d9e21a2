"""Compute one batch, turn its errors into reasons, and build the rows of a part from its values;
compute payloads in this process, in batches as in a run, without journal and files."""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featuremill.base import arrays, faults, reasons
from featuremill.base.text import one_line
from featuremill.base.words import human_bytes
from featuremill.store.journal import part_schema
from featuremill.workload import RecordFailed, Workload, plugin_errors
from featuremill.workload.batches import Batch, Queue, make_batches
from featuremill.workload.plugin_errors import REASON

NOT_FINITE = reasons.NOT_FINITE.reason("try a wider dtype (or output_dtype)")


def values_of(
    workload: Workload, model: Any, payloads: Sequence[bytes], batch_cost: int
) -> pa.RecordBatch:
    """Compute a batch of payloads; return the values."""
    batch = workload.prepare(model, payloads, batch_cost)
    return workload.collect(model, workload.run(model, batch))


def free_device_memory() -> None:
    """Release cached device memory, so that a smaller batch has all of it."""
    gc.collect()
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()  # does nothing before CUDA is initialised


def free_on_gpu() -> str:
    """Return the free memory of the first GPU, such as "1.2 GB of 80.0 GB are free", or ""."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        free, total = torch.cuda.mem_get_info(0)
    except RuntimeError:
        return ""
    return f"{human_bytes(free)} of {human_bytes(total)} are free"


def queue_again(queue: Queue, batch: Batch, error: Exception) -> bool:
    """Queue a failed batch again in smaller pieces; return False if it cannot be split."""
    is_short = faults.is_out_of_memory(error)
    if is_short:
        error.__traceback__ = None  # its frames hold the batch's tensors
        free_device_memory()
    return queue.split(batch, is_short)


def reason_of(error: Exception) -> str:
    """Return the reason for the failure of a record that was computed alone."""
    if isinstance(error, RecordFailed):
        return error.kind.reason(faults.one_line(error))
    text = f"{type(error).__name__}: {faults.one_line(error)}"
    if not faults.is_out_of_memory(error):
        return reasons.ERROR.reason(text)
    # Free memory shows whether an error about memory has another cause.
    free = f"; {free}" if (free := free_on_gpu()) else ""
    return reasons.OUT_OF_MEMORY.reason(text + free)


def failed(schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return `num_rows` rows without values."""
    return pa.record_batch([pa.nulls(num_rows, field.type) for field in schema], schema=schema)


def split_reasons(values: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str | None]]:
    """Split the result of `collect` into values and, for each row, its reason or None."""
    if REASON not in values.schema.names:
        return values, [None] * values.num_rows
    texts = values.column(REASON).to_pylist()
    parsed = [reasons.delivered(one_line(str(text))) if text else None for text in texts]
    return values.drop_columns([REASON]), parsed


def rows_of_part(
    sha256: Sequence[bytes], values: pa.RecordBatch, given_reasons: Sequence[str | None]
) -> pa.RecordBatch:
    """Return the core's columns followed by `values`.

    A row fails if it has a reason in `given_reasons`, or a value that is missing or not finite.
    """
    num_rows = len(sha256)
    why = reasons_of(values, given_reasons)
    bad = np.array([reason is not None for reason in why], bool)
    if bad.any():
        values = values.take(pa.array(np.arange(num_rows), mask=bad))
    digests = pa.py_buffer(b"".join(sha256))
    ends = np.arange(num_rows + 1, dtype=np.int32) * len(b"ok")
    columns = [
        pa.Array.from_buffers(pa.binary(32), num_rows, [None, digests]),
        # Arrow's constructors import pandas, which takes a third of a second.
        pa.StringArray.from_buffers(num_rows, pa.py_buffer(ends), pa.py_buffer(b"ok" * num_rows)),
        pa.nulls(num_rows, pa.string()),
    ]
    if bad.any():
        columns[1] = pa.array(np.where(bad, "failed", "ok"), pa.string())
        columns[2] = pa.array(why, pa.string())
    return pa.record_batch([*columns, *values.columns], schema=part_schema(values.schema))


def reasons_of(values: pa.RecordBatch, given_reasons: Sequence[str | None]) -> list[str | None]:
    """Return the reason for each failed row, given or from its values; None for other rows."""
    why = list(given_reasons)
    for row in np.flatnonzero(arrays.not_finite(values)).tolist():
        if why[row] is None:
            is_missing = arrays.is_missing(values.slice(row, 1))
            why[row] = reasons.MISSING.reason() if is_missing else NOT_FINITE
    return why


Refuse = Callable[[int, str], object]
"""A function of the index of a payload that cannot be computed, and the reason; it may raise."""


def values_in_batches(
    workload: Workload,
    model: Any,
    options: Any,
    payloads: Sequence[bytes],
    budget: int,
    refuse: Refuse,
    warn: Callable[[str], object],
    is_finite_only: bool = True,
    name: str = "",
) -> Iterator[tuple[list[list[int]], pa.RecordBatch]]:
    """Yield values until all `payloads` are computed or refused: for each row the indices of its
    payloads, and the values. Equal payloads are computed once.

    The batches are those of a run with one shard. If memory runs out they get smaller, and `warn`
    is called once. Rows with a value that is not finite are refused, unless `is_finite_only` is
    False. `name` is the workload's, for its errors.
    """
    indices: dict[bytes, list[int]] = {}
    for index, payload in enumerate(payloads):
        indices.setdefault(payload, []).append(index)
    distinct = sorted(indices, key=lambda payload: hashlib.sha256(payload).digest())
    costs = plugin_errors.costs_of(name, workload, distinct, options)

    def refuse_all(row: int, reason: str) -> None:
        for index in indices[distinct[row]]:
            refuse(index, reason)

    queue = Queue(costs, budget, workload.COST_UNIT, warn)
    queue.add(make_batches(costs, budget), is_alone=True)
    while batch := queue.take():
        chosen = [distinct[row] for row in batch.rows]
        try:
            values = values_of(workload, model, chosen, batch.budget)
        except Exception as error:
            if not (isinstance(error, RecordFailed) or faults.is_out_of_memory(error)):
                with plugin_errors.attributed_to(name, "prepare, run or collect"):
                    raise
            if not queue_again(queue, batch, error):
                refuse_all(batch.rows[0], reason_of(error))
            continue
        queue.ran()
        plugin_errors.refuse_answer(name, values, len(chosen))
        values, why = split_reasons(values)
        if is_finite_only:
            why = reasons_of(values, why)
        rows, bad = np.array(batch.rows), np.array([reason is not None for reason in why], np.bool_)
        for row, reason in zip(batch.rows, why, strict=True):
            if reason is not None:
                refuse_all(row, reason)
        good = [indices[distinct[row]] for row in rows[~bad].tolist()]
        yield good, values.filter(pa.array(~bad)) if bad.any() else values
