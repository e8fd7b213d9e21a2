"""The charts of a head's page: scores, curves, reliability, confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt

from featuremill.kit.pages import Figure, categories, drawn, values
from featuremill.kit.text import clipped, count, listed, records
from featuremill.steps.heads.card import Card
from featuremill.steps.heads.figures import Labels, Values

__all__ = ["NAMES", "confusion"]
NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
    "auc": "AUC",
    "brier": "Brier score",
    "r2": "R²",
    "spearman": "Spearman correlation",
    "rmse": "RMSE",
}
LOWER_IS_BETTER = ("brier", "rmse")
MEANINGS = {
    "accuracy": "the share of records that are predicted as what they are",
    "balanced_accuracy": "the mean over classes of the share of a class that is predicted: each "
    "class counts alike",
    "macro_f1": "the mean over classes of F1: a rare class counts as much as a common one",
    "mcc": "Matthews' correlation coefficient of predicted and true classes: 1 is right "
    "throughout, 0 is guessing, below 0 is worse",
    "auc": "the chance that a record of a class has a higher score for it than a record of another "
    "that the same head scored; of more than two classes, the mean",
    "brier": "half the sum over classes of the squared difference between a score and 1 for the "
    "true class, 0 for the others; lower is better",
    "r2": "the share of the labels' variance that the predictions explain",
    "spearman": "the rank correlation of labels and predictions, within the records of one fold",
    "rmse": "the root of the mean squared error, in the unit of the labels",
}
TERMS = (
    (
        "guessing",
        "for accuracy, balanced accuracy, macro F1 and MCC always the most frequent class; for the "
        "AUC 0.5, which scores have that depend on no feature; for the Brier score the classes' "
        "frequencies as scores; for numbers the mean of those that a fold learnt from",
    ),
    (
        "95 % interval",
        "from 1,000 draws of as many whole groups, with replacement. It is wider for few groups "
        "(Student's t), and as heads of different folds learn from each other's records",
    ),
    (
        "permutation p",
        "the labels are shuffled 199 times, those of a group together. It is the share of the 200 "
        "orders, with the true one, in which a ridge regression predicts held-out labels as well "
        "as in the true one. A small p means that features and labels are related",
    ),
)
MOST_CLASSES = 7
"""Largest number of classes with a curve, which is the number of colours."""
MOST_POINTS = 300
MOST_RECORDS = 2000
MOST_TEXT = 30
ROW_PIXELS = 34
CELL_PIXELS = (24, 64)
"""The smallest and the largest side of a cell of the confusion matrix, in pixels."""
MATRIX_PIXELS = 400
WITH_COUNTS = 32
"""The smallest side of a cell with a count, in pixels."""
LABEL_PIXELS = {"expr": "windowSize()[0] < 600 ? 110 : 220"}
"""The largest width of a class's name beside the confusion matrix, in pixels."""
MANY = 8
"""Number of classes from which their names are drawn steeply."""


class Curve(NamedTuple):
    """The ROC and precision-recall curves of a class; thresholds T are all scores, descending."""

    name: str
    records: int
    share: float
    """Share of all records that have the class."""
    false_T: Values
    """Share of the others with at least this score; begins with 0."""
    recall_T: Values
    """Share of the class with at least this score."""
    precision_T: Values
    """Share of the records with at least this score that have the class; begins with 1."""
    area: float
    """Area under the ROC curve."""
    average_precision: float
    """Mean precision over all scores, weighted by the gain of recall."""


def curve(name: str, score_N: Values, is_class_N: npt.NDArray[np.bool_]) -> Curve:
    """Return the curve of a class, computed by scikit-learn; class and others have records."""
    from sklearn import metrics

    false_T, recall_T, _ = metrics.roc_curve(is_class_N, score_N, drop_intermediate=False)
    precision_T, _, _ = metrics.precision_recall_curve(is_class_N, score_N)
    return Curve(
        name,
        int(is_class_N.sum()),
        float(is_class_N.mean()),
        false_T,
        recall_T,
        precision_T[::-1],
        float(metrics.auc(false_T, recall_T)),
        float(metrics.average_precision_score(is_class_N, score_N)),
    )


def curves(classes: Sequence[str], y_N: Labels, scores_NC: Values) -> list[Curve]:
    """Return the curves of the classes in their order; of two classes, only of the rarer."""
    sizes = np.bincount(y_N, minlength=len(classes))
    numbers = [int(sizes[1] <= sizes[0])] if len(classes) == 2 else range(len(classes))
    return [curve(classes[number], scores_NC[:, number], y_N == number) for number in numbers]


