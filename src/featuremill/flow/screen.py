"""The screen of a run: a filter of Snakemake's messages, and the messages that replace some.

Messages about scheduling are hidden; Snakemake's count of steps, warnings and errors stay. Its
report of a failed job (twenty lines) becomes one line, and `summary.py` prints the last words.
`status/beneath.py` shows the progress. Nothing is hidden from the log file in .snakemake/log, in a
dry run, with --printshellcmds or --verbose, or if another workflow imports this one.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from featuremill.base import environment
from featuremill.base.errors import DeviceError, IntegrityError, UserError
from featuremill.base.log import last_error
from featuremill.base.text import plain
from featuremill.base.words import counted
from featuremill.config.project import Runs
from featuremill.flow import internals
from featuremill.status import beneath
from featuremill.store import command_line, run_lock

STOPPED = re.compile(r"exit status (130|143)$|<Signals\.(SIGINT|SIGTERM)")
"""How a command ends that the user or a scheduler stopped."""
STATUS = re.compile(r"exit status (\d+)$")
KNOWN_CAUSES = {error.exit_status for error in (UserError, DeviceError, IntegrityError)}
"""Exit statuses of known causes: input or config, a device, stored data."""
LOCKED = "LockException"
"""Snakemake's name for its refusal where another process makes the same files."""
HARMLESS = {"host", "reason"}
"""Values of `--quiet` in the default profile."""


class RefusedError(internals.WorkflowError):  # type: ignore[misc]
    """The user's request is refused: a message of one or more sentences, without a traceback."""

    message, status = "", 0
    """The message and the exit status of the last RefusedError."""

    def __init__(self, sentence: str, status: int = UserError.exit_status) -> None:
        super().__init__(sentence)
        type(self).message, type(self).status = plain(sentence), status

    @classmethod
    def print_last(cls) -> None:
        print(*(f"error: {line}" for line in cls.message.splitlines()), sep="\n", file=sys.stderr)


@contextlib.contextmanager
def refusing(where: str = "", hint: str = "") -> Iterator[None]:
    """Raise errors of the block as RefusedError: `where`, the error and `hint` in one message."""
    try:
        yield
    except (UserError, IntegrityError) as error:
        sentence = f"{where}: {error}{hint}" if where else f"{error}{hint}"
        raise RefusedError(sentence, error.exit_status) from None
    except BlockingIOError:  # the caller asks for a lock and reports more
        raise
    except OSError as error:
        raise RefusedError(internals.sentence_of(error), 1) from None


@contextlib.contextmanager
def exit_on_refusal() -> Iterator[None]:
    """Print a RefusedError of the block and exit. Snakemake would ignore it while it builds the
    DAG: if a file exists, Snakemake accepts that no rule can make it."""
    try:
        yield
    except RefusedError:
        RefusedError.print_last()
        raise SystemExit(RefusedError.status) from None


class FailedJob(internals.JobError):
    @property
    def was_stopped(self) -> bool:
        """Whether it was stopped, for example by Ctrl-C."""
        return bool(STOPPED.search(self.ending)) and not self.message

    @property
    def exit_status(self) -> int:
        """The exit status of its command; 1 if unknown, as of a job on a cluster."""
        match = STATUS.search(self.ending)
        return int(match[1]) if match else 1

    @property
    def message(self) -> str:
        """The error at the end of its log; "" without one."""
        return last_error(self.log) if self.log else ""

    def sentence(self) -> str:
        """Return the last message of the command, or else how it ended."""
        if self.was_stopped:
            return "it was stopped."
        if self.reason and not self.message:
            return self.reason
        ended = self.ending or "failed"
        return (
            self.message
            or f"it {ended} without a message; it was stopped or killed, or never started."
        )


class Failures:
    """The failed jobs of this Snakemake."""

    def __init__(self) -> None:
        self._jobs: dict[Path | None, FailedJob] = {}
        self._endings: list[tuple[str, str]] = []
        """Messages about a command's end, each with how it ended."""
        self.was_interrupted = False
        self.are_summarised = False
        """Whether `summary.closing` has described them."""
        self.shown_last: FailedJob | None = None
        """The job whose error is the last thing on the screen."""

    def take(self, record: logging.LogRecord) -> FailedJob | bool:
        """Collect a log record about a failed job. Return the job if the record names it, and
        otherwise whether the record is about a failed job."""
        if error := internals.job_error(record):
            return self._add(error)
        if ending := internals.ending_of(record):
            self._endings.append((record.getMessage(), ending))
            return True
        return bool(self._jobs) and record.getMessage().startswith(internals.EPILOGUES)

    def _add(self, error: internals.JobError) -> FailedJob:
        command = error.command
        endings = [ending for text, ending in self._endings if command and command in text]
        self._endings = [pair for pair in self._endings if not command or command not in pair[0]]
        job = FailedJob(*error._replace(ending=endings[-1] if endings else ""))
        self._jobs[job.log] = job
        return job

    def final(self) -> list[FailedJob]:
        """Return the failed jobs of which an output is still missing."""
        return [job for job in self._jobs.values() if not all(o.exists() for o in job.outputs)]


