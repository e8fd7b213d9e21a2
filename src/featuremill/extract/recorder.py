"""Telemetry of a shard's job: the supervisor reports events; a thread takes samples and writes.

No function raises, or waits for a disk or a driver longer than `LAST_SECONDS`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pynvml

from featuremill.base.devices import Device
from featuremill.lease import Lease
from featuremill.lease.nvml import Gauges, gauges_of, nvml, tell
from featuremill.store import journal_log
from featuremill.store.receipt import Usage
from featuremill.store.telemetry import (
    EVERY_SECONDS,
    WAITING_SECONDS,
    Attempt,
    Writer,
    read,
    seconds_between,
)

STALE_SECONDS = 5.0
"""The age after which readings are ignored, and the longest gap over which power is integrated."""
LAST_CALL_SECONDS = 0.25
log = logging.getLogger("featuremill.extract")


class Poller:
    """Reads the GPUs with these UUIDs on a thread, and keeps the last values. It adds the energy of
    each GPU to `energy_j` under its UUID."""

    def __init__(self, uuids: Sequence[str], energy_j: dict[str, float]) -> None:
        self._uuids = uuids
        self._energy_j = energy_j
        self._last: dict[str, tuple[float, Gauges]] = {}
        self._read_at = -STALE_SECONDS
        self._read: list[dict[str, Any]] = []
        self._num_polls = 0
        self._is_stopped = False
        self._has_changed = threading.Condition()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def latest(self) -> list[dict[str, Any]]:
        """Return the values of the GPUs; empty if NVML has not answered for STALE_SECONDS."""
        with self._has_changed:
            is_stale = time.monotonic() - self._read_at > STALE_SECONDS
            return [] if is_stale else self._read

    def refresh(self, seconds: float) -> None:
        """Read the GPUs now; wait at most `seconds` for the answer."""
        with self._has_changed:
            before = self._num_polls
            self._wake.set()
            self._has_changed.wait_for(lambda: self._num_polls > before, seconds)

    def stop(self) -> None:
        """Stop after the current call returns."""
        self._is_stopped = True
        self._wake.set()

    def is_stuck(self) -> bool:
        """Return whether a call of NVML has not returned since `stop`."""
        self._thread.join(LAST_CALL_SECONDS)
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            with nvml() as is_there:
                while is_there and not self._is_stopped:
                    self._poll()
                    self._wake.wait(EVERY_SECONDS)
                    self._wake.clear()
        except Exception:  # a faulty library costs samples, not a job
            log.debug("NVML: no values of GPUs from here on", exc_info=True)

    def _poll(self) -> None:
        read = [self._read_gpu(uuid) for uuid in self._uuids]
        with self._has_changed:
            self._read, self._read_at = read, time.monotonic()
            self._num_polls += 1
            self._has_changed.notify_all()

    def _read_gpu(self, uuid: str) -> dict[str, Any]:
        handle = tell(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        now, gauges = time.monotonic(), gauges_of(handle) if handle else Gauges()
        taken = _energy_j(self._last.get(uuid), (now, gauges))
        self._last[uuid] = now, gauges
        if taken is not None:
            self._energy_j[uuid] = self._energy_j.get(uuid, 0.0) + taken
        values = {"uuid": uuid, **gauges._asdict(), "energy_j": self._energy_j.get(uuid)}
        return {
            key: round(value, 1) if isinstance(value, float) else value
            for key, value in values.items()
            if value is not None
        }


def _energy_j(last: tuple[float, Gauges] | None, now: tuple[float, Gauges]) -> float | None:
    """Return the energy of a GPU between two readings in joules, by its counter or power."""
    if last is None:
        return None if now[1].energy_j is None and now[1].power_w is None else 0.0
    seconds, before, after = now[0] - last[0], last[1], now[1]
    if before.energy_j is not None and after.energy_j is not None:
        return max(0.0, after.energy_j - before.energy_j)  # a reloaded driver resets the counter
    if before.power_w is None or after.power_w is None or seconds > STALE_SECONDS:
        return None
    return seconds * (before.power_w + after.power_w) / 2


VERSION = 1
LAST_SECONDS = 2.0
"""Longest wait for the last sample and the last line, if a disk or the machine hangs."""
FRESH_SECONDS = 0.25
"""Longest time that the last sample waits for a new reading of NVML."""
LEAST_SECONDS_OF_CPU = 0.2
"""Shortest time for a share of CPU time, whose clock in the kernel is coarse."""
MOST_LETTERS = 2000
"""Longest error text, so that readers of the end of the file find the events before it."""
OF_A_GPU = ["power_w", "temperature_c", "throttle", "energy_j"]
"""Values that NVML has for whole GPUs only, not for MIG slices."""
HIGHEST = ("memory_mb", "temperature_c", "process_memory_mb")
"""Values of which a receipt has the maximum; it has the mean of the others."""
SLOTS = re.compile(r"@\d+of(\d+)")


class Recorder:
    def __init__(self, path: Path, journal_path: Path, facts: dict[str, Any]) -> None:
        """Start the thread; `facts` are further values of the start event."""
        self._sampler = Sampler(path, journal_path, facts)
        self.devices: list[dict[str, Any]] = []
        self._poller: Poller | None = None
        self._thread = threading.Thread(target=self._sampler.run, name="telemetry", daemon=True)
        with contextlib.suppress(RuntimeError):  # no memory for a thread: no samples
            self._thread.start()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        status = "ok" if kind is None else "failed" if issubclass(kind, Exception) else "stopped"
        message = str(error)[:MOST_LETTERS] if status == "failed" else None
        self._stop_polling()
        self._sampler.orders.put(("end", {"status": status, "message": message}))
        if self._thread.is_alive():
            self._thread.join(LAST_SECONDS)

    def record_wait(self) -> None:
        """Record that the job waits for a device."""
        self._stop_polling()
        self._sampler.worker = None
        self.record_progress({"stage": "wait"})

    def record_lease(self, held: Lease) -> None:
        self.devices = [_described(device, held) for device in held.devices]
        self.record_progress({"stage": "load"})
        self._sampler.orders.put(("device", {"devices": self.devices}))
        uuids = [device.uuid for device in held.devices if device.kind == "cuda"]
        if not uuids:
            return
        if self._poller and self._poller.is_stuck():
            log.debug("NVML does not answer; no values of GPUs from here on")
            return
        with contextlib.suppress(RuntimeError):
            self._poller = self._sampler.poller = Poller(uuids, self._sampler.energy_j)

    def record_worker(self, pid: int) -> None:
        """Take samples of the process `pid` from now on."""
        import psutil  # here, so that importing featuremill stays cheap

        with contextlib.suppress(psutil.Error):  # the process may have ended already
            process = psutil.Process(pid)
            process.cpu_percent()  # later calls return the share since this one
            self._sampler.worker = process

    def record_progress(self, progress: dict[str, Any]) -> None:
        self._sampler.progress = {**self._sampler.progress, **progress}

    @property
    def progress(self) -> dict[str, Any]:
        return self._sampler.progress

    def finish(self) -> Usage:
        """Take the last sample while the worker exists; return the receipt's entry."""
        self._sampler.has_sampled.clear()
        self._sampler.orders.put(("sample", {}))
        if self._thread.is_alive():
            self._sampler.has_sampled.wait(LAST_SECONDS)
        shared = sorted({key for device in self.devices for key in device.get("of_whole_gpu", ())})
        known = {"of_whole_gpu": shared} if shared else {}
        return Usage.model_validate({**self._sampler.summary, **known})

    def _stop_polling(self) -> None:
        self._sampler.poller = None
        if self._poller:
            self._poller.stop()


