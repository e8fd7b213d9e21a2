"""Ways to compute the same, side by side: the CPU seconds of each, and what it found."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Found = TypeVar("Found")


def measured(
    ways: Mapping[str, Callable[[], Found]], passes: int, warm_ups: int = 1
) -> tuple[dict[str, float], dict[str, Found]]:
    """Return the CPU seconds of each way, the median of `passes`, and what the last pass found.

    In each pass all ways take turns, so that a machine that gets slower is slower for all. The
    first `warm_ups` do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Found] = {}
    for number in range(passes + warm_ups):
        for name, compute in ways.items():
            start = time.process_time()
            found[name] = compute()
            if number >= warm_ups:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}, found
