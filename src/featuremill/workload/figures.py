"""Figures as pages show them: the form of a figure, and charts as plain data.

Charts carry data and geometry only. Colours and fonts come from the page (assets/charts.js), which
knows whether the reader's screen is light or dark; a range such as `["--first"]` names colours of
its style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import altair as alt
from altair.utils.schemapi import debug_mode

REST, FAINT = "--rest", "--faint"
"""The colours of what has none of its own, and of what is hardly there."""


class Panel(NamedTuple):
    """One chart of a figure."""

    name: str
    """Names it in the page."""
    title: str
    """Stands above the chart; empty where the figure's own says it."""
    chart: dict[str, Any]
    """A Vega-Lite specification."""
    renderer: str = "svg"


class Figure(NamedTuple):
    """One figure of the report."""

    name: str
    """Names the file, the caption and the place in the page."""
    title: str
    sentence: str
    """What the figure shows, in words, with the numbers that matter."""
    panels: tuple[Panel, ...] = ()
    """Empty where there is nothing to draw."""
    terms: tuple[tuple[str, str], ...] = ()
    """Words of the figure and what they mean."""


def drawn(
    name: str,
    title: str,
    sentence: str,
    chart: Any,
    renderer: str = "svg",
    terms: tuple[tuple[str, str], ...] = (),
) -> Figure:
    """Return the figure of one chart."""
    panel = Panel(name, "", specification(chart), renderer)
    return Figure(name, title, sentence, (panel,), terms)


def specification(chart: Any) -> dict[str, Any]:
    """Return the chart as plain data, without what the page decides."""
    plain: dict[str, Any] = chart.to_dict(validate=False)
    plain.pop("config", None)
    plain.pop("$schema", None)
    plain["autosize"] = {"type": "fit-x", "contains": "padding"}
    return plain


def values(rows: Iterable[dict[str, Any]]) -> Any:
    """Return `rows` as a chart's data."""
    with debug_mode(False):  # or altair checks each of thousands of rows against its schema
        return alt.Data(values=list(rows))
