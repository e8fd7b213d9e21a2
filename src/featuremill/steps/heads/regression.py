"""train: fits a ridge regression to records whose labels are numbers, and measures it.

The loss is the mean of squared errors plus the penalty times the sum of squared weights, on
standardised features. Inner folds choose the penalty. Folds keep groups whole, and each gets about
the same share of every fifth of the numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.features import Listed
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering_folder
from featuremill.kit.processes import versions
from featuremill.kit.text import records
from featuremill.steps.heads import card, held_out, task_page
from featuremill.steps.heads.figures import FOLDS, folds_of
from featuremill.steps.heads.fitting import apart_from
from featuremill.steps.heads.intervals import Estimate, bootstrap
from featuremill.steps.heads.network import (
    ROWS_AT_ONCE,
    Matrix,
    logits,
    standardisation,
    standardised,
)
from featuremill.steps.heads.train import (
    Chosen,
    Examples,
    counts_of,
    examples_of,
    gather,
    parts_of,
    tell_missing,
    write_missing,
)

PENALTIES = (1e4, 1e3, 1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4)
FIFTHS = 5
Numbers = npt.NDArray[np.float64]
Tensors = dict[str, npt.NDArray[Any]]
log = logging.getLogger("featuremill.head")


class Fitted(NamedTuple):
    """A regression, and the penalty that was chosen."""

    tensors: Tensors
    penalty: float


def train(chosen: Chosen) -> card.Card:
    """Train a regression, write it and return its card.

    Raises:
        UserError: runs or labels cannot be used.
    """
    gathered = gather(chosen)
    examples, used, joined = gathered.examples, gathered.used, gathered.joined
    y_N = values_of(examples)
    _refuse_unfit(examples, y_N, used)
    log.info(
        "%s with numbers from %g to %g, %s features each; %s",
        records(len(y_N)),
        y_N.min(),
        y_N.max(),
        f"{joined.width:,}",
        f"no {used.group} is on both sides of a fold" if used.group else "folds by record",
    )
    learnt = examples.x_NF, y_N, examples.groups_N, examples.payload_N
    value_N, guess_N = out_of_fold(*learnt)
    fitted = chosen_and_fitted(*learnt)
    scores, guesses = judged(value_N, guess_N, y_N, examples)
    with delivering_folder(chosen.output) as folder:
        write_missing(folder / card.MISSING, gathered.missing, joined.id_columns)
        told = held_out.HeldOut(
            examples.ids,
            examples.sha256s,
            y_N.tolist(),
            examples.groups_N.tolist(),
            value_N[:, None],
        )
        made = card.Card(
            version=card.Card.NEWEST,
            task="regression",
            kind="ridge",
            classes=[],
            features=parts_of(gathered.parts),
            sha256=card.write_tensors(folder / card.TENSORS, fitted.tensors),
            held_out_sha256=held_out.write_columns(
                folder / card.HELD_OUT, told, ["value"], joined.id_columns
            ),
            counts=counts_of(gathered),
            scores={name: [*estimate] for name, estimate in scores.items()},
            guesses=guesses,
            setting={"penalty": fitted.penalty},
            setting_bounds=[PENALTIES[0], PENALTIES[-1]],
            labels=used,
            versions=versions(),
        )
        figure = task_page.of_numbers(y_N, value_N)
        task_page.write_page(folder / card.PAGE, chosen.output.name, made, [figure])
        made.write(folder / card.CARD)
    task_page.say(made)
    tell_missing(made, chosen.output)
    return made


def refuse_unfit(chosen: Chosen, parts: Sequence[Listed]) -> None:
    """Refuse labels of which no regression can be made, as far as the records show.

    Raises:
        UserError: as `train` does.
    """
    examples, used = examples_of(chosen, parts)
    _refuse_unfit(examples, values_of(examples), used)


def values_of(examples: Examples) -> Numbers:
    """Return the number of each record, which `gather` has checked."""
    return np.array([float(name) for name in examples.classes])[examples.y_N]


def _refuse_unfit(examples: Examples, y_N: Numbers, used: card.TableUsed) -> None:
    where = f"{used.file}: {used.column!r}"
    if y_N.min() == y_N.max():
        raise UserError(
            f"{where} is {y_N[0]:g} in all {records(len(y_N))} that have features; there is "
            "nothing to learn from one number, so label others, too."
        )
    if (num_groups := len(np.unique(examples.groups_N))) < FOLDS:
        raise UserError(
            f"{where}: {num_groups} different values of {used.group or 'id'} are too few for "
            f"{FOLDS} folds; label more, or name another column of groups."
        )
    folds_N = _folds(examples.groups_N, y_N, 0)
    for fold in range(FOLDS):
        learns_N = apart_from(folds_N == fold, examples.payload_N)
        if len(np.unique(examples.groups_N[learns_N])) < 2:
            raise UserError(
                f"{where}: so many records have equal sequences that a fold would leave none to "
                "learn from; label other sequences."
            )


def _folds(groups_N: npt.NDArray[Any], y_N: Numbers, seed: int) -> npt.NDArray[np.int64]:
    rank_N = np.argsort(np.argsort(y_N, kind="stable"), kind="stable")
    return folds_of(groups_N, rank_N * FIFTHS // len(y_N), FOLDS, seed)


def fit(x_NF: Matrix, y_N: Numbers, penalties: Sequence[float] = PENALTIES) -> list[Tensors]:
    """Return the regression for each penalty, by one decomposition of the features' products.

    The features are standardised in blocks, so that few are float64 at a time; of fewer records
    than features, the products are those of the records.
    """
    standard = standardisation(x_NF)
    num, width = x_NF.shape
    mean = float(y_N.mean())
    off_N = y_N - mean
    if num < width:
        z_NF = standardised(standard, x_NF)
        values, vectors = np.linalg.eigh(z_NF @ z_NF.T)
        of_y = vectors.T @ off_N
        weights = [z_NF.T @ (vectors @ (of_y / (values + num * penalty))) for penalty in penalties]
    else:
        products_FF, of_y_F = np.zeros((width, width)), np.zeros(width)
        for start in range(0, num, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            z = standardised(standard, x_NF[rows])
            products_FF += z.T @ z
            of_y_F += z.T @ off_N[rows]
        values, vectors = np.linalg.eigh(products_FF)
        of_y = vectors.T @ of_y_F
        weights = [vectors @ (of_y / (values + num * penalty)) for penalty in penalties]
    return [
        {**standard, "weight": weight_F[None], "bias": np.array([mean])} for weight_F in weights
    ]


def chosen_and_fitted(
    x_NF: Matrix, y_N: Numbers, groups_N: npt.NDArray[Any], payload_N: npt.NDArray[Any]
) -> Fitted:
    """Return the regression with the penalty that has the least squared error on items of unseen
    groups and payloads."""
    folds_N = _folds(groups_N, y_N, 1)
    squares = np.zeros(len(PENALTIES))
    for fold in np.unique(folds_N).tolist():  # of few groups some folds are empty
        held_out_N = folds_N == fold
        learns_N = apart_from(held_out_N, payload_N)
        if not learns_N.any():
            continue
        for place, tensors in enumerate(fit(x_NF[learns_N], y_N[learns_N])):
            off = logits(tensors, x_NF[held_out_N])[:, 0] - y_N[held_out_N]
            squares[place] += np.square(off).sum()
    penalty = PENALTIES[int(squares.argmin())]
    return Fitted(fit(x_NF, y_N, [penalty])[0], penalty)


def out_of_fold(
    x_NF: Matrix, y_N: Numbers, groups_N: npt.NDArray[Any], payload_N: npt.NDArray[Any]
) -> tuple[Numbers, Numbers]:
    """Return the value of each item, by a regression that saw no item of its group and none with
    its payload; and the mean of what that regression saw."""
    value_N, guess_N = np.empty(len(y_N)), np.empty(len(y_N))
    folds_N = _folds(groups_N, y_N, 0)
    for fold in range(FOLDS):
        held_out_N = folds_N == fold
        learns_N = apart_from(held_out_N, payload_N)
        learnt = x_NF[learns_N], y_N[learns_N], groups_N[learns_N], payload_N[learns_N]
        one = chosen_and_fitted(*learnt)
        value_N[held_out_N] = logits(one.tensors, x_NF[held_out_N])[:, 0]
        guess_N[held_out_N] = y_N[learns_N].mean()
        log.info("fold %d of %d: penalty %g", fold + 1, FOLDS, one.penalty)
    return value_N, guess_N


def judged(
    value_N: Numbers, guess_N: Numbers, y_N: Numbers, examples: Examples
) -> tuple[dict[str, Estimate], dict[str, float]]:
    """Return the figures of the values, with their intervals, and those of the guesses: the means
    of what each fold learnt from, which order nothing."""
    folds_N = _folds(examples.groups_N, y_N, 0)
    statistics = {
        "r2": lambda i: r2(value_N[i], y_N[i]),
        "spearman": lambda i: spearman(value_N[i], y_N[i], folds_N[i]),
        "rmse": lambda i: rmse(value_N[i], y_N[i]),
    }
    scores = {name: bootstrap(each, examples.groups_N) for name, each in statistics.items()}
    return scores, {"r2": r2(guess_N, y_N), "spearman": 0.0, "rmse": rmse(guess_N, y_N)}


def r2(value_N: Numbers, y_N: Numbers) -> float:
    """Return the share of the variance that is explained; NaN if there is none."""
    total = float(np.square(y_N - y_N.mean()).sum())
    return 1 - float(np.square(value_N - y_N).sum()) / total if total else float("nan")


def rmse(value_N: Numbers, y_N: Numbers) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.square(value_N - y_N).mean()))


def spearman(value_N: Numbers, y_N: Numbers, folds_N: npt.NDArray[np.int64]) -> float:
    """Return Spearman's rank correlation within folds, the mean over items; NaN if no fold has
    different numbers.

    As with the AUC of classes, values of different folds are of different regressions. Each is
    about the mean of what it learnt from, and that is high where the fold's own numbers are low.
    """
    total, num = 0.0, 0
    for fold in np.unique(folds_N).tolist():
        here = folds_N == fold
        one, other = (_ranks(each[here]) for each in (value_N, y_N))
        if (spread := float(one.std() * other.std())) > 0:
            total += float((one * other).mean()) / spread * len(one)
        num += len(one) * (other.std() > 0)
    return total / num if num else float("nan")


def _ranks(x_N: Numbers) -> Numbers:
    """Return ranks with mean 0; equal numbers have the mean of theirs."""
    _, place_N, counts = np.unique(x_N, return_inverse=True, return_counts=True)
    rank_N: Numbers = (np.cumsum(counts) - (counts + 1) / 2)[place_N]
    rank_N -= rank_N.mean()
    return rank_N
