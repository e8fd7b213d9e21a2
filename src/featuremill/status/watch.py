"""Polls a run until no process works on it; shows each poll, and at the end the status."""

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

from featuremill.base import this_process
from featuremill.base.errors import UserError
from featuremill.base.text import plain
from featuremill.config.project import Runs, runs_of
from featuremill.status import screen, view
from featuremill.status.page import Page
from featuremill.status.project import ProjectReader, ProjectState
from featuremill.status.reader import is_run, refusing_what_cannot_be_read
from featuremill.status.run_state import NOT_DONE
from featuremill.store import run_lock

AWAIT_SECONDS = 0.5
"""Seconds between two checks whether a run has started."""
STILL_SECONDS = 10.0
"""Time without a process after which a run has ended; pauses between typed commands are shorter."""
UNKNOWN_SECONDS = 30.0
"""Seconds between two checks whether a run is done, if its Snakemake cannot be seen."""
SCREEN_SECONDS, LINE_SECONDS = 1.0, 10.0
"""Seconds between two polls, for the screen and for lines."""
MOST_EVERY_SECONDS = 86_400.0
GROWTH_SECONDS = 2.5
"""Time in which the telemetry file of a living job grows."""
log = logging.getLogger("featuremill.top")


def run(arguments: argparse.Namespace) -> int:
    run_folder: Path = arguments.run_folder
    runs = runs_of(run_folder)
    if arguments.every is not None and not 0 < arguments.every <= MOST_EVERY_SECONDS:
        raise UserError(
            f"--every {arguments.every:g}: it must be more than 0 seconds, and a day at most."
        )
    page = Page(arguments.html) if arguments.html else None
    if not arguments.once:
        _await_run(runs)
    reader = ProjectReader(runs)
    with refusing_what_cannot_be_read(run_folder), _output_for(arguments) as output:
        last = _poll_once(reader) if arguments.once else _watch(reader, output, page)
        if page:
            page.show(last, is_last=True)
        output.end(last)
    return last.exit_status if last.is_inspected else NOT_DONE


def _await_run(runs: Runs) -> None:
    """Wait until a run starts, if its folder is in a folder results/, where Snakemake runs are."""
    roots = [run_lock.whole_path(folder) for folder in runs.folders]
    if not all(run_lock.is_in_results(r) and run_lock.working_folder(r).is_dir() for r in roots):
        return
    if not any(map(is_run, roots)):
        log.info("waiting for a run in %s (Ctrl-C ends this)", runs.path)
    while not any(map(is_run, roots)):
        time.sleep(AWAIT_SECONDS)


def _poll_once(reader: ProjectReader) -> ProjectState:
    """Return the state of the runs; poll twice if only growing telemetry shows that a job lives."""
    now = reader.poll()
    if any(job.state == "unclear" for run in now.states.values() for job in run.jobs):
        time.sleep(GROWTH_SECONDS)
        now = reader.poll()
    return _known(reader, now)


def _watch(
    reader: ProjectReader, output: _Screen | _Lines | _Json, page: Page | None
) -> ProjectState:
    was_running = False
    still_since: float | None = 0.0  # an idle run ends the first poll at once
    known_at = 0.0
    for now in _polls(reader, output.every_seconds):
        moment = time.monotonic()
        was_running |= now.is_running
        if now.phase == "idle":
            still_since = moment if still_since is None else still_since
            if was_running or moment - still_since >= STILL_SECONDS:
                return reader.inspect()
        else:
            still_since = None
        if now.phase == "unknown" and moment - known_at >= UNKNOWN_SECONDS:
            known_at = moment
            if (known := _known(reader, now)).is_inspected:
                return known
        output.show(now)
        if page:
            page.show(now)
        if not this_process.is_output_read():  # it ends as SIGPIPE would end it
            raise SystemExit(128 + signal.SIGPIPE)
    raise AssertionError("polling does not end by itself")


def _known(reader: ProjectReader, now: ProjectState) -> ProjectState:
    """Return an inspection, if no process works on the runs or all is done; else `now`."""
    if now.phase not in ("idle", "unknown"):
        return now
    state = reader.inspect()
    return state if now.phase == "idle" or state.exit_status != NOT_DONE else now


def _polls(reader: ProjectReader, seconds: float) -> Iterator[ProjectState]:
    """Yield the state of the runs at an interval of `seconds`. After the first poll, an error of
    the file system does not end the loop, but is set as `trouble`."""
    now = reader.poll()
    while True:
        started = time.monotonic()
        yield now
        time.sleep(max(0.0, seconds - (time.monotonic() - started)))
        try:
            now = reader.poll()
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
    every: float | None = arguments.every
    if arguments.json:
        yield _Json(every or LINE_SECONDS, arguments.once)
    elif sys.stdout.isatty() and not (arguments.once or arguments.quiet):
        with _Screen(every or SCREEN_SECONDS) as output:
            yield output
    else:
        yield _Lines(every or LINE_SECONDS, arguments.quiet)


class _Screen:
    """The full-screen view of a terminal, which is restored at the end, with a last line below."""

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
            for line in view.totals_lines(self._last):
                self._console.print(line, markup=False)

    def show(self, now: ProjectState) -> None:
        self._last = now
        picture = Group(
            screen.whole_screen(now, self._console.width), "", Text(screen.HINT, screen.QUIET)
        )
        self._live.update(picture, refresh=True)

    def end(self, now: ProjectState) -> None:
        """Restore the terminal and print the status."""
        self._last = None
        self._live.stop()
        _print_end(now)


class _Lines:
    """Lines with the time of day, and at the end the status."""

    def __init__(self, every_seconds: float, is_quiet: bool) -> None:
        self.every_seconds = every_seconds
        self._is_quiet = is_quiet
        self._written: set[str] = set()

    def show(self, now: ProjectState) -> None:
        """Write the progress of the runs, and what failed since the last line."""
        if trouble := next(iter(now.states.values())).trouble:
            self._write(now, plain(trouble))
        elif not self._is_quiet:
            for line in view.totals_lines(now):
                self._write(now, line)
        for run in now.states.values():
            for what, remedy in view.failures(run):
                line = f"{what} → {remedy}" if remedy else what
                if line not in self._written:
                    self._written.add(line)
                    self._write(now, line)

    def end(self, now: ProjectState) -> None:
        """Write the status; with --quiet, only the new failures."""
        if self._is_quiet:
            self.show(now)
        else:
            _print_end(now)

    def _write(self, now: ProjectState, line: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S', time.localtime(now.time))}  {line}\n")
        sys.stdout.flush()


def _print_end(now: ProjectState) -> None:
    if now.is_inspected:
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
    """One JSON object per poll, each on a line; for a single poll, indented."""

    def __init__(self, every_seconds: float, is_single: bool) -> None:
        self.every_seconds = every_seconds
        self._indent = 2 if is_single else None

    def show(self, now: ProjectState) -> None:
        text = json.dumps(now.now_as_json(), indent=self._indent, ensure_ascii=False)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    end = show
