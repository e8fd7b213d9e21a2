"""What the rules share, as one object: the validated config, where a run's files are, what a job is
asked for, and the words at the end.

`begin` is called while the rules are read. In the process that the user started it
also does what comes before a run (`preflight.py`).
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

from featuremill.config import (
    Run,
    asked,
    check_outputs,
    load,
    project,
    refuse_patterns,
    without_effect,
)
from featuremill.config.runs import Runs
from featuremill.config.yaml_lines import Places
from featuremill.flow import guard, imported, internals, jobs, preflight, screen, slurm
from featuremill.flow.job_resources import JobResources
from featuremill.flow.summary import closing, closing_words, runs_to_end, tidied
from featuremill.step import Made
from featuremill.store import ours
from featuremill.store.formats import files, format_of
from featuremill.store.plan import Plan, PlannedShard, SharedPart
from featuremill.store.results import Results
from featuremill.store.row_order import groups_of, is_by_shard
from featuremill.workload import optional, plugin_errors


def begin(workflow: Any, config: Mapping[str, Any], failures: screen.Failures) -> Flow:
    """Validate the config, do what comes before a run, and return what the rules share.

    Raises:
        RefusedError: in one sentence, when this run cannot be or should not begin.
    """
    whole = validated(config, workflow)
    flow = Flow(workflow, whole, failures)
    if internals.is_main(workflow) and not internals.is_imported(workflow):
        flow.refuse_missing()
    jobs.prepare_jobs(workflow)
    internals.answer_sigterm()
    for run in flow.runs.values():
        imported.share(workflow, run.here)
        preflight.prepare(workflow, run.here)
    preflight.refuse_steps_without_packages(workflow, whole)
    preflight.make_steps_older(workflow, whole)
    flow.look_at_steps()
    slurm.prepare(workflow)
    flow.end_screen = screen.follow(workflow, flow.as_runs)
    if internals.executes(workflow):
        runs_to_end.extend(flow.folders)
    for run in flow.runs.values():
        run.num_slots = jobs.cap_gpus(workflow, run.asked.device, run.asked.gpus)
        preflight.forget_plan_of_fewer_slots(workflow, run.here)
    return flow


class RunOfRules:
    """One set of features, as its rules see it.

    Rules name files as they are without a prefix: where another workflow imports this one with a
    prefix, Snakemake puts it before them.
    """

    def __init__(self, workflow: Any, run: Run) -> None:
        self._workflow = workflow
        self.asked = run
        """What the config asks for."""
        self.here = imported.below_prefix(workflow, run)
        """The same, with its files named as they are found from here: what its commands read."""
        self.results = run.folder
        """Its folder, results/<run>."""
        self.labels = [preflight.bare(run.labels.file)] if run.labels.file else []
        """The table of labels, if there is one."""
        self.weights = [run.weights_json] if run.weights_json else []
        """The file about its weights, weights/<name>.json, if it needs any."""
        self.checkpoint = preflight.checkpoint_files(run, self.here)
        """The checkpoint, if the config names one by its path, with what is in it; or nothing."""
        self.option_inputs = preflight.option_inputs(run, self.here)
        """Files and folders that options name."""
        self.num_slots = 0
        """GPU slots that are here."""
        self.asks = JobResources(self.here, jobs.gpu_model(workflow))
        """What a cluster is asked for: memory and minutes of each kind of job."""

    @property
    def inputs(self) -> list[str]:
        """The files with the records, as Snakemake names them; a sheet of samples comes first, and
        alone where a step makes it: Snakemake does not see its files."""
        if self.asked.samples.startswith(f"results/{self.asked.run.partition('/')[0]}/"):
            return [self.asked.samples]
        with screen.refusing():
            return [preflight.bare(path) for path in self.asked.files]

    @property
    def suffix(self) -> str:
        """What names of rules that are the run's alone end with; "" where it is the only one."""
        _, is_one_of_several, name = self.asked.run.partition("/")
        return f"_{name}" if is_one_of_several else ""

    @property
    def weights_words(self) -> list[str]:
        """The option of `featuremill plan` that names their file."""
        return [f"--weights={self.here.weights_json}"] if self.weights else []

    @property
    def weights_of(self) -> list[str]:
        """What `featuremill weights` is asked for: the model, and whose it is."""
        return [self.here.model or "", "--workload", self.asked.workload]

    def environment(self, verb: str) -> str:
        """Return the conda environment of a command's jobs: the workload's own where they compute
        with it or it opens its inputs, and everywhere if another package brings it; an output's own
        where they write it; else featuremill's.
        """
        workload = self.asked.module
        own: Path | None = optional(workload, "ENVIRONMENT")
        computes = verb in ("weights", "extract")
        opens = verb == "plan" and optional(workload, "TAKES_FILES")
        if own and (computes or opens or plugin_errors.is_external(self.asked.workload)):
            return str(own)
        written = self.asked.outputs if verb == "merge" else ()
        theirs = (format_of(name).environment for name in written)
        return next((str(path) for path in theirs if path), "../../envs/base.yaml")

    @property
    def extract_gpus(self) -> int:
        return 0 if self.asked.device == "cpu" else self.asked.gpus

    def extract_threads(self) -> int:
        return jobs.extract_threads(self._workflow, self.asked.device, self.num_slots)

    def receipts(self, plan_json: str) -> list[str]:
        """Return the receipts that the plan asks for."""
        plan = _plan_in(plan_json)
        return self._receipts_of(plan.shards, plan.recipe)

    def receipts_of_job(self, plan_json: str, job: str) -> list[str]:
        """Return the receipts of the shards that a delivering job is about."""
        plan = _plan_in(plan_json)
        sources = [plan.sources[number] for number in groups_of(plan)[int(job)]]
        own = [source for source in sources if not isinstance(source, SharedPart)]
        return self._receipts_of(own, plan.recipe)

    def delivered(self, plan_json: str) -> list[str]:
        """Return what delivering jobs write: of results by shard, one file a job."""
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
    """Return the plan in a file, which many jobs ask for."""
    with screen.refusing():
        return _read_plan(plan_json, Path(plan_json).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_plan(plan_json: str, _mtime_ns: int) -> Plan:
    return Results(Path(plan_json).parent).read_plan()


class Merged(NamedTuple):
    """Runs that one rule merges, as they have the same outputs."""

    rule: str
    runs: str
    """The expression that their names match."""
    outputs: tuple[str, ...]


class Exported(NamedTuple):
    """Runs whose results have not this format of themselves."""

    format: str
    runs: str
    """The expression that their names match."""


class Flow:
    """The project, as its rules see it: what they say of a run is asked by wildcards.

    Of a project with one run nothing is a wildcard: its rules can be asked for by name, and others
    can name their files. Of several, the wildcard `run` is <run>/<name>.
    """

    def __init__(
        self, workflow: Any, whole: project.ProjectConfig, failures: screen.Failures
    ) -> None:
        self._workflow, self._failures = workflow, failures
        self.project = whole.for_steps
        """The project as steps see it."""
        self._whole = whole
        self.steps = whole.sections
        """What is asked of steps, by their keys of the config."""
        self.rules = whole.rules
        """The files with their rules."""
        before, after = whole.products_around
        self.made = [*before, *after]
        """What they make."""
        self._num_before = len(before)
        self.runs = {name: RunOfRules(workflow, run) for name, run in whole.runs.items()}
        """By what each is called below results/."""
        self.folders = [run.here.folder for run in self.runs.values()]
        self.names = _one_of(self.runs)
        """The expression that the names of the runs match."""
        self.run = "{run}" if len(self.runs) > 1 else next(iter(self.runs))
        self.results = f"results/{self.run}"
        """The folder of a run."""
        self.logs = f"{self.results}/logs"
        self.weights_names = _one_of(self._by_weights)
        """The expression that only the names of weights match that runs need."""
        self._module = internals.workflow_module(workflow)
        """What another workflow calls this one where it imports it."""
        self._rule = internals.rule_name(workflow, "{}")
        """What another workflow calls a rule of this one."""
        self._is_checked = not internals.is_main(workflow)
        self._has_prefix = any(run.here.folder != run.results for run in self.runs.values())
        self._checks_records = (
            internals.is_main(workflow)
            and not (internals.only_looks() or self._has_prefix)
            and project.checks_records(whole)
        )
        """Whether steps are still to check the planned records."""
        self._runs_jobs = internals.may_execute(workflow)
        """Whether jobs of this process need run.json."""
        is_ours = self._module is None and internals.is_main(workflow)
        self._is_prepared = is_ours and internals.executes(workflow)
        """Whether `preflight.prepare` writes it."""
        self.end_screen: Callable[[], None] = lambda: None
        """Ends the picture of how far the runs are, so that what comes after it stays."""
        self.is_target = internals.has_no_target(workflow)
        """Whether `all` is the default target: an importing workflow may have named its own."""

    def guard_outputs(self, snakefile: str) -> None:
        """Keep from Snakemake what a person put in the place of an output; the rules of a run are
        beside the workflow's `snakefile`."""
        of_runs = (Path(snakefile).parent / "workflow" / "rules").glob("*.smk")
        of_steps = (Path(file) for made in self.made for file in made.files)
        rules = [*of_runs, *map(Path, self.rules)]
        guard.guard(self._workflow, rules, self._outputs(), of_steps)

    def _outputs(self) -> Iterator[Path]:
        """Yield what the rules of runs declare, but for receipts."""
        for run in self.runs.values():
            results = Results(Path(run.here.folder))
            yield from (results.plan, results.records, results.delivery)
            of_merge = [format_of(name).file for name in run.here.outputs]
            for name in (*of_merge, "failed.tsv", "failed.fa", "report.html"):
                yield results.root / name

    @property
    def inputs(self) -> list[str]:
        """The files with its records, as Snakemake names them; a sheet of samples comes first."""
        self._check_once()
        with screen.refusing():
            return [preflight.bare(path) for path in self._whole.files]

    def inputs_of(self, wildcards: Any) -> list[str]:
        """Return the files with the records of a job's run, as Snakemake names them."""
        self._check_once()
        return self.of(wildcards).inputs

    def refuse_missing(self, is_made: Callable[[str], bool] = lambda _: False) -> None:
        """Refuse what the config names and is neither there nor `is_made` by a rule."""
        for run in self.runs.values():
            preflight.refuse_missing(self._workflow, run.here, is_made)
            if self._module is None:
                preflight.refuse_missing_here(run.here)
        if not self._has_prefix:
            preflight.refuse_missing_of_steps(self._workflow, self._whole, is_made)

    def _check_once(self) -> None:
        """Have Snakemake see edits of the config, now that its settings are known. Where another
        workflow imports this one, all of its rules are known only now, one of which may make the
        files; Snakemake looks for none of them where results are there."""
        if self._is_checked:
            return
        self._is_checked = True
        with screen.ending_with_it():
            merging = [merged.rule for merged in self.merged]
            preflight.refuse_what_computes_nothing(
                self._workflow, self._rule, merging, len(self.runs)
            )
            if self._module is None:
                preflight.refuse_fewer_rules(self._workflow, merging)
        if self._module is None:
            internals.see_edits(self._workflow)
            return
        with screen.ending_with_it():
            self.refuse_missing(partial(internals.is_made, self._workflow))
            if internals.sees_edits(self._workflow) or preflight.is_forced():
                return
            for run in self.runs.values():
                preflight.refuse_unseen_edits(run.here, self._module)

    @property
    def checked_together(self) -> list[str]:
        """The runs whose plans are awaited before any of them is computed: all of several, where a
        step checks their records."""
        return [*self.runs] if self._checks_records and len(self.runs) > 1 else []

    def check_records(self) -> None:
        """Have steps check the records of all plans, once, before any is computed."""
        if self._checks_records:
            self._checks_records = False
            with screen.ending_with_it():
                preflight.refuse_records(self._whole)

    @property
    def _by_weights(self) -> dict[str, RunOfRules]:
        """The first run that needs weights, by their names."""
        runs = reversed(self.runs.values())
        return {Path(path).stem: run for run in runs for path in run.weights}

    def of(self, wildcards: Any) -> RunOfRules:
        return self.runs[getattr(wildcards, "run", self.run)]

    def drawn(self, wildcards: Any) -> list[str]:
        """Return the files of steps that the report of a job's run draws."""
        folder = self.of(wildcards).results
        return [path for made in self.made if made.on_report_of == folder for path in made.files]

    def of_weights(self, wildcards: Any) -> RunOfRules:
        """Return a run that needs the weights that a job makes."""
        return self._by_weights[wildcards.name]

    def reruns(self, verb: str) -> Callable[[Any], str]:
        """Return what of the config, when it changes, runs the `verb` again: its command reads it
        in run.json, which Snakemake does not see. Snakemake asks for it once it needs the job.
        Where another workflow imports this one, run.json is written then: there is no earlier sign.
        """

        def of_job(wildcards: Any) -> str:
            run = self.of(wildcards)
            if self._runs_jobs and not self._is_prepared:
                with screen.refusing():
                    preflight.write_run(run.here)
            return json.dumps(asked.counted(run.here, verb))

        return of_job

    def environment(self, verb: str) -> Callable[[Any], str]:
        """Return the conda environment of a command's jobs."""
        return lambda wildcards: self.of(wildcards).environment(verb)

    def asks(self, what: str) -> Callable[[Any, int], int]:
        """Return how much a cluster is asked for on behalf of a job: a method of JobResources."""
        return lambda wildcards, attempt: int(
            getattr(self.of(wildcards).asks, what)(wildcards, attempt)
        )

    @property
    def merged(self) -> list[Merged]:
        """The rules that merge: one, or one for all runs that have the same outputs."""
        groups = project.outputs_of(self._whole.runs.values()).items()
        return [
            Merged(f"merge{self.runs[runs[0]].suffix if place else ''}", _one_of(runs), outputs)
            for place, (outputs, runs) in enumerate(groups)
        ]

    @property
    def exported(self) -> list[Exported]:
        """The rules that write one more format: one for each that not all runs have."""
        without = {
            name: [each for each, run in self._whole.runs.items() if name not in run.outputs]
            for name in files()
        }
        return [Exported(name, _one_of(runs)) for name, runs in without.items() if runs]

    def everything(self, others: Iterable[str]) -> list[str]:
        """Return all results of all runs, with the `others` that each has, and of the steps."""
        of_runs = [
            f"{run.results}/{file}"
            for run in self.runs.values()
            for file in (*(format_of(name).file for name in run.asked.outputs), *others)
        ]
        return [*of_runs, *(file for made in self.made for file in made.files)]

    def look_at_steps(self) -> None:
        """Note how the files of steps look, so that it is known in the end which were made."""
        self._looks = {made.label: _looks(made) for made in self.made}

    def note_steps(self) -> None:
        """Write down of what those files of steps were made that jobs of this process made."""
        for made in self.made:
            is_other = not made.missing() and _looks(made) != self._looks[made.label]
            if is_other and not any(map(preflight.was_made_older, map(Path, made.files))):
                with contextlib.suppress(OSError):  # of a full disk: then its times decide
                    made.note(is_new=True)

    def say_success(self) -> None:
        """Say what there is, and carry out the config's `keep`."""
        self.end_screen()
        self.note_steps()
        if "all" not in internals.quiet_about(self._workflow):
            print(closing_words(*self.folders))
            for made in self.made:
                if made.stands() == "yes":  # not where less was asked for
                    print(f"{made.label}: {made.shown}")
        for run in self.runs.values():
            print(tidied(run.here.folder, run.asked.keep), end="")

    def say_failure(self) -> None:
        """Say what failed, and what to type."""
        self.end_screen()
        self.note_steps()
        runs = self.as_runs
        print(closing(self._failures, str(runs.folders[0] if runs.is_one else runs.path)))

    @property
    def as_runs(self) -> Runs:
        """The same, as `status` and `top` have it."""
        files = internals.config_files(self._workflow)
        given = os.path.relpath(files[0]) if len(files) == 1 else self.folders[0]
        return Runs(Path(given), [*map(Path, self.folders)], self.made, self._num_before)


def _looks(made: Made) -> list[list[int] | None]:
    paths = map(Path, made.files)
    return [ours.looks(path) if path.exists() else None for path in paths]


def _one_of(names: Iterable[str]) -> str:
    """Return the expression that only these names match.

    Of none it matches nothing: an empty expression would match all, and where another workflow
    imports this one several times, its rule would offer to make the files of the others.
    """
    return "|".join(map(re.escape, names)) or "(?!)"


def validated(config: Mapping[str, Any], workflow: Any) -> project.ProjectConfig:
    """Return the validated project, or stop Snakemake with one sentence."""
    with screen.refusing():
        source, places = sources(config, workflow)
        checked = project.validate(config, source, places)
        imported.refuse_sheet(workflow, checked.samples)
        preflight.refuse_sheet(workflow, checked)
        for run in checked.runs.values():
            check_outputs(run)
            preflight.refuse_store(run)
            # What a step makes of the inputs has a name of ours.
            files_of_records = {"inputs": checked.inputs, "samples": checked.samples}
            refuse_patterns(run.model_copy(update=files_of_records))
    for run in checked.runs.values():
        of_set = f"{run.run}: " if len(checked.runs) > 1 else ""
        for sentence in without_effect(run):
            internals.log.warning(f"{of_set}{sentence}")
    return checked


def sources(config: Mapping[str, Any], workflow: Any) -> tuple[str, Places]:
    """Return what to call the config, and where its keys stand in the YAML files that it is from.

    What another file or --config set has no place in a file, nor has the config of a module.
    """
    if internals.is_imported(workflow):
        return f"config of module {internals.workflow_module(workflow)}", {}
    source, places = "config", dict[tuple[str, ...], str]()
    for path in internals.config_files(workflow):
        raw, lines = load(Path(os.path.relpath(path)))
        if raw == config:
            source = os.path.relpath(path)
        same = {key for key in raw.keys() & config.keys() if raw[key] == config[key]}
        places |= {key: place for key, place in lines.items() if key[0] in same}
    return source, places
