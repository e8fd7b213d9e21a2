"""The command line: a subcommand for each verb, an exit status for each kind of failure."""

from __future__ import annotations

import signal
import sys

IS_PROGRAM = sys.argv[0] == "-m" or sys.argv[0].endswith(("/featuremill", "/__main__.py"))
if IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during an import would print a traceback. Until `main` handles it, it ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import contextlib
import difflib
import logging
import os
import platform
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from featuremill import __version__
from featuremill.base import environment, late_pandas, log, this_process
from featuremill.base.errors import DeviceError, IntegrityError, UserError, WorkloadError
from featuremill.base.text import wrapped

if TYPE_CHECKING:
    from featuremill.step import Command

START = """Vectors of your proteins, from a language model, on every GPU you have. Start with:

  featuremill init my.fasta     writes my.yaml
  featuremill run my.yaml       computes results/my; the same command resumes
  featuremill status            how far the runs here are; with a run: what failed, what to type
"""
COMPUTING = {
    "init": "write a commented config for your own input",
    "run": "compute what a config asks for: snakemake with this workflow, from any folder",
    "status": "show what is done, what runs where, what failed and why, and what to type next",
    "top": "show a run while it computes: progress, speed, time left, devices",
    "retry": "compute failed records again",
    "export": "write results in other formats, without computing again",
}
MACHINES = {
    "estimate": "predict how long a run takes on so many devices, and what it needs",
    "doctor": "check whether this machine is ready, and show how to run here",
    "lease": "run a command on GPUs that no other lease uses",
    "clean": "list what of a run can be removed, and remove it",
    "store": "show what a store of several runs holds, add a run to it, remove from it",
}
OF_THE_WORKFLOW = {
    "weights": "convert a checkpoint once into a memory-mapped file",
    "plan": "read the records and cut them into shards",
    "extract": "compute one shard",
    "deliver": "write the rows of some shards of a large run, beside other jobs",
    "merge": "join the parts into results and account for every record",
    "report": "draw a run as one HTML page",
    "config-docs": "write config/README.md, the schema of a config and docs/environment.md",
}
VERBS = COMPUTING | MACHINES | OF_THE_WORKFLOW
MODULES = {
    "init": "plan.init",
    "estimate": "plan.estimate.command",
    "run": "flow.command",
    "weights": "workload.weights",
    "export": "merge.export",
    "store": "merge.store_command",
    "top": "status.top",
    "deliver": "merge.deliver",
    "retry": "plan.retry",
    "clean": "merge.clean",
    "config-docs": "config.docs",
}
"""Modules of the verbs without a package; any other verb is in `command.py` of its package."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit status (0 well, 2 user error, 3 device, 4 integrity)."""
    if IS_PROGRAM:
        this_process.set_up_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if not word.startswith("-")), None)
    try:
        of_plugins = {} if verb in VERBS else _of_plugins()  # or none is typed, and all are listed
    except UserError as error:  # what is installed is older than this
        print(f"featuremill: {error}", file=sys.stderr)
        return UserError.exit_status
    command, of_plugin = None, of_plugins.get(verb or "")
    if verb == "lease" and "--" in words:  # what follows is not ours to read
        words, command = words[: words.index("--")], words[words.index("--") + 1 :]
    elif of_plugin:
        words = of_plugin.words(words)
    if problem := _without_verb(words, of_plugins):
        print(f"featuremill: {problem}", file=sys.stderr)
        return UserError.exit_status
    if starter := environment.DIE_WITH_PARENT.text():
        this_process.die_with_starter(starter, signal.SIGTERM)
    parser = _parser(verb, of_plugins)  # imports, which may swallow what a handler raises
    _answer_interrupts(_leave)
    if IS_PROGRAM:
        late_pandas.set_up()
    try:
        parsed, others = parser.parse_known_args(words, argparse.Namespace(command=command))
        if others:
            parser.error(f"{verb} takes no {shlex.join(others)}; see featuremill {verb} --help.")
        status = _run(parsed, words, of_plugin)
    except _Interrupted as end:
        if IS_PROGRAM:
            _end_at_once(end.code)
        raise
    except SystemExit as end:  # words that mean nothing
        if end.code == UserError.exit_status and of_plugin and of_plugin.error_status:
            raise SystemExit(of_plugin.error_status) from None
        raise
    else:
        return status
    finally:
        # During its shutdown, Python would print an exception of a handler as an ignored error.
        _answer_interrupts(signal.SIG_DFL)


def _of_plugins() -> Mapping[str, Command]:
    from featuremill.step.finding import commands

    return {verb: command for verb, command in commands().items() if verb not in VERBS}


