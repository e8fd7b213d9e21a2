"""The worker: loads the model once and runs a shard's batches into the journal.

Started by the supervisor (`featuremill.extract`) with a job on standard input as JSON; answers with
one JSON line an event on standard output. It may die at any moment: what is committed stays.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from featuremill import compute, journal, machine
from featuremill import weights as weights_verb
from featuremill.batches import make_batches
from featuremill.devices import Device
from featuremill.errors import DeviceError, IntegrityError, UserError
from featuremill.shardfile import read_verified
from featuremill.store import RunFolder
from featuremill.supervisor import Job
from featuremill.workload import Weights, Workload, find_workload

LOAD_SECONDS = 3600.0
"""A model that is not there after this long never will be."""
PROGRESS_SECONDS = 1.0
OS_ERROR_STATUS = 5


def main() -> int:
    """Run the job on standard input; return the exit status."""
    job = Job(**json.loads(sys.stdin.read()))
    machine.die_with_parent(job.supervisor_pid, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()
    faulthandler.dump_traceback_later(LOAD_SECONDS, exit=True)
    # What libraries print must not mix with the events: they get standard error as their output.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        Worker(job, events).run()
    except (UserError, DeviceError, IntegrityError) as error:
        _say(events, "error", message=str(error))
        return error.exit_status
    except OSError as error:  # a full disk, a lost mount
        _say(events, "error", message=str(error), errno=error.errno, filename=error.filename)
        return OS_ERROR_STATUS
    except Exception as error:
        traceback.print_exc()
        _say(events, "error", message=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _weights_of(job: Job) -> Weights | None:
    """Return the job's weights, when they are those that the recipe was made with."""
    if job.weights is None:
        return None
    found = weights_verb.read(Path(job.weights))
    if found.sha256 != job.weights_sha256:
        raise UserError(
            f"{job.weights}: these are other weights than those the run was planned with; "
            f"delete {RunFolder(Path(job.run_folder)).plan} and run the same command again."
        )
    return found


def _say(events: TextIO, event: str, **facts: Any) -> None:
    events.write(json.dumps({"event": event, **facts}) + "\n")


