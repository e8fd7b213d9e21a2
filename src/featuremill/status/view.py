"""The answer for people: calm, and within 80 columns but for commands."""

from __future__ import annotations

import datetime
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from featuremill.base import words
from featuremill.base.change import told
from featuremill.base.text import plain, wrapped
from featuremill.base.words import counted, plain_duration
from featuremill.status.commands import Problem
from featuremill.status.project import ProjectState
from featuremill.status.shards import Shard, State, Work
from featuremill.status.state import DONE, DONE_WITH_FAILURES, RunState
from featuremill.workload.weights import made_by

WIDTH = 80
LABEL = 11
LABEL_OF_STEP = 13
MOST_LISTED = 20
"""Shards of a kind that are listed one by one."""
MOST_SAMPLES = 5
"""Samples with failed records that are listed one by one."""
MOST_GPUS = 16
"""Whose work is listed."""
MERGED = {
    "no": "not merged yet",
    "yes": "complete, and of this plan",
    "older": "of an earlier plan, or older than a part",
    "damaged": "not whole",
}
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
"""From how long on the hour of the end is shown; and its day."""
REPORTED = {
    "no": "none yet",
    "yes": "report.html",
    "older": "older than the results or labels",
}
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
    """Yield the lines of the page, of a close look."""
    run = project.alone
    sentence = verdict(run) if run else _verdict_on_all(project)
    yield from _wrapped(f"{run.given if run else project.runs.given}: {sentence}")
    yield ""
    stages, width = [*(_stages(run) if run else _parts_of(project))], LABEL
    if not run:
        width = max(LABEL_OF_STEP, 2 + max(len(label) for label, _ in stages))
    last = next((state for state in project.begun if state.is_running), None)
    last = last or next(iter(project.begun), None)
    for label, text in [*stages, ("Snakemake", _snakemake(last) if last else "not running")]:
        yield from _wrapped(text, f"{label:{width}}", " " * width)
    yield ""
    for state in project.begun:
        of = "" if run else f" in {state.given}"
        yield from _jobs(state)
        yield from _reasons(state, "failed", f"Failed{of}")
        refused = f"Refused{of}" if of else "Refused: nothing was computed of these"
        yield from _reasons(state, "refused", refused)
    for is_in_the_way, heading, mark in ((True, "Problems", "✗"), (False, "Notes", "·")):
        yield from _problems(project.problems, is_in_the_way, heading, mark)
        for state in project.begun:
            of = "" if run else f" of {state.given}"
            yield from _problems(state.problems, is_in_the_way, f"{heading}{of}", mark)
    if project.is_running:
        yield "Nothing to type: the snakemake that is running continues."
    elif project.next:
        yield "Type next, when that has ended" if project.is_at_work else "Type next"
        yield from (f"  {command}" for command in project.next)
    else:
        yield "Nothing to do."


def _verdict_on_all(whole: ProjectState) -> str:
    """Return in a sentence how all of it stands."""
    if whole.exit_status == DONE:
        return "done."
    failed = f"{counted(whole.num_failed, 'record')} of its runs failed."
    if whole.exit_status == DONE_WITH_FAILURES:
        return f"done, and {failed}"
    return "not done." if not whole.num_failed else f"not done, and {failed}"


def _parts_of(project: ProjectState) -> list[tuple[str, str]]:
    """Return what each run is called, and each thing that a step makes, and how it stands."""
    runs, made = [], []
    for name, state in project.states.items():
        rest = _rest(state)
        line = f"{state.given}: {verdict(state).rstrip('.')}{rest and f'; {rest}'}"
        runs.append((name, line if state.is_begun else "not started"))
    for one, stands, figures in zip(
        project.runs.steps, project.steps, project.figures, strict=True
    ):
        text = plain(one.progress()) if stands == "no" else ""
        counts = [f"{number:,} {plain(what)}" for what, number in figures.items() if number]
        if counts:
            text = ", ".join(counts) + LATER[stands]
        if stands == "no" and not text and Path(one.files[-1]).exists():
            text = f"{Path(one.missing()[0]).name} is gone"
        if changes := one.changes():
            text = f"{text or STEPS[stands]} ({told(changes)})"
        made.append((one.label, f"{one.files[-1]}: {text or STEPS[stands]}"))
    first = project.runs.num_before
    return [*made[:first], *runs, *made[first:]]


def verdict(state: RunState) -> str:
    """Return the state of the run: what is running, or after a close look a sentence."""
    if not state.is_close:
        if state.phase == "between" and state.done.shards == state.total.shards:
            return "every part is there; the results are next"
        return PHASES[state.phase]
    if state.plan is None:
        if state.activity.is_planning:
            return "planning now."
        return NO_PLAN.get(next((one.code for one in state.problems), ""), "there is no plan yet.")
    if state.exit_status == DONE:
        delivery = state.delivery.delivery
        return (
            "done." if not delivery or delivery.counts.has_all else f"done: {delivery.counts.told}."
        )
    if state.exit_status == DONE_WITH_FAILURES:
        return f"done, and {counted(state.num_failed, 'record')} failed."
    done, total = state.ended_sums.shards, len(state.shards)
    if state.activity.is_planning or state.activity.is_merging:
        return "planning now." if state.activity.is_planning else "merging now."
    if done == total and state.delivery.is_merged:
        return "the results are complete, but something they were made of has changed or is gone."
    lost = any(one.code in ("part_missing", "part_damaged") for one in state.problems)
    if done == total and lost:
        return "all parts were computed, but a part is gone or damaged."
    if done == total:
        return "all parts are computed, and the results are not delivered."
    text = f"not done: {done:,} of {counted(total, 'part')} finished"
    running = state.count("running")
    return f"{text}, {running:,} running." if running else f"{text}, none running."


