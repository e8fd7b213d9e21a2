"""`featuremill doctor --slurm`: report issues that prevent a run on a Slurm cluster."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.base.text import one_line
from featuremill.base.this_process import installed, nearest_folder
from featuremill.doctor import report
from featuremill.doctor.checks import by_severity, issue
from featuremill.lease.folder import file_system

MOUNTS = Path("/proc/self/mountinfo")
MAX_SECONDS = 30.0
PLUGIN, TRIED = "snakemake-executor-plugin-slurm", "2.8.0"
"""The plugin, and its tested version; docs/slurm-status.md lists its response to each event."""
LOCAL_FILE_SYSTEMS = {"btrfs", "ext2", "ext3", "ext4", "overlay", "tmpfs", "xfs", "zfs"}


def answer(arguments: argparse.Namespace) -> report.Report:
    """Return the report on the cluster as JSON.

    Raises:
        UserError: Slurm is not installed, or an option requires this machine.
    """
    for name in ("model", "config", "devices"):
        if getattr(arguments, name):
            raise UserError(
                f"--slurm looks at the cluster, so it takes no --{name}; run featuremill doctor "
                "twice."
            )
    if not shutil.which("scontrol"):
        raise UserError(
            "scontrol: not in PATH, so there is no Slurm to look at from here; run "
            "featuremill doctor --slurm on a login node of the cluster."
        )
    issues, versions = [], installed(("snakemake", PLUGIN))
    folder = nearest_folder(arguments.results.absolute())
    kind = file_system(folder, MOUNTS.read_text("utf-8", "replace"))
    if kind in LOCAL_FILE_SYSTEMS:
        issues.append(issue("local disk", folder=folder, kind=kind))
    if PLUGIN not in versions:
        issues.append(issue("no plugin", name=PLUGIN, requirement=f"{PLUGIN}=={TRIED}"))
    command, seconds = ["scontrol", "show", "config"], min(arguments.timeout, MAX_SECONDS)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        config, status = done.stdout, f"status {done.returncode}"
        problem = (done.stderr.strip() or status) if done.returncode else ""
    except subprocess.TimeoutExpired:
        config, problem = "", f"no answer within {seconds:g} s"
    if problem:
        issues.append(issue("controller", error=problem.splitlines()[-1].rstrip(".")))
    values = dict(re.findall(r"^(\w+) *= *(.*)$", config, re.MULTILINE))
    return {
        "version": report.VERSION,
        "ready": not any(each.severity == "error" for each in issues),
        "cluster": values.get("ClusterName"),
        "issues": [each._asdict() for each in by_severity(issues)],
        "versions": versions | {"slurm": values.get("SLURM_VERSION", "unknown")},
    }


def lines(answer: report.Report) -> Iterator[str]:
    """Yield the lines of the report as text, without control characters from Slurm."""
    verdict = report.not_ready(answer) or f"Ready: the cluster {answer['cluster']} takes jobs."
    page = [*report.wrapped(verdict), "", *report.issue_lines(answer)]
    yield from map(one_line, [*page, *report.wrapped(report.version_line(answer))])
