"""How far a run is: what is finished, and what the jobs that run have done of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from featuremill.status.facts import ENDED
from featuremill.status.shards import Shard
from featuremill.status.top.jobs import Job


@dataclass(frozen=True)
class Totals:
    """How far the run is, over all shards of its plan."""

    shards: int = 0
    shards_done: int = 0
    records: int = 0
    """Distinct ones."""
    records_done: int = 0
    """With a row, be it a failed one."""
    records_failed: int = 0
    cost: float = 0.0
    cost_done: float = 0.0

    @property
    def share(self) -> float:
        """Return how much of the work is done, from 0 to 1."""
        return min(1.0, self.cost_done / self.cost) if self.cost else 1.0


def totals_of(shards: Sequence[Shard], jobs: Sequence[Job]) -> Totals:
    """Return how far the `shards` of a plan are, some of which `jobs` are at."""
    ended = [shard for shard in shards if shard.state in ENDED]
    taken = {job.shard for job in jobs}
    begun = [s for s in shards if s.work and s.state not in ENDED and s.name not in taken]
    done = sum(shard.records for shard in ended) + sum(job.rows_done for job in jobs)
    failed = sum(shard.receipt["failed"] for shard in ended if shard.receipt)
    cost = sum(shard.cost for shard in ended) + sum(job.cost - job.cost_left for job in jobs)
    return Totals(
        shards=len(shards),
        shards_done=len(ended),
        records=sum(shard.records for shard in shards),
        records_done=done + sum(shard.work.rows or 0 for shard in begun if shard.work),
        records_failed=failed + sum(job.rows_failed for job in jobs),
        cost=float(sum(shard.cost for shard in shards)),
        cost_done=cost + sum(shard.cost - cost_left(shard) for shard in begun),
    )


def cost_left(shard: Shard) -> float:
    """Return what is not computed yet of a shard that nobody is at."""
    rows = (shard.work.rows or 0) if shard.work else 0
    return shard.cost * (1 - rows / max(1, shard.records))
