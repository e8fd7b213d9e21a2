"""What the run's jobs get from its Snakemake: an environment, GPUs, threads."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from featuremill.base import entry_points, environment, this_process
from featuremill.base.devices import ALL, refuse_slices
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError, refusing, wants_no_lines
from featuremill.lease import Request, count_slots
from featuremill.lease.environment import CUDA_VISIBLE_DEVICES
from featuremill.lease.offer import offer
from featuremill.lease.request import VARIABLES

DEFAULT_HOST_THREADS = 4
"""Threads of an extract job on a GPU: preparing batches and writing rows."""
GPU_RESOURCES = {
    "devices": "gpu_devices",
    "policy": "gpu_policy",
    "slots_per_gpu": "gpu_slots",
    "min_free_mb": "gpu_min_free_mb",
    "wait_seconds": "gpu_wait",
}
"""Resources of a profile that say how a job gets its GPU; FEATUREMILL_* beats them."""
_caps: set[int] = set()
"""Limits of the `gpu` resource that this process has set, such as for an earlier `use rule`."""


def prepare_jobs(workflow: Any) -> None:
    """Set what jobs inherit: the `featuremill` of this Python, the profile's settings of GPUs, that
    they end with Snakemake, and whether each is a job of a cluster.

    The path is for environments that are not active; where another workflow imports this one, its
    own programs stay what they are. The package and its metadata are for conda environments
    (envs/base.post-deploy.sh). A job whose Snakemake was killed must end before the next starts.
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
    asked = internals.rule_resources(workflow, "extract")
    for field, resource in GPU_RESOURCES.items():
        if resource in asked:
            VARIABLES[field].set_default(asked[resource])
    with refusing():
        environment.check()
    here = str(Path(sys.executable).parent)
    folders = environment.search_path()
    if here not in folders:
        is_last = internals.is_imported(workflow) and not shutil.which("featuremill")
        folders = [*folders, here] if is_last else [here, *folders]
        environment.set_search_path(folders)


def gpu_model(workflow: Any) -> str:
    """Return the kind of GPU that a profile asks for extract; nothing where it asks for none."""
    return internals.rule_resources(workflow, "extract").get("gpu_model", "")


def cap_gpus(workflow: Any, device: str, gpus: int = 1) -> int:
    """Cap the `gpu` resource at the GPU slots that are here when the user gave no cap; return their
    number. Refuse a cap below the `gpus_per_job`, and MIG slices for more than one of them.

    Without `--resources gpu=N` Snakemake takes the resource for unlimited on a local run, and with
    a cap of 0 it clips every request to 0 and starts all jobs at once: so the cap is never below 1.
    A cap that is too low would clip what a job asks for, and more of them would start than find
    devices. A run on the CPU asks for none, and sets no cap for other rules.
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
    """Return the threads of one extract job: all cores of this machine where its CPU computes.

    Where jobs run elsewhere, the cores here do not count; `--set-threads` sets what they get.
    """
    if num_slots or device == "cuda":
        return DEFAULT_HOST_THREADS
    return internals.cores_here(workflow) or DEFAULT_HOST_THREADS
