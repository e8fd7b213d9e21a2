"""How fast each shard was, beside the fastest that its kind of device did in this run."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from featuremill.base import words
from featuremill.base.sizes import counted
from featuremill.report import roofs
from featuremill.report.chart import (
    NOTHING_COMPUTED,
    Clock,
    Figure,
    axis,
    beside_labels,
    categories,
    drawn,
    evenly,
    from_zero,
    values,
)
from featuremill.report.facts import Facts
from featuremill.report.roofs import Roof
from featuremill.report.shards import Shard

RUNNING, WHOLE = "while computing", "from its start to its end"
KINDS = (RUNNING, WHOLE)
TERMS = (
    (RUNNING, "{} by the seconds in which the device computed batches"),
    (WHOLE, "{} by all seconds on the device: loading and starting up included"),
)
"""With the unit of cost."""
NUM_TICKS = 5
MAX_SHARDS = 1_000
"""Shards that are drawn; of more, evenly many."""


def figure(facts: Facts, clock: Clock | None) -> Figure:
    """Return the shards' rates over the time of the run."""
    unit = facts.cost_unit
    title = f"{unit[:1].upper()}{unit[1:]} a second, shard by shard"
    # A resumed shard's clock counts the last attempt only, its tokens count all.
    shards = [shard for shard in facts.shards if not shard.resumed_batches]
    if not shards or clock is None:
        sentence = (
            "Every shard was resumed, so none has a rate." if facts.shards else NOTHING_COMPUTED
        )
        return Figure("throughput", title, sentence)
    known = _roofs(facts, shards)
    shown = evenly(shards, MAX_SHARDS)
    devices = sorted({shard.device for shard in shards})
    rows = [row for shard in shown for row in _rows(shard, clock)]
    points = _points(rows, clock, _colour(devices, True), unit)
    layers = [points, *_lines(known, _colour(devices, False))]
    chart = alt.layer(*layers).properties(width="container", height=260)
    chart = chart.resolve_legend(color="independent")
    sentence = _sentence(facts, shards, len(shown), known)
    terms = tuple((kind, meaning.format(unit)) for kind, meaning in TERMS)
    return drawn("throughput", title, sentence, chart, terms=terms)


def _colour(devices: list[str], has_legend: bool) -> Any:
    legend = alt.Legend(title=None, columns=1, offset=26, symbolType="square")
    legend = legend if has_legend and len(devices) > 1 else None
    return alt.Color("device:N", scale=categories(devices), legend=legend)


def _rows(shard: Shard, clock: Clock) -> list[dict[str, Any]]:
    common = {
        "shard": shard.name[:12],
        "device": shard.device,
        "host": shard.host,
        "tokens": shard.tokens,
        "began": clock.at(shard.working.begin),
        "took": words.duration(shard.working.end - shard.working.begin),
    }
    rates = {RUNNING: shard.running_rate, WHOLE: shard.rate}
    return [
        common | {"kind": kind, "rate": round(rate, 1)}
        for kind, rate in rates.items()
        if rate is not None
    ]


def _points(rows: list[dict[str, Any]], clock: Clock, colour: Any, unit: str) -> Any:
    upright = axis(tickCount=NUM_TICKS, **beside_labels())
    return (
        alt.Chart(values(rows))
        .mark_point(style="point")
        .encode(
            x=clock.x("began"),
            y=alt.Y("rate:Q", title=f"{unit}/s", scale=from_zero(NUM_TICKS), axis=upright),
            color=colour,
            shape=alt.Shape(
                "kind:N",
                scale=alt.Scale(domain=list(KINDS), range=["circle", "triangle-down"]),
                legend=alt.Legend(title=None, offset=26, symbolFillColor="gray"),
            ),
            tooltip=[
                "shard:N",
                "device:N",
                "host:N",
                alt.Tooltip("tokens:Q", title=unit, format=",d"),
                "kind:N",
                alt.Tooltip("rate:Q", title=f"{unit}/s", format=",d"),
                "took:N",
            ],
        )
    )


def _lines(roofs: list[Roof], colour: Any) -> list[Any]:
    """Return the roofs as lines, each with its name at the right end."""
    rows = [
        {
            "device": roof.device,
            "roof": roof.rate,
            "word": "roof" if roof.is_measured else "fastest shard",
        }
        for roof in roofs
    ]
    base = alt.Chart(values(rows)).encode(y="roof:Q")
    word = base.mark_text(style="remark", align="right", baseline="bottom", dy=-3)
    return [
        base.mark_rule(style="roof", clip=True).encode(color=colour),
        word.encode(x=alt.value("width"), text="word:N"),
    ]


def _roofs(facts: Facts, shards: list[Shard]) -> list[Roof]:
    rates: dict[str, list[float]] = {}
    for shard in shards:
        if shard.running_rate is not None:
            rates.setdefault(shard.device, []).append(shard.running_rate)
    return [
        facts.roofs.get(device) or roofs.fastest(device, own)
        for device, own in sorted(rates.items())
    ]


def _sentence(facts: Facts, shards: list[Shard], num_shown: int, known: list[Roof]) -> str:
    text = "" if known else "Computing took too short to have a rate of its own. "
    for roof in known:
        own = [shard for shard in shards if shard.device == roof.device]
        running = [shard.running_rate for shard in own if shard.running_rate is not None]
        median = float(np.median(running))
        whole = float(np.median([shard.rate for shard in own]))
        text += (
            f"{roof.device}: in the median {words.short(median)} {facts.cost_unit}/s "
            f"while computing and {words.short(whole)} with start-up; "
        )
        text += (
            f"that is {words.share(median, roof.rate)} and {words.share(whole, roof.rate)} of "
            f"{words.short(roof.rate)}, {roof.source}. "
        )
    if not all(roof.is_measured for roof in known):
        text += "What the device could do at most was not measured: only what it did. "
    if resumed := len(facts.shards) - len(shards):
        text += f"{counted(resumed, 'resumed shard')} left out: the clock saw only a part. "
    if num_shown < len(shards):
        text += f"{num_shown:,} of {len(shards):,} shards are drawn, evenly chosen."
    return text.strip()
