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
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from featuremill import workload
from featuremill.base import environment, this_process
from featuremill.base.change import told
from featuremill.base.errors import UserError
from featuremill.base.words import counted, duration, listed
from featuremill.config import Config, asked, files_of, model_key, model_of
from featuremill.config.project import Project, problems_of_files, problems_of_records
from featuremill.config.yaml_lines import Places
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError, refusing
from featuremill.inputs import labels, samples, source
from featuremill.lease.devices import devices_for
from featuremill.status.reader import unseen_by_snakemake
from featuremill.status.sources import changed_sources
from featuremill.store import command_line, formats, ours, run_lock, shared
from featuremill.store.files import files_below
from featuremill.store.plan import SHARDS_A_SLOT, Plan
from featuremill.store.results import Results, runs_below
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
_claimed: dict[Path, TextIO] = {}
"""The main process's locks on its runs, held for as long as it lives."""
log = internals.log


def prepare(workflow: Any, config: Config, results: str, weights_files: Sequence[str]) -> None:
    """Do all of that, where this process is the main one and is going to run jobs."""
    if internals.is_main(workflow) and internals.is_dry(workflow) and not internals.only_looks():
        say_what_is_computed_again(config, results)
    is_done = run_lock.path_of(Path(results)) in _claimed  # for an earlier `use rule` of the module
    if internals.is_main(workflow) and internals.executes(workflow) and not is_done:
        check_cores(workflow)
        refuse_default_storage(workflow)
        refuse_without_packages(workflow, config, results, weights_files)
        refuse_without_gpu(workflow, config, results)
        path = config_file(workflow, results)
        refuse_run_in_run(config, results)
        refuse_another_config(config, results, path)
        claim_run(
            results,
            rules=internals.rule_name(workflow, "{}"),
            config=path,
            asked=asked_by(config, results),
            weights=next(iter(weights_json(config)), ""),
            is_imported=internals.is_imported(workflow),
        )
        with refusing():
            forget_plan_of_other_versions(workflow, config, results)
            forget_what_is_gone(config, results)
            forget_lost_weights(workflow, weights_files)
            if internals.is_imported(workflow) or asks_for_less(results):
                make_older(results)
            else:
                forget_what_is_not_whole(results)
        check_times(config, results)


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
    _claimed[path] = file
    last = run_lock.read(Path(results))
    was_here = last is not None and last.is_of_this_start()
    stale = internals.locks_on(results)
    if was_here:
        for lock in stale:
            lock.unlink()
    if was_here or not stale:
        folder = os.path.relpath(Path.cwd(), run_lock.working_folder(Path(results)))
        run_lock.sign(file, command_line.command(), folder=folder, **about)


def forget_plan_of_other_versions(workflow: Any, config: Config, results: str) -> None:
    """Have Snakemake plan again what was planned for another version of the workload or engine: it
    sees neither, and an interrupted shard would continue with values of both.

    Where another workflow imports this one, its target may need no plan, and the results would be
    left without one: there a warning has the command to type.
    """
    others = others_planned_for(config, results)
    if others and internals.is_imported(workflow):
        rule = internals.rule_name(workflow, "plan")
        log.warning(f"{results}: here is {others}: --forcerun {rule} plans it anew.")
    elif others:
        log.warning(f"{results}: here is {others}: it is planned and computed anew.")
        ours.vacate(Results(Path(results)).plan, log.warning)


def forget_plan_of_fewer_slots(workflow: Any, config: Config, results: str) -> None:
    """Have Snakemake plan again where more jobs can run side by side than the plan was made for,
    and too few shards are left for them: plan cuts those anew of which nothing is computed.

    Not where another workflow imports this one, whose target may need no plan.
    """
    if not (internals.is_main(workflow) and internals.executes(workflow)) or internals.is_imported(
        workflow
    ):
        return
    folder = Results(Path(results))
    slots = environment.GPUS.value() // config.gpus
    plan = folder.find_plan() if slots > 1 else None
    if plan is None or slots <= plan.slots:
        return
    begun = folder.begun_shards()
    waiting = [shard for shard in plan.shards if shard.shard not in begun]
    if len(waiting) < min(SHARDS_A_SLOT * slots, sum(shard.wanted for shard in waiting)):
        log.warning(
            f"{results}: it was planned for {plan.slots:,} of {slots:,} slots; planning anew."
        )
        ours.vacate(folder.plan, log.warning)


