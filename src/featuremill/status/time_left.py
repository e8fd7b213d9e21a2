"""How long until every part is there, judged by this run's own parts and jobs, or not at all.

`by_jobs` goes by finished parts alone: one job after the other, shared out among those at work.
`by_devices` deals the shards that are left out to the devices at work: each goes on at its own pace
of late and takes the largest waiting shard when it is free, as the scheduler does; each shard
brings its start-up with it. Where nothing tells a pace, no time is named.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from featuremill.base.words import parsed
from featuremill.status.shards import Shard
from featuremill.store.receipt import Receipt, newest_whole

if TYPE_CHECKING:
    from featuremill.status.top.jobs import Job

MOST_DEALT = 5000
"""Waiting shards that are dealt out one by one; with more, where the last one runs is no matter."""
BETWEEN_SECONDS = 60.0
"""A device whose last part is finished for no longer than this is about to get the next shard."""
MOST_BETWEEN = 200
"""The newest receipts that are looked at for such devices."""


class JobTime(NamedTuple):
    """An estimate by jobs."""

    job_seconds: float
    """For one job after the other."""
    jobs: int
    """At work now."""
    parts: int
    """That it is judged by."""

    @property
    def seconds(self) -> float | None:
        """The time on the clock with as many jobs as now; None while there are none."""
        return self.job_seconds / self.jobs if self.jobs else None


class DeviceTime(NamedTuple):
    """An estimate by devices, or why there is none."""

    seconds: float | None
    devices: int
    """At work, or between two jobs: the estimate counts on as many."""
    parts: int
    """Finished ones that it is judged by, besides the batches of late."""
    why_not: str = ""


class _Slot(NamedTuple):
    """A device at work."""

    free_in_seconds: float
    seconds_a_cost: float


def newest_of(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return as many of the newest `receipts` as an estimate looks at, the newest first."""
    return heapq.nlargest(MOST_BETWEEN, receipts, key=lambda receipt: receipt.finished)


def finished_at(receipt: Receipt) -> float | None:
    """Return when the part was finished, in seconds since 1970; None where nothing tells."""
    try:
        return parsed(receipt.finished)
    except ValueError:
        return None


def by_jobs(shards: Sequence[Shard]) -> JobTime | None:
    """Return how long the `shards` of a plan take that are left; None where nothing is left, or no
    part tells how long one takes."""
    pending = [shard for shard in shards if not shard.has_ended]
    newest = newest_whole(shard.receipt for shard in shards if shard.receipt)
    seconds = sum(receipt.working_seconds for receipt in newest)
    if not pending or not seconds:
        return None
    seconds_a_cost = seconds / sum(receipt.cost for receipt in newest)
    jobs = sum(shard.state == "running" for shard in pending)
    return JobTime(sum(s.cost_left for s in pending) * seconds_a_cost, jobs, len(newest))


def by_devices(
    jobs: Sequence[Job], waiting: Iterable[float], receipts: Sequence[Receipt], now: float
) -> DeviceTime:
    """Return how long it takes, with the devices of late, until all `jobs` and shards of the costs
    `waiting` are computed; `receipts` are those of the newest parts."""
    newest = newest_whole(receipts)
    paces, startup = _by_device(newest), _startup_seconds(newest, jobs)
    at_work = [job for job in jobs if job.is_at_work and not job.is_silent]
    # Nobody knows whether a silent job goes on: what it has left may be another one's to do.
    silent = [job.cost_left for job in jobs if job.is_at_work and job.is_silent]
    waiting = [*waiting, *silent]
    measured = [(job, _pace(job, paces)) for job in at_work]
    known = [pace for _, pace in measured if pace]
    between = _between_jobs(receipts, at_work, now) if waiting else set()
    if not at_work and not between:
        is_waiting = any(job.stage == "wait" for job in jobs)
        why = "every job waits for a device" if is_waiting else "no job is at work"
        return DeviceTime(None, 0, len(newest), why)
    if not known and not paces:
        return DeviceTime(None, len(at_work), 0, "no batch is finished since the start")
    usual = sum(known) / len(known) if known else paces[""]
    slots = [_Slot(_left(job, pace or usual, startup), pace or usual) for job, pace in measured]
    slots += [_Slot(0.0, paces.get(uuid, usual)) for _, uuid in sorted(between)]
    return DeviceTime(_dealt(slots, waiting, startup), len(slots), len(newest))


def _between_jobs(
    receipts: Iterable[Receipt], at_work: Sequence[Job], now: float
) -> set[tuple[str, str]]:
    """Return host and UUID of the devices that finished a part a moment ago and have no job now:
    the next one is about to start."""
    taken = {(job.host, device.uuid) for job in at_work for device in job.devices}
    found = {
        (receipt.host, receipt.devices[0].uuid)
        for receipt in receipts
        if now - (finished_at(receipt) or 0.0) < BETWEEN_SECONDS
    }
    return found - taken


def _pace(job: Job, paces: Mapping[str, float]) -> float | None:
    """Return the job's seconds a cost: by its own batches, or by earlier parts of its device."""
    if job.pace:
        return 1 / job.pace
    return paces.get(job.devices[0].uuid) or paces.get("")


def _by_device(receipts: Iterable[Receipt]) -> dict[str, float]:
    """Return the seconds a cost of each device, without start-up; under "", of all together."""
    seconds: defaultdict[str, float] = defaultdict(float)
    cost: defaultdict[str, float] = defaultdict(float)
    for receipt in receipts:
        for uuid in (receipt.devices[0].uuid, ""):
            seconds[uuid] += receipt.seconds.get("compute") or receipt.working_seconds
            cost[uuid] += receipt.cost
    return {uuid: seconds[uuid] / cost[uuid] for uuid in seconds}


def _startup_seconds(receipts: Iterable[Receipt], jobs: Iterable[Job]) -> float:
    """Return how long a job is not computing: by finished parts, or by those that run."""
    told = [
        receipt.working_seconds - receipt.seconds["compute"]
        for receipt in receipts
        if receipt.seconds.get("compute")
    ]
    told = told or [job.startup_seconds for job in jobs if job.startup_seconds is not None]
    return max(0.0, sum(told) / len(told)) if told else 0.0


def _left(job: Job, seconds_a_cost: float, startup: float) -> float:
    """Return how long the job needs yet."""
    is_starting = job.stage == "load"
    before = max(0.0, startup - (job.computing_seconds or 0.0)) if is_starting else 0.0
    return before + job.cost_left * seconds_a_cost


def _dealt(slots: list[_Slot], waiting: Sequence[float], startup: float) -> float:
    """Return when the last slot is done, the largest waiting shard going to the first free one."""
    if len(waiting) > MOST_DEALT:
        speed = sum(1 / slot.seconds_a_cost for slot in slots)
        more = sum(waiting) / speed + startup * len(waiting) / len(slots)
        return sum(slot.free_in_seconds for slot in slots) / len(slots) + more
    queue = list(slots)
    heapq.heapify(queue)
    for cost in sorted(waiting, reverse=True):
        free, pace = queue[0]
        heapq.heapreplace(queue, _Slot(free + startup + cost * pace, pace))
    return max(slot.free_in_seconds for slot in queue)
