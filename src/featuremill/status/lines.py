"""The sentences about a run that `status`, the screen of `top` and a run's own lines share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from featuremill.base import words
from featuremill.base.text import one_line, plain
from featuremill.base.words import counted, plain_duration
from featuremill.status.project import ProjectState
from featuremill.status.state import DONE, DONE_WITH_FAILURES, Phase, RunState, Sums

NO_PLAN = {
    "plan_failed": "there is no plan: the last one failed.",
    "weights_failed": "there is no plan: the model's weights could not be made.",
}
PHASES = {
    "planning": "planning now",
    "starting": "started, and there is no plan yet",
    "computing": "computing",
    "merging": "merging now",
    "between": "running, and no job computes at this moment",
    "unknown": "it cannot be seen from here whether it is computed",
    "idle": "no process computes it now",
}
SEPARATOR = " · "
LONG_SECONDS, DAY_SECONDS = 600, 64_800
"""Time left from which the hour of the end is printed, and from which also its day."""


def totals_lines(project: ProjectState, phases: Sequence[Phase] = get_args(Phase)) -> list[str]:
    """Return a line of progress for each run in one of the `phases`, and each step that reports
    progress. Lines of several runs begin with their names."""
    runs = {name: run for name, run in project.states.items() if run.phase in phases}
    if project.alone:
        return [*map(totals_line, runs.values())]
    lines = [f"{one_line(name)}: {totals_line(run)}" for name, run in runs.items()]
    return [*lines, *step_lines(project)]


def step_lines(project: ProjectState) -> list[str]:
    """Return a line for each unfinished step that reports progress."""
    open_steps = [step for step in project.runs.steps if not Path(step.files[-1]).exists()]
    progress = [(step.label, step.progress()) for step in open_steps]
    return [one_line(plain(f"{label}: {text}")) for label, text in progress if text]


def totals_line(run: RunState) -> str:
    """Return the progress, the speed and the time left in one line."""
    if run.plan is None:
        return summary(run)
    if run.phase == "computing":
        jobs = counted(len(run.at_work), "job")
        jobs += f" + {len(run.waiting):,} waiting" if run.waiting else ""
        activity = [jobs, *pace(run)]
    else:
        activity = [summary(run)]
    return SEPARATOR.join([*done(run), *activity, *failed(run)])


def summary(run: RunState) -> str:
    """Return the phase of the run, or after an inspection a sentence about its state."""
    if not run.is_inspected:
        if run.phase == "between" and run.done.shards == run.total.shards:
            return "every part is there; the results are next"
        return PHASES[run.phase]
    if run.plan is None and not run.activity.is_planning:
        return NO_PLAN.get(next((each.code for each in run.problems), ""), "there is no plan yet.")
    if run.plan and run.exit_status == DONE:
        counts = run.delivery.delivery.counts if run.delivery.delivery else None
        return "done." if not counts or counts.has_all else f"done: {counts.in_words}."
    if run.plan and run.exit_status == DONE_WITH_FAILURES:
        return f"done, and {counted(run.num_failed, 'record')} failed."
    if run.activity.is_planning or run.activity.is_merging:
        return f"{PHASES[run.phase]}."
    num_ended, total = run.ended_sums.shards, len(run.shards)
    if num_ended == total and run.delivery.is_merged:
        return "the results are complete, but something they were made of has changed or is gone."
    is_part_lost = any(each.code in ("part_missing", "part_damaged") for each in run.problems)
    if num_ended == total and is_part_lost:
        return "all parts were computed, but a part is gone or damaged."
    if num_ended == total:
        return "all parts are computed, and the results are not delivered."
    text = f"not done: {num_ended:,} of {counted(total, 'part')} finished"
    num_running = run.count("running")
    return f"{text}, {num_running:,} running." if num_running else f"{text}, none running."


def project_summary(project: ProjectState) -> str:
    """Return a sentence about the state of all runs and steps, after an inspection."""
    if project.exit_status == DONE:
        return "done."
    failed = f"{counted(project.num_failed, 'record')} of its runs failed."
    if project.exit_status == DONE_WITH_FAILURES:
        return f"done, and {failed}"
    return "not done." if not project.num_failed else f"not done, and {failed}"


def time_left(run: RunState) -> str:
    """Return the speed and the time left; "" if the time is unknown."""
    estimate = run.time_left
    if estimate and estimate.seconds is None:
        return f"about {plain_duration(estimate.job_seconds)} for one job after the other"
    return SEPARATOR.join(pace(run)) if estimate else ""


def pace(run: RunState) -> list[str]:
    """Return the speed of all devices together, and the time until every part is there."""
    speed = [] if run.speed is None else [f"{short(run.speed)} {plain(run.cost_unit)}/s"]
    seconds = run.time_left.seconds if run.time_left else None
    if seconds is None:
        why = "no batch is finished since the start"
        if not any(not job.is_silent for job in run.at_work):
            why = "no job is at work" if run.at_work else "every job waits for a device"
        return [*speed, f"time left not known: {why}"]
    shown = "%H:%M" if seconds < DAY_SECONDS else "%A %H:%M"
    end = time.strftime(shown, time.localtime(run.time + seconds))
    until = f", until {end}" if seconds >= LONG_SECONDS else ""
    return [*speed, f"about {plain_duration(seconds)} left{until}"]


def work(sums: Sums, total: Sums) -> str:
    """Return `sums` as a share of the work; 100 % only for all shards."""
    most = 100 if sums.shards == total.shards else 99.9
    return f"{min(100 * sums.share_of(total), most):.1f} % of the work"


def done(run: RunState) -> list[str]:
    """Return the share of the work that is done, and the number of records."""
    records = f"{run.done.records:,} of {words.records(run.total.records)}"
    return [work(run.done, run.total), records]


def failed(run: RunState) -> list[str]:
    """Return the number of failed records, if there are any."""
    return [f"{run.num_failed_rows:,} failed"] if run.num_failed_rows else []


def failures(run: RunState) -> list[tuple[str, str]]:
    """Return reasons for failed records with counts, and failed jobs, each with a remedy."""
    lines = [
        (
            f"{words.records(group.number)} {group.status}: {one_line(plain(group.reason))}",
            group.remedy,
        )
        for group in run.reasons
    ]
    if num_running := sum(job.rows_failed for job in run.jobs):
        what = f"{words.records(num_running)} failed in shards that are at work"
        lines.append((what, "The reasons come with the parts."))
    ended = [(f"shard {name[:8]} ended: {one_line(text)}", "") for name, text in run.ended.items()]
    return lines + ended


def short(number: float) -> str:
    """Return a number to two or three digits, such as 0.4, 842 or 12.3 k."""
    return f"{number:.1f}" if number < 9.95 else words.short(number).replace(words.NBSP, " ")
