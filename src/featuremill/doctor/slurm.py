"""`featuremill doctor --slurm`: what would stop a run on this cluster, by what Slurm's own
commands answer."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base import locking
from featuremill.base.errors import UserError
from featuremill.base.text import one_line
from featuremill.doctor import report
from featuremill.doctor.checks import by_severity
from featuremill.doctor.compiling import file_system_of
from featuremill.doctor.findings import Issue
from featuremill.doctor.host import installed, nearest_folder

MAX_SECONDS = 30.0
"""For one command's answer."""
NEEDED = ("sbatch", "squeue", "scontrol", "sinfo")
PLUGIN, SNAKEMAKE = "snakemake-executor-plugin-slurm", "snakemake"
TRIED_PLUGIN = "2.8.0"
"""The plugin whose answers to each event docs/slurm-status.md lists."""
NODES_FORMAT = "%P|%a|%l|%D|%T|%G|%m"
GPU = re.compile(r"\bgpu:(?:([^:,()]+):)?(\d+)")
UNUSABLE_STATES = ("down", "drain", "fail", "maint", "unk", "no_respond", "powered_down")
LOCAL_FILE_SYSTEMS = {"btrfs", "ext2", "ext3", "ext4", "overlay", "tmpfs", "xfs", "zfs"}
SHORT_MINUTES = 60
"""A job that computes needs more, as a rule."""


class Partition(NamedTuple):
    """A partition and its nodes."""

    name: str
    is_default: bool
    limit_minutes: int | None
    """The longest time limit; None for no limit."""
    num_nodes: int
    gpus: dict[str, int]
    """All GPUs by type, of usable nodes; the type "" where the cluster names none."""
    num_unusable: int
    """GPUs of other nodes."""
    memory_mb: int
    """Of the node with the least of it, among those with GPUs where there are any."""

    @property
    def has_gpus(self) -> bool:
        return bool(self.gpus or self.num_unusable)


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the readiness of a cluster: docs/doctor.md describes each key.

    Raises:
        UserError: there are no Slurm commands here, or the question is about this machine.
    """
    others = {"--model": "model", "--memory-mb": "memory_mb", "--devices": "devices"}
    if given := [option for option, name in others.items() if getattr(arguments, name)]:
        raise UserError(f"--slurm looks at the cluster, so it takes no {given[0]}; ask twice.")
    missing = [command for command in NEEDED if not shutil.which(command)]
    if missing:
        raise UserError(
            f"{missing[0]}: not in PATH, so there is no Slurm to look at from here; run "
            "featuremill doctor --slurm on a login node of the cluster."
        )
    seconds = min(arguments.timeout, MAX_SECONDS)
    text, trouble = _ask(["scontrol", "show", "config"], seconds)
    rows = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    config = {key.strip(): value.strip() for key, value in rows}
    nodes, _ = _ask(["sinfo", "--noheader", "--all", f"--format={NODES_FORMAT}"], seconds)
    partitions = parse_partitions(nodes)
    versions = installed((SNAKEMAKE, PLUGIN))
    issues = list(_software(versions))
    if trouble:
        what = f"Slurm's controller does not answer ({trouble.rstrip('.')})."
        remedy = "Try scontrol ping; a login node of the cluster may be needed."
        issues.append(Issue("error", "slurm-silent", what, remedy))
    else:
        issues += [*_gpus(partitions), *_folder(arguments.results, partitions)]
    return {
        "version": report.VERSION,
        "ready": not any(issue.severity == "error" for issue in issues),
        "cluster": config.get("ClusterName"),
        "partitions": [
            {
                "name": one.name,
                "limit_minutes": one.limit_minutes,
                "gpus": {kind or "any": count for kind, count in one.gpus.items()},
                "unusable_gpus": one.num_unusable,
                "memory_mb": one.memory_mb,
            }
            for one in _with_gpus(partitions)
        ],
        "issues": [issue._asdict() for issue in by_severity(issues)],
        "versions": versions | {"slurm": config.get("SLURM_VERSION", "unknown")},
    }


def _ask(command: list[str], seconds: float) -> tuple[str, str]:
    """Return what a command answered, and else what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {seconds:g} s"
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return "", said[-1] if said else f"{command[0]} ended with {done.returncode}"
    return done.stdout, ""


def parse_partitions(text: str) -> list[Partition]:
    """Read `sinfo --format=%P|%a|%l|%D|%T|%G|%m`: a line for the nodes of a partition that are
    alike."""
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        name, *rest = line.split("|")
        rows.setdefault(name, []).append(rest)
    return [_partition(name, alike) for name, alike in rows.items()]


def _partition(name: str, rows: Sequence[Sequence[str]]) -> Partition:
    gpus: dict[str, int] = {}
    num_unusable, memory_mb = 0, {True: [0], False: [0]}
    for available, _, count, state, gres, memory in rows:
        found = parse_gpus(gres)
        memory_mb[bool(found)].append(int(memory.rstrip("+")))
        for kind, number in found.items():
            if available == "up" and not state.startswith(UNUSABLE_STATES):
                gpus[kind] = gpus.get(kind, 0) + number * int(count)
            else:
                num_unusable += number * int(count)
    least_mb = min(memory_mb[len(memory_mb[True]) > 1][1:])
    num_nodes = sum(int(row[2]) for row in rows)
    limit = minutes(rows[0][1])
    is_default = name.endswith("*")
    return Partition(
        name.rstrip("*"), is_default, limit, num_nodes, gpus, num_unusable, least_mb
    )  # fmt: skip


