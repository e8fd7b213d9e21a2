"""The worker's pipeline: one batch is prepared, one computed and one written at the same time.

One thread prepares the next batch, unless a batch has to be alone. The loop launches it. A second
thread collects and checks it, and a third commits it, in order. At most two batches are launched
and not committed, so memory is bounded, and the device waits only if writing is slower than
computing. Collecting never waits for the disk, so the time when the device finished, and how long
it then waited for the disk, are known.

A failed batch is computed again in smaller pieces, with no other batch in flight. Batches launched
after it are computed again, so that the rows of a part keep their order.
"""

from __future__ import annotations

import contextlib
import faulthandler
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from featuremill.base import faults
from featuremill.base.arrays import digests
from featuremill.base.errors import WorkloadError
from featuremill.store.journal import Journal
from featuremill.workload import RecordFailed, Workload, compute, plugin_errors
from featuremill.workload.batches import Batch, Queue

SLOWER = 20
"""A batch counts as hung after this many times the predicted seconds."""


class Watch:
    """Seconds and cost of computed batches, and the timer that ends a hung process."""

    def __init__(self, stall_seconds: float, stacks: int) -> None:
        """`stacks` is the descriptor of the file for stack traces of a hung process."""
        self.started = time.monotonic()
        self.busy_seconds = 0.0
        self.cost_run = 0
        self._stall_seconds = stall_seconds
        self._stacks = stacks
        self.done_at = 0.0
        """The time when the last batch was complete."""
        self._first = (0.0, 0)
        """Seconds and cost of the first batch, which includes one-time work."""

    def arm(self, cost: int) -> None:
        """Restart the timer for batches of this total cost; it fires even if the GIL is held."""
        seconds, cost_run = self.busy_seconds, self.cost_run
        if cost_run > self._first[1]:  # without the first batch, which includes one-time work
            seconds, cost_run = seconds - self._first[0], cost_run - self._first[1]
        predicted = cost * seconds / cost_run if cost_run else 0.0
        self.arm_for(max(self._stall_seconds, SLOWER * predicted))

    def arm_for(self, seconds: float) -> None:
        """Restart the timer, to fire after `seconds`."""
        # The timer is a thread. If there is no memory to start it (some schedulers limit the
        # address space), this batch is not timed.
        with contextlib.suppress(RuntimeError):
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._stacks)

    def done(self, cost: int, launched: float) -> None:
        """Record that the batch launched at time `launched` is complete; call in order.

        For a part of that time, the device may have computed the batch before it.
        """
        now = time.monotonic()
        self.busy_seconds += max(0.0, now - max(launched, self.done_at))
        self.cost_run += cost
        self.done_at = now
        if not self._first[1]:
            self._first = (self.busy_seconds, self.cost_run)


MOST_IN_FLIGHT = 2
"""Largest number of batches in flight on one device; each further device of the model adds one."""
MOST_ALIKE = 8
"""If this many first records fail with the same text, the installation is the cause."""
MOST_TRACEBACKS = 20


class _BehindAFailureError(Exception):
    """A batch before this one failed, so this one is not committed."""