_failures: list[Failures] = []


def exit_status() -> int:
    """Return the exit status that replaces Snakemake's 1: that of the refusal, or the common status
    of all failed jobs. It is 1 if these differ or the cause is unknown."""
    if RefusedError.status:
        return RefusedError.status
    statuses = {job.exit_status for failures in _failures for job in failures.final()}
    return statuses.pop() if len(statuses) == 1 and statuses <= KNOWN_CAUSES else 1


def filter_output(workflow: Any) -> Failures:
    """Filter the screen of this Snakemake; return what gathers the failures of its jobs."""
    is_imported = internals.is_imported(workflow)  # then the screen is another workflow's
    shows_all = internals.shows_all(workflow) or is_imported
    is_here = not internals.runs_elsewhere(workflow)
    failures = Failures()
    _failures.append(failures)
    if internals.is_main(workflow) and not is_imported:
        _answer_ctrl_c(failures)

    def matters(record: logging.LogRecord) -> bool:
        if internals.exception_of(record) == RefusedError.__name__:
            RefusedError.print_last()
            return False
        if RefusedError.status and record.getMessage().startswith(internals.AFTER_REFUSAL):
            return False
        if internals.exception_of(record) == LOCKED and (others := run_lock.living(Path())):
            print(plain(message_of_lock(others)), file=sys.stderr)
            return False
        if not shows_all and (steps := internals.progress_of(record)):
            failures.shown_last = None
            text = counted(steps[0], "step")
            if internals.knows_total(workflow):
                text = f"{steps[0]} of {steps[1]} steps"
            print(f"{text} done", file=sys.stderr)
            return False
        failed = failures.take(record)
        if shows_all or not failed:
            return shows_all or not internals.is_about_scheduling(record)
        if isinstance(failed, FailedJob):
            print(message_of(failed, is_here), file=sys.stderr)
            failures.shown_last = failed if is_here and failed.message else None
        return False

    internals.filter_screen(matters)
    return failures


def message_of(job: FailedJob, is_here: bool) -> str:
    """Return the message of a failed job; errors of jobs here are on the screen already."""
    ended = "stopped" if job.was_stopped else "failed"
    line = plain(f"{job.rule:>8} │ {ended}; its log: {job.log or 'none'}")
    return line if is_here else plain(f"{job.rule:>8} │ error: {job.sentence()}\n") + line


def message_of_lock(others: Sequence[run_lock.Owner]) -> str:
    """Return the message where Snakemake finds its folder locked by these living `others`: its own
    one advises `--unlock`, which would let two processes write one file."""
    commands = ", ".join(f"{other.command} (process {other.pid})" for other in others)
    return (
        "Another run in this folder makes a file that this run needs too, such as the weights of "
        f"its model: {commands}. Nothing was changed. Wait until it ends, then type the same "
        f"command again:\n    {command_line.this()}"
    )


def stopped() -> str:
    return (
        f"Stopped. Nothing computed is lost. The same command continues:\n    {command_line.this()}"
    )


def _answer_ctrl_c(failures: Failures) -> None:
    """End Snakemake on Ctrl-C at any time, and print the command that continues the run.

    Without this, Snakemake handles only the first Ctrl-C while jobs run: it waits for the jobs. At
    any other time, and for the second Ctrl-C, it would print a traceback.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup
        return

    def answer(number: int, _frame: FrameType | None) -> None:
        if not failures.was_interrupted:
            failures.was_interrupted = True
            raise SystemExit(128 + number)

    def say() -> None:
        if failures.was_interrupted and not failures.are_summarised:
            print(stopped(), file=sys.stderr)

    signal.signal(signal.SIGINT, answer)
    atexit.register(say)


def wants_no_lines(workflow: Any) -> bool:
    """Return whether `--quiet` hides more than the default profile does."""
    return bool(internals.quiet_about(workflow) - HARMLESS)


def follow(workflow: Any, runs: Runs) -> Callable[[], None]:
    """Show the progress of `runs` if this process runs jobs; return the function that ends that.

    If another workflow imports this one, the screen is its own, and nothing is shown.
    """
    is_quiet = wants_no_lines(workflow) or environment.QUIET.value()
    is_wanted = not (is_quiet or internals.is_imported(workflow))
    if is_wanted and internals.executes(workflow):
        return beneath.follow(runs, may_draw=internals.writes_screen())
    return lambda: None
