"""Shards as the figures use them, and the clock time that they took.

Times are in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.store.receipt import Receipt, UsedDevice, gpus_of, name_of_devices

CLOCK_TOLERANCE_SECONDS = 1.0
"""Clocks are read before and after the lock: shards that overlap by less ran one after another."""


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
    device: str
    """The device's model, such as "NVIDIA H200" or "2 × NVIDIA L4"."""
    lane: str
    """The device, or those that held one model together: model, identity and host."""
    claimed: Interval
    """From the job's start, waiting for a device included."""
    working: Interval
    """On the device."""

    @property
    def name(self) -> str:
        return self.receipt.shard


class Piece(NamedTuple):
    """What a device did at one time: a shard's last attempt, or an earlier one."""

    name: str
    """The shard's."""
    lane: str
    working: Interval
    shard: Shard | None
    """None for an attempt that ended before the shard was done."""


def lane_of(devices: Sequence[UsedDevice], host: str) -> str:
    """Return the devices that held one model together: what they are called, model and host."""
    names = filter(None, (gpus_of(devices), clipped(name_of_devices(devices)), host))
    return " · ".join(names)


def numbered(receipts: Sequence[Receipt]) -> Iterator[Receipt]:
    """Yield `receipts` with one number for each GPU, the last known: early ones have none."""
    used = [device for receipt in receipts for device in receipt.devices]
    numbers = {device.uuid: device.number for device in used if device.number is not None}
    for receipt in receipts:
        known = [{"number": numbers.get(device.uuid)} for device in receipt.devices]
        devices = [one.model_copy(update=n) for one, n in zip(receipt.devices, known, strict=True)]
        yield receipt.model_copy(update={"devices": devices})


def shard_of(receipt: Receipt) -> Shard:
    """Return what the figures need of a receipt."""
    host, seconds = clipped(receipt.host), receipt.seconds
    started, finished = words.parsed(receipt.started), words.parsed(receipt.finished)
    # A receipt may carry whole seconds; its durations are finer.
    finished = max(finished, started + seconds["total"])
    return Shard(
        receipt=receipt,
        host=host,
        device=clipped(receipt.device_name),
        lane=lane_of(receipt.devices, host),
        claimed=Interval(started, finished),
        working=Interval(min(started + seconds["wait"], finished), finished),
    )


def busy_seconds(intervals: Iterable[Interval]) -> float:
    """Return how much clock time `intervals` cover."""
    return sum(span.seconds for span in _union(intervals))


def wall_seconds(intervals: Iterable[Interval]) -> float:
    """Return the clock time from the first begin to the last end, without the pauses.

    A run that was extended a month later has a month of nothing in its middle. A pause is longer
    than a tenth of the working time, and than a minute.
    """
    covered = _union(intervals)
    busy = sum(span.seconds for span in covered)
    gaps = [later.begin - earlier.end for earlier, later in pairwise(covered)]
    return busy + sum(gap for gap in gaps if gap <= max(60.0, 0.1 * busy))


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the spans that `intervals` cover, in order and disjoint."""
    covered: list[Interval] = []
    for begin, end in sorted(intervals):
        if covered and begin <= covered[-1].end:
            covered[-1] = Interval(covered[-1].begin, max(end, covered[-1].end))
        else:
            covered.append(Interval(begin, end))
    return covered
