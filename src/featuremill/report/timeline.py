"""When which device worked: lanes, idle pauses and busy time, from the shards' clock times.

Knows nothing of files or charts. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

CLOCK_TOLERANCE_SECONDS = 1.0
"""Clocks are read before and after the lock: shards that overlap by less ran one after another."""
MAX_BARS = 2_000
"""Above this, neighbouring shards share one bar: the page stays small, and no pixel is lost."""


class Interval(NamedTuple):
    """A span of clock time."""

    begin: float
    end: float


class Bar(NamedTuple):
    """One bar of the timeline: a shard, or neighbouring shards of one lane."""

    lane: int
    begin: float
    """Seconds on the axis, as `end`."""
    end: float
    members: tuple[int, ...]
    """The shards' positions in the input of `lay_out`."""


class Pause(NamedTuple):
    """A time in which no device worked at all, drawn shorter than it was."""

    at: float
    """Seconds on the axis."""
    seconds: float


class Stretch(NamedTuple):
    """Clock time that is drawn as long as it was."""

    begin: float
    """Clock time."""
    end: float
    skipped: float
    """What to subtract from clock time to get the axis's seconds."""


class Layout(NamedTuple):
    """Where everything is drawn."""

    bars: list[Bar]
    lanes: list[str]
    pauses: list[Pause]
    end: float
    """Where the axis ends, in its seconds."""
    stretches: list[Stretch]

    def at(self, moment: float) -> float:
        """Return where a clock time stands on the axis; within a pause, where that begins."""
        stretch = next((s for s in reversed(self.stretches) if moment >= s.begin), None)
        return 0.0 if stretch is None else min(moment, stretch.end) - stretch.skipped


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the spans that `intervals` cover, in order and disjoint."""
    covered: list[Interval] = []
    for begin, end in sorted(intervals):
        if covered and begin <= covered[-1].end:
            covered[-1] = Interval(covered[-1].begin, max(end, covered[-1].end))
        else:
            covered.append(Interval(begin, end))
    return covered


def seconds_of(intervals: Iterable[Interval]) -> float:
    """Return how much clock time `intervals` cover."""
    return sum(end - begin for begin, end in union(intervals))


def pauses(covered: Sequence[Interval]) -> list[Interval]:
    """Return the gaps between disjoint spans that are a pause rather than a part of the work.

    A run that was extended a month later has a month of nothing in its middle. A pause is longer
    than a tenth of the working time, and than a minute.
    """
    least = max(60.0, 0.1 * sum(end - begin for begin, end in covered))
    gaps = (Interval(one.end, next.begin) for one, next in pairwise(covered))
    return [gap for gap in gaps if gap.end - gap.begin > least]


def wall_seconds(intervals: Iterable[Interval]) -> float:
    """Return the clock time from the first begin to the last end, without the pauses."""
    covered = union(intervals)
    if not covered:
        return 0.0
    idle = sum(end - begin for begin, end in pauses(covered))
    return covered[-1].end - covered[0].begin - idle


def lay_out(spans: Sequence[Interval], devices: Sequence[str]) -> Layout:
    """Put every shard on a lane of its device, and shorten the pauses that would hide the work."""
    covered = union(spans)
    shown = 0.03 * sum(end - begin for begin, end in covered)
    begin, skipped = covered[0].begin, covered[0].begin
    marks: list[Pause] = []
    stretches: list[Stretch] = []
    for pause in pauses(covered):
        stretches.append(Stretch(begin, pause.begin, skipped))
        marks.append(Pause(pause.begin - skipped + shown / 2, pause.end - pause.begin))
        skipped += pause.end - pause.begin - shown
        begin = pause.end
    stretches.append(Stretch(begin, covered[-1].end, skipped))
    end = covered[-1].end - skipped
    lanes, lane_of = _lanes(spans, devices)
    layout = Layout([], lanes, marks, end, stretches)
    for position in sorted(range(len(spans)), key=lambda index: spans[index]):
        place = (layout.at(spans[position].begin), layout.at(spans[position].end))
        layout.bars.append(Bar(lane_of[position], *place, (position,)))
    return layout._replace(bars=_coarser(layout.bars, end))


def _lanes(spans: Sequence[Interval], devices: Sequence[str]) -> tuple[list[str], dict[int, int]]:
    """Give each device one lane, and more only where its shards truly ran side by side."""
    names: list[str] = []
    lane_of: dict[int, int] = {}
    for device in sorted(set(devices)):
        mine = [position for position in range(len(spans)) if devices[position] == device]
        first, free_from = len(names), list[float]()
        for position in sorted(mine, key=lambda index: spans[index]):
            begin, end = spans[position]
            slot = next(
                (i for i, free in enumerate(free_from) if begin >= free - CLOCK_TOLERANCE_SECONDS),
                len(free_from),
            )
            if slot == len(free_from):
                free_from.append(end)
                names.append(device)
            free_from[slot] = end
            lane_of[position] = first + slot
    return names, lane_of


def _coarser(bars: list[Bar], end: float) -> list[Bar]:
    """Join neighbours less than a pixel apart when there are too many bars."""
    if len(bars) <= MAX_BARS:
        return bars
    joined: dict[tuple[int, int], Bar] = {}
    step = end / (MAX_BARS / (1 + max(bar.lane for bar in bars)))
    for bar in bars:
        key = (bar.lane, int(bar.begin // step))
        before = joined.get(key)
        joined[key] = (
            bar
            if before is None
            else Bar(bar.lane, before.begin, max(before.end, bar.end), before.members + bar.members)
        )
    return list(joined.values())