def others_planned_for(config: Config, results: str) -> str:
    """Return how the versions that are installed differ from those that the run is planned for."""
    plan = Results(Path(results)).find_plan()
    # With another workload Snakemake plans again anyway.
    is_same = plan and plan.workload == config.workload
    return recipe.other_versions_here(plan.settings) if plan and is_same else ""


def forget_what_is_gone(config: Config, results: str) -> None:
    """Have Snakemake see what it would take for done, because the results stand.

    Without store/ nothing is computed, whatever receipts say. Without plan.json (messages say when
    to delete it) it would never plan again, nor when other outputs of a run are asked for whose
    shards were removed.
    """
    folder = Results(Path(results))
    delivery = folder.find_delivery()
    if folder.plan.exists() and not folder.store.exists():
        shutil.rmtree(folder.root / "receipts", ignore_errors=True)
        ours.vacate(folder.plan, log.warning)
    are_others = delivery and set(delivery.outputs) != {
        formats.format_of(name).file for name in config.outputs
    }
    if are_others and not (folder.store / "shards").exists():
        ours.vacate(folder.plan, log.warning)
    if not folder.plan.exists():
        ours.vacate(folder.delivery, log.warning)


def forget_lost_weights(workflow: Any, weights_files: Sequence[str]) -> None:
    """Have weights converted again that are gone from the cache, once a job needs them: their bytes
    are always the same, so nothing is computed again.

    Not where jobs see other folders than this process does.
    """
    for path in () if internals.has_environments(workflow) else map(Path, weights_files):
        if weights.lost(path):
            with contextlib.suppress(OSError):  # plan will say which file to delete
                path.unlink()


def forget_what_is_not_whole(results: str) -> None:
    """Have Snakemake see the problems that `status` reports of the planned run, so that the
    run's command is enough to fix them."""
    folder = Results(Path(results))
    if not folder.plan.exists():
        return
    try:
        problems = unseen_by_snakemake(folder.root)
    except UserError:  # the commands report it themselves
        problems = []
    if not problems:  # a plan of many shards takes a while to read
        return
    plan = folder.find_plan()
    has_parts = any((folder.store / "parts").rglob("*.arrows"))
    for problem in problems:
        if problem.fix.again == "merge" and not has_parts:
            log.warning(f"{results}: {problem.what} The parts that have it were removed.")
            continue  # by `keep: results`: do not compute all again
        log.warning(f"{results}: {problem.what} This is made again.")
        if problem.fix.again == "plan":
            ours.vacate(folder.plan, log.warning)
        for shard in problem.fix.shards:
            folder.receipt(plan.recipe if plan else "", shard).unlink(missing_ok=True)
        if problem.code == "results_older":
            folder.plan.touch()  # they are whole, and stay until there are newer ones
        else:
            ours.vacate(folder.delivery, log.warning)


def make_older(results: str) -> None:
    """Have Snakemake see what took the place of an input, or of a file that an option names, and is
    older: where a target may need no plan, it stays until there is a newer one."""
    folder = Results(Path(results))
    problems = unseen_by_snakemake(folder.root) if folder.plan.exists() else []
    for problem in problems:
        if problem.code in REPLACED:
            log.warning(f"{results}: {problem.what} This is made again.")
            os.utime(folder.plan, BEFORE_ALL)


def make_steps_older(workflow: Any, named: Project) -> None:
    """The same for what steps and reports made of tables that others took the place of."""
    if not internals.is_main(workflow) or internals.only_looks():
        return
    made = [(one.label, one.files[-1], one.others()) for one in named.made if not one.missing()]
    for run in named.runs.values():
        report = f"results/{run.config.run}/report.html"
        if asked.has_other_labels(Path(report), run.config):
            made.append((report, report, [run.config.labels.file]))
    for label, file, others in made:
        last = Path(file)
        if not others or any(Path(p).stat().st_mtime > last.stat().st_mtime for p in others):
            continue  # nothing to see, or Snakemake sees it
        what = f"{label}: {listed(others)} changed since this was made."
        if internals.is_dry(workflow):
            log.warning(f"{what} A run makes it again, which a dry run does not show.")
        else:
            log.warning(f"{what} This is made again.")
            with refusing():
                os.utime(last, BEFORE_ALL)


