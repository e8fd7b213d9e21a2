"""submit: hand one of Snakemake's job scripts to the scheduler, so that its end leaves a mark."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError
from featuremill.flow.batch.systems import System

FOLDER = Path(".snakemake/featuremill.jobs")
"""A file a job, named by its number: the exit status it ended with. And what jobs print."""
PROPERTIES = re.compile(r"^# properties = (.*)$", re.MULTILINE)
NEEDED = ("mem_mb", "runtime")
CLOCK_SECONDS = 60.0
"""How far a file server's clock may be behind."""
# The mark is written by the job itself: schedulers forget what has ended, some within seconds.
WRAPPER = """\
#!/bin/sh
mark={folder}/${variable}
/bin/sh {script}
status=$?
echo $status > "$mark.new" && mv "$mark.new" "$mark"
exit $status
"""


def submit(system: System, script: Path) -> str:
    """Submit the job script; return the job's number.

    Raises:
        UserError: when the script is none of Snakemake's, or the scheduler refuses.
    """
    folder = FOLDER.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    command = system.options(properties_of(script), folder)
    wrapper = WRAPPER.format(
        folder=shlex.quote(str(folder)),
        variable=system.number_variable,
        script=shlex.quote(str(script.absolute())),
    )
    since = time.time()
    asked = _run(command, wrapper)
    found = system.number.search(asked.stdout)
    if asked.returncode or not found:
        said = " ".join((asked.stderr + asked.stdout).split())
        raise UserError(f"{shlex.join(command)}: the scheduler took no job: {said}")
    number = found[1]
    _forget_older(folder / number, since)
    return number


def properties_of(script: Path) -> dict[str, Any]:
    """Return what Snakemake says of the job in the script's head, with a `name` for the scheduler.

    Raises:
        UserError: when it says nothing, or a resource is missing that every job has to have.
    """
    found = PROPERTIES.search(script.read_text("utf-8"))
    if not found:
        raise UserError(f"{script}: this is no job script of Snakemake's; leave submitting to it.")
    job: dict[str, Any] = json.loads(found[1])
    missing = [name for name in NEEDED if not job["resources"].get(name)]
    if missing:
        raise UserError(
            f"{script.name}: the job has no {' and no '.join(missing)}; keep default-resources in "
            "the profile, which gives each job some."
        )
    job["name"] = f"fm-{job.get('rule') or job.get('groupid')}-{job['jobid']}"
    job["threads"] = job.get("threads", job["resources"].get("_cores", 1))
    return job


def _run(command: list[str], standard_input: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=standard_input, capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError:
        raise UserError(
            f"{command[0]}: there is no such command here; run snakemake where jobs are submitted."
        ) from None


def _forget_older(mark: Path, since: float) -> None:
    """Remove what an older job of the same number left; schedulers use their numbers again."""
    for left in (mark, mark.with_name(f"{mark.name}.missing")):
        try:
            if left.stat().st_mtime < since - CLOCK_SECONDS:
                left.unlink()
        except FileNotFoundError:
            continue
