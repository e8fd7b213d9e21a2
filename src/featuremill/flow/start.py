"""What the main process does before Snakemake looks at a run's files: it makes the run its own, and
puts right what Snakemake would misread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from snakemake.logging import logger

from featuremill import workload
from featuremill.base.errors import UserError
from featuremill.config import Config
from featuremill.flow import file_times, module_import
from featuremill.flow.refusals import (
    asked_by,
    asks_for_less,
    config_file,
    is_computed,
    refuse_another_config,
    refuse_default_storage,
    refuse_without_gpu,
    refuse_without_packages,
    refuse_wrong_labels,
)
from featuremill.flow.screen import RefusedError
from featuremill.flow.support import checkpoint_files, executes, only_looks, weights_json
from featuremill.inputs import TableOptions, source
from featuremill.status import state
from featuremill.store import command_line, files, run_lock
from featuremill.store.formats import FILES
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.workload import Weights, recipe, weights

LOCKS = Path(".snakemake/locks")
_claimed: dict[Path, TextIO] = {}
"""The main process's locks on its runs, held for as long as it lives."""


def prepare(workflow: Any, run: Config, results: str, weights_files: Sequence[str]) -> None:
    """Do all of that, where this process is the main one and is going to run jobs."""
    is_dry = workflow.output_settings.dryrun and not only_looks()
    if workflow.is_main_process and is_dry and (others := others_planned_for(run, results)):
        logger.warning(
            f"{results}: here is {others}: a run plans and computes it anew, which a dry run does "
            "not show."
        )
    is_done = run_lock.path_of(Path(results)) in _claimed  # for an earlier `use rule` of the module
    if workflow.is_main_process and executes(workflow) and not is_done:
        refuse_default_storage(workflow)
        refuse_without_packages(workflow, run, results, weights_files)
        refuse_without_gpu(workflow, run, results)
        refuse_wrong_labels(workflow, run)
        config = config_file(workflow, results)
        refuse_another_config(run, results, config)
        claim_run(
            results,
            rules=workflow.modifier.modify_rulename("{}"),
            config=config,
            asked=asked_by(run, results),
            weights=next(iter(weights_json(run)), ""),
            is_imported=module_import.is_imported(workflow),
        )
        try:
            forget_plan_of_other_versions(workflow, run, results)
            forget_what_is_gone(run, results)
            forget_lost_weights(workflow, run, results, weights_files)
            if not (module_import.is_imported(workflow) or asks_for_less(results)):
                forget_what_is_not_whole(results)
        except OSError as error:
            raise RefusedError(f"{error.filename}: {error.strerror}; mend that first.") from None
        tell_what_goes(run, results)
        check_times(run, results)


def claim_run(results: str, **about: Any) -> None:
    """Make this main process the run's owner, or refuse; mend what a killed owner left.

    The owner holds a kernel lock on a file of the run for life. Whoever gets it knows that the last
    owner died; if that was on this machine since it was started, the Snakemake locks that the owner
    left on this run mean nothing any more and are removed. Where the last owner was elsewhere, the
    file system may not share locks between machines: then Snakemake's own lock decides. `about` are
    fields of Owner.
    """
    path = run_lock.path_of(Path(results))
    try:
        file = run_lock.claim(Path(results))
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
    last = run_lock.read(Path(results))
    was_here = last is not None and last.is_of_this_start()
    stale = [lock for lock in LOCKS.glob("*.lock") if _concerns(lock, results)]
    if was_here:
        for lock in stale:
            lock.unlink()
    if was_here or not stale:
        folder = os.path.relpath(Path.cwd(), run_lock.whole_path(Path(results)).parent.parent)
        run_lock.sign(file, command_line.command(), folder=folder, **about)


def forget_plan_of_other_versions(workflow: Any, run: Config, results: str) -> None:
    """Have Snakemake plan again what was planned for another version of the workload or engine: it
    sees neither, and a shard that was begun would go on with values of both.

    Where another workflow imports this one, its target may need no plan, and the results would be
    left without one: there it is only said what to type.
    """
    others = others_planned_for(run, results)
    if others and module_import.is_imported(workflow):
        rule = workflow.modifier.modify_rulename("plan")
        logger.warning(f"{results}: here is {others}: --forcerun {rule} plans it anew.")
    elif others:
        logger.warning(f"{results}: here is {others}: it is planned and computed anew.")
        Results(Path(results)).plan.unlink()


