"""The page that `status` prints, at most 80 columns wide except for commands; and sentences about a
run that the screen of `top` and the lines of a run have, too."""

from __future__ import annotations

import datetime
import functools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from featuremill.base import words
from featuremill.base.text import one_line, plain, wrapped
from featuremill.base.words import counted, in_words, plain_duration
from featuremill.status.commands import Problem
from featuremill.status.project import ProjectState
from featuremill.status.run_state import DONE, DONE_WITH_FAILURES, Phase, RunState, Sums
from featuremill.status.shards import Shard, State, Work
from featuremill.workload.weights import made_by

WIDTH = 80
LABEL = 11
LABEL_OF_STEP = 13
MOST_LISTED = 20
"""Largest number of shards that are listed one by one, per state."""
MOST_SAMPLES = 5
"""Largest number of samples with failed records that are listed."""
MOST_GPUS = 16
"""Largest number of GPUs whose work is listed."""
MERGED = {
    "no": "not merged yet",
    "yes": "complete, and of this plan",
    "older": "of an earlier plan, or older than a part",
    "damaged": "not whole",
}
REPORTED = {"no": "none yet", "yes": "report.html", "older": "of older results or other labels"}
STEPS: dict[str, str] = {"no": "not yet", "yes": "there", "older": "of what was before"}
LATER: dict[str, str] = {"no": "", "yes": "", "older": "; of what was before"}
UNFINISHED: dict[State, str] = {
    "running": "running",
    "unclear": "perhaps running",
    "begun": "interrupted",
    "waiting": "not started",
    "lost": "lost",
}
_wrapped = functools.partial(wrapped, width=WIDTH)


def lines(project: ProjectState) -> Iterator[str]:
    """Yield the lines of the page from an inspection."""
    run = project.alone
    sentence = summary(run) if run else project_summary(project)
    yield from _wrapped(f"{run.folder if run else project.runs.path}: {sentence}")
    yield ""
    rows, width = [*(_rows_of_run(run) if run else _rows_of_project(project))], LABEL
    if not run:
        width = max(LABEL_OF_STEP, 2 + max(len(label) for label, _ in rows))
    last = next((state for state in project.begun if state.is_running), None)
    last = last or next(iter(project.begun), None)
    for label, text in [*rows, ("Snakemake", _snakemake(last) if last else "not running")]:
        yield from _wrapped(text, f"{label:{width}}", " " * width)
    yield ""
    for state in project.begun:
        in_run = "" if run else f" in {state.folder}"
        yield from _jobs(state, "Running", "running", "unclear")
        yield from _jobs(state, "Interrupted", "begun")
        yield from _reasons(state, "failed", f"Failed{in_run}")
        refused = f"Refused{in_run}" if in_run else "Refused: nothing was computed of these"
        yield from _reasons(state, "refused", refused)
    for is_in_the_way, heading, mark in ((True, "Problems", "✗"), (False, "Notes", "·")):
        yield from _problems(project.problems, is_in_the_way, heading, mark)
        for state in project.begun:
            of_run = "" if run else f" of {state.folder}"
            yield from _problems(state.problems, is_in_the_way, f"{heading}{of_run}", mark)
    if project.is_running:
        yield "Nothing to type: the snakemake that is running continues."
    elif project.next:
        yield "Type next, when that has ended" if project.is_at_work else "Type next"
        yield from (f"  {command}" for command in project.next)
    else:
        yield "Nothing to do."


def _rows_of_project(project: ProjectState) -> list[tuple[str, str]]:
    runs, steps = [], []
    for name, state in project.states.items():
        left = time_left(state)
        line = f"{state.folder}: {summary(state).rstrip('.')}{left and f'; {left}'}"
        runs.append((name, line if state.is_begun else "not started"))
    for step, status, figures in zip(
        project.runs.steps, project.steps, project.figures, strict=True
    ):
        text = plain(step.progress()) if status == "no" else ""
        counts = [f"{number:,} {plain(what)}" for what, number in figures.items() if number]
        if counts:
            text = ", ".join(counts) + LATER[status]
        if status == "no" and not text and Path(step.files[-1]).exists():
            text = f"{Path(step.missing()[0]).name} is gone"
        if status == "older" and (changes := step.differences().changes):
            text = f"{text or STEPS[status]} ({in_words(changes)})"
        steps.append((step.label, f"{step.shown}: {text or STEPS[status]}"))
    first = project.runs.num_before
    return [*steps[:first], *runs, *steps[first:]]


def _rows_of_run(state: RunState) -> Iterator[tuple[str, str]]:
    if not (plan := state.plan):
        return
    counts, delivered = plan.counts, state.delivery
    more = (("refused", counts.refused), ("duplicate", counts.duplicate))
    rest = [f"{number:,} {kind}" for kind, number in more if number]
    yield "Input", ", ".join([counted(counts.input, "record"), *rest])
    distinct = counted(counts.unique, "distinct record")
    shards = counted(len(state.shards), "shard")
    if plan.store:
        distinct += f" ({plan.num_taken:,} from the store)"
    by = plain(made_by(plan.settings))
    yield "Plan", f"{distinct} in {shards} ({by}, recipe {plan.recipe[:8]})"
    yield "Parts", _parts(state)
    if by_gpu := _by_gpu(state):
        yield "GPUs", by_gpu
    outputs = ", ".join(delivered.delivery.outputs) if delivered.delivery else ""
    files = f": {outputs}" if outputs and delivered.is_merged else ""
    is_merging = state.activity.is_merging
    yield "Results", PHASES["merging"] if is_merging else MERGED[delivered.merged] + files
    if delivered.exported:
        yield "Exported", ", ".join(delivered.exported)
    if delivered.partial:
        partial = ", ".join(delivered.partial)
        yield "Partial", f"{partial}: what was computed when they were asked for"
    yield "Report", REPORTED[delivered.reported]
    if left := time_left(state):
        yield "Time left", left
    if state.verified:
        yield "Verified", "inputs, parts and results were read and hashed"


