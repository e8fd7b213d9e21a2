"""How the work spread over the devices: shards, records, and the share of time each was at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from featuremill.status.time_left import finished_at
from featuremill.status.top.jobs import Job
from featuremill.store.receipt import Receipt

Span = tuple[float, float]
"""In seconds since 1970."""


@dataclass
class Use:
    """What one device did for the run."""

    host: str
    uuid: str
    """Every host's CPU has the same."""
    name: str
    shards: int = 0
    """Finished."""
    running: int = 0
    """Jobs that are on it now."""
    records: int = 0
    """Of both."""
    cost: float = 0.0
    share_of_time: float = 0.0
    """Of the time in which anything of the run was computed anywhere, from 0 to 1."""

    def as_json(self) -> dict[str, Any]:
        """Return it as programs get it."""
        return {**asdict(self), "share_of_time": round(self.share_of_time, 4)}


@dataclass
class _Done:
    """What is added up of the finished parts of one device."""

    use: Use
    spans: list[Span] = field(default_factory=list)


class Spread:
    """Adds up receipts, each of them once."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], _Done] = {}
        """By host and UUID."""
        self._spans: list[Span] = []

    def add(self, receipt: Receipt) -> None:
        """Count a finished part to each of the devices that held its model."""
        end = finished_at(receipt)
        span = [] if end is None else [(end - receipt.working_seconds, end)]
        self._spans += span
        for device in receipt.devices:
            done = self._device(receipt.host, device.uuid, device.name)
            done.use.shards += 1
            done.use.records += receipt.rows
            done.use.cost += receipt.cost
            done.spans += span

    def _device(self, host: str, uuid: str, name: str) -> _Done:
        return self._done.setdefault((host, uuid), _Done(Use(host, uuid, name)))

    def uses(self, jobs: Sequence[Job], now: float) -> list[Use]:
        """Return what each device did, `jobs` being at work now, in the order of names."""
        at_work = [job for job in jobs if job.is_at_work]
        current: dict[tuple[str, str], list[Job]] = {}
        for job in at_work:
            for device in (one for one in job.devices if one.uuid):
                self._device(job.host, device.uuid, device.name)
                current.setdefault((job.host, device.uuid), []).append(job)
        self._spans = joined(self._spans)
        everything = length([*self._spans, *(_until(now, job) for job in at_work)])
        uses = []
        for key, done in sorted(self._done.items(), key=lambda item: item[0]):
            here, done.spans, use = current.get(key, []), joined(done.spans), done.use
            busy = length([*done.spans, *(_until(now, job) for job in here)])
            uses.append(
                replace(
                    use,
                    running=len(here),
                    records=use.records + sum(job.rows_done for job in here),
                    cost=use.cost + sum(job.cost - job.cost_left for job in here),
                    share_of_time=busy / everything if everything else 0.0,
                )
            )
        return uses


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
