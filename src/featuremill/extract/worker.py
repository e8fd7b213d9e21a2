"""The worker process: load the model once and compute a shard's batches into the journal.

The supervisor sends a job as JSON on standard input; the worker writes a JSON line for each event
to standard output. If it dies, committed rows are kept.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Container, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from featuremill.base import faults, late_pandas, this_process
from featuremill.base.devices import Device, with_processors
from featuremill.base.errors import DeviceError, IntegrityError, UserError, WorkloadError
from featuremill.extract import Job
from featuremill.extract.pipeline import Pipeline, Shard, Watch
from featuremill.lease.environment import CUDA_DEVICE_ORDER
from featuremill.store import journal
from featuremill.store.parts import read_verified
from featuremill.store.receipt import Receipt, UsedDevice
from featuremill.store.results import Results
from featuremill.workload import (
    Weights,
    Workload,
    compute,
    find_workload,
    loading,
    option_files,
    optional,
    plugin_errors,
    refuse_without_packages,
)
from featuremill.workload import weights as weights_command
from featuremill.workload.batches import Queue, make_batches
from featuremill.workload.recipe import refuse_other_versions, versions

PIECE_BYTES = 2**30
MOST_OF_MEMORY = 0.5
"""Largest size of a file to read ahead, as a share of free memory: pages of a larger file might
be evicted before they are used."""


def prepare_load(workload: Workload, devices: Sequence[Device]) -> None:
    """Start preparations for `load` on threads, while torch is imported; return at once."""
    if devices[0].kind == "cuda" and "torch" in workload.Options.PACKAGES:
        CUDA_DEVICE_ORDER.set_default("PCI_BUS_ID")  # before CUDA is initialised
        loading.beside("CUDA", partial(make_contexts, len(devices)))
    optional(workload, "start_ahead")(devices)


def start_reading(path: Path) -> None:
    """Start to read a file of weights into the page cache, for `load`."""
    if path.is_file():
        loading.beside("weights", partial(_read, path))


def make_contexts(num_gpus: int) -> None:
    """Create the primary CUDA context of each visible GPU."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    for ordinal in range(num_gpus):
        number, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuDeviceGet(ctypes.byref(number), ordinal) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)


def _read(path: Path) -> None:
    import psutil  # here: on the thread

    if path.stat().st_size > MOST_OF_MEMORY * psutil.virtual_memory().available:
        return
    with path.open("rb") as file, Path(os.devnull).open("wb") as nowhere:
        # One call reads up to 2 GiB without a copy; each return may wait for the GIL.
        while os.sendfile(nowhere.fileno(), file.fileno(), None, PIECE_BYTES):
            pass


def peak_memory_mb(devices: Sequence[Device]) -> int:
    """Return the peak memory in MiB of the fullest GPU (0 without torch), or on a CPU of the
    process."""
    if devices[0].kind == "cuda":
        torch = sys.modules.get("torch")
        if torch is None:
            return 0
        peaks = [torch.cuda.max_memory_reserved(index) for index in range(len(devices))]
        return int(max(peaks) // 2**20)
    return this_process.peak_of_process_mb()


# The supervisor handles Ctrl-C; this process ends without a traceback in its log.
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


LOAD_SECONDS = 3600.0
"""Seconds after which loading a model counts as hung."""
PROGRESS_SECONDS = 1.0
OS_ERROR_STATUS = 5


def main() -> int:
    """Run the job on the first line of standard input; return the exit status."""
    job = Job.model_validate_json(sys.stdin.readline())
    this_process.die_with_parent(job.supervisor_pid, signal.SIGKILL)
    faulthandler.enable()
    faulthandler.dump_traceback_later(LOAD_SECONDS, exit=True, file=job.stacks)
    # Output of libraries must not mix with the events: their standard output is standard error.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    end_children_with_their_parent(events.fileno())
    late_pandas.set_up()
    try:
        Worker(job, events).run()
    except DeviceError as error:
        _say(events, "error", message=str(error))
        sys.stderr.flush()
        # No normal exit: releasing the memory of a dead CUDA context can abort the process, and the
        # supervisor would take that for a crash of the records in flight.
        os._exit(error.exit_status)
    except (UserError, IntegrityError) as error:
        _say(events, "error", message=str(error))
        return error.exit_status
    except OSError as error:  # a full disk, a lost mount
        _say(events, "error", message=str(error), errno=error.errno, filename=error.filename)
        return OS_ERROR_STATUS
    except Exception as error:
        traceback.print_exc()
        advice = faults.fault_of_installation(error)
        text = f"{type(error).__name__}: {error}" + (f" ({advice})" if advice else "")
        if isinstance(error, WorkloadError):  # it is a complete message
            text = str(error)
        _say(events, "error", message=text)
        return WorkloadError.exit_status
    sys.stdin.read()  # the supervisor takes a last sample of this process, then kills it
    return 0


def end_children_with_their_parent(events: int) -> None:
    """Let each process that the workload forks end with the process that forked it, and close the
    descriptor `events` in it: the supervisor reads the events to their end, and a child may hang.
    """
    parent = os.getpid()

    def note_parent() -> None:
        nonlocal parent
        parent = os.getpid()  # before the fork: the child may start after its parent's end

    def in_child() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), events, inheritable=False)
        this_process.die_with_parent(parent, signal.SIGKILL)

    os.register_at_fork(before=note_parent, after_in_child=in_child)


