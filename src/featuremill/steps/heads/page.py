"""The page of a head: its figures, the surest errors, and what it was made of."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt

from featuremill.kit.ids import IdColumns
from featuremill.kit.pages import Figure, categories, drawn, values, write_of
from featuremill.kit.text import clipped, count, counted, listed, records
from featuremill.steps.heads import curves, threshold
from featuremill.steps.heads.card import HELD_OUT, MISSING, PAGE, Card
from featuremill.steps.heads.figures import FEW_GROUPS

__all__ = ["MOST_SAMPLES", "NAMES", "confusion_figure", "warnings_of"]
TEMPLATE = Path(__file__).parent / "assets" / "head.html"
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
HIGHER_IS_BETTER = ("accuracy", "balanced_accuracy", "macro_f1", "mcc", "auc", "r2", "spearman")
TERMS = {
    "accuracy": ("accuracy", "the share of records that are predicted as what they are"),
    "balanced_accuracy": (
        "balanced accuracy",
        "the mean over classes of the share of a class that is predicted: each class counts alike",
    ),
    "macro_f1": (
        "macro F1",
        "the mean over classes of F1: a rare class counts as much as a common one",
    ),
    "mcc": (
        "MCC",
        "Matthews' correlation coefficient of predicted and true classes: 1 is right throughout, 0 "
        "is guessing, below 0 is worse",
    ),
    "auc": (
        "AUC",
        "the chance that a record of a class has a higher score for it than a record of another "
        "that the same head scored; of more than two classes, the mean",
    ),
    "brier": (
        "Brier score",
        "half the sum over classes of the squared difference between a score and 1 for the true "
        "class, 0 for the others; lower is better",
    ),
    "r2": ("R²", "the share of the labels' variance that the predictions explain"),
    "spearman": (
        "Spearman correlation",
        "the rank correlation of labels and predictions, within the records of one fold",
    ),
    "rmse": ("RMSE", "the root of the mean squared error, in the unit of the labels"),
}
GUESSING = (
    "guessing",
    "for accuracy, balanced accuracy, macro F1 and MCC always the most frequent class; for the "
    "AUC 0.5, which scores have that depend on no feature; for the Brier score the classes' "
    "frequencies as scores; for numbers the mean of those that a fold learnt from",
)
INTERVAL = (
    "95 % interval",
    "from 1,000 draws of as many whole groups, with replacement. It is wider for few groups "
    "(Student's t), and as heads of different folds learn from each other's records",
)
SHUFFLED = (
    "permutation p",
    "the labels are shuffled 199 times, those of a group together. It is the share of the 200 "
    "orders, with the true one, in which a ridge regression predicts held-out labels as well as "
    "in the true one. A small p means that features and labels are related",
)
MOST_TEXT = 30
MOST_SAMPLES = 200
"""Rows of the table of samples."""
MOST_POINTS = 2000
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
log = logging.getLogger("featuremill.head")


class Judged(NamedTuple):
    """Records with a label, and what heads that did not see their group predict."""

    ids: Sequence[str]
    y_N: npt.NDArray[Any]
    """The number of each record's class; of a regression, its label."""
    outputs_NC: npt.NDArray[np.float64]
    """The scores of the classes; of a regression, the values (N, 1)."""
    predicted_N: npt.NDArray[np.int64]
    """The number of each predicted class."""
    id_columns: IdColumns


class OfSample(NamedTuple):
    """The labelled records of a sample."""

    sample: str
    records: int
    right: int
    """Records with a correct prediction by a head that did not see their group."""


def of_samples(judged: Judged) -> list[OfSample]:
    """Return how many records of each sample that has a name have a correct prediction, in the
    order of the samples."""
    owners = [*map(judged.id_columns.owner, judged.ids)]
    samples, number_N = np.unique(owners, return_inverse=True)
    is_right = judged.predicted_N == judged.y_N
    counts = zip(np.bincount(number_N).tolist(), np.bincount(number_N, is_right), strict=True)
    return [
        OfSample(sample, num, int(right))
        for sample, (num, right) in zip(samples.tolist(), counts, strict=True)
        if sample
    ]