def _described(device: Device, held: Lease) -> dict[str, Any]:
    entry = device.identity
    if device.kind == "cuda":
        name = next((s.name for s in held.slots if s.name.startswith(f"{device.uuid}@")), "")
        is_alone = bool(name) and set(SLOTS.findall(name)) == {"1"}
        shared = [] if is_alone else ["utilisation", "memory_mb", *OF_A_GPU]
        if device.is_slice:
            shared = OF_A_GPU if is_alone else ["memory_mb", *OF_A_GPU]
        entry |= {"slot": name.rpartition("@")[2]} if name else {}
        entry |= {"memory_mb": device.memory_mb} if device.memory_mb else {}
        entry |= {"of_whole_gpu": shared} if shared else {}
    return entry


class Sampler:
    """Takes samples and writes them. Another thread sets its public attributes."""

    def __init__(self, path: Path, journal_path: Path, facts: dict[str, Any]) -> None:
        self.progress: dict[str, Any] = {"stage": "wait"}
        self.poller: Poller | None = None
        self.worker: Any = None
        """The worker's process, from psutil."""
        self.energy_j: dict[str, float] = {}
        """Energy by UUID in this attempt, in joules."""
        self.summary: dict[str, Any] = {}
        self.has_sampled = threading.Event()
        self.orders: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        """Events to write; "sample" requests a sample, "end" ends the thread."""
        self._path = path
        self._journal_path = journal_path
        self._facts = facts
        self._sums = Summary()
        self._cpu_read_at = -math.inf
        self._num_earlier = 0
        self._earlier_energy_j: list[float] = []
        """The known energies of earlier attempts, in joules."""
        self._sampled_at = time.monotonic()
        self._write_at = 0.0
        self._stage = ""

    def run(self) -> None:
        try:
            self._run()
        except Exception:  # a failed sample must not end a job
            log.debug("%s: no telemetry from here on", self._path, exc_info=True)

    def _run(self) -> None:
        energies_j = [attempt.energy_j for attempt in _unfinished(read(self._path))]
        self._num_earlier = len(energies_j)
        self._earlier_energy_j = [energy_j for energy_j in energies_j if energy_j is not None]
        writer = Writer(self._path)
        writer.write("start", **self._start())
        due = time.monotonic()
        while True:
            try:
                event, facts = self.orders.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                due = max(due + EVERY_SECONDS, time.monotonic())
                self._sample(writer)
                continue
            if event == "sample":
                if self.poller and self.poller.latest():
                    self.poller.refresh(FRESH_SECONDS)
                self._sample(writer, is_wanted=True)
                self.has_sampled.set()
            else:
                writer.write(event, **facts)
            if event == "end":
                writer.close()
                return

    def _start(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "host": platform.node(),
            "pid": os.getpid(),
            **self._facts,
            "rows_done": journal_log.num_rows_in(self._journal_path),
            "attempt": self._num_earlier + 1,
        }

    def _sample(self, writer: Writer, is_wanted: bool = False) -> None:
        now, progress, poller = time.monotonic(), self.progress, self.poller
        sample = {
            **progress,
            "devices": (poller.latest() if poller else None) or None,
            "process": self._process() or None,
        }
        if progress["stage"] != "wait":
            known = {key: value for key, value in sample.items() if value is not None}
            self._sums.add(known, now - self._sampled_at)
            energies_j = [*self._earlier_energy_j, *self.energy_j.values()]
            energy_j = math.fsum(energies_j) if energies_j else None
            self.summary = self._sums.entry(energy_j, self._num_earlier + 1)
        self._sampled_at = now
        is_new, self._stage = progress["stage"] != self._stage, progress["stage"]
        if is_wanted or is_new or now >= self._write_at:
            writer.write("sample", **sample)
            least = WAITING_SECONDS if progress["stage"] == "wait" else 0.0
            apart = max(least, seconds_between(writer.num_bytes))
            self._write_at = now + apart - EVERY_SECONDS / 2  # rounded to a sample

    def _process(self) -> dict[str, float]:
        """Return the worker's `cpu_percent` (of one core) and resident `memory_mb`."""
        import psutil

        worker, now, reading = self.worker, time.monotonic(), dict[str, float]()
        with contextlib.suppress(psutil.Error):
            if worker and (memory := worker.memory_info().rss):
                reading["memory_mb"] = memory // 2**20
            if worker and now - self._cpu_read_at >= LEAST_SECONDS_OF_CPU:
                self._cpu_read_at = now
                reading["cpu_percent"] = worker.cpu_percent()
        return reading