def say_what_is_computed_again(config: Config, results: str) -> None:
    """Say what a run would compute again, which a dry run does not show."""
    plan = Results(Path(results)).find_plan()
    if others := others_planned_for(config, results):
        said = f"here is {others}: a run plans and computes it anew, which a dry run does not show."
        log.warning(f"{results}: {said}")
    elif plan and (changes := asked.changes_since(plan, config)):
        keys = {change.key for change in changes}
        records = counted(plan.counts.unique, "distinct record")
        if keys <= {"inputs", "samples"}:
            said = "a run plans anew, and computes the records that are new"
        else:
            said = (
                f"a run computes all {records} again, but for those that it computed with these "
                f"options before{_time_of_last(results)}"
            )
        log.warning(f"{results}: the config has changed ({told(changes)}): {said}.")


def _time_of_last(results: str) -> str:
    """Return how long the jobs of the last results took together, in words; "" if unknown."""
    delivery = Results(Path(results)).find_delivery()
    seconds = sum(receipt.working_seconds for receipt in delivery.receipts) if delivery else 0
    return f"; its last jobs took {duration(seconds)} together" if seconds else ""


def check_times(config: Config, results: str) -> None:
    """Refuse inputs of the future, and bring the run's own files back to the present."""
    clock = run_lock.path_of(Path(results))  # of the file system, which may be another than ours
    with refusing():
        read = [
            *files_of(config),
            *checkpoint_files(config, config),
            *option_inputs(config, config),
        ]
        source.refuse_future(read, clock)
    now = source.now_by(clock)
    ours = [path for pattern in OURS for path in sorted(Path(results).glob(pattern))]
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


def refuse_without_packages(
    workflow: Any, config: Config, results: str, weights_files: Sequence[str]
) -> None:
    """Refuse to begin where this Python lacks what the jobs are going to compute with.

    Not where the jobs have environments or containers of their own (`--sdm`), and not where all is
    computed. Where they only run elsewhere, they lack nothing once the weights, which are converted
    here, are there.
    """
    if internals.is_imported(workflow):  # its target may have nothing to do with ours
        return
    module = workload.find_workload(config.workload)
    is_bare = plugin_errors.is_external(config.workload) and not optional(module, "ENVIRONMENT")
    if internals.makes_conda_environments(workflow) and is_bare:
        raise RefusedError(
            f"--sdm conda: {plugin_errors.who(config.workload)} names no conda environment "
            "(ENVIRONMENT), so its jobs would not find it; leave --sdm conda out, or ask for one."
        )
    try:
        workload.refuse_without_packages(module.Options)
    except UserError as error:
        is_elsewhere = internals.runs_elsewhere(workflow) is not False or asks_for_less(results)
        is_converted = all(Path(path).exists() for path in weights_files)
        has_others = internals.has_environments(workflow)
        if has_others or (is_elsewhere and is_converted) or is_computed(results):
            return
        raise RefusedError(
            f"{error} (or have Snakemake make environments for the jobs: --sdm conda)."
        ) from None


def refuse_without_gpu(workflow: Any, config: Config, results: str) -> None:
    """Refuse `device: cuda` where the jobs would run on this machine and it has no GPU.

    Not where jobs go elsewhere, where a target is named (a plan needs none) or may be another
    workflow's own, and where every shard is computed already.
    """
    is_elsewhere = internals.runs_elsewhere(workflow) is not False or internals.is_imported(
        workflow
    )
    if config.device != "cuda" or is_elsewhere or asks_for_less(results) or is_computed(results):
        return
    with refusing(hint=" To plan here and compute elsewhere: snakemake plan …"):
        devices_for(config.device)


def refuse_run_in_run(config: Config, results: str) -> None:
    """Refuse to put several sets of features into the folder of a run of one, or the other way.

    `clean` would take one for a part of the other.
    """
    name, _, is_one_of_several = config.run.partition("/")
    above = Path(results).parent
    if is_one_of_several and (above / "plan.json").exists():
        other = f"{above} is the folder of a run without 'features:'"
    elif not is_one_of_several and runs_below(Path(results)):
        other = f"{results} is the folder of a config with 'features:'"
    else:
        return
    raise RefusedError(f"run: {name}: {other}; give this one another `run:`.")


