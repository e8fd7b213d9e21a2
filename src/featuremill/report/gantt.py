"""The timeline: which device did what, and when."""

from __future__ import annotations

from typing import Any

import altair as alt

from featuremill.report import words
from featuremill.report.chart import NOTHING_COMPUTED, Figure, specification, values
from featuremill.report.facts import Facts, Shard
from featuremill.report.timeline import Bar, Layout, lay_out

TITLE = "Which device did what, and when"
STATES = ("computed", "resumed", "after a crash")
MAX_LABELS = 24
"""Lanes that still get their device's name written above them."""
UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def figure(facts: Facts) -> Figure:
    """Return the timeline of a run's shards."""
    if not facts.shards:
        return Figure("timeline", TITLE, NOTHING_COMPUTED, None)
    shards = facts.shards
    layout = lay_out([shard.working for shard in shards], [shard.lane for shard in shards])
    unit, divisor = next(u for u in UNITS if layout.end >= 3 * u[1] or u[1] == 1)
    num_lanes = len(layout.lanes)
    height = 46 if num_lanes <= 8 else 32 if num_lanes <= MAX_LABELS else 10
    x = alt.X(
        "begin:Q",
        title=f"{unit} since the first shard" + (", long pauses cut" if layout.pauses else ""),
        scale=alt.Scale(domain=[0, max(layout.end, 0.1) / divisor], nice=False),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y("lane:O", axis=None, scale=alt.Scale(padding=0))
    rows = [_row(layout, bar, shards, divisor) for bar in layout.bars]
    bars = (
        alt.Chart(values(rows))
        .mark_bar(style="shard", height=min(18, height - 2), yOffset=min(9, height / 4))
        .encode(x=x, x2="end:Q", y=y, color=_color(rows), tooltip=_tooltip())
    )
    layers = [bars]
    if num_lanes <= MAX_LABELS:
        layers.append(_labels(layout, y, height))
    if layout.pauses:
        layers += _pauses(layout, divisor)
    chart = alt.layer(*layers).properties(width="container", height=height * num_lanes)
    return Figure("timeline", TITLE, _sentence(facts, layout), specification(chart))


def _color(rows: list[dict[str, Any]]) -> Any:
    present = {row["state"] for row in rows}
    shown = [state for state in STATES if state in present]
    legend = alt.Legend(title=None, values=shown, offset=24) if len(shown) > 1 else None
    return alt.Color("state:N", scale=alt.Scale(domain=list(STATES)), legend=legend)


def _tooltip() -> list[Any]:
    tokens = alt.Tooltip("tokens:Q", format=",d")
    return ["shard:N", "device:N", "started:N", "took:N", tokens, "records:N"]


def _row(layout: Layout, bar: Bar, shards: list[Shard], divisor: float) -> dict[str, Any]:
    members = [shards[i] for i in bar.members]
    failed = sum(shard.failed for shard in members)
    resumed = any(shard.resumed_batches for shard in members)
    crashed = any(shard.crashes for shard in members)
    more = f" and {len(members) - 1:,} more" if len(members) > 1 else ""
    return {
        "lane": bar.lane,
        "begin": round(bar.begin / divisor, 4),
        "end": round(bar.end / divisor, 4),
        "state": STATES[2 if crashed else 1 if resumed else 0],
        "shard": members[0].name[:12] + more,
        "device": layout.lanes[bar.lane],
        "started": words.moment(members[0].working.begin),
        "took": words.duration(sum(s.working.end - s.working.begin for s in members)),
        "tokens": sum(shard.tokens for shard in members),
        "records": f"{sum(s.rows for s in members):,}" + (f", {failed:,} failed" if failed else ""),
    }


def _labels(layout: Layout, y: Any, height: int) -> Any:
    """Write each device's name above its bars: beside them it would take half a phone's screen."""
    rows = [
        {"lane": lane, "device": name}
        for lane, (name, before) in enumerate(
            zip(layout.lanes, [None, *layout.lanes], strict=False)
        )
        if name != before
    ]
    return (
        alt.Chart(values(rows))
        .mark_text(style="lane", align="left", baseline="middle", dy=2 - height / 4)
        .encode(x=alt.value(0), y=y, text="device:N")
    )


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
    shards, lanes = facts.shards, {shard.lane for shard in facts.shards}
    hosts = {shard.host for shard in shards}
    text = f"{words.plural(len(shards), 'shard')} on {words.plural(len(lanes), 'device')}"
    text += f" of {len(hosts)} hosts." if len(hosts) > 1 else "."
    subject = "the device was" if len(lanes) == 1 else "the devices were"
    busy = sum(facts.busy_seconds(lane) for lane in lanes)
    text += (
        f" From the first to the last{', pauses aside' if layout.pauses else ''}, {subject} busy "
        f"{words.share(busy, facts.wall_seconds * len(lanes))} of the time."
    )
    if len(layout.bars) < len(shards):
        text += " Neighbouring shards share a bar."
    return text