def _stages(state: RunState) -> Iterator[tuple[str, str]]:
    """Yield what each stage of the run is called, and how it stands."""
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
    named = f": {outputs}" if outputs and delivered.is_merged else ""
    is_merging = state.activity.is_merging
    yield "Results", "being merged now" if is_merging else MERGED[delivered.merged] + named
    if delivered.exported:
        yield "Exported", ", ".join(delivered.exported)
    if delivered.partial:
        partial = ", ".join(delivered.partial)
        yield "Partial", f"{partial}: what was computed when they were asked for"
    yield "Report", REPORTED[delivered.reported]
    if left := _rest(state):
        yield "Time left", left
    if state.verified:
        yield "Verified", "inputs, parts and results were read and hashed"


def _parts(state: RunState) -> str:
    ended, cost = state.ended_sums, state.total.cost
    share = 100 * ended.cost / cost if cost else 100
    rows = counted(ended.records, "row")  # of retries, too
    text = f"{ended.shards:,} finished ({rows}, {share:.0f} % of the work)"
    if removed := state.count("removed"):
        text += f", {removed:,} of them removed since the results are complete"
    others = [f"{n:,} {name}" for one, name in UNFINISHED.items() if (n := state.count(one))]
    return ", ".join([text, *others])


def _by_gpu(state: RunState) -> str:
    """Return how many shards each GPU has finished, and its share of that work; "" for none."""
    receipts = [shard.receipt for shard in state.shards if shard.receipt]
    shards: Counter[str] = Counter()
    work: Counter[str] = Counter()
    for receipt in receipts:
        for device in receipt.devices if receipt.is_on_gpu else ():
            name = f"{plain(device.name)} {plain(device.uuid).removeprefix('GPU-')[:4]}"
            shards[name] += 1
            work[name] += receipt.cost
    devices = [
        f"{name}: {counted(shards[name], 'shard')}, {100 * cost / work.total():.0f} %"
        for name, cost in work.most_common(MOST_GPUS)
    ]
    others = [f"{len(work) - MOST_GPUS:,} more"] if len(work) > MOST_GPUS else []
    return "; ".join([*devices, *others])


def _rest(state: RunState) -> str:
    """Return how long it takes yet, where that is known."""
    rest = state.time_left
    if rest and rest.seconds is None:
        return f"about {plain_duration(rest.job_seconds)} for one job after the other"
    return SEPARATOR.join(pace(state)) if rest else ""


def pace(now: RunState) -> list[str]:
    """Return how fast all devices are together, and how long it takes until every part is there."""
    speed = [] if now.speed is None else [f"{short(now.speed)} {plain(now.cost_unit)}/s"]
    seconds = now.time_left.seconds if now.time_left else None
    if seconds is None:
        why = "no batch is finished since the start"
        if not any(not job.is_silent for job in now.at_work):
            why = "no job is at work" if now.at_work else "every job waits for a device"
        return [*speed, f"time left not known: {why}"]
    shown = "%H:%M" if seconds < DAY_SECONDS else "%A %H:%M"
    until = time.strftime(shown, time.localtime(now.time + seconds))
    end = f", until {until}" if seconds >= LONG_SECONDS else ""
    return [*speed, f"about {plain_duration(seconds)} left{end}"]


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


def _jobs(state: RunState) -> Iterator[str]:
    at_it = [shard for shard in state.shards if shard.state in ("running", "unclear")]
    yield from _listed("Running", at_it, _running)
    begun = [shard for shard in state.shards if shard.state == "begun"]
    yield from _listed("Interrupted", begun, _begun)


def _listed(heading: str, shards: list[Shard], say: Callable[[Shard, Work], str]) -> Iterator[str]:
    if not shards:
        return
    yield heading
    for shard in shards[:MOST_LISTED]:
        assert shard.work
        yield from _wrapped(f"shard {shard.name[:8]}: {say(shard, shard.work)}", "  ", "    ")
    if len(shards) > MOST_LISTED:
        yield f"  and {len(shards) - MOST_LISTED:,} more"
    yield ""


def _running(shard: Shard, work: Work) -> str:
    who, rows = work.holder, _committed(work, shard.records)
    if who.host is None:
        return f"an unknown process holds its lock; {rows}"
    device = " + ".join(who.devices or []) or "waiting for a device"
    text = f"process {who.pid} on {who.host}, {device}, since {_moment(str(who.started))}; {rows}"
    if work.batches and work.last_commit:
        text += f", last {_moment(work.last_commit)}"
    if shard.state == "unclear":
        text += "; its lock cannot be tested from here"
    return text


def _begun(shard: Shard, work: Work) -> str:
    return f"continues from batch {work.batches + 1:,}; {_committed(work, shard.records)}"


def _committed(work: Work, num_records: int) -> str:
    return f"{work.rows:,} of {counted(num_records, 'record')} committed"


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
    problems = [one for one in all_problems if one.is_in_the_way == is_in_the_way]
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
    """Return an ISO 8601 time as a clock here shows it, and how long ago that is."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return "?"
    ago = (datetime.datetime.now(datetime.UTC) - moment).total_seconds()
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S} ({plain_duration(ago)} ago)"


def short(value: float) -> str:
    """Return a number to two or three digits, such as 0.4, 842 or 12.3 k."""
    return f"{value:.1f}" if value < 9.95 else words.short(value).replace(words.NBSP, " ")
