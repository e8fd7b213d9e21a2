"""What an estimate says, as one JSON object: `--json`, and what people are shown."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from featuremill.base.sizes import expected_bytes
from featuremill.config import Run
from featuremill.plan import speeds
from featuremill.plan.announce import large_outputs
from featuremill.plan.estimate import makespan, overheads
from featuremill.plan.estimate.model import Model, device_memory_mb, weights_mb
from featuremill.plan.estimate.overheads import Around
from featuremill.plan.estimate.place import Place, asked
from featuremill.plan.estimate.work import Work, in_shards
from featuremill.plan.host_memory import host_mb
from featuremill.plan.needs import needs_of_run
from featuremill.plan.shard_cost import Choice, choose, work_of
from featuremill.plan.speeds import Speed
from featuremill.store.disk_space import Need, needs_of_outputs
from featuremill.store.files import RunFolder
from featuremill.store.journal import SYNC_SECONDS

VERSION = 1
HOUR = 3600.0


class Facts(NamedTuple):
    """What the estimate is made of, but for the speeds."""

    config: Run
    folder: RunFolder
    settings: dict[str, Any]
    work: Work
    place: Place
    model: Model
    values: pa.Schema
    batch_cost: int


def answer(facts: Facts, by_slots: Sequence[tuple[int, Speed]]) -> dict[str, Any]:
    """Return all of it; times are in hours or seconds, as the names say, sizes in bytes or MB."""
    is_cut, is_finished = facts.work.is_cut, _is_finished(facts)
    rows = [_row(facts, slots, speed, is_finished) for slots, speed in by_slots]
    facts = _cut_for(facts, _best(facts, *by_slots[0]))  # what follows hardly depends on it
    work, plan = facts.work, facts.work.plan
    counts = plan["counts"]
    around = _around(facts, is_finished)
    options = facts.settings["options"]
    return {
        "version": VERSION,
        "run": facts.config.run,
        "workload": facts.config.workload,
        "model": options.get("model"),
        "dtype": options.get("dtype"),
        "cost_unit": plan["cost_unit"],
        "source": work.source,
        "is_planned": work.is_planned,
        "is_finished": is_finished,
        "counts": counts,
        "lengths": plan["lengths"],
        "cost_left": round(work.cost),
        "shards": len(plan["shards"]),
        "shards_left": len(work.left),
        "shard_cost": facts.config.shards.cost,
        "is_cut": is_cut,
        "device": "gpu" if facts.place.is_gpu else "cpu",
        "rows": rows,
        "around_seconds": {**around._asdict(), "total": around.total},
        "has_weights": facts.model.is_here,
        "memory": _memory(facts),
        "disk": _disk(facts, is_finished),
        "large_outputs": large_outputs(counts["planned"], facts.config.outputs),
        "crash_seconds": rows[0]["startup_seconds"]["middle"] + SYNC_SECONDS,
    }


def _is_finished(facts: Facts) -> bool:
    """Tell whether the run's results are there, in all the outputs that the config asks for now."""
    root, plan = facts.folder.root, facts.work.plan
    asked_for = needs_of_outputs(
        facts.config.outputs,
        facts.values,
        plan["counts"]["planned"],
        plan["lengths"]["total"],
        root,
    )
    return facts.work.is_merged and all((root / need.what).exists() for need in asked_for)


def _around(facts: Facts, is_finished: bool) -> Around:
    """Return what comes before and after the shards."""
    work, plan = facts.work, facts.work.plan
    size = expected_bytes(facts.values, plan["counts"]["planned"], plan["lengths"]["total"])
    around = overheads.around(plan["counts"]["input"], work.is_planned, len(plan["shards"]), size)
    return overheads.NOTHING if is_finished else around


def _best(facts: Facts, slots: int, speed: Speed) -> Choice | None:
    """Return how `shards.cost: auto` would cut what is left; None where nothing is."""
    work, plan = facts.work, facts.work.plan
    if not work.cost:
        return None
    num_records = max(1, round(work.cost / max(1.0, work.mean_cost)))
    size = round(plan["lengths"]["total"] * num_records / max(1, plan["counts"]["planned"]))
    left = work_of(round(work.cost), num_records, size, facts.values, plan["cost_unit"])
    return choose(left, speed, facts.place.jobs(slots))


def _cut_for(facts: Facts, best: Choice | None) -> Facts:
    """Return the facts with the work in the shards that it has, or else in the best ones."""
    if best is None or facts.work.is_cut:
        return facts
    return facts._replace(work=in_shards(facts.work, best.num_shards))


