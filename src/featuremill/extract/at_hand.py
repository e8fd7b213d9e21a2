"""Values of payloads at hand: the batches of a run, without its journal, files and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featuremill.extract import compute
from featuremill.extract.batches import Queue, make_batches
from featuremill.workload import RecordFailed, Workload

Refuse = Callable[[int, str], object]
"""Called with a row that cannot be computed, and why; may raise."""


def values_in_batches(
    workload: Workload,
    model: Any,
    payloads: Sequence[bytes],
    costs: Sequence[int],
    budget: int,
    refuse: Refuse,
    warn: Callable[[str], object],
) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """Yield rows and their values until all are computed or refused.

    Where memory runs out, batches get smaller, which `warn` hears once.
    """
    queue = Queue(costs, budget, workload.COST_UNIT, warn)
    queue.add(make_batches(costs, budget), is_alone=True)
    while batch := queue.take():
        chosen = [payloads[row] for row in batch.rows]
        try:
            values = compute.values_of(workload, model, chosen, batch.budget)
        except Exception as error:
            if not (isinstance(error, RecordFailed) or compute.is_out_of_memory(error)):
                raise
            if not compute.make_room(queue, batch, error):
                refuse(batch.rows[0], compute.reason_of(error))
            continue
        queue.ran()
        rows, bad = np.array(batch.rows), compute.not_finite(values)
        for row in rows[bad].tolist():
            refuse(row, compute.NOT_FINITE)
        good = rows[~bad].tolist()
        yield good, values.filter(pa.array(~bad)) if bad.any() else values
