"""What the Snakefile asks of us in the main process: the parts of Snakemake that need a hand.

Some of it leans on attributes of Snakemake's Workflow that are not documented; each stands in one
function here with a test that runs the real thing.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from featuremill import machine, owner, store
from featuremill.config import Run, check_outputs, validate, without_effect
from featuremill.errors import UserError
from featuremill.lease import Request, count_slots
from featuremill.lease.request import VARIABLES
from featuremill.weights import is_path, name_of
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
LOOKING = (
    "--report",
    "--lint",
    "--summary",
    "--detailed-summary",
    "--list",
    "--dag",
    "--rulegraph",
    "--filegraph",
    "--d3dag",
    "--unlock",
    "--archive",
    "--cleanup",
    "--delete",
)
"""Snakemake's options that run no job of ours."""
LOCKS = Path(".snakemake/locks")
_started = time.time()
_claimed: list[TextIO] = []
"""The main process's lock on the run, held for as long as it lives."""


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


def checkpoint_files(run: Run) -> list[str]:
    """Return the checkpoint if the run names one by its path: another one there counts."""
    model = str(run.options.get("model", ""))
    return [model] if is_path(model) else []


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


def cap_gpus(workflow: Any, device: str, gpus: int = 1) -> int:
    """Cap the `gpu` resource at the GPU slots that are here when the user gave no cap; return their
    number. Refuse a cap below the `gpus` of one job.

    Without `--resources gpu=N` Snakemake takes the resource for unlimited on a local run, and with
    a cap of 0 it clips every request to 0 and starts all jobs at once: so the cap is never below 1.
    A cap that is too low would clip what a job asks for, and more of them would start than find
    devices.
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
            if 0 < num_slots < gpus and not only_looks():
                raise WorkflowError(
                    f"gpus: {gpus} are more than the {num_slots} that can be had here; lower it, "
                    "or look at featuremill doctor."
                )
        elif device != "cpu" and cap and cap < gpus and not only_looks():
            raise WorkflowError(
                f"gpus: one job needs {gpus}, but --resources gpu={cap} allows only {cap}; "
                f"give gpu={gpus} or a multiple of it."
            )
        os.environ["FEATUREMILL_GPUS"] = str(cap or 0)
    return num_slots


def extract_threads(workflow: Any, num_slots: int) -> int:
    """Return the threads of one extract job: all cores where the CPU does the computing."""
    return DEFAULT_HOST_THREADS if num_slots else workflow.cores or DEFAULT_HOST_THREADS


def claim_run(workflow: Any, results: str) -> None:
    """Make this main process the run's owner, or refuse; mend what a killed owner left.

    The owner holds a kernel lock on a file of the run for life. Whoever gets it knows that the last
    owner died; if that was on this machine since it was started, the Snakemake locks that the owner
    left on this run mean nothing any more and are removed. Where the last owner was elsewhere, the
    file system may not share locks between machines: then Snakemake's own lock decides.
    """
    if not workflow.is_main_process or not executes(workflow):
        return
    try:
        file = owner.claim(Path(results))
    except BlockingIOError:
        raise WorkflowError(
            f"{results}: another snakemake is computing this run; wait for it, or stop it."
        ) from None
    if file is None:
        return
    _claimed.append(file)
    last = owner.read(Path(results))
    was_here = last is not None and last.is_of_this_start()
    stale = [lock for lock in LOCKS.glob("*.lock") if _concerns(lock, results)]
    if was_here:
        for lock in stale:
            lock.unlink()
    if was_here or not stale:
        owner.sign(file, shlex.join(["snakemake", *sys.argv[1:]]))


def executes(workflow: Any) -> bool:
    """Tell whether this Snakemake is going to run jobs, and not only to look or to tidy up."""
    return not workflow.output_settings.dryrun and not only_looks()


def only_looks() -> bool:
    """Tell whether this Snakemake was called for something that never runs jobs of ours."""
    return any(argument.startswith(LOOKING) for argument in sys.argv[1:])


def _concerns(lock: Path, results: str) -> bool:
    lines = lock.read_text().splitlines()
    return any(line.startswith(f"{results}/") for line in lines)


def closing_words(results: str) -> str:
    """Return what to say when a run ended well: how much there is, where, and what to try next."""
    path = Path(results) / "manifest.json"
    manifest = store.read_json(path)
    if manifest is None or path.stat().st_mtime < _started:
        return ""  # only a part of the workflow was asked for
    counts = manifest["counts"]
    files = "\n".join(f"  {results}/{name}" for name in [*manifest["outputs"], "report.html"])
    load = f"-c \"import featuremill; print(featuremill.load('{results}'))\""
    return (
        f"\n{counts['ok']:,} of {counts['input']:,} records have their features:\n{files}\n"
        f"Look at them:  {_command('python')} {load}\n"
        f"Your own data: {_command('featuremill')} init my.fa"
    )


def _command(name: str) -> str:
    """Return how `name` is called from here: by its path while its environment is not active."""
    if os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"):
        return name
    return os.path.relpath(Path(sys.executable).parent / name)
