"""How large new shards are with `shards.cost: auto`: some minutes of a device each, and enough of
them for every device.

`choose` knows only numbers. What is known of this machine for it is gathered in `plan/sizing.py`,
and of machines that are elsewhere by `estimate`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pyarrow as pa

from featuremill.base.text import one_line, plain
from featuremill.base.words import counted, human_bytes, plain_duration
from featuremill.plan.needs import residues_of
from featuremill.plan.speeds import Speed
from featuremill.store.disk_space import stored_bytes
from featuremill.store.plan import SHARDS_A_SLOT

USUAL_SECONDS = 300.0
"""Of computing a shard: start-up is a few per cent of it, and people see their run move."""
LEAST_SECONDS = 30.0
MOST_STARTUP = 0.1
"""Share of a job's time."""
MOST_SHARDS = 2_000
"""Snakemake looks at every job that is ready whenever one ends (docs/performance.md)."""
MOST_RECORDS = 1_000_000
"""A worker lists them: digests, costs, an order."""
MOST_PAYLOAD_BYTES = 2**28
"""Each of plan's helpers, of which there are up to eight, has a shard in memory up to three times
while it is written: its records, and copies in their order."""
MOST_PART_BYTES = 2**35
"""Parts are written and read as streams, so memory sets no limit. But a job that goes on hashes
what is there, a damaged part is computed again as a whole, and people copy and move such files."""


class Work(NamedTuple):
    cost: int
    records: int
    payload_bytes: int
    part_bytes: int
    """Of all its values, as parts hold them."""


def work_of(cost: int, records: int, payload_bytes: int, values: pa.Schema, unit: str) -> Work:
    """Return the work on so many records, which makes such `values`."""
    residues = residues_of(payload_bytes, unit, cost)
    return Work(cost, records, payload_bytes, stored_bytes(values, records, residues))


class Choice(NamedTuple):
    cost: int
    """Of a shard: by this plan's `cuts` makes `num_shards`."""
    num_shards: int
    seconds: float
    """Of computing a shard."""
    startup_seconds: float
    why: str
    """Not more and not fewer, in words."""

    @property
    def startup_share(self) -> float:
        """The share of a job's time in which it starts up."""
        return self.startup_seconds / (self.startup_seconds + self.seconds)


def choose(work: Work, speed: Speed, slots: int) -> Choice:
    """Return how to cut `work`, of which there is some, for so many jobs side by side.

    Shards of about `USUAL_SECONDS`, or smaller ones for each slot to get `SHARDS_A_SLOT`; none that
    starts up for more than `MOST_STARTUP` of its time, but where the whole work is no more than
    that. Whole rounds of all slots, since the last round keeps all of them waiting. What files may
    hold goes before all of that.
    """
    rate, startup = speed.cost_per_second.middle, speed.startup_seconds.middle
    seconds = work.cost / rate
    least_seconds = max(LEAST_SECONDS, startup * (1 / MOST_STARTUP - 1))
    number, why = _number(
        work,
        slots,
        usual=math.ceil(seconds / USUAL_SECONDS),
        fewest=SHARDS_A_SLOT * slots,
        most=max(1, int(seconds / least_seconds)),
        why_usual=f"some {USUAL_SECONDS / 60:.0f} minutes each",
        why_most=f"less than {least_seconds:.0f} s is not worth a start-up of {startup:.1f} s",
    )
    cost = max(1, -(-work.cost // number))
    return Choice(cost, number, seconds / number, startup, why)


def choose_without_speed(work: Work, usual_cost: int, slots: int) -> tuple[int, int, str]:
    """Return the cost of a shard, how many there are and why, where no speed is known.

    Shards of about `usual_cost`; where several jobs run side by side, smaller ones for each slot to
    get `SHARDS_A_SLOT`. The time that a shard takes is unknown, so none is too small: a slot that
    starts up once more loses seconds, and a slot without a shard loses the whole run.
    """
    number, why = _number(
        work,
        slots,
        usual=math.ceil(work.cost / usual_cost),
        fewest=SHARDS_A_SLOT * slots if slots > 1 else 1,
        most=MOST_SHARDS,
        why_usual=f"about {usual_cost:,} each",
        why_most="",
    )
    return max(1, -(-work.cost // number)), number, why


def _number(
    work: Work, slots: int, *, usual: int, fewest: int, most: int, why_usual: str, why_most: str
) -> tuple[int, str]:
    """Return how many shards there are and why: the `usual` number, not fewer than `fewest`, in
    whole rounds of all slots; not more than `most` (which has its reason), than records, and than
    Snakemake takes; and as many as files may hold."""
    wanted = _rounds_up(max(usual, fewest), slots)
    number = min(wanted, _rounds_down(min(most, MOST_SHARDS, work.records), slots))
    if number == wanted:
        why = why_usual
        if usual <= fewest and slots * SHARDS_A_SLOT == fewest:
            why = f"{SHARDS_A_SLOT} a slot, with {counted(slots, 'slot')}"
    elif work.records < min(most, MOST_SHARDS):
        why = "a shard has a record at least"
    elif most >= MOST_SHARDS:
        why = f"Snakemake slows down with more than {MOST_SHARDS:,}"
    else:
        why = why_most
    few = why
    for size, largest, what in (
        (work.records, MOST_RECORDS, f"{MOST_RECORDS:,} records"),
        (work.payload_bytes, MOST_PAYLOAD_BYTES, f"{human_bytes(MOST_PAYLOAD_BYTES)} of records"),
        (work.part_bytes, MOST_PART_BYTES, f"{human_bytes(MOST_PART_BYTES)} of values"),
    ):
        if (needed := math.ceil(size / largest)) > number:
            number = needed if needed < slots else _rounds_up(needed, slots)
            limit = f"a file holds {what} at most"
            why = f"{few}, but {limit}" if number < slots else limit
    if number < slots:
        why += f", so {slots - number:,} of {slots:,} slots get none"
    return number, why


def _rounds_up(number: int, slots: int) -> int:
    return -(-number // slots) * slots


def _rounds_down(number: int, slots: int) -> int:
    """Return `number` less what makes no whole round; what is not even one stays."""
    return number // slots * slots or number


def words(choice: Choice, speed: Speed, unit: str) -> str:
    """Return the sentence about a choice: what, why, what start-ups take, and by what speed."""
    known = "measured" if speed.is_startup_measured else "an assumption"
    source = "an assumption, see featuremill estimate" if speed.is_assumed else speed.source
    each = " each" if choice.num_shards > 1 else ""
    said = (
        f"shards.cost: auto makes {counted(choice.num_shards, 'new shard')} of {choice.cost:,} "
        f"{unit}, {plain_duration(choice.seconds)} of computing{each} ({choice.why}); a job "
        f"starts up for {choice.startup_seconds:.1f} s ({known}), "
        f"{100 * choice.startup_share:.0f} % of its time; {speed.device}: "
        f"{speed.cost_per_second.middle:,.0f} {unit} a second ({source})"
    )
    return plain(one_line(said))
