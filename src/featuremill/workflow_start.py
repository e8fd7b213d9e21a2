"""What the main process does before Snakemake looks at a run's files: it makes the run its own, and
puts right what Snakemake would misread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from snakemake.logging import logger

from featuremill import owner, recipe, store, times, typed, weights, workflow_import, workload
from featuremill.agreement import are_results_of
from featuremill.calm import RefusedError
from featuremill.config import Run
from featuremill.devices import devices_for
from featuremill.errors import UserError
from featuremill.outputs import FILES
from featuremill.report import labels
from featuremill.workflow_support import checkpoint_files, executes, only_looks
from featuremill.workload import Weights

LOCKS = Path(".snakemake/locks")
TARGETS = {"plan", "weights", "partial"}
LESS = ("--until", "-U", "--touch")
"""Words, and beginnings of words, on a command line that ask for less than the whole run; Snakemake
tells them too late."""
_claimed: dict[Path, TextIO] = {}
"""The main process's locks on its runs, held for as long as it lives."""


def prepare(workflow: Any, run: Run, results: str, weights_files: Sequence[str]) -> None:
    """Do all of that, where this process is the main one and is going to run jobs."""
    is_dry = workflow.output_settings.dryrun and not only_looks()
    if workflow.is_main_process and is_dry and (others := others_planned_for(run, results)):
        logger.warning(
            f"{results}: here is {others}: a run plans and computes it anew, which a dry run does "
            "not show."
        )
    if workflow.is_main_process and executes(workflow):
        refuse_default_storage(workflow)
        refuse_without_packages(workflow, run, results, weights_files)
        refuse_without_gpu(workflow, run, results)
        check_labels(workflow, run)
        claim_run(results, workflow.modifier.modify_rulename("{}"))
        forget_plan_of_other_versions(run, results)
        forget_what_is_gone(run, results)
        forget_lost_weights(workflow, run, results, weights_files)
        check_times(run, results)


def claim_run(results: str, rules: str = "{}") -> None:
    """Make this main process the run's owner, or refuse; mend what a killed owner left.

    The owner holds a kernel lock on a file of the run for life. Whoever gets it knows that the last
    owner died; if that was on this machine since it was started, the Snakemake locks that the owner
    left on this run mean nothing any more and are removed. Where the last owner was elsewhere, the
    file system may not share locks between machines: then Snakemake's own lock decides. `rules` is
    what a rule `{}` is called here.
    """
    path = owner.path_of(Path(results))
    if path in _claimed:  # for an earlier `use rule` of the same module
        return
    try:
        file = owner.claim(Path(results))
    except BlockingIOError:
        raise RefusedError(
            f"{results}: another snakemake is computing this run; wait for it, or stop it."
        ) from None
    except UserError as error:
        raise RefusedError(str(error)) from None
    except OSError as error:
        raise RefusedError(f"{error.filename}: {error.strerror}; mend that first.") from None
    if file is None:
        return
    _claimed[path] = file
    last = owner.read(Path(results))
    was_here = last is not None and last.is_of_this_start()
    stale = [lock for lock in LOCKS.glob("*.lock") if _concerns(lock, results)]
    if was_here:
        for lock in stale:
            lock.unlink()
    if was_here or not stale:
        folder = os.path.relpath(Path.cwd(), owner.whole_path(Path(results)).parent.parent)
        owner.sign(file, typed.command(), folder, rules)


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


def refuse_without_gpu(workflow: Any, run: Run, results: str) -> None:
    """Refuse `device: cuda` where the jobs would run on this machine and it has no GPU.

    Not where jobs go elsewhere, where a target is named (a plan needs none) or may be another
    workflow's own, and where every shard is computed already.
    """
    is_elsewhere = workflow.nodes is not None or workflow_import.is_imported(workflow)
    if run.device != "cuda" or is_elsewhere or _names_target(results) or _is_computed(results):
        return
    try:
        devices_for(run.device)
    except UserError as error:
        raise RefusedError(
            f"{error} To plan here and compute elsewhere: snakemake plan …"
        ) from None


def refuse_without_packages(
    workflow: Any, run: Run, results: str, weights_files: Sequence[str]
) -> None:
    """Refuse to begin where this Python lacks what the jobs are going to compute with.

    Not where the jobs have environments or containers of their own (`--sdm`), and not where all is
    computed. Where they only run elsewhere, they lack nothing once the weights, which are converted
    here, are there.
    """
    try:
        workload.refuse_without_packages(workload.find_workload(run.workload).Options)
    except UserError as error:
        is_elsewhere = workflow.nodes is not None or _names_target(results)
        is_converted = all(Path(path).exists() for path in weights_files)
        has_others = workflow.deployment_settings.deployment_method
        if has_others or (is_elsewhere and is_converted) or _is_computed(results):
            return
        raise RefusedError(
            f"{error} (or have Snakemake make environments for the jobs: --sdm conda)."
        ) from None


