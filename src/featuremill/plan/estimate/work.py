"""What there is to compute: from the run's plan, or from the input, read as plan reads it."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.base.errors import UserError
from featuremill.base.progress import Progress
from featuremill.base.sizes import counted
from featuremill.base.this_process import num_cores
from featuremill.config import Run
from featuremill.plan.buckets import Bucket, Integers, buckets_of
from featuremill.plan.command import nothing_left
from featuremill.plan.hands import Hands
from featuremill.plan.reading import Spooled, read_records
from featuremill.plan.repeats import repeated_rows
from featuremill.plan.rows import Rows
from featuremill.plan.shards import cuts
from featuremill.plan.spool import ids_path
from featuremill.store.agreement import are_results_of
from featuremill.store.files import read_json, read_sealed
from featuremill.store.results import Results
from featuremill.workload import find_workload

MOST_SHARDS = 1_000_000
"""That are estimated: 200 times what Snakemake is quick with."""
OF_VALUES_ONLY = {"model", "dtype", "layers", "pool", "per_residue", "output_dtype"}
"""Options that change what is computed of the records, and not what they cost."""
UNCUT = sys.maxsize
"""Cost of a shard by which everything is one."""
log = logging.getLogger("featuremill.estimate")


class Work(NamedTuple):
    """The records, and the shards that they are or would be cut into."""

    plan: dict[str, Any]
    """As much of plan.json as counts here: counts, lengths, cost_unit, recipe, shards."""
    is_planned: bool
    left: npt.NDArray[np.float64]
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
        return float(self.left.sum())

    @property
    def mean_cost(self) -> float:
        """The cost of a record."""
        whole = float(sum(shard["cost"] for shard in self.plan["shards"]))
        return whole / max(1, int(self.plan["counts"]["unique"]))


def look(
    folder: Results,
    config: Run,
    settings: dict[str, Any],
    threads: int | None,
    scratch: Path | None,
) -> Work:
    """Return what is to be computed of `config`, whose resolved settings are `settings`.

    Raises:
        UserError: for inputs that cannot be read, as plan does.
    """
    plan = read_sealed(folder.plan) if folder.plan.exists() else None
    if plan is not None:
        why_not = _outdated(plan, config, settings)
        if not why_not:
            return _planned(folder, plan, settings)
        log.info("%s: %s; reading the input", folder.plan, why_not)
    for path in config.inputs:
        if not Path(path).is_file():
            raise UserError(f"{path}: there is no such file; check `inputs`.")
    if scratch is not None and not scratch.is_dir():
        raise UserError(f"--scratch {scratch}: there is no such folder; make it, or name another.")
    with tempfile.TemporaryDirectory(prefix="featuremill-estimate-", dir=scratch) as name:
        return _read(Path(name), config, threads or num_cores())


def _outdated(plan: dict[str, Any], config: Run, settings: dict[str, Any]) -> str:
    """Return why the plan's shards are not those that the config would get now; "" if they are."""
    if [entry["path"] for entry in plan["inputs"]] != list(config.inputs):
        return "it is of other inputs"
    for entry in plan["inputs"]:
        path = Path(entry["path"])
        if path.exists() and path.stat().st_size != entry["bytes"]:
            return f"{entry['path']} has changed since"
    planned = plan["settings"]
    if planned["workload"] != settings["workload"]:
        return "it is of another workload"
    names = set(planned["options"]) | set(settings["options"])
    if any(
        planned["options"].get(name) != settings["options"].get(name)
        for name in names - OF_VALUES_ONLY
    ):
        return "the options have changed since"
    return ""


def _planned(folder: Results, plan: dict[str, Any], settings: dict[str, Any]) -> Work:
    is_same = _without_unknown(plan["settings"], settings) == _without_unknown(settings, settings)
    # Parts may have been removed since the results are whole (`keep`, `featuremill clean`).
    is_merged = are_results_of(plan, read_json(folder.root / "manifest.json") or {})
    costs = [
        shard["cost"]
        for shard in plan["shards"]
        if not is_same or not (is_merged or folder.part(plan["recipe"], shard["shard"]).exists())
    ]
    recipe = plan["recipe"] if is_same else "other"
    num_shards = len(plan["shards"])
    source = (
        f"{folder.plan}: {len(costs):,} of its {counted(num_shards, 'shard')} are to be computed"
    )
    if not costs:
        source = f"{folder.plan}: computed are all its {counted(num_shards, 'shard')}"
    if not is_same:
        was, is_now = plan["settings"]["options"], settings["options"]
        other = [f"{k} {was.get(k)}" for k in sorted(OF_VALUES_ONLY) if was.get(k) != is_now.get(k)]
        source = f"{folder.plan}, all shards: it was made for {', '.join(other) or 'other weights'}"
    left = np.array(costs, float)
    return Work({**plan, "recipe": recipe}, True, left, source, is_same and is_merged)


