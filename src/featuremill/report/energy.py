"""The energy of the GPUs of a run, where NVML measured it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from featuremill.base import words
from featuremill.report.shards import CLOCK_TOLERANCE_SECONDS, Shard
from featuremill.store.files import Number

USES: tuple[tuple[str, Callable[[list[float]], float], str], ...] = (
    ("utilisation_percent", statistics.fmean, "%"),
    ("power_w", statistics.fmean, "W"),
    ("temperature_c", max, "°C"),
    ("cpu_percent", statistics.fmean, "% of a core"),
)


class Energy(NamedTuple):
    """Energy that GPUs took while they had shards."""

    joules: float
    per_million: float
    """Joules for a million of the `unit`: equal records count once."""
    unit: str
    """Of lengths, in the plural."""
    num_shards: int
    """Shards that it is of."""
    total_shards: int

    @property
    def sentence(self) -> str:
        """Both numbers in words."""
        is_whole = self.num_shards == self.total_shards
        of = "" if is_whole else f" for {self.num_shards:,} of the shards"
        return (
            f"The GPUs took {words.energy(self.joules)}{of}: {words.energy(self.per_million)} for "
            f"a million {self.unit}."
        )


def of(shards: Sequence[Shard], per_million: Number | None, unit: str) -> Energy | None:
    """Return the energy of the shards; None where it was not measured, or where jobs shared a GPU.

    NVML measures a GPU: the energy of a job that shares it is that of all its jobs.
    `per_million` is what manifest.json has for a million of the `unit` of lengths.
    """
    measured = [shard for shard in shards if shard.receipt.own_energy_j is not None]
    if per_million is None or _are_side_by_side(measured):
        return None
    joules = math.fsum(shard.receipt.own_energy_j or 0 for shard in measured)
    return Energy(joules, float(per_million), unit, len(measured), len(shards))


def use_of(shards: Sequence[Shard]) -> str:
    """Return in a few words how a device was used that had these shards."""
    phrases = []
    for key, combine, unit in USES:
        gauges = (getattr(shard.receipt.telemetry, key) for shard in shards)
        if values := [float(value) for value in gauges if value is not None]:
            phrases.append(f"{combine(values):,.0f}{words.NBSP}{unit}")
    return ", ".join(phrases)


def _are_side_by_side(shards: Sequence[Shard]) -> bool:
    """Tell whether two shards were on the same devices at the same time."""
    ordered = sorted(shards, key=lambda shard: (shard.lane, shard.working))
    return any(
        earlier.lane == later.lane
        and later.working.begin < earlier.working.end - CLOCK_TOLERANCE_SECONDS
        for earlier, later in pairwise(ordered)
    )
