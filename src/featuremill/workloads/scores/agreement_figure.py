"""The report's figure of scores beside measured ones: Spearman's correlation for each protein."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import altair as alt
import pyarrow as pa

from featuremill.kit.text import clipped
from featuremill.workload.figures import Figure, drawn, values
from featuremill.workloads.scores.agreement import Agreement, agreements, measured_of
from featuremill.workloads.scores.columns import VARIANTS

MOST_PROTEINS = 20
MOST_LETTERS = 40
PIXELS = 16
TERMS = (
    ("Spearman", "1 where scores and measured scores have the same order, 0 by chance"),
    ("AUC", "how often a fit variant has a higher score than one that is not; 0.5 is chance"),
    ("NDCG", "how near the tenth with the highest scores is to the best measured tenth"),
)


class _Row(NamedTuple):
    id: str
    found: Agreement


def figures(read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]) -> list[Figure]:
    """Return the figure, or none where nothing was measured; `read` gives columns of a run's
    results, some rows at a time."""
    rows, measured = list[_Row](), ""
    for batch in read(["id", VARIANTS]):
        measured = measured_of(batch.schema.field(VARIANTS).type.value_type)[0]
        if not measured:
            return []
        for id, variants in zip(*batch.columns, strict=True):
            rows += [_Row(id.as_py(), each) for each in agreements(variants.values)]
    return [figure(rows, measured)] if rows else []


def figure(rows: Sequence[_Row], measured: str) -> Figure:
    """Return the figure of all proteins and scores beside the column `measured`."""
    ids = list(dict.fromkeys(row.id for row in rows))
    known = [row for row in rows if row.found.spearman is not None]
    names = dict.fromkeys(row.found.score for row in rows)
    told = [_told(name, [row.found for row in known if row.found.score == name]) for name in names]
    sentence = f"Scores beside {clipped(measured)}. " + " ".join(told)
    if len(ids) > MOST_PROTEINS:
        sentence += f" Only the first {MOST_PROTEINS} proteins are drawn."
    bars = [
        {
            "protein": clipped(row.id, MOST_LETTERS),
            "score": row.found.score,
            "spearman": row.found.spearman,
            "variants": row.found.num_variants,
        }
        for row in known
        if row.id in ids[:MOST_PROTEINS]
    ]
    chart = (
        alt.Chart(values(bars))
        .mark_bar()
        .encode(
            x=alt.X("spearman:Q", title="Spearman's correlation"),
            y=alt.Y("protein:N", title=None, sort=None),
            yOffset=alt.YOffset("score:N", sort=None),
            color=alt.Color("score:N", title="score", sort=None),
            tooltip=[
                *("protein:N", "score:N", "variants:Q"),
                alt.Tooltip("spearman:Q", format="+.3f"),
            ],
        )
        .properties(width="container", height={"step": PIXELS, "for": "position"})
    )
    title = "Scores beside measured ones"
    if not bars:
        return Figure("scores-measured", title, sentence)
    return drawn("scores-measured", title, sentence, chart, terms=TERMS)


def _told(name: str, found: Sequence[Agreement]) -> str:
    """Return a sentence about one score."""
    if not found:
        return f"{name} has no figures; variant_metrics.tsv has the reason."
    figures = []
    for key, called in (("spearman", "Spearman"), ("auc", "AUC"), ("ndcg", "NDCG")):
        numbers = [number for each in found if (number := getattr(each, key)) is not None]
        if numbers:
            figures.append(f"{called} {sum(numbers) / len(numbers):.3f}")
    mean = f"mean of {len(found):,} proteins, " if len(found) > 1 else ""
    without = sum(each.num_without_score for each in found)
    counted = f"{sum(each.num_variants for each in found):,} variants"
    counted += f" ({without:,} measured ones have no score)" if without else ""
    return f"{name}: {', '.join(figures)}, {mean}{counted}."
