"""Shards as the figures use them: who computed one, when, and how long each stage took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.report.timeline import Interval
from featuremill.store.receipts import device_name, devices_of, is_on_gpu, own_energy_j


class Shard(NamedTuple):
    """One receipt, as the figures use it."""

    name: str
    host: str
    device: str
    """The device's model, such as "NVIDIA H200" or "2 × NVIDIA L4"."""
    lane: str
    """The device, or those that held one model together: model, identity and host."""
    is_on_gpu: bool
    tokens: int
    rows: int
    failed: int
    resumed_batches: int
    crashes: int
    oom_splits: int
    seconds: dict[str, float]
    """By stage, and in total. `prepare` and `write` go on beside `run`."""
    telemetry: dict[str, float]
    """What its samples come to; empty where none were taken. Energy only of GPUs of its own."""
    throttled_seconds: dict[str, float]
    """How long a GPU's clocks were lowered, by reason."""
    claimed: Interval
    """From the job's start, waiting for a device included."""
    working: Interval
    """On the device."""

    @property
    def rate(self) -> float:
        """Tokens a second on the device, loading included."""
        return self.tokens / max(self.working.end - self.working.begin, 1e-3)

    @property
    def running_rate(self) -> float | None:
        """Tokens a second while it computed; None where that was too short to say."""
        return self.tokens / self.seconds["run"] if self.seconds["run"] >= 0.01 else None


class Piece(NamedTuple):
    """What a device did at one time: a shard's last attempt, or an earlier one."""

    name: str
    """The shard's."""
    lane: str
    working: Interval
    shard: Shard | None
    """None for an attempt that ended before the shard was done."""


def lane_of(devices: Sequence[dict[str, Any]], host: str) -> str:
    """Return the devices that held one model together: model, identity and host."""
    name = clipped(device_name({"devices": devices}))
    uuids = "+".join(sorted(device["uuid"].removeprefix("GPU-")[:8] for device in devices))
    identity = f" {clipped(uuids)}" if devices[0]["kind"] == "cuda" else ""
    return f"{name}{identity} · {host}"


def shard_of(receipt: dict[str, Any]) -> Shard:
    """Return what the figures need of a receipt."""
    told = receipt.get("telemetry", {})
    left_out = {"throttled_seconds", "of_whole_gpu"}
    left_out |= {"energy_j"} if own_energy_j(receipt) is None else set()
    slow = told.get("throttled_seconds", {})
    devices, host = devices_of(receipt), clipped(receipt["host"])
    seconds: dict[str, float] = receipt["seconds"]
    started, finished = words.parsed(receipt["started"]), words.parsed(receipt["finished"])
    # A receipt may carry whole seconds; its durations are finer.
    finished = max(finished, started + seconds["total"])
    name = clipped(device_name(receipt))
    return Shard(
        name=receipt["shard"],
        host=host,
        device=name,
        lane=lane_of(devices, host),
        is_on_gpu=is_on_gpu(receipt),
        tokens=receipt["cost"],
        rows=receipt["rows"],
        failed=receipt["failed"],
        resumed_batches=receipt["resumed_batches"],
        crashes=receipt["retries"],
        oom_splits=receipt["oom_splits"],
        seconds=seconds,
        telemetry={key: float(told[key]) for key in told if key not in left_out},
        throttled_seconds={clipped(reason): float(slow[reason]) for reason in slow},
        claimed=Interval(started, finished),
        working=Interval(min(started + seconds["wait"], finished), finished),
    )
