"""What the main process does before Snakemake looks at a run's files.

It refuses, each in one sentence, what would end late or replace what another config made;
it makes the run its own; and it puts right what Snakemake would misread.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from featuremill import step, workload
from featuremill.base import environment, this_process
from featuremill.base.change import Change, in_words
from featuremill.base.devices import devices_for
from featuremill.base.errors import UserError
from featuremill.base.words import counted, duration, listed
from featuremill.config import Origin, Run, asked, find_run
from featuremill.config.project import ProjectConfig, problems_of_files, problems_of_records
from featuremill.flow import elsewhere, internals
from featuremill.flow.screen import RefusedError, refusing
from featuremill.inputs import labels, samples, source
from featuremill.status.commands import Problem
from featuremill.status.reader import unseen_by_snakemake
from featuremill.status.sources import changed_sources
from featuremill.step.finding import step_of
from featuremill.store import command_line, formats, ours, run_lock, shared, stored
from featuremill.store.files import files_below
from featuremill.store.plan import SHARDS_A_SLOT, Plan
from featuremill.store.results import Results, RunFile, folder_here, runs_below
from featuremill.workload import option_files, optional, plugin_errors, recipe, weights
from featuremill.workload.hugging_face import place_of

OURS = ("plan.json", "records.parquet", "receipts/*/*.json", "*")
"""The run's declared files, those that others are made of first."""
FORCED = {*command_line.FORCING, "--forceall", "-F"}
REPLACED = {"input_changed", "option_changed"}
"""Problems of files that were planned and are others now."""
BEFORE_ALL = (1, 1)
"""Times of a file that is older than any input."""
TARGETS = {"plan", "weights", "partial"}
LESS = ("--until", "-U", "--touch", "-t")
"""Words, and beginnings of words, on a command line that ask for less than the whole run; Snakemake
has them too late."""
log = internals.log


def prepare(workflow: Any, run: Run) -> None:
    """Do all of that, where this process is the main one and is going to run jobs."""
    if internals.is_main(workflow) and internals.is_dry(workflow) and not internals.only_looks():
        say_what_is_computed_again(workflow, run)
    is_done = run_lock.path_of(Path(run.folder)) in run_lock.CLAIMED  # by an earlier `use rule`
    if internals.is_main(workflow) and internals.executes(workflow) and not is_done:
        check_cores(workflow)
        refuse_default_storage(workflow)
        refuse_without_packages(workflow, run)
        refuse_without_gpu(workflow, run)
        elsewhere.place(run)
        path = config_file(workflow, run.folder)
        refuse_run_in_run(run)
        refuse_another_config(run, path)
        claim_run(
            run.folder,
            rules=internals.rule_name(workflow, "{}"),
            config=path,
            is_imported=internals.is_imported(workflow),
        )
        with refusing():
            if not internals.is_imported(workflow):  # its target may not need this run
                write_run(run)
            forget_plan_of_other_versions(workflow, run)
            forget_what_is_gone(run)
            forget_lost_weights(workflow, run)
            is_whole = not (internals.is_imported(workflow) or asks_for_less(run.folder))
            forget_what_is_not_whole(run.folder, needs_plan=is_whole)
            if is_whole:
                forget_what_is_of_another_config(workflow, run)
        check_times(run)


def claim_run(results: str, **about: Any) -> None:
    """Make this main process the run's owner, or refuse; fix what a killed owner left.

    The owner holds a kernel lock on a file of the run for life. A process gets it only after the
    last owner died; if that was on this machine since it was started, the Snakemake locks that the
    owner left on this run are void and are removed. Where the last owner was elsewhere, the
    file system may not share locks between machines: then Snakemake's own lock decides. `about` are
    fields of Owner.
    """
    path = run_lock.path_of(Path(results))
    try:
        with refusing():
            file = run_lock.claim(Path(results))
    except BlockingIOError:
        raise RefusedError(
            f"{results}: another snakemake is computing this run; wait for it, or stop it."
        ) from None
    if file is None:
        return
    run_lock.CLAIMED[path] = file
    last = run_lock.read(Path(results))
    was_here = last is not None and last.is_of_this_start()
    stale = internals.locks_on(results)
    if was_here:
        for lock in stale:
            lock.unlink()
    if was_here or not stale:
        folder = os.path.relpath(Path.cwd(), run_lock.working_folder(Path(results)))
        run_lock.sign(file, command_line.command(), folder=folder, **about)


