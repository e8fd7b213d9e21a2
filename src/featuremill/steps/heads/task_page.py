"""head.html of a regression or of a head for residues."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import altair as alt
import numpy as np
import numpy.typing as npt

from featuremill.kit.pages import Figure, drawn, values, write_of
from featuremill.kit.text import count, listed, records
from featuremill.steps.heads.card import MISSING, Card

TEMPLATE = Path(__file__).parent / "assets" / "task.html"
NAMES = {
    "r2": "R²",
    "spearman": "Spearman correlation",
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
}
MOST_POINTS = 2000
log = logging.getLogger("featuremill.head")


def write_page(
    path: Path,
    name: str,
    card: Card,
    figures: Sequence[Figure],
    classes: Sequence[Sequence[str]] = (),
) -> None:
    """Write the page of the head called `name` to `path`."""
    write_of(
        path,
        TEMPLATE.read_text("utf-8"),
        verb="head",
        title=name,
        lead=_lead(card),
        warnings=[warning] if (warning := warning_of(card)) else [],
        scores=[
            (
                NAMES[key],
                *(f"{number:.3f}" for number in estimate),
                f"{card.guesses[key]:.3f}",
            )
            for key, estimate in card.scores.items()
        ],
        figures=figures,
        classes=classes,
        made_of=[*_made_of(card)],
    )


def say(card: Card) -> None:
    """Report the figures of a head."""
    for key, (value, low, high) in card.scores.items():
        log.info(
            "%s %.3f (95 %% interval %.3f to %.3f; guessing %.3f)",
            NAMES[key],
            value,
            low,
            high,
            card.guesses[key],
        )
    if warning := warning_of(card):
        log.warning(warning)


def warning_of(card: Card) -> str:
    """Return a warning to read before predictions are used; "" for none."""
    key, guessing = ("r2", "the mean") if card.task == "regression" else ("mcc", "the same class")
    _, low, high = card.scores[key]
    if low > 0:
        return ""
    return (
        f"No better than guessing {guessing}: the 95 % interval of {NAMES[key]}, {low:.3f} to "
        f"{high:.3f}, does not lie above 0. Do not use its predictions."
    )


def of_numbers(y_N: npt.NDArray[np.float64], value_N: npt.NDArray[np.float64]) -> Figure:
    """Return the predicted numbers of held-out records beside their labels."""
    step = -(-len(y_N) // MOST_POINTS)
    shown = range(0, len(y_N), step)
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


def _lead(card: Card) -> str:
    sizes = " + ".join(count(part.width) for part in card.features)
    if card.task == "regression":
        return (
            f"Ridge regression on {sizes} numbers a record, trained on "
            f"{records(card.counts['records'])}. Scores are of records whose group the regression "
            "did not see; guessing is the mean of those it saw."
        )
    return (
        f"Logistic regression on {sizes} numbers a residue, classes {listed(card.classes)}, "
        f"trained on {count(card.counts['residues_learnt'])} residues of "
        f"{records(card.counts['records'])}. Scores are of all residues of records whose group the "
        "regression did not see, with intervals over these groups; guessing is the most frequent "
        "class."
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
        yield f"{name}, chosen by inner folds", f"{value:g}"
    yield "SHA-256 of the head", card.sha256
    yield from card.versions.items()
