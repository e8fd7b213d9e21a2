"""How the work spread over the devices: shards, records, and the share of time each was at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from featuremill.base.words import parsed
from featuremill.status.rest import working_seconds
from featuremill.status.top.jobs import Job
from featuremill.store.receipts import devices_of

Span = tuple[float, float]
Key = tuple[str, str]
"""Host and UUID: every host's CPU has the same."""


class Use(NamedTuple):
    """What one device did for the run."""

    host: str
    uuid: str
    name: str
    shards: int
    """Finished."""
    running: int
    """Jobs that are on it now."""
    records: int
    """Of both."""
    cost: float
    share_of_time: float
    """Of the time in which anything of the run was computed anywhere, from 0 to 1."""


class _Sum:
    """What is added up for one device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shards = 0
        self.records = 0
        self.cost = 0.0
        self.spans: list[Span] = []


class Spread:
    """Adds up receipts, each of them once."""

    def __init__(self) -> None:
        self._sums: dict[Key, _Sum] = {}
        self._spans: list[Span] = []

    def add(self, receipt: dict[str, Any]) -> None:
        """Count a finished part to each of the devices that held its model."""
        span = _span(receipt)
        self._spans += span
        for device in devices_of(receipt):
            key = (str(receipt.get("host", "")), device["uuid"])
            found = self._sums.setdefault(key, _Sum(device["name"]))
            found.shards += 1
            found.records += receipt["rows"]
            found.cost += receipt["cost"]
            found.spans += span

    def uses(self, jobs: Sequence[Job], now: float) -> list[Use]:
        """Return what each device did, `jobs` being at work now, in the order of names."""
        at_work = [job for job in jobs if job.is_at_work]
        current: dict[Key, list[Job]] = {}
        for job in at_work:
            for device in (one for one in job.devices if one.uuid):
                current.setdefault((job.host, device.uuid), []).append(job)
                self._sums.setdefault((job.host, device.uuid), _Sum(device.name))
        self._spans = joined(self._spans)
        everything = length([*self._spans, *(_until(now, job) for job in at_work)])
        uses = []
        for (host, uuid), done in sorted(self._sums.items()):
            here, done.spans = current.get((host, uuid), []), joined(done.spans)
            busy = length([*done.spans, *(_until(now, job) for job in here)])
            uses.append(
                Use(
                    host,
                    uuid,
                    done.name,
                    done.shards,
                    len(here),
                    done.records + sum(job.rows_done for job in here),
                    done.cost + sum(job.cost - job.cost_left for job in here),
                    busy / everything if everything else 0.0,
                )
            )
        return uses


def _span(receipt: dict[str, Any]) -> list[Span]:
    """Return when the part's devices were its own, in seconds since 1970; nothing if that is not
    told."""
    try:
        end = parsed(receipt["finished"])
        return [(end - working_seconds(receipt["seconds"]), end)]
    except (KeyError, TypeError, ValueError):
        return []


def _until(now: float, job: Job) -> Span:
    return now - (job.computing_seconds or 0.0) - job.silent_seconds, now


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans with those that overlap made one, in the order of time."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Return how long at least one of the spans lasts."""
    return sum(end - start for start, end in joined(spans))
