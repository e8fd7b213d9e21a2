"""Issues of a Slurm cluster: what keeps a run from ending, and what costs."""

from __future__ import annotations

from collections.abc import Iterator

from featuremill.doctor.findings import Issue
from featuremill.doctor.slurm_advice import MIN_JOB_AGE_SECONDS, gpu_partitions
from featuremill.doctor.slurm_facts import LOCAL_FILE_SYSTEMS, PLUGIN, SNAKEMAKE, Cluster

TRIED_PLUGIN = "2.8.0"
"""The plugin whose answers to each event docs/slurm-status.md lists."""
SHORT_MINUTES = 60


def check(cluster: Cluster) -> Iterator[Issue]:
    """Yield what was found."""
    yield from _software(cluster)
    if cluster.controller_trouble:
        yield Issue(
            "error",
            "slurm-silent",
            f"Slurm's controller does not answer ({cluster.controller_trouble.rstrip('.')}).",
            "Try scontrol ping; a login node of the cluster may be needed.",
        )
        return
    yield from _status(cluster)
    yield from _nodes(cluster)
    yield from _jobs(cluster)
    yield from _folder(cluster)


def _software(cluster: Cluster) -> Iterator[Issue]:
    plugin = cluster.versions.get(PLUGIN)
    if SNAKEMAKE not in cluster.versions or plugin is None:
        name = SNAKEMAKE if SNAKEMAKE not in cluster.versions else PLUGIN
        yield Issue(
            "error",
            "slurm-plugin-missing",
            f"{name} is not installed here, so Snakemake cannot submit jobs.",
            f"pip install '{PLUGIN}=={TRIED_PLUGIN}', or run inside one sbatch.",
        )
    elif plugin != TRIED_PLUGIN:
        yield Issue(
            "note",
            "slurm-plugin-untried",
            f"{PLUGIN} is {plugin}; what follows was tried with {TRIED_PLUGIN}.",
            f"Where a run seems to wait for ever: pip install '{PLUGIN}=={TRIED_PLUGIN}'.",
        )


def _status(cluster: Cluster) -> Iterator[Issue]:
    age = cluster.min_job_age_seconds
    if cluster.accounting == "none":
        yield Issue(
            "note",
            "slurm-no-accounting",
            "There is no accounting database: how a job ended is known for "
            f"{age} s (MinJobAge), and after that from what the job left on record.",
            "Nothing to do with this workflow; another one would need slurm-status-command: "
            "squeue, and would lose its jobs when the controller is away.",
        )
    elif cluster.accounting != "yes":
        yield Issue(
            "warning",
            "slurm-database-away",
            f"The accounting database does not answer ({cluster.accounting.rstrip('.')}).",
            "A run goes on without it; tell the cluster's administrators.",
        )
    if age < MIN_JOB_AGE_SECONDS:
        yield Issue(
            "note",
            "slurm-forgets-early",
            f"Slurm forgets a job {age} s after its end (MinJobAge), sooner than the executor "
            "may look.",
            "Nothing to do with this workflow; others must not use slurm-status-command: squeue.",
        )


def _nodes(cluster: Cluster) -> Iterator[Issue]:
    partitions = gpu_partitions(cluster)
    if not partitions:
        yield Issue(
            "warning",
            "slurm-no-gpus",
            "No node of this cluster offers GPUs (Gres=gpu).",
            "Set device: cpu, or ask the administrators how GPUs are asked for.",
        )
    away = {one.name: (one.num_unusable, sum(one.gpus.values())) for one in partitions}
    told = [f"{name} {bad} of {bad + good}" for name, (bad, good) in away.items() if bad]
    if told:
        yield Issue(
            "warning" if any(good for _, good in away.values()) else "error",
            "slurm-nodes-away",
            f"GPUs on nodes that are down or drained, by partition: {', '.join(told)}.",
            "sinfo -R says why; jobs wait for the others.",
        )
    for one in partitions:
        if one.limit_minutes is not None and one.limit_minutes < SHORT_MINUTES:
            yield Issue(
                "warning",
                "slurm-short-limit",
                f"Partition {one.name} ends jobs after {one.limit_minutes} minutes.",
                "Keep runtime below that, and shards: cost so small that one takes half of it.",
            )


def _jobs(cluster: Cluster) -> Iterator[Issue]:
    config = cluster.config
    if gpu_partitions(cluster) and config.get("ConstrainDevices", "no").lower() != "yes":
        yield Issue(
            "warning",
            "slurm-devices-open",
            "Jobs are not kept off devices that they were not given (ConstrainDevices): one that "
            "asks for no GPU sees all of them.",
            "Let every job that uses one ask for it (gpu=1); extract does.",
        )
    if not any(
        _is_set(config.get(key, "")) for key in ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU")
    ):
        yield Issue(
            "warning",
            "slurm-memory-whole",
            "A job that names no memory gets all of its node (no DefMemPerCPU).",
            "Keep mem_mb in default-resources, so that several jobs fit on a node.",
        )
    modes = config.get("PreemptMode", "OFF")
    if modes.upper() not in ("", "OFF"):
        yield Issue(
            "note",
            "slurm-preempts",
            f"Jobs may be preempted here (PreemptMode {modes}).",
            "Nothing: with slurm-requeue: true they go on from the journal; retries covers "
            "partitions that cancel.",
        )
    if len({one.account for one in cluster.associations}) > 1:
        yield Issue(
            "note",
            "slurm-accounts",
            "You have several accounts; the profile below names one.",
            "Choose: sacctmgr show associations where user=$USER.",
        )


def _is_set(value: str) -> bool:
    return value.isdecimal() and int(value) > 0


def _folder(cluster: Cluster) -> Iterator[Issue]:
    path, kind, trouble = cluster.folder
    if trouble:
        yield Issue(
            "error",
            "slurm-folder-locks",
            f"Two jobs could not be kept apart in the run's folder: {trouble}.",
            "Put the run on a file system with locks.",
        )
    num_nodes = sum(one.num_nodes for one in cluster.node_sets if one.is_default)
    if kind in LOCAL_FILE_SYSTEMS and num_nodes > 1:
        yield Issue(
            "warning",
            "slurm-folder-local",
            f"{path} is on {kind}, which is usually one machine's own: jobs on other nodes would "
            "not find the run.",
            "Start the run in a folder that every node sees (home, project or scratch).",
        )
