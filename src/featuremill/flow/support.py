"""What the Snakefile asks of us in the main process: the parts of Snakemake that need a hand.

Some of it leans on attributes of Snakemake's Workflow that are not documented; each stands in one
function here with a test that runs the real thing.
"""

from __future__ import annotations

import _thread
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake.logging import logger
from snakemake.scheduling.job_scheduler import JobScheduler

from featuremill.base import environment, this_process
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.words import counted
from featuremill.config import (
    Config,
    check_outputs,
    load,
    model_of,
    refuse_patterns,
    validate,
    without_effect,
)
from featuremill.config.yaml_lines import Places
from featuremill.extract import slurm_job
from featuremill.flow import module_import
from featuremill.flow.job_resources import gpu_model
from featuremill.flow.screen import RefusedError
from featuremill.lease import Request, count_slots
from featuremill.lease.request import VARIABLES
from featuremill.merge import clean
from featuremill.store import files
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.workload.weights import is_path, json_of

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
NOT_PLANNED = {"outputs", "labels", "max_failed", "keep"}
"""Keys of a config that change nothing about the plan."""
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
"""Snakemake's options that run no job of ours, or their beginnings."""
LOOKING_SHORT = {"-S", "-D", "-l", "--lt", "--containerize", "--print-compilation"}
"""More of them, whole."""
_started = time.time()


def validated(config: Mapping[str, Any], workflow: Any) -> Config:
    """Return the validated run, or stop Snakemake with one sentence."""
    try:
        source, places = sources(config, workflow)
        run = validate(config, source, places)
        check_outputs(run, source)
        refuse_patterns(run)
    except UserError as error:
        raise RefusedError(str(error)) from None
    for sentence in without_effect(run):
        logger.warning(sentence)
    return run


def sources(config: Mapping[str, Any], workflow: Any) -> tuple[str, Places]:
    """Return what to call the config, and where its keys stand in the YAML files that it is from.

    What another file or --config set has no place in a file.
    """
    if module_import.is_imported(workflow):
        return module_import.config_sources(config, workflow)
    source, places = "config", dict[tuple[str, ...], str]()
    for path in map(Path, workflow.configfiles):
        raw, found = load(Path(os.path.relpath(path)))
        if raw == config:
            source = os.path.relpath(path)
        same = {key for key in raw.keys() & config.keys() if raw[key] == config[key]}
        places |= {key: place for key, place in found.items() if key[0] in same}
    return source, places


def weights_json(run: Config) -> list[str]:
    """Return the weights file that the run needs, as a list of one, or of none."""
    model = model_of(run)
    return [json_of(model)] if model else []


def weights_names(paths: list[str]) -> str:
    """Return the expression that only the names of these weights match."""
    return "|".join(re.escape(Path(path).stem) for path in paths)


def checkpoint_files(run: Config) -> list[str]:
    """Return the checkpoint if the run names one by its path: another one there counts."""
    model = str(run.options.get("model", ""))
    if model.startswith("~"):  # which Snakemake does not look up
        model = str(Path(model).expanduser())
    return [model] if is_path(model) else []


def report_labels(run: Config) -> list[str]:
    """Return the arguments of `featuremill report` that colour its map."""
    labels = run.labels
    return [f"--label-file={labels.file}", f"--label={labels.column}"] if labels.file else []


def read_plan(path: str) -> Plan:
    """Return what plan.json says, or stop Snakemake with one sentence."""
    try:
        return Results(Path(path).parent).read_plan()
    except (UserError, IntegrityError) as error:
        raise RefusedError(str(error)) from None


def prepare_jobs(workflow: Any) -> None:
    """Set what jobs inherit: the `featuremill` of this Python, the profile's settings of GPUs, and
    that they end with Snakemake.

    The path is for environments that are not active; where another workflow imports this one, its
    own programs stay what they are. The package is for conda environments
    (envs/base.post-deploy.sh). A job whose Snakemake was killed must not go on beside the next one.
    """
    environment.DIE_WITH_PARENT.set(this_process.name_of_process())
    environment.PACKAGE.set(str(Path(__file__).parents[1]))
    if model := gpu_model(workflow):
        environment.GPU_MODEL.set_default(model)  # which plan cuts shards for
    slurm_job.tell_jobs(workflow)
    defaults = workflow.resource_settings._parsed_default_resources
    for field, resource in GPU_RESOURCES.items():
        if resource in defaults:
            text = str(defaults[resource].raw).strip("'\"")
            VARIABLES[field].set_default(text)
    try:
        environment.check()
    except UserError as error:
        raise RefusedError(str(error)) from None
    here = str(Path(sys.executable).parent)
    folders = environment.search_path()
    if here not in folders:
        is_last = module_import.is_imported(workflow) and not shutil.which("featuremill")
        folders = [*folders, here] if is_last else [here, *folders]
        environment.set_search_path(folders)


def answer_sigterm() -> None:
    """Let Snakemake end on SIGTERM at any moment.

    Its handler takes locks that the thread which it interrupts may hold; then it waits for itself
    for good (9.27). From a thread of its own it waits for the other. `start_new_thread` takes none.
    """
    answer = JobScheduler.exit_gracefully

    def answer_on_a_thread(scheduler: JobScheduler, *arguments: Any) -> None:
        _thread.start_new_thread(answer, (scheduler, *arguments))

    if answer.__name__ != answer_on_a_thread.__name__:  # as it is for the second of two runs
        JobScheduler.exit_gracefully = answer_on_a_thread


