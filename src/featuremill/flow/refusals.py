"""What the main process refuses before Snakemake begins, each in one sentence: what would end late,
or replace what somebody else's config made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from featuremill import workload
from featuremill.base.errors import UserError
from featuremill.config import Config
from featuremill.flow import module_import
from featuremill.flow.screen import RefusedError
from featuremill.inputs import TableOptions
from featuremill.lease.devices import devices_for
from featuremill.report import labels
from featuremill.store import command_line, run_lock
from featuremill.store.results import Results
from featuremill.workload import recipe

TARGETS = {"plan", "weights", "partial"}
LESS = ("--until", "-U", "--touch", "-t")
"""Words, and beginnings of words, on a command line that ask for less than the whole run; Snakemake
tells them too late."""


def refuse_default_storage(workflow: Any) -> None:
    """Refuse to have Snakemake move every file to remote storage: the store is not declared to it
    and would stay behind, with a plan elsewhere.
    """
    if workflow.storage_settings.default_storage_provider is not None:
        raise RefusedError(
            "--default-storage-provider takes a run's files away from its store, which has to "
            "stand beside them; leave it out and name remote files one by one, as "
            "docs/clusters.md shows."
        )


def refuse_without_packages(
    workflow: Any, run: Config, results: str, weights_files: Sequence[str]
) -> None:
    """Refuse to begin where this Python lacks what the jobs are going to compute with.

    Not where the jobs have environments or containers of their own (`--sdm`), and not where all is
    computed. Where they only run elsewhere, they lack nothing once the weights, which are converted
    here, are there.
    """
    if module_import.is_imported(workflow):  # its target may have nothing to do with ours
        return
    try:
        workload.refuse_without_packages(workload.find_workload(run.workload).Options)
    except UserError as error:
        is_elsewhere = workflow.nodes is not None or asks_for_less(results)
        is_converted = all(Path(path).exists() for path in weights_files)
        has_others = workflow.deployment_settings.deployment_method
        if has_others or (is_elsewhere and is_converted) or is_computed(results):
            return
        raise RefusedError(
            f"{error} (or have Snakemake make environments for the jobs: --sdm conda)."
        ) from None


def refuse_without_gpu(workflow: Any, run: Config, results: str) -> None:
    """Refuse `device: cuda` where the jobs would run on this machine and it has no GPU.

    Not where jobs go elsewhere, where a target is named (a plan needs none) or may be another
    workflow's own, and where every shard is computed already.
    """
    is_elsewhere = workflow.nodes is not None or module_import.is_imported(workflow)
    if run.device != "cuda" or is_elsewhere or asks_for_less(results) or is_computed(results):
        return
    try:
        devices_for(run.device)
    except UserError as error:
        raise RefusedError(
            f"{error} To plan here and compute elsewhere: snakemake plan …"
        ) from None


def refuse_wrong_labels(workflow: Any, run: Config) -> None:
    """Refuse a table of labels without the column that is asked for, before all is computed.

    Where another workflow imports this one, a rule of it may still make the table.
    """
    path = run.labels.file and Path(run.labels.file)
    if not path or not path.exists() or module_import.is_imported(workflow):
        return
    try:
        labels.check(path, run.labels.column)
    except UserError as error:
        raise RefusedError(f"config: labels: {error}") from None


def refuse_another_config(run: Config, results: str, config: str) -> None:
    """Refuse to replace the results of another config whose run has the same name.

    Another config is another file that asks for something else: other inputs, another workload, or
    options that give other values. So an edit goes on, as does a config of a new name, and one in a
    project that was moved; without plan.json there is nothing to replace.
    """
    last = run_lock.read(Path(results))
    is_planned = Results(Path(results)).plan.exists()
    if not (config and last and last.config and is_planned):
        return
    working = run_lock.whole_path(Path(results)).parent.parent
    if (working / last.config).resolve() == (working / config).resolve():  # maybe through a link
        return
    asks = asked_by(run, results)
    for key, value in last.asked.items():
        if asks.get(key) != value:
            said = ", ".join(map(str, value)) if isinstance(value, list) else value
            raise RefusedError(
                f"{config}: run: {run.run} is the name of another config's run: {last.config} made "
                f"{results} with {key}: {said}. Give one of them another `run:`, or, to have this "
                f"one take its place, delete {results}/plan.json: what is computed stays."
            )


def asked_by(run: Config, results: str) -> dict[str, Any]:
    """Return what determines the results of a `run`: its inputs, seen from the folder of
    results/<run>, its workload, the options that are in the recipe, and columns of tables."""
    working = run_lock.whole_path(Path(results)).parent.parent
    options = workload.find_workload(run.workload).Options.model_validate(run.options)
    return {
        "inputs": [
            # What was named by an absolute path elsewhere stays there where a project moves.
            path if _is_elsewhere(path, working) else os.path.relpath(path, working)
            for path in run.inputs
        ],
        "workload": run.workload,
        **options.model_dump(mode="json", exclude=options.EXECUTION - TableOptions.EXECUTION),
    }


def _is_elsewhere(path: str, folder: Path) -> bool:
    return Path(path).is_absolute() and not Path(path).is_relative_to(folder)


def config_file(workflow: Any, results: str) -> str:
    """Return the config's file, seen from the folder of results/<run>: where a project moves, it
    stays the same. Empty where there is none, or where it is another workflow's."""
    if module_import.is_imported(workflow) or not workflow.configfiles:
        return ""
    working = run_lock.whole_path(Path(results)).parent.parent
    return ", ".join(os.path.relpath(path, working) for path in workflow.configfiles)


def asks_for_less(results: str) -> bool:
    """Tell whether a target is named, or other words ask for less than the whole run."""
    option = ""
    for word in sys.argv[1:]:
        if word.startswith(LESS):
            return True
        if word.startswith("-"):
            option = word if "=" not in word else ""
        elif option in command_line.NAMING_ONE:
            option = ""
        elif option not in command_line.NAMING | command_line.FORCING and (
            word in TARGETS or word.startswith((f"{results}/", "weights/"))
        ):
            return True
    return False


def is_computed(results: str) -> bool:
    """Tell whether all of the last plan is computed: its receipts say so, or the results
    (`keep: results` removes receipts)."""
    folder = Results(Path(results))
    plan = folder.find_plan()
    if plan is None or recipe.other_versions_here(plan.settings):
        return False
    if all(folder.receipt(plan.recipe, entry.shard).exists() for entry in plan.shards):
        return True
    delivery = folder.find_delivery()
    return delivery is not None and delivery.is_of(plan)
