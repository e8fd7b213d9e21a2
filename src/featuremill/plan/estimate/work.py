"""What there is to compute: from the run's plan, or from the input, read as plan reads it."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted
from featuremill.config import Config
from featuremill.plan.processes import Processes
from featuremill.plan.reading import read_records
from featuremill.plan.shards import Cutter
from featuremill.store.plan import Counts, Plan, PlannedShard, Settings
from featuremill.store.results import Results
from featuremill.workload import find_workload

MOST_SHARDS = 1_000_000
"""That are estimated: 200 times what Snakemake is quick with."""
OF_VALUES_ONLY = {"model", "dtype", "layers", "pool", "per_residue", "output_dtype"}
"""Options that change what is computed of the records, and not what they cost."""
UNCUT = sys.maxsize
"""Cost of a shard by which everything is one."""
NO_RECIPE = "none"
"""Of a plan that is not the run's: no part is of it."""
log = logging.getLogger("featuremill.estimate")


class Work(NamedTuple):
    """The records, and the shards that they are or would be cut into."""

    plan: Plan
    """The run's, or one that is made up: counts, lengths and shards as they would be."""
    is_planned: bool
    left: list[float]
    """Costs of the shards that have no part yet, in the plan's order."""
    source: str
    """Where this is from, in words."""
    is_merged: bool = False
    """Whether the results of all of them are written down."""
    is_cut: bool = True
    """Without it all is one shard so far: `shards.cost: auto` goes by the devices (`in_shards`)."""

    @property
    def cost(self) -> float:
        """The cost of what is left."""
        return sum(self.left)

    @property
    def mean_cost(self) -> float:
        """The cost of a record."""
        return sum(shard.cost for shard in self.plan.shards) / max(1, self.plan.counts.unique)


def look(
    folder: Results,
    config: Config,
    settings: Settings,
    threads: int | None,
    scratch: Path | None,
) -> Work:
    """Return what is to be computed of `config`, whose resolved settings are `settings`.

    Raises:
        UserError: for inputs that cannot be read, as plan does.
    """
    plan = folder.find_plan()
    if plan is not None:
        why_not = _outdated(plan, config, settings)
        if not why_not:
            return _planned(folder, plan, settings)
        log.info("%s: %s; reading the input", folder.plan, why_not)
    for path in config.inputs:
        if not Path(path).is_file():
            raise UserError(f"{path}: there is no such file; check `inputs`.")
    with tempfile.TemporaryDirectory(prefix="featuremill-estimate-", dir=scratch) as name:
        return _read(Path(name), config, settings, threads or num_cores())


def _outdated(plan: Plan, config: Config, settings: Settings) -> str:
    """Return why the plan's shards are not those that the config would get now; "" if they are."""
    if [entry.path for entry in plan.inputs] != list(config.inputs):
        return "it is of other inputs"
    for entry in plan.inputs:
        path = Path(entry.path)
        if path.exists() and path.stat().st_size != entry.bytes:
            return f"{entry.path} has changed since"
    if plan.settings.workload != settings.workload:
        return "it is of another workload"
    was, is_now = plan.settings.options, settings.options
    names = (was.keys() | is_now.keys()) - OF_VALUES_ONLY
    if any(was.get(name) != is_now.get(name) for name in names):
        return "the options have changed since"
    return ""


def _planned(folder: Results, plan: Plan, settings: Settings) -> Work:
    was = plan.settings
    if not settings.weights_sha256:  # nobody knows it yet
        was = was.model_copy(update={"weights_sha256": settings.weights_sha256})
    if was.as_json() != settings.as_json():
        before, now = was.options, settings.options
        other = [k for k in sorted(OF_VALUES_ONLY) if before.get(k) != now.get(k)]
        told = ", ".join(f"{k} {before.get(k)}" for k in other) or "other weights"
        source = f"{folder.plan}, all shards: it was made for {told}"
        all_costs = [float(shard.cost) for shard in plan.shards]
        return Work(plan.model_copy(update={"recipe": NO_RECIPE}), True, all_costs, source)
    delivery = folder.find_delivery()
    # Parts may have been removed since the results are whole (`keep`, `featuremill clean`).
    is_merged = delivery is not None and delivery.is_of(plan)
    costs = [
        float(shard.cost)
        for shard in plan.shards
        if not (is_merged or folder.part(plan.recipe, shard.shard).exists())
    ]
    of_shards = counted(len(plan.shards), "shard")
    source = f"{folder.plan}: {len(costs):,} of its {of_shards} are to be computed"
    if not costs:
        source = f"{folder.plan}: computed are all its {of_shards}"
    return Work(plan, True, costs, source, is_merged)


