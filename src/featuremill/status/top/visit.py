"""Looks at a run until nobody is at it any more, and shows each look."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.status.state import NOT_DONE, is_run, refusing_what_cannot_be_read
from featuremill.status.top.reader import Reader
from featuremill.status.top.scene import Scene
from featuremill.status.top.shows import Json, Lines, Screen, show_for
from featuremill.store import run_lock
from featuremill.store.results import Results

AWAIT_SECONDS = 0.5
"""Between two looks whether a run has begun."""
STILL_SECONDS = 10.0
"""Nobody is at a run that is computed by hand, shard by shard, for moments like this."""
UNKNOWN_SECONDS = 30.0
"""Between two looks whether a run is done whose Snakemake cannot be seen from here."""
MOST_EVERY_SECONDS = 86_400.0
GROWTH_SECONDS = 2.5
"""After this long a telemetry file has grown, if its job lives."""
log = logging.getLogger("featuremill.top")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill top`; return 0 done, 1 not done, 2 done with failures."""
    given: Path = arguments.run_folder
    if arguments.every is not None and not 0 < arguments.every <= MOST_EVERY_SECONDS:
        raise UserError(
            f"--every {arguments.every:g}: it must be more than 0 seconds, and a day at most."
        )
    if not arguments.once:
        _await_run(given)
    reader = Reader(given)
    with refusing_what_cannot_be_read(given), _ended_by_its_reader(), show_for(arguments) as show:
        last = _one_look(reader) if arguments.once else _watch(reader, show)
        show.end(last)
    return last.state.exit_status if last.state else NOT_DONE


def _await_run(given: Path) -> None:
    """Wait for a run that has not begun, where Snakemake would put one: in a folder results/."""
    root = run_lock.whole_path(given)
    if root.parent.name != "results" or not root.parent.parent.is_dir():
        return
    is_said = False
    while not is_run(Results(root), run_lock.read(root)):
        if not is_said:
            log.info("waiting for a run in %s (Ctrl-C ends this)", given)
            is_said = True
        time.sleep(AWAIT_SECONDS)


@contextlib.contextmanager
def _ended_by_its_reader() -> Iterator[None]:
    """End as SIGPIPE would where whoever reads the output has enough of it, as `head` has."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed once more
        raise SystemExit(128 + signal.SIGPIPE) from None


def _one_look(reader: Reader) -> Scene:
    """Return how the run stands; look twice where only time tells whether a job lives."""
    scene = reader.look()
    if any(job.state == "unclear" for job in scene.jobs):
        time.sleep(GROWTH_SECONDS)
        scene = reader.look()
    return _known(reader, scene)


def _watch(reader: Reader, show: Screen | Lines | Json) -> Scene:
    """Show the run until nobody is at it; return how it stands then."""
    was_running = False
    still_since: float | None = 0.0  # at the first look, nobody has been at it for long
    known_at = 0.0
    for scene in _looks(reader, show.every_seconds):
        now = time.monotonic()
        was_running |= bool(scene.activity.is_running)
        if scene.phase == "rest":
            still_since = now if still_since is None else still_since
            if was_running or now - still_since >= STILL_SECONDS:
                return reader.look_closely()
        else:
            still_since = None
        if scene.phase == "unknown" and now - known_at >= UNKNOWN_SECONDS:
            known_at = now
            if (known := _known(reader, scene)).state:
                return known
        show.look(scene)
    raise AssertionError("looks do not end by themselves")


def _known(reader: Reader, scene: Scene) -> Scene:
    """Return the scene with what status says, if nobody is at the run, or if it is done."""
    if scene.phase not in ("rest", "unknown"):
        return scene
    closely = reader.look_closely()
    assert closely.state
    is_over = scene.phase == "rest" or closely.state.exit_status != NOT_DONE
    return closely if is_over else scene


def _looks(reader: Reader, seconds: float) -> Iterator[Scene]:
    """Yield how the run stands, every so many seconds; after the first look, what cannot be read is
    taken for a passing trouble of the file system."""
    scene = reader.look()
    while True:
        started = time.monotonic()
        yield scene
        time.sleep(max(0.0, seconds - (time.monotonic() - started)))
        try:
            scene = reader.look()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            trouble = f"{where}{error.strerror or error}; this is how it was before"
            scene = replace(scene, time=time.time(), trouble=trouble)
