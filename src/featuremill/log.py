"""Logging of the command line: short lines for people on stderr, dated ones in the log file."""

from __future__ import annotations

import logging
import sys
from pathlib import Path


def set_up(quiet: bool, log_file: Path | None) -> None:
    """Send warnings (and, unless `quiet`, progress) to stderr, and everything to `log_file`."""
    root = logging.getLogger("featuremill")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in list(root.handlers):  # of an earlier verb in the same process
        root.removeHandler(handler)
        handler.close()
    screen = logging.StreamHandler(sys.stderr)
    screen.setLevel(logging.WARNING if quiet else logging.INFO)
    screen.setFormatter(_Short())
    root.addHandler(screen)
    if log_file:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(log_file, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
        root.addHandler(handler)


def logs_to_file() -> bool:
    """Tell whether there is a log file."""
    handlers = logging.getLogger("featuremill").handlers
    return any(isinstance(handler, logging.FileHandler) for handler in handlers)


class _Short(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        verb = record.name.removeprefix("featuremill.").partition(".")[0]
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{verb:>8} │ {mark}{record.getMessage()}"
