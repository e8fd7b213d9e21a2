"""The supervisor of a shard's workers: restarts them, and separates bad records from bad devices.

When a worker dies with batches in flight, their records are suspected: the next worker computes
each of them alone, and a record that ends a worker alone becomes a failed row. When a worker dies
with nothing in flight, or of a device error before any batch succeeded, the device is suspected. An
interruption counts against no record.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

from featuremill.base import environment, reasons, this_process
from featuremill.base import log as logs
from featuremill.base.devices import devices_for
from featuremill.base.errors import DeviceError, IntegrityError, UserError, WorkloadError
from featuremill.base.progress import Progress
from featuremill.extract import Job, Trouble
from featuremill.extract.recorder import Recorder
from featuremill.lease import Lease, Request, lease
from featuremill.store import journal_log, lock_holder
from featuremill.store.receipt import Receipt

MAX_FAILURES_A_DEVICE = 2
MAX_DEATHS_IN_A_ROW = 10
"""Deaths without a committed batch between them, after which the shard fails."""
LAST_MOMENT_SECONDS = 1.0
"""Pause after a SIGKILL of the worker. If a scheduler or the kernel (out of memory) kills the whole
job, this process ends within it, before it counts the death against a record."""
LAST_WORDS_SECONDS = 5.0
"""Longest wait for the end of a dead worker's standard error, which its children may keep open."""
WHEN_IT_HUNG = (
    "was ended, as it hung (the log has the stack; if a slow device was taken for a hang, set "
    "FEATUREMILL_STALL_SECONDS higher)"
)
THREAD_VARIABLES = (
    environment.OMP_NUM_THREADS,
    environment.MKL_NUM_THREADS,
    environment.OPENBLAS_NUM_THREADS,
)
log = logging.getLogger("featuremill.extract")


class _WorkerDiedError(Exception):
    def __init__(
        self, manner: str, blames_device: bool = False, kind: reasons.Kind = reasons.CRASH
    ) -> None:
        super().__init__(manner)
        self.blames_device = blames_device
        self.reason = kind.reason(manner)
        """The reason of a record that failed because it ended a worker alone in this way."""


