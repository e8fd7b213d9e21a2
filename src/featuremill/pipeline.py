"""The worker's loop: one batch is prepared, one computed and one written, all at the same time.

Batches are prepared one ahead on a thread, launched here, and collected, checked and committed on
another thread, in order. Two of them at most are launched and not yet committed: so the device
waits only where writing is slower than computing, and memory stays bounded.

A batch that fails is tried again in smaller pieces, each with nothing beside it. What was launched
after it is computed again, so that the rows of a part keep their order.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featuremill import compute
from featuremill.batches import Batch, Queue
from featuremill.errors import WorkloadError
from featuremill.journal import Journal
from featuremill.watch import Watch
from featuremill.workload import RecordFailed, Workload

MOST_IN_FLIGHT = 2
"""On one device; each further one that the model is spread over has a batch of its own to be at."""
MOST_ALIKE = 8
"""Records that fail one after the other in the same words, before any went well: then it is what
is installed here, and not the records."""
MOST_TRACEBACKS = 20


class _BehindAFailureError(Exception):
    """A batch is well, but one before it failed and has to be committed first."""


class Shard:
    """The rows of a shard, and where their values go."""

    def __init__(self, rows: pa.Table, journal: Journal, values: pa.Schema) -> None:
        self.journal = journal
        self.values = values
        self.write_seconds = 0.0
        self.num_batches = 0
        self._rows = rows

    @property
    def num_bytes(self) -> int:
        """The payloads' size: of proteins, their residues."""
        return int(pc.sum(pc.binary_length(self._rows["payload"])).as_py() or 0)

    def payloads(self, rows: Sequence[int]) -> list[bytes]:
        """Return what is computed."""
        return [self._rows["payload"][row].as_py() for row in rows]

    def is_done(self, row: int) -> bool:
        """Tell whether the journal holds the row."""
        return self._rows["sha256"][row].as_py() in self.journal.rows_done

    def commit(self, rows: Sequence[int], values: pa.RecordBatch) -> None:
        """Write the values of `rows`; one that is missing or not finite makes a failed row."""
        compute.check(values, self.values, len(rows))
        self._commit(rows, values, None)

    def commit_failed(self, row: int, reason: str) -> None:
        """Write a failed row."""
        self._commit([row], compute.failed(self.values, 1), reason)

    def _commit(self, rows: Sequence[int], values: pa.RecordBatch, reason: str | None) -> None:
        start = time.monotonic()
        digests = [self._rows["sha256"][row].as_py() for row in rows]
        self.journal.commit(compute.rows_of_part(digests, values, reason))
        self.num_batches += 1
        self.write_seconds += time.monotonic() - start