def _parts(state: RunState) -> str:
    ended = state.ended_sums
    rows = counted(ended.records, "row")  # of retries, too
    text = f"{ended.shards:,} finished ({rows}, {work(ended, state.total)})"
    if removed := state.count("removed"):
        text += f", {removed:,} of them removed since the results are complete"
    others = [f"{n:,} {name}" for kind, name in UNFINISHED.items() if (n := state.count(kind))]
    return ", ".join([text, *others])


def _by_gpu(state: RunState) -> str:
    """Return the number of shards that each GPU has finished, and its share of their cost."""
    names: dict[str, str] = {}
    shards: Counter[str] = Counter()
    work: Counter[str] = Counter()
    for receipt in (shard.receipt for shard in state.shards if shard.receipt):
        for device in receipt.devices if receipt.is_on_gpu else ():
            names[device.uuid] = str(device)  # early receipts have no number
            shards[device.uuid] += 1
            work[device.uuid] += receipt.cost
    devices = [
        f"{names[uuid]}: {counted(shards[uuid], 'shard')}, {100 * cost / work.total():.0f} %"
        for uuid, cost in work.most_common(MOST_GPUS)
    ]
    others = [f"{len(work) - MOST_GPUS:,} more"] if len(work) > MOST_GPUS else []
    return "; ".join([*devices, *others])


def _snakemake(state: RunState) -> str:
    last = state.activity.owner
    if last is None:
        return "running" if state.activity.is_running else "not running"
    who = f"process {last.pid} on {last.host}, since {_moment(last.started)}"
    if state.activity.is_running:
        return f"running: {who}"
    if state.activity.is_running is None:
        return f"the last one was {who}; it cannot be seen from here whether it runs"
    return "not running"


def _jobs(state: RunState, heading: str, *states: State) -> Iterator[str]:
    """Yield a line for each shard in one of `states`, below a heading."""
    shards = [shard for shard in state.shards if shard.state in states]
    if not shards:
        return
    yield heading
    for shard in shards[:MOST_LISTED]:
        assert shard.work
        yield from _wrapped(f"shard {shard.name[:8]}: {_job(shard, shard.work)}", "  ", "    ")
    if len(shards) > MOST_LISTED:
        yield f"  and {len(shards) - MOST_LISTED:,} more"
    yield ""


def _job(shard: Shard, work: Work) -> str:
    rows = f"{work.rows:,} of {counted(shard.records, 'record')} committed"
    if shard.state == "begun":
        return f"continues from batch {work.batches + 1:,}; {rows}"
    who = work.holder
    if who.host is None:
        return f"an unknown process holds its lock; {rows}"
    device = " + ".join(who.devices or []) or "waiting for a device"
    text = f"process {who.pid} on {who.host}, {device}, since {_moment(str(who.started))}; {rows}"
    if work.batches and work.last_commit:
        text += f", last {_moment(work.last_commit)}"
    if shard.state == "unclear":
        text += "; its lock cannot be tested from here"
    return text


def _reasons(state: RunState, status: str, heading: str) -> Iterator[str]:
    groups = [group for group in state.failures if group.status == status]
    if not groups:
        return
    yield heading
    for group in groups:
        text = f"{counted(group.number, 'record')}: {plain(group.reason)}"
        yield from _wrapped(text, "  ✗ ", "    ")
        if group.examples:
            ids = ", ".join(plain(example.id) for example in group.examples)
            yield from _wrapped(f"such as {ids}", "    ", "      ")
        if samples := [f"{name} ({number:,})" for name, number in group.samples.items()]:
            more = f" and {len(samples) - MOST_SAMPLES:,} more" if samples[MOST_SAMPLES:] else ""
            yield from _wrapped(
                f"of samples {', '.join(samples[:MOST_SAMPLES])}{more}", "    ", "      "
            )
        yield from _wrapped(group.remedy, "    → ", "      ")
        for command in filter(None, (group.logs, group.command)):
            yield f"    → {command}"
    if status == "failed" and state.unread_failures:
        yield f"  and up to {state.unread_failures:,} more in parts that only --verify reads"
    yield ""


def _problems(
    all_problems: Sequence[Problem], is_in_the_way: bool, heading: str, mark: str
) -> Iterator[str]:
    problems = [each for each in all_problems if each.is_in_the_way == is_in_the_way]
    if not problems:
        return
    yield heading
    for problem in problems:
        yield from _wrapped(plain(problem.what), f"  {mark} ", "    ")
        if problem.fix.by_hand:
            yield from _wrapped(problem.fix.by_hand, "    → ", "      ")
        for command in problem.commands:
            yield f"    → {command}"
    yield ""


def _moment(text: str) -> str:
    """Return an ISO 8601 time as local time, with its age."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return "?"
    ago = (datetime.datetime.now(datetime.UTC) - moment).total_seconds()
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S} ({plain_duration(ago)} ago)"


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
