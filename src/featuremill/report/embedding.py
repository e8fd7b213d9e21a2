"""The map of the embeddings, coloured by length or by a label of the user's."""

from __future__ import annotations

from typing import Any

import altair as alt

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.report.chart import FAINT, REST, Figure, categories, drawn, values
from featuremill.report.facts import Facts
from featuremill.report.labels import MAX_TEXT, NONE, OTHER, Labels
from featuremill.report.lengths import ticks
from featuremill.report.projection import Projection

TITLE = "The embedding space"
GREYS = {OTHER: REST, NONE: FAINT}
LEGEND_PIXELS = 300
"""What a phone has for a legend."""


def figure(facts: Facts) -> Figure:
    """Return the map, or the sentence that says why there is none."""
    found = facts.embedding
    if isinstance(found, str):
        return Figure("embeddings", TITLE, found)
    labels = facts.labels if facts.labels and facts.labels.num_found else None
    rows = _rows(found, labels)
    chart = (
        alt.Chart(values(rows))
        .mark_circle(style="cloud", size=22 if len(found.ids) > 1_000 else 40)
        .encode(
            x=_component("x", 1, found.explained[0]),
            y=_component("y", 2, found.explained[1]),
            color=_by_length(found) if labels is None else _by_label(labels, rows),
            tooltip=[
                "id:N",
                *([] if labels is None else [alt.Tooltip("label:N", title=labels.title)]),
                alt.Tooltip("length:Q", title="residues", format=",d"),
            ],
        )
        .properties(width="container", height=430)
    )
    return drawn("embeddings", TITLE, _sentence(found, facts.labels), chart, "canvas")


def _rows(found: Projection, labels: Labels | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"id": clipped(id), "length": length, "x": x, "y": y}
        for id, length, x, y in zip(
            found.ids,
            found.lengths,
            words.rounded(found.xy[:, 0]),
            words.rounded(found.xy[:, 1]),
            strict=True,
        )
    ]
    if labels is None:
        return rows
    numbers, names = labels.numbers, set(labels.names)
    for place, (row, text) in enumerate(zip(rows, labels.texts, strict=True)):
        row["label"] = NONE if text is None else clipped(text, MAX_TEXT)
        if numbers is not None:
            row["value"] = numbers[place]
        else:
            row["group"] = NONE if text is None else row["label"]
            row["group"] = OTHER if text is not None and row["group"] not in names else row["group"]
    # What is drawn last lies on top: that which has a colour.
    return sorted(rows, key=lambda row: row["label"] != NONE and row.get("group") != OTHER)


def _by_length(found: Projection) -> Any:
    return alt.Color(
        "length:Q",
        title="residues",
        scale=alt.Scale(type="log", range="ramp"),
        legend=alt.Legend(
            format=",d", values=ticks(min(found.lengths), max(found.lengths)), offset=26
        ),
    )


def _by_label(labels: Labels, rows: list[dict[str, Any]]) -> Any:
    if labels.numbers is not None:
        ramp, legend = alt.Scale(range="ramp"), alt.Legend(offset=26)
        return alt.Color("value:Q", title=labels.title, scale=ramp, legend=legend)
    present = {row["group"] for row in rows}
    rest = {name: colour for name, colour in GREYS.items() if name in present}
    names = [*labels.names, *rest]
    columns = LEGEND_PIXELS // (7 * max(map(len, names)) + 26)
    return alt.Color(
        "group:N",
        title=labels.title,
        scale=categories(names, tuple(rest.values())),
        legend=alt.Legend(columns=max(1, min(4, columns)), titleOrient="top", offset=26),
    )


def _component(field: str, number: int, explained: float) -> Any:
    title = f"component {number} ({words.share(explained, 1)})"
    axis = alt.Axis(labels=False, ticks=False, grid=False)
    encoding = alt.X if field == "x" else alt.Y
    return encoding(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(zero=False))


def _sentence(found: Projection, labels: Labels | None) -> str:
    """Return what the map shows and how it was made."""
    shown, total = len(found.ids), found.total
    sampling = f"All {shown:,} records"
    if shown < total:
        sampling = f"{shown:,} of {total:,} records, evenly spaced in the file"
    text = (
        f"{sampling}, by the two directions in which {found.column} varies most "
        f"({words.share(sum(found.explained), 1)} of the variance; a principal component analysis)."
    )
    if found.others:
        text += f" The file also holds {words.listed(found.others)}."
    if labels is None:
        return text
    if not labels.num_found:
        return f"{text} Coloured by length: {labels.file} has no row with the id of one of them."
    text += f" Coloured by {labels.title} of {labels.file}"
    if labels.num_found < shown:
        text += f", which has a label for {labels.num_found:,} of them"
    if labels.numbers is None and (more := len(set(labels.texts) - {None}) - len(labels.names)) > 0:
        text += f"; {more:,} rarer labels are grey, point at one to read it"
    return f"{text}."
