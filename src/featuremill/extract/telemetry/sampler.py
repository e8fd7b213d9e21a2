"""The thread that takes samples, writes them and adds them up; what it sees of the worker."""

from __future__ import annotations

import logging
import math
import os
import platform
import queue
import threading
import time
from pathlib import Path
from typing import Any

from featuremill.extract.telemetry.gpus import Poller
from featuremill.extract.telemetry.summary import Summary
from featuremill.store import journal
from featuremill.store.telemetry import (
    EVERY_SECONDS,
    WAITING_SECONDS,
    Attempt,
    Writer,
    read,
    seconds_between,
)

VERSION = 1
FRESH_SECONDS = 0.25
"""How long the last sample waits for what NVML says at that moment."""
LEAST_SECONDS_OF_REPORTS = 0.5
"""Reports closer together say more about when batches end than about speed."""
LEAST_SECONDS_OF_CPU = 0.2
"""Below it the kernel's clock of CPU time is too coarse for a share."""
log = logging.getLogger("featuremill.extract")


class Sampler:
    """Samples whatever stands in its attributes, which another thread sets."""

    def __init__(self, path: Path, journal_path: Path, facts: dict[str, Any]) -> None:
        self.told: dict[str, Any] = {"stage": "wait"}
        self.poller: Poller | None = None
        self.worker: int | None = None
        """Its process."""
        self.reports = Reports()
        self.energy_j: dict[str, float] = {}
        """By UUID, in this attempt."""
        self.summary: dict[str, Any] = {}
        self.has_sampled = threading.Event()
        self.orders: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        """Events to write; "sample" for one now; after "end" the thread ends."""
        self._path = path
        self._journal_path = journal_path
        self._facts = facts
        self._sums = Summary()
        self._meter: ProcessMeter | None = None
        self._num_earlier = 0
        """Attempts that this one goes on from."""
        self._earlier_energy_j: list[float] = []
        """What each of them took, where that is known."""
        self._sampled_at = time.monotonic()
        self._write_at = 0.0
        self._stage = ""

    def run(self) -> None:
        """Sample until the end is ordered."""
        try:
            self._run()
        except Exception:  # samples are never worth a job
            log.debug("%s: no telemetry from here on", self._path, exc_info=True)

    def _run(self) -> None:
        self._recall(_unfinished(read(self._path)))
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

    def _recall(self, attempts: list[Attempt]) -> None:
        taken = [attempt.energy_j for attempt in attempts]
        self._num_earlier = len(taken)
        self._earlier_energy_j = [energy_j for energy_j in taken if energy_j is not None]

    def _start(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "host": platform.node(),
            "pid": os.getpid(),
            **self._facts,
            "rows_done": journal.num_rows_in(self._journal_path),
            "attempt": self._num_earlier + 1,
        }

    def _sample(self, writer: Writer, is_wanted: bool = False) -> None:
        now, told, poller = time.monotonic(), self.told, self.poller
        sample = {
            **told,
            "devices": (poller.latest() if poller else None) or None,
            "process": self._process() or None,
        }
        if told["stage"] != "wait":
            known = {key: value for key, value in sample.items() if value is not None}
            self._sums.add(known, now - self._sampled_at)
            self.summary = self._sums.told(self._all_energy_j(), self._num_earlier + 1)
        self._sampled_at = now
        is_new, self._stage = told["stage"] != self._stage, told["stage"]
        if is_wanted or is_new or now >= self._write_at:
            writer.write("sample", **sample, rate=self.reports.rate())
            least = WAITING_SECONDS if told["stage"] == "wait" else 0.0
            apart = max(least, seconds_between(writer.num_bytes))
            self._write_at = now + apart - EVERY_SECONDS / 2  # the clock of the samples decides

    def _process(self) -> dict[str, float]:
        worker = self.worker
        if worker is None:
            return {}
        if self._meter is None or self._meter.pid != worker:
            self._meter = ProcessMeter(worker)
        return self._meter.read()

    def _all_energy_j(self) -> float | None:
        """Return what this attempt and those that it goes on from took."""
        known = [*self._earlier_energy_j, *self.energy_j.values()]
        return math.fsum(known) if known else None


def _unfinished(attempts: list[Attempt]) -> list[Attempt]:
    """Return the attempts since the part was last finished: this one goes on from them."""
    finished = [
        number for number, one in enumerate(attempts) if (one.end or {}).get("status") == "ok"
    ]
    return attempts[finished[-1] + 1 :] if finished else attempts


class Reports:
    """What the worker reported: added on one thread, asked for on another."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._latest: tuple[float, float] | None = None

    def add(self, cost_done: float) -> None:
        """Note that so much is done now."""
        self._latest = time.monotonic(), cost_done
        if self._before is None:
            self._before = self._latest

    def rate(self) -> float | None:
        """Return the cost a second since the last time this was known; None when nothing new was
        reported."""
        before, latest = self._before, self._latest
        if before is None or latest is None or latest[0] - before[0] < LEAST_SECONDS_OF_REPORTS:
            return None
        self._before = latest
        return round(max(0.0, latest[1] - before[1]) / (latest[0] - before[0]), 1)


class ProcessMeter:
    """What one process takes of the CPU and of memory, seen from outside: its interpreter may be
    held."""

    def __init__(self, pid: int) -> None:
        import psutil  # here, so that importing featuremill costs nothing

        self.pid = pid
        self._gone = psutil.Error
        self._process: Any = None
        try:
            self._process = psutil.Process(pid)
            self._last = self._process.create_time(), 0.0
        except psutil.Error:  # dead at birth
            self._process = None

    def read(self) -> dict[str, float]:
        """Return `cpu_percent` (of one core, since the last reading) and `memory_mb` (resident)."""
        if self._process is None:
            return {}
        try:
            with self._process.oneshot():
                memory = self._process.memory_info().rss
                times = self._process.cpu_times()
        except self._gone:
            return {}
        found: dict[str, float] = {"memory_mb": memory // 2**20} if memory else {}
        now, used = time.time(), times.user + times.system
        then, used_before = self._last
        if now - then >= LEAST_SECONDS_OF_CPU:
            self._last = now, used
            found["cpu_percent"] = round(max(0.0, 100 * (used - used_before) / (now - then)), 1)
        return found
