"""Reruns of jobs whose outputs are out of date although Snakemake takes them for current.

Snakemake compares times, and parameters that it recorded. It records nothing of commands that are
typed by hand, and does not see versions, damage, or a file with an older time in place of another.
Such outputs are deleted, or get a time before all inputs. `config.products` compares the config,
`status.sources` the input files of a run, and `step.Product` those of steps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from featuremill.base import environment
from featuremill.base.errors import UserError
from featuremill.base.words import Change, counted, duration, in_words, listed
from featuremill.config import Run, products
from featuremill.config.project import ProjectConfig
from featuremill.flow import internals
from featuremill.flow.screen import refusing
from featuremill.status.commands import Problem
from featuremill.status.reader import problems_of_files
from featuremill.store import formats, ours, stored
from featuremill.store.plan import SHARDS_A_SLOT
from featuremill.store.results import Results
from featuremill.workload import recipe, weights

WITHOUT_PLAN = {"input_changed", "option_changed", "output_damaged"}
"""Problems that count where the target may need no plan: a file has another content now."""
BEFORE_ALL = (1, 1)
"""Access and modification times of an output that is out of date, before those of any input."""
AGAIN = ("This is made again.", "A run makes it again.")
"""The end of a warning, also that of a dry run."""
log = internals.log


def other_versions(run: Run) -> str:
    """Return how the installed versions of workload and engine differ from those of the plan."""
    plan = Results(Path(run.folder)).find_plan()
    # With another workload Snakemake plans again anyway.
    is_same = plan and plan.workload == run.workload
    return recipe.other_versions_here(plan.settings) if plan and is_same else ""


def is_computed(results: str) -> bool:
    """Return whether all of the last plan is computed: by its receipts, or by the results
    (`keep: results` removes receipts)."""
    folder = Results(Path(results))
    plan = folder.find_plan()
    if plan is None or recipe.other_versions_here(plan.settings):
        return False
    receipts = (folder.receipt(plan.recipe, entry.shard) for entry in plan.shards)
    return all(path.exists() for path in receipts) or is_merged(results)


def is_merged(results: str) -> bool:
    """Return whether there are results of the last plan."""
    folder = Results(Path(results))
    plan, delivery = folder.find_plan(), folder.find_delivery()
    return bool(plan and delivery and delivery.is_of(plan))


def replan_for_other_versions(workflow: Any, run: Run) -> None:
    """Rerun plan if the workload or the engine has another version: an interrupted shard would
    continue with values of both.

    Where another workflow imports this one, its target may need no plan, and the results would be
    left without one. Then a warning names the command.
    """
    others = other_versions(run)
    if others and internals.is_imported(workflow):
        rule = internals.rule_name(workflow, "plan")
        log.warning(f"{run.folder}: here is {others}: --forcerun {rule} plans it anew.")
    elif others:
        log.warning(f"{run.folder}: here is {others}: it is planned and computed anew.")
        ours.vacate(Results(Path(run.folder)).plan, log.warning)


def replan_for_more_slots(workflow: Any, run: Run) -> None:
    """Rerun plan if there are more GPU slots than it was made for, and too few shards for them:
    shards of which nothing is computed are cut again.

    Not where another workflow imports this one, whose target may need no plan.
    """
    runs_jobs = internals.executes(workflow) and not internals.only_touches()
    if not (internals.is_main(workflow) and runs_jobs) or internals.is_imported(workflow):
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
    """Delete the outputs whose undeclared inputs are gone: Snakemake takes existing results for
    current.

    Without store/ nothing is computed, whatever receipts exist. Without its shards, a plan is of no
    use for other outputs. Without plan.json (messages advise to delete it) Snakemake would not plan
    again.
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


def convert_lost_weights(workflow: Any, run: Run) -> None:
    """Rerun the conversion of weights that are gone from the cache. Their bytes are always the
    same, so nothing is computed again.

    Not where jobs have environments of their own, and may see other folders.
    """
    if run.weights_json and not internals.has_environments(workflow):
        path = Path(run.weights_json)
        if weights.lost(path):
            with contextlib.suppress(OSError):  # plan reports which file to delete
                path.unlink()


def rerun_damaged(results: str, needs_plan: bool = True, is_dry: bool = False) -> None:
    """Rerun what makes the damaged outputs of a planned run, as `status` reports them. A dry run
    only prints it.

    Where the target may need no plan (`needs_plan` is False), only replaced inputs, replaced files
    of options and damaged results count. The plan and the results then stay, with an older time.
    """
    folder = Results(Path(results))
    problems = list[Problem]()
    with contextlib.suppress(UserError):  # the commands report it themselves
        problems = problems_of_files(folder.root) if folder.plan.exists() else []
    if any(problem.fix.seen_by == "snakemake" for problem in problems):
        internals.compare_times_of([folder.plan, folder.delivery])
    problems = [problem for problem in problems if problem.fix.seen_by == "start"]
    if not needs_plan:
        problems = [each for each in problems if each.code in WITHOUT_PLAN]
    if not problems:  # a plan of many shards takes a while to read
        return
    plan, delivery = folder.find_plan(), folder.find_delivery()
    has_parts = any((folder.store / "parts").rglob("*.arrows"))
    for problem in problems:
        if problem.fix.again == "merge" and not has_parts:
            log.warning(f"{results}: {problem.what} The parts that have it were removed.")
            continue  # by `keep: results`: do not compute all again
        log.warning(f"{results}: {problem.what} {AGAIN[is_dry]}")
        if is_dry:
            continue
        if not needs_plan:
            written = delivery.outputs if delivery and problem.code == "output_damaged" else {}
            make_older([folder.root / name for name in written] or [folder.plan])
            continue
        if problem.fix.again == "plan":
            ours.vacate(folder.plan, log.warning)
        for shard in problem.fix.shards:
            folder.receipt(plan.recipe if plan else "", shard).unlink(missing_ok=True)
        if problem.code != "results_older":  # these stay until there are newer ones
            ours.vacate(folder.delivery, log.warning)


