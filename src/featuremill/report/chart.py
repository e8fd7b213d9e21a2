"""Axes, scales and colours of the charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

NOTHING_COMPUTED = "No record was left to compute, so there is nothing to show."
CATEGORIES = ("--first", "--second", "--third", "--fourth", "--fifth", "--sixth", "--seventh")
"""Colours that can be distinguished with any type of colour vision."""


def axis(**settings: Any) -> Any:
    """Return an axis for large numbers (12k) and small ones, for which Vega writes 0k and 600m."""
    words = "datum.value === 0 ? '0' : datum.value < 1 ? format(datum.value, '~r') : datum.label"
    return alt.Axis(format="~s", labelExpr=words, **settings)


def from_zero(num_ticks: int) -> Any:
    """Return a scale from zero that ends on a tick of an axis with about `num_ticks` ticks."""
    return alt.Scale(zero=True, nice=num_ticks)


def categories(names: Sequence[str], rest: Sequence[str] = ()) -> Any:
    """Return a scale with a colour for each name; the last names have the colours `rest`.

    Colours repeat after the seventh name.
    """
    own = (CATEGORIES[n % len(CATEGORIES)] for n in range(len(names) - len(rest)))
    return alt.Scale(domain=list(names), range=[*own, *rest])
