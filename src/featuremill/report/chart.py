"""Axes and colours that figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

NOTHING_COMPUTED = "No record was left to compute, so there is nothing to show."
CATEGORIES = ("--first", "--second", "--third", "--fourth", "--fifth", "--sixth", "--seventh")
"""Colours that people with any kind of colour vision can tell apart."""


def axis(**settings: Any) -> Any:
    """Return an axis of large numbers (12k) and small ones, where Vega writes 0k and 600m."""
    words = "datum.value === 0 ? '0' : datum.value < 1 ? format(datum.value, '~r') : datum.label"
    return alt.Axis(format="~s", labelExpr=words, **settings)


def from_zero(num_ticks: int) -> Any:
    """Return a vertical scale that ends on a tick of an axis with about so many of them."""
    return alt.Scale(zero=True, nice=num_ticks)


def categories(names: Sequence[str], rest: Sequence[str] = ()) -> Any:
    """Return the scale that gives each name a colour; the last names take those of `rest`.

    Names beyond the seventh begin again with the first colour.
    """
    own = (CATEGORIES[n % len(CATEGORIES)] for n in range(len(names) - len(rest)))
    return alt.Scale(domain=list(names), range=[*own, *rest])