def others_planned_for(run: Config, results: str) -> str:
    """Return how the versions that are installed differ from those that the run is planned for."""
    plan = Results(Path(results)).find_plan()
    # With another workload Snakemake plans again anyway.
    is_same = plan and plan.workload == run.workload
    return recipe.other_versions_here(plan.settings) if plan and is_same else ""


def forget_what_is_gone(run: Config, results: str) -> None:
    """Have Snakemake see what it would take for done, because the results stand.

    Without store/ nothing is computed, whatever receipts say. Without plan.json (messages say when
    to delete it) it would never plan again, nor when other outputs of a run are asked for whose
    shards were removed.
    """
    folder = Results(Path(results))
    path = folder.root / "manifest.json"
    manifest = files.read_json(path)
    if folder.plan.exists() and not folder.store.exists():
        shutil.rmtree(folder.root / "receipts", ignore_errors=True)
        folder.plan.unlink()
    are_others = manifest and set(manifest["outputs"]) != {FILES[name] for name in run.outputs}
    if are_others and not (folder.store / "shards").exists():
        folder.plan.unlink(missing_ok=True)
    if not folder.plan.exists():
        path.unlink(missing_ok=True)


def forget_lost_weights(
    workflow: Any, run: Config, results: str, weights_files: Sequence[str]
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
        if lost and not (is_computed(results) and _is_planned(run, results, lost)):
            with contextlib.suppress(OSError):  # plan will say which file to delete
                path.unlink()


def _is_planned(run: Config, results: str, model: Weights) -> bool:
    """Tell whether the last plan is still that of this config and these inputs."""
    from featuremill.plan.command import planning_device

    path = Results(Path(results)).plan
    plan = Plan.find(path)
    if plan is None or [entry.path for entry in plan.inputs] != list(run.inputs):
        return False
    inputs = [Path(name) for name in run.inputs if Path(name).exists()]
    if any(each.stat().st_mtime > path.stat().st_mtime for each in inputs):
        return False
    found = workload.find_workload(run.workload)
    options = found.Options.model_validate(run.options)
    columns = options.model_dump(include=TableOptions.EXECUTION)
    if any(plan.execution.get(key, "") != value for key, value in columns.items()):
        return False
    device = planning_device(run.device)
    settings = recipe.settings_of(run.workload, found, options, device, model)
    return recipe.recipe_of(settings) == plan.recipe


def forget_what_is_not_whole(results: str) -> None:
    """Have Snakemake see what `status` says is in the way of the planned run, so that the run's
    command is enough to mend it."""
    folder = Results(Path(results))
    if not folder.plan.exists():
        return
    try:
        found = state.unseen_by_snakemake(folder.root)
    except UserError:  # which the verbs say in their turn
        found = []
    if not found:  # a plan of many shards takes a while to read
        return
    plan = folder.find_plan()
    has_parts = any((folder.store / "parts").rglob("*.arrows"))
    for problem in found:
        if problem.mend.again == "merge" and not has_parts:
            continue  # `keep: results` removed them; nobody asked to compute all again
        logger.warning(f"{results}: {problem.what} This is made again.")
        if problem.mend.again == "plan":
            folder.plan.unlink(missing_ok=True)
        for shard in problem.mend.shards:
            folder.receipt(plan.recipe if plan else "", shard).unlink(missing_ok=True)
        if problem.code == "results_older":
            folder.plan.touch()  # they are whole, and stay until there are newer ones
        else:
            (folder.root / "manifest.json").unlink(missing_ok=True)


def tell_what_goes(run: Config, results: str) -> None:
    """Say which results merge is going to remove, as `outputs` no longer names them."""
    root = Path(results)
    delivery = Results(root).find_delivery()
    written = delivery.outputs if delivery else {}
    wanted = {FILES[name] for name in run.outputs}
    for name in written:
        if name not in wanted and (root / name).exists():
            logger.warning(
                f"{root / name}: this result is not among `outputs` any more, so merge removes it."
            )


def check_times(run: Config, results: str) -> None:
    """Refuse inputs of the future, and bring the run's own files back to the present."""
    clock = run_lock.path_of(Path(results))
    try:
        source.refuse_future([*run.inputs, *checkpoint_files(run)], clock)
    except UserError as error:
        raise RefusedError(str(error)) from None
    file_times.bring_back(Path(results), clock)


def _concerns(lock: Path, results: str) -> bool:
    lines = lock.read_text().splitlines()
    return any(line.startswith(f"{results}/") for line in lines)
