"""What the main process does before Snakemake looks at a run's files: it makes the run its own, and
puts right what Snakemake would misread.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

from snakemake.logging import logger

from featuremill import owner, store, times, typed, workflow_import
from featuremill.agreement import are_results_of
from featuremill.calm import RefusedError
from featuremill.config import Run
from featuremill.devices import devices_for
from featuremill.errors import UserError
from featuremill.outputs import FILES
from featuremill.report import labels
from featuremill.status import visit
from featuremill.workflow_support import checkpoint_files, executes, weights_json
from featuremill.workload import find_workload

LOCKS = Path(".snakemake/locks")
TARGETS = {"plan", "weights", "partial"}
LESS = ("--until", "-U", "--touch")
"""Words, and beginnings of words, on a command line that ask for less than the whole run; Snakemake
tells them too late."""
_claimed: dict[Path, TextIO] = {}
"""The main process's locks on its runs, held for as long as it lives."""


def prepare(workflow: Any, run: Run, results: str) -> None:
    """Do all of that, where this process is the main one and is going to run jobs."""
    is_done = owner.path_of(Path(results)) in _claimed  # for an earlier `use rule` of the module
    if workflow.is_main_process and executes(workflow) and not is_done:
        refuse_default_storage(workflow)
        refuse_without_gpu(workflow, run, results)
        check_labels(workflow, run)
        config = config_file(workflow, results)
        refuse_another_config(run, results, config)
        claim_run(
            results,
            rules=workflow.modifier.modify_rulename("{}"),
            config=config,
            asked=asked_by(run, results),
            weights=next(iter(weights_json(run)), ""),
            is_imported=workflow_import.is_imported(workflow),
        )
        forget_what_is_gone(run, results)
        if not (workflow_import.is_imported(workflow) or asks_for_less(results)):
            forget_what_is_not_whole(results)
        tell_what_goes(run, results)
        check_times(run, results)


def config_file(workflow: Any, results: str) -> str:
    """Return the config's file, seen from the folder of results/<run>: where a project moves, it
    stays the same. Empty where there is none, or where it is another workflow's."""
    if workflow_import.is_imported(workflow) or not workflow.configfiles:
        return ""
    working = owner.whole_path(Path(results)).parent.parent
    return ", ".join(os.path.relpath(path, working) for path in workflow.configfiles)


def refuse_another_config(run: Run, results: str, config: str) -> None:
    """Refuse to replace the results of another config whose run has the same name.

    Another config is another file that asks for something else: other inputs, another workload, or
    options that give other values. So an edit goes on, as does a config of a new name, and one in a
    project that was moved; without plan.json there is nothing to replace.
    """
    last = owner.read(Path(results))
    is_planned = store.RunFolder(Path(results)).plan.exists()
    if not (config and last and last.config) or last.config == config or not is_planned:
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


def asked_by(run: Run, results: str) -> dict[str, Any]:
    """Return what determines the results of a `run`: its inputs, seen from the folder of
    results/<run>, its workload, and the options that are in the recipe."""
    working = owner.whole_path(Path(results)).parent.parent
    options = find_workload(run.workload).Options.model_validate(run.options)
    return {
        "inputs": [os.path.relpath(path, working) for path in run.inputs],
        "workload": run.workload,
        **options.model_dump(mode="json", exclude=options.EXECUTION),
    }


def claim_run(results: str, **about: Any) -> None:
    """Make this main process the run's owner, or refuse; mend what a killed owner left.

    The owner holds a kernel lock on a file of the run for life. Whoever gets it knows that the last
    owner died; if that was on this machine since it was started, the Snakemake locks that the owner
    left on this run mean nothing any more and are removed. Where the last owner was elsewhere, the
    file system may not share locks between machines: then Snakemake's own lock decides. `about` are
    fields of Owner.
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
        owner.sign(file, typed.command(), folder=folder, **about)


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
    workflow's own, and where every shard is computed already: its receipt says so, or the results
    (`keep: results` removes receipts).
    """
    is_elsewhere = workflow.nodes is not None or workflow_import.is_imported(workflow)
    if run.device != "cuda" or is_elsewhere or asks_for_less(results):
        return
    folder = store.RunFolder(Path(results))
    plan = store.read_sealed(folder.plan)
    if plan and all(folder.receipt(plan["recipe"], s["shard"]).exists() for s in plan["shards"]):
        return
    manifest = store.read_json(folder.root / "manifest.json")
    if plan and manifest and are_results_of(plan, manifest):
        return
    try:
        devices_for(run.device)
    except UserError as error:
        raise RefusedError(
            f"{error} To plan here and compute elsewhere: snakemake plan …"
        ) from None


def asks_for_less(results: str) -> bool:
    """Tell whether a target is named, or other words ask for less than the whole run."""
    return any(
        word in TARGETS or word.startswith((*LESS, f"{results}/", "weights/"))
        for word in sys.argv[1:]
    )


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


def forget_what_is_not_whole(results: str) -> None:
    """Have Snakemake see what `status` says is in the way of the planned run, so that the run's
    command is enough to mend it."""
    folder = store.RunFolder(Path(results))
    if not folder.plan.exists():
        return
    try:
        found = visit.unseen_by_snakemake(folder.root)
    except UserError:  # which the verbs say in their turn
        found = []
    recipe = (store.read_sealed(folder.plan) or {}).get("recipe", "")
    for problem in found:
        logger.warning(f"{results}: {problem.what} This is made again.")
        if problem.mend.again == "plan":
            folder.plan.unlink(missing_ok=True)
        for shard in problem.mend.shards:
            folder.receipt(recipe, shard).unlink(missing_ok=True)
        (folder.root / "manifest.json").unlink(missing_ok=True)


def tell_what_goes(run: Run, results: str) -> None:
    """Say which results merge is going to remove, as `outputs` no longer names them."""
    root = Path(results)
    written = (store.read_json(root / "manifest.json") or {}).get("outputs", {})
    wanted = {FILES[name] for name in run.outputs}
    for name in written:
        if name not in wanted and (root / name).exists():
            logger.warning(
                f"{root / name}: this result is not among `outputs` any more, so merge removes it."
            )


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
