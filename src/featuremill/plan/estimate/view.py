"""The estimate for people: what it rests on first, then a line a number of devices."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from featuremill.base.text import one_line, plain
from featuremill.base.words import clock, counted, human_bytes
from featuremill.plan.estimate import warnings

WIDTH = 96
WORTH_SAVING = 0.02
LEAST_SAVED_HOURS = 0.05
"""Share of the device hours, and device hours, from which on another shard cost is worth a word."""
LONG_HOURS = 100.0
"""From which on a table has hours instead of h:mm:ss, in all its rows."""
Answer = Mapping[str, Any]


def lines(answer: Answer) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _wrapped(_what(answer))
    yield from _wrapped(_safe(answer["source"]), "  ")
    if answer["is_finished"]:
        yield "Nothing is left to compute or to write: the results are there."
        return
    if not answer["shards_left"]:
        yield "Nothing is left to compute; the times are those of the merge and the report."
    yield ""
    yield from _speeds(answer)
    yield ""
    yield from _table(answer)
    yield from _wrapped(_legend(answer))
    yield ""
    yield from _notes(answer)


def _safe(text: str) -> str:
    """Return a stranger's text so that it can neither act on a terminal nor begin a line."""
    return plain(one_line(text))


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


def _what(answer: Answer) -> str:
    counts = answer["counts"]
    model = f" ({_safe(answer['model'])}, {answer['dtype']})" if answer["model"] else ""
    shards = f"{counted(answer['shards_left'], 'shard')} to compute, " if answer["is_cut"] else ""
    return (
        f"{counted(counts['input'], 'record')}, {counts['unique']:,} distinct; "
        f"{shards}{answer['cost_left']:,} {answer['cost_unit']}; {answer['workload']}{model}"
    )


def _speeds(answer: Answer) -> Iterator[str]:
    """Yield what is taken for granted; once where it is the same for every number of slots."""
    said = set()
    for row in answer["rows"]:
        words = tuple(_speed(row, answer["cost_unit"]))
        if words not in said:
            said.add(words)
            yield from words


def _speed(row: Answer, unit: str) -> Iterator[str]:
    rates, seconds = row["speed"]["cost_per_second"], row["startup_seconds"]
    where = _safe(row["device"]) + (
        f", {counted(row['threads'], 'thread')} a job" if row["threads"] else ""
    )
    is_ranged = row["speed"]["is_assumed"] and rates["low"] < rates["high"]
    spread = f" ({rates['low']:,.0f} to {rates['high']:,.0f})" if is_ranged else ""
    yield from _wrapped(f"{where}: {rates['middle']:,.0f} {unit} a second a job{spread}")
    yield from _wrapped(_safe(row["speed"]["source"]), "  ")
    told = "measured or given"
    if not seconds["is_measured"]:
        told = f"{seconds['low']:g} to {seconds['high']:g}, an assumption"
    yield from _wrapped(f"and {seconds['middle']:.1f} s to start and end a job ({told})", "  ")


