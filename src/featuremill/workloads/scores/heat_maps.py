"""The report's figures of scores: for each of the first proteins, a heat map of its single
substitutions (positions × residues) and its highest and lowest variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import altair as alt
import pyarrow as pa

from featuremill.kit.text import clipped
from featuremill.workload.figures import REST, Figure, Panel, specification, values
from featuremill.workloads.scores.columns import VARIANTS
from featuremill.workloads.scores.edits import is_indel
from featuremill.workloads.scores.variants import AMINO_ACIDS, substitutions

__all__ = ["figures_of"]
MOST_PROTEINS = 6
"""The largest number of proteins with figures, so that the report is small."""
STRETCH = 100
"""Positions of one heat map; more would make the cells too narrow."""
MOST_STRETCHES = 6
MIN_SHARE = 0.25
"""The least share of all single substitutions for a heat map; below it, most cells are empty."""
MOST_RANKED = 10
"""The number of highest and of lowest variants."""
CELL_PIXELS = 13
MOST_LETTERS = 40
AnyProtein = TypeVar("AnyProtein")
DIVERGING = ["--second", "--card", "--first"]
"""Colours of negative scores, of zero and of positive scores."""


class Scored(NamedTuple):
    variant: str
    score: float


class Protein(NamedTuple):
    id: str
    length: int
    column: str
    """The name of the score, such as `wildtype_marginal`."""
    scored: Sequence[Scored]


def figures_of(
    proteins: Iterator[AnyProtein], figure: Callable[[int, AnyProtein], Figure]
) -> list[Figure]:
    """Return `figure(number, protein)` of the first proteins; numbers start at 1. If there are more
    proteins, the sentence of the first figure states it."""
    first = list(islice(proteins, MOST_PROTEINS + 1))
    every = [figure(number, each) for number, each in enumerate(first[:MOST_PROTEINS], start=1)]
    if len(first) > MOST_PROTEINS:
        more = f" Only the first {MOST_PROTEINS} proteins are drawn; the results have all."
        every[0] = every[0]._replace(sentence=every[0].sentence + more)
    return every


def figures(read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]) -> list[Figure]:
    """Return a figure for each of the first proteins; `read` yields batches of columns."""
    return figures_of(_proteins(read(["id", "length", VARIANTS])), figure)


def _proteins(batches: Iterable[pa.RecordBatch]) -> Iterator[Protein]:
    for batch in batches:
        struct = batch.schema.field(VARIANTS).type.value_type
        scores = [field.name for field in struct if field.type == pa.float32()]
        variant = "read_as" if struct.get_field_index("read_as") >= 0 else "variant"
        for id, length, rows in zip(*batch.columns, strict=True):
            names = rows.values.field(variant).to_pylist()
            known = (name for name in scores if rows.values.field(name).null_count < len(names))
            if score := next(known, ""):  # insertions and deletions have only the last score
                pairs = zip(names, rows.values.field(score).to_pylist(), strict=True)
                score_of = dict(pair for pair in pairs if None not in pair)
                scored = list(map(Scored, *zip(*score_of.items(), strict=True)))
                yield Protein(id.as_py(), length.as_py(), score, scored)


def figure(number: int, protein: Protein) -> Figure:
    ranked = sorted(protein.scored, key=lambda each: -each.score)
    low, high = ranked[-1], ranked[0]
    sentence = (
        f"{protein.length:,} residues, {len(ranked):,} variants by {protein.column}. The highest "
        f"score is {high.score:+.2f} ({clipped(high.variant, MOST_LETTERS)}), the lowest "
        f"{low.score:+.2f} ({clipped(low.variant, MOST_LETTERS)}). A negative score means that the "
        "model prefers the wild type; grey cells are the wild type."
    )
    name = f"scores-{number}"
    panels = [*_heat_maps(name, protein), _ends(f"{name}-ends", protein.column, ranked)]
    title = f"Scores of {clipped(protein.id, MOST_LETTERS)}"
    return Figure(name, title, sentence, tuple(panels))


def _heat_maps(name: str, protein: Protein) -> Iterator[Panel]:
    """Yield a heat map for each range of positions; none if few substitutions have a score."""
    cells: list[dict[str, Any]] = [
        {"position": new.residue + 1, "residue": new.letter, "was": variant[0], "score": score}
        for variant, score in protein.scored
        if ":" not in variant and not is_indel(variant)
        for new in substitutions(variant)
    ]
    num_all = protein.length * (len(AMINO_ACIDS) - 1)
    if len(cells) < MIN_SHARE * num_all:
        return
    most = max(abs(cell["score"]) for cell in cells) or 1.0
    starts = range(1, protein.length + 1, STRETCH)[:MOST_STRETCHES]
    for start in starts:
        last = min(start + STRETCH - 1, protein.length)
        stretch_cells = [cell for cell in cells if start <= cell["position"] <= last]
        title = f"Residues {start:,} to {last:,}"
        if start == starts[-1] and last < protein.length:
            title += f" (those behind, to {protein.length:,}, are not drawn)"
        width = min(STRETCH, protein.length)
        chart = _heat_map(stretch_cells, range(start, start + width), most)
        yield Panel(f"{name}-{start}", title, specification(chart), "canvas")


def _heat_map(cells: Sequence[dict[str, Any]], positions: Sequence[int], most: float) -> Any:
    """Return the chart of a range of positions; grey cells are the wild type."""
    old = {cell["position"]: cell["was"] for cell in cells}
    wild_type = [
        {"position": at, "residue": letter, "kind": "wild type"} for at, letter in old.items()
    ]
    x = alt.X(
        "position:O",
        title="position in the protein",
        scale=alt.Scale(domain=list(positions), paddingInner=0),
        axis=alt.Axis(values=[at for at in positions if at % 10 == 0], labelAngle=0),
    )
    y = alt.Y("residue:O", title="new residue", scale=alt.Scale(domain=list(AMINO_ACIDS)))
    colours = alt.Scale(domain=[-most, 0, most], range=DIVERGING, interpolate="lab")
    score = alt.Color("score:Q", title="score", scale=colours, legend=alt.Legend(offset=28))
    kind = alt.Color("kind:N", title=None, scale=alt.Scale(range=[REST]), legend=None)

    def marks(rows: Sequence[dict[str, Any]], colour: Any, *names: Any) -> Any:
        base = alt.Chart(values(rows)).mark_rect()
        return base.encode(x=x, y=y, color=colour, tooltip=["position:O", *names])

    scores = marks(cells, score, "was:N", "residue:N", alt.Tooltip("score:Q", format="+.3f"))
    wild_types = marks(wild_type, kind, "residue:N", "kind:N")
    size: dict[str, Any] = {"width": "container", "height": CELL_PIXELS * len(AMINO_ACIDS)}
    return (scores + wild_types).resolve_scale(color="independent").properties(**size)


def _ends(name: str, column: str, ranked: Sequence[Scored]) -> Panel:
    """Return a bar chart of the highest and lowest variants, highest first."""
    ends = ranked
    title = f"All {len(ranked)} variants" if len(ranked) > 1 else "The variant"
    if len(ranked) > 2 * MOST_RANKED:
        ends = [*ranked[:MOST_RANKED], *ranked[-MOST_RANKED:]]
        title = f"The {MOST_RANKED} highest and the {MOST_RANKED} lowest variants"
    rows = []
    for rank, (label, score) in enumerate(ends):
        if len(label) > MOST_LETTERS:  # labels must differ
            label = f"{rank + 1}. {clipped(label, MOST_LETTERS)}"
        rows.append({"variant": label, "score": score, "rank": rank})
    chart = (
        alt.Chart(values(rows))
        .mark_bar(height={"band": 0.7})
        .encode(
            x=alt.X("score:Q", title=f"score ({column})"),
            y=alt.Y(
                "variant:N", title="variant", sort=alt.EncodingSortField("rank", order="ascending")
            ),
            color=alt.Color(
                "score:Q",
                legend=None,
                scale=alt.Scale(type="threshold", domain=[0], range=[DIVERGING[0], DIVERGING[2]]),
            ),
            tooltip=["variant:N", alt.Tooltip("score:Q", format="+.3f")],
        )
        .properties(width="container", height={"step": 1.4 * CELL_PIXELS})
    )
    return Panel(name, title, specification(chart))
