"""A line of totals in Snakemake's own output, now and then while extract jobs run.

A daemon thread of the main process looks at the run as `featuremill top` does, and writes straight
to the process's standard error: it never holds a lock of logging or of a stream, which a signal's
handler or the end of the process could wait for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from snakemake.settings.types import Quietness

from featuremill.base import environment
from featuremill.flow.module_import import is_imported
from featuremill.flow.support import executes

FIRST_SECONDS, EVERY_SECONDS = 30.0, 60.0
"""From the first job that computes to the first line, and between two lines."""
LOOK_SECONDS = 5.0
LAST_SECONDS = 1.0
"""How long the process's end waits for a look that goes on."""
HARMLESS = {Quietness.HOST, Quietness.REASON}
"""What the default profile keeps quiet of: with more than that, nobody wants lines."""


def tell(workflow: Any, results: str) -> None:
    """Start telling of the run in `results`, where this process is the main one and computes it.

    Not where another workflow imports this one: the screen is its own, and may have several runs.
    """
    quiet = set(workflow.output_settings.quiet or ()) - HARMLESS
    if quiet or environment.QUIET.value():
        return
    if workflow.is_main_process and executes(workflow) and not is_imported(workflow):
        start(Path(results).absolute())


def start(run_folder: Path) -> threading.Event:
    """Start telling of the run, until the returned event is set or the process ends."""
    is_over = threading.Event()
    thread = threading.Thread(target=_tell, args=(run_folder, is_over), name="totals", daemon=True)
    thread.start()

    def end() -> None:
        is_over.set()
        thread.join(LAST_SECONDS)

    atexit.register(end)
    return is_over


def _tell(run_folder: Path, is_over: threading.Event) -> None:
    from featuremill.status.top.lines import totals_line  # here: jobs that wait for it need not
    from featuremill.status.top.reader import Reader

    reader = Reader(run_folder)
    due: float | None = None
    while not is_over.wait(LOOK_SECONDS):
        if due is not None and time.monotonic() < due:
            continue
        try:
            scene = reader.look()
            line = totals_line(scene)
        except Exception:  # noqa: S112  what top cannot read now is no matter of the run
            continue
        if scene.phase != "computing":
            continue
        if due is None:
            due = time.monotonic() + FIRST_SECONDS
            continue
        due = time.monotonic() + EVERY_SECONDS
        with contextlib.suppress(OSError):  # nobody reads any more
            os.write(2, f"{'top':>8} │ {line}\n".encode())
