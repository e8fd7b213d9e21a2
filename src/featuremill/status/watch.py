"""Looks at a run until no process works on it; shows each look, and then what status shows."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from featuremill.base import streams
from featuremill.base.errors import UserError
from featuremill.base.text import plain
from featuremill.config.runs import Runs, named
from featuremill.status import lines, screen, view
from featuremill.status.page import Page
from featuremill.status.project import ProjectReader, ProjectState
from featuremill.status.reader import is_run, refusing_what_cannot_be_read
from featuremill.status.state import NOT_DONE
from featuremill.store import run_lock

AWAIT_SECONDS = 0.5
"""Between two looks whether a run has started."""
STILL_SECONDS = 10.0
"""A run that is computed by hand, shard by shard, has no process for moments like this."""
UNKNOWN_SECONDS = 30.0
"""Between two looks whether a run is done whose Snakemake cannot be seen from here."""
SCREEN_SECONDS, LINE_SECONDS = 1.0, 10.0
"""Between two looks."""
MOST_EVERY_SECONDS = 86_400.0
GROWTH_SECONDS = 2.5
"""After this long a telemetry file has grown, if its job lives."""
log = logging.getLogger("featuremill.top")


def run(arguments: argparse.Namespace) -> int:
    """Look and show as the arguments say; return the exit status."""
    run_folder: Path = arguments.run_folder
    runs = named(run_folder)
    if arguments.every is not None and not 0 < arguments.every <= MOST_EVERY_SECONDS:
        raise UserError(
            f"--every {arguments.every:g}: it must be more than 0 seconds, and a day at most."
        )
    page = Page(arguments.html) if arguments.html else None
    if not arguments.once:
        _await_run(runs)
    reader = ProjectReader(runs)
    with (
        refusing_what_cannot_be_read(run_folder),
        _output_for(arguments) as output,
    ):
        last = _one_look(reader) if arguments.once else _watch(reader, output, page)
        if page:
            page.look(last, is_last=True)
        output.end(last)
    return last.exit_status if last.is_close else NOT_DONE


def _await_run(runs: Runs) -> None:
    """Wait for a run that has not started, where Snakemake would put one: in a folder results/."""
    roots = [run_lock.whole_path(folder) for folder in runs.folders]
    if not all(run_lock.is_in_results(r) and run_lock.working_folder(r).is_dir() for r in roots):
        return
    is_said = False
    while not any(is_run(root) for root in roots):
        if not is_said:
            log.info("waiting for a run in %s (Ctrl-C ends this)", runs.path)
            is_said = True
        time.sleep(AWAIT_SECONDS)


def _one_look(reader: ProjectReader) -> ProjectState:
    """Return the state of the runs; look twice where only time shows whether a job lives."""
    now = reader.look()
    if any(job.state == "unclear" for run in now.states.values() for job in run.jobs):
        time.sleep(GROWTH_SECONDS)
        now = reader.look()
    return _known(reader, now)


def _watch(
    reader: ProjectReader, output: _Screen | _Lines | _Json, page: Page | None
) -> ProjectState:
    """Show the runs until no process works on them; return their state then."""
    was_running = False
    still_since: float | None = 0.0  # at the first look, it has been still for long
    known_at = 0.0
    for now in _looks(reader, output.every_seconds):
        moment = time.monotonic()
        was_running |= now.is_running
        if now.phase == "idle":
            still_since = moment if still_since is None else still_since
            if was_running or moment - still_since >= STILL_SECONDS:
                return reader.look_closely()
        else:
            still_since = None
        if now.phase == "unknown" and moment - known_at >= UNKNOWN_SECONDS:
            known_at = moment
            if (known := _known(reader, now)).is_close:
                return known
        output.look(now)
        if page:
            page.look(now)
        if not streams.is_read():  # it ends as SIGPIPE would end it
            raise SystemExit(128 + signal.SIGPIPE)
    raise AssertionError("looks do not end by themselves")


def _known(reader: ProjectReader, now: ProjectState) -> ProjectState:
    """Return the runs with their status, if no process works on them, or if all is done."""
    if now.phase not in ("idle", "unknown"):
        return now
    closely = reader.look_closely()
    return closely if now.phase == "idle" or closely.exit_status != NOT_DONE else now


def _looks(reader: ProjectReader, seconds: float) -> Iterator[ProjectState]:
    """Yield the state of the runs every so many `seconds`. After the first look, an error of the
    file system counts as passing."""
    now = reader.look()
    while True:
        started = time.monotonic()
        yield now
        time.sleep(max(0.0, seconds - (time.monotonic() - started)))
        try:
            now = reader.look()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            trouble = f"{where}{error.strerror or error}; this is how it was before"
            states = {
                name: replace(run, time=time.time(), trouble=trouble)
                for name, run in now.states.items()
            }
            now = replace(now, states=states)


@contextlib.contextmanager
def _output_for(arguments: argparse.Namespace) -> Iterator[_Screen | _Lines | _Json]:
    """Yield what the arguments ask for, here."""
    every: float | None = arguments.every
    if arguments.json:
        yield _Json(every or LINE_SECONDS, arguments.once)
    elif sys.stdout.isatty() and not (arguments.once or arguments.quiet):
        with _Screen(every or SCREEN_SECONDS) as output:
            yield output
    else:
        yield _Lines(every or LINE_SECONDS, arguments.quiet)


class _Screen:
    """The whole terminal, given back as it was, with how it ended below."""

    def __init__(self, every_seconds: float) -> None:
        self.every_seconds = every_seconds
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._last: ProjectState | None = None

    def __enter__(self) -> _Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)
        if self._last:  # interrupted, or failed
            for line in lines.totals_lines(self._last):
                self._console.print(line, markup=False)

    def look(self, now: ProjectState) -> None:
        """Draw the screen anew."""
        self._last = now
        picture = Group(
            screen.whole_screen(now, self._console.width), "", Text(screen.HINT, screen.QUIET)
        )
        self._live.update(picture, refresh=True)

    def end(self, now: ProjectState) -> None:
        """Leave the status on the screen."""
        self._last = None
        self._live.stop()
        _print_end(now)


class _Lines:
    """Dated lines, and at the end the status."""

    def __init__(self, every_seconds: float, is_quiet: bool) -> None:
        self.every_seconds = every_seconds
        self._is_quiet = is_quiet
        self._written: set[str] = set()

    def look(self, now: ProjectState) -> None:
        """Write how far the run is, and what failed since the last line."""
        if trouble := next(iter(now.states.values())).trouble:
            self._write(now, plain(trouble))
        elif not self._is_quiet:
            for line in lines.totals_lines(now):
                self._write(now, line)
        for run in now.states.values():
            for what, remedy in lines.failures(run):
                line = f"{what} → {remedy}" if remedy else what
                if line not in self._written:
                    self._written.add(line)
                    self._write(now, line)

    def end(self, now: ProjectState) -> None:
        """Write the status; with --quiet, only what failed since."""
        if self._is_quiet:
            self.look(now)
        else:
            _print_end(now)

    def _write(self, now: ProjectState, line: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S', time.localtime(now.time))}  {line}\n")
        sys.stdout.flush()


def _print_end(now: ProjectState) -> None:
    """Print the status of a run at rest, or else the screen once."""
    if now.is_close:
        sys.stdout.write("".join(f"{line}\n" for line in view.lines(now)))
        return
    console = Console(highlight=False)
    shown = screen.whole_screen(now, console.width)
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().splitlines():  # tables fill their width with blanks
        sys.stdout.write(f"{line.rstrip()}\n")


class _Json:
    """One object a look, each on a line; for one look only, over many lines."""

    def __init__(self, every_seconds: float, is_one: bool) -> None:
        self.every_seconds = every_seconds
        self._indent = 2 if is_one else None

    def look(self, now: ProjectState) -> None:
        text = json.dumps(now.now_as_json(), indent=self._indent, ensure_ascii=False)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    end = look