def _table(answer: Answer) -> Iterator[str]:
    """Yield a line a number of slots, columns as wide as they must be."""
    is_gpu = answer["device"] == "gpu"
    headings = [
        "GPUs" if is_gpu else "slots",
        "time",
        "GPU hours" if is_gpu else "slot hours",
        "start-up",
        "idle",
        "shards a job",
        *(("best shards.cost", "saves") if answer["is_cut"] else ("shards.cost",)),
    ]
    rows = answer["rows"]
    say = _clock if max(row["hours"]["most"] for row in rows) < LONG_HOURS else _spelled
    cells = [
        [_cell(row, column, say, answer["is_cut"]) for column in range(len(headings))]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for texts in [headings, *cells]:
        yield "  ".join(text.rjust(width) for text, width in zip(texts, widths, strict=True))


def _legend(answer: Answer) -> str:
    what = "GPU" if answer["device"] == "gpu" else "slot"
    return (
        f"start-up and idle: shares of the {what} hours in which jobs start and end, and in which "
        f"a {what} has no job."
    )


def _cell(row: Answer, column: int, say: Callable[[float], str], is_cut: bool) -> str:
    is_ranged = row["speed"]["is_assumed"] or not row["startup_seconds"]["is_measured"]
    if column == 0:
        return f"{row['slots']:,}"
    if column == 1:
        return _ranged(row["hours"], is_ranged, say)
    if column == 2:
        return _ranged(row["device_hours"], is_ranged, _hours)
    if column == 3:
        return f"{100 * row['startup_share']:.0f} %"
    if column == 4:
        return f"{100 * row['idle_share']:.0f} %"
    if column == 5:
        return f"{row['shards_a_job']:.1f}"
    if column == 6:
        return f"{row['best_cost']:_}" if _is_worth_it(row) or not is_cut else "as it is"
    return f"{_hours(row['best_saves_hours'])} h" if _is_worth_it(row) else ""


def _ranged(hours: Mapping[str, float], is_ranged: bool, say: Callable[[float], str]) -> str:
    middle = say(hours["middle"])
    return f"{middle} ({say(hours['least'])} to {say(hours['most'])})" if is_ranged else middle


def _clock(hours: float) -> str:
    return clock(3600 * hours)


def _spelled(hours: float) -> str:
    return f"{_hours(hours)} h"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= LONG_HOURS else f"{hours:.3g}"


def _is_worth_it(row: Answer) -> bool:
    used = row["device_hours"]["middle"]
    least = max(LEAST_SAVED_HOURS, WORTH_SAVING * used)
    return bool(row["best_cost"]) and row["best_saves_hours"] > least


def _notes(answer: Answer) -> Iterator[str]:
    for note in [
        *_best(answer),
        _around(answer),
        _memory(answer),
        _disk(answer),
        *_crash(answer),
        *warnings.of(answer),
        *_kept(answer),
    ]:
        yield from _wrapped(note)


def _crash(answer: Answer) -> Iterator[str]:
    if answer["shards_left"]:
        yield (
            "A job that is killed goes on from its last batch: each time that costs about "
            f"{answer['crash_seconds']:.0f} s, however large shards are."
        )


def _best(answer: Answer) -> Iterator[str]:
    worth = [row for row in answer["rows"] if _is_worth_it(row)]
    if worth:
        what = "GPU" if answer["device"] == "gpu" else "slot"
        best, now = f"{worth[-1]['best_cost']:_}", answer["shard_cost"]
        config = (
            "" if now == "auto" else f"`shards: {{cost: {best}}}` in the config (now {now:_}): "
        )
        yield (
            f"{config}shards of {best}, which `auto` chooses with {worth[-1]['slots']:,}, lose "
            f"fewer {what} hours to start-ups and to waiting at the end."
        )


def _kept(answer: Answer) -> Iterator[str]:
    """Yield what another shard cost takes, where one was advised."""
    rows = answer["rows"]
    is_advised = any(_is_worth_it(row) or warnings.wants_smaller(answer, row) for row in rows)
    if is_advised and answer["is_planned"]:
        yield (
            f"Shards that are cut already keep their size: results/{answer['run']}/store/plan.json "
            "has to go before the next plan, which then computes everything anew."
        )


def _around(answer: Answer) -> str:
    around = answer["around_seconds"]
    plan = "planned already" if answer["is_planned"] else f"plan {_seconds(around['plan'])}"
    weights = "" if answer["has_weights"] else "; to fetch and convert the weights comes on top"
    return (
        f"In the time, besides the shards: {plan}, merge {_seconds(around['merge'])}, report "
        f"{_seconds(around['report'])}, Snakemake {_seconds(around['snakemake'])} "
        f"(at rates measured on 2 cores){weights}."
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else clock(seconds)


def _memory(answer: Answer) -> str:
    memory = answer["memory"]
    device = "of the GPU" if answer["device"] == "gpu" else "in all"
    parts = []
    if measured := memory["device_measured_mb"]:
        parts.append(f"{measured:,} MB {device} (measured)")
    elif estimate := memory["device_mb"]:
        where = f"of its {memory['devices_a_job']} GPUs" if memory["devices_a_job"] > 1 else device
        parts.append(f"about {estimate:,} MB {where} (the doctor's estimate)")
    if answer["device"] == "gpu":
        if host := memory["host_measured_mb"]:
            parts.append(f"{host:,} MB of the host (measured)")
        else:
            parts.append(f"about {memory['host_mb']:,} MB of the host (reckoned)")
    return (
        f"Memory of a job: {', '.join(parts) or 'nobody knows yet'}; Snakemake itself about "
        f"{memory['snakemake_mb']:,} MB."
    )


def _disk(answer: Answer) -> str:
    disk = answer["disk"]
    needs = ", ".join(f"{name} {human_bytes(size)}" for name, size in disk["needs"].items() if size)
    return (
        f"Disk: {human_bytes(disk['bytes'])} ({needs or 'nothing more'}) in {disk['files']:,} "
        f"files; {human_bytes(disk['free_bytes'])} are free."
    )
