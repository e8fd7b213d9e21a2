"""The environment variables, GPUs and threads of jobs; and the memory and time that a job requests
from a cluster, estimated from the size of its work.

Requests are multiplied by the attempt: a job that a cluster ended for lack of memory or time
requests more in its next attempt, and continues from its journal. On one machine they limit nothing
without `--resources mem_mb=…`.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base import devices, entry_points, environment, this_process
from featuremill.base.devices import ALL, refuse_slices
from featuremill.config import Run
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError, refusing, wants_no_lines
from featuremill.lease import Request, count_slots
from featuremill.lease.environment import CUDA_VISIBLE_DEVICES
from featuremill.lease.offer import offer
from featuremill.lease.request import VARIABLES
from featuremill.plan.speeds import JobSpec, Speed, find_first, host_mb
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.store.row_order import MOST_JOBS
from featuremill.store.weights_file import WeightsFile

DEFAULT_HOST_THREADS = 4
"""Threads of an extract job on a GPU: preparing batches and writing rows."""
GPU_RESOURCES = {
    "devices": "gpu_devices",
    "policy": "gpu_policy",
    "slots_per_gpu": "gpu_slots",
    "min_free_mb": "gpu_min_free_mb",
    "wait_seconds": "gpu_wait",
}
"""Resources of a profile for leases of GPUs; FEATUREMILL_* variables override them."""
_caps: set[int] = set()
"""Limits of the `gpu` resource that this process has set; Snakemake may read the rules again."""


def prepare_jobs(workflow: Any) -> None:
    """Set the environment variables that jobs inherit.

    PATH gets the folder of this Python, whose environment may not be active; if another workflow
    imports this one, its own programs come first. The package and its metadata are for conda
    environments (envs/base.post-deploy.sh). Jobs end with this process: a job whose Snakemake was
    killed must have ended before the next run starts.
    """
    environment.DIE_WITH_PARENT.set(this_process.name_of_process())
    environment.PACKAGE.set(str(Path(__file__).parents[1]))
    environment.METADATA.set(str(entry_points.metadata()))
    if model := gpu_model(workflow):
        environment.GPU_MODEL.set_default(model)  # which plan cuts shards for
    if internals.is_main(workflow):
        if wants_no_lines(workflow):
            environment.QUIET.set_default("1")
        environment.SLURM_JOBS.unset()
        environment.RUN_SEES.unset()
        if internals.runs_elsewhere(workflow):
            environment.SLURM_JOBS.set("1")
        else:
            mask = CUDA_VISIBLE_DEVICES.text()
            environment.RUN_SEES.set(ALL if mask is None else mask)
    resources = internals.rule_resources(workflow, "extract")
    for field, resource in GPU_RESOURCES.items():
        if resource in resources:
            VARIABLES[field].set_default(resources[resource])
    with refusing():
        environment.check()
    folder, path = str(Path(sys.executable).parent), environment.PATH.text() or os.defpath
    if folder not in path.split(os.pathsep):
        is_last = internals.is_imported(workflow) and not shutil.which("featuremill")
        environment.PATH.set(os.pathsep.join([path, folder] if is_last else [folder, path]))


def gpu_model(workflow: Any) -> str:
    """Return the `gpu_model` that a profile requests for extract; "" if it requests none."""
    return internals.rule_resources(workflow, "extract").get("gpu_model", "")


def cap_gpus(workflow: Any, device: str, gpus: int = 1) -> int:
    """Limit the `gpu` resource to the number of GPU slots, unless the user has limited it; return
    that number. Refuse a limit below `gpus_per_job`, and MIG slices for more than one of them.

    Without `--resources gpu=N`, the resource is unlimited in a local run. With a limit of 0,
    Snakemake clips every request to 0 and starts all jobs at once, so the limit is at least 1. A
    limit below the request of a job would clip that, and more jobs would start than find devices.
    A run on the CPU requests none, and does not limit other rules.
    """
    request = Request.from_environment()
    is_here = internals.runs_elsewhere(workflow) is False
    with refusing():
        num_slots = 0 if device == "cpu" else count_slots(request)
        if num_slots and gpus > 1 and is_here and not internals.only_looks():
            refuse_slices(offer(request).devices, gpus)
    if not internals.is_main(workflow):
        return num_slots
    cap = internals.cap_of(workflow, "gpu")
    is_ours = is_here and (cap is None or cap in _caps)
    if device != "cpu":
        if is_ours:
            cap = max(1, num_slots, cap or 0)
            _caps.add(cap)
            internals.set_cap(workflow, "gpu", cap)
        can_be_had = num_slots if is_ours else cap or 0
        if 0 < can_be_had < gpus and not internals.only_looks():
            raise RefusedError(
                f"gpus_per_job: one job needs {gpus}, but {can_be_had} are available; lower it, or "
                "look at --gpus, --resources gpu=… and featuremill doctor."
            )
    environment.GPUS.set(str(cap or 0))
    return num_slots


def extract_threads(workflow: Any, device: str, num_slots: int) -> int:
    """Return the threads of an extract job: all cores of this machine if its CPU computes. For jobs
    on other machines, use `--set-threads`."""
    if num_slots or device == "cuda":
        return DEFAULT_HOST_THREADS
    return internals.cores_here(workflow) or DEFAULT_HOST_THREADS


MB, GB = 2**20, 10**9
PLAN_MB, PLAN_MB_A_GB = 4000, 250
MERGE_MB, MERGE_MB_A_GB = 4000, 50
"""bench/figures.md: plan took 0.9 GB for 2.2 GB of input and 1.6 GB for four times that; what
merge holds hardly grows."""
PLAN_MINUTES_A_GB, MERGE_MINUTES_A_GB = 10.0, 5.0
"""Measured were 0.8 for plan; some cluster's file systems are ten times slower."""
COMPRESSION = 4
"""Assumed bytes of an input for each byte of its compressed file."""
DELIVER_MB, DELIVER_MINUTES_A_GB = 3000, 5.0
"""A delivering job holds the identities of two shards, and a few blocks of values."""
BASE_MINUTES = 15
"""Minutes that any job may need to start, to wait for a file system and to end."""
UNKNOWN_MINUTES = 60
"""Minutes of a shard if the speed of its workload is unknown."""
SAFETY = 2.0
"""Factor of the time that a shard takes at the slowest speed that is known or assumed."""
SLOWEST = "Tesla T4"
"""Stands in for a GPU that no profile names: limits by it are too long rather than too short."""