def _read(scratch: Path, config: Config, settings: Settings, threads: int) -> Work:
    """Return what plan would make of the input where there were no shards before."""
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    with Processes(threads) as processes:
        spooled = read_records(config, workload, options, scratch, processes)
        _ = spooled.repeats  # which refuses what plan would
        cutter = Cutter(Results(scratch), spooled.folders, spooled.tally.records, (), processes)
        total = cutter.place().cost
    bytes_a_cost = spooled.tally.total_bytes / max(1, total)
    is_cut = config.shards.cost != "auto"
    shards = []
    for pieces in cutter.cuts(UNCUT if config.shards.cost == "auto" else config.shards.cost):
        records = sum(piece.end - piece.start for piece in pieces)
        cost = sum(piece.cost for piece in pieces)
        shards.append(PlannedShard("", records, records, cost, round(cost * bytes_a_cost)))
    plan = Plan(
        run=config.run,
        workload=config.workload,
        workload_version=workload.VERSION,
        cost_unit=workload.COST_UNIT,
        recipe=NO_RECIPE,
        settings=settings,
        device=config.device,
        gpus=config.gpus,
        weights=None,
        inputs=[],
        counts=spooled.counts(cutter.unique),
        lengths=spooled.lengths,
        manifest_sha256="",
        shards=shards,
    )
    source = f"{', '.join(config.inputs)}, read now: there is no plan yet"
    costs = [float(shard.cost) for shard in shards]
    return Work(plan, False, costs, source, is_cut=is_cut)


def scaled(work: Work, num_records: float, shard_cost: int | Literal["auto"]) -> Work:
    """Return what the work would be if the input had so many records of the same kind; with "auto"
    it is not cut.

    Raises:
        UserError: for more shards than anybody could run.
    """
    plan = work.plan
    factor = num_records / plan.counts.input
    whole = sum(shard.cost for shard in plan.shards) * factor
    is_cut = shard_cost != "auto"
    shard_cost = UNCUT if shard_cost == "auto" else shard_cost
    if whole / shard_cost > MOST_SHARDS:
        raise UserError(
            f"--records {num_records:g}: with shards.cost {shard_cost:_} these are "
            f"{whole / shard_cost:,.0f} shards, and no more than {MOST_SHARDS:,} are estimated; "
            "raise shards.cost in the config, or give fewer records."
        )
    counts = {key: round(value * factor) for key, value in plan.counts.as_json().items()}
    lengths = plan.lengths.model_copy(update={"total": round(plan.lengths.total * factor)})
    more = {"recipe": NO_RECIPE, "counts": Counts(**counts), "lengths": lengths}
    source = (
        f"as if there were {num_records:,.0f} records like the {plan.counts.input:,} of the input"
    )
    as_one = Work(plan.model_copy(update=more), False, [whole], source, is_cut=is_cut)
    return in_shards(as_one, max(1, round(whole / shard_cost)))


def in_shards(work: Work, num_shards: int) -> Work:
    """Return all of the work, cut evenly."""
    records = max(1, round(work.plan.counts.unique / num_shards))
    cost, size = work.cost / num_shards, round(work.plan.lengths.total / num_shards)
    shard = PlannedShard("", records, records, round(cost), size)
    plan = work.plan.model_copy(update={"shards": [shard] * num_shards})
    return work._replace(plan=plan, left=[cost] * num_shards)
