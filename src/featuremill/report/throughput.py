"""How fast each shard was, while its device computed and with start-up."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from featuremill.base import words
from featuremill.base.words import counted
from featuremill.report.chart import (
    NOTHING_COMPUTED,
    Clock,
    axis,
    beside_labels,
    categories,
    evenly,
    from_zero,
)
from featuremill.report.facts import Facts
from featuremill.report.shards import Shard
from featuremill.workload.figures import Figure, drawn, values

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
    shards = [shard for shard in facts.shards if not shard.receipt.resumed_batches]
    if not shards or clock is None:
        sentence = (
            "Every shard was resumed, so none has a rate." if facts.shards else NOTHING_COMPUTED
        )
        return Figure("throughput", title, sentence)
    shown = evenly(shards, MAX_SHARDS)
    chart = _points([row for shard in shown for row in _rows(shard, clock)], clock, unit)
    sentence = _sentence(facts, shards, len(shown))
    terms = tuple((kind, meaning.format(unit)) for kind, meaning in TERMS)
    return drawn("throughput", title, sentence, chart, terms=terms)


def _rows(shard: Shard, clock: Clock) -> list[dict[str, Any]]:
    common = {
        "shard": shard.name[:12],
        "device": shard.device,
        "host": shard.host,
        "tokens": shard.receipt.cost,
        "began": clock.at(shard.working.begin),
        "took": words.duration(shard.working.seconds),
    }
    rates = {RUNNING: shard.running_rate, WHOLE: shard.rate}
    return [
        common | {"kind": kind, "rate": round(rate, 1)}
        for kind, rate in rates.items()
        if rate is not None
    ]


def _points(rows: list[dict[str, Any]], clock: Clock, unit: str) -> Any:
    devices = sorted({row["device"] for row in rows})
    legend = alt.Legend(title=None, columns=1, offset=26, symbolType="square")
    upright = axis(tickCount=NUM_TICKS, **beside_labels())
    return (
        alt.Chart(values(rows))
        .mark_point(style="point")
        .encode(
            x=clock.x("began"),
            y=alt.Y("rate:Q", title=f"{unit}/s", scale=from_zero(NUM_TICKS), axis=upright),
            color=alt.Color(
                "device:N",
                scale=categories(devices),
                legend=legend if len(devices) > 1 else None,
            ),
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
        .properties(width="container", height=260)
    )


def _sentence(facts: Facts, shards: list[Shard], num_shown: int) -> str:
    text = ""
    for device in sorted({shard.device for shard in shards}):
        own = [shard for shard in shards if shard.device == device]
        running = [shard.running_rate for shard in own if shard.running_rate is not None]
        if running:
            whole = float(np.median([shard.rate for shard in own]))
            text += (
                f"{device}: in the median {words.short(float(np.median(running)))} "
                f"{facts.cost_unit}/s while computing and {words.short(whole)} with start-up. "
            )
    text = text or "Computing took too short to have a rate of its own. "
    if resumed := len(facts.shards) - len(shards):
        text += f"{counted(resumed, 'resumed shard')} left out: the clock saw only a part. "
    if num_shown < len(shards):
        text += f"{num_shown:,} of {len(shards):,} shards are drawn, evenly chosen."
    return text.strip()
