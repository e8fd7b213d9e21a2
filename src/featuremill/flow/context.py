"""`Flow`, the object that the rule files share: the validated config, the paths of each run, the
resources of jobs, and the messages at the end.

`begin` makes it while Snakemake reads the rules. In the main process it also prepares the runs
(`preflight`, `refusals`, `reruns`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.config import Run, check_outputs, products, project, yaml_lines
from featuremill.config.problems import Places
from featuremill.config.project import Runs
from featuremill.flow import (
    guard,
    imported,
    internals,
    jobs,
    preflight,
    refusals,
    reruns,
    screen,
    slurm,
)
from featuremill.flow.jobs import JobResources
from featuremill.flow.summary import closing, closing_words, runs_to_end, tidied
from featuremill.step import Product
from featuremill.store import ours, shared
from featuremill.store.formats import files, format_of
from featuremill.store.plan import Plan, PlannedShard, SharedPart
from featuremill.store.results import Results
from featuremill.store.row_order import groups_of, is_by_shard
from featuremill.workload import optional, plugin_errors


def begin(workflow: Any, config: Mapping[str, Any], failures: screen.Failures) -> Flow:
    """Validate the config, prepare its runs, and return the object that the rules share.

    Raises:
        RefusedError: the run would fail, or would replace results of another config.
    """
    checked = validated(config, workflow)
    flow = Flow(workflow, checked, failures)
    if internals.is_main(workflow) and not internals.is_imported(workflow):
        flow.refuse_missing()
    jobs.prepare_jobs(workflow)
    internals.answer_sigterm()
    for run in flow.runs.values():
        imported.share(workflow, run.here)
        preflight.prepare(workflow, run.here)
    refusals.refuse_steps_without_packages(workflow, checked)
    reruns.rerun_steps(workflow, checked)
    flow.look_at_steps()
    slurm.prepare(workflow)
    flow.end_screen = screen.follow(workflow, flow.as_runs)
    if internals.executes(workflow):
        runs_to_end.extend(flow.folders)
    for run in flow.runs.values():
        run.num_slots = jobs.cap_gpus(workflow, run.run.device, run.run.gpus)
        reruns.replan_for_more_slots(workflow, run.here)
    return flow


class RunOfRules:
    """A run, as its rules see it: its paths have no prefix, which Snakemake adds if another
    workflow imports this one with one."""

    def __init__(self, workflow: Any, run: Run) -> None:
        self._workflow = workflow
        self.run = run
        self.here = imported.below_prefix(workflow, run)
        """The run with the prefix in its paths. The commands of the run read these paths."""
        self.results = run.folder
        self.labels = [preflight.bare(run.labels.file)] if run.labels.file else []
        self.weights = [run.weights_json] if run.weights_json else []
        self.checkpoint = preflight.checkpoint_files(run, self.here)
        """The checkpoint and the files in it, if the config names it by its path."""
        self.option_inputs = preflight.option_inputs(run, self.here)
        """Files and folders that options name, and the files in these folders."""
        self.num_slots = 0
        self.resources = JobResources(self.here, jobs.gpu_model(workflow))
        """Memory and minutes of each kind of job, for a cluster."""

    @property
    def inputs(self) -> list[str]:
        """The files with the records, after the sheet of samples if there is one. If a step makes
        the sheet, its files are undeclared and not listed."""
        if self.run.samples.startswith(f"results/{self.run.run.partition('/')[0]}/"):
            return [self.run.samples]
        with screen.refusing():
            return [preflight.bare(path) for path in self.run.files]

    @property
    def suffix(self) -> str:
        """The suffix of the names of rules for this run alone; "" if it is the only run."""
        _, is_one_of_several, name = self.run.run.partition("/")
        return f"_{name}" if is_one_of_several else ""

    @property
    def weights_words(self) -> list[str]:
        return [f"--weights={self.here.weights_json}"] if self.weights else []

    @property
    def weights_of(self) -> list[str]:
        """The arguments of `featuremill weights`: the model and its workload."""
        return [self.here.model or "", "--workload", self.run.workload]

    def environment(self, verb: str) -> str:
        """Return the conda environment of a command's jobs.

        It is the workload's own for jobs that compute with it or open its inputs, and for all jobs
        of a workload of another package. That of merge may be an output's. Otherwise it is
        featuremill's.
        """
        workload = self.run.module
        own: Path | None = optional(workload, "ENVIRONMENT")
        computes = verb in ("weights", "extract")
        opens_inputs = verb == "plan" and optional(workload, "TAKES_FILES")
        if own and (computes or opens_inputs or plugin_errors.is_external(self.run.workload)):
            return str(own)
        outputs = self.run.outputs if verb == "merge" else ()
        paths = (format_of(name).environment for name in outputs)
        return next((str(path) for path in paths if path), "../../envs/base.yaml")

    @property
    def extract_gpus(self) -> int:
        return 0 if self.run.device == "cpu" else self.run.gpus

    def extract_threads(self) -> int:
        return jobs.extract_threads(self._workflow, self.run.device, self.num_slots)

    def receipts(self, plan_json: str) -> list[str]:
        plan = _plan_in(plan_json)
        return self._receipts_of(plan.shards, plan.recipe)

    def receipts_of_job(self, plan_json: str, job: str) -> list[str]:
        """Return the receipts of the shards that a `deliver` job writes the rows of."""
        plan = _plan_in(plan_json)
        sources = [plan.sources[number] for number in groups_of(plan)[int(job)]]
        own = [source for source in sources if not isinstance(source, SharedPart)]
        return self._receipts_of(own, plan.recipe)

    def delivered(self, plan_json: str) -> list[str]:
        """Return the output of each `deliver` job; nothing if results are in input order."""
        plan = _plan_in(plan_json)
        folder = Results(Path(plan_json).parent)
        if not is_by_shard(self.here.order, self.here.outputs, folder, plan):
            return []
        jobs = range(len(groups_of(plan)))
        return [f"{self.results}/receipts/delivered/{number:04d}.json" for number in jobs]

    def _receipts_of(self, shards: Iterable[PlannedShard], recipe: str) -> list[str]:
        folder = f"{self.results}/receipts/{recipe}"
        return [f"{folder}/{entry.shard}.json" for entry in shards]


def _plan_in(plan_json: str) -> Plan:
    """Return the plan in a file, from a cache for many jobs."""
    with screen.refusing():
        return _read_plan(plan_json, Path(plan_json).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_plan(plan_json: str, _mtime_ns: int) -> Plan:
    return Results(Path(plan_json).parent).read_plan()


class Merged(NamedTuple):
    """A rule that merges all runs with the same outputs; `runs` is a pattern of their names."""

    rule: str
    runs: str
    outputs: tuple[str, ...]


class Exported(NamedTuple):
    """A rule that exports a format from the runs whose config does not list it."""

    format: str
    runs: str


class Flow:
    """The project, as its rules see it.

    The rules of a single run have no wildcards, so that they can be targets by name. Those of
    several runs have the wildcard `run`, with the values <run>/<name>.
    """

    def __init__(
        self, workflow: Any, checked: project.ProjectConfig, failures: screen.Failures
    ) -> None:
        self._workflow, self._failures = workflow, failures
        self.project = checked.for_steps
        self._config = checked
        self.steps = checked.sections
        self.rules = checked.rules
        before, after = checked.products_around
        self.products = [*before, *after]
        self._num_before = len(before)
        self.runs = {name: RunOfRules(workflow, run) for name, run in checked.runs.items()}
        """The runs, by their folders below results/."""
        self.folders = [run.here.folder for run in self.runs.values()]
        self.names = _pattern_of(self.runs)
        """The pattern of the wildcard `run`."""
        self.run = "{run}" if len(self.runs) > 1 else next(iter(self.runs))
        self.results = f"results/{self.run}"
        self.logs = f"{self.results}/logs"
        self.weights_names = _pattern_of(self._by_weights)
        """The pattern of the wildcard `name` of weights/<name>.json."""
        self._module = internals.workflow_module(workflow)
        """The name of this module in the workflow that imports it; None without such a workflow."""
        self._rule = internals.rule_name(workflow, "{}")
        """The format of rule names in the workflow that imports this one."""
        self._is_checked = not internals.is_main(workflow)
        self._has_prefix = any(run.here.folder != run.results for run in self.runs.values())
        self._checks_records = (
            internals.is_main(workflow)
            and not (internals.only_looks() or self._has_prefix)
            and project.checks_records(checked)
        )
        """Whether steps have not checked the planned records yet."""
        self._runs_jobs = internals.may_execute(workflow)
        self._is_prepared = self._module is None and internals.executes(workflow)
        """Whether `preflight.prepare` writes run.json."""
        self.end_screen: Callable[[], None] = lambda: None
        """Ends the display of the progress, so that lines after it stay on the screen."""
        self.is_target = internals.has_no_target(workflow)
        """Whether `all` is the default target: an importing workflow may have its own."""

    def guard_outputs(self, snakefile: str) -> None:
        """Keep Snakemake from deleting a user's files that have the names of outputs. The rules of
        runs are in the folder of the `snakefile`."""
        of_runs = (Path(snakefile).parent / "workflow" / "rules").glob("*.smk")
        of_steps = (Path(file) for product in self.products for file in product.files)
        rules = [*of_runs, *map(Path, self.rules)]
        guard.guard(self._workflow, rules, self._outputs(), of_steps)

    def _outputs(self) -> Iterator[Path]:
        """Yield the declared outputs of runs, except receipts."""
        for run in self.runs.values():
            results = Results(Path(run.here.folder))
            yield from (results.plan, results.records, results.delivery)
            of_merge = [format_of(name).file for name in run.here.outputs]
            for name in (*of_merge, "failed.tsv", "failed.fa", "report.html"):
                yield results.root / name

    @property
    def inputs(self) -> list[str]:
        """The files with the records, after the sheet of samples if there is one."""
        self._check_once()
        with screen.refusing():
            return [preflight.bare(path) for path in self._config.files]

    def inputs_of(self, wildcards: Any) -> list[str]:
        self._check_once()
        return self.of(wildcards).inputs

    def refuse_missing(self, is_made: Callable[[str], bool] = lambda _: False) -> None:
        """Refuse files that the config names and that neither exist nor are made by a rule."""
        for run in self.runs.values():
            refusals.refuse_missing(self._workflow, run.here, is_made)
            if self._module is None:
                refusals.refuse_missing_here(run.here)
        if not self._has_prefix:
            refusals.refuse_missing_of_steps(self._workflow, self._config, is_made)

    def _check_once(self) -> None:
        """Check Snakemake's settings, and let it rerun edited jobs. This is the first call after
        Snakemake has its settings and all rules.

        If another workflow imports this one, its rules may make missing files. Snakemake does not
        look for inputs of existing results.
        """
        if self._is_checked:
            return
        self._is_checked = True
        with screen.exit_on_refusal():
            refusals.refuse_selected_rules(
                self._workflow,
                self._rule,
                [merged.rule for merged in self.merged],
                self._module is not None,
                len(self.runs),
            )
        if self._module is None:
            internals.see_edits(self._workflow)
            return
        with screen.exit_on_refusal():
            self.refuse_missing(partial(internals.is_made, self._workflow))
            for run in self.runs.values():
                refusals.refuse_unseen_edits(self._workflow, run.here, self._module)

    @property
    def checked_together(self) -> list[str]:
        """The runs that must all be planned before any is computed, because a step checks the
        records of all."""
        return [*self.runs] if self._checks_records and len(self.runs) > 1 else []

    def check_records(self) -> None:
        """Let steps check the planned records of all runs, once."""
        if self._checks_records:
            self._checks_records = False
            with screen.exit_on_refusal():
                refusals.refuse_records(self._config)

    @property
    def _by_weights(self) -> dict[str, RunOfRules]:
        """The first run that needs weights, by their names."""
        runs = reversed(self.runs.values())
        return {Path(path).stem: run for run in runs for path in run.weights}

    def of(self, wildcards: Any) -> RunOfRules:
        return self.runs[getattr(wildcards, "run", self.run)]

    def drawn(self, wildcards: Any) -> list[str]:
        """Return the files of steps that are drawn on the report of a run."""
        folder = self.of(wildcards).results
        return [f for each in self.products if each.on_report_of == folder for f in each.files]

    def of_weights(self, wildcards: Any) -> RunOfRules:
        """Return a run that needs the weights of a job."""
        return self._by_weights[wildcards.name]

    def reruns(self, verb: str) -> Callable[[Any], str]:
        """Return a function for `params`: the part of the config whose edit reruns the command
        `verb`. The command reads it in run.json, an undeclared file.

        Snakemake calls the function once it needs the job. If another workflow imports this one,
        run.json is written only then.
        """

        def value(wildcards: Any) -> str:
            run = self.of(wildcards)
            if self._runs_jobs and not self._is_prepared:
                with screen.refusing():
                    preflight.write_run(run.here)
            return json.dumps(products.counted(run.here, verb))

        return value

    def environment(self, verb: str) -> Callable[[Any], str]:
        return lambda wildcards: self.of(wildcards).environment(verb)

    def resource(self, name: str) -> Callable[[Any, int], int]:
        """Return a resource of a job for a cluster, by the name of a method of JobResources."""
        return lambda wildcards, attempt: int(
            getattr(self.of(wildcards).resources, name)(wildcards, attempt)
        )

    @property
    def merged(self) -> list[Merged]:
        groups = project.outputs_of(self._config.runs.values()).items()
        return [
            Merged(f"merge{self.runs[runs[0]].suffix if n else ''}", _pattern_of(runs), outputs)
            for n, (outputs, runs) in enumerate(groups)
        ]

    @property
    def exported(self) -> list[Exported]:
        without = {
            name: [each for each, run in self._config.runs.items() if name not in run.outputs]
            for name in files()
        }
        return [Exported(name, _pattern_of(runs)) for name, runs in without.items() if runs]

    def everything(self, others: Iterable[str]) -> list[str]:
        """Return the results of all runs, with the files `others` of each, and those of steps."""
        of_runs = [
            f"{run.results}/{file}"
            for run in self.runs.values()
            for file in (*(format_of(name).file for name in run.run.outputs), *others)
        ]
        return [*of_runs, *(file for product in self.products for file in product.files)]

    def look_at_steps(self) -> None:
        """Remember size, times and inode of the files of steps: `note_steps` compares them."""
        self._looks = {product.label: _looks(product) for product in self.products}

    def note_steps(self) -> None:
        """Record the inputs of the files of steps that jobs of this process wrote."""
        for product in () if internals.only_touches(self._workflow) else self.products:
            is_other = not product.missing() and _looks(product) != self._looks[product.label]
            if is_other and not any(map(reruns.awaits_rerun, map(Path, product.files))):
                with contextlib.suppress(OSError):  # of a full disk: then its times decide
                    product.note(is_new=True)

    def say_success(self) -> None:
        """Print the results, and remove what the config's `keep` does not name."""
        self.end_screen()
        self.note_steps()
        if "all" not in internals.quiet_about(self._workflow):
            print(closing_words(*self.folders))
            for product in self.products:
                if product.stands() == "yes":  # a target may need only some
                    print(f"{product.label}: {product.shown}")
        for run in self.runs.values():
            print(tidied(run.here.folder, run.run.keep), end="")

    def say_failure(self) -> None:
        self.end_screen()
        self.note_steps()
        runs = self.as_runs
        print(closing(self._failures, str(runs.folders[0] if runs.is_one else runs.path)))

    @property
    def as_runs(self) -> Runs:
        """The project, for `status` and `top`."""
        files = internals.config_files(self._workflow)
        path = os.path.relpath(files[0]) if len(files) == 1 else self.folders[0]
        return Runs(Path(path), [*map(Path, self.folders)], self.products, self._num_before)


