"""What the Snakefile asks of us in the main process: the parts of Snakemake that need a hand.

Some of it leans on attributes of Snakemake's Workflow that are not documented; each stands in one
function here with a test that runs the real thing.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from featuremill import machine
from featuremill.config import Run, check_outputs, validate, without_effect
from featuremill.errors import UserError
from featuremill.lease import Request, count_slots
from featuremill.lease.request import VARIABLES
from featuremill.weights import name_of
from featuremill.workload import find_workload

DEFAULT_HOST_THREADS = 4
"""Threads of an extract job on a GPU: preparing batches and writing rows."""
GPU_RESOURCES = {
    "devices": "gpu_devices",
    "policy": "gpu_policy",
    "slots_per_gpu": "gpu_slots",
    "min_free_mb": "gpu_min_free_mb",
    "wait_seconds": "gpu_wait",
}
"""Default resources of a profile that say how a job gets its GPU; FEATUREMILL_* beats them."""
OWNER_FILE = Path(".snakemake/featuremill.owner")
LOCKS = Path(".snakemake/locks")
_owner: list[TextIO] = []
"""The main process's lock on OWNER_FILE, held for as long as it lives."""


def validated(config: Mapping[str, Any]) -> Run:
    """Return the validated run, or stop Snakemake with one sentence."""
    try:
        run = validate(config)
        check_outputs(run)
    except UserError as error:
        raise WorkflowError(str(error)) from None
    for sentence in without_effect(run):
        logger.warning(sentence)
    return run


def weights_json(run: Run) -> list[str]:
    """Return the weights file that the run needs, as a list of one, or of none."""
    workload = find_workload(run.workload)
    model = workload.weights(workload.Options.model_validate(run.options))
    return [f"weights/{name_of(model)}.json"] if model else []


def prepare_jobs(workflow: Any) -> None:
    """Set what jobs inherit: the `featuremill` of this Python, the profile's settings of GPUs, and
    that they end with Snakemake.

    The path is for environments that are not active; a job whose Snakemake was killed must not go
    on beside the next one.
    """
    os.environ[machine.DIE_WITH_PARENT] = "1"
    defaults = workflow.resource_settings._parsed_default_resources
    for field, resource in GPU_RESOURCES.items():
        if resource in defaults:
            text = str(defaults[resource].raw).strip("'\"")
            os.environ.setdefault(VARIABLES[field], text)
    here = str(Path(sys.executable).parent)
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if here not in folders:
        os.environ["PATH"] = os.pathsep.join([here, *folders])


def cap_gpus(workflow: Any, device: str) -> int:
    """Cap the `gpu` resource at the GPU slots that are here when the user gave no cap; return their
    number.

    Without `--resources gpu=N` Snakemake takes the resource for unlimited on a local run, and with
    a cap of 0 it clips every request to 0 and starts all jobs at once: so the cap is never below 1.
    """
    try:
        num_slots = 0 if device == "cpu" else count_slots(Request.from_environment())
    except UserError as error:
        raise WorkflowError(str(error)) from None
    given = workflow.global_resources.get("gpu")
    cap = given.value if given is not None else None
    if workflow.is_main_process:
        if cap is None and workflow.nodes is None:
            cap = max(1, num_slots)
            workflow.register_resource("gpu", cap)
        os.environ["FEATUREMILL_GPUS"] = str(cap or 0)
    return num_slots


def extract_threads(workflow: Any, num_slots: int) -> int:
    """Return the threads of one extract job: all cores where the CPU does the computing."""
    return DEFAULT_HOST_THREADS if num_slots else workflow.cores or DEFAULT_HOST_THREADS


def heal_stale_lock(workflow: Any, results: str) -> None:
    """Remove the lock that a killed Snakemake left on this run, when its owner is surely dead.

    The main process holds a kernel lock on OWNER_FILE for life. Whoever gets it knows that the last
    owner died; if that was on this machine since it was started, the owner's Snakemake locks mean
    nothing any more. A second run while the first lives does not get it and is refused as ever.
    """
    if not workflow.is_main_process or workflow.output_settings.dryrun:
        return
    OWNER_FILE.parent.mkdir(exist_ok=True)
    owner = OWNER_FILE.open("a+")
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by a live run, or a file system without locks: leave all as it is
        owner.close()
        return
    _owner.append(owner)
    owner.seek(0)
    last, this = owner.read(), json.dumps([platform.node(), _boot_id()])
    if last == this:
        for lock in LOCKS.glob("*.lock"):
            if any(line.startswith(f"{results}/") for line in lock.read_text().splitlines()):
                lock.unlink()
    owner.seek(0)
    owner.truncate()
    owner.write(this)
    owner.flush()


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def closing_words(results: str) -> str:
    """Return what to say when a run ended well: how much there is, where, and what to try next."""
    manifest = json.loads((Path(results) / "manifest.json").read_text("utf-8"))
    counts = manifest["counts"]
    files = "\n".join(f"  {results}/{name}" for name in [*manifest["outputs"], "report.html"])
    load = f"python -c \"import featuremill; print(featuremill.load('{results}'))\""
    return (
        f"\n{counts['ok']:,} of {counts['input']:,} records have their features:\n{files}\n"
        f"Look at them:  {load}\n"
        "Your own data: featuremill init my.fa"
    )
