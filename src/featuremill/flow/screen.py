"""Keep Snakemake's talk about its own scheduling off the screen while jobs run.

The verbs say what happens to the records; Snakemake's count of steps, warnings and errors stay, but
what it says of a failed job (twenty lines of paths) becomes one line, and a summary at the end. Its
log file under .snakemake/log keeps everything, and so does the screen of a dry run, with
--printshellcmds or --verbose, and where another workflow imports this one.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from featuremill.base.text import plain
from featuremill.flow.failures import FailedJob, Failures, stopped, told

SCREEN = "DefaultStreamHandler"
"""Snakemake's name for the handler that writes to the terminal."""
MOST_STOPS = 3
"""Times that Ctrl-C is pressed by somebody who does not want to wait."""
EVENTS = {
    "workflow_started",
    "job_info",
    "job_started",
    "job_finished",
    "run_info",
    "resources_info",
}
BEGINNINGS = (
    "Assuming unrestricted shared filesystem usage",
    "Building DAG of jobs",
    "Complete log",
    "Conda environments: ignored",
    "DAG of jobs will be updated after completion",
    "Elapsed time",
    "Execute ",
    "Select jobs to execute",
    "Updating checkpoint dependencies",
    "Using shell",
    "host: ",
)


class RefusedError(WorkflowError):  # type: ignore[misc]
    """What the user asked for cannot be done, in one sentence; where we noticed it is no help."""

    said = ""
    """The last one's sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        type(self).said = plain(sentence)


def calm_output(workflow: Any) -> Failures:
    """Filter the screen of this Snakemake; return what gathers the failures of its jobs."""
    settings = workflow.output_settings
    is_imported = not workflow.modifier.is_main_snakefile()  # then the screen is somebody else's
    shows_all = settings.dryrun or settings.printshellcmds or settings.verbose or is_imported
    failures = Failures()
    if workflow.is_main_process and not is_imported:
        _answer_ctrl_c(failures, is_here=workflow.nodes is None)

    def matters(record: logging.LogRecord) -> bool:
        if getattr(record, "exception", None) == RefusedError.__name__ and not settings.verbose:
            print(RefusedError.said, file=sys.stderr)
            return False
        failed = failures.hear(record)
        if shows_all or not failed:
            return shows_all or _matters(record)
        if isinstance(failed, FailedJob):
            print(told(failed, is_here=workflow.nodes is None), file=sys.stderr)
        return False

    for handler in logger.handlers:
        if handler.name == SCREEN:
            handler.addFilter(matters)
    return failures


def _answer_ctrl_c(failures: Failures, is_here: bool) -> None:
    """Have Ctrl-C end this Snakemake with what to type to go on, whenever and however often.

    Snakemake answers the first one while jobs run, by waiting for them to end, and none at other
    times: then, and from the second one on, it would show where it was. The third one does not
    wait: jobs that are here end with this process. A cluster's have to be cancelled by it first.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup
        return

    def answer(number: int, _frame: FrameType | None) -> None:
        failures.num_stops += 1
        if failures.num_stops == 1:
            raise SystemExit(128 + number)
        if failures.num_stops == MOST_STOPS and is_here:
            if not failures.are_told:
                os.write(sys.stderr.fileno(), f"\n{stopped()}\n".encode())
            os._exit(128 + number)

    def say() -> None:
        if failures.num_stops and not failures.are_told:
            print(stopped(), file=sys.stderr)

    signal.signal(signal.SIGINT, answer)
    atexit.register(say)


def _matters(record: logging.LogRecord) -> bool:
    if record.levelno > logging.INFO:
        return True
    event = str(getattr(record, "event", None) or "")
    return event not in EVENTS and not record.getMessage().startswith(BEGINNINGS)
