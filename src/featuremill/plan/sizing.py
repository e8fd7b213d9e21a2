"""What `shards.cost: auto` goes by on this machine: how fast a job is, and how many run side by
side."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from featuremill.base import environment
from featuremill.base.errors import UserError
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted, plain_duration
from featuremill.lease import Request, count_slots
from featuremill.lease.devices import Device
from featuremill.plan import speeds
from featuremill.plan.shard_cost import (
    Choice,
    choose,
    choose_without_speed,
    words,
    work_of,
)
from featuremill.plan.speeds import Asked, Speed
from featuremill.store.plan import SHARDS_A_SLOT, Settings
from featuremill.workload import find_workload, optional

UNKNOWN_COST = 2_000_000
"""Where nothing is known of the speed: as many residues are some minutes of a CPU, and no more of
anything else."""
USUAL_CARD = "NVIDIA A100-SXM4-80GB"
"""Stands in for a GPU that nobody named, or that the table lacks: by a slower one, a fast card
would start up for most of its time."""


def is_better(number: int, than: int) -> bool:
    """Tell whether shards of which nothing is computed should be cut into another `number`.

    Only where that saves time, so that a small edit, or a plan on another machine, leaves them as
    they are: more shards feed idle slots, and far fewer save start-ups.
    """
    return number > 1.25 * than or 4 * number <= than


class Cut(NamedTuple):
    """How large new shards are."""

    cost: float
    """Of a shard, on average."""
    why: str
    """A sentence; empty where the config says how large."""

    def shards(self, cost: int) -> int:
        """Return how many shards so much work makes."""
        return max(1, round(cost / self.cost)) if cost else 0


class Sizing(NamedTuple):
    """A run on this machine, as far as the size of its shards goes."""

    asked: int | Literal["auto"]
    """`shards.cost` of the config."""
    results: Path
    """The folder of runs, whose receipts count."""
    settings: Settings
    weights: Path | None
    """weights/<name>.json, if the workload has any."""
    values: pa.Schema
    unit: str
    device: Device
    gpus: int
    """That hold one model."""

    def cut(self, cost: int, records: int, payload_bytes: int) -> Cut:
        if not cost:
            return Cut(UNKNOWN_COST, "shards that exist stay as they are; no new ones are needed")
        if self.asked != "auto":
            return Cut(self.asked, "")
        chosen = self.choice(cost, records, payload_bytes)
        if chosen:
            return Cut(cost / chosen[0].num_shards, words(*chosen, self.unit))
        name = self.settings.workload
        usual = optional(find_workload(name), "SHARD_COST") or UNKNOWN_COST
        work = work_of(cost, records, payload_bytes, self.values, self.unit)
        each, number, why = choose_without_speed(work, usual, self.slots)
        where = self.device.name if self.device.uuid else "a GPU"
        return Cut(
            cost / number,
            f"shards.cost: auto makes {counted(number, 'new shard')} of {each:,} {self.unit} "
            f"({why}); the speed of workload {name} on {where} is not known yet, and the first "
            "finished shard measures it",
        )

    def why_no_more(self, cost: int, records: int, payload_bytes: int) -> str:
        """Return why so much work makes no more shards."""
        chosen = self.choice(cost, records, payload_bytes)
        if chosen is None or records < SHARDS_A_SLOT * self.slots:
            return f"{counted(records, 'distinct record')} left: a shard has one at least."
        seconds, startup = cost / chosen[1].cost_per_second.middle, chosen[0].startup_seconds
        return (
            f"All of it is about {plain_duration(seconds)} of computing, and each job takes "
            f"{startup:.0f} s to start."
        )

    @property
    def slots(self) -> int:
        """How many jobs run side by side."""
        return num_jobs(self.device, self.gpus)

    def choice(self, cost: int, records: int, payload_bytes: int) -> tuple[Choice, Speed] | None:
        """Return what is best for so much work, and by which speed; None where none is known."""
        speed = self._speed(cost / max(1, records))
        if speed is None:
            return None
        work = work_of(cost, records, payload_bytes, self.values, self.unit)
        return choose(work, speed, self.slots), speed

    def _speed(self, mean_cost: float) -> Speed | None:
        if self.device.kind == "cpu":
            # How many cores a job gets is the workflow's to say: what jobs had before tells most.
            before = Asked(self.settings, self.device.name, is_gpu=False)
            if known := speeds.measured(before, self.results):
                return known
        weights = speeds.weights_at(self.weights)
        for asked in self._asked():
            try:
                return speeds.find(asked, self.results, weights, mean_cost, stand_in=USUAL_CARD)
            except UserError:
                continue
        return None

    def _asked(self) -> list[Asked]:
        """Return what to ask the speed of, the best first."""
        if self.device.kind == "cuda":
            # Where jobs go elsewhere, a profile may say to which cards (flow/jobs.py).
            here = self.device.name if self.device.uuid else ""
            names = [environment.GPU_MODEL.value() or here, ""]
            return [Asked(self.settings, name, True, self.gpus) for name in dict.fromkeys(names)]
        return [Asked(self.settings, self.device.name, is_gpu=False, threads=num_cores())]


def num_jobs(device: Device, gpus: int) -> int:
    """Return how many jobs run side by side: on the CPU one, which takes all of its cores.

    Without a workflow that says its slots, those of the lease count, and where no GPU is here, one.
    """
    if device.kind == "cpu":
        return 1
    num_slots = environment.GPUS.value()  # what the workflow deals out; 0 outside one
    if not num_slots and device.uuid:  # elsewhere, what is asked of the lease means other GPUs
        num_slots = count_slots(Request.from_environment())
    return max(1, num_slots // gpus)