def refuse_another_config(config: Config, results: str, path: str) -> None:
    """Refuse to replace the results of another config whose run has the same name.

    Another config is another file that asks for something else: other inputs, another workload, or
    options that give other values. So an edit is accepted, as is a config of a new name, and one in
    a project that was moved; without plan.json there is nothing to replace.
    """
    last = run_lock.read(Path(results))
    is_planned = Results(Path(results)).plan.exists()
    if not (path and last and last.config and is_planned):
        return
    working = run_lock.working_folder(Path(results))
    if (working / last.config).resolve() == (working / path).resolve():  # maybe through a link
        return
    asks = asked_by(config, results)
    for key, value in last.asked.items():
        if asks.get(key) != value:
            said = ", ".join(map(str, value)) if isinstance(value, list) else value
            raise RefusedError(
                f"{path}: run: {config.run} is the name of another config's run: {last.config} "
                f"made {results} with {key}: {said}. Give one of them another `run:`, or, to have "
                f"this one take its place, delete {results}/plan.json: what is computed stays."
            )


def asked_by(config: Config, results: str) -> dict[str, Any]:
    """Return what determines the results of a config: its inputs, seen from the folder of
    results/<run>, its workload, the options that are in the recipe, and columns of tables."""
    working = run_lock.working_folder(Path(results))
    options = options_of(config)

    def seen(path: str) -> str:
        # What was named by an absolute path elsewhere stays there where a project moves.
        return path if _is_elsewhere(path, working) else os.path.relpath(path, working)

    return {
        **({"samples": seen(config.samples)} if config.samples else {}),
        "inputs": [seen(path) for path in config.inputs],
        "workload": config.workload,
        **asked.options_asked(config),
        **{name: seen(path) for name, path in option_files.paths_of(options).items()},
    }


def _is_elsewhere(path: str, folder: Path) -> bool:
    return Path(path).is_absolute() and not Path(path).is_relative_to(folder)


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


def refuse_what_computes_nothing(workflow: Any, rule: str, merging: Sequence[str]) -> None:
    """Refuse words with which Snakemake would compute nothing, or leave a run without results, and
    end well: it takes jobs away before a plan has named them. The names of rules, those `merging`
    among them, follow the pattern `rule`."""
    until, omitted = internals.narrowed_by(workflow)
    merge = rule.format("merge")
    if rule.format("extract") in until:
        raise RefusedError(
            f"--until {rule.format('extract')}: Snakemake has no such job before there is a "
            f"plan, and would end without computing anything; --until {merge} computes everything, "
            "and draws no report."
        )
    ours = {rule.format(verb) for verb in (*command_line.RULES, *merging)}
    for name in sorted(ours & {*omitted}):
        raise RefusedError(
            f"--omit-from {name}: Snakemake would plan and compute nothing; to have everything but "
            f"the report, name the target {merge} instead."
        )


def is_forced() -> bool:
    """Return whether rules are forced."""
    return any(word.partition("=")[0] in FORCED for word in sys.argv[1:])


def refuse_unseen_edits(config: Config, results: str, module: str) -> None:
    """Refuse to take the results for those of a config that has changed, where `--rerun-triggers`
    keeps Snakemake from looking."""
    plan = Results(Path(results)).find_plan()
    if plan and (changes := asked.changes_since(plan, config)):
        raise RefusedError(
            f"config of module {module}: {results} was made of another config ({told(changes)}), "
            "which --rerun-triggers keeps Snakemake from seeing; add params and input to it."
        )


# ---- inputs that are not there ----


