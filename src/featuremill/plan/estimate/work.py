"""What there is to compute: from the run's plan, or from the input, read as plan reads it."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted
from featuremill.config import Run
from featuremill.inputs import samples, source
from featuremill.plan.processes import Processes
from featuremill.plan.reading import read_records
from featuremill.plan.shards import Cutter
from featuremill.store.plan import Plan, PlannedShard, Settings
from featuremill.store.results import Results

PREFIX = "featuremill-estimate-"
log = logging.getLogger("featuremill.estimate")


class Work(NamedTuple):
    """The records, and their shards."""

    plan: Plan
    """Plan of the run; or only counts, lengths and shards of one."""
    left: list[PlannedShard]
    """Shards without a part."""
    source: str
    """Source of the records, in words."""
    is_planned: bool
    is_cut: bool = True
    """Whether shards are cut; `shards.cost: auto` without a plan cuts them by the devices."""

    @property
    def cost(self) -> int:
        return sum(shard.cost for shard in self.left)

    @property
    def mean_cost(self) -> float:
        return self.plan.cost / max(1, self.plan.counts.unique)

    def in_shards(self, number: int) -> Work:
        counts, total = self.plan.counts, self.plan.lengths.total
        records = max(1, round(counts.unique / number))
        cost, size = round(self.cost / number), round(total / number)
        shards = [PlannedShard("", records, records, cost, size)] * number
        return self._replace(plan=self.plan.model_copy(update={"shards": shards}), left=shards)


def look(folder: Results, config: Run, settings: Settings, paths: Sequence[Path] = ()) -> Work:
    """Return the work of `config` with the resolved `settings`; `paths` replace its inputs.

    Raises:
        UserError: an input cannot be read.
    """
    plan = folder.find_plan()
    named = ", ".join(config.named)
    if plan is not None:
        if _is_of(plan, config, settings):
            return _planned(folder, plan)
        log.info("%s is for other inputs, options or dtype; reading the input", folder.plan)
    if paths:
        config = config.reading([*map(str, paths)])
    for path in map(Path, config.files):
        if not path.exists():
            raise UserError(f"{path}: there is no such file; check `inputs`.")
        source.check(path)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        work = _read(Path(name), config)
    return work._replace(source=f"{named}, read now: there is no plan yet")


def _is_of(plan: Plan, config: Run, settings: Settings) -> bool:
    """Whether the config would get the shards of this plan now."""
    was = plan.settings
    if not settings.weights_sha256:  # weights are not here yet
        was = was.model_copy(update={"weights_sha256": settings.weights_sha256})
    return (
        was.as_json() == settings.as_json()
        and [entry.path for entry in plan.inputs] == list(dict.fromkeys(config.files))
        and not any(
            (path := Path(entry.path)).exists() and path.stat().st_size != entry.bytes
            for entry in plan.inputs
        )
    )


def _planned(folder: Results, plan: Plan) -> Work:
    delivery = folder.find_delivery()
    # Parts may have been removed since the results are complete (`keep`, `featuremill clean`).
    is_merged = delivery is not None and delivery.is_of(plan)
    left = [
        shard
        for shard in plan.shards
        if not (is_merged or folder.part(plan.recipe, shard.shard).exists())
    ]
    of_shards = counted(len(plan.shards), "shard")
    source = f"{folder.plan}: {len(left):,} of its {of_shards} are to be computed"
    if not left:
        source = f"{folder.plan}: computed are all its {of_shards}"
    return Work(plan, left, source, is_planned=True)


def _read(scratch: Path, config: Run) -> Work:
    """Return what plan would make of the input without earlier shards."""
    workload = config.module
    cost_of_shard = sys.maxsize if config.shards.cost == "auto" else config.shards.cost
    with Processes(num_cores()) as processes:
        sheet = samples.read(Path(config.samples)) if config.samples else None
        spooled = read_records(config, config.options, scratch, processes, sheet)
        _ = spooled.repeats  # refuses what plan refuses
        cutter = Cutter(Results(scratch), spooled.folders, spooled.tally.records, (), processes)
        bytes_a_cost = spooled.tally.total_bytes / max(1, cutter.assign().cost)
    shards = []
    for pieces in cutter.cuts(cost_of_shard):
        records = sum(piece.end - piece.start for piece in pieces)
        cost = sum(piece.cost for piece in pieces)
        shards.append(PlannedShard("", records, records, cost, round(cost * bytes_a_cost)))
    plan = Plan.model_construct(  # what an estimate needs
        recipe="none",
        cost_unit=workload.COST_UNIT,
        counts=spooled.counts(cutter.unique),
        lengths=spooled.lengths,
        shards=shards,
        taken=[],
    )
    is_cut = config.shards.cost != "auto"
    return Work(plan, shards, "", is_planned=False, is_cut=is_cut)