def write_run(run: Run) -> None:
    """Write run.json, which the run's commands read, where it does not say the same already."""
    path = Results(Path(run.folder)).run
    asked_for = run.model_dump(mode="json")
    last, folder = RunFile.find(path), folder_here(Path(run.folder))
    if last is None or (last.config, last.folder) != (asked_for, folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = RunFile(version=RunFile.NEWEST, config=asked_for, folder=folder)
        ours.write_json(path, new.content())


def forget_plan_of_other_versions(workflow: Any, run: Run) -> None:
    """Have Snakemake plan again what was planned for another version of the workload or engine: it
    sees neither, and an interrupted shard would continue with values of both.

    Where another workflow imports this one, its target may need no plan, and the results would be
    left without one: there a warning has the command to type.
    """
    others = others_planned_for(run)
    if others and internals.is_imported(workflow):
        rule = internals.rule_name(workflow, "plan")
        log.warning(f"{run.folder}: here is {others}: --forcerun {rule} plans it anew.")
    elif others:
        log.warning(f"{run.folder}: here is {others}: it is planned and computed anew.")
        ours.vacate(Results(Path(run.folder)).plan, log.warning)


def forget_plan_of_fewer_slots(workflow: Any, run: Run) -> None:
    """Have Snakemake plan again where more jobs can run side by side than the plan was made for,
    and too few shards are left for them: plan cuts those anew of which nothing is computed.

    Not where another workflow imports this one, whose target may need no plan.
    """
    if not (internals.is_main(workflow) and internals.executes(workflow)) or internals.is_imported(
        workflow
    ):
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


def others_planned_for(run: Run) -> str:
    """Return how the versions that are installed differ from those that the run is planned for."""
    plan = Results(Path(run.folder)).find_plan()
    # With another workload Snakemake plans again anyway.
    is_same = plan and plan.workload == run.workload
    return recipe.other_versions_here(plan.settings) if plan and is_same else ""


def forget_what_is_gone(run: Run) -> None:
    """Have Snakemake see what it would take for done, because the results stand.

    Without store/ nothing is computed, whatever receipts say. Without plan.json (messages say when
    to delete it) it would never plan again, nor when other outputs of a run are asked for whose
    shards were removed.
    """
    folder = Results(Path(run.folder))
    delivery = folder.find_delivery()
    if folder.plan.exists() and not folder.store.exists():
        stored.discard(folder, folder.root / "receipts")
        ours.vacate(folder.plan, log.warning)
    are_others = delivery and set(delivery.outputs) != {
        formats.format_of(name).file for name in run.outputs
    }
    if are_others and not (folder.store / "shards").exists():
        ours.vacate(folder.plan, log.warning)
    if not folder.plan.exists():
        ours.vacate(folder.delivery, log.warning)


def forget_lost_weights(workflow: Any, run: Run) -> None:
    """Have weights converted again that are gone from the cache, once a job needs them: their bytes
    are always the same, so nothing is computed again.

    Not where jobs see other folders than this process does.
    """
    if run.weights_json and not internals.has_environments(workflow):
        path = Path(run.weights_json)
        if weights.lost(path):
            with contextlib.suppress(OSError):  # plan will say which file to delete
                path.unlink()


def forget_what_is_not_whole(results: str, needs_plan: bool = True) -> None:
    """Delete, or make older, the outputs with the problems that `status` reports of the planned
    run, so that Snakemake reruns what makes them. Where a target may need no plan, this is only for
    inputs, and files of options, that an older one took the place of, and the plan stays."""
    folder = Results(Path(results))
    problems = list[Problem]()
    with contextlib.suppress(UserError):  # the commands report it themselves
        problems = unseen_by_snakemake(folder.root) if folder.plan.exists() else []
    if not needs_plan:
        problems = [problem for problem in problems if problem.code in REPLACED]
    if not problems:  # a plan of many shards takes a while to read
        return
    plan = folder.find_plan()
    has_parts = any((folder.store / "parts").rglob("*.arrows"))
    for problem in problems:
        if problem.fix.again == "merge" and not has_parts:
            log.warning(f"{results}: {problem.what} The parts that have it were removed.")
            continue  # by `keep: results`: do not compute all again
        log.warning(f"{results}: {problem.what} This is made again.")
        if not needs_plan:
            os.utime(folder.plan, BEFORE_ALL)
            continue
        if problem.fix.again == "plan":
            ours.vacate(folder.plan, log.warning)
        for shard in problem.fix.shards:
            folder.receipt(plan.recipe if plan else "", shard).unlink(missing_ok=True)
        if problem.code == "results_older":
            folder.plan.touch()  # they are whole, and stay until there are newer ones
        else:
            ours.vacate(folder.delivery, log.warning)


def make_steps_older(workflow: Any, project: ProjectConfig) -> None:
    """Make the files of steps and the reports older that were made of other files, or with other
    options than the config has now. What nothing is noted of is noted, as it stands."""
    if not internals.is_main(workflow) or internals.only_looks():
        return
    reports = [asked.reported(run, Path(run.folder)) for run in project.runs.values()]
    for made in (*project.products, *reports):
        if made.missing():
            continue
        changes, others = made.differences()
        if changes or others:  # newer ones, too: no rule may name them
            is_damage_alone = not changes and {*others} <= {*made.files}
            files = others if is_damage_alone else made.files
            make_older_for(workflow, made.label, files, () if others else changes, others)
        elif not (made.noted() or internals.is_dry(workflow)):
            with contextlib.suppress(OSError):
                made.note(is_new=False)


def forget_what_is_of_another_config(workflow: Any, run: Run) -> None:
    """Have Snakemake see that the plan, or the results, are of another config."""
    folder = Results(Path(run.folder))
    plan = folder.find_plan()
    changes = asked.changes_since(plan, run) if plan else []
    planned, merged = asked.planned(run, folder.root), asked.merged(run, folder.root)
    for made, more in ((planned, changes), (merged, [])):
        if every := [*more, *made.differences().changes]:
            make_older_for(workflow, made.label, made.files, every)
            return


def make_older_for(
    workflow: Any,
    label: str,
    files: Sequence[str],
    changes: Sequence[Change] = (),
    others: Sequence[str] = (),
) -> None:
    """Have Snakemake see that the `files` of `label` are of another config, or of other files: it
    has no record of what was typed by hand, and none of files that no rule names."""
    is_dry = internals.is_dry(workflow)
    if is_dry and changes:
        log.warning(f"{label}: the config has changed ({in_words(changes)}): a run makes it again.")
    elif others:
        again = "A run makes it again." if is_dry else "This is made again."
        log.warning(f"{label}: {listed(others)} changed since this was made. {again}")
    if is_dry:
        return
    paths = [*map(Path, files)]
    with refusing():
        has_times_compared = internals.compare_times_of(paths)
        for path in paths:
            if has_times_compared:
                os.utime(path, BEFORE_ALL)
            else:
                ours.vacate(path)


def was_made_older(path: Path) -> bool:
    """Return whether `path` was made older, and no job has made it again since."""
    return path.stat().st_mtime == BEFORE_ALL[1]


def say_what_is_computed_again(workflow: Any, run: Run) -> None:
    """Say what a run would compute again, which a dry run does not show."""
    plan = Results(Path(run.folder)).find_plan()
    if others := others_planned_for(run):
        said = f"here is {others}: a run plans and computes it anew, which a dry run does not show."
        log.warning(f"{run.folder}: {said}")
    elif plan and (changes := asked.changes_since(plan, run)):
        keys = {change.key for change in changes}
        records = counted(plan.counts.unique, "distinct record")
        if keys <= {"inputs", "samples"}:
            said = "a run plans anew, and computes the records that are new"
        else:
            said = (
                f"a run computes all {records} again, but for those that it computed with these "
                f"options before{_time_of_last(run.folder)}"
            )
        log.warning(f"{run.folder}: the config has changed ({in_words(changes)}): {said}.")
    else:
        forget_what_is_of_another_config(workflow, run)


def _time_of_last(results: str) -> str:
    """Return how long the jobs of the last results took together, in words; "" if unknown."""
    delivery = Results(Path(results)).find_delivery()
    seconds = sum(receipt.working_seconds for receipt in delivery.receipts) if delivery else 0
    return f"; its last jobs took {duration(seconds)} together" if seconds else ""


def check_times(run: Run) -> None:
    """Refuse inputs of the future, and bring the run's own files back to the present."""
    clock = run_lock.path_of(Path(run.folder))  # of the file system, which may be another than ours
    with refusing():
        read = [*run.files, *checkpoint_files(run, run), *option_inputs(run, run)]
        source.refuse_future(read, clock)
    now = source.now_by(clock)
    ours = [path for pattern in OURS for path in sorted(Path(run.folder).glob(pattern))]
    late = dict.fromkeys(path for path in ours if path.is_file() and path.stat().st_mtime > now)
    for path in late:
        os.utime(path)


# ---- what is refused ----


def check_cores(workflow: Any) -> None:
    """Refuse `--cores 0`, with which Snakemake waits for ever; warn where a container has fewer."""
    cores = internals.cores_here(workflow)
    if cores == 0:
        raise RefusedError("--cores 0: no job could run; give 1 or more, or all.")
    here = this_process.num_cores()
    if cores and cores > here and not math.isinf(this_process.cpu_quota()):
        log.warning(
            f"--cores {cores}: this container may use {here} at once, so jobs would slow each "
            f"other; --cores {here} is faster."
        )


def refuse_default_storage(workflow: Any) -> None:
    """Refuse to have Snakemake move every file to remote storage: the store is not declared to it
    and would stay behind, with a plan elsewhere.
    """
    if internals.default_storage(workflow) is not None:
        raise RefusedError(
            "--default-storage-provider takes a run's files away from its store, which has to "
            "stand beside them; leave it out and name remote files one by one, as "
            "docs/clusters.md shows."
        )


def refuse_without_packages(workflow: Any, run: Run) -> None:
    """Refuse to begin where this Python lacks what the jobs are going to compute with.

    Not where the jobs have environments or containers of their own (`--sdm`), and not where all is
    computed. Where they only run elsewhere, they lack nothing once the weights, which are converted
    here, are there.
    """
    if internals.is_imported(workflow):  # its target may have nothing to do with ours
        return
    is_bare = plugin_errors.is_external(run.workload) and not optional(run.module, "ENVIRONMENT")
    if internals.makes_conda_environments(workflow) and is_bare:
        raise RefusedError(
            f"--sdm conda: {plugin_errors.who(run.workload)} names no conda environment "
            "(ENVIRONMENT), so its jobs would not find it; leave --sdm conda out, or ask for one."
        )
    try:
        workload.refuse_without_packages(type(run.options))
    except UserError as error:
        is_elsewhere = internals.runs_elsewhere(workflow) is not False or asks_for_less(run.folder)
        is_converted = not run.weights_json or Path(run.weights_json).exists()
        has_others = internals.has_environments(workflow)
        if has_others or (is_elsewhere and is_converted) or is_computed(run.folder):
            return
        raise RefusedError(
            f"{error} (or have Snakemake make environments for the jobs: --sdm conda)."
        ) from None


def refuse_steps_without_packages(workflow: Any, project: ProjectConfig) -> None:
    """Refuse to begin where this Python lacks what the jobs of a step import, as long as they have
    something to do here."""
    is_ours = internals.is_main(workflow) and internals.executes(workflow)
    is_here = internals.runs_elsewhere(workflow) is False
    if not (is_ours and is_here) or internals.is_imported(workflow):
        return
    if internals.has_environments(workflow) or any(map(asks_for_less, map(str, project.folders))):
        return
    for key, section in project.sections.items():
        packages = step.optional(step_of(key), "PACKAGES")
        made = step_of(key).made(section, project.for_steps) if packages else ()
        if any(one.stands() != "yes" for one in made):
            with refusing(f"{project.origin.at(key)}: {key}"):
                workload.refuse_lacking(packages)


def refuse_without_gpu(workflow: Any, run: Run) -> None:
    """Refuse `device: cuda` where the jobs would run on this machine and it has no GPU.

    Not where jobs go elsewhere, where a target is named (a plan needs none) or may be another
    workflow's own, and where every shard is computed already.
    """
    is_elsewhere = internals.runs_elsewhere(workflow) is not False or internals.is_imported(
        workflow
    )
    if run.device != "cuda" or is_elsewhere or asks_for_less(run.folder) or is_computed(run.folder):
        return
    with refusing(hint=" To plan here and compute elsewhere: snakemake plan …"):
        devices_for(run.device)


def refuse_run_in_run(run: Run) -> None:
    """Refuse to put several sets of features into the folder of a run of one, or the other way.

    `clean` would take one for a part of the other.
    """
    name, _, is_one_of_several = run.run.partition("/")
    above = Path(run.folder).parent
    if is_one_of_several and (above / "plan.json").exists():
        other = f"{above} is the folder of a run without 'features:'"
    elif not is_one_of_several and runs_below(Path(run.folder)):
        other = f"{run.folder} is the folder of a config with 'features:'"
    else:
        return
    raise RefusedError(f"run: {name}: {other}; give this one another `run:`.")


def refuse_another_config(run: Run, path: str) -> None:
    """Refuse to replace the results of another config whose run has the same name.

    Another config is another file that asks for something else: other inputs, another workload, or
    options that give other values. So an edit is accepted, as is a config of a new name, and one in
    a project that was moved; without plan.json there is nothing to replace.
    """
    last = run_lock.read(Path(run.folder))
    is_planned = Results(Path(run.folder)).plan.exists()
    if not (path and last and last.config and is_planned):
        return
    working = run_lock.working_folder(Path(run.folder))
    if (working / last.config).resolve() == (working / path).resolve():  # maybe through a link
        return
    before = find_run(Results(Path(run.folder)))
    asks = asked_by(run)
    for key, value in asked_by(before).items() if before else ():
        if asks.get(key) != value:
            said = ", ".join(map(str, value)) if isinstance(value, list) else value
            raise RefusedError(
                f"{path}: run: {run.run} is the name of another config's run: {last.config} "
                f"made {run.folder} with {key}: {said}. Give one of them another `run:`, or, to "
                f"have this one take its place, delete {run.folder}/plan.json: what is computed "
                "stays."
            )


def asked_by(run: Run) -> dict[str, Any]:
    """Return what determines the results of a config: its inputs, seen from the folder of
    results/<run>, its workload, the options that are in the recipe, and columns of tables."""
    working = run_lock.working_folder(Path(run.folder))

    def seen(path: str) -> str:
        # What was named by an absolute path elsewhere stays there where a project moves.
        is_elsewhere = Path(path).is_absolute() and not Path(path).is_relative_to(working)
        return path if is_elsewhere else os.path.relpath(path, working)

    return {
        **({"samples": seen(run.samples)} if run.samples else {}),
        "inputs": [seen(path) for path in run.inputs],
        "workload": run.workload,
        **asked.options_asked(run),
        **{name: seen(path) for name, path in run.paths_of_options.items()},
    }


def config_file(workflow: Any, results: str) -> str:
    """Return the config's file, seen from the folder of results/<run>: where a project moves, it
    stays the same. Empty where there is none, or where it is another workflow's."""
    if internals.is_imported(workflow):
        return ""
    working = run_lock.working_folder(Path(results))
    return ", ".join(os.path.relpath(path, working) for path in internals.config_files(workflow))


def asks_for_less(results: str) -> bool:
    """Return whether a target is named, or other words ask for less than the whole run."""
    option, project = "", results
    if "/" in run_lock.name_of(Path(results)):  # one of several runs
        project = str(Path(results).parent)
    for word in sys.argv[1:]:
        if word.startswith(LESS):
            return True
        if word.startswith("-"):
            option = word if "=" not in word else ""
        elif option in command_line.NAMING_ONE:
            option = ""
        elif option not in command_line.NAMING | command_line.FORCING and (
            word in TARGETS or word.startswith((f"{project}/", command_line.PARTIAL_OF, "weights/"))
        ):
            return True
    return False


def is_computed(results: str) -> bool:
    """Return whether all of the last plan is computed: by its receipts, or by the results
    (`keep: results` removes receipts)."""
    folder = Results(Path(results))
    plan = folder.find_plan()
    if plan is None or recipe.other_versions_here(plan.settings):
        return False
    if all(folder.receipt(plan.recipe, entry.shard).exists() for entry in plan.shards):
        return True
    delivery = folder.find_delivery()
    return delivery is not None and delivery.is_of(plan)


def refuse_what_computes_nothing(
    workflow: Any, rule: str, merging: Sequence[str], num_sets: int
) -> None:
    """Refuse `--until` and `--omit-from` where Snakemake would end without computing anything.

    The names of rules, those that merge (`merging`) among them, follow the pattern `rule`. Several
    sets of features are merged by several rules, and `--until merge` means all of these.
    """
    until, omitted = internals.narrowed_by(workflow)
    for name in map(rule.format, ("extract", "deliver")):
        if name in until:
            raise RefusedError(
                f"--until {name}: Snakemake has no such job before there is a plan, and would end "
                "without computing anything; to compute all now and merge later, name the target "
                f"{rule.format('extracted')} in its place."
            )
    merge = rule.format("merge")
    more = [*map(rule.format, merging)] if merge in until else []
    if until and not internals.compute_until(workflow, more) and num_sets > 1:
        raise RefusedError(
            f"--until {' '.join(sorted(until))}: with several sets of features, this version of "
            "Snakemake may end after the plans; leave it out, or name files as targets."
        )
    ours = {rule.format(verb) for verb in (*command_line.RULES, *merging)}
    for name in sorted(ours & {*omitted}):
        raise RefusedError(
            f"--omit-from {name}: Snakemake would plan and compute nothing; to have everything but "
            f"the report, type --until {merge} instead."
        )


def refuse_fewer_rules(workflow: Any, merging: Sequence[str]) -> None:
    """Refuse `--allowed-rules` without a rule of ours: Snakemake would take its files for done."""
    allowed = internals.allowed_rules(workflow)
    if allowed and (missing := [*{"plan", "extract", "report", *merging} - {*allowed}]):
        raise RefusedError(
            f"--allowed-rules without {listed(sorted(missing))}: Snakemake would take what that "
            "makes for done, whether it is or not; to have less than all, type --until merge."
        )


def is_forced() -> bool:
    return any(word.partition("=")[0] in FORCED for word in sys.argv[1:])


def refuse_unseen_edits(run: Run, module: str) -> None:
    """Refuse to take the results for those of a config that has changed, where `--rerun-triggers`
    keeps Snakemake from looking."""
    plan = Results(Path(run.folder)).find_plan()
    if plan and (changes := asked.changes_since(plan, run)):
        raise RefusedError(
            f"config of module {module}: {run.folder} was made of another config "
            f"({in_words(changes)}), which --rerun-triggers keeps Snakemake from seeing; add "
            "params and input to it."
        )


# ---- inputs that are not there ----


def refuse_missing(
    workflow: Any, run: Run, is_made: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse what the config names and is neither there nor `is_made` by another rule, with the
    line that names it.

    Not what was planned, or drawn, already: that may be put away after the run, while the config
    asks for what was planned.
    """
    folder = Results(Path(run.folder))
    plan = folder.find_plan()
    gone = list[tuple[str, str]]()
    for name, path in run.paths_of_options.items():
        is_planned = plan is not None and plan.execution.get(name) == path
        if is_planned and not Path(path).exists():
            gone.append((f"options.{name}", path))
        elif not is_made(path):
            with refusing(run.origin.at("options", name)):
                option_files.refuse_missing(run.options, name)
    planned = {entry.path for entry in plan.inputs} if plan else set()
    for path in run.inputs:
        if path.startswith(f"results/{run.run.partition('/')[0]}/") or is_made(path):
            continue
        if path not in planned:
            refuse_missing_input(workflow, path, run.inputs, run.origin)
        elif not Path(path).exists():
            gone.append(("inputs", path))
    if run.samples and not run.samples.startswith("results/"):
        refuse_unknown_labels(run, run.samples)
        with refusing(f"{run.origin.at('samples')}: samples"):
            files = run.files
            if not {*files} <= planned:
                made = {path for path in files if is_made(path)}
                samples.read(Path(run.samples)).refuse_missing(planned | made)
            gone += [("samples", path) for path in files if not Path(path).exists()]
    lost = [(key, path) for key, path in gone if not is_made(path)]
    if plan and lost and (why := changed_since(folder, plan, run)):
        key, path = lost[0]
        where = f"{run.origin.at(*key.split('.'))}: {key}"
        raise RefusedError(_gone(where, path, run.folder, why))


def _gone(where: str, path: str, made: str, why: str) -> str:
    """Return the sentence on a file that is gone, and without which `made` cannot be made anew."""
    return (
        f"{where}: {path} is gone, and {made} has to be made anew of it ({why}); put it back, or "
        "undo that change."
    )


def changed_since(folder: Results, plan: Plan, run: Run) -> str:
    """Return in words what of the run, or of the files that it names, is not as it was planned;
    "" if all is."""
    changes = asked.changes_since(plan, run)
    if not changes and (others := others_planned_for(run)):
        return others
    return in_words(changes) or next(iter(changed_sources(folder, plan)), "").rstrip(".")


def refuse_missing_here(run: Run) -> None:
    """Refuse what `refuse_missing` does not look at, where no other workflow imports this one: a
    checkpoint that was not converted, and the labels of the report."""
    table, column = run.labels.file, run.labels.column
    if run.model and not Path(run.weights_json).exists():
        with refusing(f"{run.origin.at(*run.model_key)}: {'.'.join(run.model_key)}"):
            weights.refuse_missing(run.model, run.workload)
            run.options.check_files()
    report = asked.reported(run, Path(run.folder))
    is_other = report.stands() != "yes"
    if table and (Path(table).exists() or is_other):
        key = "file"
        with contextlib.suppress(UserError):  # which `check` raises again
            key = "file" if column in labels.names_of(Path(table)) else "column"
        ids = run.id_columns, run.labels.id_column
        with refusing(f"{run.origin.at('labels', key)}: labels"):
            labels.check(Path(table), column, *ids)
        if is_other:  # a job is going to read it
            with refusing(f"{run.origin.at('labels', 'file')}: labels"):
                labels.read_ahead(Path(table), column, None, *ids, wanted=())


def refuse_store(run: Run) -> None:
    """Refuse stores, of the config or else of the environment, whose first is only read."""
    with refusing(run.origin.at("store") if run.store else ""):
        shared.refuse_unwritable(run.store)


def refuse_sheet(workflow: Any, project: ProjectConfig) -> None:
    """Refuse a sheet of samples that cannot be read, with the line that names it."""
    if not project.samples:
        return
    configs = internals.config_files(workflow)
    hint = _elsewhere(Path(project.samples), [project.samples], configs)
    if internals.is_imported(workflow) and not Path(project.samples).exists():
        hint = " A rule may make the files that a sheet names, but not the sheet itself."
    with refusing(f"{project.origin.at('samples')}: samples", hint):
        samples.read(Path(project.samples))


def refuse_unknown_labels(run: Run, sheet: str) -> None:
    """Refuse labels that are a column of the `sheet`, and it has none of this name."""
    if run.labels.column and not run.labels.file:
        with refusing(f"{run.origin.at('labels', 'column')}: labels"):
            samples.read(Path(sheet)).refuse_unknown(run.labels.column)


def refuse_missing_input(workflow: Any, path: str, inputs: Sequence[str], origin: Origin) -> None:
    hint = _elsewhere(Path(path), inputs, internals.config_files(workflow))
    with refusing(f"{origin.at('inputs')}: inputs", hint):
        source.check(Path(path))


def refuse_missing_of_steps(
    workflow: Any, project: ProjectConfig, is_made: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse what steps would refuse in a job, and what they take from elsewhere and is neither
    there nor `is_made` by another rule, such as a finished run. What they took already may be put
    away, while the config asks for what they made of it."""
    folder = project.for_steps.folder
    lacking = [
        (made, path)
        for made in project.products
        for path in made.made_of
        if not (path.startswith(f"{folder}/") or Path(path).exists() or is_made(path))
    ]
    gone = [(made, path) for made, path in lacking if Path(made.files[-1]).exists()]
    missing = [pair for pair in lacking if pair not in gone]
    if any(run.samples != project.samples for run in project.runs.values()):  # a step reads it
        for run in project.runs.values():
            refuse_unknown_labels(run, project.samples)
        if missing:
            with refusing(f"{project.origin.at('samples')}: samples"):
                made_by_rules = {path for path in project.files if is_made(path)}
                samples.read(Path(project.samples)).refuse_missing(made_by_rules)
    for _, path in missing:
        if path in project.inputs:
            refuse_missing_input(workflow, path, project.inputs, project.origin)
    for made, path in gone:
        if why := made.differences().told:
            raise RefusedError(_gone(_where(project, made.label), path, made.files[-1], why))
    if problems := list(problems_of_files(project)):
        raise RefusedError("\n".join(problems))
    for made, path in missing:
        where = _where(project, made.label)
        raise RefusedError(f"{where}: {path}: there is no such file; name what is there.")


def refuse_records(project: ProjectConfig) -> None:
    """Refuse what steps would refuse of the planned records in a job, after all are computed."""
    if all(is_computed(str(folder)) for folder in project.folders):
        return
    with refusing():
        problems = list(problems_of_records(project))
    if problems:
        raise RefusedError("\n".join(problems))


def _where(project: ProjectConfig, label: str) -> str:
    """Return where the config asks for what a step calls `label`."""
    return f"{project.origin.at(*label.split('.')[:2])}: {label}"


def _elsewhere(path: Path, inputs: Sequence[str], configs: Sequence[Path]) -> str:
    """Return the command that finds the inputs, where a config was named from another folder than
    its paths are seen from; empty where `path` is there, or they are not beside it either."""
    for file in configs:
        folder = Path(os.path.relpath(file.parent))
        is_elsewhere = folder != Path() and not path.exists()
        if is_elsewhere and all((folder / name).exists() for name in inputs):
            start = f"cd {shlex.quote(str(folder))} && featuremill run {shlex.quote(file.name)}"
            return f" It is there seen from {folder}; so type: {start}"
    return ""


def option_inputs(run: Run, run_here: Run) -> list[str]:
    """Return the files and folders that options name, as `run` has them; of a folder also each
    file in it, which is looked for where `run_here` has it."""
    names, places = run.paths_of_options, run_here.paths_of_options
    return [file for key, path in names.items() for file in _with_inside(path, places[key])]


def _with_inside(path: str, place: str) -> list[str]:
    """Return `path`, and of a folder each file in it: its own time does not change when one of them
    is edited."""
    inside: list[str] = []
    with contextlib.suppress(OSError, UserError):  # `refuse_missing` reports it
        inside = files_below(Path(place)) if Path(place).is_dir() else []
    return [bare(path), *(str(Path(path) / name) for name in inside)]


def bare(path: str) -> str:
    """Return `path` without "./" before it, of which Snakemake warns."""
    return re.sub(r"^(\./+)+(?=.)", "", path)


def checkpoint_files(run: Run, run_here: Run) -> list[str]:
    """Return the checkpoint if the run names one by its path: another one there counts. Of a folder
    also each file in it, as `option_inputs` does."""
    model, place = run.model or "", run_here.model or ""
    if not model or not weights.is_path(model, run.workload):
        return []
    at = str(place_of(place))  # without "~", which Snakemake does not look up
    return _with_inside(model if model != place else at, at)