def _names_target(results: str) -> bool:
    """Tell whether less than the whole run was asked for."""
    return any(
        word in TARGETS or word.startswith((*LESS, f"{results}/", "weights/"))
        for word in sys.argv[1:]
    )


def _is_computed(results: str) -> bool:
    """Tell whether all of the last plan is computed: its receipts say so, or the results
    (`keep: results` removes receipts)."""
    folder = store.RunFolder(Path(results))
    plan = store.read_sealed(folder.plan)
    if plan is None or recipe.other_versions_here(plan):
        return False
    if all(folder.receipt(plan["recipe"], s["shard"]).exists() for s in plan["shards"]):
        return True
    manifest = store.read_json(folder.root / "manifest.json")
    return manifest is not None and are_results_of(plan, manifest)


def check_labels(workflow: Any, run: Run) -> None:
    """Refuse a table of labels without the column that is asked for, before all is computed.

    Where another workflow imports this one, a rule of it may still make the table.
    """
    path = run.labels.file and Path(run.labels.file)
    if not path or not path.exists() or workflow_import.is_imported(workflow):
        return
    try:
        labels.check(path, run.labels.column)
    except UserError as error:
        raise RefusedError(f"config: labels: {error}") from None


def forget_plan_of_other_versions(run: Run, results: str) -> None:
    """Have Snakemake plan again what was planned for another version of the workload or engine: it
    sees neither, and a shard that was begun would go on with values of both.
    """
    if others := others_planned_for(run, results):
        logger.warning(f"{results}: here is {others}: it is planned and computed anew.")
        store.RunFolder(Path(results)).plan.unlink()


def others_planned_for(run: Run, results: str) -> str:
    """Return how the versions that are installed differ from those that the run is planned for."""
    plan = store.read_sealed(store.RunFolder(Path(results)).plan)
    # With another workload Snakemake plans again anyway.
    is_same = plan and plan.get("workload") == run.workload
    return recipe.other_versions_here(plan) if plan and is_same else ""


def forget_what_is_gone(run: Run, results: str) -> None:
    """Have Snakemake see what it would take for done, because the results stand.

    Without store/ nothing is computed, whatever receipts say. Without plan.json (messages say when
    to delete it) it would never plan again, nor when other outputs of a run are asked for whose
    shards were removed.
    """
    folder = store.RunFolder(Path(results))
    path = folder.root / "manifest.json"
    manifest = store.read_json(path)
    if folder.plan.exists() and not folder.store.exists():
        shutil.rmtree(folder.root / "receipts", ignore_errors=True)
        folder.plan.unlink()
    are_others = manifest and set(manifest["outputs"]) != {FILES[name] for name in run.outputs}
    if are_others and not (folder.store / "shards").exists():
        folder.plan.unlink(missing_ok=True)
    if not folder.plan.exists():
        path.unlink(missing_ok=True)


def forget_lost_weights(
    workflow: Any, run: Run, results: str, weights_files: Sequence[str]
) -> None:
    """Have weights converted again that are gone from the cache: their bytes are always the same,
    so nothing is computed again.

    Not where nothing is left to compute with them, as that may cost a download for nothing, and not
    where jobs see other folders than this process does.
    """
    if workflow.deployment_settings.deployment_method:
        return
    for path in map(Path, weights_files):
        lost = weights.lost(path)
        if lost and not (_is_computed(results) and _is_planned(run, results, lost)):
            with contextlib.suppress(OSError):  # plan will say which file to delete
                path.unlink()


def _is_planned(run: Run, results: str, model: Weights) -> bool:
    """Tell whether the last plan is still that of this config and these inputs."""
    from featuremill.plan import planning_device

    path = store.RunFolder(Path(results)).plan
    plan = store.read_sealed(path)
    if plan is None or [entry["path"] for entry in plan["inputs"]] != list(run.inputs):
        return False
    inputs = [Path(name) for name in run.inputs if Path(name).exists()]
    if any(each.stat().st_mtime > path.stat().st_mtime for each in inputs):
        return False
    found = workload.find_workload(run.workload)
    options = found.Options.model_validate(run.options)
    device = planning_device(run.device)
    settings = recipe.settings_of(run.workload, found, options, device, model)
    return recipe.recipe_of(settings) == str(plan["recipe"])


def check_times(run: Run, results: str) -> None:
    """Refuse inputs of the future, and bring the run's own files back to the present."""
    clock = owner.path_of(Path(results))
    try:
        times.refuse_future([*run.inputs, *checkpoint_files(run)], clock)
    except UserError as error:
        raise RefusedError(str(error)) from None
    times.bring_back(Path(results), clock)


def _concerns(lock: Path, results: str) -> bool:
    lines = lock.read_text().splitlines()
    return any(line.startswith(f"{results}/") for line in lines)
