"""What an estimate says, as one JSON object: `--json`, and what people are shown."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from featuremill.base.this_process import num_cores
from featuremill.config import Config
from featuremill.plan import speeds
from featuremill.plan.announce import large_outputs
from featuremill.plan.estimate import makespan, overheads
from featuremill.plan.estimate.overheads import Around
from featuremill.plan.estimate.work import Work, in_shards
from featuremill.plan.needs import needs_of_run
from featuremill.plan.shard_cost import Choice, choose, work_of
from featuremill.plan.speeds import Speed
from featuremill.plan.speeds.assumed import Shape
from featuremill.plan.speeds.earlier import Asked
from featuremill.store.disk_space import Need, expected_bytes, needs_of_outputs
from featuremill.store.journal import SYNC_SECONDS
from featuremill.store.plan import Plan, Settings
from featuremill.store.results import Results
from featuremill.workload import Device, TellsMemory, Weights, Workload

VERSION = 1
HOUR = 3600.0


class Model(NamedTuple):
    """What is known of the model; all None for a workload without one."""

    weights: Weights | None
    """Without a digest where the model was not converted yet."""
    shape: Shape | None
    is_here: bool
    """Whether its converted weights are written down here."""


class Place(NamedTuple):
    """What the run would be computed on."""

    device: Device
    name: str
    """Of the GPU, as far as anybody said; "" for any. Of a CPU, its own."""
    slots: tuple[int, ...]
    """Numbers of GPUs, or of jobs side by side on the CPU."""
    gpus_a_job: int

    @property
    def is_gpu(self) -> bool:
        """Whether it is GPUs."""
        return self.device.kind == "cuda"

    def jobs(self, slots: int) -> int:
        """Return how many jobs run side by side on so many slots."""
        return slots // self.gpus_a_job

    def threads(self, slots: int) -> int:
        """Return the cores of each of so many jobs on the CPU."""
        return 0 if self.is_gpu else max(1, num_cores() // slots)


class Facts:
    """What an estimate is made of, but for the speeds."""

    def __init__(
        self,
        config: Config,
        folder: Results,
        workload: Workload,
        settings: Settings,
        work: Work,
        place: Place,
        model: Model,
    ) -> None:
        self.config, self.folder, self.settings = config, folder, settings
        self.work, self.place, self.model = work, place, model
        self.workload = workload
        self.options = workload.Options.model_validate(settings.options)
        self.values: pa.Schema = workload.schema(self.options, model.weights)

    def asked(self, slots: int) -> Asked:
        """Return what to ask the speed of."""
        place = self.place
        threads = place.threads(slots)
        return Asked(self.settings, place.name, place.is_gpu, place.gpus_a_job, threads)

    @cached_property
    def is_finished(self) -> bool:
        """Whether the run's results are there, in all the outputs that the config asks for now."""
        root, plan = self.folder.root, self.work.plan
        sizes = plan.counts.planned, plan.lengths.total
        needs = needs_of_outputs(self.config.outputs, self.values, *sizes, root)
        return self.work.is_merged and all((root / need.what).exists() for need in needs)

    def best(self, slots: int, speed: Speed) -> Choice | None:
        """Return how `shards.cost: auto` would cut what is left; None where nothing is."""
        work, plan = self.work, self.work.plan
        if not work.cost:
            return None
        num_records = max(1, round(work.cost / max(1.0, work.mean_cost)))
        size = round(plan.lengths.total * num_records / max(1, plan.counts.planned))
        left = work_of(round(work.cost), num_records, size, self.values, plan.cost_unit)
        return choose(left, speed, self.place.jobs(slots))

    def cut(self, best: Choice | None) -> Work:
        """Return the work in the shards that it has, or else in the best ones."""
        if best is None or self.work.is_cut:
            return self.work
        return in_shards(self.work, best.num_shards)

    def around(self, work: Work) -> Around:
        """Return what comes before and after the shards of `work`."""
        if self.is_finished:
            return overheads.NOTHING
        plan = work.plan
        size = expected_bytes(self.values, plan.counts.planned, plan.lengths.total)
        return overheads.around(plan.counts.input, work.is_planned, len(plan.shards), size)

    def memory(self, plan: Plan) -> dict[str, Any]:
        """Return what a job takes of its device and its host, and what Snakemake does."""
        device, weights, workload = self.place.device, self.model.weights, self.workload
        device_mb, weights_mb = None, 0.0
        if weights and isinstance(workload, TellsMemory):
            budget = workload.batch_cost(self.options, device)
            device_mb = workload.memory_mb(self.options, device, weights, budget)
            weights_mb = workload.weights_mb(weights)
        seen = speeds.earlier.look(self.folder.root.parent, self.asked(self.place.slots[0]))
        shard_mb = max((shard.bytes for shard in plan.shards), default=0) / 2**20
        host_mb = overheads.host_mb(shard_mb, weights_mb, on_cpu=not self.place.is_gpu)
        base, a_shard = overheads.SNAKEMAKE_MB
        return {
            "device_mb": device_mb,
            "device_measured_mb": seen.peak_memory_mb if seen else None,
            "device_has_mb": device.memory_mb or None,
            "devices_a_job": self.place.gpus_a_job,
            "host_measured_mb": (seen.process_memory_mb or None) if seen else None,
            "host_mb": round(host_mb),
            "snakemake_mb": round(base + a_shard * len(plan.shards)),
        }

    def disk(self, work: Work) -> dict[str, Any]:
        """Return what will be written, by what it is, and what is free."""
        needs, num_files = list[Need](), 0
        if not self.is_finished:
            needs = needs_of_run(self.folder, work.plan, self.values, self.config.outputs)
            num_files = overheads.FILES_A_SHARD * len(work.left)
        if not work.is_planned:
            needs += _needs_of_plan(self.folder, work.plan)
        parent = self.folder.root.absolute()
        while not parent.exists():
            parent = parent.parent
        return {
            "needs": {need.what: need.num_bytes for need in needs},
            "bytes": sum(need.num_bytes for need in needs),
            "free_bytes": shutil.disk_usage(parent).free,
            "files": num_files + sum(need.num_files for need in needs),
        }