def refuse_missing(
    workflow: Any,
    config: Config,
    results: str,
    named: str,
    places: Places,
    is_made: Callable[[str], bool] = lambda _: False,
) -> None:
    """Refuse what the config names and is neither there nor `is_made` by another rule, with the
    line that names it.

    Not what was planned, or drawn, already: that may be put away after the run, while the config
    asks for what was planned. `named` and `places` are as `sources` has them.
    """
    folder = Results(Path(results))
    plan = folder.find_plan()
    options = options_of(config)
    gone = list[tuple[str, str]]()
    for name, path in option_files.paths_of(options).items():
        is_planned = plan is not None and plan.execution.get(name) == path
        if is_planned and not Path(path).exists():
            gone.append((f"options.{name}", path))
        elif not is_made(path):
            with refusing(places.get(("options", name), named)):
                option_files.refuse_missing(options, name)
    planned = {entry.path for entry in plan.inputs} if plan else set()
    for path in config.inputs:
        if path.startswith(f"results/{config.run.partition('/')[0]}/") or is_made(path):
            continue
        if path not in planned:
            refuse_missing_input(workflow, path, config.inputs, named, places)
        elif not Path(path).exists():
            gone.append(("inputs", path))
    if config.samples and not config.samples.startswith("results/"):
        refuse_unknown_labels(config, config.samples, named, places)
        with refusing(f"{places.get(('samples',), named)}: samples"):
            files = files_of(config)
            if not {*files} <= planned:
                samples.read(Path(config.samples)).refuse_missing(planned)
            gone += [("samples", path) for path in files if not Path(path).exists()]
    lost = [(key, path) for key, path in gone if not is_made(path)]
    if plan and lost and (why := changed_since(folder, plan, config)):
        key, path = lost[0]
        place = places.get(tuple(key.split(".")), named)
        raise RefusedError(_gone(f"{place}: {key}", path, results, why))


def _gone(where: str, path: str, made: str, why: str) -> str:
    """Return the sentence on a file that is gone, and without which `made` cannot be made anew."""
    return (
        f"{where}: {path} is gone, and {made} has to be made anew of it ({why}); put it back, or "
        "undo that change."
    )


def changed_since(folder: Results, plan: Plan, config: Config) -> str:
    """Return in words what of the config, or of the files that it names, is not as it was planned;
    "" if all is."""
    changes = asked.changes_since(plan, config)
    if not changes and (others := others_planned_for(config, str(folder.root))):
        return others
    return told(changes) or next(iter(changed_sources(folder, plan)), "").rstrip(".")


def refuse_missing_here(config: Config, named: str, places: Places) -> None:
    """Refuse what `refuse_missing` does not look at, where no other workflow imports this one: a
    checkpoint that was not converted, and the labels of the report."""
    table, column = config.labels.file, config.labels.column
    results = Results(Path("results") / config.run)
    if (model := model_of(config)) and not any(Path(one).exists() for one in weights_json(config)):
        with refusing(f"{places.get(model_key(config), named)}: {'.'.join(model_key(config))}"):
            weights.refuse_missing(model, config.workload)
    report = results.root / "report.html"
    is_other = not report.exists() or asked.changes_of_labels(report, config)
    if table and (Path(table).exists() or is_other):
        key = "file"
        with contextlib.suppress(UserError):  # which `check` raises again
            key = "file" if column in labels.names_of(Path(table)) else "column"
        with refusing(f"{places.get(('labels', key), named)}: labels"):
            told = bool(config.samples), config.labels.id_column
            labels.check(Path(table), column, *told)
        if is_other:  # a job is going to read it
            with refusing(f"{places.get(('labels', 'file'), named)}: labels"):
                labels.read_ahead(Path(table), column, None, *told, wanted=())


def refuse_store(config: Config, named: str, places: Places) -> None:
    """Refuse stores, of the config or else of the environment, whose first is only read."""
    with refusing(places.get(("store",), named) if config.store else ""):
        shared.refuse_unwritable(config.store)


def refuse_sheet(workflow: Any, named: Project) -> None:
    """Refuse a sheet of samples that cannot be read, with the line that names it."""
    if not named.samples:
        return
    configs = internals.config_files(workflow)
    hint = _elsewhere(Path(named.samples), [named.samples], configs)
    with refusing(f"{named.places.get(('samples',), named.named)}: samples", hint):
        samples.read(Path(named.samples))


def refuse_unknown_labels(config: Config, sheet: str, named: str, places: Places) -> None:
    """Refuse labels that are a column of the `sheet`, and it has none of this name."""
    if config.labels.column and not config.labels.file:
        with refusing(f"{places.get(('labels', 'column'), named)}: labels"):
            samples.read(Path(sheet)).refuse_unknown(config.labels.column)


