"""What a planned run needs, estimated: the disk for its missing parts and its results, and the
memory of a job, by the options' batches and by a record that fills one alone."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from featuremill.base.devices import Device
from featuremill.base.this_process import free_memory_mb
from featuremill.config import Run
from featuremill.store import disk_space
from featuremill.store.disk_space import Need
from featuremill.store.formats import files_of
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.store.row_order import will_be_by_shard
from featuremill.workload import EstimatesMemory, Weights, optional, plugin_errors

COUNTING_RESIDUES = ("tokens", "residues")
"""Units that count residues: the cost of a shard is at least its number of residue vectors."""
IDENTITY_BYTES = 120
"""The bytes of a record in store/identities: `python -m bench.merge_scale --records 10000000
--width 128 --order shard`."""


def residues_of(num_bytes: int, unit: str, cost: int) -> int:
    """Return an upper bound of the residues in payloads of `num_bytes` bytes that cost `cost`."""
    return min(num_bytes, cost) if unit in COUNTING_RESIDUES else num_bytes


def needs_of_run(
    folder: Results, plan: Plan, values: pa.Schema, outputs: Sequence[str], order: str
) -> list[Need]:
    """Return what the run still has to write, up to its results in `outputs` and this `order`.

    Finished parts do not count. The size of a journal is subtracted from that of its part.
    """
    num_rows, total = plan.counts.planned, plan.lengths.total
    needs = [Need("store/", folder.store, _missing_part_bytes(folder, plan, values))]
    if outputs:
        # Long proteins may be cut off: their cost is that of what is left of them.
        cost = plan.cost * num_rows // max(1, plan.counts.unique)
        total = residues_of(total, plan.cost_unit, cost)
        by_shard = will_be_by_shard(order, outputs, plan)
        merging = IDENTITY_BYTES * num_rows  # of records laid out by shard
        if not by_shard:
            merging = disk_space.stored_bytes(values, num_rows, total)
        results = disk_space.needs_of_outputs(outputs, values, num_rows, total, folder.root)
        needs += [_beyond_existing(need) for need in results]
        needs.append(Need("temporary files while merging", folder.store, merging))
    return needs


def _beyond_existing(need: Need) -> Need:
    """Return what is needed beyond the old result, which the workflow removes before it merges."""
    path = need.folder / need.what
    sizes = [file.stat().st_size for file in (files_of(path) if path.exists() else ())]
    num_bytes = max(0, need.num_bytes - sum(sizes))
    return need._replace(num_bytes=num_bytes, num_files=max(0, need.num_files - len(sizes)))


def _missing_part_bytes(folder: Results, plan: Plan, values: pa.Schema) -> int:
    missing = 0
    for shard in plan.shards:
        if folder.part(plan.recipe, shard.shard).exists():
            continue
        # The cost is that of the wanted records, and a part has all.
        cost = shard.cost * shard.records // max(1, shard.wanted)
        residues = residues_of(shard.bytes, plan.cost_unit, cost)
        journal = folder.journal(plan.recipe, shard.shard)
        begun = journal.stat().st_size if journal.exists() else 0
        missing += max(0, disk_space.stored_bytes(values, shard.records, residues) - begun)
    return missing


def memory_mb(run: Run, device: Device, weights: Weights | None, costliest: int = 0) -> int:
    """Return a job's peak memory in MiB if its costliest record costs that; 0 if it is unknown."""
    workload, name = run.module, run.workload
    if not (weights and isinstance(workload, EstimatesMemory)):
        return 0
    # Not the settings', which lack the options that no recipe holds.
    options = plugin_errors.resolved(name, workload, run.options, device, weights)
    batch_cost = max(workload.batch_cost(options, device), costliest)
    return workload.memory_mb(options, device, weights, batch_cost)


def too_large(run: Run, device: Device, weights: Weights | None, plan: Plan) -> str:
    """Return advice if batches fit the device and the costliest record alone does not. Return ""
    otherwise, or if the memory is unknown."""
    on_cpu, cost = device.kind == "cpu", plan.lengths.costliest
    has_mb = free_memory_mb() if on_cpu else run.gpus * device.memory_mb
    needed_mb = memory_mb(run, device, weights, cost)
    if not has_mb or needed_mb <= has_mb or memory_mb(run, device, weights) > has_mb:
        return ""
    remedy = optional(run.module, "REMEDIES").get("shorter records")
    return (
        f"the longest record is a batch of {cost:,} {plan.cost_unit} alone, which takes about "
        f"{needed_mb:,} MB; {device.name} has {has_mb:,} MB{' free' * on_cpu}. If it fails, the "
        f"others are computed; {f'set {remedy}, or ' if remedy else ''}take a larger device."
    )