def cap_gpus(workflow: Any, device: str, gpus: int = 1) -> int:
    """Cap the `gpu` resource at the GPU slots that are here when the user gave no cap; return their
    number. Refuse a cap below the `gpus` of one job.

    Without `--resources gpu=N` Snakemake takes the resource for unlimited on a local run, and with
    a cap of 0 it clips every request to 0 and starts all jobs at once: so the cap is never below 1.
    A cap that is too low would clip what a job asks for, and more of them would start than find
    devices. A run on the CPU asks for none, and says nothing of what other rules may have.
    """
    try:
        num_slots = 0 if device == "cpu" else count_slots(Request.from_environment())
    except UserError as error:
        raise RefusedError(str(error)) from None
    given = workflow.global_resources.get("gpu")
    cap = given.value if given is not None else None
    ours = vars(workflow).setdefault("featuremill_caps", set())
    if workflow.is_main_process and device != "cpu":
        if (cap is None or cap in ours) and workflow.nodes is None:
            cap = max(1, num_slots, cap or 0)
            ours.add(cap)
            workflow.register_resource("gpu", cap)
            if 0 < num_slots < gpus and not only_looks():
                raise RefusedError(
                    f"gpus: {gpus} are more than the {num_slots} that can be had here; lower it, "
                    "or look at featuremill doctor."
                )
        elif cap and cap < gpus and not only_looks():
            raise RefusedError(
                f"gpus: one job needs {gpus}, but --resources gpu={cap} allows only {cap}; "
                f"give gpu={gpus} or a multiple of it."
            )
    if workflow.is_main_process:
        environment.GPUS.set(str(cap or 0))
    return num_slots


def extract_threads(workflow: Any, device: str, num_slots: int) -> int:
    """Return the threads of one extract job: all cores of this machine where its CPU computes.

    Where jobs go elsewhere, how many are here says nothing; `--set-threads` says what they get.
    """
    is_elsewhere = workflow.nodes is not None or workflow.remote_exec
    if num_slots or device == "cuda" or is_elsewhere:
        return DEFAULT_HOST_THREADS
    num_cores = workflow.resource_settings.cores  # `workflow.cores` raises where there is none
    return num_cores or DEFAULT_HOST_THREADS


def executes(workflow: Any) -> bool:
    """Tell whether this Snakemake is going to run jobs, and not only to look or to tidy up."""
    return not workflow.output_settings.dryrun and not only_looks()


def only_looks() -> bool:
    """Tell whether this Snakemake was called for something that never runs jobs of ours."""
    words = sys.argv[1:]
    return any(word.startswith(LOOKING) or word in LOOKING_SHORT for word in words)


def closing_words(results: str) -> str:
    """Return what to say when a run ended well: how much there is, where, and what to try next."""
    made = [Path(results) / name for name in ("manifest.json", "report.html")]
    manifest = files.read_json(made[0])
    is_new = any(path.exists() and path.stat().st_mtime >= _started for path in made)
    if manifest is None or not is_new:
        return ""  # only a part of the workflow was asked for
    counts = manifest["counts"]
    is_demo = manifest["run"] == Config.model_fields["run"].default
    written = "\n".join(f"  {results}/{name}" for name in [*manifest["outputs"], "report.html"])
    load = f"-c \"import featuremill; print(featuremill.load('{results}'))\""
    return (
        f"\n{_have_features(counts)}:\n{written}\n"
        f"{_without_features(results, counts)}"
        f"Look at them:  {_command('python')} {load}"
        + (f"\nYour own data: {_command('featuremill')} init my.fa" if is_demo else "")
    )


def _have_features(counts: Mapping[str, int]) -> str:
    have = "has its" if counts["input"] == 1 else "have their"
    return f"{counts['ok']:,} of {counted(counts['input'], 'record')} {have} features"


def _without_features(results: str, counts: Mapping[str, int]) -> str:
    """Return a line about the records that have none, where there are any."""
    rest = [f"{counts[key]:,} {key}" for key in ("failed", "refused") if counts[key]]
    said = f"Without features: {', '.join(rest)}: see {results}/failed.tsv\n" if rest else ""
    if repeated := counts["duplicate"]:
        said += f"{counted(repeated, 'duplicate')}: the same id and sequence as a record before\n"
    return said


def tidied(workflow: Any, results: str, keep: str) -> str:
    """Remove what the config's `keep` gives up; return a line that says so, or why not.

    Only after the whole run, and here, where no job follows: a merge that Snakemake has to do once
    more would miss its parts.
    """
    made = {str(file) for job in workflow.dag.jobs for file in job.output}
    if keep == "all" or not {f"{results}/manifest.json", f"{results}/report.html"} <= made:
        return ""
    try:
        said = clean.after_run(Path(results), keep)
    except (UserError, OSError) as error:
        return f"keep: {keep}: nothing more was removed: {error}\n"
    return f"{said}\n" if said else ""


def _command(name: str) -> str:
    """Return how `name` is called from here: by its path while its environment is not active."""
    if environment.VIRTUAL_ENV.text() or environment.CONDA_PREFIX.text():
        return name
    return os.path.relpath(Path(sys.executable).parent / name)
