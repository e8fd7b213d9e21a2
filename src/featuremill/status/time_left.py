"""How long until every part is there, judged by this run's own parts and jobs, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from featuremill.status.jobs import Job
from featuremill.store.receipt import Receipt, newest_whole


class TimeLeft(NamedTuple):
    """An estimate."""

    job_seconds: float
    """For one job after the other."""
    jobs: int
    """At work now."""
    parts: int
    """Finished ones that it is judged by, besides the batches of late."""
    longest_seconds: float = 0.0
    """What the job at work needs that has the most left."""

    @property
    def seconds(self) -> float | None:
        """The time on the clock with as many jobs as now; None while there are none."""
        return max(self.job_seconds / self.jobs, self.longest_seconds) if self.jobs else None

    def as_json(self) -> dict[str, Any]:
        names = ("job_seconds", "jobs", "parts", "seconds")
        return {name: getattr(self, name) for name in names}


def time_left(
    waiting: Sequence[float], jobs: Sequence[Job], receipts: Iterable[Receipt]
) -> TimeLeft | None:
    """Return how long it takes until all `jobs` and the shards of the costs `waiting` are computed.

    A job continues at its own pace, where it has one; all else takes as long as the newest
    parts took, with their start-up. None where nothing is left, or no speed is known.
    """
    newest = newest_whole(receipts)
    seconds = sum(receipt.working_seconds for receipt in newest)
    speeds = [job.pace for job in jobs if job.pace]
    if not (waiting or jobs) or not (seconds or speeds):
        return None
    if seconds:
        seconds_a_cost = seconds / sum(receipt.cost for receipt in newest)
    else:
        seconds_a_cost = len(speeds) / sum(speeds)
    own = [job.cost_left / job.pace if job.pace else job.cost_left * seconds_a_cost for job in jobs]
    job_seconds = sum(own) + sum(waiting) * seconds_a_cost
    return TimeLeft(job_seconds, len(jobs), len(newest), max(own, default=0.0))
