"""What the report's figures share: axes, colours of categories, and the axis of clock time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from featuremill.report.shards import Interval

NOTHING_COMPUTED = "No record was left to compute, so there is nothing to show."
CATEGORIES = ("--first", "--second", "--third", "--fourth", "--fifth", "--sixth", "--seventh")
"""Colours that people with any kind of colour vision can tell apart."""
UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
LABEL_WIDTH = 40
"""Pixels left of every chart over clock time, so that their axes stand below one another."""


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


class Clock(NamedTuple):
    """The horizontal axis of clock time that several charts have in common."""

    span: Interval
    unit: str
    divisor: float
    """Seconds in a unit."""

    def at(self, moment: float) -> float:
        """Return where a moment stands on the axis, in its unit."""
        return round((moment - self.span.begin) / self.divisor, 4)

    def x(self, field: str, has_title: bool = True) -> Any:
        """Return the encoding of a column that `at` made."""
        return alt.X(
            f"{field}:Q",
            title=f"{self.unit} since the first shard" if has_title else None,
            scale=alt.Scale(domain=[0, max(self.span.seconds, 0.1) / self.divisor], nice=False),
            axis=alt.Axis(tickCount=8),
        )


def clock_of(spans: Sequence[Interval]) -> Clock:
    """Return the axis for all `spans`, in the largest unit that gives it some ticks."""
    whole = Interval(min(spans).begin, max(span.end for span in spans))
    unit, divisor = next(u for u in UNITS if whole.seconds >= 3 * u[1] or u[1] == 1)
    return Clock(whole, unit, divisor)


def beside_labels() -> dict[str, Any]:
    """Return the settings of a vertical axis that is as wide as in all charts of clock time."""
    return {"minExtent": LABEL_WIDTH, "maxExtent": LABEL_WIDTH}