def parse_gpus(gres: str) -> dict[str, int]:
    """Read the GPUs of `gpu:a100:4(S:0-1),gpu:l4:2,shard:8`, by type."""
    found: dict[str, int] = {}
    for kind, count in GPU.findall(gres):
        found[kind] = found.get(kind, 0) + int(count)
    return found


def minutes(text: str) -> int | None:
    """Read a time limit (`2-00:00:00`, `30:00`); None for `infinite` and `n/a`."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts):
        return None
    hours, mins, _ = [0, 0, 0, *map(int, parts)][-3:]
    return int(days or 0) * 1440 + hours * 60 + mins


def _with_gpus(partitions: Sequence[Partition]) -> list[Partition]:
    """Return the partitions with GPUs, the longest time limit first."""
    found = [one for one in partitions if one.has_gpus]
    return sorted(found, key=lambda one: (not one.gpus, -(one.limit_minutes or float("inf"))))


def _software(versions: Mapping[str, str]) -> Iterator[Issue]:
    for name in (SNAKEMAKE, PLUGIN):
        if name not in versions:
            yield Issue(
                "error",
                "slurm-plugin-missing",
                f"{name} is not installed here, so Snakemake cannot submit jobs.",
                f"pip install '{PLUGIN}=={TRIED_PLUGIN}', or run inside one sbatch.",
            )
            return


def _gpus(partitions: Sequence[Partition]) -> Iterator[Issue]:
    found = _with_gpus(partitions)
    if not found:
        yield Issue(
            "warning",
            "slurm-no-gpus",
            "No node of this cluster offers GPUs (Gres=gpu).",
            "Set device: cpu, or ask the administrators how GPUs are asked for.",
        )
    away = [
        f"{one.name} {one.num_unusable} of {one.num_unusable + sum(one.gpus.values())}"
        for one in found
        if one.num_unusable
    ]
    if away:
        yield Issue(
            "warning" if any(one.gpus for one in found) else "error",
            "slurm-nodes-away",
            f"GPUs on nodes that are down or drained, by partition: {', '.join(away)}.",
            "sinfo -R says why; jobs wait for the others.",
        )
    for one in found:
        if one.limit_minutes is not None and one.limit_minutes < SHORT_MINUTES:
            yield Issue(
                "warning",
                "slurm-short-limit",
                f"Partition {one.name} ends jobs after {one.limit_minutes} minutes.",
                "Keep runtime below that, and shards: cost so small that one takes half of it.",
            )


def _folder(results: Path, partitions: Sequence[Partition]) -> Iterator[Issue]:
    folder = nearest_folder(results.absolute())
    if trouble := _locks_trouble(folder):
        yield Issue(
            "error",
            "slurm-folder-locks",
            f"Two jobs could not be kept apart in the run's folder: {trouble}.",
            "Put the run on a file system with locks.",
        )
    kind = file_system_of(folder)
    num_nodes = sum(one.num_nodes for one in partitions if one.is_default)
    if kind in LOCAL_FILE_SYSTEMS and num_nodes > 1:
        yield Issue(
            "warning",
            "slurm-folder-local",
            f"{folder} is on {kind}, which is usually one machine's own: jobs on other nodes "
            "would not find the run.",
            "Start the run in a folder that every node sees (home, project or scratch).",
        )


def _locks_trouble(folder: Path) -> str:
    """Say why no lock can be had in the folder; empty when one was."""
    path = folder / f".featuremill-doctor.{os.getpid()}"
    try:
        with path.open("x") as file:
            locking.try_lock(file, path)
    except UserError as error:
        return str(error).partition(";")[0]
    except OSError as error:
        return f"{folder}: {error.strerror}"
    finally:
        path.unlink(missing_ok=True)
    return ""


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page; names come from the cluster, so they are made plain."""
    page = [*report.wrapped(_verdict(answer)), ""]
    for one in answer["partitions"]:
        gpus = ", ".join(f"{n} {kind}" for kind, n in one["gpus"].items()) or "none usable"
        limit = one["limit_minutes"]
        told = "no time limit" if limit is None else f"at most {_hours(limit)}"
        page += report.wrapped(f"Partition {one['name']}: GPUs: {gpus}; {told}.")
    page += [""] if answer["partitions"] else []
    page += [*report.issue_lines(answer), ""] if answer["issues"] else []
    page += report.wrapped(" · ".join(f"{k} {v}" for k, v in answer["versions"].items()))
    return map(one_line, page)


def _verdict(answer: dict[str, Any]) -> str:
    if why_not := report.not_ready(answer):
        return why_not
    gpus = max((sum(one["gpus"].values()) for one in answer["partitions"]), default=0)
    where = f"the cluster {answer['cluster']}"
    if not gpus:
        return f"Ready for the CPU: {where} shows no usable GPU."
    return f"Ready: {where} has up to {gpus} GPU{'s' if gpus > 1 else ''} in a partition."


def _hours(limit_minutes: int) -> str:
    return f"{limit_minutes} minutes" if limit_minutes < 120 else f"{limit_minutes / 60:g} hours"
