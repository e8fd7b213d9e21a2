"""Every reach into Snakemake's insides, and what holds where a Snakemake has others.

What the rules are written in is Snakemake's language, which is public. What is more than that
stands here and nowhere else: attributes of its Workflow, the name of its screen's handler, its
events and the beginnings of its messages, its lock files, the words of its command line. No
result hangs on any of it. Where a reach finds nothing to hold on to, it returns what leaves
Snakemake as it comes, and logs a debug line (`--verbose`).
"""

from __future__ import annotations

import _thread
import ast
import functools
import importlib
import logging
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

try:
    from snakemake import exceptions
except ImportError:
    exceptions = None
WorkflowError: Any = getattr(exceptions, "WorkflowError", Exception)
"""What Snakemake prints without a traceback."""

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("snakemake.logging")
"""Snakemake's own, whose warnings are on the screen and in its log; any other's would be, too."""
SCREEN = "DefaultStreamHandler"
"""Snakemake's name for the handler that writes to the terminal."""
LOCKS = Path(".snakemake/locks")
SCHEDULING_EVENTS = {
    "workflow_started",
    "job_info",
    "job_started",
    "job_finished",
    "run_info",
    "resources_info",
}
SCHEDULING = re.compile(
    "Assuming unrestricted shared filesystem usage|Building DAG of jobs|Complete log|Conda "
    "environments: ignored|DAG of jobs will be updated after completion|Elapsed time|Execute |"
    "Select jobs to execute|Updating checkpoint dependencies|Using shell|host: "
)
"""Beginnings of its messages about its own scheduling."""
EPILOGUES = (
    "Exiting because a job execution failed",
    "Removing output files of failed job",
    "WorkflowError:\nAt least one job did not complete",
)
"""Beginnings of its messages after failures."""
AFTER_REFUSAL = ("Terminating processes on user request", *EPILOGUES[2:])
"""Beginnings of its messages where a refusal ends it."""
OWN_PROFILE = re.compile("Using workflow specific profile .*profiles/default for setting")
"""Its message about the profile beside the workflow, which it finds by itself."""
NAMING = {"name", "name_modifier"}
"""What it calls the name of a rule in the Python that it makes of a rule file."""
ENDING = re.compile(r"returned non-zero exit status \d+|died with <Signals\.\w+: \d+>")
EDITS = ("PARAMS", "INPUT")
"""Snakemake's triggers by which a job runs again after an edit of the config."""
EXECUTORS = ("lsf", "slurm")
"""Those of our profiles, and extras of featuremill."""
LOOKING = re.compile(
    "--(report|lint|lt$|summary|detailed-summary|list|dag|rulegraph|filegraph|d3dag|unlock|archive"
    "|cleanup|delete|containerize$|print-compilation$)|-[SDl]$"
)
"""Snakemake's options that run no job of ours, or their beginnings."""
REPORTS, AFTER_RUN = "--report", "--report-a"
"""Beginnings of its options for a report: alone it runs no job, but `--report-after-run` does."""
COMPARED_BY_TIME: set[Path] = set()
"""Outputs that are out of date if an input is newer, whatever checksums Snakemake recorded."""


