"""What memory a job takes, by the options' batches and by a record that fills one alone."""

from __future__ import annotations

from featuremill.base.devices import Device
from featuremill.base.this_process import free_memory_mb
from featuremill.config import Run
from featuremill.store.plan import Plan
from featuremill.workload import EstimatesMemory, Weights, optional, plugin_errors


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