class Worker:
    """One shard's extraction in this process."""

    def __init__(self, job: Job, events: TextIO) -> None:
        self.job = job
        self.events = events
        self.seconds = dict.fromkeys(("load", "prepare", "run", "write"), 0.0)
        self.device = machine.with_processors(Device(**job.device))
        folder = RunFolder(Path(job.run_folder))
        self.workload: Workload = find_workload(job.workload)
        self.options = self.workload.Options.model_validate(job.options)
        self.weights = _weights_of(job)
        self.shard = read_verified(folder.shard(job.shard))
        self.values = self.workload.schema(self.options, self.weights)
        self.costs = [
            self.workload.cost(payload.as_py(), self.options) for payload in self.shard["payload"]
        ]
        self.journal = journal.Journal(
            folder.journal(job.recipe, job.shard),
            journal.part_schema(self.values),
            self.workload.batch_cost(self.options, self.device),
        )
        self.model: Any = None
        self.oom_splits = 0
        self.num_batches = 0
        self.cost_run = 0
        self.cost_left = 0
        self._told = 0.0

    def run(self) -> None:
        """Compute every row that the journal does not hold yet, and finish the journal."""
        batches = self._batches()
        self.cost_left = sum(self._cost(rows) for rows in batches)
        self._condemn()
        if batches:
            self._load()
            with ThreadPoolExecutor(1, "prepare") as host:
                self._run_all(batches, host)
        digest = self.journal.finish()
        _say(self.events, "done", part=digest, **self._summary())

    def _batches(self) -> list[list[int]]:
        done = self.journal.rows_done
        sha256 = self.shard["sha256"].to_pylist()
        skip = {row for row, digest in enumerate(sha256) if digest in done}
        skip |= {int(row) for row in self.job.condemned}
        solo = [row for row in self.job.solo if row not in skip]
        skip.update(solo)
        planned = make_batches(self.costs, self.journal.batch_cost)
        left = [rows for batch in planned if (rows := [r for r in batch if r not in skip])]
        # The cheapest first: it tells how fast this device is before a dear one could seem to hang.
        return left[-1:] + left[:-1] + [[row] for row in solo]

    def _condemn(self) -> None:
        for row, reason in self.job.condemned.items():
            if self._digest(int(row)) not in self.journal.rows_done:
                self._commit([int(row)], compute.failed(self.values, 1), reason)

    def _load(self) -> None:
        start = time.monotonic()
        try:
            self.model = self.workload.load(self.options, [self.device], self.weights)
        except Exception as error:
            is_cuda = self.device.kind == "cuda" and isinstance(error, RuntimeError)
            if is_cuda or compute.is_out_of_memory(error):
                raise DeviceError(
                    f"{self.device.name}: loading the model failed: {error}"
                ) from error
            raise
        self.seconds["load"] = time.monotonic() - start

    def _run_all(self, batches: list[list[int]], host: ThreadPoolExecutor) -> None:
        ahead = host.submit(self._prepare, batches[0])
        for rows, following in zip(batches, [*batches[1:], []], strict=True):
            prepared, ahead = ahead, host.submit(self._prepare, following) if following else ahead
            self._arm(rows)
            self._run_batch(rows, prepared)
            self._tell_progress()

    def _prepare(self, rows: Sequence[int]) -> Any:
        start = time.monotonic()
        payloads = [self._payload(row) for row in rows]
        prepared = self.workload.prepare(self.model, payloads, self.journal.batch_cost)
        self.seconds["prepare"] += time.monotonic() - start
        return prepared

    def _run_batch(self, rows: list[int], prepared: Future[Any] | None) -> None:
        """Run `rows` and commit them; what fails is split until the culprit is alone."""
        self.journal.begin(rows)
        try:
            batch = prepared.result() if prepared else self._prepare(rows)
            start = time.monotonic()
            values = self.workload.collect(self.model, self.workload.run(self.model, batch))
        except Exception as error:
            if compute.is_device_error(error):
                raise DeviceError(f"{self.device.name}: {error}") from error
            self._split(rows, error)
            return
        self.seconds["run"] += time.monotonic() - start
        self.cost_run += self._cost(rows)
        compute.check(values, self.values, len(rows))
        self._commit(rows, values)

    def _split(self, rows: list[int], error: Exception) -> None:
        out_of_memory = compute.is_out_of_memory(error)
        self.oom_splits += out_of_memory
        if len(rows) == 1:
            kind = "out of memory" if out_of_memory else "error in the workload"
            reason = f"{kind}: {type(error).__name__}: {compute.one_line(error)}"
            self._commit(rows, compute.failed(self.values, 1), reason)
            return
        error.__traceback__ = None  # its frames would keep the batch's tensors alive
        if out_of_memory:
            compute.free_device_memory()
        size = -(-len(rows) // 2) if out_of_memory else 1
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            self._arm(part)
            self._run_batch(part, None)

    def _commit(
        self, rows: Sequence[int], values: pa.RecordBatch, reason: str | None = None
    ) -> None:
        start = time.monotonic()
        digests = [self._digest(row) for row in rows]
        self.journal.commit(compute.rows_of_part(digests, values, reason))
        self.num_batches += 1
        self.cost_left -= self._cost(rows)
        self.seconds["write"] += time.monotonic() - start

    def _digest(self, row: int) -> bytes:
        digest: bytes = self.shard["sha256"][row].as_py()
        return digest

    def _payload(self, row: int) -> bytes:
        payload: bytes = self.shard["payload"][row].as_py()
        return payload

    def _arm(self, rows: Sequence[int]) -> None:
        """Restart the timer that ends a hang: it fires even when C code holds the interpreter."""
        predicted = 0.0
        if self.cost_run:
            predicted = self._cost(rows) * self.seconds["run"] / self.cost_run
        faulthandler.dump_traceback_later(max(self.job.stall_seconds, 20 * predicted), exit=True)

    def _cost(self, rows: Sequence[int]) -> int:
        return sum(self.costs[row] for row in rows)

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            _say(
                self.events,
                "progress",
                rows=len(self.journal.rows_done),
                of=len(self.costs),
                cost_run=self.cost_run,
                cost_left=self.cost_left,
                seconds=self.seconds["run"] + self.seconds["write"],
            )

    def _summary(self) -> dict[str, Any]:
        counts = self.journal.counts
        return {
            "rows": counts.total(),
            "ok": counts["ok"],
            "failed": counts["failed"],
            "batches": self.num_batches + self.journal.num_resumed,
            "resumed_batches": self.journal.num_resumed,
            "oom_splits": self.oom_splits,
            "cost": self._cost(range(len(self.costs))),
            "batch_cost": self.journal.batch_cost,
            "seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
            "device": {
                "kind": self.device.kind,
                "uuid": self.device.uuid,
                "name": self.device.name,
            },
            "backend": getattr(self.model, "backend", ""),
            "threads": self.job.threads,
            "peak_memory_mb": machine.peak_memory_mb(self.device),
            "versions": machine.versions(),
        }


if __name__ == "__main__":
    sys.exit(main())