def write_page(path: Path, name: str, card: Card, judged: Judged | None) -> None:
    """Write the page of the head called `name` to `path`; of residues, nothing is `judged` one by
    one."""
    figures, samples = list[Figure](), list[OfSample]()
    about: dict[str, Any] = {"curves": [], "samples": []}
    if card.classes:
        figures.append(_scores(card))
    if judged and card.classes:
        of_classes = curves.curves(card.classes, judged.y_N, judged.outputs_NC)
        figures += [curves.roc(of_classes), curves.precision_recall(of_classes)]
        num_wrong, worst = curves.worst(card.classes, *judged[:4])
        samples = of_samples(judged)
        shown = sorted(samples, key=lambda sample: sample.right / sample.records)[:MOST_SAMPLES]
        about = {
            "curves": of_classes,
            "wrong": curves.told(num_wrong, len(worst), HELD_OUT),
            "worst": worst,
            "reliability": _reliability(card),
            "samples": sorted(shown),
        }
    elif judged:
        figures.append(_numbers(judged.y_N, judged.outputs_NC[:, 0]))
    if card.classes:
        num = card.counts["records"] if judged else card.counts["residues"]
        figures.append(
            confusion_figure(
                card.classes,
                card.confusion,
                f"{records(num) if judged else f'{count(num)} residues'} are predicted as what "
                "they are by a head that did not see their group",
            )
        )
    write_of(
        path,
        TEMPLATE.read_text("utf-8"),
        verb="head",
        title=name,
        lead=_lead(card) + threshold.said(card),
        warnings=card.warnings,
        scores=[
            (NAMES[key], *(f"{number:.3f}" for number in each), f"{card.guesses[key]:.3f}")
            for key, each in card.scores.items()
        ],
        figures={figure.name: figure for figure in figures},
        card=card,
        table=list(zip(card.classes, card.confusion, strict=True)) if card.classes else [],
        made_of=[*_made_of(card)],
        num_samples=len(samples),
        **about,
    )


def say(card: Card, output: Path) -> None:
    """Report the figures of a head, what lacks features, and where the page is."""
    for key, (value, low, high) in card.scores.items():
        log.info(
            "%s %.3f (95 %% interval %.3f to %.3f; guessing %.3f)",
            NAMES[key],
            value,
            low,
            high,
            card.guesses[key],
        )
    log.info("permutation p %.3g", card.permutation_p)
    if card.threshold:
        log.info(threshold.said(card).strip())
    for warning in card.warnings:
        log.warning(warning)
    if num_missing := card.counts["missing"]:
        log.warning(
            "%s without features in every run: %s lists them.",
            counted(num_missing, "label is", "labels are"),
            output / MISSING,
        )
    log.info("%s: open it in a browser", output / PAGE)


def warnings_of(card: Card) -> Iterator[str]:
    """Yield the warnings about its predictions."""
    key, guessing, chance = {
        "classification": ("auc", "", card.guesses.get("auc", 0.5)),
        "regression": ("r2", " the mean", 0.0),
        "per_residue": ("mcc", " the same class", 0.0),
    }[card.task]
    _, low, high = card.scores[key]
    if low <= chance:
        lies = "holds" if high >= chance else "is below"
        p = "" if card.permutation_p is None else f"; permutation p {card.permutation_p:.3g}"
        yield (
            f"No better than guessing{guessing}: the 95 % interval of the {NAMES[key]}, {low:.3f}–"
            f"{high:.3f}, {lies} {chance:g}{p}. Do not use its predictions."
        )
    elif card.task == "classification" and (warning := _rare_class(card)):
        yield warning
    if (num_groups := card.counts.get("groups", FEW_GROUPS)) < FEW_GROUPS:
        group = card.labels.group if card.labels else None
        what = f"{num_groups} groups ({group})" if group else records(num_groups)
        yield (
            f"The intervals come from {what}, and with fewer than {FEW_GROUPS} they are rough: the "
            "true figures may lie outside. Label more groups."
        )