def _row(facts: Facts, slots: int, speed: Speed, is_finished: bool) -> dict[str, Any]:
    """Return what so many slots come to."""
    best = _best(facts, slots, speed)
    facts = _cut_for(facts, best)
    around = _around(facts, is_finished).total
    jobs, costs = facts.place.jobs(slots), facts.work.left
    rates, startup = speed.rates, speed.startup_seconds
    usual = makespan.simulate(costs, jobs, rates.middle, startup.middle)
    shortest = makespan.simulate(costs, jobs, rates.high, startup.low)
    longest = makespan.simulate(costs, jobs, rates.low, startup.high)
    slot_seconds = max(usual.seconds * jobs, 1e-9)
    return {
        "slots": slots,
        "jobs": jobs,
        "threads": facts.place.threads(slots),
        "device": speed.device,
        "speed": {
            "cost_per_second": rates._asdict(),
            "kind": speed.kind,
            "is_assumed": speed.is_assumed,
            "source": speed.source,
        },
        "startup_seconds": {**startup._asdict(), "is_measured": speed.is_startup_measured},
        "hours": _hours([s.seconds + around for s in (shortest, usual, longest)]),
        "extract_hours": _hours([s.seconds for s in (shortest, usual, longest)]),
        "device_hours": _hours([s.seconds * slots for s in (shortest, usual, longest)]),
        "startup_share": usual.starting / slot_seconds,
        "idle_share": usual.idle / slot_seconds,
        "shards_left": len(costs),
        "shards_a_job": len(costs) / jobs,
        "best_cost": best.cost if best else None,
        "best_why": best.why if best else "",
        "best_saves_hours": _saved(facts, jobs, speed, best) if best else 0.0,
    }


def _hours(seconds: Sequence[float]) -> dict[str, float]:
    least, middle, most = (each / HOUR for each in seconds)
    return {"least": least, "middle": middle, "most": most}


def _saved(facts: Facts, jobs: int, speed: Speed, best: Choice) -> float:
    """Return the device hours that the best shards save against those that there are."""
    total = facts.work.cost
    now, then = (
        makespan.wasted(total, cost, jobs, speed.rates.middle, speed.startup_seconds.middle)
        for cost in (total / len(facts.work.left), best.cost)
    )
    return (now - then) * facts.place.gpus_a_job / HOUR


def _memory(facts: Facts) -> dict[str, Any]:
    place = facts.place
    seen = speeds.earlier.look(
        facts.folder.root.parent, asked(place, place.slots[0], facts.settings)
    )
    dtype = str(facts.settings["options"].get("dtype"))
    estimate = device_memory_mb(facts.model, place.device.kind, dtype, facts.batch_cost)
    base, a_shard = overheads.SNAKEMAKE_MB
    plan, on_cpu = facts.work.plan, place.device.kind == "cpu"
    shard_mb = max((shard["bytes"] for shard in plan["shards"]), default=0) / 2**20
    return {
        "device_mb": estimate,
        "device_measured_mb": seen.peak_memory_mb if seen else None,
        "device_has_mb": place.device.memory_mb or None,
        "devices_a_job": place.gpus_a_job,
        "host_measured_mb": (seen.process_memory_mb or None) if seen else None,
        "host_mb": round(host_mb(shard_mb, weights_mb(facts.model), on_cpu=on_cpu)),
        "snakemake_mb": round(base + a_shard * len(plan["shards"])),
    }


def _disk(facts: Facts, is_finished: bool) -> dict[str, Any]:
    """Return what will be written, by what it is, and what is free."""
    work, folder = facts.work, facts.folder
    needs = needs_of_run(folder, work.plan, facts.values, facts.config.outputs)
    files = overheads.FILES_A_SHARD * len(work.left)
    if is_finished:
        needs, files = [], 0
    if not work.is_planned:
        needs += _needs_of_plan(folder, work.plan)
    parent = folder.root.absolute()
    while not parent.exists():
        parent = parent.parent
    return {
        "needs": {need.what: need.num_bytes for need in needs},
        "bytes": sum(need.num_bytes for need in needs),
        "free_bytes": shutil.disk_usage(parent).free,
        "files": files + sum(need.num_files for need in needs),
    }


def _needs_of_plan(folder: RunFolder, plan: dict[str, Any]) -> list[Need]:
    counts = plan["counts"]
    shards = plan["lengths"]["total"] + overheads.PLAN_BYTES_A_RECORD * counts["unique"]
    manifest = overheads.MANIFEST_BYTES_A_RECORD * counts["input"]
    spool = overheads.SPOOL_BYTES_A_RECORD * counts["input"]
    return [
        Need("store/shards", folder.store, shards),
        Need("manifest.parquet", folder.root, manifest),
        Need("temporary files while planning", folder.store, spool),
    ]
