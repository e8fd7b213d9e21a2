"""The timeline: which device did what, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from featuremill.base import words
from featuremill.base.words import counted
from featuremill.report.chart import CATEGORIES, LABEL_WIDTH, NOTHING_COMPUTED, Clock, beside_labels
from featuremill.report.facts import Facts
from featuremill.report.shards import CLOCK_TOLERANCE_SECONDS, Interval, Piece
from featuremill.workload.figures import REST, Figure, drawn, values

TITLE = "Which device did what, and when"
COMPUTED, RESUMED, CRASHED, STOPPED = STATES = ("computed", "resumed", "after a crash", "cut short")
COLOURS = (*CATEGORIES[:3], REST)
MAX_LABELS = 24
"""Lanes that still get their device's name written above them."""
MAX_BARS = 2_000
"""Above this, neighbouring shards share one bar: the page stays small, and no pixel is lost."""


class Bar(NamedTuple):
    """One bar: a piece of work, or neighbouring ones of one lane."""

    lane: int
    span: Interval
    members: tuple[Piece, ...]


def figure(facts: Facts, clock: Clock | None) -> Figure:
    """Return the timeline of a run's shards."""
    if clock is None:
        return Figure("timeline", TITLE, NOTHING_COMPUTED)
    lanes, bars = lay_out(facts.pieces)
    height, thick = (
        (46, 18) if len(lanes) <= 8 else (32, 13) if len(lanes) <= MAX_LABELS else (10, 8)
    )
    no_labels = alt.Axis(
        labels=False, ticks=False, domain=False, grid=False, title=None, **beside_labels()
    )
    y = alt.Y("lane:O", axis=no_labels, scale=alt.Scale(padding=0))
    rows = [_row(clock, bar, lanes[bar.lane]) for bar in bars]
    # Clipped, as an outline beyond the right end would make this axis shorter than the others.
    shape = {"height": thick, "yOffset": min(9, height / 4), "clip": len(lanes) <= MAX_LABELS}
    marks = (
        alt.Chart(values(rows))
        .mark_bar(style="shard", **shape)
        .encode(
            x=clock.x("begin"),
            x2="end:Q",
            y=y,
            color=_color(rows),
            tooltip=_tooltip(facts.cost_unit),
        )
    )
    labels = _labels(lanes, y, height) if len(lanes) <= MAX_LABELS else []
    chart = alt.layer(marks, *labels).properties(width="container", height=height * len(lanes))
    return drawn("timeline", TITLE, _sentence(facts, clock, len(bars)), chart)


def lay_out(pieces: Sequence[Piece]) -> tuple[list[str], list[Bar]]:
    """Return each lane's device, and the bars.

    Each device has one lane, and more only where its shards truly ran side by side.
    """
    lanes: list[str] = []
    bars: list[Bar] = []
    for device in sorted({piece.lane for piece in pieces}):
        first, free_from = len(lanes), list[float]()
        mine = (piece for piece in pieces if piece.lane == device)
        for piece in sorted(mine, key=lambda piece: piece.working):
            begin, end = piece.working
            slot = next(
                (i for i, free in enumerate(free_from) if begin >= free - CLOCK_TOLERANCE_SECONDS),
                len(free_from),
            )
            if slot == len(free_from):
                free_from.append(end)
                lanes.append(device)
            free_from[slot] = end
            bars.append(Bar(first + slot, piece.working, (piece,)))
    bars.sort(key=lambda bar: bar.span)
    return lanes, _coarser(bars, len(lanes)) if len(bars) > MAX_BARS else bars


def _coarser(bars: Sequence[Bar], num_lanes: int) -> list[Bar]:
    """Join neighbours less than a pixel apart."""
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


def _color(rows: list[dict[str, Any]]) -> Any:
    present = {row["state"] for row in rows}
    shown = [state for state in STATES if state in present]
    legend = alt.Legend(title=None, values=shown, offset=24, columns=3) if len(shown) > 1 else None
    scale = alt.Scale(domain=list(STATES), range=list(COLOURS))
    return alt.Color("state:N", scale=scale, legend=legend)


def _tooltip(cost_unit: str) -> list[Any]:
    tokens = alt.Tooltip("tokens:Q", title=cost_unit, format=",d")
    return ["shard:N", "device:N", "state:N", "started:N", "took:N", tokens, "records:N"]


def _row(clock: Clock, bar: Bar, device: str) -> dict[str, Any]:
    receipts = [piece.shard.receipt for piece in bar.members if piece.shard is not None]
    failed = sum(receipt.failed for receipt in receipts)
    resumed = any(receipt.resumed_batches for receipt in receipts)
    crashed = any(receipt.retries for receipt in receipts)
    more = f" and {len(bar.members) - 1:,} more" if len(bar.members) > 1 else ""
    row: dict[str, Any] = {
        "lane": bar.lane,
        "begin": clock.at(bar.span.begin),
        "end": clock.at(bar.span.end),
        "state": CRASHED if crashed else RESUMED if resumed else COMPUTED if receipts else STOPPED,
        "shard": bar.members[0].name[:12] + more,
        "device": device,
        "started": words.moment(bar.members[0].working.begin),
        "took": words.duration(sum(piece.working.seconds for piece in bar.members)),
    }
    if receipts:
        row["tokens"] = sum(receipt.cost for receipt in receipts)
        row["records"] = f"{sum(receipt.rows for receipt in receipts):,}"
        row["records"] += f", {failed:,} failed" if failed else ""
    return row


def _labels(lanes: Sequence[str], y: Any, height: int) -> list[Any]:
    """Write each device's name above its bars: beside them it would take half a phone's screen.

    Twice, and broad in the page's colour below: the lines of the axis go through the letters.
    """
    rows = [
        {"lane": lane, "device": name}
        for lane, name in enumerate(lanes)
        if lane == 0 or name != lanes[lane - 1]
    ]
    base = alt.Chart(values(rows)).encode(x=alt.value(-LABEL_WIDTH), y=y, text="device:N")
    place: dict[str, Any] = {"align": "left", "baseline": "middle", "dy": 2 - height / 4}
    return [base.mark_text(style=style, **place) for style in ("lane-behind", "lane")]


def _sentence(facts: Facts, clock: Clock, num_bars: int) -> str:
    shards, lanes, wall = facts.shards, facts.lanes, facts.wall_seconds
    hosts = {shard.host for shard in shards}
    text = f"{counted(len(shards), 'shard')} on {counted(len(lanes), 'device')}"
    text += f" of {len(hosts)} hosts." if len(hosts) > 1 else "."
    subject = "the device was" if len(lanes) == 1 else "the devices were"
    busy = sum(facts.busy_seconds(lane) for lane in lanes)
    cost = sum(shard.receipt.cost for shard in shards)
    aside = " without the pauses, which the axis has" if wall < clock.span.seconds - 60 else ""
    text += (
        f" From the first to the last {words.duration(wall)} passed{aside}; of that, {subject} "
        f"busy {words.share(busy, wall * len(lanes))}; gaps are idle time. With them, "
        f"{words.short(cost / (wall or 1))} {facts.cost_unit}/s."
    )
    if stopped := len(facts.pieces) - len(shards):
        text += f" {counted(stopped, 'earlier attempt')} ended before the shard was done."
    if num_bars < len(facts.pieces):
        text += " Neighbouring shards share a bar."
    return text
