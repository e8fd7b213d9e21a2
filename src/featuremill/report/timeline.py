"""The figure of the timeline: the shards of each device over time, with its utilisation; and
sentences about the devices: seconds by stage, energy, lowered clocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import altair as alt

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.base.words import counted
from featuremill.report.facts import Facts
from featuremill.report.shards import CLOCK_TOLERANCE_SECONDS, Interval, Piece, Shard
from featuremill.store.delivery import Delivery
from featuremill.workload.figures import CATEGORIES, NOTHING_COMPUTED, REST, Figure, drawn, values

TITLE = "Which device did what, and when"
UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
COMPUTED, RESUMED, CRASHED, STOPPED = STATES = ("computed", "resumed", "after a crash", "cut short")
COLOURS = (*CATEGORIES[:3], REST)
MAX_LABELS = 24
"""Largest number of lanes with the name of the device."""
MAX_BARS = 2_000
"""Largest number of bars before neighbouring shards share one."""


class Bar(NamedTuple):
    """A bar of the chart: one or several neighbouring pieces of a lane."""

    lane: int
    span: Interval
    members: tuple[Piece, ...]


def figure(facts: Facts) -> Figure:
    """Return the timeline of a run's shards."""
    if not facts.pieces:
        return Figure("timeline", TITLE, NOTHING_COMPUTED)
    spans = [piece.working for piece in facts.pieces]
    whole = Interval(min(spans).begin, max(span.end for span in spans))
    unit, divisor = next(each for each in UNITS if whole.seconds >= 3 * each[1] or each[1] == 1)
    lanes, bars = lay_out(facts.pieces)
    height, thick = (
        (46, 18) if len(lanes) <= 8 else (32, 13) if len(lanes) <= MAX_LABELS else (10, 8)
    )
    rows = []
    for bar in bars:
        begin, end = (round((moment - whole.begin) / divisor, 4) for moment in bar.span)
        times = {"lane": bar.lane, "begin": begin, "end": end, "device": lanes[bar.lane]}
        rows.append({**times, **_row(bar)})
    states = [state for state in STATES if any(row["state"] == state for row in rows)]
    legend = alt.Legend(title=None, values=states, offset=24, columns=3)
    colours = alt.Scale(domain=list(STATES), range=list(COLOURS))
    scale = alt.Scale(domain=[0, max(whole.seconds, 0.1) / divisor], nice=False)
    no_labels = alt.Axis(labels=False, ticks=False, domain=False, grid=False, title=None)
    y = alt.Y("lane:O", axis=no_labels, scale=alt.Scale(padding=0))
    paler = alt.Scale(domain=[0, 100], range=[0.25, 1])
    tokens = alt.Tooltip("tokens:Q", title=facts.cost_unit, format=",d")
    texts = ("shard", "device", "state", "started", "took", "records", "utilisation")
    shape = {"height": thick, "yOffset": min(9, height / 4), "clip": len(lanes) <= MAX_LABELS}
    marks = alt.Chart(values(rows)).mark_bar(style="shard", **shape)
    marks = marks.encode(
        x=alt.X("begin:Q", title=f"{unit} since the first shard", scale=scale),
        x2="end:Q",
        y=y,
        color=alt.Color("state:N", scale=colours, legend=legend if len(states) > 1 else None),
        opacity=alt.Opacity("busy:Q", scale=paler, legend=None),
        tooltip=[*(f"{text}:N" for text in texts), tokens],
    )
    labels = _labels(lanes, y, height) if len(lanes) <= MAX_LABELS else []
    chart = alt.layer(marks, *labels).properties(width="container", height=height * len(lanes))
    sentence = _sentence(facts, whole, len(bars))
    return drawn("timeline", TITLE, sentence, chart, terms=MEANINGS)


def lay_out(pieces: Sequence[Piece]) -> tuple[list[str], list[Bar]]:
    """Return the device of each lane, and the bars.

    A device has several lanes only if its shards ran in parallel.
    """
    lanes: list[str] = []
    bars: list[Bar] = []
    for device in sorted({piece.lane for piece in pieces}):
        first, free_from = len(lanes), list[float]()
        mine = (piece for piece in pieces if piece.lane == device)
        for piece in sorted(mine, key=lambda piece: piece.working):
            begin, end = piece.working
            free = (n for n, t in enumerate(free_from) if t <= begin + CLOCK_TOLERANCE_SECONDS)
            slot = next(free, len(free_from))
            if slot == len(free_from):
                free_from.append(end)
                lanes.append(device)
            free_from[slot] = end
            bars.append(Bar(first + slot, piece.working, (piece,)))
    bars.sort(key=lambda bar: bar.span)
    return lanes, _coarser(bars, len(lanes)) if len(bars) > MAX_BARS else bars


