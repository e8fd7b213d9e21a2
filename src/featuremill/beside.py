"""Values of payloads from several parallel processes, without a run; their number and devices.

Each process is the command `extract` for one shard. So a record that ends its worker fails alone, a
failed device is replaced, and GPUs are leased, as in a run.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from featuremill.base import environment, log, this_process
from featuremill.base.devices import DeviceChoice, devices_for
from featuremill.base.errors import UserError, error_of
from featuremill.base.words import counted
from featuremill.lease import Request, count_slots
from featuremill.lease.environment import DEVICES
from featuremill.plan.shard_cost import UNKNOWN_COST
from featuremill.plan.shards import cuts, write_new
from featuremill.store import journal_log
from featuremill.store.parts import SHARD, Part, open_part
from featuremill.store.plan import Counts, Lengths, Plan, PlannedShard, Settings
from featuremill.store.results import Results
from featuremill.store.weights_file import WeightsFile

MOST_SHARDS_A_JOB = 4
"""More shards even out devices of different speed, and each loads the model once more."""
MOST_KILLS = 3
"""Killed jobs of one shard after which the call fails."""
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 30.0
"""How long a stopped job may take to end its worker."""
Gpus = int | str | Sequence[int | str]
"""A number of GPUs, "all", or a list of GPUs."""
GPU = re.compile(r"cuda:(\d+)")
NO_GPU = (
    "{}: no NVIDIA GPU can be used here; `featuremill doctor` shows why, or leave it out: "
    "workers=4 computes in 4 processes on the CPU."
)
WAITING = re.compile(r": (waiting for .*)")


class Work(NamedTuple):
    """The payloads to compute, and how."""

    settings: Settings
    execution: dict[str, Any]
    """Options that do not change the values."""
    cost_unit: str
    weights: WeightsFile | None
    payloads: Sequence[bytes]
    """Distinct ones, in the order of their sha256."""
    costs: Sequence[int]


class Jobs(NamedTuple):
    """The number of parallel processes, and their devices."""

    number: int
    device: DeviceChoice
    devices: str = ""
    """GPUs to choose among, with commas between them; empty for all."""


def jobs_of(device: str, gpus: Gpus | None, workers: int | None) -> Jobs:
    """Return the processes that the arguments of a call ask for, 0 of them for this process; raise
    UserError if an argument is wrong, or there is no such GPU."""
    is_free = device == "auto" or (device == "cpu" and gpus is None)
    values = {"gpus": gpus, "workers": workers, "device": None if is_free else device}
    named = [f"{key}={value!r}" for key, value in values.items() if value is not None]
    if len(named) > 1:
        raise UserError(f"{' and '.join(named)}: both say where to compute; leave one out.")
    if workers is not None:
        if type(workers) is not int or workers < 1:
            raise UserError(f"workers={workers!r}: give a number of processes of at least 1.")
        return Jobs(workers, "cpu")
    if gpus is not None:
        return _on_gpus(gpus)
    if not (numbered := GPU.fullmatch(str(device))):
        if device == "cuda" and devices_for("auto")[0].kind == "cpu":
            raise UserError(NO_GPU.format("device='cuda'"))
        return Jobs(0, cast(DeviceChoice, device))  # the config refuses other values
    visible = [each for each in devices_for("auto") if each.kind == "cuda"]
    index = int(numbered[1])
    if index >= len(visible):
        raise UserError(
            f"device={device!r}: this process sees {counted(len(visible), 'GPU')}; `featuremill "
            "doctor` shows why."
        )
    return Jobs(min(index, 1), "cuda", visible[index].uuid if index else "")


def _on_gpus(gpus: Gpus) -> Jobs:
    named, devices, count = f"gpus={gpus!r}", "", None
    if isinstance(gpus, int) and not isinstance(gpus, bool) and gpus > 0:
        count = gpus
    elif isinstance(gpus, list | tuple) and gpus:
        devices = ",".join(str(each).removeprefix("cuda:") for each in gpus)
    elif gpus != "all":
        raise UserError(
            f'{named}: give a number of GPUs, "all", or a list of numbers or UUIDs such as [0, 2].'
        )
    request = Request.from_environment({"devices": devices or None})
    num_gpus = count_slots(request) // request.slots_per_gpu
    if not num_gpus:
        raise UserError(NO_GPU.format(named))
    if (count or 0) > num_gpus:
        raise UserError(f"{named}: {counted(num_gpus, 'GPU')} can be used here; give fewer.")
    return Jobs((count or num_gpus) * request.slots_per_gpu, "cuda", devices)


def parts(
    folder: Path,
    work: Work,
    jobs: Jobs,
    recipe: str,
    progress: Callable[[int], object],
    report: Callable[[str], object],
) -> Iterator[Part]:
    """Compute `work` in an empty `folder`, and yield the part of each shard once all are there.

    `progress` gets the number of computed payloads, `report` a sentence about each wait.

    Raises:
        UserError: the request cannot be met.
        DeviceError: no device is left.
        WorkloadError: the workload fails outside a record.
    """
    results = Results(folder)
    plan = _planned(results, work, jobs, recipe)
    _Running(results, plan, jobs, progress, report).finish()
    for shard in plan.shards:
        part = open_part(results, plan, shard)
        assert part
        yield part


def _planned(results: Results, work: Work, jobs: Jobs, recipe: str) -> Plan:
    results.store.mkdir()
    if work.weights:
        work.weights.write(results.root / "weights.json")
    cost, number = sum(work.costs), len(work.payloads)
    rounds = min(MOST_SHARDS_A_JOB, max(1, cost // (UNKNOWN_COST * jobs.number)))
    num_shards = max(1, min(number, rounds * jobs.number))
    digests = [hashlib.sha256(payload).digest() for payload in work.payloads]
    table = pa.table([digests, work.payloads], schema=SHARD)
    costs = [(0, np.array(work.costs, np.int64))]
    shards = [
        write_new(results, table.slice(piece.start, piece.end - piece.start), piece.cost)
        for (piece,) in cuts(costs, cost, number, cost / num_shards)
    ]
    settings = work.settings
    plan = Plan(
        run=results.root.name,
        workload=settings.workload,
        workload_version=settings.version,
        cost_unit=work.cost_unit,
        recipe=recipe,
        settings=settings,
        execution=work.execution,
        device=jobs.device,
        slots=jobs.number,
        weights=str(results.root / "weights.json") if work.weights else None,
        inputs=[],
        counts=Counts(input=number, refused=0, duplicate=0, planned=number, unique=number),
        lengths=Lengths(total=0, longest=0),
        records_sha256="",
        shards=shards,
    )
    plan.write(results.plan)
    return plan


class _Running:
    def __init__(
        self,
        results: Results,
        plan: Plan,
        jobs: Jobs,
        progress: Callable[[int], object],
        report: Callable[[str], object],
    ) -> None:
        self._results, self._plan, self._jobs = results, plan, jobs
        self._progress, self._report = progress, report
        self._waiting = list(plan.shards)
        self._running: dict[str, tuple[subprocess.Popen[bytes], PlannedShard]] = {}
        self._kills = dict.fromkeys((shard.shard for shard in plan.shards), 0)
        self._num_finished = self._num_reported = 0
        self._reported = set[str]()

    def finish(self) -> None:
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._jobs.number:
                    self._start(self._waiting.pop(0))
                time.sleep(POLL_SECONDS)
                for process, shard in list(self._running.values()):
                    if process.poll() is not None:
                        self._ended(process.returncode, shard)
                self._report_progress()
        finally:
            for process, _ in self._running.values():
                process.terminate()
            for process, _ in self._running.values():
                try:
                    process.wait(PATIENCE_SECONDS)
                except subprocess.TimeoutExpired:  # its worker dies with it
                    process.kill()
                    process.wait()

    def _log(self, shard: PlannedShard) -> Path:
        return self._results.logs / f"{shard.shard}.log"

    def _start(self, shard: PlannedShard) -> None:
        threads = max(1, this_process.num_cores() // self._jobs.number)
        command = [sys.executable, "-m", "featuremill", "extract", str(self._results.root)]
        command += [shard.shard, "--threads", str(threads), "--log-file", str(self._log(shard))]
        variables = {environment.DIE_WITH_PARENT.name: this_process.name_of_process()}
        if self._jobs.devices:
            variables[DEVICES.name] = self._jobs.devices
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment.of_child(variables),
        )
        self._running[shard.shard] = process, shard

    def _ended(self, status: int, shard: PlannedShard) -> None:
        del self._running[shard.shard]
        if status == 0:
            self._num_finished += shard.records
            return
        self._kills[shard.shard] += status < 0
        if status < 0 and self._kills[shard.shard] < MOST_KILLS:
            self._waiting.append(shard)  # what it computed is in its journal
            return
        path = self._log(shard)
        message = log.last_error(path) or f"a job ended with status {status}"
        error = error_of(status, message.partition("; see ")[0])
        if path.exists():
            error.add_note(path.read_text("utf-8", "replace"))
        raise error

    def _report_progress(self) -> None:
        num_done = self._num_finished
        for _, shard in self._running.values():
            journal = self._results.journal(self._plan.recipe, shard.shard)
            rows = journal_log.num_rows_in(journal)
            num_done += rows
            if not rows and self._log(shard).exists():
                text = self._log(shard).read_text("utf-8", "replace")
                for sentence in WAITING.findall(text):
                    if sentence not in self._reported:
                        self._reported.add(sentence)
                        self._report(sentence)
        # A job ends a moment after its journal became a part.
        if num_done > self._num_reported:
            self._num_reported = num_done
            self._progress(num_done)
