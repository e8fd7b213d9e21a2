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

from featuremill.estimate.overheads import SNAKEMAKE_SECONDS_A_JOB

MOST_SHARDS = 5000
"""What Snakemake plans in half a minute; more than that slows it down (docs/how-far.md)."""
LONGEST_JOB_SECONDS = 3600.0
"""A job should end within the limits of a cluster's queues, and a bad part costs a whole job."""


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
    for cost in costs:
        start = max(free[0], main_is_free)
        main_is_free = start + SNAKEMAKE_SECONDS_A_JOB
        computing += cost / rate
        heapq.heapreplace(free, start + startup + cost / rate)
    end, starting = max(free), startup * len(costs)
    return Makespan(end, computing, starting, max(0.0, end * slots - computing - starting))


def best_cost(total: float, slots: int, rate: float, startup: float) -> int:
    """Return the cost of a shard that wastes least of `slots` on a work of `total`.

    Each shard costs its start-up, which asks for few of them; at the end each slot waits half a
    shard on average, which asks for small ones. Startup x total / cost + slots x cost / (2 rate) is
    least where both are equal. What a crash costs asks for neither: a job goes on from its last
    batch, so it is the start-up and the seconds since the last sync, whatever the shard is.
    """
    best = math.sqrt(2 * startup * rate * total / slots)
    least = max(total / MOST_SHARDS, 2 * slots * SNAKEMAKE_SECONDS_A_JOB * rate)
    most = min(total / slots, LONGEST_JOB_SECONDS * rate)
    return _rounded(max(1.0, min(max(best, least), max(most, total / MOST_SHARDS))))


def _rounded(value: float) -> int:
    """Return `value` with two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(value)) - 1))
    return max(1, round(value / unit) * unit)


def wasted(total: float, cost: float, slots: int, rate: float, startup: float) -> float:
    """Return the seconds of slots that shards of `cost` waste on average: see `best_cost`."""
    num_shards = max(1, round(total / cost))
    at_the_end = min(slots, num_shards) * total / num_shards / (2 * rate)
    unused = max(0, slots - num_shards) * (total / num_shards / rate + startup)
    return startup * num_shards + (at_the_end if num_shards > 1 else 0.0) + unused