def _without_unknown(settings: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` without the weights' digest where it is not known yet."""
    return settings if now["weights_sha256"] else {**settings, "weights_sha256": ""}


def _read(scratch: Path, config: Run, threads: int) -> Work:
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    with Hands(threads) as hands:
        records = workload.records([Path(path) for path in config.inputs], options)
        spooled = read_records(records, config.workload, options, scratch / "spool", hands)
    tally = spooled.tally
    if tally.records == tally.refused:
        raise UserError(nothing_left(config, tally))
    rows = Rows(spooled.folders)
    repeats = repeated_rows(rows, [ids_path(folder) for folder in spooled.folders])
    shard_cost = config.shards.cost
    shards, unique = _cut(spooled, scratch, UNCUT if shard_cost == "auto" else shard_cost)
    plan = {
        "recipe": "none",
        "cost_unit": workload.COST_UNIT,
        "gpus": config.gpus,
        "counts": {
            "input": tally.records,
            "refused": tally.refused,
            "duplicate": len(repeats),
            "planned": tally.records - tally.refused - len(repeats),
            "unique": unique,
        },
        "lengths": {"total": tally.total_length, "longest": tally.longest},
        "shards": shards,
    }
    costs = np.array([shard["cost"] for shard in shards], float)
    source = f"{', '.join(config.inputs)}, read now: there is no plan yet"
    return Work(plan, False, costs, source, is_cut=shard_cost != "auto")


def _cut(spooled: Spooled, scratch: Path, shard_cost: int) -> tuple[list[dict[str, Any]], int]:
    """Return the shards that plan would make where there were none before, and the number of
    distinct records."""
    numbers = buckets_of(spooled.folders)
    total = unique = 0
    shown = Progress(log, "sorting", "buckets")
    for done, number in enumerate(numbers, 1):
        costs = Bucket(spooled.folders, number).cost
        np.save(scratch / f"costs-{number}.npy", costs)
        total += int(costs.sum())
        unique += len(costs)
        shown.at(done, len(numbers))
    bytes_a_cost = spooled.tally.total_length / max(1, total)
    current: tuple[int, Integers] = (-1, np.empty(0, np.int64))

    def costs_of_buckets() -> Iterator[tuple[int, Integers]]:
        for number in numbers:
            yield number, np.load(scratch / f"costs-{number}.npy")

    shards = []
    for pieces in cuts(costs_of_buckets(), total, shard_cost):
        cost = records = 0
        for piece in pieces:
            if current[0] != piece.bucket:
                current = piece.bucket, np.load(scratch / f"costs-{piece.bucket}.npy")
            cost += int(current[1][piece.start : piece.end].sum())
            records += piece.end - piece.start
        size = round(cost * bytes_a_cost)
        shards.append(
            {"shard": "", "records": records, "wanted": records, "cost": cost, "bytes": size}
        )
    return shards, unique


def scaled(work: Work, num_records: float, shard_cost: int | Literal["auto"]) -> Work:
    """Return what the work would be if the input had so many records of the same kind; with "auto"
    it is not cut.

    Raises:
        UserError: for more shards than anybody could run.
    """
    factor = num_records / work.plan["counts"]["input"]
    counts = {key: round(value * factor) for key, value in work.plan["counts"].items()}
    whole = sum(shard["cost"] for shard in work.plan["shards"]) * factor
    is_cut = shard_cost != "auto"
    shard_cost = UNCUT if shard_cost == "auto" else shard_cost
    if whole / shard_cost > MOST_SHARDS:
        raise UserError(
            f"--records {num_records:g}: with shards.cost {shard_cost:_} these are "
            f"{whole / shard_cost:,.0f} shards, and no more than {MOST_SHARDS:,} are estimated; "
            "raise shards.cost in the config, or give fewer records."
        )
    lengths = {**work.plan["lengths"], "total": round(work.plan["lengths"]["total"] * factor)}
    plan = {**work.plan, "recipe": "none", "counts": counts, "lengths": lengths}
    source = (
        f"as if there were {num_records:,.0f} records like the "
        f"{work.plan['counts']['input']:,} of the input"
    )
    as_one = Work(plan, False, np.array([whole]), source, is_cut=is_cut)
    return in_shards(as_one, max(1, round(whole / shard_cost)))


def in_shards(work: Work, num_shards: int) -> Work:
    """Return all of the work, cut evenly."""
    records = max(1, round(work.plan["counts"]["unique"] / num_shards))
    cost = work.cost / num_shards
    shard = {
        "shard": "",
        "records": records,
        "wanted": records,
        "cost": round(cost),
        "bytes": round(work.plan["lengths"]["total"] / num_shards),
    }
    plan = {**work.plan, "shards": [shard] * num_shards}
    return work._replace(plan=plan, left=np.full(num_shards, cost))