def _without_verb(words: Sequence[str], of_plugins: Mapping[str, Command]) -> str:
    """Return an error for a command line without a verb, or with an unknown one; "" otherwise."""
    if not words:
        return "say what to do: featuremill --help lists the commands."
    word = words[0]
    known = [*VERBS, *of_plugins]
    if word.startswith("-") or word in known:
        return ""
    near = difflib.get_close_matches(word, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no command {word!r}; {hint}featuremill --help lists them."


def _run(parsed: argparse.Namespace, words: list[str], of_plugin: Command | None) -> int:
    """Run the verb of the `parsed` command line `words`; return its exit status."""
    verb_log = logging.getLogger(f"featuremill.{parsed.verb}")
    try:
        log.set_up(_level(parsed), parsed.log_file, _about(parsed))
        verb_log.debug(
            "%sfeaturemill %s (version %s, on %s)",
            log.BEGIN,
            shlex.join(words),
            __version__,
            platform.node(),
        )
        _name_folder(parsed)
        status = parsed.run(parsed)
        sys.stdout.flush()  # so that a full disk is an error here, and not in Python's shutdown
    except (UserError, DeviceError, IntegrityError, WorkloadError) as error:
        verb_log.error("%s", error)
        return (of_plugin and of_plugin.error_status) or error.exit_status
    except OSError as error:
        verb_log.error("%s", _sentence(error, getattr(parsed, "run_folder", None)))
        verb_log.debug("the traceback", exc_info=True)
        return 1
    except Exception as error:
        verb_log.error("%s: %s; please report this.", type(error).__name__, error, exc_info=True)
        return 1
    return int(status or 0)


def _name_folder(parsed: argparse.Namespace) -> None:
    """Replace a typed config, or the folder of a project, by the folder of its only run, unless the
    command takes configs."""
    if getattr(parsed, "takes_configs", False):
        return

    def folder_of(path: Path) -> Path:
        if path.suffix not in (".yaml", ".yml"):
            from featuremill.store.results import runs_below

            if (path / "store").exists() or not runs_below(path):
                return path
        from featuremill.config import project

        return project.only_folder(path)

    if hasattr(parsed, "run_folder"):
        parsed.run_folder = folder_of(parsed.run_folder)
    if hasattr(parsed, "runs"):
        parsed.runs = [folder_of(path) for path in parsed.runs]


def _about(parsed: argparse.Namespace) -> str:
    """Return the name of the set of features of a job; "" for that of a single run."""
    if parsed.verb not in ("plan", "extract", "merge"):
        return ""
    from featuremill.store import run_lock

    return run_lock.name_of(parsed.run_folder).partition("/")[2]


def _answer_interrupts(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> None:
    for number in this_process.INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, handler)


class _Interrupted(SystemExit):
    """A signal ends this process."""

    code: int


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit, and run every `finally`. Later signals must not interrupt these: if a parent with
    threads is killed, the kernel sends a signal for each thread."""
    _answer_interrupts(lambda *_: None)
    raise _Interrupted(128 + number)


def _end_at_once(status: int) -> NoReturn:
    """Exit without Python's shutdown, which waits for threads that still compute, and may wait for
    ever for a lock of h5py that one of them holds."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def _sentence(error: OSError, folder: Path | None) -> str:
    """Return the message for an error of the operating system, such as a full disk."""
    where = f"{path}: " if (path := error.filename or folder) else ""
    what = os.strerror(error.errno) if error.errno else str(error)
    return f"{where}{what}; nothing is lost: fix that and run the same command again."


def _add_talk(parser: argparse.ArgumentParser, is_act: bool = False) -> None:
    """Add the options of every verb: the log level and the log file. The parser of one of several
    acts of a verb (`is_act`) keeps the options that were typed before the act."""
    default: dict[str, Any] = {"default": argparse.SUPPRESS} if is_act else {}
    loudness = parser.add_mutually_exclusive_group()
    add, add_one = (partial(group.add_argument, **default) for group in (parser, loudness))
    add_one("-q", "--quiet", action="store_true", help="only warnings and errors")
    add_one("-v", "--verbose", action="store_true", help="details too, and what libraries print")
    add("--log-file", type=Path, help="also write everything, dated, to the end of this file")


def _level(parsed: argparse.Namespace) -> int:
    """Return the log level of the screen; the command line beats the environment."""
    if parsed.verbose:
        return logging.DEBUG
    is_quiet = parsed.quiet or environment.QUIET.value()
    return logging.WARNING if is_quiet else logging.INFO


def _parser(chosen: str | None, of_plugins: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Build the parser; only the chosen verb's module is imported."""
    of_others = {verb: command.summary for verb, command in of_plugins.items()}
    parser = argparse.ArgumentParser(
        prog="featuremill",
        description=START + _listing(of_others),
        epilog=f"Pages (docs/…) are in {Path(this_process.SNAKEFILE).parent}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="featuremill [-h] [--version] COMMAND …",
    )
    parser.add_argument("--version", action="version", version=f"featuremill {__version__}")
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="COMMAND", prog=parser.prog, help=argparse.SUPPRESS
    )
    for verb, summary in (VERBS | of_others).items():
        sub = verbs.add_parser(verb, description=summary[0].upper() + summary[1:])
        _add_talk(sub)
        if verb == chosen:
            module_name = f"featuremill.{MODULES.get(verb, f'{verb}.command')}"
            module = import_module(of_plugins[verb].module if verb in of_plugins else module_name)
            for act in module.add_arguments(sub) or ():  # what a verb does that does several things
                _add_talk(act, is_act=True)
            sub.set_defaults(run=module.run)
    return parser


def _listing(of_plugins: Mapping[str, str]) -> str:
    """Return the commands in groups, each with its summary."""
    groups = {
        "Compute": COMPUTING,
        "Work with records and features": dict(sorted(of_plugins.items())),
        "Machines and disks": MACHINES,
        "What the workflow's rules type": OF_THE_WORKFLOW,
    }
    width = max(40, shutil.get_terminal_size().columns - 2)
    lines = []
    for title, verbs in groups.items():
        lines += ["", f"{title}:"]
        for verb, summary in verbs.items():
            lines += wrapped(summary, f"  {verb:<15} ", " " * 18, width=width)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
