"""The estimate for people: what it rests on first, then a line a number of devices."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from featuremill.base.text import one_line, plain
from featuremill.base.words import clock, counted, human_bytes

WIDTH = 96
LONG_HOURS = 100.0
"""From which on a table has hours instead of h:mm:ss, in all its rows."""
MOST_STARTING = 0.1
"""Share of the slot hours in which jobs start, from which on it is worth a word."""
MOST_SHARDS = 5000
"""What Snakemake plans in half a minute; more than that slows it down (docs/how-far.md)."""
Answer = Mapping[str, Any]


def lines(answer: Answer) -> Iterator[str]:
    """Yield the lines of the page."""
    counts = answer["counts"]
    model = f" ({_safe(answer['model'])}, {answer['dtype']})" if answer["model"] else ""
    shards = f"{counted(answer['shards_left'], 'shard')} to compute, " if answer["is_cut"] else ""
    yield from _wrapped(
        f"{counted(counts['input'], 'record')}, {counts['unique']:,} distinct; "
        f"{shards}{answer['cost_left']:,} {answer['cost_unit']}; {answer['workload']}{model}"
    )
    yield from _wrapped(_safe(answer["source"]), "  ")
    if answer["is_finished"]:
        yield "Nothing is left to compute or to write: the results are there."
        return
    if not answer["shards_left"]:
        yield "Nothing is left to compute; the times are those of the merge and the report."
    yield ""
    # What is taken for granted: once where it is the same for every number of slots.
    unit = answer["cost_unit"]
    for words in dict.fromkeys(tuple(_speed(row, unit)) for row in answer["rows"]):
        yield from words
    yield ""
    yield from _table(answer)
    what = _slot(answer)
    yield from _wrapped(
        f"start-up and idle: shares of the {what} hours in which jobs start and end, and in which "
        f"a {what} has no job."
    )
    yield ""
    for note in [*_notes(answer), *_warnings(answer)]:
        yield from _wrapped(note)


def _slot(answer: Answer) -> str:
    return "GPU" if answer["device"] == "gpu" else "slot"


def _safe(text: str) -> str:
    """Return a stranger's text so that it can neither act on a terminal nor begin a line."""
    return plain(one_line(text))


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


def _speed(row: Answer, unit: str) -> Iterator[str]:
    rates, seconds = row["speed"]["cost_per_second"], row["startup_seconds"]
    threads = f", {counted(row['threads'], 'thread')} a job" if row["threads"] else ""
    is_ranged = row["speed"]["is_assumed"] and rates["low"] < rates["high"]
    spread = f" ({rates['low']:,.0f} to {rates['high']:,.0f})" if is_ranged else ""
    rate = f"{rates['middle']:,.0f} {unit} a second a job{spread}"
    yield from _wrapped(f"{_safe(row['device'])}{threads}: {rate}")
    yield from _wrapped(_safe(row["speed"]["source"]), "  ")
    told = "measured or given"
    if not seconds["is_measured"]:
        told = f"{seconds['low']:g} to {seconds['high']:g}, an assumption"
    yield from _wrapped(f"and {seconds['middle']:.1f} s to start and end a job ({told})", "  ")


