"""ROC and precision-recall curves of held-out scores, and the surest of the wrong predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt

from featuremill.kit.pages import Figure, categories, drawn, values
from featuremill.kit.text import clipped, counted, listed
from featuremill.steps.heads.figures import Labels

Values = npt.NDArray[np.float64]
MOST_CLASSES = 7
"""Classes that have a curve: there are so many colours."""
MOST_POINTS = 300
"""Of a curve: a screen shows no more."""
MOST_ERRORS = 20
MOST_TEXT = 30


class Curve(NamedTuple):
    """A class's records against all others, at each score that occurs as the threshold, falling."""

    name: str
    records: int
    """Of the class."""
    share: float
    """Of all records."""
    false_T: Values
    """Share of the others with at least this score; begins with 0."""
    recall_T: Values
    """Share of the class with at least this score."""
    precision_T: Values
    """Share of records with at least this score that are of the class; begins with 1."""
    area: float
    """Area under the ROC curve."""
    average_precision: float
    """Mean of the precision at each score, weighted by the recall that it adds."""


def curve(name: str, score_N: Values, is_it_N: npt.NDArray[np.bool_]) -> Curve:
    """Return the curve of a class, as scikit-learn has it; both sides have records."""
    from sklearn import metrics

    false_T, recall_T, _ = metrics.roc_curve(is_it_N, score_N, drop_intermediate=False)
    precision_T, _, _ = metrics.precision_recall_curve(is_it_N, score_N)
    return Curve(
        name,
        int(is_it_N.sum()),
        float(is_it_N.mean()),
        false_T,
        recall_T,
        precision_T[::-1],
        float(metrics.auc(false_T, recall_T)),
        float(metrics.average_precision_score(is_it_N, score_N)),
    )


def curves(classes: Sequence[str], y_N: Labels, scores_NC: Values) -> list[Curve]:
    """Return the curves of the classes in their order; of two classes that of the rarer one."""
    sizes = np.bincount(y_N, minlength=len(classes))
    places = range(len(classes))
    if len(classes) == 2:
        places = range(int(sizes[1] <= sizes[0]), 1 + int(sizes[1] <= sizes[0]))
    return [curve(classes[place], scores_NC[:, place], y_N == place) for place in places]


def roc(found: Sequence[Curve]) -> Figure:
    """Return the ROC curves of the commonest classes."""
    shown = _shown(found)
    areas = [f"{one.area:.3f} for {clipped(one.name, MOST_TEXT)}" for one in shown]
    sentence = (
        "Each point is a threshold of the score. The dashed line is guessing. The area below a "
        f"curve is {listed(areas)}, over all records together; the AUC above compares only "
        "records that the same head scored."
    )
    guide = alt.Chart(values([{"x": end, "y": end} for end in (0, 1)]))
    rows = _rows(shown, lambda one: (one.false_T, one.recall_T))
    titles = "share of the others above the threshold", "share of the class above it"
    return drawn(
        "roc", "ROC curve" + "s" * (len(shown) > 1), sentence, _chart(guide, rows, titles, "linear")
    )


def precision_recall(found: Sequence[Curve]) -> Figure:
    """Return the precision-recall curves of the commonest classes."""
    shown = _shown(found)
    told = [
        f"{one.average_precision:.3f} for {clipped(one.name, MOST_TEXT)} (guessing {one.share:.3f})"
        for one in shown
    ]
    sentence = (
        "Of the records above a threshold, how many are of the class, and how many of the class "
        f"these are. The average precision is {listed(told)}. A dashed line is guessing. For a "
        "rare class, read this curve and not the ROC curve."
    )
    levels = [{"x": x, "y": one.share, "n": n} for n, one in enumerate(shown) for x in (0, 1)]
    guide = alt.Chart(values(levels)).encode(detail="n:N")
    rows = _rows(shown, lambda one: (one.recall_T, one.precision_T))
    titles = "recall: share of the class that is found", "precision"
    title = "Precision and recall"
    return drawn("precision-recall", title, sentence, _chart(guide, rows, titles, "step-before"))


def _shown(found: Sequence[Curve]) -> list[Curve]:
    most = sorted(found, key=lambda one: -one.records)[:MOST_CLASSES]
    return [one for one in found if one in most]


def _rows(shown: Sequence[Curve], axes: Any) -> list[dict[str, Any]]:
    rows = []
    for one in shown:
        x_T, y_T = axes(one)
        some = np.unique(np.linspace(0, len(x_T) - 1, MOST_POINTS).round().astype(int))
        rows += [
            {"class": clipped(one.name, MOST_TEXT), "n": n, "x": round(x, 4), "y": round(y, 4)}
            for n, (x, y) in enumerate(zip(x_T[some].tolist(), y_T[some].tolist(), strict=True))
        ]
    return rows


def _chart(guide: Any, rows: list[dict[str, Any]], titles: tuple[str, str], between: Any) -> Any:
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("x:Q", title=titles[0], scale=scale, axis=alt.Axis(tickCount=5))
    y = alt.Y("y:Q", title=titles[1], scale=scale, axis=alt.Axis(tickCount=5))
    names = [*dict.fromkeys(row["class"] for row in rows)]
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 160}
    legend = alt.Legend(title=None, orient="bottom", columns=2, **stroke) if names[1:] else None
    color = alt.Color("class:N", scale=categories(names), legend=legend)
    tooltip = [
        "class:N",
        *(
            alt.Tooltip(f"{field}:Q", title=title.partition(":")[0], format=".3f")
            for field, title in zip("xy", titles, strict=True)
        ),
    ]
    base = alt.Chart(values(rows)).encode(x=x, y=y, order="n:Q")
    line = base.mark_line(style="curve", interpolate=between).encode(color=color)
    under = base.mark_point(style="hover").encode(tooltip=tooltip)
    chart = alt.layer(guide.mark_line(style="guide").encode(x=x, y=y), line, under)
    return chart.properties(width="container", height=280)


class Error(NamedTuple):
    """A wrong prediction."""

    id: str
    true: str
    predicted: str
    score: float
    """Of the predicted class."""
    own_score: float
    """Of the true class."""


def worst(
    classes: Sequence[str],
    ids: Sequence[str],
    y_N: Labels,
    scores_NC: Values,
    predicted_N: Labels,
) -> tuple[int, list[Error]]:
    """Return how many predictions are wrong, and those that were surest."""
    rows = np.flatnonzero(predicted_N != y_N)
    sure_N, own_N = scores_NC[rows, predicted_N[rows]], scores_NC[rows, y_N[rows]]
    order = np.argsort(-(sure_N - own_N), kind="stable")[:MOST_ERRORS]
    return len(rows), [
        Error(
            ids[rows[place]],
            classes[y_N[rows[place]]],
            classes[predicted_N[rows[place]]],
            float(sure_N[place]),
            float(own_N[place]),
        )
        for place in order.tolist()
    ]


def told(num_wrong: int, num_shown: int, file: str) -> str:
    """Return the sentence above the table of errors."""
    if not num_wrong:
        return "No prediction is wrong."
    shown = f"; here are the {num_shown} surest" if num_shown < num_wrong else ""
    return (
        f"{counted(num_wrong, 'prediction is', 'predictions are')} wrong{shown}. "
        "See whether their labels are right: a sure and wrong prediction is often a wrong label. "
        f"{file} has the scores of all records."
    )