class Reach(Generic[P, T]):
    """A function of Snakemake's insides that gives way to `stock`, a function of the same."""

    def __init__(self, function: Callable[P, T], stock: Callable[P, T]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.stock = function, stock
        self.gave_way = False
        """Whether Snakemake's insides were not as expected."""

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> T:
        """Return what is found inside, or what holds without it."""
        try:
            return self.function(*arguments, **keywords)
        except Exception as error:
            if not self.gave_way:  # once: the screen's filter would hear of itself
                self.gave_way = True
                name = getattr(self, "__name__", "")
                log.debug(f"this Snakemake has other insides: {name}: {error!r}")
            return self.stock(*arguments, **keywords)


def or_else(stock: Any) -> Callable[[Callable[P, T]], Reach[P, T]]:
    """Make a function a Reach that returns `stock` where it cannot be carried out."""
    return lambda function: Reach(function, lambda *_, **__: stock)


def or_by(stock: Callable[..., Any]) -> Callable[[Callable[P, T]], Reach[P, T]]:
    """Make a function a Reach in whose place `stock` is called where it cannot be carried out."""
    return lambda function: Reach(function, stock)


# ---- who this Snakemake is, and what it was called for ----


@or_else(False)
def is_main(workflow: Any) -> bool:
    """Return whether the user started this process, and it is no job."""
    return bool(workflow.is_main_process)


@or_else({"all"})
def quiet_about(workflow: Any) -> set[str]:
    """Return what the screen is to be quiet about: host, reason, progress, rules, all."""
    return {kind.name.lower() for kind in workflow.output_settings.quiet or ()}


@or_else(None)
def workflow_module(workflow: Any) -> str | None:
    """Return what an importing workflow calls the module that is read now."""
    namespace: str | None = workflow.modifier.namespace
    return namespace


@or_by(lambda workflow: workflow_module(workflow) is not None)
def is_imported(workflow: Any) -> bool:
    """Return whether what is read now belongs to another workflow."""
    return not workflow.modifier.is_main_snakefile()


@or_else(True)
def is_dry(workflow: Any) -> bool:
    """Return whether nothing is going to be done."""
    return bool(workflow.output_settings.dryrun)


def only_looks() -> bool:
    """Return whether this Snakemake was called for something that never runs jobs of ours."""
    words = sys.argv[1:]
    if any(word.startswith(AFTER_RUN) for word in words):
        words = [word for word in words if not word.startswith(REPORTS)]
    return any(map(LOOKING.match, words))


def may_execute(workflow: Any) -> bool:
    """Return whether this main process is going to run jobs, or may be, as far as can be seen."""
    if is_main(workflow) and executes(workflow):
        return True
    return (is_main.gave_way or is_dry.gave_way) and not only_looks()


def executes(workflow: Any) -> bool:
    """Return whether this Snakemake is going to run jobs, and not only to look or to tidy up."""
    return not is_dry(workflow) and not only_looks()


@or_else(None)
def runs_elsewhere(workflow: Any) -> bool | None:
    """Return whether jobs leave this machine for a cluster; None where that is unknown."""
    return workflow.nodes is not None


@or_by(lambda workflow: not is_imported(workflow))
def has_no_target(workflow: Any) -> bool:
    """Return whether no rule is the default target yet."""
    return workflow.default_target is None


@or_else([])
def config_files(workflow: Any) -> list[Path]:
    """Return the files that the config was read from."""
    return [Path(path) for path in workflow.configfiles]


@or_else(None)
def default_storage(workflow: Any) -> str | None:
    """Return where all files would be moved to, if anywhere."""
    provider: str | None = workflow.storage_settings.default_storage_provider
    return provider


@or_else(True)
def has_environments(workflow: Any) -> bool:
    """Return whether jobs may see other packages and folders than this process does."""
    return bool(workflow.deployment_settings.deployment_method)


@or_else(False)
def makes_conda_environments(workflow: Any) -> bool:
    """Return whether jobs run in environments that Snakemake makes by conda (`--sdm conda`)."""
    return any(method.name == "CONDA" for method in workflow.deployment_settings.deployment_method)


@or_else([])
def locks_on(results: str) -> list[Path]:
    """Return Snakemake's lock files of the run in `results`.

    A Snakemake numbers a pair of them, for inputs and for outputs. In a workflow with other rules
    besides, only one may name files of the run.
    """
    locks = list(LOCKS.glob("*.lock"))
    naming = [path for path in locks if f"\n{results}/" in f"\n{path.read_text()}"]
    numbers = {path.name.partition(".")[0] for path in naming}
    return [path for path in locks if path.name.partition(".")[0] in numbers]


@or_else(True)
def is_made(workflow: Any, path: str) -> bool:
    """Return whether a rule makes the file `path`, once all rules are read."""
    return any(rule.is_producer(path) for rule in workflow.rules)


@or_else(True)
def sees_edits(workflow: Any) -> bool:
    """Return whether Snakemake runs a job again whose parameters or inputs are others."""
    return all(name in {trigger.name for trigger in workflow.rerun_triggers} for name in EDITS)


@or_else(None)
def see_edits(workflow: Any) -> None:
    """Have it do so, whatever `--rerun-triggers` names."""
    settings = workflow.dag_settings
    counted = {*settings.rerun_triggers}
    kind = type(next(iter(counted)))
    if missing := {kind[name] for name in EDITS} - counted:
        settings.rerun_triggers = counted | missing
        log.warning("--rerun-triggers: params and input count, too; else no edit is seen.")


@or_else(((), ()))
def narrowed_by(workflow: Any) -> tuple[Collection[str], Collection[str]]:
    """Return what `--until` and `--omit-from` name, once Snakemake has its settings."""
    return workflow.dag_settings.until, workflow.dag_settings.omit_from


@or_else(False)
def compute_until(workflow: Any, more: Collection[str]) -> bool:
    """Run the jobs of each rule that `--until` names, and of the rules `more`, if outputs are
    missing.

    Once Snakemake (9.27) has evaluated a checkpoint, it forgets the jobs after `--until`, and does
    not ask for outputs of a rule with wildcards any more. The outputs of a target are asked for.
    """
    dag = workflow.dag
    names = {*dag.untilrules, *more}
    targets = dag.targetrules | {rule for rule in workflow.rules if rule.name in names}
    dag.untilrules, dag.targetrules = names, targets  # a copy: Snakemake may be iterating over them
    return True


@or_else(())
def allowed_rules(workflow: Any) -> Collection[str]:
    """Return what `--allowed-rules` names, once Snakemake has its settings."""
    return workflow.dag_settings.allowed_rules or ()


# ---- names that another workflow gives ----


@or_by(lambda workflow, path: path)  # noqa: ARG005
def below_prefix(workflow: Any, path: str) -> str:
    """Return where Snakemake puts the `path` of a rule: below the module's prefix, if any."""
    return str(workflow.modifier.path_modifier.replace_prefix(path))


@or_by(lambda workflow, rule: rule)  # noqa: ARG005
def rule_name(workflow: Any, rule: str) -> str:
    """Return what a rule of ours is called where another workflow imports it."""
    return str(workflow.modifier.modify_rulename(rule))


@or_else(None)
def taken_rule(workflow: Any, rule: str) -> str | None:
    """Return the same; None where the importing workflow leaves the rule out."""
    name: str | None = workflow.modifier.avail_rulename(rule)
    return name


@or_else(None)
def prefer_rule(workflow: Any, first: str, other: str) -> None:
    """Have the rule `first` make what both could; `ruleorder:` takes no rules of other modules."""
    workflow._ruleorder.add(first, other)


# ---- resources ----


@or_else(0)
def cap_of(workflow: Any, resource: str) -> int | None:
    """Return how much of a resource all jobs together may take; None without a limit."""
    limit = workflow.global_resources.get(resource)
    cap: int | None = limit.value if limit is not None else None
    return cap


@or_else(None)
def set_cap(workflow: Any, resource: str, value: int) -> None:
    """Limit a resource, as `--resources` does."""
    workflow.register_resource(resource, value)


@or_else({})
def rule_resources(workflow: Any, rule: str) -> Mapping[str, str]:
    """Return `default-resources`, and `set-resources` of a rule, as text."""
    settings = workflow.resource_settings
    of_rule = settings._parsed_overwrite_resources.get(rule_name(workflow, rule)) or {}
    every = (settings._parsed_default_resources, of_rule)
    return {name: str(each[name].raw).strip("'\"") for each in every for name in each}


@or_else(None)
def cores_here(workflow: Any) -> int | None:
    """Return the cores that jobs on this machine have; None where they run on others."""
    if workflow.nodes is not None or workflow.remote_exec:
        return None
    cores: int | None = workflow.resource_settings.cores  # `workflow.cores` raises without any
    return cores


# ---- the screen ----


@or_else(True)
def shows_all(workflow: Any) -> bool:
    """Return whether the user asked for Snakemake's messages about its jobs."""
    settings = workflow.output_settings
    return bool(settings.dryrun or settings.printshellcmds or settings.verbose)


@or_else(False)
def writes_screen() -> bool:
    """Return whether Snakemake's own handler writes to the terminal, and no plugin's."""
    return any(handler.name == SCREEN for handler in log.handlers)


@or_else(None)
def filter_screen(matters: Callable[[logging.LogRecord], bool]) -> None:
    """Keep records off the screen that don't matter; those that cannot be judged do."""

    def shows(record: logging.LogRecord) -> bool:
        try:
            return matters(record)
        except Exception:
            return True

    for handler in log.handlers:
        if handler.name == SCREEN:
            handler.addFilter(shows)


def keep_own_profile_quiet() -> None:
    """Have Snakemake not print that it uses the default profile, unless the user names one."""
    if any(word.startswith("--workflow-profile") for word in sys.argv):
        return
    cli = importlib.import_module("snakemake.cli")

    def say(*words: object, **how: Any) -> None:
        if not OWN_PROFILE.match(" ".join(map(str, words))):
            print(*words, **how)

    vars(cli)["print"] = say


def progress_of(record: logging.LogRecord) -> tuple[int, int] | None:
    """Return how many steps are done, and of how many, if the record is about that."""
    if getattr(record, "event", None) != "progress":
        return None
    return record.__dict__["done"], record.__dict__["total"]


@or_else(False)
def knows_total(workflow: Any) -> bool:
    """Return whether the number of steps is final: a plan that is to come adds some."""
    return not workflow.dag.checkpoint_jobs


def is_about_scheduling(record: logging.LogRecord) -> bool:
    """Return whether the record is about Snakemake's own scheduling."""
    event = str(getattr(record, "event", None) or "")
    is_so = event in SCHEDULING_EVENTS or SCHEDULING.match(record.getMessage())
    return bool(is_so) and record.levelno <= logging.INFO


def is_epilogue(record: logging.LogRecord) -> bool:
    """Return whether the record repeats that jobs failed."""
    return record.getMessage().startswith(EPILOGUES)


def is_after_refusal(record: logging.LogRecord) -> bool:
    """Return whether the record is only about the end of this Snakemake."""
    return record.getMessage().startswith(AFTER_REFUSAL)


def exception_of(record: logging.LogRecord) -> str:
    """Return the name of the exception that the record is about; empty for none."""
    return str(getattr(record, "exception", None) or "")


def ending_of(record: logging.LogRecord) -> str:
    """Return how a command of ours ended, if the record has it."""
    is_error, text = getattr(record, "event", None) == "error", record.getMessage()
    endings = ENDING.findall(text) if is_error and " featuremill " in text else []
    return endings[-1] if endings else ""


class JobError(NamedTuple):
    """What Snakemake reports of a job that failed."""

    rule: str
    log: Path | None
    outputs: tuple[Path, ...]
    ending: str = ""
    """How its command ended, which another record has."""
    reason: str = ""
    """What a cluster's executor adds."""
    command: str = ""


@or_else(None)
def job_error(record: logging.LogRecord) -> JobError | None:
    """Return the failed job that the record is about."""
    if getattr(record, "event", None) != "job_error":
        return None
    about = record.__dict__
    return JobError(
        about["rule_name"],
        Path(about["log"][0]) if about["log"] else None,
        tuple(map(Path, about["output"])),
        reason=" ".join(str(about.get("rule_msg") or "").split()),
        command=str(about["shellcmd"] or ""),
    )


# ---- executors and signals ----


@or_else(None)
def replace_executor(name: str, made_of: Callable[[type[Any]], type[Any]]) -> None:
    """Have jobs submitted by what `made_of` makes of the executor of this name."""
    plugin = _interface("registry").ExecutorPluginRegistry().get_plugin(name)
    plugin.executor = made_of(plugin.executor)


def executor(name: str) -> str:
    """Return the `name` of an executor that our profiles use, or end with what to install: a
    profile is read before anything of ours, and Snakemake would list those that it has."""
    if find_spec(f"snakemake_executor_plugin_{name}") is None:
        print(f"error: {not_installed(name)}", file=sys.stderr)
        raise SystemExit(2)
    return name


def not_installed(name: str) -> str:
    """Return the sentence on an executor whose plugin is missing."""
    return (
        f"executor {name}: its plugin is not installed in the environment of {sys.executable}; "
        f"type: {shlex.quote(sys.executable)} -m pip install 'featuremill[{name}]'"
    )


@or_else(False)
def is_ending(workflow: Any) -> bool:
    """Return whether Snakemake submits no more jobs, as after SIGTERM."""
    return workflow.scheduler._user_kill is not None


def submitted(job: Any) -> Any:
    """Return what an executor reports of a job that it could not submit."""
    return _interface("executors.base").SubmittedJobInfo(job)


def _interface(module: str) -> Any:
    """Import what comes with Snakemake for executors, which is public."""
    return importlib.import_module(f"snakemake_interface_executor_plugins.{module}")


@or_else(None)
def answer_sigterm() -> None:
    """Let Snakemake end on SIGTERM at any moment.

    Its handler takes locks that the thread which it interrupts may hold; then it waits for itself
    for good (9.27). From a thread of its own it waits for the other. `start_new_thread` takes none.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    answer = JobScheduler.exit_gracefully

    def answer_on_a_thread(scheduler: Any, *arguments: Any) -> None:
        _thread.start_new_thread(answer, (scheduler, *arguments))

    if answer.__name__ != answer_on_a_thread.__name__:  # as it is for the second of two runs
        JobScheduler.exit_gracefully = answer_on_a_thread


@or_else(False)
def guard_outputs(
    workflow: Any,
    is_guarded: Callable[[str, str], bool],
    vacate: Callable[[Path], None],
    touching: Callable[[Path], AbstractContextManager[None]],
) -> bool:
    """Have declared outputs that are guarded, by the file of their rule and their own path, removed
    by `vacate`: Snakemake removes what is there before a job and after a failed one. After a job it
    sets their times: within `touching`.
    """
    from snakemake.io import _IOFile

    remove, touch, only_touches = _IOFile.remove, _IOFile.touch, type(workflow).touch

    def guarded(file: Any) -> bool:
        rule = file.rule
        return rule is not None and not file.is_storage and is_guarded(rule.snakefile, str(file))

    async def remove_guarded(file: Any, *arguments: Any, **keywords: Any) -> None:
        if guarded(file):
            vacate(Path(file))
        await remove(file, *arguments, **keywords)

    def touch_guarded(file: Any, *arguments: Any, **keywords: Any) -> None:
        makes = guarded(file) and not only_touches.__get__(file.rule.workflow)
        with touching(Path(file)) if makes else nullcontext():
            touch(file, *arguments, **keywords)

    _IOFile.remove, _IOFile.touch = remove_guarded, touch_guarded
    return True


@or_else(False)
def compare_times_of(outputs: Collection[Path]) -> bool:
    """Rerun the jobs that write `outputs` if an input is newer, whatever its checksum.

    Snakemake does not rerun a job whose inputs have the recorded checksums, however old its outputs
    are.
    """
    from snakemake.persistence import PersistenceBase

    COMPARED_BY_TIME.update(path.absolute() for path in outputs)
    recorded = PersistenceBase.input_checksums

    def checksums_unless_compared(self: Any, job: Any, path: Any) -> set[Any]:
        is_compared = any(Path(output).absolute() in COMPARED_BY_TIME for output in job.output)
        return set() if is_compared else recorded(self, job, path)

    if recorded.__name__ != checksums_unless_compared.__name__:  # the function of an earlier call
        PersistenceBase.input_checksums = checksums_unless_compared
    return True


@or_else(frozenset[str]())
def names_in(rules: Path) -> frozenset[str]:
    """Return the names that a file of rules binds for all that are included after it: of rules,
    variables, functions and imports."""
    from snakemake.parser import parse
    from snakemake.sourcecache import LocalSourceFile

    with rules.open(encoding="utf-8") as file:
        opens = SimpleNamespace(sourcecache=SimpleNamespace(open=lambda _: file))
        code, _ = parse(LocalSourceFile(str(rules)), opens, {})
    return frozenset(_bound(ast.parse(code)))


def _bound(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            marks = [mark for mark in child.decorator_list if isinstance(mark, ast.Call)]
            words = [word for mark in marks for word in mark.keywords if word.arg in NAMING]
            constants = [word.value.value for word in words if isinstance(word.value, ast.Constant)]
            yield from (name for name in constants if isinstance(name, str))
            if not words:
                yield child.name
        elif isinstance(child, ast.Import | ast.ImportFrom):
            for alias in child.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif not isinstance(child, ast.Lambda | ast.comprehension):
            yield from _bound(child)


REACHES: dict[str, Reach[..., Any]] = {
    name: reach for name, reach in list(globals().items()) if isinstance(reach, Reach)
}
"""All of them by name; the tests take each away in turn."""
