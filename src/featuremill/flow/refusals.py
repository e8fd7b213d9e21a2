"""Requests that are refused before the first job, each with a sentence that has the remedy. Steps
refuse further ones by `problems_of_files` and `problems_of_records`."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from featuremill import step, workload
from featuremill.base import this_process
from featuremill.base.devices import devices_for
from featuremill.base.errors import UserError
from featuremill.base.words import in_words, listed
from featuremill.config import Run, find_run, products
from featuremill.config.problems import Origin
from featuremill.config.project import ProjectConfig, problems_of_files, problems_of_records
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError, refusing
from featuremill.inputs import labels, samples, source
from featuremill.status import outdated
from featuremill.step.finding import step_of
from featuremill.store import command_line, run_lock
from featuremill.store.results import Results, runs_below
from featuremill.workload import option_files, optional, plugin_errors, weights

FORCED = {*command_line.FORCING, "--forceall", "-F"}
"""Options by which Snakemake runs jobs whatever their outputs are."""
TARGETS = {"plan", "weights", "partial"}
"""Targets that are less than a whole run."""
LESS = ("--until", "-U", "--touch", "-t")
"""Beginnings of options for less than a whole run. They are read from the command line, as
Snakemake has its settings later."""
log = internals.log


def check_cores(workflow: Any) -> None:
    """Refuse `--cores 0`, with which Snakemake never ends; warn of more than a container has."""
    cores = internals.cores_here(workflow)
    if cores == 0:
        raise RefusedError("--cores 0: no job could run; give 1 or more, or all.")
    available = this_process.num_cores()
    if cores and cores > available and not math.isinf(this_process.cpu_quota()):
        log.warning(
            f"--cores {cores}: this container may use {available} at once, so jobs would slow each "
            f"other; --cores {available} is faster."
        )


def refuse_default_storage(workflow: Any) -> None:
    """Refuse a default storage provider: the store is not declared to Snakemake and would stay
    here, while the plan is elsewhere."""
    if internals.default_storage(workflow) is not None:
        raise RefusedError(
            "--default-storage-provider takes a run's files away from its store, which has to "
            "stand beside them; leave it out and name remote files one by one, as "
            "docs/clusters.md shows."
        )


def refuse_without_packages(workflow: Any, run: Run) -> None:
    """Refuse to run without the packages that the jobs compute with, unless jobs have environments
    or containers of their own (`--sdm`) or all is computed. If jobs run on other machines, packages
    are needed here only to convert weights."""
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
        if has_others or (is_elsewhere and is_converted) or outdated.is_computed(run.folder):
            return
        raise RefusedError(
            f"{error} (or have Snakemake make environments for the jobs: --sdm conda)."
        ) from None


def refuse_steps_without_packages(workflow: Any, project: ProjectConfig) -> None:
    """Refuse a Python without the packages that jobs of a step import, if these run here."""
    is_here = internals.executes(workflow) and internals.runs_elsewhere(workflow) is False
    if not is_here or internals.is_imported(workflow) or internals.has_environments(workflow):
        return
    if any(map(asks_for_less, map(str, project.folders))):
        return
    for key, section in project.sections.items():
        packages = step.optional(step_of(key), "PACKAGES")
        results = step_of(key).products(section, project.for_steps) if packages else ()
        if any(each.stands() != "yes" for each in results):
            with refusing(f"{project.origin.at(key)}: {key}"):
                workload.refuse_lacking(packages)


def refuse_without_gpu(workflow: Any, run: Run) -> None:
    """Refuse `device: cuda` if the jobs run on this machine and it has no GPU, unless a target is
    named (plan needs no GPU), may be another workflow's own, or all is computed."""
    is_here = internals.runs_elsewhere(workflow) is False and not internals.is_imported(workflow)
    if run.device != "cuda" or not is_here:
        return
    if asks_for_less(run.folder) or outdated.is_computed(run.folder):
        return
    with refusing(hint=" To plan here and compute elsewhere: snakemake plan …"):
        devices_for(run.device)


