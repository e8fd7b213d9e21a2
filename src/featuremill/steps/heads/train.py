"""featuremill head train: fit a head to labelled records or residues, and measure it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.files import delivering_folder
from featuremill.kit.processes import versions
from featuremill.kit.text import count, counted, listed, records
from featuremill.steps.heads import card, examples, figures, page, residues, threshold
from featuremill.steps.heads.examples import Gathered, Training
from featuremill.steps.heads.figures import Estimate, Values, estimates
from featuremill.steps.heads.fitting import (
    Fold,
    Learner,
    Logistic,
    Perceptron,
    Ridge,
    Rows,
    chosen_and_fitted,
    fitted_folds,
    out_of_fold,
    shuffled_p,
)
from featuremill.steps.heads.joined import lacking_writer
from featuremill.steps.heads.labels import UNLABELLED
from featuremill.steps.heads.residues import Residues, letters
from featuremill.steps.heads.section import Wanted

log = logging.getLogger("featuremill.head")


class Measured(NamedTuple):
    """The measurements of a head on held-out records or residues."""

    scores: Mapping[str, Estimate]
    guesses: Mapping[str, float]
    held_out: dict[str, Any]
    """Columns of held_out.parquet: labels and predictions."""
    on_card: dict[str, Any] = {}  # noqa: RUF012
    """Further fields of the card."""
    tensors: card.Tensors = {}  # noqa: RUF012
    """Tensors of the heads of the folds, which predictions of residues need."""
    judged: tuple[Values, npt.NDArray[np.int64]] | None = None
    """The outputs for each record, and the predicted class numbers."""


def train(training: Training) -> None:
    """Train a head and write its folder.

    Raises:
        UserError: if runs or labels cannot be used.
    """
    card.require("safetensors", "torch", "sklearn")
    card.refuse_other_folder(training.output)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(max(1, training.threads))
    with threadpool_limits(max(1, training.threads)):
        _train(training)


def _train(training: Training) -> None:
    head, every = training.head, None
    if head.task == "per_residue":
        gathered, every = residues.gather(training)
    else:
        gathered = examples.gather(training)
    rows, used, classes = gathered.rows, gathered.used, gathered.classes
    examples.refuse_unfit(rows, gathered.record_N, classes, used, head)
    learner: Learner = Logistic() if classes else Ridge()
    if classes and head.kind == "mlp":
        learner = Perceptron(training.seed)
    what, labels = records(len(rows.y_N)), f"{counted(len(classes), 'class', 'classes')}"
    if every:
        num_records = records(gathered.counts["records"])
        what = f"{count(len(rows.y_N))} residues of {num_records} to learn from"
        labels = f"the classes {listed(classes)}"
    elif not classes:
        labels = f"numbers from {rows.y_N.min():g} to {rows.y_N.max():g}"
    numbers = f"{sum(part.width for part in gathered.parts):,} numbers each"
    split = f"no {used.group} is on both sides of a fold" if used.group else "folds by record"
    log.info("%s, %s, %s; %s", what, labels, numbers, split)
    fitted = chosen_and_fitted(learner, rows)
    cut = threshold.NEVER
    if head.wanted:
        number, where = classes.index(head.wanted.class_name), f"{used.file}: {used.column!r}"
        score_N = fitted.held_out_NC[:, number]
        cut = threshold.of_class(score_N, rows.y_N == number, head.wanted, where)
    folds = [*fitted_folds(learner, rows)]
    if every:
        measured = of_residues(gathered, every, folds)
    elif classes:
        scores_NC = out_of_fold(rows, folds)
        measured = of_classes(rows, classes, scores_NC, folds, head.wanted, cut)
    else:
        measured = of_numbers(rows, out_of_fold(rows, folds), folds)
    of_record, id_columns = gathered.examples, gathered.id_columns
    columns = {"group": [label.group for label in of_record.labels], **measured.held_out}
    with delivering_folder(training.output) as folder:
        with (folder / card.MISSING).open("w", encoding="utf-8", newline="") as file:
            write = lacking_writer(file, id_columns)
            for lacking in gathered.missing:
                write(lacking)
        path, ids = folder / card.HELD_OUT, of_record.ids
        content = card.Card(
            version=card.Card.NEWEST,
            task=head.task or "classification",
            kind=head.kind or "logistic" if classes else "ridge",
            classes=classes,
            features=gathered.parts,
            sha256=card.write_tensors(folder / card.TENSORS, fitted.head | measured.tensors),
            held_out_sha256=card.write_held_out(path, ids, of_record.sha256s, columns, id_columns),
            counts=gathered.counts,
            scores={name: [*estimate] for name, estimate in measured.scores.items()},
            guesses={name: measured.guesses[name] for name in measured.scores},
            permutation_p=shuffled_p(rows),
            calibration=fitted.calibration,
            setting={learner.setting: fitted.setting},
            setting_bounds=[learner.settings[0], learner.settings[-1]],
            labels=used,
            mask=head.mask or "",
            seed=training.seed if classes else None,
            threads=training.threads,
            versions=versions(("torch", "scikit-learn")),
            **measured.on_card,
        )
        content = content.model_copy(update={"warnings": [*page.warnings_of(content)]})
        judged = measured.judged and page.Judged(ids, rows.y_N, *measured.judged, id_columns)
        page.write_page(folder / card.PAGE, training.output.name, content, judged)
        content.write(folder / card.CARD)
    page.log_figures(content, training.output)


def of_classes(
    rows: Rows,
    classes: Sequence[str],
    scores_NC: Values,
    folds: Sequence[Fold],
    wanted: Wanted | None = None,
    cut: float = threshold.NEVER,
) -> Measured:
    """Return the measurements of held-out scores of classes. If a threshold is `wanted`, the
    thresholds of the folds measure the head's threshold `cut`."""
    y_N, folds_N, num_classes = rows.y_N, rows.folds(0), len(classes)
    predicted_N = scores_NC.argmax(1)
    number = classes.index(wanted.class_name) if wanted else 0
    if wanted:
        cut_N = threshold.of_folds(folds, number, y_N == number, wanted)
        predicted_N = threshold.decided(scores_NC, number, cut_N)
    gain_N = (predicted_N == y_N).astype(np.float64) - (y_N == np.bincount(y_N).argmax())
    auc_of = figures.mean_auc(scores_NC, y_N, folds_N)
    brier_N = figures.brier(scores_NC, y_N)

    def figures_of(weight_N: Values) -> dict[str, float]:
        counts_CC = figures.confusion(predicted_N, y_N, num_classes, weight_N)
        return {
            **figures.of_counts(counts_CC),
            "auc": auc_of(weight_N),
            "brier": float(np.average(brier_N, weights=weight_N)),
            "gain": float(np.average(gain_N, weights=weight_N)),
            **{name: each[number] for name, each in figures.of_classes(counts_CC).items()},
        }

    scores = estimates(figures_of, rows.groups_N)
    precision, recall, _ = ([*scores.pop(name)] for name in figures.OF_CLASSES)
    reached = wanted and card.Threshold(
        **wanted._asdict(),
        score=cut,
        precision=precision if (predicted_N == number).any() else [],
        recall=recall,
        share=float((y_N == number).mean()),
    )
    on_card = {
        "accuracy_gain": [*scores.pop("gain")],
        "confusion": figures.confusion(predicted_N, y_N, num_classes).tolist(),
        "threshold": reached,
        "reliability": figures.reliability(scores_NC, y_N, classes),
    }
    columns = {f"score_{name}": scores_NC[:, number] for number, name in enumerate(classes)}
    guesses = figures.of_guesses(np.bincount(y_N, minlength=num_classes))
    labels = {"label": [classes[number] for number in y_N]}
    judged = scores_NC, predicted_N
    return Measured(scores, guesses, labels | columns, on_card, judged=judged)


