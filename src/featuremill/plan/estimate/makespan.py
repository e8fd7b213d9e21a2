"""When the last shard is done: jobs dealt to slots as Snakemake deals them, and what that wastes.

Snakemake's greedy scheduler ranks jobs by the size of their inputs, and all extract jobs have the
same input: so a free slot takes the next shard in the plan's order.
"""

from __future__ import annotations

import heapq
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
