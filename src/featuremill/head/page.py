"""The page of a head: how good it is, what it confuses with what, and what it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.head.card import MISSING, Card
from featuremill.report.chart import Figure, drawn, values
from featuremill.report.page import write_of

TEMPLATE = Path(__file__).parent / "assets" / "head.html"
NAMES = {"accuracy": "accuracy", "macro_f1": "macro F1", "auc": "AUC"}
TERMS = (
    ("accuracy", "the share of records whose class is predicted"),
    ("macro F1", "the mean over classes of F1: a rare class counts as much as a common one"),
    ("AUC", "the chance that a record of the second class has a higher score there than another"),
    (
        "95 % interval",
        "of 1,000 draws of as many whole groups, with replacement, all but the lowest and the "
        "highest 2.5 % lie within; it says nothing of other folds or other data",
    ),
)
MOST_TEXT = 30
ROW_PIXELS = 34


def write_page(path: Path, name: str, card: Card) -> None:
    """Write the page of the head called `name` to `path`."""
    write_of(
        path,
        TEMPLATE.read_text("utf-8"),
        title=name,
        lead=_lead(card),
        scores=[
            (NAMES[key], *(f"{number:.3f}" for number in card.scores[key])) for key in card.scores
        ],
        figures=[_scores(card), _confusion(card)],
        card=card,
        table=list(zip(card.classes, card.confusion, strict=True)),
        missing=MISSING,
    )


def _lead(card: Card) -> str:
    what = "Logistic regression" if card.kind == "logistic" else "A network with one hidden layer"
    sizes = " + ".join(words.count(part.width) for part in card.features)
    return (
        f"{what} of {sizes} numbers a record, "
        f"{words.counted(len(card.classes), 'class', 'classes')}, trained on "
        f"{words.records(card.counts['records'])}."
    )


def _scores(card: Card) -> Figure:
    rows: list[dict[str, Any]] = [
        {"figure": NAMES[key], "value": value, "low": low, "high": high}
        for key, (value, low, high) in card.scores.items()
    ]
    group = card.labels.group if card.labels else None
    unseen = f"no record of the same {group}" if group else "not the record"
    told = (f"{row['figure']} {row['value']:.3f} ({_interval(row)})" for row in rows)
    sentence = (
        f"Each record predicted by a head that saw {unseen}: {words.listed(told)}; in brackets, "
        "95 % intervals."
    )
    axis = alt.Y("figure:N", title=None, sort=None)
    scale = alt.Scale(domain=[0, 1])
    base = alt.Chart(values(rows))
    chart = (
        base.mark_bar(size=4, opacity=0.5).encode(
            y=axis, x=alt.X("low:Q", title="score", scale=scale), x2="high:Q"
        )
        + base.mark_circle(size=90, opacity=1).encode(
            y=axis, x=alt.X("value:Q", scale=scale), tooltip=["figure:N", "value:Q"]
        )
    ).properties(width="container", height=ROW_PIXELS * len(rows))
    return drawn("scores", "How good it is", sentence, chart, terms=TERMS)


def _interval(row: dict[str, Any]) -> str:
    return f"{row['low']:.3f}–{row['high']:.3f}"


def _confusion(card: Card) -> Figure:
    rows: list[dict[str, Any]] = []
    names = [clipped(name, MOST_TEXT) for name in card.classes]
    for true, counts in zip(names, card.confusion, strict=True):
        rows += [
            {"true": true, "predicted": name, "records": number, "share": number / sum(counts)}
            for name, number in zip(names, counts, strict=True)
        ]
    right = sum(card.confusion[n][n] for n in range(len(names)))
    sentence = (
        f"{words.count(right)} of {words.records(card.counts['records'])} are predicted as what "
        "they are. A row is a class, a column what was predicted; darker is more of the row."
    )
    x = alt.X("predicted:N", title="predicted", sort=names, axis=alt.Axis(labelAngle=0))
    y = alt.Y("true:N", title="class", sort=names)
    base = alt.Chart(values(rows)).encode(x=x, y=y)
    color = alt.Color("share:Q", legend=None, scale=alt.Scale(range="ramp", domain=[0, 1]))
    tooltip = ["true:N", "predicted:N", "records:Q", alt.Tooltip("share:Q", format=".1%")]
    chart = (base.mark_rect(style="cell-bar").encode(color=color, tooltip=tooltip)).properties(
        width="container", height=ROW_PIXELS * max(2, len(names))
    )
    return drawn("confusion", "What it takes for what", sentence, chart)
