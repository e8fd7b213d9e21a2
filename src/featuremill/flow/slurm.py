"""Slurm: a subclass of Snakemake's executor that finds out how each job ended, whatever happens to
the job or to Slurm's daemons (docs/slurm-status.md).

Snakemake's executor forgets jobs, or waits for them for ever, after events that happen on any
cluster. Jobs of the subclass write their exit status to a file, and submissions wait for a
controller that does not answer. `check_active_jobs` asks the controller, then the accounting
database (if there is one), then reads that file.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.words import duration
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError

EXECUTOR = "snakemake_executor_plugin_slurm"
FOLDER = Path(".snakemake/featuremill-slurm")
"""A folder for each Snakemake, in which its jobs leave how they ended."""
GRACE_SECONDS = 30.0
"""How long a job that Slurm has forgotten may wait for its exit status to appear."""
ANSWER_SECONDS = 20.0
"""How long a command of Slurm may take."""
PATIENCE_SECONDS = 3600.0
"""How long a submission waits for the controller."""
PAUSE_SECONDS, STEP_SECONDS = 5.0, 0.5
"""Times between two checks of a waiting submission, and between two whether the run is over."""
AWAY = "Slurm's controller (slurmctld) does not answer{}: submissions wait for it, up to an hour."
REMIND_SECONDS = 60.0
"""Between two messages on the screen while it does not answer."""
NEEDED = ("sbatch", "squeue", "scancel")
LONGEST_SECONDS = 180
"""The longest time between two checks of the jobs, while none of them ends."""
PLUGIN_NAME = re.compile(r"[a-zA-Z0-9_.]+")
"""What the executor takes as a `gpu_model` (2.8.0); Slurm's own names may have hyphens."""
CLUSTERS = ("cluster", "clusters", "slurm_cluster")
"""Resources that send a job to another cluster."""

