"""Logging of the command line: short lines for people on stderr, dated ones in the log file."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from pathlib import Path

from featuremill.base.text import plain

BEGIN = "begin: "
"""The beginning of a command's first line in a log file. Attempts of a job append to the file."""
LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (\w+) +featuremill[.\w]*: (.*)")
FIRST = re.compile(rf"\d{{4}}-\d\d-\d\d [\d:,]+ \w+ +featuremill[.\w]*: {BEGIN}")
"""The beginning of a log file of a command."""
TAIL_BYTES = 64 * 2**10
root = logging.getLogger("featuremill")


def set_up(level: int, log_file: Path | None, about: str = "") -> None:
    """Send `level` and above to stderr, behind `about`, and everything to `log_file`."""
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in list(root.handlers):  # of an earlier command in the same process
        root.removeHandler(handler)
        handler.close()
    screen = logging.StreamHandler(sys.stderr)
    screen.setLevel(level)
    screen.setFormatter(_Short(about))
    root.addHandler(screen)
    if log_file:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(log_file, encoding="utf-8")
        handler.setFormatter(_Dated())
        root.addHandler(handler)


def last_error(path: Path) -> str:
    """Return the error of the last command in the log file `path`; "" without an error."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    messages: list[str] = []
    is_same = False
    for level, message in (match.groups() for match in map(LINE.match, lines) if match):
        if message.startswith(BEGIN):
            messages = []
        if level == "ERROR":
            messages = [*messages, message] if is_same else [message]
        is_same = level == "ERROR"
    return " ".join(messages)


def is_log(path: Path, first: re.Pattern[str] = FIRST) -> bool:
    """Return whether the file at `path` begins with `first`, as log files of commands do."""
    try:
        with path.open("rb") as file:
            return bool(first.match(file.readline(TAIL_BYTES).decode("utf-8", "replace")))
    except OSError:
        return False


def keeps_details() -> bool:
    """Return whether debug messages are written, to a log file or (-v) to the screen."""
    return any(handler.level <= logging.DEBUG for handler in root.handlers)


def log_or_screen() -> str:
    """Return words for the place of details: the log, or the screen."""
    has_file = any(isinstance(handler, _LogFile) for handler in root.handlers)
    return "the log" if has_file else "what is printed above"


class _LogFile(logging.FileHandler):
    """A log file whose disk may be full, which is one message on the screen and no failure."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            print(f"{self.baseFilename}: {error.strerror}; this log has gaps.", file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # from writing again what could not be written
            super().close()


class _Short(logging.Formatter):
    def __init__(self, about: str) -> None:
        super().__init__()
        self._about = f"{about}: " if about else ""

    def format(self, record: logging.LogRecord) -> str:
        verb = record.name.removeprefix("featuremill.").partition(".")[0]
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        start = f"{verb:>8} │ {mark}{self._about}"
        return _lines(start, record.getMessage()) + _story(self, record)


class _Dated(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        start = f"{self.formatTime(record)} {record.levelname:<7} {record.name}: "
        return _lines(start, record.getMessage()) + _story(self, record)


def _story(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return plain(f"\n{formatter.formatException(record.exc_info)}") if record.exc_info else ""


def _lines(start: str, message: str) -> str:
    """Return `message` with `start` before each line, so that none looks like another event."""
    return "\n".join(f"{start}{line}" for line in plain(message).split("\n"))