def _unfinished(attempts: list[Attempt]) -> list[Attempt]:
    """Return the attempts since the part was last finished, which the next attempt continues."""
    statuses = [(attempt.end or {}).get("status") for attempt in attempts]
    finished = [number for number, status in enumerate(statuses) if status == "ok"]
    return attempts[finished[-1] + 1 :] if finished else attempts


class Summary:
    """Means and maxima over samples, in constant memory."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._nums: Counter[str] = Counter()
        self._sums: dict[str, float] = {}
        self._highest: dict[str, float] = {}
        self._throttled_seconds: Counter[str] = Counter()

    def add(self, sample: dict[str, Any], seconds: float) -> None:
        """Add a sample, taken `seconds` after the last one."""
        self._num_samples += 1
        devices, process = sample.get("devices", []), [sample.get("process", {})]
        for name, those, key, combine in (
            ("utilisation_percent", devices, "utilisation", _mean),
            ("memory_mb", devices, "memory_mb", max),
            ("power_w", devices, "power_w", sum),
            ("temperature_c", devices, "temperature_c", max),
            ("cpu_percent", process, "cpu_percent", max),
            ("process_memory_mb", process, "memory_mb", max),
        ):
            if values := [facts[key] for facts in those if key in facts]:
                value = combine(values)
                self._nums[name] += 1
                self._sums[name] = self._sums.get(name, 0.0) + value
                self._highest[name] = max(value, self._highest.get(name, value))
        self._throttled_seconds.update(
            {reason: seconds for device in devices for reason in device.get("throttle", ())}
        )

    def entry(self, energy_j: float | None, num_attempts: int) -> dict[str, Any]:
        """Return the entry of the receipt; `energy_j` and `num_attempts` are of all attempts."""
        entry: dict[str, Any] = {"samples": self._num_samples, "attempts": num_attempts}
        if energy_j is not None:
            entry["energy_j"] = round(energy_j, 1)
        for name, highest in self._highest.items():
            mean = round(self._sums[name] / self._nums[name], 1)
            entry[name] = highest if name in HIGHEST else mean
        if self._throttled_seconds:
            seconds = self._throttled_seconds.items()
            entry["throttled_seconds"] = {reason: round(value, 1) for reason, value in seconds}
        return entry


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
