"""How to run on a cluster: which status command, and the lines that its profile needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from featuremill.doctor.slurm_facts import Cluster

MIN_JOB_AGE_SECONDS = 200
"""The executor looks every 180 s at least: jobs that squeue forgets sooner are never seen again."""
USUAL_JOBS = 100
USUAL_MINUTES = 30
USUAL_MEMORY_MB = 4000
"""For jobs that say nothing, as in profiles/slurm."""
LONG_MINUTES = 240
"""Jobs that compute ask for less than this, as a rule."""
NO_LIMIT = 10**9


class StatusMode(NamedTuple):
    """Which status command the profile says, and which one is safe without our commands."""

    command: str
    without_ours: str | None
    why: str


class GpuPartition(NamedTuple):
    """A partition whose nodes have GPUs."""

    name: str
    limit_minutes: int | None
    gpus: dict[str, int]
    """All GPUs by type, of usable nodes."""
    num_unusable: int
    memory_mb: int
    """Of the node with the least of it."""


def status_mode(cluster: Cluster) -> StatusMode:
    """Say which status command is safe."""
    has_database = cluster.accounting == "yes"
    age = cluster.min_job_age_seconds
    if has_database and age >= MIN_JOB_AGE_SECONDS:
        why = f"jobs stay visible for {age} s and slurmdbd answers when slurmctld does not"
        return StatusMode("sacct", "squeue", why)
    if not has_database:
        why = "without accounting sacct tells nothing, and one failed query forgets every job"
    else:
        why = f"squeue forgets a job after {age} s, and sacct's “CANCELLED by” is never understood"
    return StatusMode("sacct", None, why)


def gpu_partitions(cluster: Cluster) -> list[GpuPartition]:
    """Return the partitions with GPUs, the longest time limit first."""
    names = dict.fromkeys(one.partition for one in cluster.node_sets if one.gpus)
    found = [_gpu_partition(cluster, name) for name in names]
    return sorted(found, key=lambda one: (not one.gpus, -(one.limit_minutes or NO_LIMIT)))


def _gpu_partition(cluster: Cluster, name: str) -> GpuPartition:
    sets = [one for one in cluster.node_sets if one.partition == name and one.gpus]
    gpus: dict[str, int] = {}
    num_unusable = 0
    for nodes in sets:
        for kind, count in nodes.gpus.items():
            if nodes.is_usable:
                gpus[kind] = gpus.get(kind, 0) + count * nodes.num_nodes
            else:
                num_unusable += count * nodes.num_nodes
    memory_mb = min(one.memory_mb for one in sets)
    return GpuPartition(name, sets[0].limit_minutes, gpus, num_unusable, memory_mb)


def profile(cluster: Cluster) -> list[str]:
    """Return the lines of YAML that profiles/slurm/config.yaml needs on this cluster."""
    partitions = gpu_partitions(cluster)
    lines = [f"jobs: {_jobs(cluster)}", f"slurm-status-command: {status_mode(cluster).command}"]
    accounts = sorted({one.account for one in cluster.associations})
    general = next((one for one in cluster.node_sets if one.is_default), None)
    general = general or next(iter(cluster.node_sets), None)
    lines.append("default-resources:")
    if accounts:
        others = f" # or {', '.join(accounts[1:])}" if len(accounts) > 1 else ""
        lines.append(f"  slurm_account: {quoted(accounts[0])}{others}")
    if general:
        memory_mb = min(_mb(cluster.config.get("MaxMemPerNode", "")), general.memory_mb)
        lines += [
            f"  slurm_partition: {quoted(general.partition)}",
            f"  runtime: {min(USUAL_MINUTES, general.limit_minutes or NO_LIMIT)} # minutes",
            f"  mem_mb: {min(USUAL_MEMORY_MB, memory_mb)}",
        ]
    if partitions:
        lines += ["set-resources:", "  extract:", *_gpu_lines(partitions)]
    return lines


def _gpu_lines(partitions: list[GpuPartition]) -> Iterator[str]:
    first = partitions[0]
    others = ", ".join(one.name for one in partitions[1:])
    yield f"    slurm_partition: {quoted(first.name)}" + (f" # or {others}" if others else "")
    if (first.limit_minutes or NO_LIMIT) < LONG_MINUTES:
        yield f"    runtime: {first.limit_minutes} # minutes: a job that asks for more never starts"
    kinds = sorted(kind for kind in first.gpus if kind)
    if len(kinds) > 1:
        yield f"    # gpu_model: {kinds[0]} # or {', '.join(kinds[1:])}; without it, any of them"


def _jobs(cluster: Cluster) -> int:
    limits = [one.max_submit for one in cluster.associations if one.max_submit]
    return min([USUAL_JOBS, *limits])


def _mb(text: str) -> int:
    return int(text) if text.isdecimal() and int(text) else NO_LIMIT


def quoted(name: str) -> str:
    """Return a name as YAML reads it as text."""
    is_plain = name.replace("_", "a").replace("-", "a").isalnum() and name[0].isalpha()
    words = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
    return name if is_plain and name.lower() not in words else "'" + name.replace("'", "''") + "'"
