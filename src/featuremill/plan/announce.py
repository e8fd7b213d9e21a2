"""Say, before long work starts, what the run will do."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence

from featuremill.base.words import counted, human_bytes
from featuremill.lease.devices import Device
from featuremill.plan.needs import asked_outputs, needs_of_run
from featuremill.plan.sizing import Sizing, slots_told
from featuremill.store import disk_space
from featuremill.store.disk_space import Need
from featuremill.store.formats import format_of, refuse_outputs
from featuremill.store.plan import Plan, PlannedShard
from featuremill.store.results import Results

LEAST_SHARDS_A_JOB = 2
"""With fewer, some devices have nothing to do for a good part of the run."""
GOOD_SHARDS_A_JOB = 4
log = logging.getLogger("featuremill.plan")


def announce(folder: Results, plan: Plan, why_cut: str, sizing: Sizing) -> None:
    """Log the run's size, model, device and expected bytes, and what looks odd.

    Raises:
        UserError: when an output cannot hold these values, or the disk not what will be written.
    """
    needs = needs_of_run(folder, plan, sizing.values)
    for line in describe(folder, plan, why_cut, needs, sizing.device):
        log.info("%s", line)
    for line in warnings(folder, plan, sizing):
        log.warning("%s", line)
    refuse_outputs(asked_outputs(), sizing.values)
    disk_space.check(needs, folder.root)


def describe(
    folder: Results, plan: Plan, why_cut: str, needs: Sequence[Need], device: Device
) -> list[str]:
    """Return the lines that say what will be done."""
    options = plan.settings.options
    model = f"{options['model']}, {options['dtype']}" if "model" in options else "no model"
    return [
        *sizes_of(folder, plan, why_cut),
        f"{plan.workload} ({model}) on {_where(plan, device)}",
        f"to be written, about: {disk_space.described(needs)}; "
        f"{human_bytes(shutil.disk_usage(folder.root).free)} are free",
    ]


def sizes_of(folder: Results, plan: Plan, why_cut: str) -> list[str]:
    """Return the lines that say how much there is to do; `why_cut` has the size of new shards."""
    counts, lengths, shards = plan.counts, plan.lengths, plan.shards
    kinds = {"refused": counts.refused, "duplicate": counts.duplicate}
    left_out = [f"{number:,} {kind}" for kind, number in kinds.items() if number]
    num_done = sum(folder.part(plan.recipe, shard.shard).exists() for shard in shards)
    done = f", {num_done:,} of them done already" if num_done else ""
    return [
        f"{counted(counts.input, 'record')}, {counted(lengths.total, 'residue')}, "
        f"longest {lengths.longest:,}" + (f"; {', '.join(left_out)}" if left_out else ""),
        f"{counted(counts.unique, 'distinct record')} to compute "
        f"in {counted(len(shards), 'shard')}{done}",
        *([why_cut] if why_cut else []),
    ]


def _where(plan: Plan, device: Device) -> str:
    is_spread = device.kind == "cuda" and plan.gpus > 1
    return f"{plan.gpus} × {device.name} a job" if is_spread else device.name


def warnings(folder: Results, plan: Plan, sizing: Sizing) -> list[str]:
    """Return what a person would want to know before the GPUs start."""
    lines = [f"{counted(count, 'record')}: {note}" for note, count in plan.notes.items()]
    for reason, count in plan.refusals.items():
        lines.append(f"{counted(count, 'record')} refused: {reason}")
    shards = [s for s in plan.shards if not folder.part(plan.recipe, s.shard).exists()]
    return [*lines, *_uneven(folder, shards, sizing), *large_outputs(plan.counts.planned)]


def _uneven(folder: Results, shards: Sequence[PlannedShard], sizing: Sizing) -> list[str]:
    """Return a sentence when there are too few `shards` to compute for all GPUs to be at work to
    the end, and more of them would be worth it."""
    num_gpus = slots_told()
    num_jobs = num_gpus // sizing.gpus
    if not 1 < len(shards) < LEAST_SHARDS_A_JOB * num_jobs:
        return []
    idle = num_gpus - len(shards) * sizing.gpus
    what = f"{idle} will idle" if idle > 0 else "some will idle while others finish"
    left = sum(shard.cost for shard in shards)
    records, payload_bytes = sum(s.wanted for s in shards), sum(s.bytes for s in shards)
    cost = max(1, left // (GOOD_SHARDS_A_JOB * num_jobs))
    if known := sizing.choice(
        left, records, payload_bytes
    ):  # what `auto` would not do is no advice
        if known[0].num_shards <= len(shards):
            return []
        cost = known[0].cost
    is_auto = known and sizing.asked == "auto"
    other = "" if is_auto else f"set shards.cost to {cost:_} or so, and "
    return [
        f"{len(shards)} shards for {num_gpus} GPUs: {what}; {other}"
        f"delete {folder.plan} and {folder.store / 'plan.json'} to have everything cut anew."
    ]


def large_outputs(num_records: int, outputs: Sequence[str] | None = None) -> list[str]:
    """Return a sentence for each output that is no good for so many records.

    `outputs` are those of the run, if not those of the workflow that this is a job of.
    """
    formats = {name: format_of(name) for name in (asked_outputs() if outputs is None else outputs)}
    return [
        f"outputs: {output} for {num_records:,} records: {format.why_not_more}"
        for output, format in formats.items()
        if format.most_records is not None and num_records > format.most_records
    ]
