"""Estimates with 95 % intervals, by a bootstrap over groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Estimate", "bootstrap"]
RESAMPLES = 1000


class Estimate(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} | {self.low:.3f}–{self.high:.3f}"


def bootstrap(
    statistic: Callable[[npt.NDArray[np.intp]], float], groups_N: npt.NDArray[Any]
) -> Estimate:
    """Return `statistic` of all N items, and its interval from draws of whole groups.

    `statistic` gets the items' indices; `groups_N` has the group of each. Draws whose statistic is
    NaN do not count.
    """
    random = np.random.default_rng(0)
    order = np.argsort(groups_N, kind="stable")
    _, sizes = np.unique(groups_N, return_counts=True)
    members = np.split(order, np.cumsum(sizes)[:-1])
    resampled = []
    for _ in range(RESAMPLES):
        drawn = random.integers(len(members), size=len(members))
        resampled.append(statistic(np.concatenate([members[group] for group in drawn])))
    low, high = np.nanpercentile(resampled, (2.5, 97.5))
    return Estimate(statistic(np.arange(len(groups_N))), float(low), float(high))
