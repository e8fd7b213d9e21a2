"""What one job is doing: its plan's entry, who holds its lock, and what its telemetry says."""

from __future__ import annotations

from typing import Any, NamedTuple

from featuremill.status.shards import Holder, Shard
from featuremill.status.top.tails import Tail

SPEED_SECONDS = 30.0
"""What "of late" means for the speed that is shown."""
PACE_SECONDS = 300.0
"""And for the time that is left."""
STAGES = {
    "wait": "waiting for a device",
    "load": "loading",
    "run": "computing",
    "finish": "finishing",
}


class DeviceNow(NamedTuple):
    """A device, or a slot of one, that a job holds; None is what nobody knows."""

    kind: str
    uuid: str
    name: str
    slot: str
    total_mb: float | None
    utilisation: float | None
    memory_mb: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: list[str]
    """Why its clocks are lower than they could be."""
    of_whole_gpu: list[str]
    """Which of these values are the whole GPU's, where the job has a slice or a part of it."""


class Job(NamedTuple):
    """A shard that somebody is at."""

    shard: str
    state: str
    """running or unclear, as in status."""
    host: str
    pid: int | None
    stage: str
    devices: list[DeviceNow]
    records: int
    rows_done: int
    rows_failed: int
    cost: float
    cost_left: float
    speed: float | None
    """Cost a second of late."""
    pace: float | None
    """The same over a longer time."""
    startup_seconds: float | None
    computing_seconds: float | None
    """How long it has had its devices, by its own clock."""
    silent_seconds: float
    is_silent: bool
    """Whether samples are missing that should have come."""
    oom_splits: int
    cpu_percent: float | None
    memory_mb: float | None
    """Of the worker's process."""

    @property
    def is_at_work(self) -> bool:
        """Tell whether it holds a device."""
        return bool(self.devices) and self.stage != "wait"


def job_of(shard: Shard, holder: Holder, tail: Tail | None) -> Job:
    """Return what the job of `shard` is doing; without telemetry, what its lock file says."""
    state = tail.state if tail else None
    if tail is None or state is None or _is_of_another(state.start, holder):
        return _without_telemetry(shard, holder)
    sample = state.sample or {}
    stage = sample.get("stage") or ("load" if state.devices else "wait")
    rows = min(shard.records, int(sample.get("rows_done", state.start.get("rows_done", 0))))
    left = sample.get("cost_left", shard.cost * (1 - rows / max(1, shard.records)))
    process = sample.get("process", {})
    since = tail.devices_since or state.start.get("time")
    return Job(
        shard=shard.name,
        state="running" if not tail.is_silent() else holder.state,
        host=state.start.get("host", str(holder.who.get("host") or "")),
        pid=_whole(state.start.get("pid")),
        stage=stage,
        devices=_devices(state.devices, sample) if stage != "wait" else [],
        records=shard.records,
        rows_done=rows,
        rows_failed=int(sample.get("rows_failed", 0)),
        cost=shard.cost,
        cost_left=min(float(shard.cost), max(0.0, left)),
        speed=tail.rate(SPEED_SECONDS),
        pace=tail.rate(PACE_SECONDS),
        startup_seconds=tail.startup_seconds,
        computing_seconds=max(0.0, state.time - since) if since else None,
        silent_seconds=tail.silent_seconds(),
        is_silent=tail.is_silent(),
        oom_splits=int(sample.get("oom_splits", 0)),
        cpu_percent=process.get("cpu_percent"),
        memory_mb=process.get("memory_mb"),
    )


def _is_of_another(start: dict[str, Any], holder: Holder) -> bool:
    """Tell whether the file is of an earlier job than the one that holds the lock."""
    who = holder.who
    return bool(who) and "pid" in start and start["pid"] != who.get("pid")


def _without_telemetry(shard: Shard, holder: Holder) -> Job:
    names = [str(name) for name in holder.who.get("devices") or []]
    rows = (shard.work.rows or 0) if shard.work else 0
    unknown = DeviceNow("", "", "", "", None, None, None, None, None, [], [])
    return Job(
        shard=shard.name,
        state=holder.state,
        host=str(holder.who.get("host") or ""),
        pid=_whole(holder.who.get("pid")),
        stage="run" if names else "wait",
        devices=[unknown._replace(name=name) for name in names],
        records=shard.records,
        rows_done=rows,
        rows_failed=0,
        cost=shard.cost,
        cost_left=shard.cost * (1 - rows / max(1, shard.records)),
        speed=None,
        pace=None,
        startup_seconds=None,
        computing_seconds=None,
        silent_seconds=0.0,
        is_silent=False,
        oom_splits=0,
        cpu_percent=None,
        memory_mb=None,
    )


def _devices(held: list[dict[str, Any]], sample: dict[str, Any]) -> list[DeviceNow]:
    measured = {one.get("uuid"): one for one in sample.get("devices", [])}
    return [_device(one, measured.get(one.get("uuid"), {})) for one in held]


def _device(held: dict[str, Any], now: dict[str, Any]) -> DeviceNow:
    return DeviceNow(
        kind=held.get("kind", ""),
        uuid=held.get("uuid", ""),
        name=held.get("name", ""),
        slot=held.get("slot", ""),
        total_mb=held.get("memory_mb"),
        utilisation=now.get("utilisation"),
        memory_mb=now.get("memory_mb"),
        power_w=now.get("power_w"),
        temperature_c=now.get("temperature_c"),
        throttle=now.get("throttle", []),
        of_whole_gpu=held.get("of_whole_gpu", []),
    )


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
