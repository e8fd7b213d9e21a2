"""The types of a page's figures and charts, with their axes, scales and colours.

Charts contain data and geometry only. The page sets colours and fonts (assets/charts.js), for light
and dark screens. A range such as `["--first"]` names colours of its style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import altair as alt
from altair.utils.schemapi import debug_mode

REST, FAINT = "--rest", "--faint"
"""Colours for values without a colour of their own, and for background marks."""


class Panel(NamedTuple):
    """One chart of a figure."""

    name: str
    """The identifier in the page."""
    title: str
    """The line above the chart; empty if the figure's title is enough."""
    chart: dict[str, Any]
    """A Vega-Lite specification."""
    renderer: str = "svg"


class Figure(NamedTuple):
    """One figure of the report."""

    name: str
    """The name of the file, the caption and the anchor in the page."""
    title: str
    sentence: str
    """A sentence about what the figure shows, with its main numbers."""
    panels: tuple[Panel, ...] = ()
    """Empty if there is nothing to draw."""
    terms: tuple[tuple[str, str], ...] = ()
    """Terms of the figure with their meanings."""
    html: str = ""
    """The HTML of a figure without charts; it is trusted, so inputs in it are escaped."""


def drawn(
    name: str,
    title: str,
    sentence: str,
    chart: Any,
    renderer: str = "svg",
    terms: tuple[tuple[str, str], ...] = (),
) -> Figure:
    """Return a figure of one chart."""
    panel = Panel(name, "", specification(chart), renderer)
    return Figure(name, title, sentence, (panel,), terms)


def specification(chart: Any) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart, without the settings that the page makes."""
    plain: dict[str, Any] = chart.to_dict(validate=False)
    plain.pop("config", None)
    plain.pop("$schema", None)
    plain["autosize"] = {"type": "fit-x", "contains": "padding"}
    return plain


def values(rows: Iterable[dict[str, Any]]) -> Any:
    """Return `rows` as the data of a chart."""
    with debug_mode(False):  # altair would check thousands of rows against its schema
        return alt.Data(values=list(rows))


NOTHING_COMPUTED = "No record was left to compute, so there is nothing to show."
CATEGORIES = ("--first", "--second", "--third", "--fourth", "--fifth", "--sixth", "--seventh")
"""Colours that can be distinguished with any type of colour vision."""


def axis(**settings: Any) -> Any:
    """Return an axis for large numbers (12k) and small ones, for which Vega writes 0k and 600m."""
    words = "datum.value === 0 ? '0' : datum.value < 1 ? format(datum.value, '~r') : datum.label"
    return alt.Axis(format="~s", labelExpr=words, **settings)


def categories(names: Sequence[str]) -> Any:
    """Return a scale with a colour for each name; they repeat after the seventh name."""
    colours = [CATEGORIES[number % len(CATEGORIES)] for number in range(len(names))]
    return alt.Scale(domain=list(names), range=colours)
