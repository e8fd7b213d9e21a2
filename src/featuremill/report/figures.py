"""The figures: what each is called, what it says in a sentence, and its chart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from featuremill.report import gantt, projection, words
from featuremill.report.chart import NOTHING_COMPUTED, Figure, specification, values
from featuremill.report.facts import Facts, Lengths, Shard

STAGES = ("run", "load", "write", "other", "wait")
MAX_POINTS = 2_000
"""Shards that the scatter plot shows; of more, evenly many."""


def draw(facts: Facts) -> dict[str, Figure]:
    """Return the figures by name, in the order of the page."""
    figures = (
        _lengths(facts),
        gantt.figure(facts),
        _throughput(facts),
        _stages(facts),
        _map(facts),
    )
    return {figure.name: figure for figure in figures}


def _lengths(facts: Facts) -> Figure:
    found = facts.lengths
    if not len(found.values):
        return Figure("lengths", "Lengths", NOTHING_COMPUTED, None)
    total, longest = int(found.counts.sum()), int(found.values[-1])
    median, most = found.quantile(0.5), found.quantile(0.95)
    sentence = (
        f"{words.records(total)} with {words.count(found.total)} residues. Half are no longer than "
        f"{words.count(median)}, 95 % no longer than {words.count(most)}; the longest has "
        f"{words.count(longest)}."
    )
    edges, counts = _bins(found)
    low, high = int(edges[0]), int(edges[-1])
    bars = alt.Chart(values(_bars(edges, counts))).mark_bar(style="cell-bar", orient="vertical")
    bars = bars.encode(
        x=alt.X(
            "from:Q",
            title="residues (logarithmic)",
            scale=alt.Scale(type="log", domain=[low, high], nice=False),
            axis=alt.Axis(values=_ticks(low, high), format=",d", grid=False),
        ),
        x2="to:Q",
        y=alt.Y("count:Q", title="records", axis=_axis(tickMinStep=1)),
        tooltip=[
            alt.Tooltip("span:N", title="residues"),
            alt.Tooltip("count:Q", title="records", format=",d"),
        ],
    )
    # Left of the median and right of the other: on a phone they would run into each other.
    marks = [(median, f"median {median:,}", "right" if median**4 > low**3 * high else "left")]
    marks += [(most, f"95 % {most:,}", "left")] if most > median else []
    chart = alt.layer(bars, *_guides(marks)).properties(width="container", height=260)
    return Figure("lengths", "Lengths", sentence, specification(chart))


def _bars(edges: np.ndarray, counts: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"from": first, "to": beyond, "count": int(count), "span": _span(first, beyond)}
        for (first, beyond), count in zip(pairwise(edges.tolist()), counts, strict=True)
        if count
    ]


def _guides(marks: list[tuple[int, str, str]]) -> list[Any]:
    """Return vertical lines with a word at the top, beside the line."""
    rules = alt.Chart(values({"at": at} for at, _, _ in marks)).mark_rule(style="guide")
    return [rules.encode(x="at:Q")] + [
        alt.Chart(values([{"at": at, "word": word}]))
        .mark_text(style="remark", align=align, baseline="bottom", dx=-3 if align == "right" else 3)
        .encode(x="at:Q", y=alt.value(0), text="word:N")
        for at, word, align in marks
    ]


def _axis(**settings: Any) -> Any:
    """Return an axis of large numbers (12k); a nought is 0 there, where Vega would write 0k."""
    plain_zero = "datum.value === 0 ? '0' : datum.label"
    return alt.Axis(format="~s", labelExpr=plain_zero, **settings)


def _span(first: int, beyond: int) -> str:
    return f"{first:,}" if beyond == first + 1 else f"{first:,} to {beyond - 1:,}"


def _bins(found: Lengths) -> tuple[np.ndarray, np.ndarray]:
    """Return whole-number edges, evenly spaced on a logarithmic axis, and what each bin holds."""
    low, high = max(1, int(found.values[0])), int(found.values[-1]) + 1
    num_bins = min(48, 8 + int(found.counts.sum() ** 0.5))  # few records, broad bins
    edges = np.unique(np.geomspace(low, high, num_bins + 1).round().astype(np.int64))
    counts, _ = np.histogram(found.values, bins=edges, weights=found.counts)
    return edges, counts


def _ticks(low: float, high: float) -> list[int]:
    steps = (1, 2, 5) if high / low < 30 else (1, 3)
    decades = range(int(np.log10(low)), int(np.log10(high)) + 1)
    ticks = [step * 10**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high] or [int(low)]


def _throughput(facts: Facts) -> Figure:
    title = "Throughput by shard"
    # A resumed shard's clock counts the last attempt only, its tokens count all.
    whole = [shard for shard in facts.shards if not shard.resumed_batches]
    if not whole:
        sentence = (
            "Every shard was resumed, so none has a rate." if facts.shards else NOTHING_COMPUTED
        )
        return Figure("throughput", title, sentence, None)
    shown = whole[:: -(-len(whole) // MAX_POINTS)]
    devices = sorted({shard.device for shard in whole})
    chart = (
        alt.Chart(values(_point(shard) for shard in shown))
        .mark_point(style="point")
        .encode(
            x=alt.X(
                "tokens:Q",
                title="tokens in the shard",
                axis=_axis(tickCount=5),
                scale=alt.Scale(zero=False),
            ),
            y=alt.Y("rate:Q", title="tokens/s", axis=_axis()),
            color=alt.Color(
                "device:N",
                scale=alt.Scale(domain=devices),
                legend=alt.Legend(title=None, columns=1, offset=26) if len(devices) > 1 else None,
            ),
            tooltip=[
                "shard:N",
                "device:N",
                "host:N",
                alt.Tooltip("tokens:Q", format=",d"),
                alt.Tooltip("rate:Q", title="tokens/s", format=",d"),
                "took:N",
            ],
        )
        .properties(width="container", height=260)
    )
    return Figure("throughput", title, _rates(facts, whole, devices), specification(chart))


def _point(shard: Shard) -> dict[str, Any]:
    return {
        "shard": shard.name[:12],
        "device": shard.device,
        "host": shard.host,
        "tokens": shard.tokens,
        "rate": round(shard.rate, 1),
        "took": words.duration(shard.working.end - shard.working.begin),
    }


def _rates(facts: Facts, whole: list[Shard], devices: list[str]) -> str:
    rates = ([shard.rate for shard in whole if shard.device == device] for device in devices)
    medians = [
        f"{words.short(float(np.median(own)))} on {device}"
        for own, device in zip(rates, devices, strict=True)
    ]
    text = f"Median tokens/s a shard, start-up included: {words.listed(medians)}."
    if resumed := len(facts.shards) - len(whole):
        text += f" {words.plural(resumed, 'resumed shard')} left out: the clock saw only a part."
    if len(whole) > MAX_POINTS:
        text += " Evenly many of the shards are drawn."
    return text


def _stages(facts: Facts) -> Figure:
    title = "Where the time went"
    devices = sorted({shard.device for shard in facts.shards})
    spent = [
        _spent([shard for shard in facts.shards if shard.device == device]) for device in devices
    ]
    if not sum(sum(seconds.values()) for seconds in spent):
        return Figure("stages", title, NOTHING_COMPUTED, None)
    y = alt.Y("lane:O", axis=None, scale=alt.Scale(padding=0))
    share = alt.Axis(format="%", tickCount=5)
    bars = (
        alt.Chart(
            values(row for lane in zip(devices, spent, strict=True) for row in _shares(*lane))
        )
        .mark_bar(style="shard", height=26, yOffset=11)
        .encode(
            x=alt.X("seconds:Q", stack="normalize", title="share of all seconds", axis=share),
            y=y,
            color=alt.Color(
                "stage:N", scale=alt.Scale(domain=list(STAGES)), legend=alt.Legend(title=None)
            ),
            order="order:Q",
            tooltip=["device:N", "stage:N", "took:N", "share:N"],
        )
    )
    names = (
        alt.Chart(values({"lane": device, "device": device} for device in devices))
        .mark_text(style="lane", align="left", baseline="middle", dy=-14)
        .encode(x=alt.value(0), y=y, text="device:N")
    )
    chart = alt.layer(bars, names).properties(width="container", height=58 * len(devices))
    return Figure("stages", title, _advice(facts.shards), specification(chart))


def _spent(shards: list[Shard]) -> dict[str, float]:
    """Return the seconds of each stage; together they are the shards' total.

    Preparing and writing go on beside running: of writing only what was left over is shown, of
    preparing nothing. `other` is what no stage claims: starting Python, attempts that were lost,
    and a device that waited for the host.
    """
    spent = {stage: sum(s.seconds[stage] for s in shards) for stage in STAGES if stage != "other"}
    total = sum(s.seconds["total"] for s in shards)
    hidden = sum(spent.values()) - total
    spent["write"] = max(0.0, spent["write"] - max(0.0, hidden))
    spent["other"] = max(0.0, -hidden)
    return spent


def _shares(device: str, spent: dict[str, float]) -> list[dict[str, Any]]:
    whole = sum(spent.values())
    return [
        {
            "lane": device,
            "device": device,
            "stage": stage,
            "order": order,
            "seconds": round(spent[stage], 3),
            "took": words.duration(spent[stage]),
            "share": words.share(spent[stage], whole),
        }
        for order, stage in enumerate(STAGES)
        if spent[stage] > 0
    ]


def _advice(shards: list[Shard]) -> str:
    spent = _spent(shards)
    whole = sum(spent.values())
    parts = [f"{stage} {words.share(spent[stage], whole)}" for stage in STAGES if spent[stage] > 0]
    prepared = sum(shard.seconds["prepare"] for shard in shards)
    text = f"{words.listed(parts).capitalize()}. Other is starting up, and attempts that were lost."
    if prepared > 0.01 * whole:
        text += f" Preparing batches took {words.duration(prepared)} beside it, on a host thread."
    if spent["wait"] > 0.5 * whole:
        text += " Most was waiting for a free device: with more of them the run ends sooner."
    elif spent["load"] + spent["other"] > 0.25 * whole:
        text += " Fewer, larger shards (shards.cost) would spend less on loading and starting."
    return text


def _map(facts: Facts) -> Figure:
    title = "The embedding space"
    found = facts.embedding
    if isinstance(found, str):
        return Figure("embeddings", title, found, None)
    rows = (
        {"id": id, "length": length, "x": x, "y": y}
        for id, length, x, y in zip(
            found.ids,
            found.lengths,
            words.rounded(found.xy[:, 0]),
            words.rounded(found.xy[:, 1]),
            strict=True,
        )
    )
    ticks = _ticks(min(found.lengths), max(found.lengths))
    chart = (
        alt.Chart(values(rows))
        .mark_circle(style="cloud", size=22 if len(found.ids) > 1_000 else 40)
        .encode(
            x=_component("x", 1, found.explained[0]),
            y=_component("y", 2, found.explained[1]),
            color=alt.Color(
                "length:Q",
                title="residues",
                scale=alt.Scale(type="log", range="ramp"),
                legend=alt.Legend(format=",d", values=ticks, offset=26),
            ),
            tooltip=["id:N", alt.Tooltip("length:Q", title="residues", format=",d")],
        )
        .properties(width="container", height=430)
    )
    return Figure("embeddings", title, projection.sentence(found), specification(chart))


def _component(field: str, number: int, explained: float) -> Any:
    title = f"component {number} ({words.share(explained, 1)})"
    axis = alt.Axis(labels=False, ticks=False, grid=False)
    encoding = alt.X if field == "x" else alt.Y
    return encoding(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(zero=False))
