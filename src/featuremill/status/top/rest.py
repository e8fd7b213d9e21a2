"""How long until every part is there: the shards that are left, dealt out to the devices at work.

Each device goes on at its own pace of late and takes the largest waiting shard when it is free, as
the scheduler does; each shard brings its start-up with it. Where nothing tells a pace, no time is
named.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from featuremill.base.words import parsed
from featuremill.status.rest import newest_whole, working_seconds
from featuremill.status.top.jobs import Job
from featuremill.store.receipts import devices_of

MOST_DEALT = 5000
"""Waiting shards that are dealt out one by one; with more, where the last one runs is no matter."""
BETWEEN_SECONDS = 60.0
"""A device whose last part is finished for no longer than this is about to get the next shard."""
MOST_BETWEEN = 200
"""The newest receipts that are looked at for such devices."""


class Rest(NamedTuple):
    """An estimate, or why there is none."""

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


def estimate(
    jobs: Sequence[Job], waiting: Sequence[float], receipts: Sequence[dict[str, Any]], now: float
) -> Rest:
    """Return how long it takes, with the devices of late, until all `jobs` and shards of the costs
    `waiting` are computed; `receipts` are those of finished parts."""
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
        return Rest(None, 0, len(newest), why)
    if not known and not paces:
        return Rest(None, len(at_work), 0, "no batch is finished since the start")
    usual = sum(known) / len(known) if known else paces[""]
    slots = [_Slot(_left(job, pace or usual, startup), pace or usual) for job, pace in measured]
    slots += [_Slot(0.0, paces.get(uuid, usual)) for _, uuid in sorted(between)]
    return Rest(_deal(slots, waiting, startup), len(slots), len(newest))


def _between_jobs(
    receipts: Sequence[dict[str, Any]], at_work: Sequence[Job], now: float
) -> set[tuple[str, str]]:
    """Return host and UUID of the devices that finished a part a moment ago and have no job now:
    the next one is about to start."""
    taken = {(job.host, device.uuid) for job in at_work for device in job.devices}
    found = {
        (str(receipt.get("host", "")), devices_of(receipt)[0]["uuid"])
        for receipt in heapq.nlargest(MOST_BETWEEN, receipts, lambda one: str(one.get("finished")))
        if now - _finished(receipt) < BETWEEN_SECONDS
    }
    return found - taken


def _finished(receipt: dict[str, Any]) -> float:
    try:
        return parsed(receipt["finished"])
    except (KeyError, TypeError, ValueError):
        return 0.0


def _pace(job: Job, paces: Mapping[str, float]) -> float | None:
    """Return the job's seconds a cost: by its own batches, or by earlier parts of its device."""
    if job.pace:
        return 1 / job.pace
    return paces.get(job.devices[0].uuid) or paces.get("")


def _by_device(receipts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds a cost of each device, without start-up; under "", of all together."""
    sums: dict[str, tuple[float, float]] = {}
    for receipt in receipts:
        seconds = receipt["seconds"].get("compute") or working_seconds(receipt["seconds"])
        for uuid in (devices_of(receipt)[0]["uuid"], ""):
            before = sums.get(uuid, (0.0, 0.0))
            sums[uuid] = (before[0] + seconds, before[1] + receipt["cost"])
    return {uuid: seconds / cost for uuid, (seconds, cost) in sums.items()}


def _startup_seconds(receipts: Sequence[dict[str, Any]], jobs: Sequence[Job]) -> float:
    """Return how long a job is not computing: by finished parts, or by those that run."""
    told = [
        working_seconds(receipt["seconds"]) - receipt["seconds"]["compute"]
        for receipt in receipts
        if receipt["seconds"].get("compute")
    ]
    told = told or [job.startup_seconds for job in jobs if job.startup_seconds is not None]
    return max(0.0, sum(told) / len(told)) if told else 0.0


def _left(job: Job, seconds_a_cost: float, startup: float) -> float:
    """Return how long the job needs yet."""
    is_starting = job.stage == "load"
    before = max(0.0, startup - (job.computing_seconds or 0.0)) if is_starting else 0.0
    return before + job.cost_left * seconds_a_cost


def _deal(slots: list[_Slot], waiting: Sequence[float], startup: float) -> float:
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
