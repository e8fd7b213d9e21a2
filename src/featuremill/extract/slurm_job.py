"""What a job does that Slurm started for one shard, or a few: it gives its GPU back while it waits.

After Snakemake was killed its jobs continue, and the next Snakemake submits the same shards once
more. Such a second job has to wait for the first one. It asks Slurm to queue it again meanwhile:
when it starts anew, two minutes later at the earliest, it finds the result, or waits that way once
more.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess

from featuremill.base.environment import SLURM_JOB_ID, SLURM_JOBS

log = logging.getLogger("featuremill.extract")


def queue_again() -> None:
    """Have Slurm put this job back into its queue, if it is one of Slurm's for a shard.

    Slurm then ends this process. Where it refuses (--no-requeue) the job waits where it is.
    """
    job = SLURM_JOB_ID.text()
    if job is None or not SLURM_JOBS.value():
        return
    log.info("another job has the shard: Slurm's job %s is queued again until it is done", job)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)  # noqa: S607