def of_numbers(rows: Rows, value_N1: Values, folds: Sequence[Fold]) -> Measured:
    """Return the measurements of held-out numbers. The guess is the mean of the training data."""
    y_N, value_N, guess_N = rows.y_N, value_N1[:, 0], np.empty(len(rows.y_N))
    for fold in folds:
        guess_N[fold.held_out_N] = y_N[fold.learns_N].mean()
    spearman_of = figures.spearman(value_N, y_N, rows.folds(0))
    scores = estimates(
        lambda weight_N: {
            "r2": figures.r2(value_N, y_N, weight_N),
            "spearman": spearman_of(weight_N),
            "rmse": figures.rmse(value_N, y_N, weight_N),
        },
        rows.groups_N,
    )
    once_N = np.ones(len(y_N))
    r2, rmse = figures.r2(guess_N, y_N, once_N), figures.rmse(guess_N, y_N, once_N)
    guesses = {"r2": r2, "spearman": 0.0, "rmse": rmse}
    judged = value_N1, np.empty(0, np.int64)
    return Measured(scores, guesses, {"label": y_N, "value": value_N}, judged=judged)


def of_residues(gathered: Gathered, every: Residues, folds: Sequence[Fold]) -> Measured:
    """Return the measurements of all residues, and of each class."""
    classes, of_record = gathered.classes, gathered.examples
    _, group_R = np.unique(of_record.groups_R, return_inverse=True)
    num_groups, num_classes = int(group_R.max()) + 1, len(classes)
    fold_of_group = np.arange(num_groups) % figures.FOLDS  # also of groups without a drawn residue
    fold_of_group[group_R[gathered.record_N]] = gathered.rows.folds(0)
    folds_R = fold_of_group[group_R]
    heads = [fold.fitted.head for fold in folds]
    predicted_R = residues.predicted_by(every, folds_R, heads)
    counts_GCC = np.zeros((num_groups, num_classes, num_classes), np.int64)
    for group, predicted, true in zip(group_R, predicted_R, every.numbers_R, strict=True):
        is_labelled = true != UNLABELLED
        true_N = true[is_labelled].astype(np.int64)
        counts_GCC[group] += figures.confusion(predicted[is_labelled], true_N, num_classes)
    confusion, flat = counts_GCC.sum(0), counts_GCC.reshape(len(counts_GCC), -1).astype(float)

    def figures_of(weight_G: Values) -> dict[str, float]:
        counts_CC = (weight_G @ flat).reshape(num_classes, num_classes)
        by_class = {
            f"{name} of {letter}": value
            for name, values in figures.of_classes(counts_CC).items()
            for letter, value in zip(classes, values, strict=True)
        }
        return figures.of_counts(counts_CC) | by_class

    all_figures = estimates(figures_of, np.arange(len(counts_GCC)))
    names = ("accuracy", "balanced_accuracy", "macro_f1", "mcc")
    by_class = {
        letter: {name: [*all_figures[f"{name} of {letter}"]] for name in figures.OF_CLASSES}
        for letter in classes
    }
    columns = {
        "fold": folds_R,
        "label": [label.name for label in of_record.labels],
        "predicted": [letters(numbers, classes) for numbers in predicted_R],
    }
    return Measured(
        {name: all_figures[name] for name in names},
        figures.of_guesses(confusion.sum(1)),
        columns,
        {"confusion": confusion.tolist(), "of_classes": by_class},
        {f"fold_{n}.{name}": t for n, head in enumerate(heads) for name, t in head.items()},
    )
