"""Puts our sbatch, squeue and sacct before Slurm's in the PATH of a run that goes to Slurm."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from featuremill.base import environment
from featuremill.flow import slurm_commands
from featuremill.flow.support import executes

FOLDER = Path(".snakemake/featuremill-slurm")
REPLACED = ("sbatch", "squeue", "sacct")
USED = (*REPLACED, "scancel")
KEPT_SECONDS = 30 * 86400
"""How long the record of a run's jobs stays after the last one was submitted."""


def prepare(workflow: Any) -> None:
    """Put them in place where this is the main process and its jobs go to a cluster with Slurm.

    The executor cannot be known yet. With any other one nothing is different: the commands do
    something of their own only for jobs that are submitted as the Slurm executor submits them.
    """
    if workflow.is_main_process and executes(workflow) and workflow.nodes is not None:
        put_first(FOLDER.absolute())


def put_first(folder: Path) -> None:
    """Write the commands into `folder`/bin and put that first in PATH; nothing without Slurm."""
    name = folder.name
    others = [place for place in environment.search_path() if Path(place).parent.name != name]
    real = {command: shutil.which(command, path=os.pathsep.join(others)) or "" for command in USED}
    if not (real["sbatch"] and real["squeue"] and real["scancel"]):
        return
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    _forget_old(folder)
    _replace(folder / slurm_commands.REAL_COMMANDS, json.dumps(real), 0o644)
    for command in REPLACED:
        words = [sys.executable, "-I", "-S", slurm_commands.__file__, str(folder), command]
        _replace(programs / command, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', 0o755)
    environment.set_search_path([str(programs), *others])


def _forget_old(folder: Path) -> None:
    for jobs in folder.glob("*/jobs"):
        if jobs.stat().st_mtime < time.time() - KEPT_SECONDS:
            shutil.rmtree(jobs.parent, ignore_errors=True)


def _replace(path: Path, text: str, mode: int) -> None:
    """Write a file that another Snakemake in this folder may be using."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text, "utf-8")
    new.chmod(mode)
    new.replace(path)
