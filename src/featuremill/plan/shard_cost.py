"""How large new shards are with `shards.cost: auto`: some minutes of a device each, and enough of
them for every device.

`choose` knows only numbers; `Sizing` has what is known of this machine.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from featuremill.base import environment
from featuremill.base.devices import Device
from featuremill.base.text import one_line, plain
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted, human_bytes, plain_duration
from featuremill.lease import Request, count_slots
from featuremill.plan.needs import residues_of
from featuremill.plan.speeds import JobSpec, Speed, find_first
from featuremill.store.disk_space import stored_bytes
from featuremill.store.plan import SHARDS_A_SLOT, Settings
from featuremill.workload import find_workload, optional

USUAL_SECONDS = 300.0
"""The seconds of computing a shard: start-up is a few per cent of them, and a run shows progress
often enough."""
LEAST_SECONDS = 30.0
MOST_STARTUP = 0.1
"""Share of a job's time."""
MOST_SHARDS = 2_000
"""Snakemake looks at every job that is ready whenever one ends (bench/figures.md)."""
MOST_RECORDS = 1_000_000
"""A worker lists them: digests, costs, an order."""
MOST_PAYLOAD_BYTES = 2**28
"""Up to `MAX_PROCESSES` processes write shards. Each holds its shard up to three times in memory:
the records, and copies in their order."""
MOST_PART_BYTES = 2**35
"""Parts are written and read as streams, so memory sets no limit. But a job that goes on hashes
what is there, a damaged part is computed again as a whole, and people copy and move such files."""
UNKNOWN_COST = 2_000_000
"""The cost of a shard where no speed is known: as many residues take a CPU some minutes."""
USUAL_CARD = "NVIDIA A100-SXM4-80GB"
"""Assumed for a GPU that is not named or not in the table. If a slower GPU were assumed, jobs of a
fast GPU would mostly start up."""


class Work(NamedTuple):
    cost: int
    records: int
    payload_bytes: int
    part_bytes: int
    """The bytes of all values in parts."""


def work_of(cost: int, records: int, payload_bytes: int, values: pa.Schema, unit: str) -> Work:
    """Return the work on so many records, which makes such `values`."""
    residues = residues_of(payload_bytes, unit, cost)
    return Work(cost, records, payload_bytes, stored_bytes(values, records, residues))


class Choice(NamedTuple):
    num_shards: int
    cost: int
    """The cost of a shard; `cuts` makes `num_shards` of them."""
    why: str
    speed: Speed | None
    seconds: float
    """The seconds of computing a shard; 0 without a speed."""

    @property
    def startup_seconds(self) -> float:
        return self.speed.startup_seconds if self.speed else 0.0

    @property
    def startup_share(self) -> float:
        """The share of a job's time in which it starts up."""
        return self.startup_seconds / (self.startup_seconds + self.seconds)

    def words(self, unit: str) -> str:
        """Return a sentence: the number of new shards, the reason, the share of start-ups, the
        speed."""
        new, speed = counted(self.num_shards, "new shard"), self.speed
        outcome = f"shards.cost: auto makes {new} of {self.cost:,} {unit}"
        if speed is None:
            return f"{outcome} ({self.why})"
        known = "measured" if speed.is_startup_measured else "an assumption"
        source = "an assumption, see featuremill estimate" if speed.is_assumed else speed.source
        each = " each" if self.num_shards > 1 else ""
        return plain(
            one_line(
                f"{outcome}, {plain_duration(self.seconds)} of computing{each} ({self.why}); a job "
                f"starts up for {self.startup_seconds:.1f} s ({known}), "
                f"{100 * self.startup_share:.0f} % of its time; {speed.device}: "
                f"{speed.cost_per_second:,.0f} {unit} a second ({source})"
            )
        )


