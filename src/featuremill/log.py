"""Logging of the command line: short lines for people on stderr, dated ones in the log file."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

from featuremill.text import plain


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
        handler = _LogFile(log_file, encoding="utf-8")
        handler.setFormatter(_Dated())
        root.addHandler(handler)


def logs_to_file() -> bool:
    """Tell whether there is a log file."""
    handlers = logging.getLogger("featuremill").handlers
    return any(isinstance(handler, logging.FileHandler) for handler in handlers)


class _LogFile(logging.FileHandler):
    """A log file whose disk may be full: that is one sentence on the screen, and no end of work."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            print(f"{self.baseFilename}: {error.strerror}; this log has gaps.", file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written is tried again here
            super().close()


class _Short(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        verb = record.name.removeprefix("featuremill.").partition(".")[0]
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return _lines(f"{verb:>8} │ {mark}", record.getMessage())


class _Dated(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        start = f"{self.formatTime(record)} {record.levelname:<7} {record.name}: "
        story = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return _lines(start, record.getMessage()) + plain(story)


def _lines(start: str, message: str) -> str:
    """Return each line of `message` behind `start`, so that none can pass for another event."""
    return "\n".join(f"{start}{line}" for line in plain(message).split("\n"))