def of_curves(every: Sequence[Curve]) -> list[Figure]:
    """Return the ROC and the precision-recall figures of the most frequent classes."""
    most = sorted(every, key=lambda each: -each.records)[:MOST_CLASSES]
    shown = [each for each in every if each in most]
    names = [clipped(each.name, MOST_TEXT) for each in shown]
    areas = [f"{each.area:.3f} for {name}" for each, name in zip(shown, names, strict=True)]
    sentence = (
        "Each point is a threshold of the score. The dashed line is guessing. The area below a "
        f"curve is {listed(areas)}, over all records together; the AUC above compares only "
        "records that the same head scored."
    )
    guide = alt.Chart(values([{"x": end, "y": end} for end in (0, 1)]))
    titles = "share of the others above the threshold", "share of the class above it"
    chart = _curves(guide, shown, ("false_T", "recall_T"), titles, "linear")
    roc = drawn("roc", "ROC curve" + "s" * (len(shown) > 1), sentence, chart)
    means = [
        f"{each.average_precision:.3f} for {name} (guessing {each.share:.3f})"
        for each, name in zip(shown, names, strict=True)
    ]
    sentence = (
        "Of the records above a threshold, how many are of the class, and how many of the class "
        f"these are. The average precision is {listed(means)}. A dashed line is guessing. For a "
        "rare class, read this curve and not the ROC curve."
    )
    levels = [{"x": x, "y": each.share, "n": n} for n, each in enumerate(shown) for x in (0, 1)]
    guide = alt.Chart(values(levels)).encode(detail="n:N")
    titles = "recall: share of the class that is found", "precision"
    chart = _curves(guide, shown, ("recall_T", "precision_T"), titles, "step-before")
    return [roc, drawn("precision-recall", "Precision and recall", sentence, chart)]


def _curves(
    guide: Any, shown: Sequence[Curve], axes: Sequence[str], titles: Sequence[str], between: Any
) -> Any:
    """Return the chart of curves over a dashed line; `axes` are fields of a curve."""
    rows: list[dict[str, Any]] = []
    for each in shown:
        x_T, y_T = (getattr(each, axis) for axis in axes)
        some = np.unique(np.linspace(0, len(x_T) - 1, MOST_POINTS).round().astype(int))
        points = enumerate(zip(x_T[some].tolist(), y_T[some].tolist(), strict=True))
        about = {"class": clipped(each.name, MOST_TEXT)}
        rows += [about | {"n": n, "x": round(x, 4), "y": round(y, 4)} for n, (x, y) in points]
    scale, ticks = alt.Scale(domain=[0, 1]), alt.Axis(tickCount=5)
    x = alt.X("x:Q", title=titles[0], scale=scale, axis=ticks)
    y = alt.Y("y:Q", title=titles[1], scale=scale, axis=ticks)
    names = [*dict.fromkeys(row["class"] for row in rows)]
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 160}
    legend = alt.Legend(title=None, orient="bottom", columns=2, **stroke) if names[1:] else None
    color = alt.Color("class:N", scale=categories(names), legend=legend)
    numbers = [
        alt.Tooltip(f"{field}:Q", title=title.partition(":")[0], format=".3f")
        for field, title in zip("xy", titles, strict=True)
    ]
    base = alt.Chart(values(rows)).encode(order="n:Q")
    line = base.mark_line(style="curve", interpolate=between).encode(color=color)
    under = base.mark_point(style="hover").encode(tooltip=["class:N", *numbers])
    return _over(guide, x, y, 280, line, under)


def _over(guide: Any, x: Any, y: Any, height: int, *layers: Any) -> Any:
    """Return `layers` over a dashed line, all with the same axes."""
    charts = [guide.mark_line(style="guide"), *layers]
    chart = alt.layer(*(each.encode(x=x, y=y) for each in charts))
    return chart.properties(width="container", height=height)


def in_words(card: Card, key: str) -> str:
    """Return the text of a score, its interval and the value of guessing."""
    value, low, high = card.scores[key]
    return f"{NAMES[key]} {value:.3f} ({low:.3f}–{high:.3f}; guessing {card.guesses[key]:.3f})"