def rerun_older_results(run: Run, is_dry: bool = False) -> None:
    """Rerun merge if the results are not of the plan, or plan is about to run again.

    The checksums that Snakemake recorded may be those of other results than the ones that are here
    now, such as an older copy: then plan.json has the recorded one as soon as it is written.
    """
    folder = Results(Path(run.folder))
    plan, delivery = folder.find_plan(), folder.find_delivery()
    is_of_plan = plan and delivery and delivery.is_of(plan) and not awaits_rerun(folder.plan)
    if delivery and not is_of_plan:
        (internals.compare_times_of if is_dry else make_older)([folder.delivery])


def rerun_steps(workflow: Any, project: ProjectConfig) -> None:
    """Rerun the steps and reports whose options or input files have changed, or whose files are
    damaged. Record the inputs of files without a record, as they are now."""
    if not internals.is_main(workflow) or internals.only_looks() or internals.only_touches():
        return
    reports = [products.reported(run, Path(run.folder)) for run in project.runs.values()]
    remade = set[str]()
    for product in (*project.products, *reports):
        if product.missing():
            continue
        changes, others = product.differences()
        if changes or others:  # newer ones, too: no rule may name them
            is_damage_alone = not changes and {*others} <= {*product.files}
            files = others if is_damage_alone else product.files
            remade.update(() if is_damage_alone else files)
            rerun(workflow, product.label, files, () if others else changes, others)
        elif not (product.noted() or internals.is_dry(workflow)):
            with contextlib.suppress(OSError):
                product.note(is_new=False)
    for run in project.runs.values():
        if remade & {*run.files}:  # they may get the checksums that are recorded, as plan.json may
            folder = Results(Path(run.folder))
            internals.compare_times_of([folder.plan, folder.delivery])


def rerun_for_config(workflow: Any, run: Run) -> None:
    """Rerun plan, or else merge, if keys of the config have changed on which it depends."""
    folder = Results(Path(run.folder))
    if plan := folder.find_plan():
        changes = products.outdated(run, folder.root, plan)
        product = (products.planned if changes.plan else products.merged)(run, folder.root)
        if keys := changes.plan or changes.results:
            rerun(workflow, product.label, product.files, keys)


def rerun(
    workflow: Any,
    label: str,
    files: Sequence[str],
    changes: Sequence[Change] = (),
    others: Sequence[str] = (),
) -> None:
    """Make the `files` of `label` older than any input, and print why: keys of the config
    (`changes`) or files (`others`) that have changed. A dry run only prints it."""
    is_dry = internals.is_dry(workflow)
    if is_dry and changes:
        log.warning(f"{label}: the config has changed ({in_words(changes)}): a run makes it again.")
    elif others:
        log.warning(f"{label}: {listed(others)} changed since this was made. {AGAIN[is_dry]}")
    if is_dry:
        return
    with refusing():
        make_older([*map(Path, files)])


def make_older(paths: Sequence[Path]) -> None:
    """Give the existing files at `paths` a time before that of any input."""
    has_times_compared = internals.compare_times_of(paths)
    for path in filter(Path.exists, paths):
        if has_times_compared:
            os.utime(path, BEFORE_ALL)
        else:
            ours.vacate(path)


def awaits_rerun(path: Path) -> bool:
    """Return whether `rerun` made the file at `path` older, and no job has written it since."""
    return path.stat().st_mtime == BEFORE_ALL[1]


def warn_of_reruns(workflow: Any, run: Run, needs_plan: bool) -> None:
    """Print what a run would compute again and a dry run does not show."""
    folder = Results(Path(run.folder))
    plan = folder.find_plan()
    if needs_plan and plan is None and folder.delivery.exists():
        log.warning(f"{run.folder}: plan.json is gone. {AGAIN[True]}")
    rerun_damaged(run.folder, needs_plan, is_dry=True)
    rerun_older_results(run, is_dry=True)
    if others := other_versions(run):
        log.warning(
            f"{run.folder}: here is {others}: a run plans and computes it anew, which a dry run "
            "does not show."
        )
    elif plan and (changes := products.changes_since(plan, run)):
        records = counted(plan.counts.unique, "distinct record")
        if {change.key for change in changes} <= {"inputs", "samples"}:
            effect = "a run plans anew, and computes the records that are new"
        else:
            delivery = folder.find_delivery()
            seconds = sum(each.working_seconds for each in delivery.receipts) if delivery else 0
            time = f"; its last jobs took {duration(seconds)} together" if seconds else ""
            effect = (
                f"a run computes all {records} again, but for those that it computed with these "
                f"options before{time}"
            )
        log.warning(f"{run.folder}: the config has changed ({in_words(changes)}): {effect}.")
    else:
        rerun_for_config(workflow, run)
