"""The page of a head: its figures, confusion matrix and provenance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from featuremill.kit.pages import Figure, categories, drawn, values, write_of
from featuremill.kit.text import clipped, count, counted, listed, records
from featuremill.steps.heads import curves, threshold
from featuremill.steps.heads.card import HELD_OUT, MISSING, Card
from featuremill.steps.heads.curves import Judged
from featuremill.steps.heads.figures import OfSample

__all__ = ["MOST_SAMPLES", "NAMES", "confusion_figure", "warning_of"]
TEMPLATE = Path(__file__).parent / "assets" / "head.html"
NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
    "auc": "AUC",
    "brier": "Brier score",
}
HIGHER_IS_BETTER = ("accuracy", "balanced_accuracy", "macro_f1", "mcc", "auc")
TERMS = (
    ("accuracy", "the share of records that are predicted as what they are"),
    (
        "balanced accuracy",
        "the mean over classes of the share of a class that is predicted: each class counts alike",
    ),
    ("macro F1", "the mean over classes of F1: a rare class counts as much as a common one"),
    (
        "MCC",
        "Matthews' correlation coefficient of predicted and true classes: 1 is right throughout, 0 "
        "is guessing, below 0 is worse",
    ),
    (
        "AUC",
        "the chance that a record of a class has a higher score for it than a record of another "
        "that the same head scored; of more than two classes, the mean",
    ),
    (
        "Brier score",
        "half the sum over classes of the squared difference between a score and 1 for the true "
        "class, 0 for the others; lower is better",
    ),
    (
        "guessing",
        "for accuracy, balanced accuracy, macro F1 and MCC always the most frequent class; for the "
        "AUC 0.5, which scores have that depend on no feature; for the Brier score the classes' "
        "frequencies as scores",
    ),
    (
        "95 % interval",
        "of 1,000 draws of as many whole groups, with replacement, all but the lowest and the "
        "highest 2.5 % lie within; other folds or other data may differ more",
    ),
)
MOST_TEXT = 30
MOST_SAMPLES = 200
"""Rows of the table of samples."""
ROW_PIXELS = 34
CELL_PIXELS = (24, 64)
"""The least and the largest side of a cell of the confusion matrix, in pixels."""
MATRIX_PIXELS = 400
WITH_COUNTS = 32
"""The least side of a cell with a count, in pixels."""
LABEL_PIXELS = {"expr": "windowSize()[0] < 600 ? 110 : 220"}
"""The most of a class's name beside the confusion matrix: a phone has 340 for both."""
MANY = 8
"""Classes from which on their names stand steeply."""


def write_page(
    path: Path, name: str, card: Card, judged: Judged, samples: Sequence[OfSample] = ()
) -> None:
    """Write the page of the head called `name` to `path`, with the figures of `samples`."""
    of_classes = curves.curves(card.classes, judged)
    num_wrong, worst = curves.worst(card.classes, judged)
    shown = sorted(samples, key=lambda one: one.right / one.records)[:MOST_SAMPLES]
    write_of(
        path,
        TEMPLATE.read_text("utf-8"),
        verb="head",
        title=name,
        lead=_lead(card) + threshold.said(card),
        warnings=[warning] if (warning := warning_of(card)) else [],
        scores=[
            (
                NAMES[key],
                *(f"{number:.3f}" for number in card.scores[key]),
                f"{card.guesses[key]:.3f}",
            )
            for key in card.scores
        ],
        figures={
            "scores": _scores(card),
            "roc": curves.roc(of_classes),
            "precision-recall": curves.precision_recall(of_classes),
            "confusion": _confusion(card),
        },
        curves=of_classes,
        wrong=curves.told(num_wrong, len(worst), HELD_OUT),
        worst=worst,
        reliability=_reliability(card),
        setting=_setting(card),
        card=card,
        table=list(zip(card.classes, card.confusion, strict=True)),
        missing=MISSING,
        samples=sorted(shown),
        num_samples=len(samples),
    )


