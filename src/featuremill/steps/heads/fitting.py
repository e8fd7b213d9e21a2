"""Fit a head: logistic regression, ridge regression, or the multilayer perceptron of VirNucPro.

scikit-learn fits the regressions, torch the perceptron. Inner folds of the training data choose one
setting: the penalty, or the number of epochs. Classes weigh equally in a fit; calibration then
restores their frequencies. The result depends on data and seed and, in its last digits, on the
libraries, the machine and the number of threads. Rows are sorted by their sha256.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from featuremill.steps.heads.card import Calibration, Tensors
from featuremill.steps.heads.figures import FOLDS, Values, folds_of
from featuremill.steps.heads.network import (
    ROWS_AT_ONCE,
    Matrix,
    calibration_of,
    logits,
    softmax,
    standardisation,
    standardised,
)

Flags = npt.NDArray[np.bool_]
FIFTHS = 5
MOST_STEPS = 100
"""Largest number of L-BFGS iterations."""
TOLERANCE = 1e-5
"""L-BFGS stops when no derivative of the mean loss is larger."""
HIDDEN = 512
DROPOUT = 0.5
LEARNING_RATE = 1e-3
BATCH = 256
MOST_EPOCHS = 40
SHUFFLES = 199
MOST_SHUFFLED = 2**13
"""Largest number of rows for shuffled labels; of more rows, a sample of this size is drawn."""
SHUFFLED_PENALTY = 0.1
NUMBERS_AT_ONCE = 2**24
"""Largest number of shuffled labels in memory."""
log = logging.getLogger("featuremill.head")


class Rows(NamedTuple):
    """Training data: records, or residues of records."""

    x_NF: Matrix
    y_N: npt.NDArray[Any]
    """The class number of each row; for a regression, the label."""
    groups_N: npt.NDArray[Any]
    payload_N: npt.NDArray[Any]
    """A number for each row's payload; equal payloads have the same number."""
    num_classes: int = 0
    """The number of classes; 0 for a regression."""

    def where(self, is_in_N: Flags) -> Self:
        """Return the rows that the mask selects."""
        x_NF, y_N, groups_N, payload_N = (each_N[is_in_N] for each_N in self[:4])
        return type(self)(x_NF, y_N, groups_N, payload_N, self.num_classes)

    def folds(self, seed: Literal[0, 1]) -> npt.NDArray[np.int64]:
        """Return the folds that measure a head (seed 0), or those that choose its setting (seed 1).
        Groups stay whole, and each fold has about the same share of every class or, of numbers, of
        every quintile."""
        if self.num_classes:
            return folds_of(self.groups_N, self.y_N, FOLDS, seed)
        rank_N = np.argsort(np.argsort(self.y_N, kind="stable"), kind="stable")
        return folds_of(self.groups_N, rank_N * FIFTHS // len(self.y_N), FOLDS, seed)

    def apart_from(self, is_held_out_N: Flags) -> Flags:
        """Return the mask of rows that are neither held out nor copies of held-out rows."""
        return ~np.isin(self.payload_N, self.payload_N[is_held_out_N])


class Logistic:
    """Logistic regression on standardised features."""

    setting = "penalty"
    settings: Sequence[float] = (1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    """Factors of the sum of squared weights, which is added to the mean loss."""
    patience = 2

    def heads(self, rows: Rows, settings: Sequence[float]) -> Iterator[Tensors]:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        standard = standardisation(rows.x_NF)
        x_NF = _singles(standard, rows.x_NF)
        is_of_two = len(np.unique(rows.y_N)) == 2
        for penalty in settings:
            model = LogisticRegression(
                C=1 / ((1 if is_of_two else 2) * len(x_NF) * penalty),
                class_weight="balanced",
                max_iter=MOST_STEPS,
                tol=TOLERANCE,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a penalty that is too small
                model.fit(x_NF, rows.y_N)
            weight_CF, bias_C = model.coef_, model.intercept_
            if is_of_two:  # scikit-learn returns the second class only
                weight_CF, bias_C = (np.concatenate([-a, a]) / 2 for a in (weight_CF, bias_C))
            every_CF = np.zeros((rows.num_classes, x_NF.shape[1] + 1), np.float32)
            every_CF[:, -1] = bias_C.min() - 10  # for classes without a row
            every_CF[model.classes_] = np.column_stack([weight_CF, bias_C])
            yield standard | {"weight": every_CF[:, :-1], "bias": every_CF[:, -1]}


class Ridge:
    """Ridge regression on standardised features."""

    setting = "penalty"
    settings: Sequence[float] = (1e4, 1e3, 1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4)
    """Factors of the sum of squared weights, which is added to the mean of squared errors."""
    patience = len(settings)

    def heads(self, rows: Rows, settings: Sequence[float]) -> Iterator[Tensors]:
        """Yield the regression for each penalty; the features are multiplied once for all."""
        from sklearn.linear_model import Ridge as Model

        standard = standardisation(rows.x_NF)
        model = Model(np.array(settings) * len(rows.y_N), copy_X=False)
        y_NP = np.repeat(rows.y_N[:, None], len(settings), 1)
        model.fit(standardised(standard, rows.x_NF), y_NP)
        weight_P1F, bias_P1 = (
            each.reshape(len(settings), 1, -1) for each in (model.coef_, model.intercept_)
        )
        for weight_1F, bias_11 in zip(weight_P1F, bias_P1, strict=True):
            yield standard | {"weight": weight_1F, "bias": bias_11[0]}


class Perceptron:
    """Linear to 512, BatchNorm, ReLU, Dropout, Linear to the classes (VirNucPro's `MLPClassifier`),
    on standardised features, by Adam."""

    setting, patience = "epochs", 8
    settings: Sequence[float] = range(1, MOST_EPOCHS + 1)

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def heads(self, rows: Rows, settings: Sequence[float]) -> Iterator[Tensors]:
        """Yield the network after these epochs; equal arguments give equal networks."""
        import torch
        from torch import nn

        standard = standardisation(rows.x_NF)
        x, y = torch.from_numpy(_singles(standard, rows.x_NF)), torch.from_numpy(rows.y_N)
        generator = torch.Generator().manual_seed(self._seed)
        hidden_layer, norm = nn.Linear(x.shape[1], HIDDEN), nn.BatchNorm1d(HIDDEN)
        output_layer = nn.Linear(HIDDEN, rows.num_classes)
        for layer in (hidden_layer, output_layer):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        network = nn.ModuleDict(
            {"hidden_layer": hidden_layer, "bn1": norm, "output_layer": output_layer}
        )
        balance = 1 / torch.bincount(y, minlength=rows.num_classes).float()
        loss_of = nn.CrossEntropyLoss(weight=balance)
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        for epoch in range(1, int(max(settings)) + 1):
            # Batches of nearly equal size: BatchNorm needs at least two items in each.
            order = torch.randperm(len(x), generator=generator)
            for batch in order.tensor_split(-(-len(x) // BATCH)):
                hidden = norm(hidden_layer(x[batch])).relu()
                # nn.Dropout would draw from torch's global generator.
                kept = torch.rand(hidden.shape, generator=generator) >= DROPOUT
                loss = loss_of(output_layer(hidden * kept / (1 - DROPOUT)), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if epoch in settings:
                state = network.state_dict().items()
                yield standard | {key: value.numpy().copy() for key, value in state}


Learner = Logistic | Ridge | Perceptron
"""A method to fit a head: `heads` yields a head for each setting, fitted to all rows. Folds choose
one of the `settings`; they stop when `patience` settings in a row are no better."""


def _singles(standard: Tensors, x_NF: Matrix) -> npt.NDArray[np.float32]:
    """Return standardised features in float32, converted in blocks to save memory."""
    import torch

    # NumPy's alignment varies; torch's is fixed, and so are the last digits of a fit.
    singles_NF: npt.NDArray[np.float32] = torch.empty(x_NF.shape).numpy()
    for start in range(0, len(x_NF), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        singles_NF[rows] = standardised(standard, x_NF[rows])
    return singles_NF


class Fitted(NamedTuple):
    """A head with its chosen setting."""

    head: Tensors
    setting: float
    calibration: Calibration | None
    """The calibration, which is folded into the head; None for a regression."""
    held_out_NC: Values
    """The outputs for the rows, each from an inner fold that was fitted without the row."""


def _calibrated(logits_NC: Values, rows: Rows) -> tuple[Calibration | None, Values, float]:
    """Return the calibration, the calibrated outputs, and their log-loss or squared error."""
    if not rows.num_classes:
        return None, logits_NC, float(np.square(logits_NC[:, 0] - rows.y_N).mean())
    fitted = calibration_of(logits_NC, rows.y_N)
    scores_NC = softmax(fitted.logits(logits_NC))
    true_N = scores_NC[np.arange(len(rows.y_N)), rows.y_N]
    return fitted, scores_NC, float(-np.log(np.maximum(true_N, np.finfo(np.float64).tiny)).mean())


def chosen_and_fitted(learner: Learner, rows: Rows) -> Fitted:
    """Return the head fitted with the setting whose calibrated outputs have the smallest loss on
    held-out groups and payloads. The calibration is fitted to the same held-out logits."""
    folds_N, by_fold = rows.folds(1), []
    for fold in np.unique(folds_N).tolist():  # with few groups, some folds are empty
        is_held_out_N = folds_N == fold
        held_out, learnt = rows.where(is_held_out_N), rows.where(rows.apart_from(is_held_out_N))
        tried, losses = list[Values](), list[float]()
        for head in learner.heads(learnt, learner.settings):
            tried.append(logits(head, held_out.x_NF))
            losses.append(_calibrated(tried[-1], held_out)[2])
            if len(losses) - 1 - int(np.argmin(losses)) >= learner.patience:
                break
        by_fold.append((is_held_out_N, tried))
    every = []
    of_all = zip(*(tried for _, tried in by_fold), strict=False)  # settings that all folds tried
    for setting, of_setting in zip(learner.settings, of_all, strict=False):
        logits_NC = np.empty((len(rows.y_N), max(1, rows.num_classes)))
        for (is_held_out_N, _), of_fold_NC in zip(by_fold, of_setting, strict=True):
            logits_NC[is_held_out_N] = of_fold_NC
        every.append((*_calibrated(logits_NC, rows), setting))
    calibration, outputs_NC, _, setting = min(every, key=lambda tried: tried[2])
    (head,) = learner.heads(rows, [setting])
    head = calibration.built_in(head) if calibration else head
    return Fitted(head, setting, calibration, outputs_NC)


class Fold(NamedTuple):
    """An outer fold, and the head that was fitted without it."""

    held_out_N: Flags
    """The mask of the rows that measure the head."""
    learns_N: Flags
    """The mask of the rows that the head was fitted to."""
    fitted: Fitted


def fitted_folds(learner: Learner, rows: Rows) -> Iterator[Fold]:
    """Yield each outer fold, with a head fitted without its groups and copies of its rows."""
    folds_N = rows.folds(0)
    for fold in range(FOLDS):
        held_out_N = folds_N == fold
        learns_N = rows.apart_from(held_out_N)
        fitted = chosen_and_fitted(learner, rows.where(learns_N))
        log.info("fold %d of %d: %s %g", fold + 1, FOLDS, learner.setting, fitted.setting)
        yield Fold(held_out_N, learns_N, fitted)


def out_of_fold(rows: Rows, folds: Iterable[Fold]) -> Values:
    """Return scores (N, C) or, for a regression, values (N, 1): each by the head of its fold."""
    outputs_NC = np.empty((len(rows.y_N), max(1, rows.num_classes)))
    for fold in folds:
        outputs_NC[fold.held_out_N] = logits(fold.fitted.head, rows.x_NF[fold.held_out_N])
    return softmax(outputs_NC) if rows.num_classes else outputs_NC


def lost_classes(rows: Rows) -> list[int]:
    """Return the classes of which a fold would leave no row to learn from. For numbers, return [0]
    if a fold would leave a single group."""
    folds, outer_N = range(FOLDS), rows.folds(0)
    sides = [rows, *(rows.where(rows.apart_from(outer_N == fold)) for fold in folds)]
    if not rows.num_classes:
        return [0] * any(len(np.unique(side.groups_N)) < 2 for side in sides)
    classes, lost = {*range(rows.num_classes)}, set[int]()
    for side in sides:
        inner_N = side.folds(1) if len(side.y_N) else side.y_N
        for seen_N in (inner_N >= 0, *(side.apart_from(inner_N == fold) for fold in folds)):
            lost |= classes - {*side.y_N[seen_N].tolist()}
    return sorted(lost)


def shuffled_p(rows: Rows) -> float:
    """Return the share of orders of the labels, shuffled or original, for which held-out rows are
    predicted at least as well as for the original order (Phipson and Smyth 2010).

    A shuffle permutes whole groups and keeps the labels of each together. A ridge regression
    predicts, in the folds that measure a head; its score is the correlation with the labels within
    folds. Each shuffle is fitted again.
    """
    from sklearn.linear_model import Ridge as Model

    random = np.random.default_rng(0)
    folds_N, num = rows.folds(0), len(rows.y_N)
    if num > MOST_SHUFFLED:
        drawn = np.zeros(num, bool)
        drawn[random.choice(num, MOST_SHUFFLED, replace=False)] = True
        rows, folds_N = rows.where(drawn), folds_N[drawn]
    x_NF = _singles(standardisation(rows.x_NF), rows.x_NF)
    y_NK = (
        np.eye(rows.num_classes)[rows.y_N, 1 * (rows.num_classes == 2) :]
        if rows.num_classes
        else (rows.y_N[:, None] - rows.y_N.mean())
    )
    y_NK = np.ldexp(y_NK, -np.frexp(np.abs(y_NK).max())[1])  # into the range of float32
    by_group = np.argsort(np.unique(rows.groups_N, return_inverse=True)[1], kind="stable")
    _, sizes = np.unique(rows.groups_N, return_counts=True)
    members = np.split(by_group, np.cumsum(sizes)[:-1])
    orders = [np.arange(len(y_NK))]
    for _ in range(SHUFFLES):
        order = np.empty_like(by_group)
        order[by_group] = np.concatenate([members[n] for n in random.permutation(len(members))])
        orders.append(order)
    at_once, correlations = max(1, NUMBERS_AT_ONCE // y_NK.size), list[float]()
    for start in range(0, len(orders), at_once):
        some = orders[start : start + at_once]
        y_NT = np.concatenate([y_NK[order] for order in some], axis=1, dtype=np.float32)
        total_T = np.zeros(y_NT.shape[1])
        for fold in np.unique(folds_N).tolist():
            held_out_N = folds_N == fold
            learns_N = rows.apart_from(held_out_N)
            model = Model(SHUFFLED_PENALTY * learns_N.sum()).fit(x_NF[learns_N], y_NT[learns_N])
            guess_NT = model.predict(x_NF[held_out_N]).reshape(-1, len(total_T))
            guess_NT, true_NT = (
                each_NT - each_NT.mean(0) for each_NT in (guess_NT, y_NT[held_out_N])
            )
            spread_T = np.sqrt(np.square(guess_NT).sum(0) * np.square(true_NT).sum(0))
            product_T = (guess_NT * true_NT).sum(0)
            total_T += held_out_N.sum() * np.divide(
                product_T, spread_T, out=np.zeros(len(total_T)), where=spread_T > 0
            )
        correlations += total_T.reshape(len(some), -1).sum(1).tolist()
    least = correlations[0] - 1e-9 * abs(correlations[0])
    return float((np.array(correlations) >= least).mean())
