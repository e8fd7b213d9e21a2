"""sbatch, squeue and sacct as Snakemake's Slurm executor needs them (docs/slurm-status.md).

The executor forgets its jobs, or waits for them for ever, on events that happen on any cluster.
So a run puts these first in its PATH (`slurm_start.py`): `sbatch` keeps on record what was
submitted and how each job ended, and a status query is answered from the controller, the accounting
database (where there is one) and that record, in the words that the executor knows. Whatever else
the three are asked goes to Slurm's own.

    python -I -S slurm_commands.py FOLDER sbatch|squeue|sacct ARGUMENTS…

Each poll starts this file by its path: only the standard library, and nothing of featuremill.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

REAL_COMMANDS = "commands.json"
GRACE_SECONDS = 30.0
"""How long a job that Slurm does not know any more may wait for its record to appear."""
ANSWER_SECONDS = 20.0
"""For one question; the executor gives up after 60 s and then forgets every job."""
PATIENCE_SECONDS = 3600.0
"""How long a submission waits for the controller."""
PAUSE_SECONDS = 5.0
RUN_NAME = re.compile(r"(?:[\w-]+_)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The name of all jobs of one Snakemake: a UUID, after the slurm-jobname-prefix if given."""
UNREACHABLE = ("unable to contact slurm controller", "connection refused", "connect failure")
"""What sbatch says when nothing can have been submitted."""
REFUSED = {
    "--array": "job arrays hang in the executor: leave slurm-array-jobs out.",
    "--clusters": "jobs are looked for on one cluster only: leave slurm_cluster out.",
}

