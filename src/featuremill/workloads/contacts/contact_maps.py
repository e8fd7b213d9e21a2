"""The report's figures of contacts: for each of the first proteins, a map of its listed pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt
import pyarrow as pa

from featuremill.kit.text import clipped, counted
from featuremill.workload.figures import Figure, drawn, values
from featuremill.workloads.contacts.columns import PAIRS
from featuremill.workloads.scores.heat_maps import figures_of

MOST_PAIRS = 3000
"""The largest number of pairs in a map, so that the page is small."""
SIDE_PIXELS = 360
"""The side of a map: the width of a phone."""
LEAST_PIXELS = 2.0
"""The least side of a mark, as residues of long proteins are narrower than a pixel."""
MOST_LETTERS = 40
RAMP = ["--card", "--first"]
"""Colours of the probabilities 0 and 1."""


class Protein(NamedTuple):
    """A protein with its listed pairs, the highest probability first."""

    id: str
    length: int
    pairs: Sequence[dict[str, Any]]


def figures(read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]) -> list[Figure]:
    """Return figures of the first proteins with pairs; `read` yields batches of columns."""
    return figures_of(_proteins(read(["id", "length", PAIRS])), figure)


def _proteins(batches: Iterable[pa.RecordBatch]) -> Iterator[Protein]:
    for batch in batches:
        for id, length, rows in zip(*batch.columns, strict=True):
            if pairs := rows.as_py():
                yield Protein(id.as_py(), length.as_py(), pairs)


def figure(number: int, protein: Protein) -> Figure:
    pairs = protein.pairs[:MOST_PAIRS]
    first = pairs[0]
    sentence = (
        f"{protein.length:,} residues, {counted(len(protein.pairs), 'listed pair')}. The likeliest "
        f"is {first['residue_i']}{first['i']} with {first['residue_j']}{first['j']}, at "
        f"{first['probability']:.2f}. Each pair is drawn on both sides of the diagonal."
    )
    if len(pairs) < len(protein.pairs):
        sentence += f" Drawn are the likeliest {len(pairs):,}."
    rows = [{**pair, "probability": round(pair["probability"], 3)} for pair in reversed(pairs)]
    title = f"Contacts of {clipped(protein.id, MOST_LETTERS)}"
    return drawn(f"contacts-{number}", title, sentence, _map(rows, protein.length), "canvas")


def _map(rows: Sequence[dict[str, Any]], length: int) -> Any:
    side = max(LEAST_PIXELS, SIDE_PIXELS / length)
    scale = alt.Scale(domain=[0.5, length + 0.5], nice=False, zero=False)
    colours = alt.Scale(domain=[0, 1], range=RAMP, interpolate="lab")
    base = alt.Chart(values(rows)).mark_square(size=side**2, opacity=1)

    def half(across: str, down: str) -> Any:
        return base.encode(
            x=alt.X(f"{across}:Q", title="position in the protein", scale=scale),
            y=alt.Y(
                f"{down}:Q", title="position", scale=alt.Scale(**scale.to_dict(), reverse=True)
            ),
            color=alt.Color("probability:Q", scale=colours, legend=alt.Legend(orient="bottom")),
            tooltip=["i:Q", "residue_i:N", "j:Q", "residue_j:N", alt.Tooltip("probability:Q")],
        )

    return (half("j", "i") + half("i", "j")).properties(width=SIDE_PIXELS, height=SIDE_PIXELS)
