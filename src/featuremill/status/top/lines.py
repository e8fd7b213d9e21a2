"""A run in one line: for log files, for pipes, and for Snakemake's own output."""

from __future__ import annotations

import time

from featuremill.base import words
from featuremill.base.text import one_line, plain
from featuremill.base.words import counted
from featuremill.status.top.scene import Scene
from featuremill.status.view import duration, verdict

SEPARATOR = " · "
LONG_SECONDS, DAY_SECONDS = 600, 64_800
"""From how long on the hour of the end is said; and its day."""


def totals_line(scene: Scene) -> str:
    """Return how far the run is, how fast, and how long yet."""
    if scene.plan is None:
        return phase(scene)
    if scene.state:
        return f"{phase(scene)}: {accounting(scene)}"
    parts = [share(scene), records(scene)]
    if scene.phase == "computing":
        parts += [at_work(scene), *speed(scene), left(scene)]
    else:
        parts.append(phase(scene))
    return SEPARATOR.join([*parts, *failed(scene)])


def share(scene: Scene) -> str:
    """Return how much of the work is done: 100 % only for all of it."""
    totals = scene.totals
    percent = 100 * totals.share if totals.shards == totals.of.shards else 99.9
    return f"{min(percent, 100 * totals.share):.1f} % of the work"


def records(scene: Scene) -> str:
    """Return how many records have been computed."""
    return f"{scene.totals.records:,} of {words.records(scene.totals.of.records)}"


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
    return [f"{scene.totals.failed:,} failed"] if scene.totals.failed else []


def phase(scene: Scene) -> str:
    """Return what goes on; of a run that nobody is at how it stands, in status's words."""
    if scene.state:
        return verdict(scene.state).rstrip(".")
    is_computed = scene.plan and scene.totals.shards == scene.totals.of.shards
    return {
        "planning": "planning now",
        "starting": "started, and there is no plan yet",
        "computing": "computing",
        "merging": "merging now",
        "between": "every part is there; the results are next"
        if is_computed
        else "running, and no job computes at this moment",
        "unknown": "whether anybody is at it cannot be told from here",
        "rest": "nobody is at it now",
    }[scene.phase]


def accounting(scene: Scene) -> str:
    """Return what became of the input's records: by the results, or by the parts there are."""
    if scene.state and scene.state.delivery.delivery and scene.state.delivery.is_merged:
        counts = scene.state.delivery.delivery.counts
        whole = counted(counts.input, "input record")
        kinds = ("ok", "failed", "refused", "duplicate")
        return f"{whole} = {' + '.join(f'{getattr(counts, kind):,} {kind}' for kind in kinds)}"
    return SEPARATOR.join([share(scene), records(scene), *failed(scene)])


def number(value: float) -> str:
    """Return a number to two or three digits, such as 0.4, 842 or 12.3 k."""
    if value < 9.95:
        return f"{value:.1f}"
    return words.short(value).replace(words.NBSP, " ")


def troubles(scene: Scene) -> list[str]:
    """Return what went wrong, with what helps: records that failed, and jobs."""
    return [*(f"{what} → {remedy}" for what, remedy in reasons(scene)), *ended(scene)]


def ended(scene: Scene) -> list[str]:
    """Return the jobs that ended badly."""
    return [f"shard {one.shard[:8]} ended: {one_line(one.message)}" for one in scene.ended]


def reasons(scene: Scene) -> list[tuple[str, str]]:
    """Return what became of how many records and why, and what helps: of a run at rest as status
    has it, which counts the records of the input."""
    said = [
        (
            f"{words.records(one.number)} {one.status}: {one_line(plain(one.reason))}",
            one.remedy,
        )
        for one in (scene.state.failures if scene.state else scene.reasons)
    ]
    if running := sum(job.rows_failed for job in scene.jobs):
        what = f"{words.records(running)} failed in shards that are at work"
        said.append((what, "The reasons come with the parts."))
    return said