FAILURES = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"}
"""Final states that the executor takes for failures."""
OTHER_FAILURES = {"NODE_FAIL", "PREEMPTED", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"}
"""Final states that it waits for (NODE_FAIL with slurm-requeue)."""
STUCK_REASONS = ("PartitionTimeLimit", "PartitionNodeLimit", "launch failed requeued held")
"""Reasons of pending jobs that no waiting mends (prefixes)."""
NEEDS_A_PERSON = {"SPECIAL_EXIT", "REQUEUE_HOLD"}


class Live(NamedTuple):
    """What the controller says of a job."""

    state: str
    partition: str
    reason: str


class Verdict(NamedTuple):
    """How a job ended, in a word that the executor knows, and why in plain words."""

    state: str
    reason: str = ""


def judge(
    live: Live | None, accounted: str = "", exit_status: str = "", missed_seconds: float = 0.0
) -> Verdict | None:
    """Say how a job ended; None while it may still run.

    Only asked when the controller answered. `live` is None where it does not know the job;
    `accounted` is the database's state (empty: none) and `exit_status` what the job's own script
    left (empty: nothing) once it ended; `missed_seconds` says since when the controller has not
    known it.
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
    return Verdict("FAILED", "Slurm does not know it any more, and it left no exit status")


def _final(state: str, reason: str) -> Verdict | None:
    word = state.partition(" ")[0].rstrip("+")  # "CANCELLED by 1000"
    told = "" if reason in ("", "None") else f": {reason}"
    if word == "COMPLETED":
        return Verdict(word)
    if word in FAILURES:
        return Verdict(word, f"{state}{told}")
    if word in OTHER_FAILURES:
        return Verdict("FAILED", f"{state}{told}, and Slurm has not queued it again")
    return None


def _stuck(live: Live) -> Verdict | None:
    # Of several partitions one may take the job although another cannot.
    is_stuck = live.reason.replace("_", " ").startswith(STUCK_REASONS) and "," not in live.partition
    if live.state in NEEDS_A_PERSON or (live.state == "PENDING" and is_stuck):
        return Verdict("CANCELLED", f"it could never start ({live.state}: {live.reason})")
    return None


class Run:
    """The record of one Snakemake's jobs: a folder named as Slurm names its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jobs = folder / "jobs"
        self._verdicts = folder / "verdicts"

    def add(self, job: str) -> None:
        _append(self._jobs, job)

    def jobs(self) -> list[str]:
        return _lines(self._jobs)

    def verdicts(self) -> dict[str, Verdict]:
        rows = (line.split("|", 2) for line in _lines(self._verdicts))
        return {job: Verdict(state, reason) for job, state, reason in rows}

    def decide(self, job: str, verdict: Verdict) -> None:
        _append(self._verdicts, f"{job}|{verdict.state}|{verdict.reason}")

    def exit_status(self, job: str) -> str:
        """Return what the job's script left; the whole line only, as a cut one has no end."""
        with suppress(OSError):
            text = (self.folder / f"{job}.exit").read_text()
            return text.strip() if text.endswith("\n") else ""
        return ""

    def missed_seconds(self, job: str) -> float:
        """Return how long the controller has not known the job; the first look begins that."""
        mark = self.folder / f"{job}.missed"
        with suppress(FileExistsError), mark.open("x"):
            pass
        return time.time() - mark.stat().st_mtime

    def forget_miss(self, job: str) -> None:
        (self.folder / f"{job}.missed").unlink(missing_ok=True)

    def watched(self, script: str) -> str:
        """Return the job's script so that it leaves its exit status in this folder."""
        path = shlex.quote(str(self.folder))
        place = f'{path}/"$SLURM_JOB_ID".exit'
        return (
            f"rm -f {place}\n({script}\n)\nstatus=$?\n"
            f'echo "$status" 2>/dev/null >{place}.new && mv -f {place}.new {place}\n'
            'exit "$status"\n'
        )


def submit(real: dict[str, str], run: Run, arguments: list[str]) -> int:
    """Submit a job, waiting for a controller that is away; return sbatch's exit status."""
    for option, trouble in REFUSED.items():
        if any(word.partition("=")[0] == option for word in arguments):
            sys.stderr.write(f"{trouble}\n")
            return 1
    run.folder.mkdir(parents=True, exist_ok=True)
    begin = "--wrap="
    words = [
        f"{begin}{run.watched(w[len(begin) :])}" if w.startswith(begin) else w for w in arguments
    ]
    script = None
    if arguments[-1] == "/dev/stdin":
        script = "#!/bin/sh\n" + run.watched(sys.stdin.read().removeprefix("#!/bin/sh\n"))
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = subprocess.run(
            [real["sbatch"], *words], input=script, capture_output=True, text=True
        )
        is_away = done.returncode and any(said in done.stderr.lower() for said in UNREACHABLE)
        if not is_away or time.monotonic() > until:
            break
        time.sleep(PAUSE_SECONDS)
    if done.returncode == 0 and (job := re.match(r"\d+", done.stdout.strip())):
        run.add(job.group())
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def statuses(real: dict[str, str], run: Run) -> dict[str, str]:
    """Return the state of each job by its id; a job that is not in it is to be waited for.

    Nothing at all while the controller is away: what the database says is old then, and a job that
    followed could not be submitted.
    """
    live = ask_controller(real, run.folder.name)
    if live is None:
        return {}
    verdicts = run.verdicts()
    undecided = [job for job in run.jobs() if job not in verdicts]
    accounted = ask_database(real, [job for job in undecided if job not in live])
    states = {job: verdict.state for job, verdict in verdicts.items()}
    for job in undecided:
        now = live.get(job)
        if now:
            run.forget_miss(job)
            verdict = judge(now)
        else:
            left = run.exit_status(job)
            verdict = judge(now, accounted.get(job, ""), left, run.missed_seconds(job))
        if verdict:
            if now and _stuck(now):
                _ask([real["scancel"], job])
            run.decide(job, verdict)
            states[job] = verdict.state
        elif now:
            states[job] = now.state
    return states


def ask_controller(real: dict[str, str], name: str) -> dict[str, Live] | None:
    """Return what slurmctld knows of the jobs called `name`; None when it does not answer."""
    command = [real["squeue"], "--noheader", "--states=all", "--name", name, "--format=%i|%T|%P|%r"]
    text = _ask(command)
    if text is None:
        return None
    rows = (line.split("|", 3) for line in text.splitlines())
    return {row[0].strip(): Live(*row[1:]) for row in rows if len(row) == 4}


def ask_database(real: dict[str, str], jobs: list[str]) -> dict[str, str]:
    """Return the states of `jobs` by slurmdbd; nothing where there is none, or it is away."""
    if not jobs or not real.get("sacct"):
        return {}
    options = ["--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,State"]
    text = _ask([real["sacct"], *options, "--jobs", ",".join(jobs)])
    rows = (line.split("|") for line in (text or "").splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def why(folder: Path, job: str) -> str:
    """Return the reason that was found for how a job ended."""
    for path in folder.glob("*/verdicts"):
        if verdict := Run(path.parent).verdicts().get(job):
            return verdict.reason
    return ""


def main(folder: Path, command: str, arguments: list[str]) -> int:
    """Answer for one of the three commands; return its exit status."""
    real: dict[str, str] = json.loads((folder / REAL_COMMANDS).read_text())
    name = _value(arguments, "--job-name" if command == "sbatch" else "--name")
    run = Run(folder / name) if RUN_NAME.fullmatch(name) else None
    if command == "sbatch" and run and "--parsable" in arguments:
        return submit(real, run, arguments)
    if command != "sbatch" and run and run.folder.is_dir():
        for job, state in statuses(real, run).items():
            sys.stdout.write(f"{job}|{state}\n")
        return 0
    # Asked for each of ten steps of a failed job; sacct has no reasons, and may be away.
    if command == "sacct" and "--format=Reason" in arguments:
        job, _, step = _value(arguments, "-j").partition(".")
        reason = why(folder, job) if step == "0" else ""
        sys.stdout.write(f"{reason}\n" if reason else "")
        return 0
    if not real.get(command):
        sys.stderr.write(f"{command}: not found\n")
        return 127
    return os.execv(real[command], [command, *arguments])  # noqa: S606


def _value(arguments: list[str], option: str) -> str:
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == option:
            return following
    return ""


def _lines(path: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return path.read_text().splitlines()
    return []


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line.replace("\n", " ") + "\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