def _weights_of(job: Job) -> Weights | None:
    if job.weights is None:
        return None
    weights_here = weights_command.read(Path(job.weights), job.settings.workload)
    if weights_here.sha256 != job.settings.weights_sha256:
        raise UserError(
            f"{job.weights}: these are other weights than those the run was planned with; "
            f"delete {Results(Path(job.run_folder)).plan} and run the same command again."
        )
    return weights_here


class _ForwardWarnings(logging.Handler):
    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        self._warn(record.getMessage())


def _import_torch(packages: Container[str]) -> None:
    """Import torch before the workload's `load`, if it is among the workload's `packages`.

    torch creates 250,000 permanent objects. Garbage collection takes a sixth of the import's time,
    and a tenth of a second each later time.
    """
    if "torch" not in packages:
        return
    gc.disable()
    with loading.part("torch"):
        import_module("torch")
    gc.freeze()
    gc.enable()


def _say(events: TextIO, event: str, **facts: Any) -> None:
    events.write(json.dumps({"event": event, **facts}) + "\n")


class Worker:
    def __init__(self, job: Job, events: TextIO) -> None:
        self.job = job
        self.events = events
        folder = Results(Path(job.run_folder))
        self.workload: Workload = find_workload(job.settings.workload)
        prepare_load(self.workload, job.devices)
        self.devices = with_processors(job.devices)
        refuse_other_versions(folder, job.settings, self.workload)
        self.options = self.workload.Options.model_validate(job.settings.options | job.execution)
        planned = self.options, job.settings.files, folder.plan
        self._refuse_other_files = partial(option_files.refuse_others, *planned)
        self._refuse_other_files()
        self.weights = _weights_of(job)
        rows = read_verified(folder.shard(job.shard))
        name, payloads = job.settings.workload, (each.as_py() for each in rows["payload"])
        values = plugin_errors.schema_of(name, self.workload, self.options, self.weights, ())
        self.costs = plugin_errors.costs_of(name, self.workload, payloads, self.options)
        self.journal = journal.Journal(
            folder.journal(job.recipe, job.shard),
            journal.part_schema(values),
            plugin_errors.batch_cost_of(name, self.workload, self.options, self.devices[0]),
        )
        self.shard = Shard(rows, self.journal, values, name)
        self.queue = Queue(
            self.costs,
            self.journal.batch_cost,
            job.cost_unit,
            lambda sentence: self._warn(f"{self._device_name}: {sentence}"),
        )
        self.watch = Watch(job.stall_seconds, job.stacks)
        stages = ("start", "load", "compute", "prepare", "run", "write")
        self.seconds = dict.fromkeys(stages, 0.0)
        self.model: Any = None
        self.pipeline: Pipeline | None = None
        self.warnings: list[str] = []
        self.cost_planned = 0
        self._reported_at = 0.0
        if job.spawned:
            self.seconds["start"] = time.monotonic() - job.spawned

    def run(self) -> None:
        """Compute every row that the journal lacks, and finish the journal."""
        for row, reason in self.job.quarantined.items():
            if row < len(self.costs) and not self.shard.is_done(row):
                self.shard.commit_failed(row, reason)
        is_left = self._plan()
        # The model is loaded even if no row is left, because the receipt has facts about it.
        self._load()
        if is_left:
            self._compute()
        self.cost_planned = self.watch.cost_run
        self._send("state", "finish")
        self.seconds["write"] = self.shard.write_seconds
        _say(self.events, "done", **self._receipt(self.journal.finish()).as_json())

    def _plan(self) -> bool:
        """Queue the rows that are left; return False if there are none."""
        skip = {row for row in range(len(self.costs)) if self.shard.is_done(row)}
        # A damaged log may name rows that do not exist.
        solo = [row for row in self.job.solo if row < len(self.costs) and row not in skip]
        skip.update(solo)
        planned = make_batches(self.costs, self.journal.batch_cost)
        # The cheapest batch is first: it measures the device, so that an expensive batch does not
        # count as hung. The others keep their order, also in a resumed part.
        ordered = planned[-1:] + planned[:-1]
        left = [rows for batch in ordered if (rows := [r for r in batch if r not in skip])]
        self.queue.add(left)
        self.queue.add(([row] for row in solo), is_alone=True)
        self.cost_planned = self.queue.cost_left
        self._send("state", "load")
        return bool(left or solo)

    def _load(self) -> None:
        refuse_without_packages(type(self.options))
        start = time.monotonic()
        logging.getLogger("featuremill").addHandler(_ForwardWarnings(self._warn))
        loading.watched_by(self._loads)
        if self.weights:
            self.weights = weights_command.staged(self.weights, self._warn)
            start_reading(self.weights.path)
        try:
            with plugin_errors.attributed_to(self.job.settings.workload, "load"):
                _import_torch(self.options.PACKAGES)
                self.model = self.workload.load(self.options, self.devices, self.weights)
        except Exception as error:
            if faults.is_out_of_memory(error):
                raise DeviceError(f"{self._device_name}: {self._too_large(error)}") from error
            if faults.is_device_error(error):
                raise DeviceError(
                    f"{self._device_name}: loading the model failed: {error}"
                ) from error
            raise
        self._refuse_other_files()  # again, after `load` has read them
        self.seconds["load"] = time.monotonic() - start

    def _loads(self, step: str, seconds: float) -> None:
        """Report the step of `load` before it can kill or stop this process."""
        self.watch.arm_for(seconds if step else LOAD_SECONDS)
        _say(self.events, "loads", message=step)

    def _too_large(self, error: Exception) -> str:
        where, free = "a machine with more memory", ""
        if self.devices[0].kind == "cuda":
            free = f"; {free}" if (free := compute.free_on_gpu()) else ""
            where = "a GPU with more memory"
            if optional(self.workload, "spreads")(self.options):
                more = len(self.devices) + 1
                where += f", `gpus_per_job: {more}` (a model spread over several)"
        return (
            f"memory ran out while the model was loaded ({faults.one_line(error)}{free}); "
            f"take {where} or a smaller model"
        )

    def _compute(self) -> None:
        self.watch.started = time.monotonic()
        pipeline = Pipeline(
            self.workload,
            self.model,
            self.shard,
            self.queue,
            self.watch,
            lambda text: _say(self.events, "note", message=text),
            len(self.devices),
        )
        self.pipeline = pipeline
        self._send("state", "run")
        try:
            pipeline.run(self._send_progress)
        except RuntimeError as error:
            if faults.is_device_error(error):
                raise DeviceError(f"{self._device_name}: {error}") from error
            raise
        self.seconds["compute"] = time.monotonic() - self.watch.started
        self.seconds["prepare"] = pipeline.prepare_seconds
        self.seconds["run"] = self.watch.busy_seconds
        self.seconds["waited_for_disk"] = pipeline.waited_for_disk

    @property
    def _device_name(self) -> str:
        return ", ".join(device.name for device in self.devices)

    def _warn(self, sentence: str) -> None:
        self.warnings.append(sentence)
        _say(self.events, "warning", message=sentence)

    def _send_progress(self) -> None:
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_SECONDS:
            self._reported_at = now
            self._send(
                "progress",
                "run",
                rows=len(self.journal.rows_done),
                of=len(self.costs),
                cost_run=self.watch.cost_run,
                cost_left=max(0, self.cost_planned - self.watch.cost_run),
                seconds=now - self.watch.started,
            )

    def _send(self, event: str, stage: str, **facts: Any) -> None:
        """Send an event with the progress, in the form of samples (`store.telemetry`)."""
        cost_left = max(0, self.cost_planned - self.watch.cost_run)
        state = {
            "stage": stage,
            "rows_done": len(self.journal.rows_done),
            "rows_failed": self.journal.counts["failed"],
            "cost_done": sum(self.costs) - cost_left,
            "cost_left": cost_left,
            "batches": self.shard.num_batches + self.journal.num_resumed,
            "oom_splits": self.queue.num_oom,
            "seconds": {
                "load": round(self.seconds["load"], 3),
                "prepare": round(self.pipeline.prepare_seconds if self.pipeline else 0.0, 3),
                "run": round(self.watch.busy_seconds, 3),
                "write": round(self.shard.write_seconds, 3),
            },
            "peak_memory_mb": peak_memory_mb(self.devices),
        }
        _say(self.events, event, state=state, **facts)

    def _receipt(self, part: str) -> Receipt:
        """Return this process's part of the receipt of a finished part with the digest `part`."""
        counts = self.journal.counts
        needs_torch = "torch" in self.options.PACKAGES
        distributions = [*["torch"] * needs_torch, *optional(self.workload, "VERSIONS_OF")]
        return Receipt(
            version=Receipt.NEWEST,
            shard=self.job.shard,
            recipe=self.job.recipe,
            part=part,
            rows=counts.total(),
            ok=counts["ok"],
            failed=counts["failed"],
            batches=self.shard.num_batches + self.journal.num_resumed,
            resumed_batches=self.journal.num_resumed,
            oom_splits=self.queue.num_oom,
            cost=sum(self.costs),
            payload_bytes=self.shard.num_bytes,
            batch_cost=self.journal.batch_cost,
            seconds={stage: round(value, 3) for stage, value in self.seconds.items()},
            load_seconds={name: round(value, 3) for name, value in loading.parts().items()},
            devices=[UsedDevice(**device.identity) for device in self.devices],
            backend=getattr(self.model, "backend", ""),
            warnings=self.warnings,
            **versions(self.workload),
            threads=self.job.threads,
            peak_memory_mb=peak_memory_mb(self.devices),
            versions=this_process.versions(distributions),
        )


if __name__ == "__main__":
    sys.exit(main())
