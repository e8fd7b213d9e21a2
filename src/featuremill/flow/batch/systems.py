"""What differs between LSF and PBS: how a job is asked for, and what the scheduler says of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

ANSWER_SECONDS = 30
"""A scheduler that says nothing for so long does not answer; LSF's commands wait by themselves."""
State = Literal["alive", "gone", "silent"]
"""Queued or running; ended or forgotten; not known, as the scheduler did not answer."""


class System(NamedTuple):
    """One batch system."""

    number_variable: str
    """Where a job finds its own number."""
    options: Callable[[Mapping[str, Any], Path], list[str]]
    """The submit command for a job's properties, and the folder for what the job prints."""
    number: re.Pattern[str]
    """Finds the job's number in what the submit command prints."""
    question: tuple[str, ...]
    """The command that asks for a job's state; the number comes last."""
    alive: re.Pattern[str]
    """Finds the state of a job that is queued, held or running in the answer."""
    gone: re.Pattern[str]
    """Finds in the answer, or in what was said beside it, that the job ended or is not known."""

    def state(self, job: str) -> State:
        """Ask the scheduler how `job` is."""
        try:
            asked = subprocess.run(
                [*self.question, job],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            return "silent"
        if asked.returncode == 0 and self.alive.search(asked.stdout):
            return "alive"
        return "gone" if self.gone.search(asked.stdout + asked.stderr) else "silent"


def _lsf(job: Mapping[str, Any], folder: Path) -> list[str]:
    resources = job["resources"]
    memory = f"{resources['mem_mb']}MB"
    words = ["bsub", "-J", job["name"], "-n", str(job["threads"])]
    words += ["-R", f"span[hosts=1] rusage[mem={memory}/host]", "-M", memory]
    words += ["-W", str(resources["runtime"]), "-o", f"{folder}/{job['name']}.%J.log"]
    if resources.get("gpu"):
        words += ["-gpu", f"num={resources['gpu']}:j_exclusive=yes"]
    for option, key in (("-q", "lsf_queue"), ("-P", "lsf_project")):
        words += [option, resources[key]] if resources.get(key) else []
    return words


def _pbs(job: Mapping[str, Any], folder: Path) -> list[str]:
    resources = job["resources"]
    hours, minutes = divmod(int(resources["runtime"]), 60)
    chunk = f"select=1:ncpus={job['threads']}:mem={resources['mem_mb']}mb"
    if resources.get("gpu"):
        chunk += f":ngpus={resources['gpu']}"
    words = ["qsub", "-V", "-N", job["name"][:15], "-l", chunk]
    words += ["-l", f"walltime={hours}:{minutes:02}:00"]
    words += ["-j", "oe", "-o", f"{folder}/"]
    for option, key in (("-q", "pbs_queue"), ("-P", "pbs_project")):
        words += [option, resources[key]] if resources.get(key) else []
    return words


SYSTEMS = {
    "lsf": System(
        "LSB_JOBID",
        _lsf,
        re.compile(r"Job <(\d+)>"),
        ("bjobs", "-noheader", "-o", "stat"),
        re.compile(r"^(PEND|PROV|RUN|WAIT|[PUS]SUSP|UNKWN|FWD_PEND)\b", re.MULTILINE),
        re.compile(r"^(DONE|EXIT|ZOMBI)\b|is not found", re.MULTILINE),
    ),
    "pbs": System(
        "PBS_JOBID",
        _pbs,
        re.compile(r"^(\d\S*)", re.MULTILINE),
        ("qstat", "-f"),
        re.compile(r"job_state = [BEHMQRSTUW]\b"),
        re.compile(r"job_state = [CFX]\b|Unknown Job|has finished", re.IGNORECASE),
    ),
}
