"""Compute payloads in this process: in batches as in a run, without journal and files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featuremill.base import faults
from featuremill.workload import RecordFailed, Workload, compute, plugin_errors
from featuremill.workload.batches import Queue, make_batches

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
            values = compute.values_of(workload, model, chosen, batch.budget)
        except Exception as error:
            if not (isinstance(error, RecordFailed) or faults.is_out_of_memory(error)):
                with plugin_errors.attributed_to(name, "prepare, run or collect"):
                    raise
            if not compute.queue_again(queue, batch, error):
                refuse_all(batch.rows[0], compute.reason_of(error))
            continue
        queue.ran()
        plugin_errors.refuse_answer(name, values, len(chosen))
        values, why = compute.split_reasons(values)
        if is_finite_only:
            why = compute.reasons_of(values, why)
        rows, bad = np.array(batch.rows), np.array([reason is not None for reason in why], np.bool_)
        for row, reason in zip(batch.rows, why, strict=True):
            if reason is not None:
                refuse_all(row, reason)
        good = [indices[distinct[row]] for row in rows[~bad].tolist()]
        yield good, values.filter(pa.array(~bad)) if bad.any() else values
