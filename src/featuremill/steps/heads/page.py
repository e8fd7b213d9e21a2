"""The HTML page of a head: its scores, the most confident errors, and the sources."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.ids import IdColumns
from featuremill.kit.pages import Figure, write_of
from featuremill.kit.text import clipped, count, counted, listed, records
from featuremill.steps.heads import charts, threshold
from featuremill.steps.heads.card import HELD_OUT, MISSING, PAGE, Card
from featuremill.steps.heads.charts import NAMES
from featuremill.steps.heads.figures import FEW_GROUPS

__all__ = ["MOST_SAMPLES", "warnings_of"]
TEMPLATE = Path(__file__).parent / "assets" / "head.html"
MOST_SAMPLES = 200
"""Largest number of rows of the table of samples."""
MOST_ERRORS = 20
log = logging.getLogger("featuremill.head")


class Judged(NamedTuple):
    """Labelled records, and their held-out predictions."""

    ids: Sequence[str]
    y_N: npt.NDArray[Any]
    """The class number of each record; for a regression, its label."""
    outputs_NC: npt.NDArray[np.float64]
    """The scores of the classes; for a regression, the values (N, 1)."""
    predicted_N: npt.NDArray[np.int64]
    id_columns: IdColumns


def write_page(path: Path, name: str, card: Card, judged: Judged | None) -> None:
    """Write the page of the head called `name`; `judged` is None for a head of residues."""
    figures, about = list[Figure](), dict[str, Any](curves=[], samples=[])
    if card.classes:
        figures.append(charts.scores(card))
        right = f"{records(card.counts['records'])} are"
        if judged:
            curves = charts.curves(card.classes, judged.y_N, judged.outputs_NC)
            figures += charts.of_curves(curves)
            about = {"curves": curves, "reliability": charts.reliability(card)}
            about |= _errors(card.classes, judged) | _samples(judged)
        else:
            right = f"{count(card.counts['residues'])} residues are"
        right += " predicted as what they are by a head that did not see their group"
        figures.append(charts.confusion(card.classes, card.confusion, right))
    elif judged:
        figures.append(charts.numbers(judged.y_N, judged.outputs_NC[:, 0]))
    write_of(
        path,
        TEMPLATE.read_text("utf-8"),
        verb="head",
        title=name,
        lead=_lead(card) + threshold.sentences(card),
        warnings=card.warnings,
        scores=[
            (NAMES[key], *(f"{number:.3f}" for number in each), f"{card.guesses[key]:.3f}")
            for key, each in card.scores.items()
        ],
        figures={figure.name: figure for figure in figures},
        card=card,
        table=list(zip(card.classes, card.confusion, strict=True)) if card.classes else [],
        made_of=[*_made_of(card)],
        **about,
    )


def _errors(classes: Sequence[str], judged: Judged) -> dict[str, Any]:
    """Return a sentence with the number of wrong predictions, and rows of the most confident."""
    y_N, scores_NC, predicted_N = judged.y_N, judged.outputs_NC, judged.predicted_N
    wrong_N = np.flatnonzero(predicted_N != y_N)
    score_N, own_N = scores_NC[wrong_N, predicted_N[wrong_N]], scores_NC[wrong_N, y_N[wrong_N]]
    order = np.argsort(-(score_N - own_N), kind="stable")[:MOST_ERRORS]
    worst = [
        (judged.ids[row], classes[y_N[row]], classes[predicted_N[row]], score, own)
        for row, score, own in zip(wrong_N[order], score_N[order], own_N[order], strict=True)
    ]
    shown = f"; here are the {len(worst)} surest" if len(worst) < len(wrong_N) else ""
    sentence = (
        f"{counted(len(wrong_N), 'prediction is', 'predictions are')} wrong{shown}. "
        "See whether their labels are right: a sure and wrong prediction is often a wrong label. "
        f"{HELD_OUT} has the scores of all records."
    )
    return {"worst": worst, "wrong": sentence if len(wrong_N) else "No prediction is wrong."}


def _samples(judged: Judged) -> dict[str, Any]:
    """Return the number of records and of correct predictions per sample, for the worst samples."""
    owners = [*map(judged.id_columns.owner, judged.ids)]
    samples, number_N = np.unique(owners, return_inverse=True)
    nums = np.bincount(number_N).tolist()
    rights = np.bincount(number_N, judged.predicted_N == judged.y_N).astype(int).tolist()
    rows = [row for row in zip(samples.tolist(), nums, rights, strict=True) if row[0]]
    shown = sorted(rows, key=lambda row: row[2] / row[1])[:MOST_SAMPLES]
    return {"samples": sorted(shown), "num_samples": len(rows)}


def log_figures(card: Card, output: Path) -> None:
    """Log the scores of a head, the number of labels without features, and the path of the page."""
    every = listed(charts.in_words(card, key) for key in card.scores)
    log.info("%s; in brackets, 95 %% intervals", every)
    log.info("permutation p %.3g", card.permutation_p)
    if card.threshold:
        log.info(threshold.sentences(card).strip())
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
    """Yield the warnings about a head's predictions."""
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
    elif card.accuracy_gain and card.accuracy_gain[1] <= 0 and not card.threshold:
        gain, least, most = card.accuracy_gain
        often = "not certainly right more often" if gain > 0 else "right no more often"
        interval = f", and the 95 % interval of the difference is {least:.3f} to {most:.3f}"
        frequent = max(zip(map(sum, card.confusion), card.classes, strict=True))[1]
        yield (
            f"The predicted class is {often} than always {clipped(frequent)!r} "
            f"({card.scores['accuracy'][0]:.3f} and {card.guesses['accuracy']:.3f}"
            f"{interval if gain > 0 else ''}), although the scores order records better than "
            "chance. For a rare class, train with --threshold CLASS --recall 0.8 (threshold in a "
            "config)."
        )
    if (num_groups := card.counts.get("groups", FEW_GROUPS)) < FEW_GROUPS:
        group = card.labels.group if card.labels else None
        what = f"{num_groups} groups ({group})" if group else records(num_groups)
        yield (
            f"The intervals come from {what}, and with fewer than {FEW_GROUPS} they are rough: the "
            "true figures may lie outside. Label more groups."
        )


