"""Metrics of scores against measured scores, as in ProteinGym's `performance_DMS_benchmarks.py`
(Notin et al. 2023), and their figure in the report.

A metric that is undefined for the variants of a protein is None, with a remark.

Shape legend: V variants, G groups of equal scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.kit.text import clipped
from featuremill.workload.figures import Figure, drawn, values
from featuremill.workloads.scores.columns import CLASS, MEASURED, VARIANTS

Numbers = npt.NDArray[np.float64]
LEAST = 3
"""The least number of variants for metrics."""
TOP = 10
"""NDCG and top recall are about the best 1/TOP of the variants."""
MOST_PROTEINS = 20
MOST_LETTERS = 40
PIXELS = 16
TERMS = (
    ("Spearman", "1 where scores and measured scores have the same order, 0 by chance"),
    ("AUC", "how often a fit variant has a higher score than one that is not; 0.5 is chance"),
    ("NDCG", "how near the tenth with the highest scores is to the best measured tenth"),
)


class Agreement(NamedTuple):
    """The metrics of one score of a protein's variants."""

    score: str
    num_variants: int
    """The number of variants with a score and a measured score."""
    num_without_score: int
    num_without_measured: int
    spearman: float | None = None
    auc: float | None = None
    ndcg: float | None = None
    mcc: float | None = None
    top_recall: float | None = None
    classes: str = ""
    """The source of the classes: the name of a column, or `above the median`."""
    remark: str = ""
    """Why metrics are missing."""


SCHEMA = pa.schema(
    {
        "score": pa.string(),
        **dict.fromkeys(Agreement._fields[1:4], pa.int64()),
        **dict.fromkeys(Agreement._fields[4:9], pa.float64()),
        "classes": pa.string(),
        "remark": pa.string(),
    }
)


def measured_of(struct: pa.StructType) -> tuple[str, str]:
    """Return the names of the columns of measured scores and of classes, or ""."""
    named = {field.type: field.name for field in struct if field.type in (MEASURED, CLASS)}
    return named.get(MEASURED, ""), named.get(CLASS, "")


def agreements(rows: pa.StructArray) -> Iterator[Agreement]:
    """Yield the metrics of each score; `rows` are the variants of one protein."""
    measured_name, class_name = measured_of(rows.type)
    measured_V = _numbers(rows.field(measured_name))
    classes_V = _numbers(rows.field(class_name)) if class_name else None
    is_measured_V = ~np.isnan(measured_V)
    for field in rows.type:
        if field.type != pa.float32():
            continue
        scores_V = _numbers(rows.field(field.name))
        is_compared_V = is_measured_V & ~np.isnan(scores_V)
        counts = (
            int(is_compared_V.sum()),
            int((is_measured_V & np.isnan(scores_V)).sum()),
            int((~is_measured_V).sum()),
        )
        class_V = None if classes_V is None else classes_V[is_compared_V]
        figures = _figures(measured_V[is_compared_V], scores_V[is_compared_V], class_V)
        called = class_name or "above the median"
        yield Agreement(field.name, *counts, classes=called, **figures)


def _numbers(column: pa.Array) -> Numbers:
    values: Numbers = pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False)
    return values


def _figures(measured_V: Numbers, scores_V: Numbers, classes_V: Numbers | None) -> dict[str, Any]:
    if len(scores_V) < LEAST:
        return {"remark": f"fewer than {LEAST} variants have both"}
    for name, numbers_V in (("measured scores", measured_V), ("scores", scores_V)):
        if numbers_V.min() == numbers_V.max():
            return {"remark": f"all {name} are equal"}
    if classes_V is None:
        classes_V = (measured_V > np.median(measured_V)).astype(np.float64)
    figures: dict[str, Any] = {"spearman": spearman(measured_V, scores_V)}
    remarks = []
    has_class_V = ~np.isnan(classes_V)
    if not has_class_V.all():
        remarks.append(f"{(~has_class_V).sum():,} have no class")
    is_fit_V = classes_V[has_class_V] == 1
    if is_fit_V.all() or not is_fit_V.any():
        remarks.append("no AUC and MCC, as all are of one class")
    else:
        figures["auc"] = auc(is_fit_V, scores_V[has_class_V])
        figures["mcc"] = mcc(is_fit_V, (scores_V >= np.median(scores_V))[has_class_V])
        if figures["mcc"] is None:
            remarks.append("no MCC, as no score is below the median")
    if len(scores_V) < TOP:
        remarks.append(f"no NDCG and top recall of fewer than {TOP} variants")
    else:
        figures["ndcg"] = ndcg(measured_V, scores_V)
        figures["top_recall"] = top_recall(measured_V, scores_V)
    return {**figures, "remark": "; ".join(remarks)}