def _needs_of_plan(folder: Results, plan: Plan) -> list[Need]:
    shards = plan.lengths.total + overheads.PLAN_BYTES_A_RECORD * plan.counts.unique
    manifest = overheads.MANIFEST_BYTES_A_RECORD * plan.counts.input
    spool = overheads.SPOOL_BYTES_A_RECORD * plan.counts.input
    return [
        Need("store/shards", folder.store, shards),
        Need("manifest.parquet", folder.root, manifest),
        Need("temporary files while planning", folder.store, spool),
    ]


def answer(facts: Facts, by_slots: Sequence[tuple[int, Speed]]) -> dict[str, Any]:
    """Return all of it; times are in hours or seconds, as the names say, sizes in bytes or MB."""
    rows = [_row(facts, slots, speed) for slots, speed in by_slots]
    work = facts.cut(facts.best(*by_slots[0]))  # what follows hardly depends on it
    plan, options, around = work.plan, facts.settings.options, facts.around(work)
    return {
        "version": VERSION,
        "run": facts.config.run,
        "workload": facts.config.workload,
        "model": options.get("model"),
        "dtype": options.get("dtype"),
        "cost_unit": plan.cost_unit,
        "source": work.source,
        "is_planned": work.is_planned,
        "is_finished": facts.is_finished,
        "counts": plan.counts.as_json(),
        "lengths": plan.lengths.as_json(),
        "cost_left": round(work.cost),
        "shards": len(plan.shards),
        "shards_left": len(work.left),
        "shard_cost": facts.config.shards.cost,
        "is_cut": work.is_cut,
        "device": "gpu" if facts.place.is_gpu else "cpu",
        "rows": rows,
        "around_seconds": {**around._asdict(), "total": around.total},
        "has_weights": facts.model.is_here,
        "memory": facts.memory(plan),
        "disk": facts.disk(work),
        "large_outputs": large_outputs(plan.counts.planned, facts.config.outputs),
        "crash_seconds": rows[0]["startup_seconds"]["middle"] + SYNC_SECONDS,
    }


def _row(facts: Facts, slots: int, speed: Speed) -> dict[str, Any]:
    """Return what so many slots come to."""
    best = facts.best(slots, speed)
    work, jobs = facts.cut(best), facts.place.jobs(slots)
    around = facts.around(work).total
    rates, startup = speed.rates, speed.startup_seconds
    shortest, usual, longest = (
        makespan.simulate(work.left, jobs, *pace)
        for pace in (
            (rates.high, startup.low),
            (rates.middle, startup.middle),
            (rates.low, startup.high),
        )
    )
    seconds = [shortest.seconds, usual.seconds, longest.seconds]
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
        "hours": _hours([each + around for each in seconds]),
        "extract_hours": _hours(seconds),
        "device_hours": _hours([each * slots for each in seconds]),
        "startup_share": usual.starting / slot_seconds,
        "idle_share": usual.idle / slot_seconds,
        "shards_left": len(work.left),
        "shards_a_job": len(work.left) / jobs,
        "best_cost": best.cost if best else None,
        "best_why": best.why if best else "",
    }


def _hours(seconds: Sequence[float]) -> dict[str, float]:
    least, middle, most = (each / HOUR for each in seconds)
    return {"least": least, "middle": middle, "most": most}