class Shard:
    """The rows of a shard, and the journal for their values, the columns of a `workload`."""

    def __init__(
        self, rows: pa.Table, journal: Journal, values: pa.Schema, workload: str = ""
    ) -> None:
        self._workload = workload
        self.journal = journal
        self.values = values
        self.write_seconds = 0.0
        self.num_batches = 0
        self._payloads = rows["payload"]
        self._sha256 = digests(rows["sha256"]).tobytes()

    @property
    def num_bytes(self) -> int:
        """Bytes of all payloads; for proteins, their residues."""
        return sum(len(payload.as_buffer()) for payload in self._payloads)

    def payloads(self, rows: Sequence[int]) -> list[bytes]:
        # `take` would import pyarrow.compute.
        return [self._payloads[row].as_py() for row in rows]

    def is_done(self, row: int) -> bool:
        return self._digest(row) in self.journal.rows_done

    def _digest(self, row: int) -> bytes:
        return self._sha256[32 * row : 32 * row + 32]

    def checked(self, rows: Sequence[int], values: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to commit; rows with a reason or non-finite values are failed."""
        plugin_errors.refuse_answer(self._workload, values, len(rows), self.values)
        values, reasons = compute.split_reasons(values)
        return self._of_part(rows, values, reasons)

    def commit_failed(self, row: int, reason: str) -> None:
        self.commit(self._of_part([row], compute.failed(self.values, 1), [reason]))

    def _of_part(
        self, rows: Sequence[int], values: pa.RecordBatch, reasons: Sequence[str | None]
    ) -> pa.RecordBatch:
        return compute.rows_of_part([self._digest(row) for row in rows], values, reasons)

    def commit(self, batch: pa.RecordBatch) -> None:
        start = time.monotonic()
        self.journal.commit(batch)
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
        """`note` gets messages for the log only; the model is spread over `num_devices`."""
        self.prepare_seconds = 0.0
        self.waited_for_disk = 0.0
        """Seconds in which the device was idle, and the next batch waited only for the disk."""
        self._note = note
        self._workload = workload
        self._model = model
        self._shard = shard
        self._queue = queue
        self._watch = watch
        self._host = ThreadPoolExecutor(1, "prepare")
        self._collector = ThreadPoolExecutor(1, "collect")
        self._writer = ThreadPoolExecutor(1, "write")
        self._ahead: tuple[Batch, Future[Any] | None] | None = None
        """The next batch; without a Future if it must not be prepared beside another batch."""
        self._flying: deque[tuple[Batch, Future[Exception | None]]] = deque()
        self._num_launched = self._num_collected = 0
        self._prepared_at = 0.0
        self._num_logged = 0
        self._most_in_flight = MOST_IN_FLIGHT + num_devices - 1
        self._has_worked = False
        self._suspicious: list[tuple[int, str]] = []
        """Uncommitted rows that failed before any row succeeded, with reasons."""
        self._must_wait = False
        """Whether a batch failed, so that no later batch may be committed."""

    def run(self, report: Callable[[], None]) -> None:
        """Compute all batches of the queue; call `report` after each step.

        Raises:
            RuntimeError: if the device failed and cannot compute any more.
            OSError: if values cannot be written.
        """
        with self._host, self._collector, self._writer:
            for pool in (self._host, self._collector, self._writer):
                pool.submit(int).result()  # start the thread while there is memory
            self._look_ahead()
            while self._ahead or self._flying:
                in_flight = [*self._flying, self._ahead] if self._ahead else []
                is_alone = self._suspicious or any(batch.is_alone for batch, _ in in_flight)
                most = self._most_in_flight - 1 if self._ahead and not is_alone else 0
                if self._settle(most) and self._ahead and not self._launch(*self._ahead):
                    self._settle(0)
                report()
            self._commit_suspicious()

    def _look_ahead(self, beside: Batch | None = None) -> None:
        """Take the next batch and prepare it, unless it or `beside`, launched now, is alone."""
        batch = self._queue.take()
        is_alone = self._suspicious or any(each and each.is_alone for each in (batch, beside))
        self._ahead = (batch, None if is_alone else self._begin(batch)) if batch else None

    def _begin(self, batch: Batch) -> Future[Any]:
        self._shard.journal.begin(batch.rows)  # first, as `prepare` may also end this process
        return self._host.submit(self._prepare, batch)

    def _prepare(self, batch: Batch) -> Any:
        start = time.monotonic()
        payloads = self._shard.payloads(batch.rows)
        prepared = self._workload.prepare(self._model, payloads, batch.budget)
        self._prepared_at = time.monotonic()
        self.prepare_seconds += self._prepared_at - start
        return prepared

    def _launch(self, batch: Batch, ahead: Future[Any] | None) -> bool:
        """Launch a batch; return False if that failed."""
        self._watch.arm(batch.cost + sum(before.cost for before, _ in self._flying))
        begun = ahead or self._begin(batch)
        self._look_ahead(batch)
        try:
            prepared = begun.result()
            launched = time.monotonic()
            result = self._workload.run(self._model, prepared)
        except Exception as error:
            failure: Future[Exception | None] = Future()
            failure.set_result(error)
            self._flying.append((batch, failure))
            return False
        self._num_launched += 1
        collected = self._collector.submit(self._collect, batch, result, launched)
        self._flying.append((batch, self._writer.submit(self._write, batch, collected)))
        return True

    def _collect(self, batch: Batch, result: Any, launched: float) -> pa.RecordBatch | Exception:
        """Wait for a batch and check it; return the rows to commit, or the error of `collect`."""
        try:
            values = self._workload.collect(self._model, result)
            self._watch.done(batch.cost, launched)
        except Exception as error:
            return error
        finally:
            self._num_collected += 1
        return self._shard.checked(batch.rows, values)

    def _write(
        self, batch: Batch, collected: Future[pa.RecordBatch | Exception]
    ) -> Exception | None:
        """Commit a collected batch; return the error, if there is one."""
        is_behind, self._must_wait = self._must_wait, True  # until this batch is committed
        rows = collected.result()
        if isinstance(rows, Exception):
            return rows
        if is_behind:
            return _BehindAFailureError()
        self._has_worked = True
        if self._suspicious:  # no other batch is in flight then
            self._shard.journal.abort()
            self._commit_suspicious()
            self._shard.journal.begin(batch.rows)
        self._shard.commit(rows)
        self._must_wait = False
        return None

    def _settle(self, most: int) -> bool:
        """Wait until at most `most` batches are in flight; return False if one failed and was
        queued again."""
        failed: list[tuple[Batch, Exception]] = []
        while len(self._flying) > (0 if failed else most):
            batch, finished = self._flying.popleft()
            if error := self._waited_for(finished):
                failed.append((batch, error))
            else:
                self._queue.ran()
            if at_work := sum(batch.cost for batch, left in self._flying if not left.done()):
                self._watch.arm(at_work)
        if failed:
            self._queue_again(failed)
        return not failed

    def _waited_for(self, finished: Future[Exception | None]) -> Exception | None:
        """Wait until a batch is committed; return its error. Adds to `waited_for_disk`."""
        since = time.monotonic()
        error = finished.result()
        is_ready = bool(self._ahead and self._ahead[1] and self._ahead[1].done())
        if is_ready and self._num_collected == self._num_launched:
            idle = time.monotonic() - max(since, self._watch.done_at, self._prepared_at)
            self.waited_for_disk += max(0.0, idle)
        return error

    def _queue_again(self, failed: list[tuple[Batch, Exception]]) -> None:
        """Queue failed batches again at the front; commit the rows that failed alone."""
        for _, error in failed:
            if faults.is_device_error(error) or faults.fault_of_installation(error):
                raise error
        if self._ahead:
            self._queue.put_back(self._ahead[0])
        self._shard.journal.abort()
        self._must_wait = False
        for batch, error in reversed(failed):
            if isinstance(error, _BehindAFailureError):
                self._queue.put_back(batch)
            elif not compute.queue_again(self._queue, batch, error):
                self._fail(batch.rows[0], error)
        self._look_ahead()

    def _fail(self, row: int, error: Exception) -> None:
        """Commit a failed row, and log its traceback if it is one of the first. Before any row has
        succeeded, keep it uncommitted.

        Raises:
            WorkloadError: if the first records all fail with the same text.
        """
        if not isinstance(error, RecordFailed):
            self._num_logged += 1
            if self._num_logged <= MOST_TRACEBACKS and not faults.is_out_of_memory(error):
                self._note("".join(traceback.format_exception(error)))
        reason = compute.reason_of(error)
        if self._has_worked or isinstance(error, RecordFailed) or faults.is_out_of_memory(error):
            self._commit_suspicious()
            self._shard.commit_failed(row, reason)
            return
        self._suspicious.append((row, reason))
        if reason != self._suspicious[0][1]:
            self._has_worked = True
            self._commit_suspicious()
        elif len(self._suspicious) == MOST_ALIKE:
            raise WorkloadError(
                f"the first {MOST_ALIKE} records all fail in the same way "
                f"({type(error).__name__}: {faults.one_line(error)}), so the installation is at "
                "fault, not the records; fix it and run the same command again"
            )

    def _commit_suspicious(self) -> None:
        for row, reason in self._suspicious:
            self._shard.commit_failed(row, reason)
        self._suspicious.clear()