def scores(card: Card) -> Figure:
    """Return the chart of a head's scores, each with its interval and the value of guessing."""
    rows: list[dict[str, Any]] = [
        {"figure": NAMES[key], "value": value, "low": low, "high": high, "guess": card.guesses[key]}
        for key, (value, low, high) in card.scores.items()
        if key not in LOWER_IS_BETTER
    ]
    assert card.labels
    group = card.labels.group
    unseen = f"no record of the same {group}" if group else "not the record"
    each_figure = (in_words(card, key) for key in card.scores if key not in LOWER_IS_BETTER)
    each = "Each residue" if card.task == "per_residue" else "Each record"
    sentence = (
        f"{each} predicted by a head that saw {unseen}: {listed(each_figure)}; in brackets, 95 % "
        "intervals. The upright line of a row is what guessing gets. The permutation p is "
        f"{card.permutation_p:.3g}."
    )
    scale = alt.Scale(domain=[min(0, *(row["low"] for row in rows)), 1])
    base = alt.Chart(values(rows)).encode(y=alt.Y("figure:N", title=None, sort=None))
    tooltip = ["figure:N", *(alt.Tooltip(f"{key}:Q", format=".3f") for key in ("value", "guess"))]
    low = alt.X("low:Q", title="score", scale=scale, axis=alt.Axis(tickCount=5))
    guess, value = (alt.X(f"{key}:Q", scale=scale) for key in ("guess", "value"))
    tick = base.mark_tick(style="guide", thickness=2, size=ROW_PIXELS - 8)
    chart = alt.layer(
        base.mark_bar(size=4, opacity=0.5).encode(x=low, x2="high:Q"),
        tick.encode(x=guess, tooltip=tooltip),
        base.mark_circle(size=90, opacity=1).encode(x=value, tooltip=tooltip),
    ).properties(width="container", height=ROW_PIXELS * len(rows))
    terms = (*((NAMES[key], MEANINGS[key]) for key in card.scores), *TERMS)
    return drawn("scores", "How good it is", sentence, chart, terms=terms)


def numbers(y_N: Values, value_N: Values) -> Figure:
    """Return the chart of predicted numbers of held-out records against their labels."""
    shown = range(0, len(y_N), -(-len(y_N) // MOST_RECORDS))
    rows = [{"label": float(y_N[n]), "predicted": float(value_N[n])} for n in shown]
    ends = [{"label": float(end), "predicted": float(end)} for end in (y_N.min(), y_N.max())]
    sentence = (
        f"A point is one of {records(len(shown))}, predicted by a regression that did not see its "
        "group; on the dashed line it is right."
    )
    x = alt.X("label:Q", title="label", scale=alt.Scale(zero=False))
    y = alt.Y("predicted:Q", title="predicted", scale=alt.Scale(zero=False))
    points = alt.Chart(values(rows)).mark_circle(opacity=0.5, size=30)
    chart = _over(alt.Chart(values(ends)), x, y, 320, points)
    return drawn("numbers", "Predicted and true numbers", sentence, chart)


def reliability(card: Card) -> Figure:
    """Return the chart of the share of correct predictions by score."""
    value, low, high = card.scores["brier"]
    sentence = (
        f"A point is the records whose scores for a class lie in the same tenth; on the dashed "
        "line a score is how often the class is right. The Brier score is "
        f"{value:.3f} ({low:.3f}–{high:.3f}), and always saying the classes' frequencies has "
        f"{card.guesses['brier']:.3f}; lower is better. Scores are calibrated for classes as "
        "frequent as in the labels: where a class is rarer, its scores are too high."
    )
    rows: list[dict[str, Any]] = [
        {
            "class": clipped(each.class_name, MOST_TEXT),
            "score": each.mean_score,
            "share": each.share,
            "records": each.records,
        }
        for each in card.reliability
    ]
    scale = alt.Scale(domain=[0, 1])
    names = [*dict.fromkeys(row["class"] for row in rows)]
    legend = None if len(names) == 1 else alt.Legend(title=None, orient="bottom", columns=2)
    shares = [alt.Tooltip(f"{key}:Q", format=".3f") for key in ("score", "share")]
    points = alt.Chart(values(rows)).mark_circle(opacity=0.8)
    points = points.encode(
        size=alt.Size("records:Q", legend=None, scale=alt.Scale(range=[40, 600])),
        color=alt.Color("class:N", scale=categories(names), legend=legend),
        tooltip=["class:N", "records:Q", *shares],
    )
    ends = alt.Chart(values([{"score": end, "share": end} for end in (0, 1)]))
    x = alt.X("score:Q", title="mean score", scale=scale)
    y = alt.Y("share:Q", title="share that is of the class", scale=scale)
    chart = _over(ends, x, y, 260, points)
    return drawn("reliability", "Whether scores are probabilities", sentence, chart)


def confusion(classes: Sequence[str], counts_CC: Sequence[Sequence[int]], of_what: str) -> Figure:
    """Return the chart of true (rows) and predicted classes; `of_what` ends its sentence."""
    names = [clipped(name, MOST_TEXT) for name in classes]
    rows = [
        {"true": true, "predicted": name, "records": n, "share": n / max(1, sum(counts))}
        for true, counts in zip(names, counts_CC, strict=True)
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
        for style in ("lane-behind", "lane"):  # an outline, then the number
            text = base.mark_text(style=style, opacity=fits, strokeOpacity=fits)
            chart += text.encode(text=alt.Text("records:Q", format=","))
    chart = chart.properties(width="container", height=side * len(names))
    return drawn("confusion", "Confusion matrix", sentence, chart)