def _rare_class(card: Card) -> str:
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
    sizes = " + ".join(count(part.width) for part in card.features)
    if card.task == "regression":
        return (
            f"Ridge regression on {sizes} numbers a record, trained on "
            f"{records(card.counts['records'])}. Scores are of records whose group the regression "
            "did not see; guessing is the mean of those it saw."
        )
    what = "Logistic regression" if card.kind == "logistic" else "A network with one hidden layer"
    if card.task == "per_residue":
        return (
            f"{what} on {sizes} numbers a residue, classes {listed(card.classes)}, trained on "
            f"{count(card.counts['residues_learnt'])} residues of "
            f"{records(card.counts['records'])}. Scores are of all residues of records whose group "
            "the regression did not see, with intervals over these groups; guessing is the most "
            "frequent class."
        )
    return (
        f"{what} of {sizes} numbers a record, {counted(len(card.classes), 'class', 'classes')}, "
        f"trained on {records(card.counts['records'])}."
    )


def _made_of(card: Card) -> Iterator[tuple[str, str]]:
    assert card.labels
    group = f", groups by {card.labels.group}" if card.labels.group else ""
    column = f", column {card.labels.column}" if card.labels.column else ""
    yield "labels", f"{card.labels.file}{column}{group}"
    yield "SHA-256 of the labels", card.labels.sha256
    for part in card.features:
        about = f"{part.run}, {part.column}, {count(part.width)} numbers, recipe {part.recipe}"
        yield "features", about
    for name, number in card.counts.items():
        more = f": {MISSING} lists them" if name == "missing" and number else ""
        yield name.replace("_", " "), count(number) + more
    for name, value in card.setting.items():
        first, last = card.setting_bounds
        place = {first: ", the first", last: ", the last"}.get(value, "")
        tried = f"{name} {value:g}{place} of those tried ({first:g} to {last:g})"
        yield "chosen by inner folds", tried
    if card.calibration:
        shifts = listed(f"{shift:+.3f}" for shift in card.calibration.shift)
        yield (
            "calibration",
            f"{card.calibration.scale:.4g} · logits, shifted by {shifts} (in the order of the "
            "classes); built into the head",
        )
    if card.seed is not None:
        yield "seed", str(card.seed)
    yield "SHA-256 of the head", card.sha256
    yield from card.versions.items()


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
        f"{row['figure']} {row['value']:.3f} ({row['low']:.3f}–{row['high']:.3f}; guessing "
        f"{row['guess']:.3f})"
        for row in rows
    )
    p = "" if card.permutation_p is None else f" The permutation p is {card.permutation_p:.3g}."
    each = "Each residue" if card.task == "per_residue" else "Each record"
    sentence = (
        f"{each} predicted by a head that saw {unseen}: {listed(told)}; in brackets, 95 % "
        f"intervals. The upright line of a row is what guessing gets.{p}"
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
    terms = (*(TERMS[key] for key in card.scores), GUESSING, INTERVAL, SHUFFLED)
    return drawn("scores", "How good it is", sentence, chart, terms=terms)


def _numbers(y_N: npt.NDArray[np.float64], value_N: npt.NDArray[np.float64]) -> Figure:
    """Return the predicted numbers of held-out records beside their labels."""
    shown = range(0, len(y_N), -(-len(y_N) // MOST_POINTS))
    rows = [{"label": float(y_N[n]), "predicted": float(value_N[n])} for n in shown]
    ends = [{"label": float(end), "predicted": float(end)} for end in (y_N.min(), y_N.max())]
    sentence = (
        f"A point is one of {records(len(shown))}, predicted by a regression that did not see its "
        "group; on the dashed line it is right."
    )
    x = alt.X("label:Q", title="label", scale=alt.Scale(zero=False))
    y = alt.Y("predicted:Q", title="predicted", scale=alt.Scale(zero=False))
    chart = (
        alt.Chart(values(ends)).mark_line(style="guide").encode(x=x, y=y)
        + alt.Chart(values(rows)).mark_circle(opacity=0.5, size=30).encode(x=x, y=y)
    ).properties(width="container", height=320)
    return drawn("numbers", "Predicted and true numbers", sentence, chart)


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
