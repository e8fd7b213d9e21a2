"""What an estimate says, as one JSON object: `--json`, and what people are shown."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from featuremill.base.this_process import num_cores
from featuremill.config import Config
from featuremill.plan import speeds
from featuremill.plan.announce import large_outputs
from featuremill.plan.estimate import overheads
from featuremill.plan.estimate.work import Work, in_shards
from featuremill.plan.needs import needs_of_run
from featuremill.plan.shard_cost import Choice, choose, work_of
from featuremill.plan.speeds import Speed
from featuremill.plan.speeds.assumed import Rates, shape_told
from featuremill.plan.speeds.earlier import Asked
from featuremill.store.disk_space import Need, expected_bytes, needs_of_outputs
from featuremill.store.journal import SYNC_SECONDS
from featuremill.store.plan import Plan, Settings
from featuremill.store.results import Results
from featuremill.workload import Device, TellsMemory, Weights, Workload, find_workload

VERSION = 1


@dataclass(frozen=True)
class Case:
    """A run, what is left of it, and the devices that it would be computed on."""

    config: Config
    folder: Results
    settings: Settings
    weights: Weights | None
    """None for a workload without; without a digest where they were not converted yet."""
    has_weights: bool
    device: Device
    device_name: str
    """Of the GPU, as far as anybody said; "" for any. Of a CPU, its own."""
    work: Work

    @property
    def is_gpu(self) -> bool:
        """Whether it would be computed on GPUs."""
        return self.device.kind == "cuda"

    @property
    def gpus_a_job(self) -> int:
        """How many devices hold one model."""
        return self.config.gpus if self.is_gpu else 1

    def threads(self, slots: int) -> int:
        """Return the cores of each of so many jobs on the CPU."""
        return 0 if self.is_gpu else max(1, num_cores() // slots)

    def asked(self, slots: int) -> Asked:
        """Return what to ask the speed of."""
        threads = self.threads(slots)
        return Asked(self.settings, self.device_name, self.is_gpu, self.gpus_a_job, threads)

    def speed(self, slots: int, given: float | None, startup: float | None) -> Speed:
        """Return the speed of one job on so many slots; `given` and `startup` go before the rest.

        Raises:
            UserError: where nothing is known of it.
        """
        shape = shape_told(self.weights.metadata) if self.weights else None
        mean, asked = self.work.mean_cost, self.asked(slots)
        found = speeds.find(asked, self.folder.root.parent, shape, mean, given=given)
        if startup is None:
            return found
        seconds = Rates(startup, startup, startup)
        return found._replace(startup_seconds=seconds, is_startup_measured=True)

    @cached_property
    def workload(self) -> Workload:
        """The plug-in."""
        return find_workload(self.config.workload)

    @cached_property
    def options(self) -> Any:
        """Its options, resolved."""
        return self.workload.Options.model_validate(self.settings.options)

    @cached_property
    def values(self) -> pa.Schema:
        """What it gives a record."""
        return self.workload.schema(self.options, self.weights)

    @cached_property
    def is_finished(self) -> bool:
        """Whether the run's results are there, in all the outputs that the config asks for now."""
        root, plan = self.folder.root, self.work.plan
        sizes = plan.counts.planned, plan.lengths.total
        needs = needs_of_outputs(self.config.outputs, self.values, *sizes, root)
        return self.work.is_merged and all((root / need.what).exists() for need in needs)


def answer(case: Case, speed_of: Mapping[int, Speed]) -> dict[str, Any]:
    """Return all of it, by the speed of a job on each number of slots; times are in hours or
    seconds, as the names say, sizes in bytes or MB."""
    rows = [_row(case, slots, speed) for slots, speed in speed_of.items()]
    # What follows hardly depends on the number of slots.
    slots, speed = next(iter(speed_of.items()))
    work = _cut(case, _best(case, slots, speed))
    plan, options = work.plan, case.settings.options
    return {
        "version": VERSION,
        "run": case.config.run,
        "workload": case.config.workload,
        "model": options.get("model"),
        "dtype": options.get("dtype"),
        "cost_unit": plan.cost_unit,
        "source": work.source,
        "is_planned": work.is_planned,
        "is_finished": case.is_finished,
        "counts": plan.counts.as_json(),
        "lengths": plan.lengths.as_json(),
        "cost_left": round(work.cost),
        "shards": len(plan.shards),
        "shards_left": len(work.left),
        "shard_cost": case.config.shards.cost,
        "is_cut": work.is_cut,
        "device": "gpu" if case.is_gpu else "cpu",
        "rows": rows,
        "around_seconds": _around_seconds(case, work),
        "has_weights": case.has_weights,
        "memory": _memory(case, plan, slots),
        "disk": _disk(case, work),
        "large_outputs": large_outputs(plan.counts.planned, case.config.outputs),
        "crash_seconds": speed.startup_seconds.middle + SYNC_SECONDS,
    }


