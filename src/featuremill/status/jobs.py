"""The state of a job, from its shard, lock and telemetry; the time left of all jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.status.shards import Shard
from featuremill.store.files import identity_of
from featuremill.store.receipt import Receipt, newest_whole
from featuremill.store.telemetry import TAIL_BYTES, Rates, State, events_of, followed

SPEED_SECONDS = 30.0
"""The time over which the displayed speed is averaged."""
PACE_SECONDS = 300.0
"""The time over which the speed is averaged to estimate the time left."""
LEAST_SILENCE_SECONDS = 20.0
MISSED = 4
"""Late samples before a job counts as silent."""
COMPUTING = ("run", "finish")


class TelemetryTail:
    """The last attempt in a telemetry file, updated by each poll."""

    def __init__(self, path: Path) -> None:
        self.state: State | None = None
        self._rates = Rates()
        self._path = path
        self._offset = 0
        self._heard = 0.0
        self._gap = 1.0

    def poll(self, is_held: bool = False) -> None:
        """Read what was appended since the last poll; `is_held`: the job is surely alive."""
        events, offset = events_of(self._path, TAIL_BYTES, self._offset)
        if offset < self._offset:  # the file was replaced
            self.__init__(self._path)  # type: ignore[misc]
        is_first, self._offset = self._offset == 0, offset
        for event in events:
            self._take(event)
        if events:
            # At the first poll, the age of the events is by the job's clock, which may be wrong.
            # Therefore a job that lives is silent only if its file is as old.
            age = max(0.0, time.time() - self.state.time) if is_first and self.state else 0.0
            if age and is_held and (identity := identity_of(self._path)):
                age = min(age, max(0.0, time.time() - identity[1] / 1e9))
            self._heard = time.monotonic() - age

    def silent_seconds(self) -> float:
        """Return the time since the last event; until the file grows, by the job's clock."""
        return max(0.0, time.monotonic() - self._heard)

    def is_silent(self) -> bool:
        """Return whether samples are overdue."""
        return self.silent_seconds() > max(LEAST_SILENCE_SECONDS, MISSED * self._gap)

    def _take(self, event: dict[str, Any]) -> None:
        before, self.state = self.state, followed(self.state, event)
        kind, now = event["event"], event["time"]
        if kind in ("start", "device"):
            self._rates = Rates()
        elif kind == "sample":
            if before and before.sample:
                self._gap = max(1.0, now - before.sample["time"])
            if event.get("stage") in COMPUTING and "cost_done" in event:
                self._rates.take(now, event["cost_done"])

    def rate(self, seconds: float) -> float | None:
        """Return the cost per second over the last `seconds`; None before the first batch."""
        sample = self.state and self.state.sample
        return self._rates.over(seconds, float(sample["time"])) if sample else None