def _coarser(bars: Sequence[Bar], num_lanes: int) -> list[Bar]:
    """Join neighbouring bars of a lane, which are less than a pixel apart."""
    joined: dict[tuple[int, int], Bar] = {}
    start, end = bars[0].span.begin, max(bar.span.end for bar in bars)
    step = (end - start) / (MAX_BARS / num_lanes)
    for bar in bars:
        key = (bar.lane, int((bar.span.begin - start) // step))
        if before := joined.get(key):
            span = Interval(before.span.begin, max(before.span.end, bar.span.end))
            bar = Bar(bar.lane, span, before.members + bar.members)
        joined[key] = bar
    return list(joined.values())


def _row(bar: Bar) -> dict[str, Any]:
    receipts = [piece.shard.receipt for piece in bar.members if piece.shard is not None]
    gauges = [receipt.telemetry.utilisation_percent for receipt in receipts]
    uses = [float(gauge) for gauge in gauges if gauge is not None]
    resumed = any(receipt.resumed_batches for receipt in receipts)
    crashed = any(receipt.retries for receipt in receipts)
    more = f" and {len(bar.members) - 1:,} more" if len(bar.members) > 1 else ""
    row: dict[str, Any] = {
        "state": CRASHED if crashed else RESUMED if resumed else COMPUTED if receipts else STOPPED,
        "shard": bar.members[0].name[:12] + more,
        "started": words.moment(bar.members[0].working.begin),
        "took": words.duration(sum(piece.working.seconds for piece in bar.members)),
        "busy": round(statistics.fmean(uses)) if uses else 100,
        "utilisation": f"{statistics.fmean(uses):.0f} %" if uses else "–",
    }
    if receipts:
        failed = sum(receipt.failed for receipt in receipts)
        row["tokens"] = sum(receipt.cost for receipt in receipts)
        row["records"] = f"{sum(receipt.rows for receipt in receipts):,}"
        row["records"] += f", {failed:,} failed" if failed else ""
    return row


def _labels(lanes: Sequence[str], y: Any, height: int) -> list[Any]:
    """Return the name of each device above its bars, as a phone has no space beside them; drawn
    twice, with an outline against the lines of the axis."""
    rows = [
        {"lane": lane, "device": name}
        for lane, name in enumerate(lanes)
        if lane == 0 or name != lanes[lane - 1]
    ]
    base = alt.Chart(values(rows)).encode(x=alt.value(0), y=y, text="device:N")
    position: dict[str, Any] = {"align": "left", "baseline": "middle", "dy": 2 - height / 4}
    return [base.mark_text(style=style, **position) for style in ("lane-behind", "lane")]


def _sentence(facts: Facts, whole: Interval, num_bars: int) -> str:
    shards, lanes, wall = facts.shards, facts.lanes, facts.wall_seconds
    hosts = {shard.host for shard in shards}
    text = f"{counted(len(shards), 'shard')} on {counted(len(lanes), 'device')}"
    text += f" of {len(hosts)} hosts." if len(hosts) > 1 else "."
    subject = "the device was" if len(lanes) == 1 else "the devices were"
    busy = sum(facts.busy_seconds(lane) for lane in lanes)
    cost = sum(shard.receipt.cost for shard in shards)
    aside = " without the pauses, which the axis has" if wall < whole.seconds - 60 else ""
    text += (
        f" From the first to the last {words.duration(wall)} passed{aside}; of that, {subject} "
        f"busy {words.share(busy, wall * len(lanes))}; gaps are idle time. With them, "
        f"{words.short(cost / (wall or 1))} {facts.cost_unit}/s."
    )
    if stopped := len(facts.pieces) - len(shards):
        text += f" {counted(stopped, 'earlier attempt')} ended before the shard was done."
    if num_bars < len(facts.pieces):
        text += " Neighbouring shards share a bar."
    if any(shard.receipt.telemetry.utilisation_percent is not None for shard in shards):
        text += " The lower the utilisation of a GPU, the paler is its bar."
    return " ".join(filter(None, (text, *sentences_of_devices(shards, facts.delivery))))


STAGES = ("run", "load", "write", "other", "wait")
MEANINGS = (
    ("run", "the device computed batches"),
    ("load", "the weights were read and put on the device"),
    ("write", "rows were saved while the device waited"),
    ("other", "starting Python and libraries, lost attempts, a device without work"),
    ("wait", "the shard waited for a free device"),
)


def seconds_by_stage(shards: Sequence[Shard]) -> dict[str, float]:
    """Return the seconds of each stage; their sum is the total of the shards.

    Batches are prepared and written while others run. So `write` is only the time that the device
    waited, and preparing is not counted. `other` is the rest.
    """
    seconds = [shard.receipt.seconds for shard in shards]
    spent = {name: sum(each[name] for each in seconds) for name in STAGES if name != "other"}
    hidden = sum(spent.values()) - sum(each["total"] for each in seconds)
    spent["write"] = max(0.0, spent["write"] - max(0.0, hidden))
    spent["other"] = max(0.0, -hidden)
    return spent


def stages(shards: Sequence[Shard]) -> str:
    """Return sentences on the seconds by stage, with advice."""
    spent = seconds_by_stage(shards)
    whole = sum(spent.values())
    parts = [f"{name} {words.share(spent[name], whole)}" for name in STAGES if spent[name] > 0]
    text = f"Of the {words.duration(whole)} of all shards, added up: {words.listed(parts)}."
    if spent["wait"] > 0.5 * whole:
        text += " Most was waiting for a free device: with more of them the run ends sooner."
    elif _are_small(shards):
        text += (
            " Fewer, larger shards would spend less on loading and starting: shards.cost: auto "
            "makes such of more records."
        )
    if any(shard.receipt.retries for shard in shards):
        text += " Attempts whose worker died count as other: see the shards that had trouble."
    return text


def _are_small(shards: Sequence[Shard]) -> bool:
    """Return whether larger shards would save time, without interrupted shards."""
    smooth = [s for s in shards if not s.receipt.retries and not s.receipt.resumed_batches]
    spent = seconds_by_stage(smooth)
    has_several = len(smooth) > len({shard.lane for shard in smooth})
    return has_several and spent["load"] + spent["other"] > 0.25 * sum(spent.values())


def sentences_of_devices(shards: Sequence[Shard], delivery: Delivery) -> Iterator[str]:
    """Yield sentences on the seconds by stage, the energy of the GPUs, and lowered clocks."""
    if shards:
        yield stages(shards)
    measured = [shard for shard in shards if shard.receipt.own_energy_j is not None]
    per_million = delivery.gpu_energy_j_per_million
    # NVML measures a whole GPU, with all its jobs.
    if per_million is not None and not _are_side_by_side(measured):
        joules = math.fsum(shard.receipt.own_energy_j or 0 for shard in measured)
        some = "" if len(measured) == len(shards) else f" for {len(measured):,} of the shards"
        yield (
            f"The GPUs took {words.energy(joules)}{some}: {words.energy(float(per_million))} for "
            f"a million {delivery.lengths.unit}."
        )
    seconds: dict[str, float] = {}
    for shard in shards:
        for reason, amount in shard.receipt.telemetry.throttled_seconds.items():
            seconds[reason] = seconds.get(reason, 0.0) + amount
    if seconds:
        reasons = words.listed(
            f"{clipped(reason).replace('_', ' ')} {words.duration(amount)}"
            for reason, amount in sorted(seconds.items(), key=lambda pair: -pair[1])
        )
        yield (
            f"GPUs lowered their clocks: {reasons}. A power cap is usual under full load; a "
            "thermal limit asks for better cooling."
        )


def _are_side_by_side(shards: Sequence[Shard]) -> bool:
    """Return whether two shards were on the same devices at the same time."""
    ordered = sorted(shards, key=lambda shard: (shard.lane, shard.working))
    return any(
        earlier.lane == later.lane
        and later.working.begin < earlier.working.end - CLOCK_TOLERANCE_SECONDS
        for earlier, later in pairwise(ordered)
    )
