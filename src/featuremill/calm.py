"""Keep Snakemake's talk about its own scheduling off the screen while jobs run.

The verbs say what happens to the records; Snakemake's count of steps, warnings and errors stay. Its
log file under .snakemake/log keeps everything, and so does the screen of a dry run, and with
--printshellcmds or --verbose.
"""

from __future__ import annotations

import logging
from typing import Any

from snakemake.logging import logger

SCREEN = "DefaultStreamHandler"
"""Snakemake's name for the handler that writes to the terminal."""
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


def calm_output(workflow: Any) -> None:
    """Filter the screen of a real run's main process."""
    settings = workflow.output_settings
    if settings.dryrun or settings.printshellcmds or settings.verbose:
        return
    for handler in logger.handlers:
        if handler.name == SCREEN:
            handler.addFilter(_matters)


def _matters(record: logging.LogRecord) -> bool:
    if record.levelno > logging.INFO:
        return True
    event = str(getattr(record, "event", None) or "")
    return event not in EVENTS and not record.getMessage().startswith(BEGINNINGS)