def refuse_missing_input(
    workflow: Any, path: str, inputs: Sequence[str], named: str, places: Places
) -> None:
    """Refuse an input that is not there or cannot be read."""
    hint = _elsewhere(Path(path), inputs, internals.config_files(workflow))
    with refusing(f"{places.get(('inputs',), named)}: inputs", hint):
        source.check(Path(path))


def refuse_missing_of_steps(
    workflow: Any, named: Project, is_made: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse what steps would refuse in a job, and what they take from elsewhere and is neither
    there nor `is_made` by another rule, such as a finished run. What they took already may be put
    away, while the config asks for what they made of it."""
    folder = named.seen.folder
    lacking = [
        (one, path)
        for one in named.made
        for path in one.made_of
        if not (path.startswith(f"{folder}/") or Path(path).exists() or is_made(path))
    ]
    gone = [(one, path) for one, path in lacking if Path(one.files[-1]).exists()]
    missing = [pair for pair in lacking if pair not in gone]
    if any(run.config.samples != named.samples for run in named.runs.values()):  # a step reads it
        for run in named.runs.values():
            refuse_unknown_labels(run.config, named.samples, run.named, run.places)
        if missing:
            with refusing(f"{named.places.get(('samples',), named.named)}: samples"):
                samples.read(Path(named.samples)).refuse_missing()
    for _, path in missing:
        if path in named.inputs:
            refuse_missing_input(workflow, path, named.inputs, named.named, named.places)
    for one, path in gone:
        if why := told(one.changes()) or ", ".join(one.others()):
            raise RefusedError(_gone(_where(named, one.label), path, one.files[-1], why))
    if problems := list(problems_of_files(named)):
        raise RefusedError("\n".join(problems))
    for one, path in missing:
        where = _where(named, one.label)
        raise RefusedError(f"{where}: {path}: there is no such file; name what is there.")


def refuse_records(named: Project) -> None:
    """Refuse what steps would refuse of the planned records in a job, after all are computed."""
    if all(is_computed(str(folder)) for folder in named.folders):
        return
    with refusing():
        problems = list(problems_of_records(named))
    if problems:
        raise RefusedError("\n".join(problems))


def _where(named: Project, label: str) -> str:
    """Return where the config asks for what a step calls `label`."""
    place = named.places.get(tuple(label.split(".")[:2]), named.named)
    return f"{place}: {label}"


def _elsewhere(path: Path, inputs: Sequence[str], configs: Sequence[Path]) -> str:
    """Return the command that finds the inputs, where a config was named from another folder than
    its paths are seen from; empty where `path` is there, or they are not beside it either."""
    for file in configs:
        folder = Path(os.path.relpath(file.parent))
        is_elsewhere = folder != Path() and not path.exists()
        if is_elsewhere and all((folder / one).exists() for one in inputs):
            start = f"cd {shlex.quote(str(folder))} && featuremill run {shlex.quote(file.name)}"
            return f" It is there seen from {folder}; so type: {start}"
    return ""


def options_of(config: Config) -> Any:
    """Return the options of the run's workload."""
    return workload.find_workload(config.workload).Options.model_validate(config.options)


def option_inputs(config: Config, there: Config) -> list[str]:
    """Return the files and folders that options name, as `config` has them; of a folder also each
    file in it, which is looked for where `there` has it."""
    names = option_files.paths_of(options_of(config))
    places = option_files.paths_of(options_of(there))
    return [one for key, path in names.items() for one in _with_inside(path, places[key])]


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


def weights_json(config: Config) -> list[str]:
    """Return the weights file that the run needs, as a list of one, or of none."""
    model = model_of(config)
    return [weights.json_of(model, config.workload)] if model else []


def checkpoint_files(config: Config, there: Config) -> list[str]:
    """Return the checkpoint if the run names one by its path: another one there counts. Of a folder
    also each file in it, as `option_inputs` does."""
    model, place = model_of(config) or "", model_of(there) or ""
    if not model or not weights.is_path(model, config.workload):
        return []
    at = str(place_of(place))  # without "~", which Snakemake does not look up
    return _with_inside(model if model != place else at, at)