class Supervisor:
    """Runs workers on one shard until its journal is finished."""

    def __init__(
        self,
        job: Job,
        journal_path: Path,
        device_choice: Any,
        wanted: Request,
        lock: int,
        recorder: Recorder,
    ) -> None:
        self.num_deaths = 0
        self.seconds_waited = 0.0
        self._job = job
        self._log_path = journal_path.with_suffix(".log")
        self._choice = device_choice
        self._wanted = wanted
        self._lock = lock
        self._recorder = recorder
        self._solo: set[int] = set()
        self._quarantined: dict[int, str] = {}
        self._failures: Counter[str] = Counter()
        self._name = f"shard {job.shard[:8]}"

    def run(self) -> Receipt:
        """Return the receipt of the worker that finished the shard, with the samples of the job.

        Raises:
            UserError: if the worker cannot fulfil the request.
            WorkloadError: if the workload fails outside a record.
            DeviceError: if no device is left, or too many workers die in a row.
        """
        state = journal_log.read_log(self._log_path)
        for rows in state.strikes if state else []:  # in flight at an earlier job's deaths
            self._suspect(rows, reasons.CRASH.reason("in an earlier job"))
        deaths_in_a_row = 0
        manner = ""
        while True:
            commits = self._num_commits()
            avoid = self._unusable_devices(manner)
            lock_holder.say(self._lock, devices=[])
            self._recorder.record_wait()
            waiting_since = time.monotonic()
            with lease(self._choice, self._wanted, self._failures, avoid) as held:
                self.seconds_waited += time.monotonic() - waiting_since
                lock_holder.say(self._lock, devices=[*map(str, held.devices)])
                self._recorder.record_lease(held)
                try:
                    receipt = self._run_worker(held)
                except _WorkerDiedError as death:
                    self.num_deaths += 1
                    self._blame(held, death, self._num_commits() > commits)
                    manner = str(death)
                else:
                    held.worked()
                    return receipt
            deaths_in_a_row = 1 if self._num_commits() > commits else deaths_in_a_row + 1
            if deaths_in_a_row > MAX_DEATHS_IN_A_ROW:
                raise DeviceError(
                    f"{self._name}: {deaths_in_a_row} workers died in a row: {manner}."
                )
            log.warning("%s: the worker %s; starting another", self._name, manner)

    def _suspect(self, rows: tuple[int, ...], reason: str) -> None:
        """Have each of `rows` computed alone; one that was alone already fails with `reason`."""
        if len(rows) == 1 and rows[0] in self._solo:
            self._quarantined[rows[0]] = reason
        self._solo.update(rows)

    def _blame(self, held: Lease, death: _WorkerDiedError, worked_before: bool) -> None:
        """Count a death against the rows in flight, the device, or both.

        A device error counts against a record if the record was alone, and the same worker had
        committed other batches on the device before.
        """
        state = journal_log.read_log(self._log_path)
        rows = state.in_flight if state else ()
        is_alone = len(rows) == 1 and rows[0] in self._solo
        if not rows or (death.blames_device and not (is_alone and worked_before)):
            self._failures.update(device.uuid for device in held.devices)
            held.failed(f"{self._name}: the worker {death}")
        if rows and not (death.blames_device and is_alone and not worked_before):
            journal_log.add_strike(self._log_path, rows)
            self._suspect(rows, death.reason)

    def _num_commits(self) -> int:
        state = journal_log.read_log(self._log_path)
        return len(state.commits) if state else 0

    def _unusable_devices(self, manner: str) -> list[str]:
        """Return the UUIDs of devices that failed too often; `manner` describes the last death."""
        given_up = [u for u, count in self._failures.items() if count >= MAX_FAILURES_A_DEVICE]
        allowed = devices_for(self._choice) if given_up else []
        if given_up and all(device.uuid in given_up for device in allowed):
            names = ", ".join(map(str, allowed))
            raise DeviceError(
                f"{self._name}: every device failed {MAX_FAILURES_A_DEVICE} times ({names}); "
                f"the last worker {manner}; see {logs.log_or_screen()}, then run the same command "
                "again: it continues from here."
            )
        return given_up

    def _run_worker(self, held: Lease) -> Receipt:
        """Run one worker to its end; return its receipt.

        Raises:
            _WorkerDiedError: if it died; the message describes how.
        """
        # Output of libraries and crashes goes to the log file, or to the screen if there is none.
        log_level = logging.DEBUG if logs.keeps_details() else logging.WARNING
        # Beside the journal: that folder is writable, unlike some /tmp.
        with tempfile.TemporaryFile("w+", dir=self._log_path.parent, errors="replace") as stacks:
            changes = {
                "devices": list(held.devices),
                "solo": sorted(self._solo),
                "quarantined": self._quarantined,
                "stacks": stacks.fileno(),
                "spawned": time.monotonic(),
            }
            job = self._job.model_copy(update=changes)
            with this_process.starting_child():
                worker = subprocess.Popen(
                    [sys.executable, "-m", "featuremill.extract.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    pass_fds=[self._lock, job.stacks, *held.descriptors],
                    env=environment.of_child(held.environment | _threads(job.threads)),
                )
            arguments = worker.stderr, log_level
            listener = threading.Thread(target=_log_lines, args=arguments, daemon=True)
            listener.start()
            self._recorder.record_worker(worker.pid)
            try:
                return self._follow(worker, job)
            finally:
                worker.kill()
                worker.wait()
                listener.join(LAST_WORDS_SECONDS)
                stacks.seek(0)
                _log_lines(stacks, log_level)
                assert worker.stdin and worker.stdout
                worker.stdout.close()
                with contextlib.suppress(BrokenPipeError):
                    worker.stdin.close()

    def _follow(self, worker: subprocess.Popen[str], job: Job) -> Receipt:
        assert worker.stdin and worker.stdout
        with contextlib.suppress(BrokenPipeError):  # the worker may have died
            worker.stdin.write(f"{job.model_dump_json()}\n")
            worker.stdin.flush()
        trouble, at = Trouble(), ""
        progress = Progress(log, self._name, job.cost_unit, has_others_beside=True)
        for line in worker.stdout:
            event = json.loads(line)
            kind = event.pop("event")
            self._recorder.record_progress(event.pop("state", {}))
            if kind == "state":
                continue
            if kind == "progress":
                progress.show(event)
            elif kind == "warning":
                log.warning("%s: %s", self._name, event["message"])
            elif kind == "loads":
                at = f", trying {event['message']}" if event["message"] else ""
            elif kind == "note":
                log.debug("worker: %s", event["message"])
            elif kind == "done":  # the journal is synced, so the exit status does not matter
                receipt = Receipt.model_validate(event)
                return receipt.model_copy(update={"telemetry": self._recorder.finish()})
            else:
                trouble = Trouble.model_validate(event)
        status = worker.wait()
        message = trouble.message
        if status == UserError.exit_status:
            raise UserError(message)
        if status == IntegrityError.exit_status:
            raise IntegrityError(message)
        if trouble.errno is not None:
            raise OSError(trouble.errno, os.strerror(trouble.errno), trouble.filename)
        if status == WorkloadError.exit_status and message:
            raise WorkloadError(
                f"{self._name}: {message.rstrip('.')}; {logs.log_or_screen()} has the traceback."
            )
        if -status in this_process.INTERRUPTS:
            raise SystemExit(128 - status)
        if status == DeviceError.exit_status:
            raise _WorkerDiedError(f"gave up its device: {message}", blames_device=True)
        if status > 0 and os.fstat(job.stacks).st_size:
            raise _WorkerDiedError(WHEN_IT_HUNG + at, kind=reasons.HANG)
        if -status == signal.SIGKILL:
            time.sleep(LAST_MOMENT_SECONDS)
        manner = f"left with status {status}"
        if status < 0:
            manner = f"was killed by {signal.Signals(-status).name}"
        raise _WorkerDiedError(manner + at)


def _log_lines(pipe: IO[str], level: int) -> None:
    with pipe:
        for line in pipe:
            log.log(level, "worker: %s", line.rstrip())


def _threads(count: int) -> dict[str, str]:
    # Threads that spin at OpenMP's barriers slow down other programs: with three other jobs on 2
    # cores, the demo took 190 s with spinning and 79 s with sleeping threads.
    waiting = environment.OMP_WAIT_POLICY
    wait = {waiting.name: waiting.text() or "passive"}
    return {**{variable.name: str(count) for variable in THREAD_VARIABLES}, **wait}
