"""What a person should know before the GPUs start: what does not fit, and what would idle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from featuremill.base.sizes import counted, human_bytes

Answer = Mapping[str, Any]
MOST_SHARDS = 5000
"""What Snakemake plans in half a minute; more than that slows it down (docs/how-far.md)."""


def of(answer: Answer) -> Iterator[str]:
    """Yield the sentences about what is odd in an estimate."""
    memory = answer["memory"]
    # What was measured is of the fullest device already.
    devices = 1 if memory["device_measured_mb"] else memory["devices_a_job"]
    needed = memory["device_measured_mb"] or memory["device_mb"] or 0
    if (has := memory["device_has_mb"]) and needed > devices * has:
        such = "one such GPU" if devices == 1 else f"{devices} such GPUs"
        yield (
            f"This model does not fit {such} of {has:,} MB: set gpus: {math.ceil(needed / has)} or "
            "more, or take larger ones."
        )
    disk = answer["disk"]
    if disk["bytes"] > disk["free_bytes"]:
        yield (
            f"What will be written, {human_bytes(disk['bytes'])}, is more than the "
            f"{human_bytes(disk['free_bytes'])} that are free on the disk; plan will refuse it."
        )
    if not answer["is_finished"]:
        yield from answer["large_outputs"]
    for row in answer["rows"]:
        if not answer["is_cut"]:  # what is best has its reason
            yield (
                f"With {row['slots']:,}, `shards.cost: auto` cuts "
                f"{counted(row['shards_left'], 'shard')} of {row['best_cost']:_} "
                f"{answer['cost_unit']}: {row['best_why']}."
            )
        elif _is_idle(answer, row):
            yield f"With {row['slots']:,}, {_idle(answer, row)}."
    if answer["shards"] > MOST_SHARDS:
        yield (
            f"{answer['shards']:,} shards are more than the {MOST_SHARDS:,} that Snakemake is "
            "quick with: larger ones, or several runs (docs/how-far.md)."
        )


def wants_smaller(answer: Answer, row: Answer) -> bool:
    """Tell whether smaller shards are advised, as devices would have none."""
    left = answer["shards_left"]
    return _is_idle(answer, row) and left == answer["shards"] and _num_best(answer, row) > left


def _is_idle(answer: Answer, row: Answer) -> bool:
    return bool(answer["shards_left"] < row["jobs"] and row["best_cost"])


def _num_best(answer: Answer, row: Answer) -> int:
    """Return how many shards of the best cost are left."""
    number: int = round(answer["cost_left"] / row["best_cost"])
    return number


def _idle(answer: Answer, row: Answer) -> str:
    what = ("GPU" if answer["device"] == "gpu" else "slot") + "s"
    if answer["memory"]["devices_a_job"] > 1:
        what = f"groups of {answer['memory']['devices_a_job']} GPUs"
    left, best = answer["shards_left"], _num_best(answer, row)
    told = f"{row['jobs'] - left:,} of {row['jobs']:,} {what} would have no shard at all"
    if left < answer["shards"]:  # to cut anew what is computed for the most part helps nobody
        return f"{told}: no more are left to compute"
    if best >= row["jobs"]:
        return f"{told}; shards of {row['best_cost']:_} would give each one, {best:,} in all"
    if best > left:
        return (
            f"{told}; the run is too small for so many: no more than {best:,} shards, of "
            f"{row['best_cost']:_}, are worth their start-up"
        )
    return f"{told}; the run is too small for so many: more shards would take no less time"
