"""All uses of Snakemake's internals, each with a default for versions that have other internals.

The rules use Snakemake's public language. Everything else is here: attributes of its Workflow, the
name of its screen handler, its events and messages, its lock files and its command line. No result
depends on any of it. If a function fails, it returns a default that leaves Snakemake as it is, and
logs a debug line (`--verbose`).
"""

from __future__ import annotations

import _thread
import ast
import errno
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

from featuremill.store import command_line

try:
    from snakemake import exceptions
except ImportError:
    exceptions = None
WorkflowError: Any = getattr(exceptions, "WorkflowError", Exception)
"""The error that Snakemake prints without a traceback."""

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("snakemake.logging")
"""Snakemake's logger, whose warnings are on the screen and in its log file."""
SCREEN = "DefaultStreamHandler"
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
"""Beginnings of messages about scheduling; those below are of messages after failures."""
EPILOGUES = (
    "Exiting because a job execution failed",
    "Removing output files of failed job",
    "WorkflowError:\nAt least one job did not complete",
)
AFTER_REFUSAL = ("Terminating processes on user request", *EPILOGUES[2:])
FULL = (errno.ENOSPC, errno.EDQUOT)
OWN_PROFILE = re.compile("Using workflow specific profile .*profiles/default for setting")
"""The message about the profile beside the workflow, which is used by default."""
NAMING = {"name", "name_modifier"}
"""Keywords for the name of a rule in the Python code of a compiled rule file."""
ENDING = re.compile(r"returned non-zero exit status \d+|died with <Signals\.\w+: \d+>")
EDITS = ("PARAMS", "INPUT")
"""The triggers that rerun a job after an edit of the config."""
EXECUTORS = ("lsf", "slurm")
"""The executors of our profiles, which are also extras of featuremill."""
LOOKING = re.compile(
    "--(report|lint|lt$|summary|detailed-summary|list|dag|rulegraph|filegraph|d3dag|unlock|archive"
    "|cleanup|delete|generate|containerize$|print-compilation$)|-[SDl]$"
)
"""Options (or beginnings of options) with which Snakemake runs no job of featuremill."""
REPORTS, AFTER_RUN = "--report", "--report-a"
"""Beginnings of options for a report; only `--report-after-run` runs jobs."""
COMPARED_BY_TIME: set[Path] = set()
"""Outputs that are out of date if an input is newer, whatever checksums Snakemake recorded."""


