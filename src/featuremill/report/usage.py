"""How the devices were used, read from the samples beside the parts or, failing these, receipts.

Memory stays small whatever the run: of many shards only what their receipts say is taken, and the
samples of a shard are averaged to some points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from featuremill.base.text import clipped
from featuremill.report.shards import Interval, Piece, Shard, lane_of
from featuremill.store import telemetry
from featuremill.store.receipt import UsedDevice
from featuremill.store.results import Results

MAX_FILES = 200
"""Above this the samples are left alone: a screen has no more room than for a point a shard."""
MAX_POINTS = 3_000
RATE_SECONDS = 3.0
"""Over shorter times the clock's grain would show; where batches take longer, so does this."""
HIGHEST = frozenset(("memory_mb", "temperature_c", "process.memory_mb"))
"""What is interesting at its highest; of the others, the mean."""
OF_GPUS = {
    "utilisation": "utilisation_percent",
    "memory_mb": "memory_mb",
    "power_w": "power_w",
    "temperature_c": "temperature_c",
}
OF_PROCESS = {"process.cpu_percent": "cpu_percent", "process.memory_mb": "process_memory_mb"}
"""A receipt's names of what samples hold of GPUs, or of a process on the CPU."""


class Point(NamedTuple):
    """What one device did at a moment, or in a stretch of time."""

    moment: float
    """Seconds since 1970."""
    device: str
    shard: str
    line: str
    """Points of one line are joined: those of one device in one attempt."""
    values: dict[str, float]
    """By the names of a sample; those of the process behind "process."."""


class Usage(NamedTuple):
    """What was recorded of a run's devices."""

    points: list[Point]
    stopped: list[Piece]
    """Attempts that ended before their shard was done."""
    is_sampled: bool
    """From the samples; else from receipts, with one value a shard."""
    num_shards: int
    """Shards that `points` are of."""


def read(results: Results, shards: Sequence[Shard]) -> Usage | None:
    """Return how the `shards` used their devices; None where nothing was recorded."""
    points: list[Point] = []
    stopped: list[Piece] = []
    is_sampled = False
    is_few = len(shards) <= MAX_FILES
    chosen = shards if is_few else shards[:: -(-len(shards) // (MAX_POINTS // 2))]
    most = max(2, MAX_POINTS // max(1, len(chosen)))
    names = set()
    for shard in chosen:
        path = results.telemetry(shard.receipt.recipe, shard.name)
        attempts = telemetry.read(path) if is_few else []
        share = max(2, most // max(1, len(attempts)))
        own = [
            point
            for n, attempt in enumerate(attempts)
            for point in _sampled(attempt, shard, n, share)
        ]
        is_sampled = is_sampled or bool(own)
        own = own or _of_receipt(shard)
        stopped += _stopped(attempts, shard)
        points += own
        names |= {shard.name} if own else set()
    return Usage(points, stopped, is_sampled, len(names)) if points else None


def _of_receipt(shard: Shard) -> list[Point]:
    """Return a level line over the time of the shard."""
    names = OF_GPUS if shard.receipt.is_on_gpu else OF_PROCESS
    gauges = {name: getattr(shard.receipt.telemetry, key) for name, key in names.items()}
    values = {name: float(value) for name, value in gauges.items() if value is not None}
    line = f"{shard.lane} {shard.name}"
    moments = shard.working if values else ()
    return [Point(moment, shard.lane, shard.name, line, values) for moment in moments]


def _sampled(attempt: telemetry.Attempt, shard: Shard, number: int, most: int) -> Iterator[Point]:
    """Yield the samples of one attempt, averaged to about `most` points at most, of all devices."""
    held = {device.uuid: device for event in attempt.devices for device in _devices_of(event)}
    held |= {device.uuid: device for device in shard.receipt.devices}
    samples = [s for s in attempt.samples if s.get("stage", "wait") != "wait"]
    size = max(1, -(-len(samples) * max(1, len(held)) // most))
    chunks = _with_rates(samples)
    while chunk := list(islice(chunks, size)):
        moment = sum(sample["time"] for sample in chunk) / len(chunk)
        for uuid, values in _values(chunk).items():
            device = lane_of([held[uuid]], _host(attempt, shard)) if uuid in held else shard.lane
            yield Point(moment, device, shard.name, f"{device} {shard.name} {number}", values)


def _with_rates(samples: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the samples, those in which a batch ended with their `rate` over some seconds."""
    rates = telemetry.Rates()
    for sample in samples:
        is_computing = sample.get("stage") != "load" and "cost_done" in sample
        if is_computing and rates.take(sample["time"], sample["cost_done"]):
            rate = rates.over(RATE_SECONDS, sample["time"], RATE_SECONDS / 2)
        else:
            rate = None
        # Early files have a rate of their own.
        known = {key: value for key, value in sample.items() if key != "rate"}
        yield known if rate is None else {**known, "rate": rate}


def _values(samples: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the values of the samples together, by device; under "" those of no single GPU."""
    values_of_device: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        gpus = [gpu for gpu in sample.get("devices", ()) if "uuid" in gpu]
        process = {f"process.{key}": value for key, value in sample.get("process", {}).items()}
        mine = [(gpu["uuid"], gpu) for gpu in gpus] or [("", process)]
        if "rate" in sample:  # of all devices that hold the model together
            mine[0] = (mine[0][0], {**mine[0][1], "rate": sample["rate"]})
        for uuid, values in mine:
            for key, value in values.items():
                if isinstance(value, int | float):
                    values_of_device.setdefault(uuid, {}).setdefault(key, []).append(value)
    return {
        uuid: {key: max(v) if key in HIGHEST else sum(v) / len(v) for key, v in values.items()}
        for uuid, values in values_of_device.items()
    }


def _stopped(attempts: list[telemetry.Attempt], shard: Shard) -> Iterator[Piece]:
    """Yield the attempts before the last one, back to the last that finished the shard."""
    for attempt in reversed(attempts[:-1]):
        if (attempt.end or {}).get("status") == "ok":
            return
        devices = [used for event in attempt.devices if (used := _devices_of(event))]
        moments = [s["time"] for s in attempt.samples if s.get("stage", "wait") != "wait"]
        if devices and moments:
            last = (attempt.end or {}).get("time", moments[-1])
            lane = lane_of(devices[-1], _host(attempt, shard))
            yield Piece(shard.name, lane, Interval(moments[0], max(moments[0], last)), None)


def _devices_of(event: dict[str, Any]) -> list[UsedDevice]:
    """Return the devices that an event describes completely."""
    return [
        UsedDevice(**{key: device[key] for key in UsedDevice.model_fields if key in device})
        for device in event.get("devices", ())
        if {"kind", "uuid", "name"} <= set(device)
    ]


def _host(attempt: telemetry.Attempt, shard: Shard) -> str:
    return clipped(attempt.start.get("host", shard.host))
