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
from typing import Any

from pydantic import BaseModel

from featuremill.base import locking
from featuremill.base.errors import UserError
from featuremill.base.text import one_line
from featuremill.base.this_process import installed, nearest_folder
from featuremill.doctor import report
from featuremill.doctor.checks import by_severity
from featuremill.doctor.findings import Issue
from featuremill.lease.folder import file_system

MOUNTS = Path("/proc/self/mountinfo")
MAX_SECONDS = 30.0
"""For one command's answer."""
NEEDED = ("sbatch", "squeue", "scontrol", "sinfo")
PLUGIN, SNAKEMAKE = "snakemake-executor-plugin-slurm", "snakemake"
TRIED_PLUGIN = "2.8.0"
"""The plugin whose answers to each event docs/slurm-status.md lists."""
NODES_FORMAT = "%P|%a|%l|%D|%T|%G"
GPU = re.compile(r"\bgpu:(?:([^:,()]+):)?(\d+)")
UNUSABLE_STATES = ("down", "drain", "fail", "maint", "unk", "no_respond", "powered_down")
LOCAL_FILE_SYSTEMS = {"btrfs", "ext2", "ext3", "ext4", "overlay", "tmpfs", "xfs", "zfs"}


class Partition(BaseModel):
    name: str
    is_default: bool
    """Whether jobs go there that name none."""
    limit: str
    """The longest time limit, as Slurm writes it."""
    num_nodes: int = 0
    gpus: dict[str, int] = {}
    """All GPUs by type, of usable nodes; the type "any" where the cluster names none."""
    unusable_gpus: int = 0
    """GPUs of other nodes."""


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the readiness of a cluster: docs/json.md describes each key.

    Raises:
        UserError: there are no Slurm commands here, or the question is about this machine.
    """
    for name in ("model", "config", "devices"):
        if getattr(arguments, name):
            raise UserError(
                f"--slurm looks at the cluster, so it takes no --{name}; run featuremill doctor "
                "twice."
            )
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
        "partitions": [partition.model_dump() for partition in _with_gpus(partitions)],
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
    """Read `sinfo --format=%P|%a|%l|%D|%T|%G`: a line for the nodes of a partition that are
    alike."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        name, available, limit, count, state, gres = line.split("|")
        is_default = name.endswith("*")
        new = Partition(name=name.rstrip("*"), is_default=is_default, limit=limit)
        partition = found.setdefault(name, new)
        partition.num_nodes += int(count)
        for kind, number in parse_gpus(gres).items():
            if available == "up" and not state.startswith(UNUSABLE_STATES):
                partition.gpus[kind] = partition.gpus.get(kind, 0) + number * int(count)
            else:
                partition.unusable_gpus += number * int(count)
    return list(found.values())


def parse_gpus(gres: str) -> dict[str, int]:
    """Read the GPUs of `gpu:a100:4(S:0-1),gpu:l4:2,shard:8`, by type."""
    found: dict[str, int] = {}
    for kind, count in GPU.findall(gres):
        found[kind or "any"] = found.get(kind or "any", 0) + int(count)
    return found


def _with_gpus(partitions: Sequence[Partition]) -> list[Partition]:
    """Return the partitions with GPUs, those with usable ones first."""
    found = [partition for partition in partitions if partition.gpus or partition.unusable_gpus]
    return sorted(found, key=lambda partition: not partition.gpus)


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
    names = sorted({kind for partition in found for kind in partition.gpus if "-" in kind})
    if names:
        yield Issue(
            "warning",
            "slurm-gpu-names",
            f"Names of GPUs with a hyphen cannot be a gpu_model: {', '.join(names)}.",
            "To choose such GPUs, name a feature of their nodes: constraint (sinfo -o '%f %G').",
        )
    away = [
        f"{partition.name} {(bad := partition.unusable_gpus)} of "
        f"{bad + sum(partition.gpus.values())}"
        for partition in found
        if partition.unusable_gpus
    ]
    if away:
        yield Issue(
            "warning" if any(partition.gpus for partition in found) else "error",
            "slurm-nodes-away",
            f"GPUs on nodes that are down or drained, by partition: {', '.join(away)}.",
            "sinfo -R prints why; jobs wait for the others.",
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
    kind = file_system(folder, MOUNTS.read_text("utf-8", "replace"))
    num_nodes = sum(partition.num_nodes for partition in partitions if partition.is_default)
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
    for partition in answer["partitions"]:
        gpus = ", ".join(f"{n} {kind}" for kind, n in partition["gpus"].items()) or "none usable"
        page += report.wrapped(
            f"Partition {partition['name']}: GPUs: {gpus}; time limit {partition['limit']}."
        )  # fmt: skip
    page += [""] if answer["partitions"] else []
    page += [*report.issue_lines(answer), ""] if answer["issues"] else []
    page += report.wrapped(" · ".join(f"{k} {v}" for k, v in answer["versions"].items()))
    return map(one_line, page)


def _verdict(answer: dict[str, Any]) -> str:
    if why_not := report.not_ready(answer):
        return why_not
    gpus = max((sum(partition["gpus"].values()) for partition in answer["partitions"]), default=0)
    where = f"the cluster {answer['cluster']}"
    if not gpus:
        return f"Ready for the CPU: {where} shows no usable GPU."
    return f"Ready: {where} has up to {gpus} GPU{'s' if gpus > 1 else ''} in a partition."
