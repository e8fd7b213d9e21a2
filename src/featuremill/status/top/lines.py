"""A run in one line: for log files, for pipes, and for Snakemake's own output."""

from __future__ import annotations

import time

from featuremill.base import words
from featuremill.base.sizes import counted
from featuremill.base.text import one_line, plain
from featuremill.status.top.scene import Scene
from featuremill.status.view import verdict

SEPARATOR = " · "
LONG_SECONDS, DAY_SECONDS = 600, 64_800
"""From how long on the hour of the end is said; and its day."""


def totals_line(scene: Scene) -> str:
    """Return how far the run is, how fast, and how long yet."""
    if scene.facts:
        return f"{end(scene)}: {accounting(scene)}" if scene.plan else end(scene)
    if scene.plan is None:
        return phase(scene)
    parts = [share(scene), records(scene)]
    if scene.phase == "computing":
        parts += [at_work(scene), *speed(scene), left(scene)]
    else:
        parts.append(phase(scene))
    return SEPARATOR.join([*parts, *failed(scene)])


def share(scene: Scene) -> str:
    """Return how much of the work is done: 100 % only for all of it."""
    totals = scene.totals
    percent = 100 * totals.share if totals.shards_done == totals.shards else 99.9
    return f"{min(percent, 100 * totals.share):.1f} % of the work"


def records(scene: Scene) -> str:
    """Return how many records have been computed."""
    return f"{scene.totals.records_done:,} of {words.records(scene.totals.records)}"


def at_work(scene: Scene) -> str:
    """Return how many jobs there are, and how many of them wait."""
    text = counted(len(scene.at_work), "job")
    return f"{text} + {len(scene.waiting):,} waiting" if scene.waiting else text


def speed(scene: Scene) -> list[str]:
    """Return how fast all devices are together, if that is known."""
    return [] if scene.speed is None else [f"{number(scene.speed)} {plain(scene.cost_unit)}/s"]


def left(scene: Scene) -> str:
    """Return how long it takes until every part is there, or why nobody knows."""
    rest = scene.rest
    if rest is None:
        return ""
    if rest.seconds is None:
        return f"time left not known: {rest.why_not}"
    shown = "%H:%M" if rest.seconds < DAY_SECONDS else "%A %H:%M"
    until = time.strftime(shown, time.localtime(scene.time + rest.seconds))
    at = f", until {until}" if rest.seconds >= LONG_SECONDS else ""
    return f"about {duration(rest.seconds)} left with {counted(rest.devices, 'device')}{at}"


def failed(scene: Scene) -> list[str]:
    """Return how many records failed, if any did."""
    return [f"{scene.totals.records_failed:,} failed"] if scene.totals.records_failed else []


def phase(scene: Scene) -> str:
    """Return what goes on."""
    if scene.facts:
        return end(scene)
    return {
        "planning": "planning now",
        "starting": "started, and there is no plan yet",
        "computing": "computing",
        "merging": "merging now",
        "between": _between(scene),
        "unknown": "whether anybody is at it cannot be told from here",
        "rest": "nobody is at it now",
    }[scene.phase]


def _between(scene: Scene) -> str:
    if scene.totals.shards_done == scene.totals.shards:
        return "every part is there; the results are next"
    return "running, and no job computes at this moment"


def end(scene: Scene) -> str:
    """Return how a run that nobody is at stands, in status's words."""
    assert scene.facts
    return verdict(scene.facts).rstrip(".")


def accounting(scene: Scene) -> str:
    """Return what became of the input's records: by the results, or by the parts there are."""
    facts = scene.facts
    results = facts.results if facts else None
    if results and results.manifest and results.merged == "yes":
        counts = results.manifest["counts"]
        whole = counted(counts["input"], "input record")
        kinds = ("ok", "failed", "refused", "duplicate")
        return f"{whole} = {' + '.join(f'{counts[kind]:,} {kind}' for kind in kinds)}"
    return SEPARATOR.join([share(scene), records(scene), *failed(scene)])


def number(value: float) -> str:
    """Return a number to two or three digits, such as 0.4, 842 or 12.3 k."""
    if value < 9.95:
        return f"{value:.1f}"
    return words.short(value).replace(words.NBSP, " ")


def duration(seconds: float) -> str:
    """Return a time to two units, such as 2 h 10 min."""
    return words.duration(max(1.0, round(seconds))).replace(words.NBSP, " ").replace(".0 s", " s")


def troubles(scene: Scene) -> list[str]:
    """Return what went wrong, with what helps: records that failed, and jobs."""
    said = [f"{what} → {remedy}" for what, remedy in reasons(scene)]
    said += [f"shard {one.shard[:8]} ended: {one_line(one.message)}" for one in scene.ended]
    return said


def reasons(scene: Scene) -> list[tuple[str, str]]:
    """Return what became of how many records and why, and what helps: of a run at rest as status
    has it, which counts the records of the input."""
    if scene.facts:
        groups = scene.facts.groups
        told = [(one.number, one.key.status, one.key.reason, one.remedy) for one in groups]
    else:
        told = [(one.number, "failed", one.reason, one.remedy) for one in scene.reasons]
    said = [
        (f"{words.records(number)} {status}: {one_line(plain(reason))}", remedy)
        for number, status, reason, remedy in told
    ]
    if running := sum(job.rows_failed for job in scene.jobs):
        what = f"{words.records(running)} failed in shards that are at work"
        said.append((what, "The reasons come with the parts."))
    return said
