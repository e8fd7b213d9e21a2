"""The answer for people: calm, and within 80 columns but for commands."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import partial
from typing import Any

from featuremill.base.sizes import counted
from featuremill.base.text import plain, wrapped
from featuremill.status.facts import DONE, DONE_WITH_FAILURES, ENDED, Facts
from featuremill.status.shards import Shard, Work

WIDTH = 80
LABEL = 11
MOST_LISTED = 20
"""Shards of a kind that are listed one by one."""
MERGED = {
    "no": "not merged yet",
    "yes": "whole, and of this plan",
    "older": "of an earlier plan, or older than a part",
    "damaged": "not whole",
}
NO_PLAN = {
    "plan_failed": "there is no plan: the last one failed.",
    "weights_failed": "there is no plan: the model's weights could not be made.",
}
REPORTED = {"no": "none yet", "yes": "report.html", "older": "of earlier results"}
_wrapped = partial(wrapped, width=WIDTH)


def lines(facts: Facts) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _wrapped(f"{facts.given}: {verdict(facts)}")
    yield ""
    if facts.plan:
        yield from _stages(facts, facts.plan)
    yield from _labelled("Snakemake", _snakemake(facts))
    yield ""
    yield from _jobs(facts)
    yield from _reasons(facts, "failed", "Failed")
    yield from _reasons(facts, "refused", "Refused: nothing was computed of these")
    yield from _problems(facts, True, "In the way", "✗")
    yield from _problems(facts, False, "Good to know", "·")
    yield from _next(facts)


def verdict(facts: Facts) -> str:
    """Return in a sentence how the run stands."""
    if facts.plan is None:
        if facts.is_planning:
            return "planning now."
        return NO_PLAN.get(next((one.code for one in facts.problems), ""), "there is no plan yet.")
    if facts.exit_status == DONE:
        return "done."
    if facts.exit_status == DONE_WITH_FAILURES:
        return f"done, and {counted(facts.num_failed, 'record')} failed."
    done, total = facts.count(*ENDED), len(facts.shards)
    if facts.is_planning or facts.is_merging:
        return "planning now." if facts.is_planning else "merging now."
    if done == total and facts.results and facts.results.merged == "yes":
        return "the results are whole, but something they were made of has changed or is gone."
    if done == total:
        return "all parts are computed, and the results are not delivered."
    text = f"not done: {done:,} of {counted(total, 'part')} finished"
    running = facts.count("running")
    return f"{text}, {running:,} running." if running else f"{text}, none running."


def _stages(facts: Facts, plan: dict[str, Any]) -> Iterator[str]:
    counts, results = plan["counts"], facts.results
    assert results is not None
    rest = [f"{counts[key]:,} {key}" for key in ("refused", "duplicate") if counts[key]]
    yield from _labelled("Input", ", ".join([counted(counts["input"], "record"), *rest]))
    yield from _labelled(
        "Plan",
        f"{counted(counts['unique'], 'distinct record')} in "
        f"{counted(len(facts.shards), 'shard')} ({plan['workload']}, recipe {plan['recipe'][:8]})",
    )
    yield from _labelled("Parts", _parts(facts))
    outputs = ", ".join(results.manifest["outputs"]) if results.manifest else ""
    named = f": {outputs}" if outputs and results.merged == "yes" else ""
    merged = "being merged now" if facts.is_merging else MERGED[results.merged] + named
    yield from _labelled("Delivered", merged)
    if results.exported:
        yield from _labelled("Exported", ", ".join(results.exported))
    if results.partial:
        text = f"{', '.join(results.partial)}: what was computed when they were asked for"
        yield from _labelled("Partial", text)
    yield from _labelled("Report", REPORTED[results.reported])
    if facts.rest:
        yield from _labelled("Rest", _rest(facts))
    if facts.verified:
        yield from _labelled("Verified", "inputs, parts and results were read and hashed")


def _parts(facts: Facts) -> str:
    finished = [shard for shard in facts.shards if shard.state in ENDED]
    cost = sum(shard.cost for shard in facts.shards)
    share = 100 * sum(shard.cost for shard in finished) / cost if cost else 100
    rows = counted(sum(shard.records for shard in finished), "row")  # of retries, too
    words = [f"{len(finished):,} finished ({rows}, {share:.0f} % of the work)"]
    for state, name in (
        ("running", "running"),
        ("unclear", "perhaps running"),
        ("begun", "begun"),
        ("waiting", "not begun"),
        ("lost", "lost"),
    ):
        if number := facts.count(state):
            words.append(f"{number:,} {name}")
    if removed := facts.count("removed"):
        words[0] += f", {removed:,} of them removed since the results are whole"
    return ", ".join(words)


def _rest(facts: Facts) -> str:
    rest = facts.rest
    assert rest is not None
    basis = f"judged by {counted(rest.parts, 'finished part')}"
    if rest.seconds is None:
        return f"about {_duration(rest.job_seconds)} for one job after the other, {basis}"
    jobs = f"{rest.jobs:,} jobs at a time" if rest.jobs > 1 else "one job at a time"
    return f"about {_duration(rest.seconds)} with {jobs}, {basis}"


def _snakemake(facts: Facts) -> str:
    last = facts.snakemake.owner
    if last is None:
        return "running" if facts.snakemake.is_running else "not running"
    who = f"process {last.pid} on {last.host}, since {_moment(last.started)}"
    if facts.snakemake.is_running:
        return f"running: {who}"
    if facts.snakemake.is_running is None:
        return f"the last one was {who}; whether it runs cannot be told from here"
    return "not running"


def _jobs(facts: Facts) -> Iterator[str]:
    at_it = [shard for shard in facts.shards if shard.state in ("running", "unclear")]
    yield from _listed("Running", at_it, _running)
    begun = [shard for shard in facts.shards if shard.state == "begun"]
    yield from _listed("Begun, and nobody is at it now", begun, _begun)


def _listed(heading: str, shards: list[Shard], say: Any) -> Iterator[str]:
    if not shards:
        return
    yield heading
    for shard in shards[:MOST_LISTED]:
        yield from _wrapped(f"shard {shard.name[:8]}: {say(shard)}", "  ", "    ")
    if len(shards) > MOST_LISTED:
        yield f"  and {len(shards) - MOST_LISTED:,} more"
    yield ""


def _running(shard: Shard) -> str:
    work = shard.work
    assert work is not None
    who, rows = work.who, _committed(work, shard.records)
    if not who:
        return f"somebody has its lock and has not said who; {rows}"
    device = " + ".join(map(str, who.get("devices") or [])) or "waiting for a device"
    text = f"process {who.get('pid')} on {who.get('host')}, {device}, since"
    text = f"{text} {_moment(str(who.get('started')))}; {rows}"
    if work.batches and work.last_commit:
        text += f", last {_moment(work.last_commit)}"
    if shard.state == "unclear":
        text += "; its lock cannot be tested from here"
    return text


def _begun(shard: Shard) -> str:
    work = shard.work
    assert work is not None
    return f"goes on from batch {work.batches + 1:,}; {_committed(work, shard.records)}"


def _committed(work: Work, num_records: int) -> str:
    if work.rows is None:
        return f"{counted(work.batches, 'batch', 'batches')} committed"
    return f"{work.rows:,} of {counted(num_records, 'record')} committed"


def _reasons(facts: Facts, status: str, heading: str) -> Iterator[str]:
    groups = [group for group in facts.groups if group.key.status == status]
    if not groups:
        return
    yield heading
    for group in groups:
        text = f"{counted(group.number, 'record')}: {plain(group.key.reason)}"
        yield from _wrapped(text, "  ✗ ", "    ")
        if group.examples:
            ids = ", ".join(map(plain, group.examples))
            yield from _wrapped(f"such as {ids}", "    ", "      ")
        yield from _wrapped(group.remedy, "    → ", "      ")
        for command in filter(None, (group.logs, group.command)):
            yield f"    → {command}"
    if status == "failed" and facts.unread_failures:
        yield f"  and up to {facts.unread_failures:,} more in parts that only --verify reads"
    yield ""


def _problems(facts: Facts, is_in_the_way: bool, heading: str, mark: str) -> Iterator[str]:
    problems = [one for one in facts.problems if one.is_in_the_way == is_in_the_way]
    if not problems:
        return
    yield heading
    for problem in problems:
        yield from _wrapped(plain(problem.what), f"  {mark} ", "    ")
        if problem.mend.by_hand:
            yield from _wrapped(problem.mend.by_hand, "    → ", "      ")
        for command in problem.commands:
            yield f"    → {command}"
    yield ""


def _next(facts: Facts) -> Iterator[str]:
    if facts.snakemake.is_running:
        yield "Nothing to type: the snakemake that is running goes on."
    elif facts.next:
        yield "Type next, when that has ended" if facts.is_at_work else "Type next"
        for command in facts.next:
            yield f"  {command}"
    else:
        yield "Nothing to do."


def _labelled(label: str, text: str) -> list[str]:
    return _wrapped(text, f"{label:{LABEL}}", " " * LABEL)


def _moment(text: str) -> str:
    """Return an ISO 8601 time as a clock here shows it, and how long ago that is."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return "?"
    ago = (datetime.datetime.now(datetime.UTC) - moment).total_seconds()
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S} ({_duration(max(0.0, ago))} ago)"


def _duration(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(1.0, seconds):.0f} s"
