"""featuremill extract: compute one shard. This process is the supervisor and never imports torch.

It takes the lock of the journal, leases devices, and starts a worker, whose crash, hang or lack of
memory does not end this process. It writes the receipt last. A second job for the same shard waits
for the lock, without a GPU, and uses the result: a part is verified and reused.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import logging
import os
import platform
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from featuremill.base import run_log
from featuremill.base.environment import SLURM_JOB_ID, SLURM_JOBS, STALL_SECONDS
from featuremill.base.errors import UserError
from featuremill.base.locking import locked
from featuremill.base.reasons import kind_of
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted
from featuremill.extract import Job
from featuremill.extract.recorder import Recorder
from featuremill.extract.supervisor import Supervisor
from featuremill.lease import Request
from featuremill.store import journal_log, lock_holder, shared
from featuremill.store.files import remove_left, sync
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt, gpus_of
from featuremill.store.results import Results, enter

log = logging.getLogger("featuremill.extract")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument("shard", help="name of the shard, as in plan.json")
    parser.add_argument("--recipe", help="refuse to run when plan.json has another one")
    parser.add_argument("--threads", type=int, default=num_cores(), help="host threads")
    parser.add_argument(
        "--stall-seconds",
        type=float,
        help="end a batch that takes longer than this and 20 times its predicted time",
    )


def run(arguments: argparse.Namespace) -> None:
    stall_seconds = arguments.stall_seconds
    if stall_seconds is None:
        stall_seconds = STALL_SECONDS.value()
    folder, shard, recipe = Results(enter(arguments)), arguments.shard, arguments.recipe
    plan = folder.read_plan()
    if recipe not in (None, plan.recipe):
        raise UserError(f"{folder.plan}: its recipe is {plan.recipe}, not {recipe}; plan again.")
    if shard not in {entry.shard for entry in plan.shards}:
        raise UserError(f"{folder.plan}: there is no shard {shard} in this plan; plan again.")
    if not folder.shard(shard).exists():
        folder.plan.unlink(missing_ok=True)  # so that Snakemake reruns plan
        raise UserError(
            f"{folder.shard(shard)}: this shard is gone; run the same command again: it plans anew."
        )
    Extraction(folder, plan, shard, arguments.threads, stall_seconds).finish()


class Extraction:
    """Makes the part of a shard: takes the lock, reuses or computes it, writes the receipt."""

    def __init__(
        self, folder: Results, plan: Plan, shard: str, threads: int, stall_seconds: float
    ) -> None:
        self.plan = plan
        self.shard = shard
        self.part = folder.part(plan.recipe, shard)
        self.declared_receipt = folder.receipt(plan.recipe, shard)
        self.kept_receipt = folder.kept_receipt(plan.recipe, shard)
        self.journal = folder.journal(plan.recipe, shard)
        self.log_path = self.journal.with_suffix(".log")
        self._folder = folder
        self._job = Job(
            run_folder=str(folder.root),
            recipe=plan.recipe,
            shard=shard,
            settings=plan.settings,
            execution=plan.execution,
            cost_unit=plan.cost_unit,
            weights=plan.weights,
            threads=threads,
            stall_seconds=stall_seconds,
            supervisor_pid=os.getpid(),
        )

    def finish(self) -> None:
        """Compute the missing rows of the part, and write its receipt."""
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        self.part.parent.mkdir(parents=True, exist_ok=True)
        with (
            run_log.line(self._folder.root, "extract", self.shard) as line,
            locked(self.journal.with_suffix(".lock"), self._wait) as lock,
        ):
            for path in (self.declared_receipt, self.kept_receipt):
                remove_left(path)  # incomplete ones of killed jobs
            receipt = self._verified()
            if receipt is None:
                receipt = self._extract(lock, line)
            else:
                self.log_path.unlink(missing_ok=True)  # of a job that was killed after renaming
                line.outcome = "kept"
                log.info("shard %s: the part is there already", self.shard[:8])
            receipt.write(self.declared_receipt)
            self._publish(receipt)

    def _wait(self) -> None:
        """Report that another job has the lock, and requeue this job if it is a Slurm job for a
        shard, so that it releases its GPU.

        When Snakemake is killed, its jobs continue, and the next Snakemake submits the same shards
        again. A requeued job starts at least two minutes later, and finds the result or is requeued
        again. Slurm then ends this process. If Slurm refuses (--no-requeue), the job waits.
        """
        log.info("shard %s: another job computes it; waiting", self.shard[:8])
        job = SLURM_JOB_ID.text()
        if job is None or not SLURM_JOBS.value():
            return
        log.info("another job has the shard: Slurm's job %s is queued again until it is done", job)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)  # noqa: S607

    def _publish(self, receipt: Receipt) -> None:
        """Copy the part to the first shared store of the plan, if there is one."""
        for store in self.plan.store[:1]:
            settings = self.plan.settings.as_json()
            try:
                shared.publish(Path(store), self.plan.recipe, settings, self.part, receipt)
            except OSError as error:
                log.warning(
                    "%s: this part could not be put there (%s); featuremill store add %s does so "
                    "later.",
                    store,
                    error.strerror or error,
                    self._folder.root,
                )

    def _verified(self) -> Receipt | None:
        """Return the receipt of an existing part; remove a damaged part and return None."""
        if not (self.part.exists() and self.kept_receipt.exists()):
            return None
        kept = self._folder.find_kept_receipt(self.plan.recipe, self.shard)
        if kept is not None and journal_log.digest_of_file(self.part) == kept.part:
            return kept
        log.warning("%s: its bytes are not those that were written; computing it again", self.part)
        self.part.unlink()
        return None

    def _extract(self, lock: int, line: run_log.Line) -> Receipt:
        started, began = _now(), time.monotonic()
        plan = self.plan
        wanted = Request.from_environment(num_gpus=plan.gpus)
        telemetry = self._folder.telemetry(plan.recipe, self.shard)
        planned = next(entry for entry in plan.shards if entry.shard == self.shard)
        facts = {
            "shard": self.shard,
            "recipe": plan.recipe,
            "rows": planned.records,
            "cost": planned.cost,
            "cost_unit": plan.cost_unit,
        }
        with Recorder(telemetry, self.journal, facts) as recorder:
            supervisor = Supervisor(self._job, self.journal, plan.device, wanted, lock, recorder)
            try:
                with lock_holder.recorded(lock):
                    computed = supervisor.run()
            except BaseException:
                line.text = run_log.of_shard(_so_far(supervisor, recorder), {})
                raise
            receipt = self._finished(computed, supervisor, started, began, wanted.policy)
        reasons = list[str]()
        if receipt.failed:
            from featuremill.store.parts import failed_rows  # imports more of pyarrow

            _, reasons = failed_rows(self.part)
        kinds = Counter(kind_of(reason).name for reason in reasons)
        line.text = run_log.of_shard(receipt.as_json(), kinds)
        log.info("shard %s: %s", self.shard[:8], _outcome(receipt))
        return receipt

    def _finished(
        self, computed: Receipt, supervisor: Supervisor, started: str, began: float, policy: str
    ) -> Receipt:
        """Rename the finished journal to the part; return the complete receipt."""
        seconds = {
            **computed.seconds,
            "wait": round(supervisor.seconds_waited, 3),
            "total": round(time.monotonic() - began, 3),
        }
        facts = {
            "seconds": seconds,
            "retries": supervisor.num_deaths,
            "started": started,
            "finished": _now(),
            "host": platform.node(),
            "policy": policy,
        }
        receipt = computed.model_copy(update=facts)
        # The receipt is written first, so that a part with its final name always has a digest.
        receipt.write(self.kept_receipt)
        self.journal.replace(self.part)
        sync(self.part.parent)
        self.log_path.unlink(missing_ok=True)
        self.part.with_suffix(".bad").unlink(missing_ok=True)
        return receipt


def _so_far(supervisor: Supervisor, recorder: Recorder) -> dict[str, Any]:
    """Return the progress of an unfinished job, with the keys of a receipt."""
    progress = recorder.progress
    failed = progress.get("rows_failed", 0)
    return {
        **progress,
        "ok": progress.get("rows_done", 0) - failed,
        "failed": failed,
        "retries": supervisor.num_deaths,
        "seconds": {**progress.get("seconds", {}), "wait": supervisor.seconds_waited},
        "devices": recorder.devices,
        "host": platform.node(),
    }


def _outcome(receipt: Receipt) -> str:
    on = f" on {gpus_of(receipt.devices)}" if receipt.is_on_gpu else ""
    parts = [f"{counted(receipt.ok, 'record')} in {receipt.seconds['total']:.1f} s{on}"]
    if receipt.failed:
        parts.append(f"{receipt.failed:,} failed")
    if receipt.resumed_batches:
        batches = counted(receipt.batches, "batch", "batches")
        resumed = f"{receipt.resumed_batches} of {batches} resumed"
        parts.append(f"{resumed} from before a stop or a crash")
    return ", ".join(parts)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
