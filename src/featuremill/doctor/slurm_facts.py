"""What Slurm's own commands say of a cluster, and how their answers are read."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from featuremill.base import locking
from featuremill.base.errors import UserError

NEEDED = ("sbatch", "squeue", "scontrol", "sinfo")
PLUGIN, SNAKEMAKE = "snakemake-executor-plugin-slurm", "snakemake"
NODES_FORMAT = "%P|%a|%l|%L|%D|%T|%G|%m"
GPU = re.compile(r"\bgpu:(?:([^:,()]+):)?(\d+)")
UNUSABLE_STATES = ("down", "drain", "fail", "maint", "unk", "no_respond", "powered_down")
LOCAL_FILE_SYSTEMS = {"btrfs", "ext2", "ext3", "ext4", "overlay", "tmpfs", "xfs", "zfs"}


class NodeSet(NamedTuple):
    """Nodes of one partition that are alike."""

    partition: str
    is_default: bool
    is_up: bool
    limit_minutes: int | None
    """The longest time limit; None for no limit."""
    usual_minutes: int | None
    """The limit of a job that asks for none."""
    num_nodes: int
    state: str
    gpus: Mapping[str, int]
    """How many GPUs a node has of each type; the type "" where the cluster names none."""
    memory_mb: int

    @property
    def is_usable(self) -> bool:
        return self.is_up and not self.state.startswith(UNUSABLE_STATES)


class Association(NamedTuple):
    """What the accounting database allows the user."""

    account: str
    max_submit: int | None


class Folder(NamedTuple):
    """The folder of the run."""

    path: Path
    file_system: str
    locks_trouble: str
    """Why there are no locks; empty where there are."""


class Cluster(NamedTuple):
    """A cluster as its commands describe it."""

    config: Mapping[str, str]
    """`scontrol show config`; empty where the controller does not answer."""
    controller_trouble: str
    node_sets: tuple[NodeSet, ...]
    accounting: str
    """"yes", "none", or why the database does not answer."""
    associations: tuple[Association, ...]
    folder: Folder
    versions: Mapping[str, str]

    @property
    def min_job_age_seconds(self) -> int:
        return seconds(self.config.get("MinJobAge", ""))


def look(folder: Path, timeout: float) -> Cluster:
    """Ask the cluster; raise UserError where there are no Slurm commands."""
    missing = [command for command in NEEDED if not shutil.which(command)]
    if missing:
        raise UserError(
            f"{missing[0]}: not in PATH, so there is no Slurm to look at from here; run "
            "featuremill doctor --slurm on a login node of the cluster."
        )
    config, trouble = _ask(["scontrol", "show", "config"], timeout)
    nodes, _ = _ask(["sinfo", "--noheader", "--all", f"--format={NODES_FORMAT}"], timeout)
    accounting, rows = _accounting(parse_config(config), timeout)
    return Cluster(
        config=parse_config(config),
        controller_trouble=trouble,
        node_sets=tuple(parse_nodes(nodes)),
        accounting=accounting,
        associations=tuple(parse_associations(rows)),
        folder=_folder(folder),
        versions=_versions(),
    )


def _ask(command: list[str], timeout: float) -> tuple[str, str]:
    """Return what a command answered, and else what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {timeout:g} s"
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return "", said[-1] if said else f"{command[0]} ended with {done.returncode}"
    return done.stdout, ""


def _accounting(config: Mapping[str, str], timeout: float) -> tuple[str, str]:
    """Return whether sacct answers, and what the database allows this user."""
    if config.get("AccountingStorageType", "").endswith("/none") or not shutil.which("sacct"):
        return "none", ""
    query = ["sacct", "-X", "-n", "-P", "-o", "JobIDRaw", "-S", "now-1minutes"]
    _, trouble = _ask(query, timeout)
    if trouble:
        return trouble, ""
    wanted = ["format=Account,MaxSubmitJobs", "where", f"user={getpass.getuser()}"]
    rows, _ = _ask(["sacctmgr", "-nP", "show", "associations", *wanted], timeout)
    return "yes", rows


def parse_config(text: str) -> dict[str, str]:
    """Read `scontrol show config`, its section about cgroups too."""
    rows = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in rows}


def parse_nodes(text: str) -> list[NodeSet]:
    """Read `sinfo --format=%P|%a|%l|%L|%D|%T|%G|%m`."""
    rows = (line.split("|") for line in text.splitlines())
    return [
        NodeSet(
            partition=name.rstrip("*"),
            is_default=name.endswith("*"),
            is_up=available == "up",
            limit_minutes=minutes(limit),
            usual_minutes=minutes(usual),
            num_nodes=int(count),
            state=state,
            gpus=parse_gpus(gres),
            memory_mb=int(memory.rstrip("+")),
        )
        for name, available, limit, usual, count, state, gres, memory in rows
    ]


def parse_gpus(gres: str) -> dict[str, int]:
    """Read the GPUs of `gpu:a100:4(S:0-1),gpu:l4:2,shard:8`, by type."""
    found: dict[str, int] = {}
    for kind, count in GPU.findall(gres):
        found[kind] = found.get(kind, 0) + int(count)
    return found


def parse_associations(text: str) -> list[Association]:
    """Read `sacctmgr -nP show associations format=Account,MaxSubmitJobs`."""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") == 1)
    return [Association(account, int(limit) if limit else None) for account, limit in rows]


def minutes(text: str) -> int | None:
    """Read a time limit (`2-00:00:00`, `30:00`); None for `infinite` and `n/a`."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts):
        return None
    hours, mins, _ = [0, 0, 0, *map(int, parts)][-3:]
    return int(days or 0) * 1440 + hours * 60 + mins


def seconds(text: str) -> int:
    """Read `300 sec`; 0 where there is no number."""
    found = re.match(r"\d+", text)
    return int(found.group()) if found else 0


def _folder(results: Path) -> Folder:
    nearest = next(p for p in (results.absolute(), *results.absolute().parents) if p.is_dir())
    return Folder(nearest, _file_system(nearest), _locks_trouble(nearest))


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, by the longest mount point."""
    mounts = Path("/proc/mounts")
    best, kind = "", ""
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, place, this_kind, *_ = line.split(" ")
        if path.is_relative_to(place) and len(place) >= len(best):
            best, kind = place, this_kind
    return kind


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


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in (SNAKEMAKE, PLUGIN):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
