"""How long the rest takes: judged by this run's own parts, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from featuremill.status.shards import Shard

MOST_PARTS = 50
"""The newest parts, which tell most of the devices that are at work now."""


class Rest(NamedTuple):
    """An estimate."""

    job_seconds: float
    """For one job after the other."""
    jobs: int
    """At work now."""
    parts: int
    """That it is judged by."""

    @property
    def seconds(self) -> float | None:
        """Return the time on the clock with as many jobs as now; None while there are none."""
        return self.job_seconds / self.jobs if self.jobs else None


def estimate(shards: list[Shard]) -> Rest | None:
    """Return what the rest takes; None where nothing is left, or no part tells how long one
    takes."""
    pending = [shard for shard in shards if shard.state not in ("finished", "removed")]
    newest = newest_whole([shard.receipt for shard in shards if shard.receipt])
    seconds = sum(working_seconds(receipt["seconds"]) for receipt in newest)
    if not pending or not seconds:
        return None
    left = sum(shard.cost * (1 - _share_done(shard)) for shard in pending)
    a_cost = seconds / sum(receipt["cost"] for receipt in newest)
    jobs = sum(shard.state == "running" for shard in pending)
    return Rest(left * a_cost, jobs, len(newest))


def newest_whole(receipts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest `receipts` that tell how long a part takes, the oldest of them first.

    Parts that went on from an earlier job's batches do not tell: their seconds are of the end only.
    """
    whole = [one for one in receipts if one["cost"] and not one.get("resumed_batches")]
    return sorted(whole, key=lambda receipt: str(receipt.get("finished")))[-MOST_PARTS:]


def working_seconds(seconds: dict[str, float]) -> float:
    """Return how long a job was at it while it had its device."""
    return float(seconds.get("total", 0.0)) - float(seconds.get("wait", 0.0))


def _share_done(shard: Shard) -> float:
    return (shard.work.rows or 0) / max(1, shard.records) if shard.work else 0.0