def ranks(numbers_V: Numbers) -> Numbers:
    """Return the rank of each number, from 1; equal numbers have their mean rank."""
    _, group_V, sizes_G = np.unique(numbers_V, return_inverse=True, return_counts=True)
    mean_G: Numbers = np.cumsum(sizes_G) - (sizes_G - 1) / 2
    return mean_G[group_V]


def spearman(a_V: Numbers, b_V: Numbers) -> float:
    return float(np.corrcoef(ranks(a_V), ranks(b_V))[0, 1])


def auc(is_fit_V: npt.NDArray[np.bool_], scores_V: Numbers) -> float:
    """Return the probability that fit variants score above unfit ones; ties count half."""
    num_fit, num_other = is_fit_V.sum(), (~is_fit_V).sum()
    above = ranks(scores_V)[is_fit_V].sum() - num_fit * (num_fit + 1) / 2
    return float(above / (num_fit * num_other))


def mcc(is_fit_V: npt.NDArray[np.bool_], is_high_V: npt.NDArray[np.bool_]) -> float | None:
    """Return Matthews' correlation coefficient, or None if all scores are in one class."""
    if is_high_V.all() or not is_high_V.any():
        return None
    return float(np.corrcoef(is_fit_V, is_high_V)[0, 1])


def ndcg(measured_V: Numbers, scores_V: Numbers) -> float:
    """Return the normalised discounted cumulative gain of the 10 % of variants with the highest
    scores. Gains are the measured scores, scaled to [0, 1]. Variants with equal scores have their
    mean gain, so the result does not depend on their order (McSherry and Najork 2008)."""
    gains_V = (measured_V - measured_V.min()) / (measured_V.max() - measured_V.min())
    discounts_V = 1 / np.log2(np.arange(len(gains_V)) + 2)
    discounts_V[len(gains_V) // TOP :] = 0
    _, group_V, sizes_G = np.unique(-scores_V, return_inverse=True, return_counts=True)
    mean_G = np.bincount(group_V, gains_V) / sizes_G
    starts_G = np.cumsum(sizes_G) - sizes_G
    gained = mean_G @ np.add.reduceat(discounts_V, starts_G)
    return float(gained / (np.sort(gains_V)[::-1] @ discounts_V))


def top_recall(measured_V: Numbers, scores_V: Numbers) -> float:
    """Return the share of the variants at or above the 90th percentile of measured scores that are
    also at or above the 90th percentile of scores."""
    level = 100 - 100 / TOP
    is_top_V = measured_V >= np.percentile(measured_V, level)
    return float((scores_V >= np.percentile(scores_V, level))[is_top_V].mean())


def figures(read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]) -> list[Figure]:
    """Return the figure, or [] without measured scores; `read` yields batches of columns."""
    rows, measured = list[tuple[str, Agreement]](), ""
    for batch in read(["id", VARIANTS]):
        measured = measured_of(batch.schema.field(VARIANTS).type.value_type)[0]
        if not measured:
            return []
        for id, variants in zip(*batch.columns, strict=True):
            rows += [(id.as_py(), each) for each in agreements(variants.values)]
    return [figure(rows, measured)] if rows else []


def figure(rows: Sequence[tuple[str, Agreement]], measured: str) -> Figure:
    """Return the figure of all proteins and scores against the column `measured`."""
    ids = list(dict.fromkeys(id for id, _ in rows))
    known = [(id, each) for id, each in rows if each.spearman is not None]
    by_score: dict[str, list[Agreement]] = {each.score: [] for _, each in rows}
    for _, each in known:
        by_score[each.score].append(each)
    sentences = [_sentence(name, some) for name, some in by_score.items()]
    sentence = f"Scores beside {clipped(measured)}. " + " ".join(sentences)
    if len(ids) > MOST_PROTEINS:
        sentence += f" Only the first {MOST_PROTEINS} proteins are drawn."
    bars = [
        {
            "protein": clipped(id, MOST_LETTERS),
            "score": each.score,
            "spearman": each.spearman,
            "variants": each.num_variants,
        }
        for id, each in known
        if id in ids[:MOST_PROTEINS]
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


def _sentence(name: str, agreements: Sequence[Agreement]) -> str:
    """Return a sentence with the mean metrics of one score."""
    if not agreements:
        return f"{name} has no figures; variant_metrics.tsv has the reason."
    figures = []
    for key, called in (("spearman", "Spearman"), ("auc", "AUC"), ("ndcg", "NDCG")):
        numbers = [number for each in agreements if (number := getattr(each, key)) is not None]
        if numbers:
            figures.append(f"{called} {sum(numbers) / len(numbers):.3f}")
    mean = f"mean of {len(agreements):,} proteins, " if len(agreements) > 1 else ""
    without = sum(each.num_without_score for each in agreements)
    counted = f"{sum(each.num_variants for each in agreements):,} variants"
    counted += f" ({without:,} measured ones have no score)" if without else ""
    return f"{name}: {', '.join(figures)}, {mean}{counted}."