def _row(case: Case, slots: int, speed: Speed) -> dict[str, Any]:
    """Return what so many slots come to."""
    best = _best(case, slots, speed)
    work, jobs = _cut(case, best), slots // case.gpus_a_job
    around = _around_seconds(case, work)["total"]
    rates, startup = speed.rates, speed.startup_seconds
    seconds = {
        "least": overheads.makespan(work.left, jobs, rates.high, startup.low),
        "middle": overheads.makespan(work.left, jobs, rates.middle, startup.middle),
        "most": overheads.makespan(work.left, jobs, rates.low, startup.high),
    }
    slot_seconds = max(seconds["middle"] * jobs, 1e-9)
    starting = startup.middle * len(work.left)
    idle = max(0.0, seconds["middle"] * jobs - work.cost / rates.middle - starting)
    return {
        "slots": slots,
        "jobs": jobs,
        "threads": case.threads(slots),
        "device": speed.device,
        "speed": {
            "cost_per_second": rates._asdict(),
            "kind": speed.kind,
            "is_assumed": speed.is_assumed,
            "source": speed.source,
        },
        "startup_seconds": {**startup._asdict(), "is_measured": speed.is_startup_measured},
        "hours": {key: (each + around) / 3600 for key, each in seconds.items()},
        "extract_hours": {key: each / 3600 for key, each in seconds.items()},
        "device_hours": {key: each * slots / 3600 for key, each in seconds.items()},
        "startup_share": starting / slot_seconds,
        "idle_share": idle / slot_seconds,
        "shards_left": len(work.left),
        "shards_a_job": len(work.left) / jobs,
        "best_cost": best.cost if best else None,
        "best_why": best.why if best else "",
    }


def _best(case: Case, slots: int, speed: Speed) -> Choice | None:
    """Return how `shards.cost: auto` would cut what is left; None where nothing is."""
    work, plan = case.work, case.work.plan
    if not work.cost:
        return None
    num_records = max(1, round(work.cost / max(1.0, work.mean_cost)))
    size = round(plan.lengths.total * num_records / max(1, plan.counts.planned))
    left = work_of(round(work.cost), num_records, size, case.values, plan.cost_unit)
    return choose(left, speed, slots // case.gpus_a_job)


def _cut(case: Case, best: Choice | None) -> Work:
    """Return the work in the shards that it has, or else in the best ones."""
    if best is None or case.work.is_cut:
        return case.work
    return in_shards(case.work, best.num_shards)


def _around_seconds(case: Case, work: Work) -> dict[str, float]:
    """Return what comes before and after the shards, one after the other."""
    if case.is_finished:  # Snakemake finds nothing to do
        return dict.fromkeys(("plan", "merge", "report", "snakemake", "total"), 0.0)
    plan, num_records = work.plan, work.plan.counts.input
    values_bytes = expected_bytes(case.values, plan.counts.planned, plan.lengths.total)
    start, a_record = overheads.PLAN_SECONDS
    merge, merge_a_record, merge_a_byte = overheads.MERGE_SECONDS
    dag = overheads.SNAKEMAKE_DAG_SECONDS_A_SHARD * len(plan.shards)
    seconds = {
        "plan": 0.0 if work.is_planned else start + a_record * num_records,
        "merge": merge + merge_a_record * num_records + merge_a_byte * values_bytes,
        "report": overheads.REPORT_SECONDS,
        "snakemake": overheads.SNAKEMAKE_START_SECONDS + dag,
    }
    return {**seconds, "total": sum(seconds.values())}


def _memory(case: Case, plan: Plan, slots: int) -> dict[str, Any]:
    """Return what a job takes of its device and its host, and what Snakemake does."""
    device_mb, weights_mb, workload = None, 0.0, case.workload
    if case.weights and isinstance(workload, TellsMemory):
        budget = workload.batch_cost(case.options, case.device)
        device_mb = workload.memory_mb(case.options, case.device, case.weights, budget)
        weights_mb = workload.weights_mb(case.weights)
    seen = speeds.earlier.look(case.folder.root.parent, case.asked(slots))
    parts = seen.parts if seen else ()
    host_measured = max((part.telemetry.process_memory_mb or 0 for part in parts), default=0)
    shard_mb = max((shard.bytes for shard in plan.shards), default=0) / 2**20
    base, a_shard = overheads.SNAKEMAKE_MB
    return {
        "device_mb": device_mb,
        "device_measured_mb": max((part.peak_memory_mb for part in parts), default=None),
        "device_has_mb": case.device.memory_mb or None,
        "devices_a_job": case.gpus_a_job,
        "host_measured_mb": int(host_measured) or None,
        "host_mb": round(overheads.host_mb(shard_mb, weights_mb, on_cpu=not case.is_gpu)),
        "snakemake_mb": round(base + a_shard * len(plan.shards)),
    }


def _disk(case: Case, work: Work) -> dict[str, Any]:
    """Return what will be written, by what it is, and what is free."""
    folder, plan = case.folder, work.plan
    needs, num_files = list[Need](), 0
    if not case.is_finished:
        needs = needs_of_run(folder, plan, case.values, case.config.outputs)
        num_files = overheads.FILES_A_SHARD * len(work.left)
    if not work.is_planned:
        of_shards = plan.lengths.total + overheads.PLAN_BYTES_A_RECORD * plan.counts.unique
        of_manifest = overheads.MANIFEST_BYTES_A_RECORD * plan.counts.input
        of_spool = overheads.SPOOL_BYTES_A_RECORD * plan.counts.input
        needs.append(Need("store/shards", folder.store, of_shards))
        needs.append(Need("manifest.parquet", folder.root, of_manifest))
        needs.append(Need("temporary files while planning", folder.store, of_spool))
    parent = folder.root.absolute()
    while not parent.exists():
        parent = parent.parent
    return {
        "needs": {need.what: need.num_bytes for need in needs},
        "bytes": sum(need.num_bytes for need in needs),
        "free_bytes": shutil.disk_usage(parent).free,
        "files": num_files + sum(need.num_files for need in needs),
    }
