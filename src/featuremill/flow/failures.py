"""What the screen says of jobs that failed: where each one's log is, as it fails, and when all is
over what happened, how often, and what to type.

Reads the logs that the jobs' verbs leave, so that jobs of a cluster are told like those of here.
"""

from __future__ import annotations

import logging
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.log import last_error
from featuremill.base.text import plain, wrapped
from featuremill.base.words import counted
from featuremill.store import command_line

WIDTH = 100
MOST_KINDS = 5
"""Different sentences before they would fill more than a screen."""
ENDING = re.compile(r"returned non-zero exit status \d+|died with <Signals\.\w+: \d+>")
STOPPED = re.compile(r"exit status (130|143)$|<Signals\.(SIGINT|SIGTERM)")
"""How a command ends that somebody stopped."""
EPILOGUES = (
    "Exiting because a job execution failed",
    "WorkflowError:\nAt least one job did not complete",
)
"""What Snakemake says after failures; here it would come between them and what helps."""


class FailedJob(NamedTuple):
    """A job that Snakemake saw fail."""

    rule: str
    log: Path | None
    outputs: tuple[Path, ...]
    ending: str
    """How its command ended, where Snakemake told."""
    reason: str = ""
    """What a cluster's executor says of it."""

    @property
    def was_stopped(self) -> bool:
        """Tell whether it ended because somebody stopped it, as Ctrl-C does."""
        return bool(STOPPED.search(self.ending)) and not self._said()

    def _said(self) -> str:
        return last_error(self.log) if self.log else ""

    def sentence(self) -> str:
        """Return what the verb said last, or else how it ended."""
        said = self._said()
        if self.was_stopped:
            return "it was stopped."
        if self.reason and not said:
            return self.reason
        ended = self.ending or "failed"
        return said or f"it {ended} without a word of why; it was stopped, killed or never began."


class Failures:
    """The failed jobs of this Snakemake."""

    def __init__(self) -> None:
        self._jobs: dict[Path | None, FailedJob] = {}
        self._endings: list[str] = []
        self._removals: list[str] = []
        self.num_stops = 0
        """How often Ctrl-C was pressed."""
        self.are_told = False
        """Whether the summary at the end was asked for."""

    def hear(self, record: logging.LogRecord) -> FailedJob | bool:
        """Take note of what Snakemake logs; return the job that failed, or whether it is about one
        all the same."""
        event = str(getattr(record, "event", None) or "")
        text = record.getMessage()
        if event == "job_error":
            return self._add(record.__dict__)
        if event == "error" and ENDING.search(text) and " featuremill " in text:
            self._endings.append(text)
            return True
        return bool(self._jobs) and text.startswith((*EPILOGUES, *self._removals))

    def _add(self, about: dict[str, Any]) -> FailedJob:
        command = str(about["shellcmd"] or "")
        ours = [text for text in self._endings if command and command in text]
        self._endings = [text for text in self._endings if text not in ours]
        found = [ENDING.findall(text)[-1] for text in ours]
        log = Path(about["log"][0]) if about["log"] else None
        outputs = tuple(map(Path, about["output"]))
        reason = " ".join(str(about.get("rule_msg") or "").split())
        ending = found[-1] if found else ""
        job = FailedJob(about["rule_name"], log, outputs, ending, reason)
        self._jobs[log] = job
        if "featuremill " in command:  # what it leaves is half a file at most, and no loss
            self._removals.append(f"Removing output files of failed job {job.rule} ")
        return job

    def final(self) -> list[FailedJob]:
        """Return those that no later attempt made good."""
        return [job for job in self._jobs.values() if not all(o.exists() for o in job.outputs)]


def told(job: FailedJob, is_here: bool) -> str:
    """Return what to say when a job fails; what one of here says is on the screen already."""
    ended = "stopped" if job.was_stopped else "failed"
    line = plain(f"{job.rule:>8} │ {ended}; its log: {job.log or 'none'}")
    return line if is_here else plain(f"{job.rule:>8} │ error: {job.sentence()}\n") + line


def stopped() -> str:
    """Return what to say when somebody stopped the run."""
    return (
        f"Stopped. Nothing computed is lost. The same command goes on:\n    {command_line.this()}"
    )


def closing(failures: Failures, results: str) -> str:
    """Return what to say when a run ended badly: what happened, where it stands, what to type."""
    jobs = failures.final()
    failures.are_told = True
    if not jobs and failures.num_stops:
        return stopped()
    if not jobs:
        return "Nothing computed is lost. Mend what is said above; the same command goes on then."
    kinds: dict[tuple[str, str], list[FailedJob]] = {}
    for job in jobs:
        kinds.setdefault((job.rule, _common(job)), []).append(job)
    is_stop = all(job.was_stopped for job in jobs)
    lines = ["", f"{counted(len(jobs), 'job')} {'stopped' if is_stop else 'failed'}:"]
    for (rule, sentence), alike in list(kinds.items())[:MOST_KINDS]:
        lines += ["", *wrapped(plain(f"{rule}: {sentence}"), "  ", "    ", width=WIDTH)]
        more = f" (and {counted(len(alike) - 1, 'more job')} with the same)" if alike[1:] else ""
        lines.append(f"    log: {alike[0].log or 'none'}{more}")
    if len(kinds) > MOST_KINDS:
        lines.append(f"\n{counted(len(kinds) - MOST_KINDS, 'other message')}: see status, below.")
    lines += [
        "",
        f"Nothing computed is lost. {'T' if is_stop else 'When that is mended, t'}he same command "
        "goes on:",
        f"    {command_line.this()}",
        "What is done, what failed and what helps:",
        f"    featuremill status {shlex.quote(results)}",
    ]
    if not is_stop:
        lines.append(f"Messages and remedies: {_page()}")
    return "\n".join(lines)


def _common(job: FailedJob) -> str:
    """Return the job's sentence without what tells it from others that failed alike."""
    sentence = re.sub(r"\bshard [0-9a-f]{8}: ", "", job.sentence())
    return re.sub(r"^SLURM-job '\d+'", "the Slurm job", sentence)


def _page() -> str:
    """Return where the page about trouble is: beside the Snakefile of a checkout, else its name."""
    page = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
    if not page.exists():
        return "docs/troubleshooting.md in the repository"
    return str(page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page)