class Pipeline:
    """Computes the batches of a queue with a loaded model."""

    def __init__(
        self,
        workload: Workload,
        model: Any,
        shard: Shard,
        queue: Queue,
        watch: Watch,
        note: Callable[[str], None],
        num_devices: int = 1,
    ) -> None:
        """`note` takes what only a log is for; `num_devices` hold the model together."""
        self.prepare_seconds = 0.0
        self._note = note
        self._workload = workload
        self._model = model
        self._shard = shard
        self._queue = queue
        self._watch = watch
        self._host = ThreadPoolExecutor(1, "prepare")
        self._writer = ThreadPoolExecutor(1, "collect")
        self._ahead: tuple[Batch, Future[Any]] | None = None
        self._flying: deque[tuple[Batch, Future[Exception | None]]] = deque()
        self._num_told = 0
        self._most_in_flight = MOST_IN_FLIGHT + num_devices - 1
        self._has_worked = False
        self._suspicious: list[tuple[int, str]] = []
        """Rows that failed before any went well, and why: not yet committed."""
        self._must_wait = False
        """Whether a batch failed, so that nothing behind it may be committed."""

    def run(self, tell: Callable[[], None]) -> None:
        """Compute everything in the queue; call `tell` after each step.

        Raises:
            RuntimeError: a device error; nothing can be computed on the device any more.
            OSError: the values cannot be written.
        """
        with self._host, self._writer:
            for pool in (self._host, self._writer):
                pool.submit(int).result()  # its thread starts now, while memory is left for it
            self._look_ahead()
            while self._ahead or self._flying:
                if (
                    self._settle(self._most_beside(self._ahead))
                    and self._ahead
                    and not self._launch(*self._ahead)
                ):
                    self._settle(0)
                tell()
            self._commit_suspicious()

    def _most_beside(self, ahead: tuple[Batch, Future[Any]] | None) -> int:
        """Return how many batches may be in flight when the next one is launched."""
        is_alone = bool(self._suspicious) or any(batch.is_alone for batch, _ in self._flying)
        return 0 if is_alone or not ahead or ahead[0].is_alone else self._most_in_flight - 1

    def _look_ahead(self) -> None:
        batch = self._queue.take()
        self._ahead = (batch, self._host.submit(self._prepare, batch)) if batch else None

    def _prepare(self, batch: Batch) -> Any:
        start = time.monotonic()
        payloads = self._shard.payloads(batch.rows)
        prepared = self._workload.prepare(self._model, payloads, batch.budget)
        self.prepare_seconds += time.monotonic() - start
        return prepared

    def _launch(self, batch: Batch, ahead: Future[Any]) -> bool:
        """Give the device its orders; False when that failed."""
        self._watch.arm(batch.cost + sum(before.cost for before, _ in self._flying))
        self._look_ahead()
        self._shard.journal.begin(batch.rows)
        try:
            prepared = ahead.result()
            launched = time.monotonic()
            result = self._workload.run(self._model, prepared)
        except Exception as error:
            failure: Future[Exception | None] = Future()
            failure.set_result(error)
            self._flying.append((batch, failure))
            return False
        self._flying.append((batch, self._writer.submit(self._finish, batch, result, launched)))
        return True

    def _finish(self, batch: Batch, result: Any, launched: float) -> Exception | None:
        """Wait for a batch and commit it; return the error that collecting it ended with."""
        try:
            values = self._workload.collect(self._model, result)
        except Exception as error:
            self._must_wait = True
            return error
        self._watch.done(batch.cost, launched)
        if self._must_wait:
            return _BehindAFailureError()
        self._must_wait = True  # nothing may follow when this ends with an error
        self._has_worked = True
        if self._suspicious:  # nothing else is in flight then
            self._shard.journal.abort()
            self._commit_suspicious()
            self._shard.journal.begin(batch.rows)
        self._shard.commit(batch.rows, values)
        self._must_wait = False
        return None

    def _settle(self, most: int) -> bool:
        """Wait until at most `most` batches are in flight; False when one failed and was queued
        again."""
        failed: list[tuple[Batch, Exception]] = []
        while len(self._flying) > (0 if failed else most):
            batch, finished = self._flying.popleft()
            if error := finished.result():
                failed.append((batch, error))
            else:
                self._queue.ran()
            if at_work := sum(batch.cost for batch, left in self._flying if not left.done()):
                self._watch.arm(at_work)
        if failed:
            self._queue_again(failed)
        return not failed

    def _queue_again(self, failed: list[tuple[Batch, Exception]]) -> None:
        """Put failed batches back before everything else; what failed by itself is committed."""
        for _, error in failed:
            if compute.is_device_error(error) or compute.fault_of_installation(error):
                raise error
        if self._ahead:
            self._queue.put_back(self._ahead[0])
        self._shard.journal.abort()
        self._must_wait = False
        for batch, error in reversed(failed):
            if isinstance(error, _BehindAFailureError):
                self._queue.put_back(batch)
            elif not compute.make_room(self._queue, batch, error):
                self._tell(error)
                self._fail(batch.rows[0], error)
        self._look_ahead()

    def _fail(self, row: int, error: Exception) -> None:
        """Commit a failed row; while nothing has gone well here, only keep it in mind.

        Raises:
            WorkloadError: when the first records all fail in the same words.
        """
        reason = compute.reason_of(error)
        if self._has_worked or isinstance(error, RecordFailed) or compute.is_out_of_memory(error):
            self._commit_suspicious()
            self._shard.commit_failed(row, reason)
            return
        self._suspicious.append((row, reason))
        if reason != self._suspicious[0][1]:
            self._has_worked = True
            self._commit_suspicious()
        elif len(self._suspicious) == MOST_ALIKE:
            raise WorkloadError(
                f"the first {MOST_ALIKE} records fail alike and none went well "
                f"({type(error).__name__}: {compute.one_line(error)}), so what is installed here "
                "is taken to be at fault and no record; mend that and run the same command again"
            )

    def _commit_suspicious(self) -> None:
        for row, reason in self._suspicious:
            self._shard.commit_failed(row, reason)
        self._suspicious.clear()

    def _tell(self, error: Exception) -> None:
        """Leave the first errors of single records in the log, whole; all of them could fail."""
        if isinstance(error, RecordFailed):  # no error: its reason says all
            return
        self._num_told += 1
        if self._num_told <= MOST_TRACEBACKS and not compute.is_out_of_memory(error):
            self._note("".join(traceback.format_exception(error)))