class InternalCall(Generic[P, T]):
    """A function that uses Snakemake's internals, and the fallback that replaces it if it fails."""

    def __init__(self, function: Callable[P, T], fallback: Callable[P, T]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.fallback = function, fallback
        self.has_failed = False

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> T:
        """Return the result of the function, or of `fallback` if it fails."""
        try:
            return self.function(*arguments, **keywords)
        except Exception as error:
            if not self.has_failed:  # once: this line passes the filter of the screen
                self.has_failed = True
                name = getattr(self, "__name__", "")
                log.debug(f"this Snakemake has other insides: {name}: {error!r}")
            return self.fallback(*arguments, **keywords)


def or_return(fallback: Any) -> Callable[[Callable[P, T]], InternalCall[P, T]]:
    """Make a function an InternalCall that returns `fallback` if it fails."""
    return lambda function: InternalCall(function, lambda *_, **__: fallback)


def or_call(fallback: Callable[..., Any]) -> Callable[[Callable[P, T]], InternalCall[P, T]]:
    """Make a function an InternalCall that calls `fallback` if it fails."""
    return lambda function: InternalCall(function, fallback)


# ---- the process and its command line ----


@or_return(False)
def is_main(workflow: Any) -> bool:
    """Return whether this is the main process, and not a job."""
    return bool(workflow.is_main_process)


@or_return({"all"})
def quiet_about(workflow: Any) -> set[str]:
    """Return the values of `--quiet`: host, reason, progress, rules, all."""
    return {kind.name.lower() for kind in workflow.output_settings.quiet or ()}


@or_return(None)
def workflow_module(workflow: Any) -> str | None:
    """Return the name of the module that is read now in the workflow that imports it."""
    namespace: str | None = workflow.modifier.namespace
    return namespace


@or_call(lambda workflow: workflow_module(workflow) is not None)
def is_imported(workflow: Any) -> bool:
    """Return whether another workflow imports the rules that are read now."""
    return not workflow.modifier.is_main_snakefile()


@or_return(True)
def is_dry(workflow: Any) -> bool:
    """Return whether this is a dry run (`-n`, `--executor dryrun`)."""
    is_typed = command_line.DRY_EXECUTOR.search(" ".join(sys.argv[1:]))
    return bool(is_typed or workflow.output_settings.dryrun)


def only_looks() -> bool:
    """Return whether an option is typed with which no job runs, such as `--summary`."""
    words = sys.argv[1:]
    if any(word.startswith(AFTER_RUN) for word in words):
        words = [word for word in words if not word.startswith(REPORTS)]
    return any(map(LOOKING.match, words))


@or_return(False)
def only_touches(workflow: Any) -> bool:
    """Return whether Snakemake only sets the times of outputs. Before its first job, this is seen
    only if the command line has `--touch`, `-t` or `--executor touch`."""
    return bool(command_line.TOUCHING.search(" ".join(sys.argv[1:])) or workflow.touch)


def may_execute(workflow: Any) -> bool:
    """Return whether this process `executes`, or may do so if Snakemake has other internals."""
    if executes(workflow):
        return True
    return (is_main.has_failed or is_dry.has_failed) and not only_looks()


def executes(workflow: Any) -> bool:
    """Return whether this is the main process and it runs jobs, and no dry run or `only_looks`."""
    return is_main(workflow) and not is_dry(workflow) and not only_looks()


@or_return(None)
def runs_elsewhere(workflow: Any) -> bool | None:
    """Return whether jobs run on a cluster; None if unknown."""
    return workflow.nodes is not None


@or_call(lambda workflow: not is_imported(workflow))
def has_no_target(workflow: Any) -> bool:
    """Return whether there is no default target yet."""
    return workflow.default_target is None


@or_return([])
def config_files(workflow: Any) -> list[Path]:
    return [Path(path) for path in workflow.configfiles]


@or_return(None)
def default_storage(workflow: Any) -> str | None:
    provider: str | None = workflow.storage_settings.default_storage_provider
    return provider


@or_return(True)
def has_environments(workflow: Any) -> bool:
    """Return whether jobs have environments or containers, with other packages and folders."""
    return bool(workflow.deployment_settings.deployment_method)


@or_return(False)
def makes_conda_environments(workflow: Any) -> bool:
    """Return whether jobs run in conda environments (`--sdm conda`)."""
    return any(method.name == "CONDA" for method in workflow.deployment_settings.deployment_method)


@or_return([])
def locks_on(results: str) -> list[Path]:
    """Return Snakemake's lock files of the run in `results`.

    A process has two numbered files, for inputs and for outputs. In a workflow with other rules,
    only one of them may name files of the run.
    """
    locks = list(LOCKS.glob("*.lock"))
    naming = [path for path in locks if f"\n{results}/" in f"\n{path.read_text()}"]
    numbers = {path.name.partition(".")[0] for path in naming}
    return [path for path in locks if path.name.partition(".")[0] in numbers]


@or_return(True)
def is_made(workflow: Any, path: str) -> bool:
    """Return whether a rule makes the file `path`. Call it once all rules are read."""
    return any(rule.is_producer(path) for rule in workflow.rules)


@or_return(True)
def sees_edits(workflow: Any) -> bool:
    """Return whether changed parameters and inputs rerun a job."""
    return all(name in {trigger.name for trigger in workflow.rerun_triggers} for name in EDITS)


@or_return(None)
def see_edits(workflow: Any) -> None:
    """Let changed parameters and inputs rerun a job, whatever `--rerun-triggers` names."""
    settings = workflow.dag_settings
    counted = {*settings.rerun_triggers}
    kind = type(next(iter(counted)))
    if missing := {kind[name] for name in EDITS} - counted:
        settings.rerun_triggers = counted | missing
        log.warning("--rerun-triggers: params and input count, too; else no edit is seen.")


@or_return(((), (), ()))
def selected_rules(workflow: Any) -> tuple[Collection[str], ...]:
    """Return the values of `--until`, `--omit-from` and `--allowed-rules`, once Snakemake has its
    settings."""
    settings = workflow.dag_settings
    return settings.until, settings.omit_from, settings.allowed_rules or ()


@or_return(False)
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


# ---- names in a workflow that imports this one ----


@or_call(lambda workflow, path: path)  # noqa: ARG005
def below_prefix(workflow: Any, path: str) -> str:
    """Return the `path` of a rule with the prefix of the module, if any."""
    return str(workflow.modifier.path_modifier.replace_prefix(path))


@or_call(lambda workflow, rule: rule)  # noqa: ARG005
def rule_name(workflow: Any, rule: str) -> str:
    """Return the name of one of our rules in the workflow that imports it."""
    return str(workflow.modifier.modify_rulename(rule))


@or_return(None)
def taken_rule(workflow: Any, rule: str) -> str | None:
    """Return `rule_name`; None if the workflow that imports this one leaves the rule out."""
    name: str | None = workflow.modifier.avail_rulename(rule)
    return name


@or_return(None)
def prefer_rule(workflow: Any, first: str, other: str) -> None:
    """Prefer the rule `first` to the rule `other`; `ruleorder:` takes no rules of other modules."""
    workflow._ruleorder.add(first, other)


# ---- resources ----


@or_return(0)
def cap_of(workflow: Any, resource: str) -> int | None:
    """Return the limit of a resource for all jobs together; None without a limit."""
    limit = workflow.global_resources.get(resource)
    cap: int | None = limit.value if limit is not None else None
    return cap


@or_return(None)
def set_cap(workflow: Any, resource: str, value: int) -> None:
    """Limit a resource for all jobs together, as `--resources` does."""
    workflow.register_resource(resource, value)


@or_return({})
def rule_resources(workflow: Any, rule: str) -> Mapping[str, str]:
    """Return `default-resources`, and `set-resources` of a rule, as text."""
    settings = workflow.resource_settings
    of_rule = settings._parsed_overwrite_resources.get(rule_name(workflow, rule)) or {}
    every = (settings._parsed_default_resources, of_rule)
    return {name: str(each[name].raw).strip("'\"") for each in every for name in each}


@or_return(None)
def cores_here(workflow: Any) -> int | None:
    """Return the cores for jobs on this machine; None if they run on others."""
    if workflow.nodes is not None or workflow.remote_exec:
        return None
    cores: int | None = workflow.resource_settings.cores  # `workflow.cores` raises without any
    return cores


# ---- the screen ----


@or_return(True)
def shows_all(workflow: Any) -> bool:
    """Return whether the command line asks for Snakemake's messages about jobs."""
    settings = workflow.output_settings
    return bool(settings.dryrun or settings.printshellcmds or settings.verbose)


@or_return(False)
def writes_screen() -> bool:
    """Return whether Snakemake's own handler, and no logger plugin, writes to the terminal."""
    return any(handler.name == SCREEN for handler in log.handlers)


@or_return(None)
def filter_screen(matters: Callable[[logging.LogRecord], bool]) -> None:
    """Hide records that do not matter from the screen. A record for which `matters` fails is
    shown."""

    def shows(record: logging.LogRecord) -> bool:
        try:
            return matters(record)
        except Exception:
            return True

    for handler in log.handlers:
        if handler.name == SCREEN:
            handler.addFilter(shows)


def keep_own_profile_quiet() -> None:
    """Hide the message about the default profile, unless the command line names one."""
    if any(word.startswith("--workflow-profile") for word in sys.argv):
        return
    cli = importlib.import_module("snakemake.cli")

    def say(*words: object, **how: Any) -> None:
        if not OWN_PROFILE.match(" ".join(map(str, words))):
            print(*words, **how)

    vars(cli)["print"] = say


def sentence_of(error: OSError) -> str:
    """Return the message of an error of the file system; without its file, of this folder."""
    return f"{error.filename or Path.cwd()}: {error.strerror}; fix that first."


def report_full_disks() -> None:
    """Print one sentence about a full disk, where Snakemake and logging print tracebacks."""
    api = importlib.import_module("snakemake.api")
    printed, handled = getattr(api, "print_exception", None), logging.Handler.handleError

    def print_exception(error: BaseException, *more: Any) -> None:
        if isinstance(error, OSError) and error.errno in FULL:
            print(f"error: {sentence_of(error)}", file=sys.stderr)
        elif printed:
            printed(error, *more)

    def handle(handler: logging.Handler, record: logging.LogRecord) -> None:
        if getattr(sys.exc_info()[1], "errno", None) not in FULL:
            handled(handler, record)

    vars(api)["print_exception"] = print_exception
    setattr(logging.Handler, "handleError", handle)  # noqa: B010  (mypy takes it for another)


def progress_of(record: logging.LogRecord) -> tuple[int, int] | None:
    """Return the number of finished steps and of all steps, from a record of the progress."""
    if getattr(record, "event", None) != "progress":
        return None
    return record.__dict__["done"], record.__dict__["total"]


@or_return(False)
def knows_total(workflow: Any) -> bool:
    """Return whether the number of steps is final: each checkpoint adds some."""
    return not workflow.dag.checkpoint_jobs


def is_about_scheduling(record: logging.LogRecord) -> bool:
    event = str(getattr(record, "event", None) or "")
    is_scheduling = event in SCHEDULING_EVENTS or SCHEDULING.match(record.getMessage())
    return bool(is_scheduling) and record.levelno <= logging.INFO


def exception_of(record: logging.LogRecord) -> str:
    """Return the name of the exception of the record; "" without one."""
    return str(getattr(record, "exception", None) or "")


def ending_of(record: logging.LogRecord) -> str:
    """Return the exit status or signal of a featuremill command in the record; "" without one."""
    is_error, text = getattr(record, "event", None) == "error", record.getMessage()
    endings = ENDING.findall(text) if is_error and " featuremill " in text else []
    return endings[-1] if endings else ""


class JobError(NamedTuple):
    rule: str
    log: Path | None
    outputs: tuple[Path, ...]
    ending: str = ""
    """The exit status or signal of its command, from another record."""
    reason: str = ""
    """The message of the executor of a cluster."""
    command: str = ""


@or_return(None)
def job_error(record: logging.LogRecord) -> JobError | None:
    if getattr(record, "event", None) != "job_error":
        return None
    facts = record.__dict__
    return JobError(
        facts["rule_name"],
        Path(facts["log"][0]) if facts["log"] else None,
        tuple(map(Path, facts["output"])),
        reason=" ".join(str(facts.get("rule_msg") or "").split()),
        command=str(facts["shellcmd"] or ""),
    )


# ---- executors and signals ----


@or_return(None)
def replace_executor(name: str, subclass_of: Callable[[type[Any]], type[Any]]) -> None:
    """Replace the executor of this name by the subclass that `subclass_of` returns."""
    plugin = _interface("registry").ExecutorPluginRegistry().get_plugin(name)
    plugin.executor = subclass_of(plugin.executor)


def executor(name: str) -> str:
    """Return the `name` of an executor of our profiles, or exit with what to install. A profile is
    read before the rules, and Snakemake would only list the installed executors."""
    if find_spec(f"snakemake_executor_plugin_{name}") is None:
        print(f"error: {not_installed(name)}", file=sys.stderr)
        raise SystemExit(2)
    return name


def not_installed(name: str) -> str:
    """Return the message about an executor whose plugin is missing."""
    return (
        f"executor {name}: its plugin is not installed in the environment of {sys.executable}; "
        f"type: {shlex.quote(sys.executable)} -m pip install 'featuremill[{name}]'"
    )


@or_return(False)
def is_ending(workflow: Any) -> bool:
    """Return whether no more jobs are submitted, as after SIGTERM."""
    return workflow.scheduler._user_kill is not None


def submitted(job: Any) -> Any:
    """Return the report of a job that could not be submitted."""
    return _interface("executors.base").SubmittedJobInfo(job)


def _interface(module: str) -> Any:
    return importlib.import_module(f"snakemake_interface_executor_plugins.{module}")


@or_return(None)
def answer_sigterm() -> None:
    """Let Snakemake end on SIGTERM at any moment.

    Its handler takes locks that the interrupted thread may hold, which is a deadlock (9.27). It is
    called on another thread here. `start_new_thread` takes no lock.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    answer = JobScheduler.exit_gracefully

    def answer_on_a_thread(scheduler: Any, *arguments: Any) -> None:
        _thread.start_new_thread(answer, (scheduler, *arguments))

    if answer.__name__ != answer_on_a_thread.__name__:  # as it is for the second of two runs
        JobScheduler.exit_gracefully = answer_on_a_thread


@or_return(False)
def guard_outputs(
    workflow: Any,
    is_guarded: Callable[[str, str], bool],
    vacate: Callable[[Path], None],
    touching: Callable[[Path], AbstractContextManager[None]],
) -> bool:
    """Remove guarded outputs by `vacate` in place of Snakemake, which deletes outputs before a job
    and after a failed one. Snakemake sets their times after a job; that is done within `touching`.

    `is_guarded` takes the rule file and the path of an output.
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


@or_return(False)
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


@or_return(frozenset[str]())
def names_in(rules: Path) -> frozenset[str]:
    """Return the names of rules, variables, functions and imports that a rule file defines for the
    files that are included after it."""
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


INTERNAL_CALLS: dict[str, InternalCall[..., Any]] = {
    name: call for name, call in list(globals().items()) if isinstance(call, InternalCall)
}
"""All of them by name; the tests remove each in turn."""