def choose(work: Work, speed: Speed | None, slots: int, usual_cost: int = UNKNOWN_COST) -> Choice:
    """Return how to cut `work`, of which there is some, for so many jobs side by side.

    Shards of about `USUAL_SECONDS`, or smaller ones for each slot to get `SHARDS_A_SLOT`; none that
    starts up for more than `MOST_STARTUP` of its time, but where the whole work is no more than
    that. Without a speed, shards of about `usual_cost`, and none is too small where there are
    several slots: a slot that starts up once more loses seconds, and a slot without a shard loses
    the whole run. Whole rounds of all slots, since the last round keeps all of them waiting. What
    files may hold goes before all of that.
    """
    seconds, fewest, most, why_most = 0.0, SHARDS_A_SLOT * slots, MOST_SHARDS, ""
    if speed is None:
        usual, why = math.ceil(work.cost / usual_cost), f"about {usual_cost:,} each"
        fewest = fewest if slots > 1 else 1
    else:
        seconds, startup = work.cost / speed.cost_per_second, speed.startup_seconds
        usual = math.ceil(seconds / USUAL_SECONDS)
        why = f"some {USUAL_SECONDS / 60:.0f} minutes each"
        least_seconds = max(LEAST_SECONDS, startup * (1 / MOST_STARTUP - 1))
        most = max(1, int(seconds / least_seconds))
        why_most = f"less than {least_seconds:.0f} s is not worth a start-up of {startup:.1f} s"
    wanted = _rounds_up(max(usual, fewest), slots)
    possible = min(most, MOST_SHARDS, work.records)
    number = min(wanted, possible // slots * slots or possible)  # whole rounds, if it is one
    if number == wanted:
        if usual <= fewest == SHARDS_A_SLOT * slots:
            why = f"{SHARDS_A_SLOT} a slot, with {counted(slots, 'slot')}"
    elif work.records < min(most, MOST_SHARDS):
        why = "a shard has a record at least"
    else:
        slow = f"Snakemake slows down with more than {MOST_SHARDS:,}"
        why = slow if most >= MOST_SHARDS else why_most
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
    return Choice(number, max(1, -(-work.cost // number)), why, speed, seconds / number)


def _rounds_up(number: int, slots: int) -> int:
    return -(-number // slots) * slots


def is_better(number: int, than: int) -> bool:
    """Tell whether shards of which nothing is computed should be cut into another `number`.

    Only where that saves time, so that a small edit, or a plan on another machine, leaves them as
    they are: more shards feed idle slots, and far fewer save start-ups.
    """
    return number > 1.25 * than or 4 * number <= than


class Cut(NamedTuple):
    """How large new shards are."""

    cost: float
    """The mean cost of a shard."""
    why: str
    """A sentence; empty where the config says how large."""

    def shards(self, cost: int) -> int:
        """Return how many shards so much work makes."""
        return max(1, round(cost / self.cost)) if cost else 0


class Sizing(NamedTuple):
    """A run on this machine, as far as the size of its shards goes."""

    config_cost: int | Literal["auto"]
    results: Path
    """The folder of runs, whose receipts count."""
    settings: Settings
    weights: Path | None
    """weights/<name>.json, if the workload has any."""
    values: pa.Schema
    unit: str
    device: Device
    gpus: int
    """The number of GPUs that hold one model."""

    def cut(self, cost: int, records: int, payload_bytes: int) -> Cut:
        if not cost:
            return Cut(UNKNOWN_COST, "shards that exist stay as they are; no new ones are needed")
        if self.config_cost != "auto":
            return Cut(self.config_cost, "")
        choice = self.choice(cost, records, payload_bytes)
        why = choice.words(self.unit)
        if choice.speed is None:
            where = self.device.name if self.device.uuid else "a GPU"
            why += (
                f"; the speed of workload {self.settings.workload} on {where} is not known yet, "
                "and the first finished shard measures it"
            )
        return Cut(cost / choice.num_shards, why)

    def why_no_more(self, cost: int, records: int, payload_bytes: int) -> str:
        """Return why so much work makes no more shards."""
        choice = self.choice(cost, records, payload_bytes)
        if choice.speed is None or records < SHARDS_A_SLOT * self.slots:
            return f"{counted(records, 'distinct record')} left: a shard has one at least."
        seconds = choice.num_shards * choice.seconds
        return (
            f"All of it is about {plain_duration(seconds)} of computing, and each job takes "
            f"{choice.startup_seconds:.0f} s to start."
        )

    @property
    def slots(self) -> int:
        """How many jobs run side by side: on the CPU one, which takes all of its cores.

        Without a workflow that says its slots, those of the lease count, and where no GPU is here,
        one.
        """
        if self.device.kind == "cpu":
            return 1
        num_slots = environment.GPUS.value()  # what the workflow deals out; 0 outside one
        if not num_slots and self.device.uuid:  # elsewhere, what a lease is asked means other GPUs
            num_slots = count_slots(Request.from_environment())
        return max(1, num_slots // self.gpus)

    def choice(self, cost: int, records: int, payload_bytes: int) -> Choice:
        """Return what is best for so much work."""
        usual_cost = optional(find_workload(self.settings.workload), "SHARD_COST") or UNKNOWN_COST
        work = work_of(cost, records, payload_bytes, self.values, self.unit)
        return choose(work, self._speed(cost / max(1, records)), self.slots, usual_cost)

    def _speed(self, mean_cost: float) -> Speed | None:
        # How many cores a job gets is the workflow's to say: what jobs had before tells most.
        specs = [JobSpec(self.settings, self.device.name, is_gpu=False)]
        if self.device.kind == "cuda":
            # Where jobs go elsewhere, a profile may say to which cards (flow/jobs.py).
            here = self.device.name if self.device.uuid else ""
            names = dict.fromkeys((environment.GPU_MODEL.value() or here, ""))
            specs = [JobSpec(self.settings, name, True, self.gpus) for name in names]
        weights, cores = self.weights, num_cores()
        return find_first(specs, self.results, weights, mean_cost, USUAL_CARD, cores)
