"""Sentences about the devices of a run: seconds by stage, energy, lowered clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.report.shards import CLOCK_TOLERANCE_SECONDS, Shard
from featuremill.store.delivery import Delivery

STAGES = ("run", "load", "write", "other", "wait")
MEANINGS = (
    ("run", "the device computed batches"),
    ("load", "the weights were read and put on the device"),
    ("write", "rows were saved while the device waited"),
    ("other", "starting Python and libraries, lost attempts, a device without work"),
    ("wait", "the shard waited for a free device"),
)


def seconds_by_stage(shards: Sequence[Shard]) -> dict[str, float]:
    """Return the seconds of each stage; their sum is the total of the shards.

    Batches are prepared and written while others run. So `write` is only the time that the device
    waited, and preparing is not counted. `other` is the rest.
    """
    seconds = [shard.receipt.seconds for shard in shards]
    spent = {name: sum(each[name] for each in seconds) for name in STAGES if name != "other"}
    hidden = sum(spent.values()) - sum(each["total"] for each in seconds)
    spent["write"] = max(0.0, spent["write"] - max(0.0, hidden))
    spent["other"] = max(0.0, -hidden)
    return spent


def stages(shards: Sequence[Shard]) -> str:
    """Return sentences on the seconds by stage, with advice."""
    spent = seconds_by_stage(shards)
    whole = sum(spent.values())
    parts = [f"{name} {words.share(spent[name], whole)}" for name in STAGES if spent[name] > 0]
    text = f"Of the {words.duration(whole)} of all shards, added up: {words.listed(parts)}."
    if spent["wait"] > 0.5 * whole:
        text += " Most was waiting for a free device: with more of them the run ends sooner."
    elif _are_small(shards):
        text += (
            " Fewer, larger shards would spend less on loading and starting: shards.cost: auto "
            "makes such of more records."
        )
    if any(shard.receipt.retries for shard in shards):
        text += " Attempts whose worker died count as other: see the shards that had trouble."
    return text


def _are_small(shards: Sequence[Shard]) -> bool:
    """Return whether larger shards would save time, without interrupted shards."""
    smooth = [s for s in shards if not s.receipt.retries and not s.receipt.resumed_batches]
    spent = seconds_by_stage(smooth)
    has_several = len(smooth) > len({shard.lane for shard in smooth})
    return has_several and spent["load"] + spent["other"] > 0.25 * sum(spent.values())


def sentences(shards: Sequence[Shard], delivery: Delivery) -> Iterator[str]:
    """Yield sentences on the seconds by stage, the energy of the GPUs, and lowered clocks."""
    if shards:
        yield stages(shards)
    measured = [shard for shard in shards if shard.receipt.own_energy_j is not None]
    per_million = delivery.gpu_energy_j_per_million
    # NVML measures a whole GPU, with all its jobs.
    if per_million is not None and not _are_side_by_side(measured):
        joules = math.fsum(shard.receipt.own_energy_j or 0 for shard in measured)
        some = "" if len(measured) == len(shards) else f" for {len(measured):,} of the shards"
        yield (
            f"The GPUs took {words.energy(joules)}{some}: {words.energy(float(per_million))} for "
            f"a million {delivery.lengths.unit}."
        )
    seconds: dict[str, float] = {}
    for shard in shards:
        for reason, amount in shard.receipt.telemetry.throttled_seconds.items():
            seconds[reason] = seconds.get(reason, 0.0) + amount
    if seconds:
        reasons = words.listed(
            f"{clipped(reason).replace('_', ' ')} {words.duration(amount)}"
            for reason, amount in sorted(seconds.items(), key=lambda pair: -pair[1])
        )
        yield (
            f"GPUs lowered their clocks: {reasons}. A power cap is usual under full load; a "
            "thermal limit asks for better cooling."
        )


def _are_side_by_side(shards: Sequence[Shard]) -> bool:
    """Return whether two shards were on the same devices at the same time."""
    ordered = sorted(shards, key=lambda shard: (shard.lane, shard.working))
    return any(
        earlier.lane == later.lane
        and later.working.begin < earlier.working.end - CLOCK_TOLERANCE_SECONDS
        for earlier, later in pairwise(ordered)
    )
