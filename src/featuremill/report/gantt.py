"""The timeline: which device did what, and when."""

from __future__ import annotations

from typing import Any

import altair as alt

from featuremill.base import words
from featuremill.base.sizes import counted
from featuremill.report.chart import (
    CATEGORIES,
    LABEL_WIDTH,
    NOTHING_COMPUTED,
    REST,
    Clock,
    Figure,
    beside_labels,
    drawn,
    values,
)
from featuremill.report.facts import Facts
from featuremill.report.shards import Piece
from featuremill.report.timeline import Bar, Layout

TITLE = "Which device did what, and when"
COMPUTED, RESUMED, CRASHED, STOPPED = STATES = (
    "computed",
    "resumed",
    "after a crash",
    "cut short",
)
COLOURS = (*CATEGORIES[:3], REST)
MAX_LABELS = 24
"""Lanes that still get their device's name written above them."""


def figure(facts: Facts, clock: Clock | None) -> Figure:
    """Return the timeline of a run's shards."""
    if clock is None:
        return Figure("timeline", TITLE, NOTHING_COMPUTED)
    layout = clock.layout
    num_lanes = len(layout.lanes)
    height, thick = (46, 18) if num_lanes <= 8 else (32, 13) if num_lanes <= MAX_LABELS else (10, 8)
    no_labels = alt.Axis(
        labels=False, ticks=False, domain=False, grid=False, title=None, **beside_labels()
    )
    y = alt.Y("lane:O", axis=no_labels, scale=alt.Scale(padding=0))
    pieces = facts.pieces
    rows = [_row(clock, bar, pieces) for bar in layout.bars]
    # Clipped, as an outline beyond the right end would make this axis shorter than the others.
    shape = {"height": thick, "yOffset": min(9, height / 4), "clip": num_lanes <= MAX_LABELS}
    bars = (
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
    layers = [bars]
    if layout.pauses:
        layers += _pauses(layout, clock.divisor)
    if num_lanes <= MAX_LABELS:
        layers += _labels(layout, y, height)
    chart = alt.layer(*layers).properties(width="container", height=height * num_lanes)
    return drawn("timeline", TITLE, _sentence(facts, layout), chart)


def _color(rows: list[dict[str, Any]]) -> Any:
    present = {row["state"] for row in rows}
    shown = [state for state in STATES if state in present]
    legend = alt.Legend(title=None, values=shown, offset=24, columns=3) if len(shown) > 1 else None
    scale = alt.Scale(domain=list(STATES), range=list(COLOURS))
    return alt.Color("state:N", scale=scale, legend=legend)


def _tooltip(cost_unit: str) -> list[Any]:
    tokens = alt.Tooltip("tokens:Q", title=cost_unit, format=",d")
    return ["shard:N", "device:N", "state:N", "started:N", "took:N", tokens, "records:N"]


def _row(clock: Clock, bar: Bar, pieces: list[Piece]) -> dict[str, Any]:
    members = [pieces[i] for i in bar.members]
    shards = [piece.shard for piece in members if piece.shard is not None]
    failed = sum(shard.failed for shard in shards)
    resumed = any(shard.resumed_batches for shard in shards)
    crashed = any(shard.crashes for shard in shards)
    more = f" and {len(members) - 1:,} more" if len(members) > 1 else ""
    row: dict[str, Any] = {
        "lane": bar.lane,
        "begin": round(bar.begin / clock.divisor, 4),
        "end": round(bar.end / clock.divisor, 4),
        "state": CRASHED if crashed else RESUMED if resumed else COMPUTED if shards else STOPPED,
        "shard": members[0].name[:12] + more,
        "device": clock.layout.lanes[bar.lane],
        "started": words.moment(members[0].working.begin),
        "took": words.duration(sum(p.working.end - p.working.begin for p in members)),
    }
    if shards:
        row["tokens"] = sum(shard.tokens for shard in shards)
        row["records"] = f"{sum(shard.rows for shard in shards):,}"
        row["records"] += f", {failed:,} failed" if failed else ""
    return row


def _labels(layout: Layout, y: Any, height: int) -> list[Any]:
    """Write each device's name above its bars: beside them it would take half a phone's screen.

    Twice, and broad in the page's colour below: a pause's line would go through the letters.
    """
    rows = [
        {"lane": lane, "device": name}
        for lane, (name, before) in enumerate(
            zip(layout.lanes, [None, *layout.lanes], strict=False)
        )
        if name != before
    ]
    base = alt.Chart(values(rows)).encode(x=alt.value(-LABEL_WIDTH), y=y, text="device:N")
    place: dict[str, Any] = {"align": "left", "baseline": "middle", "dy": 2 - height / 4}
    return [base.mark_text(style=style, **place) for style in ("lane-behind", "lane")]


def _pauses(layout: Layout, divisor: float) -> list[Any]:
    """Mark where the axis skips time; of neighbours too close for two labels, only the first."""
    rows, free_from = [], 0.0
    for pause in layout.pauses:
        word = f"idle {words.duration(pause.seconds)}" if pause.at >= free_from else ""
        free_from = pause.at + 0.3 * layout.end if word else free_from
        rows.append({"at": pause.at / divisor, "word": word})
    base = alt.Chart(values(rows)).encode(x="at:Q")
    label = base.mark_text(style="remark", align="center", baseline="bottom", dy=-2)
    return [base.mark_rule(style="guide"), label.encode(y=alt.value(0), text="word:N")]


def _sentence(facts: Facts, layout: Layout) -> str:
    shards, lanes = facts.shards, facts.lanes
    hosts = {shard.host for shard in shards}
    text = f"{counted(len(shards), 'shard')} on {counted(len(lanes), 'device')}"
    text += f" of {len(hosts)} hosts." if len(hosts) > 1 else "."
    subject = "the device was" if len(lanes) == 1 else "the devices were"
    busy = sum(facts.busy_seconds(lane) for lane in lanes)
    text += (
        f" From the first to the last{', pauses aside' if layout.pauses else ''}, {subject} busy "
        f"{words.share(busy, facts.wall_seconds * len(lanes))} of the time; gaps are idle time."
    )
    if stopped := len(facts.pieces) - len(shards):
        text += f" {counted(stopped, 'earlier attempt')} ended before the shard was done."
    if len(layout.bars) < len(facts.pieces):
        text += " Neighbouring shards share a bar."
    return text
