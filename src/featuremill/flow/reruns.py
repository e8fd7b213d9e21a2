"""Reruns of jobs whose outputs are out of date although Snakemake takes them for current.

Snakemake compares times, and parameters that it recorded. It records nothing of commands that are
typed by hand, and does not see versions, damage, or a replacement with an older time.
`status.outdated` decides what of a run is out of date, and `step.Product` what of a step. Such
outputs are deleted, or get a time before all inputs, so that Snakemake reruns their jobs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from featuremill.base import environment
from featuremill.base.words import counted, duration, in_words, listed
from featuremill.config import Run, products
from featuremill.config.project import ProjectConfig
from featuremill.flow import internals
from featuremill.flow.screen import refusing
from featuremill.status import outdated
from featuremill.status.commands import Problem
from featuremill.status.reader import RunReader
from featuremill.status.results import digest_by_looks, reported
from featuremill.store import formats, ours, stored
from featuremill.store.plan import SHARDS_A_SLOT, Plan
from featuremill.store.results import Results
from featuremill.workload import recipe, weights

WITHOUT_PLAN = {"input_changed", "option_changed", "weights_changed", "output_damaged"}
"""Problems for which jobs are rerun even if the target may need no plan: a file has changed."""
BEFORE_ALL = (1, 1)
"""Access and modification time of an output that is out of date; inputs are newer."""
AGAIN = ("This is made again.", "A run makes it again.")
"""The last sentence of a warning in a run, and in a dry run."""
log = internals.log


def replan_for_more_slots(workflow: Any, run: Run) -> None:
    """Rerun plan if there are more GPU slots than it was made for, and too few shards for them. It
    cuts the shards again of which nothing is computed.

    If another workflow imports this one, its target may need no plan, so nothing is done.
    """
    runs_jobs = internals.executes(workflow) and not internals.only_touches(workflow)
    if not runs_jobs or internals.is_imported(workflow):
        return
    folder = Results(Path(run.folder))
    slots = environment.GPUS.value() // run.gpus
    plan = folder.find_plan() if slots > 1 else None
    if plan is None or slots <= plan.slots:
        return
    begun = folder.begun_shards()
    waiting = [shard for shard in plan.shards if shard.shard not in begun]
    if len(waiting) < min(SHARDS_A_SLOT * slots, sum(shard.wanted for shard in waiting)):
        log.warning(
            f"{run.folder}: it was planned for {plan.slots:,} of {slots:,} slots; planning anew."
        )
        ours.vacate(folder.plan, log.warning)


def rerun_without_inputs(run: Run) -> None:
    """Delete outputs whose undeclared inputs are gone: Snakemake would take them for current.

    Without store/, receipts and plan.json are of no use. Without the shards, plan.json is of no use
    for other outputs. Without plan.json (messages advise to delete it), Snakemake would not plan
    again while there is a manifest.json.
    """
    folder = Results(Path(run.folder))
    delivery = folder.find_delivery()
    if folder.plan.exists() and not folder.store.exists():
        stored.discard(folder, folder.root / "receipts")
        ours.vacate(folder.plan, log.warning)
    files = {formats.format_of(name).file for name in run.outputs}
    if delivery and {*delivery.outputs} != files and not (folder.store / "shards").exists():
        ours.vacate(folder.plan, log.warning)
    if not folder.plan.exists():
        ours.vacate(folder.delivery, log.warning)


def convert_other_weights(workflow: Any, run: Run) -> None:
    """Rerun the conversion of weights that were converted from another checkpoint than the present
    one, or whose file in the cache is gone or damaged. For the latter nothing is computed again.

    Jobs with environments of their own may have another cache, which is not checked.
    """
    if not run.model:
        return
    path = Path(run.weights_json)
    is_lost = weights.lost(path) and not internals.has_environments(workflow)
    if is_lost or weights.are_of_another(path, run.model, run.workload):
        with contextlib.suppress(OSError):  # plan reports which file to delete
            path.unlink()


def remove_other_exports(run: Run) -> None:
    """Remove exports of other results, such as a copy that was put back, and a target that was
    changed: Snakemake takes both for current."""
    folder = Results(Path(run.folder))
    delivery, exports = folder.find_delivery(), folder.find_exports()
    if not delivery:
        return
    for name in {*formats.files().values()} - {*delivery.outputs}:
        path = folder.root / name
        if not path.exists():
            continue
        is_current = name in exports and digest_by_looks(folder, path) == exports[name].sha256
        if not is_current and (ours.is_ours(path) or str(path) in sys.argv):
            log.warning(f"{path}: it is no export of these results.")
            ours.vacate(path)


def rerun_outdated(workflow: Any, run: Run, needs_plan: bool) -> None:
    """Rerun the jobs of a planned run whose outputs are out of date or damaged; print them in a dry
    run.

    If the target may need no plan (`needs_plan` is False), only replaced inputs, replaced files of
    options and damaged results count. The plan and the results then stay, with an older time.
    """
    folder, is_dry = Results(Path(run.folder)), internals.is_dry(workflow)
    plan = folder.find_plan()
    if plan is None:
        if is_dry and needs_plan and folder.delivery.exists():
            log.warning(f"{run.folder}: plan.json is gone. {AGAIN[True]}")
        return
    problems = RunReader(folder.root, config=run).needing_rerun()
    by_code = {problem.code: problem for problem in problems}
    if by_code.pop("version_changed", None):
        _replan_for_versions(workflow, folder, plan)
        if not folder.plan.exists():
            return
    delivery, of_config = folder.find_delivery(), by_code.pop("config_changed", None)
    damages = [each for each in problems if each.code in by_code and each.is_in_the_way]
    if any(problem.fix.rerun_by == "snakemake" for problem in damages):
        internals.compare_times_of([folder.plan, folder.delivery])
    for problem in damages:
        if problem.fix.rerun_by == "start" and (needs_plan or problem.code in WITHOUT_PLAN):
            _rerun_damaged(folder, plan, problem, needs_plan, is_dry)
    if of_config and is_dry:
        log.warning(_effect_of(of_config, folder, run, plan))
    elif of_config:
        make_older([folder.plan if of_config.fix.again == "plan" else folder.delivery])
    is_older = delivery and not delivery.is_of(plan)
    if is_dry and is_older:
        internals.compare_times_of([folder.delivery])
    elif not is_dry and (is_older or awaits_rerun(folder.plan)):
        # The results may be an older copy. Snakemake may have recorded the checksum that plan.json
        # will have, and would take the copy for current.
        make_older([folder.delivery])


def _replan_for_versions(workflow: Any, folder: Results, plan: Plan) -> None:
    """Rerun plan for the installed versions of workload and engine: an interrupted shard would have
    values of both versions. If another workflow imports this one, its target may need no plan, and
    plan.json would stay deleted; then only a warning names the command."""
    text = f"{folder.root}: here is {recipe.other_versions_here(plan.settings)}"
    if internals.is_dry(workflow):
        log.warning(f"{text}: a run plans and computes it anew, which a dry run does not show.")
    elif internals.is_imported(workflow):
        rule = internals.rule_name(workflow, "plan")
        log.warning(f"{text}: --forcerun {rule} plans it anew.")
    else:
        log.warning(f"{text}: it is planned and computed anew.")
        for file in (folder.plan, folder.delivery):
            ours.vacate(file, log.warning)


def _effect_of(problem: Problem, folder: Results, run: Run, plan: Plan) -> str:
    """Return a sentence: the changed keys of the config, and what a run computes for them."""
    keys = {change.key for change in problem.changes}
    if problem.fix.again == "merge":
        return f"{folder.delivery}: {problem.what}: a run makes it again."
    if keys <= {*products.planned(run, folder.root).config}:
        return f"{folder.plan}: {problem.what}: a run makes it again."
    if keys <= {"inputs", "samples"}:
        effect = "a run plans anew, and computes the records that are new"
    else:
        delivery = folder.find_delivery()
        seconds = sum(each.working_seconds for each in delivery.receipts) if delivery else 0
        time = f"; its last jobs took {duration(seconds)} together" if seconds else ""
        records = counted(plan.counts.unique, "distinct record")
        effect = (
            f"a run computes all {records} again, but for those that it computed with these "
            f"options before{time}"
        )
    return f"{folder.root}: {problem.what}: {effect}."


def _rerun_damaged(
    folder: Results, plan: Plan, problem: Problem, needs_plan: bool, is_dry: bool
) -> None:
    if problem.fix.again == "merge" and not any((folder.store / "parts").rglob("*.arrows")):
        log.warning(f"{folder.root}: {problem.what} The parts that have it were removed.")
        return  # by `keep: results`: do not compute all again
    log.warning(f"{folder.root}: {problem.what} {AGAIN[is_dry]}")
    if is_dry:
        return
    if not needs_plan:
        delivery = folder.find_delivery() if problem.code == "output_damaged" else None
        written = delivery.outputs if delivery else {}
        make_older([folder.root / name for name in written] or [folder.plan])
        return
    if problem.fix.again == "plan":
        ours.vacate(folder.plan, log.warning)
    for shard in problem.fix.shards:
        folder.receipt(plan.recipe, shard).unlink(missing_ok=True)
    if problem.code != "results_older":  # these stay until there are newer ones
        ours.vacate(folder.delivery, log.warning)


def rerun_steps(workflow: Any, project: ProjectConfig) -> None:
    """Rerun the steps and reports whose options or inputs have changed, or whose files are damaged.
    Record the present inputs of files that have no record."""
    is_idle = internals.only_looks() or internals.only_touches(workflow)
    if is_idle or not internals.is_main(workflow):
        return
    reports = [products.reported(run, Path(run.folder)) for run in project.runs.values()]
    is_dry, remade = internals.is_dry(workflow), set[str]()
    for product in (*project.products, *reports):
        if product.missing():
            continue
        changes, others = product.differences()
        if changes or others:  # newer ones, too: no rule may name them
            if others:
                text = f"{listed(others)} changed since this was made. {AGAIN[is_dry]}"
                log.warning(f"{product.label}: {text}")
            elif is_dry:
                text = f"the config has changed ({in_words(changes)}): a run makes it again."
                log.warning(f"{product.label}: {text}")
            is_damage_alone = not changes and {*others} <= {*product.files}
            files = others if is_damage_alone else product.files
            remade.update(() if is_damage_alone else files)
            if not is_dry:
                with refusing():
                    make_older([*map(Path, files)])
        elif not (product.noted() or is_dry):
            with contextlib.suppress(OSError):
                product.note(is_new=False)
    for run in project.runs.values():
        folder = Results(Path(run.folder))
        if remade & {*run.files}:  # they may get the checksums that are recorded, as plan.json may
            internals.compare_times_of([folder.plan, folder.delivery])
        report = folder.root / "report.html"
        if outdated.is_newer(report, folder.delivery) and reported(folder) == "older":
            log.warning(f"{report}: it is of other results. {AGAIN[is_dry]}")
            if not is_dry:
                make_older([report])


def make_older(paths: Sequence[Path]) -> None:
    """Give the existing files at `paths` a time before that of any input."""
    has_times_compared = internals.compare_times_of(paths)
    for path in filter(Path.exists, paths):
        if has_times_compared:
            os.utime(path, BEFORE_ALL)
        else:
            ours.vacate(path)


def awaits_rerun(path: Path) -> bool:
    """Return whether `make_older` made the file at `path` older and no job has written it."""
    return path.exists() and path.stat().st_mtime == BEFORE_ALL[1]