def _looks(product: Product) -> list[list[int] | None]:
    paths = map(Path, product.files)
    return [ours.looks(path) if path.exists() else None for path in paths]


def _pattern_of(names: Iterable[str]) -> str:
    """Return the regular expression of these names; without names, one that matches nothing. The
    empty expression would match the files of other modules in a workflow that imports several."""
    return "|".join(map(re.escape, names)) or "(?!)"


def validated(config: Mapping[str, Any], workflow: Any) -> project.ProjectConfig:
    with screen.refusing():
        source, places = sources(config, workflow)
        checked = project.validate(config, source, places)
        refusals.refuse_sheet(workflow, checked)
        for run in checked.runs.values():
            check_outputs(run)
            with screen.refusing(run.origin.at("store") if run.store else ""):
                shared.refuse_unwritable(run.store)
            # A step may have replaced the inputs by files of its own.
            typed = {"inputs": checked.inputs, "samples": checked.samples}
            products.refuse_patterns(run.model_copy(update=typed))
    for run in checked.runs.values():
        name = f"{run.run}: " if len(checked.runs) > 1 else ""
        for sentence in products.unused_settings(run):
            internals.log.warning(f"{name}{sentence}")
    return checked


def sources(config: Mapping[str, Any], workflow: Any) -> tuple[str, Places]:
    """Return the name of the config for messages, and the places of its keys in YAML files.

    Keys that another file or --config replaced have no place, nor have those of a module.
    """
    if internals.is_imported(workflow):
        return f"config of module {internals.workflow_module(workflow)}", {}
    source, places = "config", dict[tuple[str, ...], str]()
    for path in internals.config_files(workflow):
        raw, lines = yaml_lines.read(Path(os.path.relpath(path)))
        if raw == config:
            source = os.path.relpath(path)
        same = {key for key in raw.keys() & config.keys() if raw[key] == config[key]}
        places |= {key: position for key, position in lines.items() if key[0] in same}
    return source, places