def warning_of(card: Card) -> str:
    """Return a warning to read before predictions are used; "" for none."""
    if card.is_guessing:
        _, low, high = card.scores["auc"]
        place = "holds" if high >= (guess := card.guesses.get("auc", 0.5)) else "is below"
        return (
            f"No better than guessing: the 95 % interval of the AUC, {low:.3f}–{high:.3f}, {place} "
            f"{guess:g}. Do not use its predictions."
        )
    (accuracy, least, _), guess = card.scores["accuracy"], card.guesses["accuracy"]
    gain, low, high = card.accuracy_gain or (accuracy - guess, least - guess, 1.0)
    if low > 0 or card.threshold:
        return ""
    most = max(zip(map(sum, card.confusion), card.classes, strict=True))[1]
    often = "not certainly right more often" if gain > 0 else "right no more often"
    more = (
        f", and the 95 % interval of the difference is {low:.3f} to {high:.3f}"
        if gain > 0 and card.accuracy_gain
        else ""
    )
    return (
        f"The predicted class is {often} than always {clipped(most)!r} ({accuracy:.3f} and "
        f"{guess:.3f}{more}), although the scores order records better than chance. For a rare "
        "class, train with --threshold CLASS --recall 0.8 (threshold in a config)."
    )


def _lead(card: Card) -> str:
    what = "Logistic regression" if card.kind == "logistic" else "A network with one hidden layer"
    sizes = " + ".join(count(part.width) for part in card.features)
    return (
        f"{what} of {sizes} numbers a record, "
        f"{counted(len(card.classes), 'class', 'classes')}, trained on "
        f"{records(card.counts['records'])}."
    )


def _setting(card: Card) -> str:
    """Return the chosen setting, and whether it is the first or the last of all."""
    ((name, value),) = card.setting.items()
    first, last = card.setting_bounds
    place = {first: ", the first", last: ", the last"}.get(value, "")
    return f"{name} {value:g}{place} of those tried ({first:g} to {last:g})"


def _scores(card: Card) -> Figure:
    rows: list[dict[str, Any]] = [
        {
            "figure": NAMES[key],
            "value": value,
            "low": low,
            "high": high,
            "guess": card.guesses[key],
        }
        for key, (value, low, high) in card.scores.items()
        if key in HIGHER_IS_BETTER
    ]
    group = card.labels.group if card.labels else None
    unseen = f"no record of the same {group}" if group else "not the record"
    told = (
        f"{row['figure']} {row['value']:.3f} ({_interval(row)}; guessing {row['guess']:.3f})"
        for row in rows
    )
    sentence = (
        f"Each record predicted by a head that saw {unseen}: {listed(told)}; in brackets, "
        "95 % intervals. The upright line of a row is what guessing gets."
    )
    y = alt.Y("figure:N", title=None, sort=None)
    scale = alt.Scale(domain=[min(0, *(row["low"] for row in rows)), 1])
    base = alt.Chart(values(rows)).encode(y=y)
    tooltip = ["figure:N", *(alt.Tooltip(f"{key}:Q", format=".3f") for key in ("value", "guess"))]
    chart = (
        base.mark_bar(size=4, opacity=0.5).encode(
            x=alt.X("low:Q", title="score", scale=scale, axis=alt.Axis(tickCount=5)), x2="high:Q"
        )
        + base.mark_tick(style="guide", thickness=2, size=ROW_PIXELS - 8).encode(
            x=alt.X("guess:Q", scale=scale), tooltip=tooltip
        )
        + base.mark_circle(size=90, opacity=1).encode(
            x=alt.X("value:Q", scale=scale), tooltip=tooltip
        )
    ).properties(width="container", height=ROW_PIXELS * len(rows))
    return drawn("scores", "How good it is", sentence, chart, terms=TERMS)


def _interval(row: dict[str, Any]) -> str:
    return f"{row['low']:.3f}–{row['high']:.3f}"


