"""The shards of a run and earlier attempts at them; times are in seconds since 1970. Problems of
shards that did not end the run (out of memory, dead workers), with remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.store import telemetry
from featuremill.store.receipt import Receipt, UsedDevice, gpus_of, name_of_devices
from featuremill.store.results import Results
from featuremill.workload import optional_of

MAX_FILES = 200
"""Largest number of shards for which telemetry is read to find earlier attempts."""
CLOCK_TOLERANCE_SECONDS = 1.0
"""Overlap below which two shards ran one after the other, as clocks are read around the lock."""


class Interval(NamedTuple):
    """A span of clock time."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Shard(NamedTuple):
    """A receipt, with the names and times that the page shows."""

    receipt: Receipt
    host: str
    lane: str
    """The name of the device, or of devices that shared a model, with model and host."""
    working: Interval
    """The time on the device."""

    @property
    def name(self) -> str:
        return self.receipt.shard


class Piece(NamedTuple):
    """An attempt at a shard."""

    name: str
    """The name of the shard."""
    lane: str
    working: Interval
    shard: Shard | None
    """The finished shard; None if the attempt did not finish it."""


def pieces_of(results: Results, shards: Sequence[Shard]) -> list[Piece]:
    """Return the shards and, for up to `MAX_FILES` shards, the earlier attempts in telemetry."""
    pieces = [Piece(shard.name, shard.lane, shard.working, shard) for shard in shards]
    for shard in shards if len(shards) <= MAX_FILES else ():
        attempts = telemetry.read(results.telemetry(shard.receipt.recipe, shard.name))
        for attempt in reversed(attempts[:-1]):
            if (attempt.end or {}).get("status") == "ok":
                break
            devices = [used for event in attempt.devices if (used := _devices_of(event))]
            moments = [s["time"] for s in attempt.samples if s.get("stage", "wait") != "wait"]
            if devices and moments:
                last = max(moments[0], (attempt.end or {}).get("time", moments[-1]))
                lane = lane_of(devices[-1], clipped(attempt.start.get("host", shard.host)))
                pieces.append(Piece(shard.name, lane, Interval(moments[0], last), None))
    return pieces


def _devices_of(event: dict[str, Any]) -> list[UsedDevice]:
    """Return the devices in an event that have all identifying keys."""
    return [
        UsedDevice(**{key: device[key] for key in UsedDevice.model_fields if key in device})
        for device in event.get("devices", ())
        if {"kind", "uuid", "name"} <= set(device)
    ]


def lane_of(devices: Sequence[UsedDevice], host: str) -> str:
    """Return the name of devices that shared a model, with model and host."""
    names = filter(None, (gpus_of(devices), clipped(name_of_devices(devices)), host))
    return " · ".join(names)


def shard_of(receipt: Receipt) -> Shard:
    """Return the shard of a receipt, with its names and times for figures."""
    host, seconds = clipped(receipt.host), receipt.seconds
    started, finished = words.parsed(receipt.started), words.parsed(receipt.finished)
    # A receipt's times may be whole seconds; its durations are more precise.
    finished = max(finished, started + seconds["total"])
    return Shard(
        receipt=receipt,
        host=host,
        lane=lane_of(receipt.devices, host),
        working=Interval(min(started + seconds["wait"], finished), finished),
    )


def busy_seconds(intervals: Iterable[Interval]) -> float:
    """Return the seconds that `intervals` cover."""
    return sum(span.seconds for span in _union(intervals))


def wall_seconds(intervals: Iterable[Interval]) -> float:
    """Return the seconds from the first begin to the last end, without pauses.

    A pause, as before an extension of a run, is longer than a tenth of the working time and than a
    minute.
    """
    covered = _union(intervals)
    busy = sum(span.seconds for span in covered)
    gaps = [later.begin - earlier.end for earlier, later in pairwise(covered)]
    return busy + sum(gap for gap in gaps if gap <= max(60.0, 0.1 * busy))


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of `intervals` as disjoint intervals in order."""
    covered: list[Interval] = []
    for begin, end in sorted(intervals):
        if covered and begin <= covered[-1].end:
            covered[-1] = Interval(covered[-1].begin, max(end, covered[-1].end))
        else:
            covered.append(Interval(begin, end))
    return covered


MAX_EXAMPLES = 3
MUCH_WAITING = 0.1
"""Share of the computing time from which waiting for the disk is reported."""


class Kind(NamedTuple):
    """A kind of problem."""

    name: str
    count: Callable[[Shard], int]
    """A function that returns the number of problems of a shard."""
    remedy: str
    """A text with placeholders for the workload's options."""


class Trouble(NamedTuple):
    """All shards with a problem of one kind."""

    name: str
    times: int
    num_shards: int
    remedy: str
    examples: list[str]
    """Names of shards and devices, the worst first."""


def waited_for_disk(shard: Shard) -> bool:
    """Return whether the device waited long for rows to be written; False for early receipts."""
    seconds = shard.receipt.seconds
    return seconds.get("waited_for_disk", 0.0) > MUCH_WAITING * seconds.get("compute", 0.0)


KINDS = (
    Kind(
        "memory ran out, batches were halved",
        lambda shard: shard.receipt.oom_splits,
        "Nothing is lost but time. A smaller batch{smaller batches} or a device with more memory "
        "spares it.",
    ),
    Kind(
        "the worker died and was started again",
        lambda shard: shard.receipt.retries,
        "Nothing is lost but time. The shard's log in logs/extract/ has the cause; "
        "featuremill doctor looks at the device.",
    ),
    Kind(
        f"the device waited for the disk, for more than {MUCH_WAITING:.0%} of its time",
        waited_for_disk,
        "Nothing is lost but time. Have the results on a faster disk, or less written"
        "{less written}.",
    ),
    Kind(
        "batches were kept from before a stop or a crash",
        lambda shard: shard.receipt.resumed_batches,
        "Nothing: the shard went on from there.",
    ),
)


def troubles_of(shards: Sequence[Shard], workload: str) -> list[Trouble]:
    """Return the problems of the shards by kind, with remedies that name the workload's options."""
    remedies, troubles = optional_of(workload, "REMEDIES"), []
    batches, written = (remedies.get(wish) for wish in ("smaller batches", "less written"))
    options = {
        "smaller batches": f" ({batches} in the options of {workload})" if batches else "",
        "less written": f": {written} ({workload})" if written else "",
    }
    for kind in KINDS:
        hit = sorted((s for s in shards if kind.count(s)), key=kind.count, reverse=True)
        if hit:
            examples = [f"{shard.name[:8]} on {shard.lane}" for shard in hit[:MAX_EXAMPLES]]
            times = sum(kind.count(shard) for shard in hit)
            remedy = kind.remedy.format_map(options)
            troubles.append(Trouble(kind.name, times, len(hit), remedy, examples))
    return troubles
