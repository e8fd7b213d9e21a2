"""status: say of a job what Snakemake wants to hear, and never anything that ends the whole run.

Snakemake gives up when this fails or says another word, and waits for ever for a job that it takes
for running. So: the mark that a job leaves decides; without one, a job that the scheduler knows is
running, one that it does not know (for a while, asked more than once) has failed, and no answer
says nothing about the job.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Literal

from featuremill.base.environment import GONE_SECONDS
from featuremill.flow.batch.submit import FOLDER
from featuremill.flow.batch.systems import System

Word = Literal["running", "success", "failed"]


def status(system: System, job: str, folder: Path = FOLDER) -> Word:
    """Return how `job` is."""
    mark, missing = folder / job, folder / f"{job}.missing"
    if word := _marked(mark):
        missing.unlink(missing_ok=True)
        return word
    state = system.state(job)
    if state != "gone":
        missing.unlink(missing_ok=True)
        if state == "silent":
            print(f"job {job}: the scheduler does not answer; taken for running", file=sys.stderr)
        return "running"
    if not missing.exists():
        missing.touch()
        return "running"
    # A job may be gone before its mark is seen: shared file systems show a new file late.
    if time.time() - missing.stat().st_mtime < GONE_SECONDS.value():
        return "running"
    print(f"job {job}: the scheduler ended or lost it, and it left no status", file=sys.stderr)
    return _marked(mark) or "failed"


def _marked(mark: Path) -> Word | None:
    try:
        return "success" if mark.read_text("ascii").strip() == "0" else "failed"
    except FileNotFoundError:
        return None
