"""How the devices were used, read from the samples beside the parts or, failing these, receipts.

Memory stays small whatever the run: of many shards only what their receipts say is taken, and the
samples of a shard are averaged to some points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from featuremill.base.text import clipped
from featuremill.report.chart import evenly
from featuremill.report.shards import Piece, Shard, lane_of
from featuremill.report.timeline import Interval
from featuremill.store import telemetry
from featuremill.store.results import Results

MAX_FILES = 200
"""Above this the samples are left alone: a screen has no more room than for a point a shard."""
MAX_POINTS = 3_000
RATE_SECONDS = 3.0
"""Over shorter times the clock's grain would show; where batches take longer, so does this."""
HIGHEST = frozenset(("memory_mb", "temperature_c", "process.memory_mb"))
"""What is interesting at its highest; of the others, the mean."""
OF_RECEIPTS = {
    "utilisation_percent": "utilisation",
    "memory_mb": "memory_mb",
    "power_w": "power_w",
    "temperature_c": "temperature_c",
    "cpu_percent": "process.cpu_percent",
    "process_memory_mb": "process.memory_mb",
}
"""A receipt's names of what a sample holds."""


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


def read(folder: Results, recipe: str, shards: Sequence[Shard]) -> Usage | None:
    """Return what is known of how the `shards` used their devices; None where that is nothing."""
    points: list[Point] = []
    stopped: list[Piece] = []
    has_samples = False
    is_few = len(shards) <= MAX_FILES
    chosen = shards if is_few else evenly(shards, MAX_POINTS // 2)
    most = max(2, MAX_POINTS // max(1, len(chosen)))
    names = set()
    for shard in chosen:
        attempts = telemetry.read(folder.telemetry(recipe, shard.name)) if is_few else []
        share = max(2, most // max(1, len(attempts)))
        own = [point for n, one in enumerate(attempts) for point in _sampled(one, shard, n, share)]
        has_samples = has_samples or bool(own)
        own = own or _of_receipt(shard)
        stopped += _stopped(attempts, shard)
        points += own
        names |= {shard.name} if own else set()
    return Usage(points, stopped, has_samples, len(names)) if points else None


def _of_receipt(shard: Shard) -> list[Point]:
    """Return a level line over the time of the shard."""
    values = {
        name: float(shard.telemetry[key])
        for key, name in OF_RECEIPTS.items()
        if key in shard.telemetry and name.startswith("process.") is not shard.is_on_gpu
    }
    line = f"{shard.lane} {shard.name}"
    moments = shard.working if values else ()
    return [Point(moment, shard.lane, shard.name, line, values) for moment in moments]


def _sampled(attempt: telemetry.Attempt, shard: Shard, number: int, most: int) -> Iterator[Point]:
    """Yield the samples of one attempt, averaged to about `most` points at most, of all devices."""
    host = clipped(attempt.start.get("host", shard.host))
    held = {
        device["uuid"]: device
        for event in attempt.devices
        for device in event.get("devices", ())
        if {"uuid", "name", "kind"} <= set(device)
    }
    samples = _with_rates([s for s in attempt.samples if s.get("stage", "wait") != "wait"])
    size = max(1, -(-len(samples) * max(1, len(held)) // most))
    chunks = iter(samples)
    while chunk := list(islice(chunks, size)):
        moment = sum(sample["time"] for sample in chunk) / len(chunk)
        for uuid, values in _values(chunk).items():
            known = [held[uuid]] if uuid in held else []
            device = lane_of(known, host) if known else shard.lane
            yield Point(moment, device, shard.name, f"{device} {shard.name} {number}", values)


def _with_rates(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples with their `rate` over some seconds before each, where that is known.

    Work counts when its batch is committed. Between two commits nobody knows the rate: it is that
    from one to the other, and a sample that saw none has none.
    """
    found: list[dict[str, Any]] = []
    commits: list[dict[str, Any]] = []
    first = 0
    for sample in samples:
        rates = {}
        has_begun = sample.get("stage") != "load" and "cost_done" in sample
        if has_begun and (not commits or sample["cost_done"] > commits[-1]["cost_done"]):
            commits.append(sample)
            since = sample["time"] - RATE_SECONDS
            while first + 1 < len(commits) and commits[first + 1]["time"] <= since:
                first += 1
            seconds = sample["time"] - commits[first]["time"]
            if seconds > RATE_SECONDS / 2:
                rates["rate"] = (sample["cost_done"] - commits[first]["cost_done"]) / seconds
        found.append({key: value for key, value in sample.items() if key != "rate"} | rates)
    return found


def _values(samples: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return what the samples say together, by device; under "" what is of no GPU alone."""
    seen: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        gpus = [gpu for gpu in sample.get("devices", ()) if "uuid" in gpu]
        process = {f"process.{key}": value for key, value in sample.get("process", {}).items()}
        mine = [(gpu["uuid"], gpu) for gpu in gpus] or [("", process)]
        if "rate" in sample:  # of all devices that hold the model together
            mine[0] = (mine[0][0], {**mine[0][1], "rate": sample["rate"]})
        for uuid, values in mine:
            for key, value in values.items():
                if isinstance(value, int | float):
                    seen.setdefault(uuid, {}).setdefault(key, []).append(value)
    return {
        uuid: {key: max(v) if key in HIGHEST else sum(v) / len(v) for key, v in values.items()}
        for uuid, values in seen.items()
    }


def _stopped(attempts: list[telemetry.Attempt], shard: Shard) -> Iterator[Piece]:
    """Yield the attempts before the last one, back to where the shard had been done once before."""
    for attempt in reversed(attempts[:-1]):
        if (attempt.end or {}).get("status") == "ok":
            return
        devices = [event.get("devices") for event in attempt.devices if event.get("devices")]
        moments = [s["time"] for s in attempt.samples if s.get("stage", "wait") != "wait"]
        is_told = devices and all({"uuid", "name", "kind"} <= set(one) for one in devices[-1])
        if is_told and moments:
            last = (attempt.end or {}).get("time", moments[-1])
            lane = lane_of(devices[-1], clipped(attempt.start.get("host", shard.host)))
            yield Piece(shard.name, lane, Interval(moments[0], max(moments[0], last)), None)
