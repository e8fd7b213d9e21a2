"""How the devices were used over the time of the run: a chart a quantity, a line a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.report.chart import CATEGORIES, Clock, axis, beside_labels, categories, from_zero
from featuremill.report.facts import Facts
from featuremill.report.shards import Shard
from featuremill.report.usage import Point, Usage
from featuremill.workload.figures import Figure, Panel, specification, values

TITLE = "How the devices were used"
NUM_TICKS = 4
NOTHING_RECORDED = (
    "Nothing was recorded of this run: no utilisation, memory, power or temperature. Releases "
    "before telemetry recorded none."
)


class Quantity(NamedTuple):
    """Something that was sampled."""

    key: str
    name: str
    """Of its panel, in the page."""
    title: str
    phrase: str
    """The title within a sentence."""
    unit: str
    scale: float = 1.0
    """What a sample's value is multiplied with."""
    top: float | None = None
    """Where its axis ends at least."""


QUANTITIES = (
    Quantity("utilisation", "utilisation", "GPU utilisation", "utilisation", "%", top=100),
    Quantity("memory_mb", "memory", "GPU memory in use", "memory", "GB", 2**20 / 1e9),
    Quantity("power_w", "power", "Power", "power", "W"),
    Quantity("temperature_c", "temperature", "Temperature", "temperature", "°C"),
    Quantity("process.cpu_percent", "cpu", "CPU of the process", "CPU", "cores", 0.01),
    Quantity("process.memory_mb", "process-memory", "Its memory", "memory", "GB", 2**20 / 1e9),
    Quantity("rate", "rate", "Speed", "speed", "/s"),
)


def figure(facts: Facts, clock: Clock | None) -> Figure:
    """Return a panel for each quantity that was recorded."""
    usage = facts.usage
    if usage is None or clock is None:
        return Figure("usage", TITLE, NOTHING_RECORDED)
    recorded_keys = {key for point in usage.points for key in point.values}
    rate = QUANTITIES[-1]._replace(unit=f"{facts.cost_unit}/s")
    shown = [quantity for quantity in (*QUANTITIES[:-1], rate) if quantity.key in recorded_keys]
    panels: list[Panel] = []
    for quantity in shown:
        points = [point for point in usage.points if quantity.key in point.values]
        name = f"usage-{quantity.name}" if panels else "usage"
        chart = _chart(quantity, points, clock, not panels, quantity is shown[-1])
        panels.append(Panel(name, quantity.title, specification(chart)))
    return Figure("usage", TITLE, _sentence(facts, usage), tuple(panels))


def _chart(
    quantity: Quantity, points: Sequence[Point], clock: Clock, is_first: bool, is_last: bool
) -> Any:
    devices = sorted({point.device for point in points})
    lines = {line: number for number, line in enumerate(dict.fromkeys(p.line for p in points))}
    rows = [
        {
            "at": clock.at(point.moment),
            "value": float(f"{point.values[quantity.key] * quantity.scale:.4g}"),
            "device": point.device,
            "shard": point.shard[:12],
            "line": lines[point.line],
        }
        for point in points
    ]
    is_few = len(devices) <= len(CATEGORIES)
    has_legend = is_first and len(devices) > 1
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 160}
    legend = alt.Legend(title=None, columns=1, offset=26, **stroke) if has_legend else None
    scale = from_zero(NUM_TICKS)
    if quantity.top is not None:
        scale = alt.Scale(domain=[0, quantity.top])
    upright = axis(tickCount=NUM_TICKS, **beside_labels())
    base = alt.Chart(values(rows)).encode(
        x=clock.x("at", has_title=is_last),
        y=alt.Y("value:Q", title=quantity.unit, scale=scale, axis=upright),
    )
    # What stands out at the right would make this chart's axis shorter than the others'.
    curve = base.mark_line(style="curve", opacity=1.0 if is_few else 0.35, clip=True)
    curve = curve.encode(detail="line:N")
    if is_few:
        colour = alt.Color("device:N", scale=categories(devices), legend=legend)
        curve = curve.encode(color=colour)
    number = alt.Tooltip("value:Q", title=quantity.unit, format=",.3~r")
    under = base.mark_point(style="hover", clip=True).encode(
        tooltip=["device:N", "shard:N", number]
    )
    return alt.layer(curve, under).properties(width="container", height=110)


def _sentence(facts: Facts, usage: Usage) -> str:
    text = _typical(usage)
    if spent := facts.energy:
        text += f" {spent.sentence}"
    if slowed := _slowed(facts.shards):
        text += f" {slowed}"
    if usage.is_sampled:
        text += " About one sample a second"
        text += ", averaged where there are many." if len(usage.points) > 500 else "."
    else:
        text += " Drawn from the shards' receipts: one level a shard."
    if len({point.device for point in usage.points}) > len(CATEGORIES):
        text += " So many devices share a colour: point at a line to read whose it is."
    if usage.num_shards < len(facts.shards):
        text += f" Of {usage.num_shards:,} of the {len(facts.shards):,} shards."
    return text.strip()


def _typical(usage: Usage) -> str:
    """Say what was usual, and what the most."""
    phrases = []
    for quantity in QUANTITIES:
        values = [p.values[quantity.key] for p in usage.points if quantity.key in p.values]
        if not values or quantity.key == "rate":
            continue
        is_peak = quantity.key.endswith(("memory_mb", "temperature_c"))
        number = (max(values) if is_peak else float(np.median(values))) * quantity.scale
        shown = f"{number:.1f}" if number < 10 else f"{number:,.0f}"
        kind = "at most" if is_peak else "mostly"
        phrases.append(f"{quantity.phrase} {kind} {shown}{words.NBSP}{quantity.unit}")
    sentence = words.listed(phrases) if phrases else ""
    return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""


def _slowed(shards: Sequence[Shard]) -> str:
    """Say how long clocks were lowered, and why."""
    seconds: dict[str, float] = {}
    for shard in shards:
        for reason, amount in shard.receipt.telemetry.throttled_seconds.items():
            seconds[reason] = seconds.get(reason, 0.0) + amount
    if not seconds:
        return ""
    reasons = words.listed(
        f"{clipped(reason).replace('_', ' ')} {words.duration(amount)}"
        for reason, amount in sorted(seconds.items(), key=lambda pair: -pair[1])
    )
    return (
        f"GPUs lowered their clocks: {reasons}. A power cap is usual under full load; a thermal "
        "limit asks for better cooling."
    )