def refuse_run_in_run(run: Run) -> None:
    """Refuse several sets of features in the folder of a single run, and the reverse: `clean` would
    remove both."""
    name, _, is_one_of_several = run.run.partition("/")
    above = Path(run.folder).parent
    if is_one_of_several and (above / "plan.json").exists():
        other = f"{above} is the folder of a run without 'features:'"
    elif not is_one_of_several and runs_below(Path(run.folder)):
        other = f"{run.folder} is the folder of a config with 'features:'"
    else:
        return
    raise RefusedError(f"run: {name}: {other}; give this one another `run:`.")


def refuse_touch_without_plan(run: Run) -> None:
    """Refuse `--touch` without a plan: Snakemake would not see which receipts to touch."""
    path = Results(Path(run.folder)).plan
    if not path.exists():
        raise RefusedError(f"{path}: there is no plan to --touch yet; run first.")


def refuse_another_config(run: Run, path: str) -> None:
    """Refuse to replace the results of another config whose run has the same name: of another file
    with other inputs, another workload, or options that give other values. An edited, renamed or
    moved config is accepted. Without plan.json there is nothing to replace."""
    last = run_lock.read(Path(run.folder))
    is_planned = Results(Path(run.folder)).plan.exists()
    if not (path and last and last.config and is_planned):
        return
    working = run_lock.working_folder(Path(run.folder))
    if (working / last.config).resolve() == (working / path).resolve():  # maybe through a link
        return
    before = find_run(Results(Path(run.folder)))
    wanted = determining(run)
    for key, value in determining(before).items() if before else ():
        if wanted.get(key) != value:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            raise RefusedError(
                f"{path}: run: {run.run} is the name of another config's run: {last.config} "
                f"made {run.folder} with {key}: {shown}. Give one of them another `run:`, or, to "
                f"have this one take its place, delete {run.folder}/plan.json: what is computed "
                "stays."
            )


def determining(run: Run) -> dict[str, Any]:
    """Return the values of the config that determine the results; paths are relative to the folder
    that holds results/<run>."""
    working = run_lock.working_folder(Path(run.folder))

    def relative(path: str) -> str:
        # A file outside the project, named by an absolute path, stays there if the project moves.
        is_outside = Path(path).is_absolute() and not Path(path).is_relative_to(working)
        return path if is_outside else os.path.relpath(path, working)

    return {
        **({"samples": relative(run.samples)} if run.samples else {}),
        "inputs": [relative(path) for path in run.inputs],
        "workload": run.workload,
        **products.options_of_values(run),
        **{name: relative(path) for name, path in run.paths_of_options.items()},
    }


def asks_for_less(results: str) -> bool:
    """Return whether the command line names a target, or an option for less than the whole run."""
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


def refuse_selected_rules(
    workflow: Any, rule: str, merging: Sequence[str], is_imported: bool, num_sets: int
) -> None:
    """Refuse `--until` and `--omit-from` if Snakemake would end without computing anything, and
    `--allowed-rules` without all of our rules: Snakemake would take the outputs of the others for
    current.

    `rule` is the format of rule names. `merging` are the rules that merge, one for each list of
    outputs; `--until merge` means all of these.
    """
    until, omitted, allowed = internals.selected_rules(workflow)
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
    missing = {"plan", "extract", "report", *merging} - {*allowed}
    if allowed and missing and not is_imported:
        raise RefusedError(
            f"--allowed-rules without {listed(sorted(missing))}: Snakemake would take what that "
            "makes for done, whether it is or not; to have less than all, type --until merge."
        )


def refuse_unseen_edits(workflow: Any, run: Run, module: str) -> None:
    """Refuse results of another config if `--rerun-triggers` keeps Snakemake from comparing
    parameters."""
    is_forced = any(word.partition("=")[0] in FORCED for word in sys.argv[1:])
    folder = Results(Path(run.folder))
    plan = folder.find_plan()
    if is_forced or internals.sees_edits(workflow) or not plan:
        return
    if problem := outdated.problem_of_config(run, plan, folder, is_merged=True):
        raise RefusedError(
            f"config of module {module}: {run.folder} was made of another config "
            f"({in_words(problem.changes)}), which --rerun-triggers keeps Snakemake from seeing; "
            "add params and input to it."
        )


# ---- missing inputs ----


