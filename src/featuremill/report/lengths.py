"""The lengths of the planned records, and their histogram."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base import words
from featuremill.workload.figures import NOTHING_COMPUTED, Figure, axis, drawn, values


class Lengths(NamedTuple):
    """The distribution of lengths of planned records: each length and its number of records."""

    values: np.ndarray
    counts: np.ndarray

    @property
    def total(self) -> int:
        return int((self.values * self.counts).sum())

    def quantile(self, share: float) -> int:
        """Return the length that `share` of the records do not exceed."""
        reached = np.searchsorted(self.counts.cumsum(), share * self.counts.sum())
        return int(self.values[min(int(reached), len(self.values) - 1)])


def read(path: Path) -> tuple[int, Lengths]:
    """Return the number of input records, and the lengths of the planned records."""
    lengths = Counter[int]()
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        for batch in file.iter_batches(columns=["status", "length"]):
            status = batch.column("status").cast(pa.string())
            planned = batch.column("length").filter(pc.equal(status, "planned"))
            for pair in planned.value_counts().to_pylist():
                lengths[pair["values"]] += pair["counts"]
        num_rows = file.metadata.num_rows
    ordered = sorted(lengths)
    counts = np.array([lengths[value] for value in ordered], np.int64)
    return num_rows, Lengths(np.array(ordered, np.int64), counts)


def figure(lengths: Lengths, unit: str) -> Figure:
    """Return the histogram of lengths in `unit`."""
    if not len(lengths.values):
        return Figure("lengths", "Lengths", NOTHING_COMPUTED)
    total, longest = int(lengths.counts.sum()), int(lengths.values[-1])
    if len(lengths.values) == 1:
        each = " each" if total > 1 else ""
        sentence = f"{words.records(total)} of {words.in_units(longest, unit)}{each}."
        return Figure("lengths", "Lengths", sentence)
    median, most = lengths.quantile(0.5), lengths.quantile(0.95)
    sentence = (
        f"{words.records(total)} with {words.in_units(lengths.total, unit)}. Half are no longer "
        f"than {median:,}, 95 % no longer than {most:,}; the longest has {longest:,}."
    )
    edges, counts = _bins(lengths)
    low, high = int(edges[0]), int(edges[-1])
    upright, to_a_tick = axis(tickCount=5, tickMinStep=1), alt.Scale(zero=True, nice=5)
    bars = alt.Chart(values(_bars(edges, counts))).mark_bar(style="cell-bar", orient="vertical")
    bars = bars.encode(
        x=alt.X(
            "from:Q",
            title=f"{unit} (logarithmic)",
            scale=alt.Scale(type="log", domain=[low, high], nice=False),
            axis=alt.Axis(values=ticks(low, high), format=",d", grid=False),
        ),
        x2="to:Q",
        y=alt.Y("count:Q", title="records", scale=to_a_tick, axis=upright),
        tooltip=[
            alt.Tooltip("span:N", title=unit),
            alt.Tooltip("count:Q", title="records", format=",d"),
        ],
    )
    # The text of the median is on the left of its line, so that texts do not overlap on a phone.
    marks = [(median, f"median {median:,}", "right" if median**4 > low**3 * high else "left")]
    marks += [(most, f"95 % {most:,}", "left")] if most > median else []
    chart = alt.layer(bars, *_guides(marks)).properties(width="container", height=260)
    return drawn("lengths", "Lengths", sentence, chart)


def _bars(edges: np.ndarray, counts: np.ndarray) -> list[dict[str, Any]]:
    return [
        {
            "from": first,
            "to": beyond,
            "count": int(count),
            "span": f"{first:,}" + (f" to {beyond - 1:,}" if beyond > first + 1 else ""),
        }
        for (first, beyond), count in zip(pairwise(edges.tolist()), counts, strict=True)
        if count
    ]


def _guides(marks: list[tuple[int, str, str]]) -> list[Any]:
    rules = alt.Chart(values({"at": at} for at, _, _ in marks)).mark_rule(style="guide")
    return [rules.encode(x="at:Q")] + [
        alt.Chart(values([{"at": at, "word": word}]))
        .mark_text(style="remark", align=align, baseline="bottom", dx=-3 if align == "right" else 3)
        .encode(x="at:Q", y=alt.value(0), text="word:N")
        for at, word, align in marks
    ]


def _bins(lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    """Return integer edges, evenly spaced on a logarithmic axis, and the count of each bin."""
    low, high = max(1, int(lengths.values[0])), int(lengths.values[-1]) + 1
    num_bins = min(48, 8 + int(lengths.counts.sum() ** 0.5))  # wider bins for few records
    edges = np.unique(np.geomspace(low, high, num_bins + 1).round().astype(np.int64))
    counts, _ = np.histogram(lengths.values, bins=edges, weights=lengths.counts)
    return edges, counts


def ticks(low: float, high: float) -> list[int]:
    """Return round numbers for a logarithmic axis."""
    steps = (1, 2, 5) if high / low < 30 else (1, 3)
    decades = range(int(np.log10(low)), int(np.log10(high)) + 1)
    candidates = [step * 10**decade for decade in decades for step in steps]
    return [tick for tick in candidates if low <= tick <= high] or [int(low)]