def _reliability(card: Card) -> Figure:
    value, low, high = card.scores["brier"]
    sentence = (
        f"A point is the records whose scores for a class lie in the same tenth; on the dashed "
        "line a score is how often the class is right. The Brier score is "
        f"{value:.3f} ({low:.3f}–{high:.3f}), and always saying the classes' frequencies has "
        f"{card.guesses['brier']:.3f}; lower is better. Scores are calibrated for classes as "
        "frequent as in the labels: where a class is rarer, its scores are too high."
    )
    rows = [
        {
            "class": clipped(one.class_name, MOST_TEXT),
            "score": one.mean_score,
            "share": one.share,
            "records": one.records,
        }
        for one in card.reliability
    ]
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("score:Q", title="mean score", scale=scale)
    y = alt.Y("share:Q", title="share that is of the class", scale=scale)
    names = [*dict.fromkeys(clipped(one.class_name, MOST_TEXT) for one in card.reliability)]
    legend = None if len(names) == 1 else alt.Legend(title=None, orient="bottom", columns=2)
    ends = values([{"score": end, "share": end} for end in (0, 1)])
    chart = (
        alt.Chart(ends).mark_line(style="guide").encode(x=x, y=y)
        + alt.Chart(values(rows))
        .mark_circle(opacity=0.8)
        .encode(
            x=x,
            y=y,
            size=alt.Size("records:Q", legend=None, scale=alt.Scale(range=[40, 600])),
            color=alt.Color("class:N", scale=categories(names), legend=legend),
            tooltip=[
                "class:N",
                "records:Q",
                alt.Tooltip("score:Q", format=".3f"),
                alt.Tooltip("share:Q", format=".3f"),
            ],
        )
    ).properties(width="container", height=260)
    return drawn("reliability", "Whether scores are probabilities", sentence, chart)


def _confusion(card: Card) -> Figure:
    return confusion_figure(
        card.classes,
        card.confusion,
        f"{records(card.counts['records'])} are predicted as what they are by a head that "
        "did not see their group",
    )


def confusion_figure(
    classes: Sequence[str], counts_CC: Sequence[Sequence[int]], of_what: str
) -> Figure:
    """Return the confusion matrix: how many of each class (rows) were predicted as each (columns).
    `of_what` ends the sentence about how many are right."""
    rows: list[dict[str, Any]] = []
    names = [clipped(name, MOST_TEXT) for name in classes]
    for true, counts in zip(names, counts_CC, strict=True):
        rows += [
            {"true": true, "predicted": name, "records": n, "share": n / max(1, sum(counts))}
            for name, n in zip(names, counts, strict=True)
        ]
    right = sum(counts_CC[n][n] for n in range(len(names)))
    sentence = (
        f"{count(right)} of {of_what}. A row is a class, a column what was predicted. "
        "The fuller the colour, the more of the row; an empty cell has the colour of the page."
    )
    least, most = CELL_PIXELS
    side = max(least, min(most, MATRIX_PIXELS // len(names)))
    angle = -30 if len(names) < MANY else -60
    x_axis = alt.Axis(labelAngle=angle, labelLimit=LABEL_PIXELS, domain=False, ticks=False)
    y_axis = alt.Axis(labelLimit=LABEL_PIXELS, domain=False)
    x = alt.X("predicted:N", title="predicted", sort=names, axis=x_axis)
    y = alt.Y("true:N", title=None, sort=names, axis=y_axis)
    base = alt.Chart(values(rows)).encode(x=x, y=y)
    marks = {"format": ".0%", "values": [0, 0.5, 1], "gradientLength": 110, "offset": 12}
    legend = alt.Legend(title="share of the row", titleOrient="top", **marks)
    color = alt.Color("share:Q", legend=legend, scale=alt.Scale(range="heatmap", domain=[0, 1]))
    tooltip = ["true:N", "predicted:N", "records:Q", alt.Tooltip("share:Q", format=".1%")]
    chart = base.mark_rect(style="cell-bar").encode(color=color, tooltip=tooltip)
    if side >= WITH_COUNTS:
        fits = {"expr": f"width < {WITH_COUNTS * len(names)} ? 0 : 1"}
        for style in ("lane-behind", "lane"):  # a rim, then the number, on any colour
            text = base.mark_text(style=style, opacity=fits, strokeOpacity=fits)
            chart += text.encode(text=alt.Text("records:Q", format=","))
    chart = chart.properties(width="container", height=side * len(names))
    return drawn("confusion", "Confusion matrix", sentence, chart)