FAILURES = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"}
OTHER_FAILURES = {"NODE_FAIL", "PREEMPTED", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"}
"""Final states of jobs that Slurm often queues again."""
STUCK_REASONS = ("PartitionTimeLimit", "PartitionNodeLimit", "launch failed requeued held")
"""Reasons of pending jobs that no waiting fixes (prefixes)."""
NEEDS_A_PERSON = {"SPECIAL_EXIT", "REQUEUE_HOLD"}

# In a file, as the executor hands a command to `sbatch --wrap` through a shell of its own.
WATCH = """\
#!/bin/sh
# Runs the command of one of Slurm's jobs, and leaves its exit status beside this file.
left=${0%/*}/$SLURM_JOB_ID.exit
rm -f "$left"
/bin/sh -c "$1"
status=$?
echo "$status" 2>/dev/null >"$left.new" && mv -f "$left.new" "$left"
exit "$status"
"""


class Live(NamedTuple):
    """What the controller reports of a job."""

    state: str
    partition: str
    reason: str


class Verdict(NamedTuple):
    """The final state of a job, and the reason."""

    state: str
    reason: str = ""


def judge(
    live: Live | None, accounted: str = "", exit_status: str = "", missed_seconds: float = 0.0
) -> Verdict | None:
    """Return how a job ended; None while it may still run.

    `live` is the controller's answer, None if it lists no such job, for `missed_seconds` now.
    `accounted` is the state in the database, and `exit_status` the one that the job's own script
    left; both are empty if there is none.
    """
    if live:
        return _final(live.state, live.reason) or _stuck(live)
    # The controller forgets a job only when it has ended, so what is on record is final.
    if verdict := _final(accounted, ""):
        return verdict
    if exit_status == "0":
        return Verdict("COMPLETED")
    if exit_status:
        return Verdict("FAILED", f"exit status {exit_status}")
    if missed_seconds < GRACE_SECONDS:
        return None
    return Verdict("FAILED", "Slurm has no record of it any more, and it left no exit status")


def _final(state: str, reason: str) -> Verdict | None:
    word = state.partition(" ")[0].rstrip("+")  # "CANCELLED by 1000"
    suffix = "" if reason in ("", "None") else f": {reason}"
    if word == "COMPLETED":
        return Verdict(word)
    if word in FAILURES:
        return Verdict(word, f"{state}{suffix}")
    if word in OTHER_FAILURES:
        return Verdict("FAILED", f"{state}{suffix}, and Slurm has not queued it again")
    return None


def _stuck(live: Live) -> Verdict | None:
    # Of several partitions one may take the job although another cannot.
    is_stuck = live.reason.replace("_", " ").startswith(STUCK_REASONS) and "," not in live.partition
    if live.state in NEEDS_A_PERSON or (live.state == "PENDING" and is_stuck):
        return Verdict("CANCELLED", f"it could never start ({live.state}: {live.reason})")
    return None


class Watch:
    """The states of the jobs of one Snakemake, which all have the same `name` in Slurm."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._name = folder, name
        self._missed: dict[str, float] = {}
        """Since when the controller has not known a job, by the clock of this process."""
        self._away_since = math.inf
        """When the controller was first seen not to answer, by the same clock."""
        self._reminders = 0

    def command(self, command: str) -> str:
        """Return a job's command so that it leaves its exit status in this folder."""
        script = self.folder / "watch.sh"
        if not script.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            new = script.with_name(f"{threading.get_ident()}.new")
            new.write_text(WATCH, "utf-8")
            new.replace(script)
        return f"/bin/sh {shlex.quote(str(script))} {shlex.quote(command)}"

    def verdicts(self, jobs: Iterable[str]) -> dict[str, Verdict]:
        """Return how those of `jobs` ended that have ended or can never start.

        Nothing is returned while the controller does not answer: the database is out of date then,
        and no further job could be submitted.
        """
        live = self.ask_controller()
        if live is None:
            return {}
        wanted = list(jobs)
        accounted = _ask_database([job for job in wanted if job not in live])
        verdicts = {}
        for job in wanted:
            now = live.get(job)
            if now:
                self._missed.pop(job, None)
                verdict = judge(now)
            else:
                missed = time.monotonic() - self._missed.setdefault(job, time.monotonic())
                verdict = judge(None, accounted.get(job, ""), self._exit_status(job), missed)
            if verdict:
                if now and _stuck(now):
                    _ask(["scancel", job])
                verdicts[job] = verdict
        return verdicts

    def ask_controller(self) -> dict[str, Live] | None:
        """Return what slurmctld reports of the jobs; None if it does not answer, of which a
        message is printed once a minute."""
        whose = ["--name", self._name] if self._name else ["--user", str(os.getuid())]
        text = _ask(["squeue", "--noheader", "--states=all", *whose, "--format=%i|%T|%P|%r"])
        if text is not None:
            self._away_since, self._reminders = math.inf, 0
            rows = (line.split("|", 3) for line in text.splitlines())
            return {row[0].strip(): Live(*row[1:]) for row in rows if len(row) == 4}
        now = time.monotonic()
        self._away_since = min(self._away_since, now)
        if now - self._away_since >= REMIND_SECONDS * self._reminders:
            lasted = f", for {duration(now - self._away_since)} now" if self._reminders else ""
            self._reminders += 1
            internals.log.warning(AWAY.format(lasted))
        return None

    def _exit_status(self, job: str) -> str:
        """Return the exit status that the job left; "" without a complete line."""
        with suppress(OSError):
            text = (self.folder / f"{job}.exit").read_text()
            return text.strip() if text.endswith("\n") else ""
        return ""


def _ask_database(jobs: list[str]) -> dict[str, str]:
    """Return the states of `jobs` in slurmdbd's database, if it answers."""
    if not jobs or not shutil.which("sacct"):
        return {}
    options = ["--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,State"]
    text = _ask(["sacct", *options, "--jobs", ",".join(jobs)])
    rows = (line.split("|") for line in (text or "").splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def prepare(workflow: Any) -> None:
    """Use the executor `watched` if this is the main process and it submits jobs to Slurm. Other
    executors stay as they are."""
    submits = internals.executes(workflow) and internals.runs_elsewhere(workflow)
    if submits and EXECUTOR in sys.modules:
        if problem := problem_of_gpus(internals.rule_resources(workflow, "extract")):
            raise RefusedError(problem)
        internals.replace_executor("slurm", watched)


def problem_of_gpus(resources: Mapping[str, str]) -> str:
    """Return why jobs with these `resources` could not be submitted, or would request GPUs twice;
    "" if neither is so. Snakemake's executor would refuse them only once there is a plan."""
    model = resources.get("gpu_model", "")
    if model and not PLUGIN_NAME.fullmatch(model):
        return (
            f"gpu_model: {model}: Snakemake's plugin for Slurm takes only letters, digits, '_' and "
            "'.' there; leave it out and choose the nodes by one of their features, which sinfo "
            "-o '%f %G' prints: constraint=FEATURE."
        )
    gres = resources.get("gres", "")
    if gres.split(":")[0] in ("gpu", "shard") and resources.get("gpu") != "0":
        return (
            f"gres: {gres}: the job would ask for this and for gpu=1 besides; leave gres "
            "out, or add gpu=0 to it: --set-resources extract:gpu=0."
        )
    return ""


def watched(executor: type[Any]) -> type[Any]:
    """Return a subclass of Snakemake's Slurm executor that determines how each job ended."""

    class Watched(executor):  # type: ignore[misc]
        """Snakemake's Slurm executor with its own check of the states of jobs."""

        def __init__(self, workflow: Any, *arguments: Any, **keywords: Any) -> None:
            """Refuse what could not be followed; the first look runs at the same time."""
            settings = workflow.executor_settings
            if missing := [command for command in NEEDED if not shutil.which(command)]:
                raise RefusedError(
                    f"executor slurm: {missing[0]} is not in PATH, so no job can be submitted from "
                    "here; type the same command on a login node of the cluster."
                )
            if getattr(settings, "array_jobs", None):
                raise internals.WorkflowError(
                    "job arrays hang in the executor: leave slurm-array-jobs out."
                )
            self._is_over = threading.Event()
            first = getattr(settings, "init_seconds_before_status_checks", None)
            self._first_pause = self._pause = first or 40
            super().__init__(workflow, *arguments, **keywords)

        def __post_init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__post_init__(*arguments, **keywords)
            name = str(getattr(self, "run_uuid", ""))
            self._watch = Watch((FOLDER / (name or str(os.getpid()))).absolute(), name)

        def format_job_exec(self, job: Any) -> str:
            return self._watch.command(super().format_job_exec(job))

        def run_job(self, job: Any) -> None:
            """Submit the job once the controller answers; refuse jobs for another cluster."""
            if any(map(job.resources.get, CLUSTERS)):
                message = "jobs are looked for on one cluster only: leave slurm_cluster out.\n"
                self.report_job_error(internals.submitted(job), msg=message)
                return
            until = time.monotonic() + PATIENCE_SECONDS
            while self._watch.ask_controller() is None and time.monotonic() < until:
                if self._is_over.wait(PAUSE_SECONDS):
                    return
                if internals.is_ending(self.workflow):
                    message = "it was not submitted, as this run was stopped.\n"
                    self.report_job_error(internals.submitted(job), msg=message)
                    return
            super().run_job(job)

        async def sleep(self) -> None:
            """Wait until the next check of the jobs, or until the run ends."""
            until = time.monotonic() + self.next_seconds_between_status_checks
            while not self._is_over.is_set() and time.monotonic() < until:
                await asyncio.sleep(STEP_SECONDS)

        def shutdown(self) -> None:
            """End without waiting for submissions that wait for the controller."""
            self._is_over.set()
            super().shutdown()
            shutil.rmtree(self._watch.folder, ignore_errors=True)

        async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
            """Yield the jobs that continue, and report how the others ended."""
            keeps_logs = getattr(self.workflow.executor_settings, "keep_successful_logs", False)
            self.logger.debug(f"asking Slurm about {len(active_jobs)} jobs")
            numbers = [job.external_jobid for job in active_jobs]
            verdicts = self._watch.verdicts(numbers) if numbers else {}
            for job in active_jobs:
                verdict = verdicts.get(job.external_jobid)
                log = (job.aux or {}).get("slurm_logfile")
                if verdict is None:
                    yield job
                elif verdict.state == "COMPLETED":
                    self.report_job_success(job)
                    if log and not keeps_logs:
                        with suppress(OSError):
                            Path(log).unlink()
                else:
                    message = f"SLURM status is: '{verdict.state}'. Reason: {verdict.reason}."
                    message = f"SLURM-job '{job.external_jobid}' failed, {message}"
                    self.report_job_error(job, msg=message, aux_logs=[str(log)] if log else [])
            has_news = verdicts or not active_jobs
            self._pause = self._first_pause if has_news else min(self._pause + 10, LONGEST_SECONDS)
            self.next_seconds_between_status_checks = self._pause
            self.logger.debug(f"Slurm reported {len(verdicts)} ends")

    return Watched
