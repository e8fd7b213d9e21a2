"""Say, before long work starts, what the run will do."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Sequence

import pyarrow as pa

from featuremill.base.devices import Device
from featuremill.base.words import counted, human_bytes, in_units, in_words, plain_duration
from featuremill.config.products import changes_of_settings
from featuremill.plan.needs import needs_of_run
from featuremill.plan.shard_cost import Sizing
from featuremill.store import disk_space
from featuremill.store.formats import format_of, kind_of
from featuremill.store.plan import Plan, PlannedShard
from featuremill.store.results import Results
from featuremill.workload.recipe import precision_name_of
from featuremill.workload.weights import model_name_of

log = logging.getLogger("featuremill.plan")


def announce(
    folder: Results,
    plan: Plan,
    last: Plan | None,
    why_cut: str,
    sizing: Sizing,
    outputs: Sequence[str],
    order: str,
) -> None:
    """Log what is computed again since the `last` plan, the run's size, model, device and expected
    bytes, and what looks odd.

    Raises:
        UserError: when the disk cannot hold what will be written.
    """
    needs = needs_of_run(folder, plan, sizing.values, outputs, order)
    free = human_bytes(shutil.disk_usage(folder.root).free)
    records, shards = sizes_of(folder, plan)
    if last and (again := _again(folder, plan, last, sizing)):
        log.warning("%s", again)
    log.info("%s", records)
    if plan.store:
        log.info("%s", _taken(plan))
    log.info("%s%s, %s", shards, _time(folder, plan, sizing), _model(plan, sizing.device))
    total = human_bytes(sum(need.num_bytes for need in needs))
    log.info("about %s to be written%s; %s are free", total, _unknown(sizing.values), free)
    if why_cut:
        log.debug("%s", why_cut)
    log.debug("to be written, about: %s", disk_space.described(needs))
    for line in warnings(folder, plan, sizing, outputs):
        log.warning("%s", line)
    disk_space.check(needs, folder.root)


def _again(folder: Results, plan: Plan, last: Plan, sizing: Sizing) -> str:
    """Return how many records are computed again, as the config asks for other values than at the
    `last` plan, and why; "" where nothing was computed, or is left."""
    num_left = sum(shard.wanted for shard in _left(folder, plan))
    was_computed = any((folder.store / "parts" / last.recipe).glob("*.arrows"))
    if plan.recipe == last.recipe or not (num_left and was_computed):
        return ""
    changes = in_words(changes_of_settings(last.settings, plan.settings))
    records = counted(num_left, "distinct record")
    have = "is" if num_left == 1 else "are"
    time = _time(folder, plan, sizing)
    return f"other values are asked for ({changes}): {records} {have} computed again{time}"


def _taken(plan: Plan) -> str:
    """Return in words how many of the distinct records have values in the stores."""
    distinct = counted(plan.counts.unique, "distinct record")
    have = "is" if plan.num_taken == 1 else "are"
    return f"{plan.num_taken:,} of {distinct} {have} computed already, in {', '.join(plan.store)}"


def _time(folder: Results, plan: Plan, sizing: Sizing) -> str:
    """Return about how long the shards that are left take, in words; "" where none is left."""
    left = _left(folder, plan)
    if not left:
        return ""
    choice = sizing.choice(*(work := _work(left)))
    if choice.speed is None:
        return "; the first one measures the time"
    rounds = math.ceil(len(left) / sizing.slots)
    each = choice.startup_seconds + work[0] / choice.speed.cost_per_second / len(left)
    return f"; about {plain_duration(rounds * each)}"


def _model(plan: Plan, device: Device) -> str:
    """Return the workload, the model, its precision and the device, in words."""
    known = (model_name_of(plan.settings), precision_name_of(plan.settings))
    model = ", ".join(filter(None, known))
    is_spread = device.kind == "cuda" and plan.gpus > 1
    where = f"{plan.gpus} × {device.name} a job" if is_spread else device.name
    return f"{plan.workload}{f' ({model})' if model else ''} on {where}"


def _unknown(values: pa.Schema) -> str:
    """Return which columns' sizes nobody knows before they are computed, in words."""
    names = [field.name for field in values if kind_of(field.type) == "table"]
    plain = [name for name in names if pa.types.is_primitive(values.field(name).type)]
    open_ended = [name for name in names if name not in plain]
    if not open_ended:
        return ""
    return (
        f", and the values of {', '.join(open_ended)}, whose size is not known yet (merge checks "
        "free space again)"
    )


def sizes_of(folder: Results, plan: Plan) -> tuple[str, str]:
    """Return how many records there are, and how much there is to compute, in words."""
    counts, lengths, shards = plan.counts, plan.lengths, plan.shards
    kinds = {"refused": counts.refused, "duplicate": counts.duplicate}
    left_out = [f"{number:,} {kind}" for kind, number in kinds.items() if number]
    left, distinct = _left(folder, plan), counts.unique - plan.num_taken
    work = f"{counted(distinct, 'distinct record')} to compute in {counted(len(shards), 'shard')}"
    if len(left) < len(shards):
        num_left = sum(shard.wanted for shard in left)
        of_all = f"in {len(left):,} of {len(shards):,} shards"
        work = f"{num_left:,} of {counted(distinct, 'distinct record')} to compute, {of_all}"
    return (
        f"{counted(counts.input, 'record')}, {in_units(lengths.total, lengths.unit)}, "
        f"longest {lengths.longest:,}" + (f"; {', '.join(left_out)}" if left_out else ""),
        work,
    )


def _left(folder: Results, plan: Plan) -> list[PlannedShard]:
    return [s for s in plan.shards if not folder.part(plan.recipe, s.shard).exists()]


def _work(shards: Sequence[PlannedShard]) -> tuple[int, int, int]:
    """Return cost, records and bytes of payloads of all `shards`."""
    return sum(s.cost for s in shards), sum(s.wanted for s in shards), sum(s.bytes for s in shards)


def warnings(folder: Results, plan: Plan, sizing: Sizing, outputs: Sequence[str]) -> list[str]:
    """Return what a person would want to know before the GPUs start."""
    where = folder.root / "notes.tsv"
    lines = [
        f"{counted(count, 'record')}: {note}; merge lists them in {where}"
        for note, count in plan.notes.items()
    ]
    for reason, count in plan.refusals.items():
        lines.append(f"{counted(count, 'record')} refused: {reason}")
    return [*lines, *_too_few(folder, plan, sizing), *large_outputs(plan.counts.planned, outputs)]


def _too_few(folder: Results, plan: Plan, sizing: Sizing) -> list[str]:
    """Return a sentence if fewer shards than slots are left, with the reason or a remedy."""
    shards = _left(folder, plan)
    sentence = plan.too_few(len(shards))
    if not sentence:
        return []
    work = _work(shards)
    by_itself = sizing._replace(config_cost="auto")
    best = by_itself.cut(*work).shards(work[0])
    if best <= len(shards):
        return [f"{sentence} {by_itself.why_no_more(*work)}"]
    if sizing.config_cost == "auto":
        return [f"{sentence} Shards with computed batches stay as they are."]
    return [
        f"{sentence} Set `shards: {{cost: auto}}` in the config and run the same command again: "
        f"what has not started becomes {best:,} shards."
    ]


def large_outputs(num_records: int, outputs: Sequence[str]) -> list[str]:
    """Return a sentence for each output that is no good for so many records."""
    return [
        f"outputs: {name} for {num_records:,} records: {format_of(name).why_not_more}"
        for name in outputs
        if num_records > (format_of(name).most_records or math.inf)
    ]
