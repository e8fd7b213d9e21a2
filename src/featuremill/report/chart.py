"""What all figures share: the form of a figure, and charts as plain data.

Charts carry data and geometry only. Colours and fonts come from the page (assets/charts.js), which
knows whether the reader's screen is light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import altair as alt

NOTHING_COMPUTED = "No record was left to compute, so there is nothing to show."


class Figure(NamedTuple):
    """One figure of the report."""

    name: str
    """Names the file, the caption and the place in the page."""
    title: str
    sentence: str
    """What the figure shows, in words, with the numbers that matter."""
    chart: dict[str, Any] | None
    """A Vega-Lite specification; None where there is nothing to draw."""


def specification(chart: Any) -> dict[str, Any]:
    """Return the chart as plain data, without what the page decides."""
    plain: dict[str, Any] = chart.to_dict()
    plain.pop("config", None)
    plain.pop("$schema", None)
    plain["autosize"] = {"type": "fit-x", "contains": "padding"}
    return plain


def values(rows: Iterable[dict[str, Any]]) -> Any:
    """Return `rows` as a chart's data."""
    return alt.Data(values=list(rows))
