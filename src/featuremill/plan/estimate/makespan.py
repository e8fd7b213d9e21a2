"""When the last shard is done: jobs dealt to slots as Snakemake deals them, and what that wastes.

Snakemake's greedy scheduler ranks jobs by the size of their inputs, and all extract jobs have the
same input: so a free slot takes the next shard in the plan's order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.plan.estimate.overheads import (
    SNAKEMAKE_SECONDS_A_JOB,
    SNAKEMAKE_SECONDS_A_JOB_LEFT,
)


class Makespan(NamedTuple):
    """Shards on slots."""

    seconds: float
    """Until the last one is done."""
    computing: float
    """Seconds of all slots in which something was computed."""
    starting: float
    """In which jobs started and ended."""
    idle: float
    """In which a slot had no job, mostly at the end."""


def simulate(costs: Sequence[float] | npt.NDArray[np.float64], slots: int, rate: float,
             startup: float) -> Makespan:  # fmt: skip
    """Return how it goes when shards of `costs` run on `slots` of `rate` each, in their order."""
    free = [0.0] * min(slots, max(1, len(costs)))
    main_is_free = computing = 0.0
    for place, cost in enumerate(costs):
        start = max(free[0], main_is_free)
        left = len(costs) - place - 1
        main_is_free = start + SNAKEMAKE_SECONDS_A_JOB + SNAKEMAKE_SECONDS_A_JOB_LEFT * left
        computing += cost / rate
        heapq.heapreplace(free, start + startup + cost / rate)
    end, starting = max(free), startup * len(costs)
    return Makespan(end, computing, starting, max(0.0, end * slots - computing - starting))


def wasted(total: float, cost: float, slots: int, rate: float, startup: float) -> float:
    """Return the seconds of slots that shards of `cost` waste, expected before anything runs.

    Each shard costs its start-up, which asks for few of them. At the end a slot waits half a shard
    on average, since no two take the same time, and a last round that is not full keeps slots
    without any: that asks for small ones. Snakemake starts them one after the other. What a crash
    costs asks for neither: a job goes on from its last batch, so that is the start-up and the
    seconds since the last sync, whatever the shard is.
    """
    num_shards = max(1, round(total / cost))
    shard = total / num_shards / rate
    jobs_end = math.ceil(num_shards / slots) * (startup + shard)
    if num_shards > 1:
        # One round at least, also where some slots have no shard at all.
        rounds = max(1.0, num_shards / slots)
        spread = rounds * (startup + shard) + shard / 2 * (1 - 1 / slots)
        jobs_end = max(jobs_end, spread)
    a_job = SNAKEMAKE_SECONDS_A_JOB + SNAKEMAKE_SECONDS_A_JOB_LEFT * num_shards / 2
    started = min(slots, num_shards) * a_job
    end = max(started + jobs_end, num_shards * a_job + startup + shard)
    return end * slots - total / rate