def _lead(card: Card) -> str:
    sizes = " + ".join(count(part.width) for part in card.features)
    learnt_from = f"trained on {records(card.counts['records'])}"
    if card.task == "regression":
        return (
            f"Ridge regression on {sizes} numbers a record, {learnt_from}. Scores are of records "
            "whose group the regression did not see; guessing is the mean of those it saw."
        )
    what = "Logistic regression" if card.kind == "logistic" else "A network with one hidden layer"
    if card.task == "per_residue":
        residues = f"{count(card.counts['residues_learnt'])} residues of "
        return (
            f"{what} on {sizes} numbers a residue, classes {listed(card.classes)}, trained on "
            f"{residues}{records(card.counts['records'])}. Scores are of all residues of records "
            "whose group the regression did not see, with intervals over these groups; guessing is "
            "the most frequent class."
        )
    classes = counted(len(card.classes), "class", "classes")
    return f"{what} of {sizes} numbers a record, {classes}, {learnt_from}."


def _made_of(card: Card) -> Iterator[tuple[str, str]]:
    assert card.labels
    group = f", groups by {card.labels.group}" if card.labels.group else ""
    column = f", column {card.labels.column}" if card.labels.column else ""
    yield "labels", f"{card.labels.file}{column}{group}"
    yield "SHA-256 of the labels", card.labels.sha256
    for part in card.features:
        numbers = f"{count(part.width)} numbers"
        yield "features", f"{part.run}, {part.column}, {numbers}, recipe {part.recipe}"
    for name, number in card.counts.items():
        more = f": {MISSING} lists them" if name == "missing" and number else ""
        yield name.replace("_", " "), count(number) + more
    for name, value in card.setting.items():
        first, last = card.setting_bounds
        which = {first: ", the first", last: ", the last"}.get(value, "")
        tried = f"{name} {value:g}{which} of those tried ({first:g} to {last:g})"
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
