"""The progress that `featuremill run` shows: on a terminal the screen of `top` beneath the lines of
all jobs, elsewhere a line of totals at intervals."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from featuremill.base import environment

if TYPE_CHECKING:  # the thread imports them, where a job computes
    from featuremill.config.project import Runs
    from featuremill.status.project import ProjectState
    from featuremill.status.reader import RunReader
    from featuremill.status.run_state import RunState

FIRST_SECONDS, EVERY_SECONDS = 30.0, 60.0
"""Seconds from the first job that computes to the first line of totals, and between two lines."""
LINES_SECONDS, PICTURE_SECONDS = 5.0, 1.0
"""Seconds between two polls, for lines and for the picture."""
MOST_OF_A_CORE = 0.03
"""The largest share of a core that drawing takes; the picture of a large run changes less often."""
LAST_SECONDS = 1.0
"""Seconds that the end waits for a poll in progress, and for the last lines of jobs."""
ROWS_OF_LINES = 3
"""Rows of the terminal that the picture leaves to lines."""
MOST_BYTES = 1 << 16
MOVES = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTdf]")
"""Escape sequences that move the cursor or clear the terminal, such as those of progress bars."""
OVERWRITTEN = re.compile(rb"(?m)^.*\r(?=[^\r\n])")
"""The text of a line before a carriage return, which overwrites it."""
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def follow(runs: Runs, may_draw: bool = True) -> Callable[[], None]:
    """Start to show the progress of `runs`, until the returned function is called or the process
    ends. Without `may_draw`, write lines only."""
    is_dumb = environment.TERM.text() in (None, "", "dumb", "unknown")
    is_terminal = os.isatty(1) and os.isatty(2) and os.path.sameopenfile(1, 2)
    thread = (_Picture if may_draw and is_terminal and not is_dumb else _Lines)(runs)
    thread.start()
    atexit.register(thread.end)
    return thread.end


class _Lines(threading.Thread):
    """Writes a line of totals at intervals, once a job computes.

    This daemon thread writes to the file descriptor. It never holds a lock of logging or of a
    stream, so neither a signal handler nor the end of the process waits for it.
    """

    def __init__(self, runs: Runs) -> None:
        super().__init__(name="top", daemon=True)
        self._runs = runs
        self._readers: dict[str, RunReader] = {}
        self._states: dict[str, RunState] = {}
        self._has_computed = False
        self._is_over = threading.Event()

    def end(self) -> None:
        """End the thread, and wait up to LAST_SECONDS for it."""
        self._is_over.set()
        self.join(LAST_SECONDS)

    def run(self) -> None:
        due = 0.0
        while not self._is_over.wait(LINES_SECONDS):
            if time.monotonic() < due or not (now := self._poll()):
                continue
            from featuremill.status.view import totals_lines

            lines = list[str]()
            with contextlib.suppress(Exception):
                lines = totals_lines(now, phases=("computing",))
            if lines:
                text = "".join(f"{'top':>8} │ {line}\n" for line in lines) if due else ""
                due = time.monotonic() + (EVERY_SECONDS if due else FIRST_SECONDS)
                with contextlib.suppress(OSError):  # the reader has closed it
                    os.write(2, text.encode())

    def _poll(self) -> ProjectState | None:
        """Return the state of the runs, or None before a job; unreadable runs keep their state."""
        from featuremill.status.project import ProjectState
        from featuremill.status.reader import RunReader

        if not self._readers:
            names, folders = self._runs.names, self._runs.folders
            self._readers = dict(zip(names, map(RunReader, folders), strict=True))
        for name, reader in self._readers.items():
            with contextlib.suppress(Exception):
                self._states[name] = reader.poll()
        self._has_computed |= any(each.phase == "computing" for each in self._states.values())
        return ProjectState(self._runs, self._states) if self._has_computed else None


class _Picture(_Lines):
    """Draws the picture, once a job computes, beneath all output of this process and its jobs.

    Standard output and error become one pipe, also for jobs. Its lines are written above the
    picture. The cursor is never hidden, so a killed process leaves the terminal usable.
    """

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs)
        self._before, self._terminal = os.dup(1), os.dup(2)
        self._encoding = sys.stderr.encoding
        self._lines, self._theirs = os.pipe()
        self._ends, self._end = socket.socketpair()
        self._picture: list[str] = []
        self._width = 0
        self._unfinished = b""
        """The beginning of a line whose end has not been written yet."""
        self._height = 0
        """Rows drawn on the terminal: the picture and an unfinished line above it."""

    def start(self) -> None:
        """Start the thread, then redirect all output to the pipe."""
        super().start()
        self._redirect(self._theirs, self._theirs)
        os.close(self._theirs)

    def end(self) -> None:
        """Restore standard output and error, write the rest of the pipe, and clear the picture."""
        self._redirect(self._before, self._terminal)
        self._end.close()
        self.join(2 * LAST_SECONDS)

    def run(self) -> None:
        due, is_over = time.monotonic() + 2 * PICTURE_SECONDS, False
        while True:
            seconds = LAST_SECONDS if is_over else max(0.0, due - time.monotonic())
            sources = [self._lines] if is_over else [self._lines, self._ends.fileno()]
            ready, _, _ = select.select(sources, (), (), seconds)
            if self._lines in ready:
                if not (content := os.read(self._lines, MOST_BYTES)):
                    break
                try:
                    self._take(content)
                except Exception:  # a full pipe would block the run
                    self._write(content)
            elif is_over:
                break
            else:
                is_over = bool(ready)
            if not is_over and time.monotonic() >= due:
                spent = -time.thread_time()
                with contextlib.suppress(Exception):
                    self._draw()
                spent += time.thread_time()
                due = time.monotonic() + max(PICTURE_SECONDS, spent / MOST_OF_A_CORE)
        self._picture = []
        self._show()

    def _redirect(self, output: int, error: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os.dup2(output, 1)
        os.dup2(error, 2)

    def _take(self, content: bytes) -> None:
        """Write output unchanged, or, while a picture is drawn, its whole lines above that."""
        lines, end, self._unfinished = (self._unfinished + content).rpartition(b"\n")
        if self._height:
            self._show(OVERWRITTEN.sub(b"", MOVES.sub(b"", lines + end)))
        else:
            self._write(content)

    def _draw(self) -> None:
        if not (now := self._poll()):
            return
        from rich.console import Console

        from featuremill.status.screen import whole_screen

        size = os.get_terminal_size(self._terminal)
        self._width = size.columns or 80
        with open(self._terminal, "w", encoding=self._encoding, closefd=False) as file:
            console = Console(file=file, highlight=False, width=self._width)
            with console.capture() as captured:
                console.print(whole_screen(now, self._width))
        rows = max(2, (size.lines or 24) - ROWS_OF_LINES)
        self._picture = ["", *captured.get().rstrip("\n").split("\n")][:rows]
        self._show()

    def _show(self, lines: bytes = b"") -> None:
        """Replace the drawn picture by whole `lines` and the new picture beneath them."""
        if not (is_in_front := self._is_in_front()):
            self._picture = []  # another process has the terminal
        if not (self._height or self._picture):
            return
        up = b"\x1b[%dA" % self._height if self._height else b""
        shown = self._picture
        if shown and self._unfinished:
            shown = [self._shown_of_unfinished(), *shown]
        # The cursor ends up below the picture: a shell continues there if this process is killed.
        below = "".join(f"{row}\n" for row in shown).encode(self._encoding, "replace")
        below = below or self._unfinished
        self._height = len(shown)
        self._write((b"\r%b\x1b[J" % up if is_in_front else b"") + lines + below)

    def _shown_of_unfinished(self) -> str:
        from rich.cells import set_cell_size

        text = OVERWRITTEN.sub(b"", MOVES.sub(b"", self._unfinished.rstrip(b"\r")))
        decoded = STYLES.sub("", text.decode(self._encoding, "replace")).expandtabs()
        return set_cell_size(decoded, self._width - 1).rstrip()

    def _is_in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:  # not the terminal of this session
            return True

    def _write(self, content: bytes) -> None:
        with contextlib.suppress(OSError):
            while content:
                try:
                    content = content[os.write(self._terminal, content) :]
                except BlockingIOError:
                    select.select((), (self._terminal,), ())
