"""A Slurm job of one or a few shards gives its GPU back while it waits for another job.

After Snakemake is killed its jobs continue, and the next Snakemake submits the same shards again.
Such a second job has to wait for the first. It asks Slurm to requeue it: it starts again, at least
two minutes later, and finds the result or waits once more.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess

from featuremill.base.environment import SLURM_JOB_ID, SLURM_JOBS

log = logging.getLogger("featuremill.extract")


def queue_again() -> None:
    """Requeue this job, if it is a Slurm job for a shard.

    Slurm then ends this process. If Slurm refuses (--no-requeue), the job waits where it is.
    """
    job = SLURM_JOB_ID.text()
    if job is None or not SLURM_JOBS.value():
        return
    log.info("another job has the shard: Slurm's job %s is queued again until it is done", job)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)  # noqa: S607
