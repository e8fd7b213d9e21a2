"""Problems of shards that did not end the run (out of memory, dead workers), with remedies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from featuremill.report.shards import Shard
from featuremill.workload import optional_of

MAX_EXAMPLES = 3
MUCH_WAITING = 0.1
"""Share of the computing time from which waiting for the disk is reported."""


class Kind(NamedTuple):
    """A kind of problem."""

    name: str
    count: Callable[[Shard], int]
    """A function that returns the number of problems of a shard."""
    remedy: str
    """A text with placeholders for the workload's options."""


class Trouble(NamedTuple):
    """All shards with a problem of one kind."""

    name: str
    times: int
    num_shards: int
    remedy: str
    examples: list[str]
    """Names of shards and devices, the worst first."""


def waited_for_disk(shard: Shard) -> bool:
    """Return whether the device waited long for rows to be written; False for early receipts."""
    seconds = shard.receipt.seconds
    return seconds.get("waited_for_disk", 0.0) > MUCH_WAITING * seconds.get("compute", 0.0)


KINDS = (
    Kind(
        "memory ran out, batches were halved",
        lambda shard: shard.receipt.oom_splits,
        "Nothing is lost but time. A smaller batch{smaller batches} or a device with more memory "
        "spares it.",
    ),
    Kind(
        "the worker died and was started again",
        lambda shard: shard.receipt.retries,
        "Nothing is lost but time. The shard's log in logs/extract/ has the cause; "
        "featuremill doctor looks at the device.",
    ),
    Kind(
        f"the device waited for the disk, for more than {MUCH_WAITING:.0%} of its time",
        waited_for_disk,
        "Nothing is lost but time. Have the results on a faster disk, or less written"
        "{less written}.",
    ),
    Kind(
        "batches were kept from before a stop or a crash",
        lambda shard: shard.receipt.resumed_batches,
        "Nothing: the shard went on from there.",
    ),
)


def troubles_of(shards: Sequence[Shard], workload: str) -> list[Trouble]:
    """Return the problems of the shards by kind, with remedies that name the workload's options."""
    remedies, troubles = optional_of(workload, "REMEDIES"), []
    batches, written = (remedies.get(wish) for wish in ("smaller batches", "less written"))
    options = {
        "smaller batches": f" ({batches} in the options of {workload})" if batches else "",
        "less written": f": {written} ({workload})" if written else "",
    }
    for kind in KINDS:
        hit = sorted((s for s in shards if kind.count(s)), key=kind.count, reverse=True)
        if hit:
            examples = [f"{shard.name[:8]} on {shard.lane}" for shard in hit[:MAX_EXAMPLES]]
            times = sum(kind.count(shard) for shard in hit)
            remedy = kind.remedy.format_map(options)
            troubles.append(Trouble(kind.name, times, len(hit), remedy, examples))
    return troubles
