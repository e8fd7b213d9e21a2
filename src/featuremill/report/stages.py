"""Where the time went, by device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt

from featuremill.base import words
from featuremill.report.chart import CATEGORIES, NOTHING_COMPUTED
from featuremill.report.facts import Facts
from featuremill.report.shards import Shard
from featuremill.workload.figures import REST, Figure, drawn, values

TITLE = "Where the time went"
STAGES = ("run", "load", "write", "other", "wait")
MEANINGS = (
    ("run", "the device computed batches"),
    ("load", "the weights were read and put on the device"),
    ("write", "rows were saved and the device had nothing to do; otherwise writing costs no time"),
    ("other", "starting Python and libraries, attempts that were lost, a device without work"),
    ("wait", "the shard waited for a free device"),
)


def figure(facts: Facts) -> Figure:
    """Return the chart of each device's seconds."""
    devices = sorted({shard.device for shard in facts.shards})
    spent = {
        device: _spent(shard for shard in facts.shards if shard.device == device)
        for device in devices
    }
    if not sum(sum(seconds.values()) for seconds in spent.values()):
        return Figure("stages", TITLE, NOTHING_COMPUTED)
    return drawn("stages", TITLE, _sentence(facts.shards), _by_device(spent), terms=MEANINGS)


def _by_device(spent: dict[str, dict[str, float]]) -> Any:
    y = alt.Y("lane:O", axis=None, scale=alt.Scale(padding=0))
    share = alt.Axis(format="%", tickCount=5)
    bars = (
        alt.Chart(values(row for lane in spent.items() for row in _shares(*lane)))
        .mark_bar(style="shard", height=26, yOffset=11)
        .encode(
            x=alt.X("seconds:Q", stack="normalize", title="share of all seconds", axis=share),
            y=y,
            color=alt.Color(
                "stage:N",
                scale=alt.Scale(domain=list(STAGES), range=[*CATEGORIES[:4], REST]),
                legend=alt.Legend(title=None),
            ),
            order="order:Q",
            tooltip=["device:N", "stage:N", "took:N", "share:N"],
        )
    )
    names = (
        alt.Chart(values({"lane": device, "device": device} for device in spent))
        .mark_text(style="lane", align="left", baseline="middle", dy=-14)
        .encode(x=alt.value(0), y=y, text="device:N")
    )
    return alt.layer(bars, names).properties(width="container", height=58 * len(spent))


def _spent(shards: Iterable[Shard]) -> dict[str, float]:
    """Return the seconds of each stage; together they are the shards' total.

    Preparing and writing go on beside running: of writing only what was left over is shown, of
    preparing nothing. `other` is what no stage claims: starting Python, attempts that were lost,
    and a device that waited for the host.
    """
    shards = list(shards)
    spent = {
        stage: sum(s.receipt.seconds[stage] for s in shards) for stage in STAGES if stage != "other"
    }
    total = sum(s.receipt.seconds["total"] for s in shards)
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


def _sentence(shards: list[Shard]) -> str:
    spent = _spent(shards)
    whole = sum(spent.values())
    start_up = spent["load"] + spent["other"]
    parts = [f"{stage} {words.share(spent[stage], whole)}" for stage in STAGES if spent[stage] > 0]
    prepared = sum(shard.receipt.seconds["prepare"] for shard in shards)
    text = (
        f"The times of all shards, added up, are {words.duration(whole)}: {words.listed(parts)}. "
        "Shards ran side by side where there were several devices. Starting up (load "
        f"and other) is {words.share(start_up, whole)} of it."
    )
    if prepared > 0.01 * whole:
        text += f" Preparing batches took {words.duration(prepared)} beside it, on a host thread."
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


def _are_small(shards: list[Shard]) -> bool:
    """Tell whether larger shards would help: they cannot where each device had only one.

    A shard that was interrupted started more than once, which no size would have spared.
    """
    smooth = [s for s in shards if not s.receipt.retries and not s.receipt.resumed_batches]
    spent = _spent(smooth)
    has_several = len(smooth) > len({shard.lane for shard in smooth})
    return has_several and spent["load"] + spent["other"] > 0.25 * sum(spent.values())