@dataclass(frozen=True, kw_only=True)
class DeviceNow:
    """A device, or a slot of a device, that a job holds. None means unknown."""

    kind: str = ""
    uuid: str = ""
    name: str = ""
    number: float | None = None
    """The index of a GPU, as in nvidia-smi."""
    slot: str = ""
    total_mb: float | None = None
    utilisation: float | None = None
    memory_mb: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: list[str] = field(default_factory=list)
    """Reasons for lower clocks."""
    of_whole_gpu: list[str] = field(default_factory=list)
    """Names of values that describe the whole GPU, if the job has only a part of it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    shard: str
    state: str
    """running or unclear, as in status."""
    host: str
    pid: int | None
    stage: str
    """wait (for a device), load, run or finish."""
    devices: list[DeviceNow]
    records: int
    rows_done: int
    rows_failed: int = 0
    cost: float
    cost_left: float
    speed: float | None = None
    """Cost per second over SPEED_SECONDS."""
    pace: float | None = None
    """Cost per second over PACE_SECONDS."""
    silent_seconds: float = 0.0
    is_silent: bool = False
    """Whether samples are overdue."""
    oom_splits: int = 0
    cpu_percent: float | None = None
    memory_mb: float | None = None

    @property
    def is_at_work(self) -> bool:
        return bool(self.devices) and self.stage != "wait"

    @property
    def share(self) -> float:
        """The share of the cost that is computed, from 0 to 1."""
        return 1 - self.cost_left / self.cost if self.cost else 1.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "silent_seconds": round(self.silent_seconds, 1)}


def job_of(shard: Shard, tail: TelemetryTail) -> Job:
    """Return the state of a shard's job, from its lock file if it has no telemetry."""
    assert shard.work
    holder, now = shard.work.holder, tail.state
    # An earlier job than the holder of the lock may have written the telemetry.
    if now is None or (holder.host is not None and now.start.get("pid", holder.pid) != holder.pid):
        names = holder.devices or []
        return Job(
            shard=shard.name,
            state=shard.state,
            host=holder.host or "",
            pid=holder.pid,
            stage="run" if names else "wait",
            devices=[DeviceNow(name=name) for name in names],
            records=shard.records,
            rows_done=shard.num_rows,
            cost=shard.cost,
            cost_left=shard.cost_left,
        )
    start, sample = now.start, now.sample or {}
    rows = min(shard.records, int(sample.get("rows_done", start.get("rows_done", 0))))
    left = sample.get("cost_left", shard.cost * (1 - rows / max(1, shard.records)))
    stage = sample.get("stage") or ("load" if now.devices else "wait")
    process = sample.get("process", {})
    return Job(
        shard=shard.name,
        state=shard.state if tail.is_silent() else "running",
        host=start.get("host", holder.host or ""),
        pid=None if "pid" not in start else int(start["pid"]),
        stage=stage,
        devices=devices_of(now.devices, sample) if stage != "wait" else [],
        records=shard.records,
        rows_done=rows,
        rows_failed=int(sample.get("rows_failed", 0)),
        cost=shard.cost,
        cost_left=min(float(shard.cost), max(0.0, left)),
        speed=tail.rate(SPEED_SECONDS),
        pace=tail.rate(PACE_SECONDS),
        silent_seconds=tail.silent_seconds(),
        is_silent=tail.is_silent(),
        oom_splits=int(sample.get("oom_splits", 0)),
        cpu_percent=process.get("cpu_percent"),
        memory_mb=process.get("memory_mb"),
    )


def devices_of(held: list[dict[str, Any]], sample: dict[str, Any]) -> list[DeviceNow]:
    measured = {entry.get("uuid"): entry for entry in sample.get("devices", [])}
    gauges = ("utilisation", "memory_mb", "power_w", "temperature_c")
    devices = []
    for entry in held:
        now = measured.get(entry.get("uuid"), {})
        devices.append(
            DeviceNow(
                **{key: entry.get(key, "") for key in ("kind", "uuid", "name", "slot")},
                **{key: now.get(key) for key in gauges},
                number=entry.get("number"),
                total_mb=entry.get("memory_mb"),
                throttle=now.get("throttle", []),
                of_whole_gpu=entry.get("of_whole_gpu", []),
            )
        )
    return devices


class TimeLeft(NamedTuple):
    """An estimate of the time until all parts are computed."""

    job_seconds: float
    """The time with one job after the other."""
    jobs: int
    parts: int
    """Number of finished parts that the estimate is based on."""
    longest_seconds: float = 0.0
    """The longest time that a job at work still needs."""

    @property
    def seconds(self) -> float | None:
        """The time with as many jobs as now; None if there are none."""
        return max(self.job_seconds / self.jobs, self.longest_seconds) if self.jobs else None

    def as_json(self) -> dict[str, Any]:
        names = ("job_seconds", "jobs", "parts", "seconds")
        return {name: getattr(self, name) for name in names}


def time_left(
    waiting: Sequence[float], jobs: Sequence[Job], receipts: Iterable[Receipt]
) -> TimeLeft | None:
    """Return the time until all `jobs`, and shards that wait with the costs `waiting`, have ended.

    A job continues at its own pace, if that is known; all else is as fast as the newest parts,
    including their start-up. None if nothing is left or no speed is known.
    """
    newest = newest_whole(receipts)
    seconds = sum(receipt.working_seconds for receipt in newest)
    speeds = [job.pace for job in jobs if job.pace]
    if not (waiting or jobs) or not (seconds or speeds):
        return None
    if seconds:
        seconds_per_cost = seconds / sum(receipt.cost for receipt in newest)
    else:
        seconds_per_cost = len(speeds) / sum(speeds)
    own = [
        job.cost_left / job.pace if job.pace else job.cost_left * seconds_per_cost for job in jobs
    ]
    job_seconds = sum(own) + sum(waiting) * seconds_per_cost
    return TimeLeft(job_seconds, len(jobs), len(newest), max(own, default=0.0))