def _table(answer: Answer) -> Iterator[str]:
    """Yield a line a number of slots, columns as wide as they must be."""
    what, rows = _slot(answer), answer["rows"]
    is_long = max(row["hours"]["most"] for row in rows) >= LONG_HOURS
    headings = [f"{what}s", "time", f"{what} hours", "start-up", "idle", "shards a job"]
    headings.append("auto's shards.cost" if answer["is_cut"] else "shards.cost")
    cells = [headings]
    for row in rows:
        times, hours = _ranged(row, "hours"), _ranged(row, "device_hours")
        say = [f"{_hours(time)} h" if is_long else clock(3600 * time) for time in times]
        cells.append(
            [
                f"{row['slots']:,}",
                _spread(say),
                _spread([_hours(each) for each in hours]),
                f"{100 * row['startup_share']:.0f} %",
                f"{100 * row['idle_share']:.0f} %",
                f"{row['shards_a_job']:.1f}",
                f"{row['best_cost']:_}" if row["best_cost"] else "",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for texts in cells:
        yield "  ".join(text.rjust(width) for text, width in zip(texts, widths, strict=True))


def _ranged(row: Answer, key: str) -> list[float]:
    """Return the hours of a row; where something is assumed, the least and the most as well."""
    is_ranged = row["speed"]["is_assumed"] or not row["startup_seconds"]["is_measured"]
    return [row[key][name] for name in ("middle", "least", "most")[: 3 if is_ranged else 1]]


def _spread(words: list[str]) -> str:
    return f"{words[0]} ({words[1]} to {words[2]})" if len(words) > 1 else words[0]


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= LONG_HOURS else f"{hours:.3g}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else clock(seconds)


def _notes(answer: Answer) -> Iterator[str]:
    """Yield what it takes besides the shards' time, a paragraph each."""
    around = answer["around_seconds"]
    plan = "planned already" if answer["is_planned"] else f"plan {_seconds(around['plan'])}"
    weights = "" if answer["has_weights"] else "; to fetch and convert the weights comes on top"
    yield (
        f"In the time, besides the shards: {plan}, merge {_seconds(around['merge'])}, report "
        f"{_seconds(around['report'])}, Snakemake {_seconds(around['snakemake'])} "
        f"(at rates measured on 2 cores){weights}."
    )
    memory, is_gpu = answer["memory"], answer["device"] == "gpu"
    where = "of the GPU" if is_gpu else "in all"
    parts = []
    if measured := memory["device_measured_mb"]:
        parts.append(f"{measured:,} MB {where} (measured)")
    elif estimate := memory["device_mb"]:
        if memory["devices_a_job"] > 1:
            where = f"of its {memory['devices_a_job']} GPUs"
        parts.append(f"about {estimate:,} MB {where} (the doctor's estimate)")
    if is_gpu and (host := memory["host_measured_mb"]):
        parts.append(f"{host:,} MB of the host (measured)")
    elif is_gpu:
        parts.append(f"about {memory['host_mb']:,} MB of the host (reckoned)")
    yield (
        f"Memory of a job: {', '.join(parts) or 'nobody knows yet'}; Snakemake itself about "
        f"{memory['snakemake_mb']:,} MB."
    )
    disk = answer["disk"]
    needs = ", ".join(f"{name} {human_bytes(size)}" for name, size in disk["needs"].items() if size)
    yield (
        f"Disk: {human_bytes(disk['bytes'])} ({needs or 'nothing more'}) in {disk['files']:,} "
        f"files; {human_bytes(disk['free_bytes'])} are free."
    )
    if answer["shards_left"]:
        yield (
            "A job that is killed goes on from its last batch: each time that costs about "
            f"{answer['crash_seconds']:.0f} s, however large shards are."
        )


def _warnings(answer: Answer) -> Iterator[str]:
    """Yield what does not fit, and what would idle."""
    memory, disk = answer["memory"], answer["disk"]
    # What was measured is of the fullest device already.
    devices = 1 if memory["device_measured_mb"] else memory["devices_a_job"]
    needed = memory["device_measured_mb"] or memory["device_mb"] or 0
    if (has := memory["device_has_mb"]) and needed > devices * has:
        such = "one such GPU" if devices == 1 else f"{devices} such GPUs"
        yield (
            f"This model does not fit {such} of {has:,} MB: set gpus: {math.ceil(needed / has)} or "
            "more, or take larger ones."
        )
    if disk["bytes"] > disk["free_bytes"]:
        yield (
            f"What will be written, {human_bytes(disk['bytes'])}, is more than the "
            f"{human_bytes(disk['free_bytes'])} that are free on the disk; plan will refuse it."
        )
    yield from answer["large_outputs"]
    yield from filter(None, (_about_shards(answer, row) for row in answer["rows"]))
    if answer["shards"] > MOST_SHARDS:
        yield (
            f"{answer['shards']:,} shards are more than the {MOST_SHARDS:,} that Snakemake is "
            "quick with: larger ones, or several runs (docs/how-far.md)."
        )
    if answer["is_planned"] and any(_wants_smaller(answer, row) for row in answer["rows"]):
        yield (
            f"Shards that are cut already keep their size: results/{answer['run']}/store/plan.json "
            "has to go before the next plan, which then computes everything anew."
        )


def _about_shards(answer: Answer, row: Answer) -> str:
    """Return how `shards.cost: auto` cuts and why, where it does or some slots would idle."""
    left, jobs, unit = answer["shards_left"], row["jobs"], answer["cost_unit"]
    told = f"With {row['slots']:,}, "
    if answer["is_cut"]:
        if left >= jobs and row["startup_share"] > MOST_STARTING and row["best_cost"]:
            cost = f"{row['best_cost']:_} {unit}"
            return f"{told}starting jobs costs much: `shards: {{cost: auto}}` would take {cost}."
        if not 0 < left < jobs:
            return ""
        told += f"{jobs - left:,} of {jobs:,} slots would have no shard at all"
        if left < answer["shards"]:  # to cut anew what is computed for the most part helps nobody
            return f"{told}: no more are left to compute."
        told += "; "
    cut = f"{counted(_num_best(answer, row), 'shard')} of {row['best_cost']:_} {unit}"
    return f"{told}`shards.cost: auto` cuts {cut}: {row['best_why']}."


def _wants_smaller(answer: Answer, row: Answer) -> bool:
    """Tell whether slots would idle, as shards are too large."""
    left: int = answer["shards_left"]
    is_whole = left == answer["shards"]
    return is_whole and 0 < left < int(row["jobs"]) and _num_best(answer, row) > left


def _num_best(answer: Answer, row: Answer) -> int:
    """Return how many shards of the best cost are left."""
    number: int = round(answer["cost_left"] / row["best_cost"])
    return number