class JobResources(NamedTuple):
    """Functions for the rules' `resources:`, which Snakemake calls for each attempt: the MB and the
    minutes that a job of a command may need. A report needs what merge needs."""

    run: Run
    gpu_model: str = ""
    """What the profile asks for, such as a100; empty for any."""

    def extract_mb(self, wildcards: Any, attempt: int) -> int:
        shard_mb = _size(Results(Path(self.run.folder)).shard(wildcards.shard)) / MB
        weights_mb = _weights_mb(self.run.weights_json)
        return round(attempt * host_mb(shard_mb, weights_mb, on_cpu=self.run.device == "cpu"))

    def extract_minutes(self, wildcards: Any, attempt: int) -> int:
        path = Results(Path(self.run.folder)).plan
        mtime = path.stat().st_mtime_ns if path.exists() else 0
        costs, speed = _speed(path.parent, mtime, self.gpu_model)
        if speed is None or wildcards.shard not in costs:
            return attempt * UNKNOWN_MINUTES
        return _minutes(attempt, SAFETY * speed.most_seconds(costs[wildcards.shard]) / 60)

    def plan_mb(self, wildcards: Any, attempt: int) -> int:  # noqa: ARG002
        return round(attempt * (PLAN_MB + PLAN_MB_A_GB * _gigabytes(self.run.files)))

    def plan_minutes(self, wildcards: Any, attempt: int) -> int:  # noqa: ARG002
        return _minutes(attempt, PLAN_MINUTES_A_GB * _gigabytes(self.run.files))

    def deliver_mb(self, wildcards: Any, attempt: int) -> int:  # noqa: ARG002
        return attempt * DELIVER_MB

    def deliver_minutes(self, wildcards: Any, attempt: int) -> int:  # noqa: ARG002
        return _minutes(attempt, DELIVER_MINUTES_A_GB * self._parts_gigabytes() / MOST_JOBS)

    def merge_mb(self, wildcards: Any, attempt: int) -> int:  # noqa: ARG002
        return round(attempt * (MERGE_MB + MERGE_MB_A_GB * self._parts_gigabytes()))

    def merge_minutes(self, wildcards: Any, attempt: int) -> int:  # noqa: ARG002
        return _minutes(attempt, MERGE_MINUTES_A_GB * self._parts_gigabytes())

    def _parts_gigabytes(self) -> float:
        parts = Path(self.run.folder, "store", "parts").glob("*/*.arrows")
        return sum(map(_size, parts)) / GB


def _minutes(attempt: int, minutes: float) -> int:
    return attempt * (BASE_MINUTES + math.ceil(minutes))


@lru_cache(maxsize=4)
def _speed(folder: Path, mtime: int, gpu_model: str) -> tuple[Mapping[str, int], Speed | None]:
    """Return the cost of each shard of the plan in `folder`, and the speed for the time limits of
    its jobs; None if it is unknown. `mtime` only keeps the cache up to date."""
    plan = Results(folder).find_plan() if mtime else None
    return (
        {shard.shard: shard.cost for shard in plan.shards} if plan else {},
        slow_speed(folder, plan, gpu_model) if plan else None,
    )


def slow_speed(folder: Path, plan: Plan, gpu_model: str) -> Speed | None:
    """Return the speed of a job of the `plan` in `folder`, for its time limit; None if unknown. If
    the profile names no known GPU, that of earlier runs in the same folder is assumed, or else the
    slowest known one."""
    is_gpu = plan.device != "cpu" and (
        plan.device == "cuda" or bool(gpu_model or devices.cuda_devices())
    )
    specs = [
        JobSpec(plan.settings, name, True, plan.gpus) for name in dict.fromkeys((gpu_model, ""))
    ]
    if not is_gpu:
        specs = [JobSpec(plan.settings, devices.cpu().name, is_gpu=False)]
    weights, mean_cost = plan.weights and Path(plan.weights), plan.cost / max(1, plan.counts.unique)
    return find_first(specs, folder.parent, weights or None, mean_cost, SLOWEST, cores=1)


@lru_cache(maxsize=4)
def _weights_mb(path: str) -> float:
    weights = WeightsFile.find(Path(path)) if path else None
    return _size(Path(weights.path)) / MB if weights else 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _gigabytes(inputs: Iterable[str]) -> float:
    sizes = 0
    for path in map(Path, inputs):
        if path.exists():
            is_packed = path.suffix in (".gz", ".zst", ".xz", ".bz2")
            sizes += path.stat().st_size * (COMPRESSION if is_packed else 1)
    return sizes / GB