def refuse_missing(
    workflow: Any, run: Run, is_made: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse files that the config names and that neither exist nor are made by a rule
    (`is_made`), with the line that names them. Files that were planned may be removed as long as
    the config does not change."""
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
                by_rules = {path for path in files if is_made(path)}
                samples.read(Path(run.samples)).refuse_missing(planned | by_rules)
            gone += [("samples", path) for path in files if not Path(path).exists()]
    lost = [(key, path) for key, path in gone if not is_made(path)]
    if plan and lost and (why := outdated.since_plan(run, plan, folder)):
        key, path = lost[0]
        where = f"{run.origin.at(*key.split('.'))}: {key}"
        raise RefusedError(_gone(where, path, run.folder, why))


def _gone(where: str, path: str, product: str, why: str) -> str:
    return (
        f"{where}: {path} is gone, and {product} has to be made anew of it ({why}); put it back, "
        "or undo that change."
    )


def refuse_missing_here(run: Run) -> None:
    """Refuse a missing checkpoint that is not converted yet, and a missing table of labels. A
    workflow that imports this one may make them."""
    table, column = run.labels.file, run.labels.column
    if run.model and not Path(run.weights_json).exists():
        with refusing(f"{run.origin.at(*run.model_key)}: {'.'.join(run.model_key)}"):
            weights.refuse_missing(run.model, run.workload)
            run.options.check_files()
    report = products.reported(run, Path(run.folder))
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


def refuse_sheet(workflow: Any, project: ProjectConfig) -> None:
    """Refuse an unreadable sheet of samples, with the line that names it; and any sheet in a module
    with a prefix, which the sheet's paths do not have."""
    if not project.samples:
        return
    if internals.below_prefix(workflow, "a") != "a":
        raise RefusedError("samples: a module with a prefix takes `inputs` only; leave one out.")
    configs = internals.config_files(workflow)
    hint = _elsewhere(Path(project.samples), [project.samples], configs)
    if internals.is_imported(workflow) and not Path(project.samples).exists():
        hint = " A rule may make the files that a sheet names, but not the sheet itself."
    with refusing(f"{project.origin.at('samples')}: samples", hint):
        samples.read(Path(project.samples))


def refuse_unknown_labels(run: Run, sheet: str) -> None:
    """Refuse labels by a column that the `sheet` of samples does not have."""
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
    """Refuse what steps would refuse in a job, and their input files that neither exist nor are
    made by a rule (`is_made`). Files that were read may be removed as long as the config does not
    change."""
    folder = project.for_steps.folder
    lacking = [
        (product, path)
        for product in project.products
        for path in product.inputs
        if not (path.startswith(f"{folder}/") or Path(path).exists() or is_made(path))
    ]
    gone = [(product, path) for product, path in lacking if Path(product.files[-1]).exists()]
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
    for product, path in gone:
        if why := product.differences().in_words:
            raise RefusedError(_gone(_where(project, product.label), path, product.files[-1], why))
    if problems := list(problems_of_files(project)):
        raise RefusedError("\n".join(problems))
    for product, path in missing:
        where = _where(project, product.label)
        raise RefusedError(f"{where}: {path}: there is no such file; name what is there.")


def refuse_records(project: ProjectConfig) -> None:
    """Refuse planned records that a job of a step would refuse after all is computed."""
    if all(outdated.is_computed(str(folder)) for folder in project.folders):
        return
    with refusing():
        problems = list(problems_of_records(project))
    if problems:
        raise RefusedError("\n".join(problems))


def _where(project: ProjectConfig, label: str) -> str:
    return f"{project.origin.at(*label.split('.')[:2])}: {label}"


def _elsewhere(path: Path, inputs: Sequence[str], configs: Sequence[Path]) -> str:
    """Return the command that finds the inputs beside the config, if this is in another folder;
    "" if `path` exists or they are not there either."""
    for file in configs:
        folder = Path(os.path.relpath(file.parent))
        is_elsewhere = folder != Path() and not path.exists()
        if is_elsewhere and all((folder / name).exists() for name in inputs):
            start = f"cd {shlex.quote(str(folder))} && featuremill run {shlex.quote(file.name)}"
            return f" It is there seen from {folder}; so type: {start}"
    return ""
