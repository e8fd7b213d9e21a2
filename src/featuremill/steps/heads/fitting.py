"""Fits a head: logistic regression, or the multilayer perceptron of VirNucPro.

The fit weights classes equally; calibration then restores their frequencies. Folds inside the
training side choose one setting: the regularisation of the regression, or the number of epochs of
the perceptron. The result depends on data and seed and, in its last digits, on torch, the machine
and the number of threads. Items come in an order of their own, that of their sha256.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from featuremill.steps.heads import calibration
from featuremill.steps.heads.calibration import Calibration
from featuremill.steps.heads.figures import FOLDS, Labels, folds_of, log_loss
from featuremill.steps.heads.network import (
    ROWS_AT_ONCE,
    Matrix,
    logits,
    softmax,
    standardisation,
    standardised,
)

if TYPE_CHECKING:
    import torch

Found = dict[str, npt.NDArray[Any]]
"""Tensors of a head, by name."""
PENALTIES = (1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Factors of the sum of squared weights, which is added to the mean loss."""
HIDDEN = 512
DROPOUT = 0.5
LEARNING_RATE = 1e-3
BATCH = 256
MOST_EPOCHS = 40
log = logging.getLogger("featuremill.head")


class Candidate(NamedTuple):
    """A head fitted with one setting."""

    setting: float
    head: Found


class Classifier(Protocol):
    """A method to fit a head."""

    @property
    def setting(self) -> str:
        """The name of the setting."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the last setting that are tried."""

    @property
    def patience(self) -> int:
        """The search ends after so many settings without a better one."""

    def candidates(self, x_NF: Matrix, y_N: Labels, num_classes: int) -> Iterator[Candidate]:
        """Yield heads fitted to all items, one for each setting in order."""

    def fit(self, x_NF: Matrix, y_N: Labels, setting: float, num_classes: int) -> Found:
        """Return a head of `num_classes`, fitted to all items."""


class Logistic:
    """Logistic regression on standardised features, by L-BFGS."""

    setting, bounds, patience = "penalty", (PENALTIES[0], PENALTIES[-1]), 2

    def candidates(self, x_NF: Matrix, y_N: Labels, num_classes: int) -> Iterator[Candidate]:
        for penalty in PENALTIES:
            yield Candidate(penalty, self.fit(x_NF, y_N, penalty, num_classes))

    def fit(self, x_NF: Matrix, y_N: Labels, setting: float, num_classes: int) -> Found:
        import torch
        from torch.nn import functional

        found: Found = {**standardisation(x_NF)}
        x = _singles(found, x_NF)
        y = torch.from_numpy(y_N)
        balance = 1 / torch.bincount(y, minlength=num_classes).float()
        weight = torch.zeros(x.shape[1], num_classes, requires_grad=True)
        bias = torch.zeros(num_classes, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(x @ weight + bias, y, weight=balance)
            loss = loss + setting * weight.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        weight_CF = np.ascontiguousarray(weight.detach().numpy().T)
        return found | {"weight": weight_CF, "bias": bias.detach().numpy()}


class Perceptron:
    """Linear to 512, BatchNorm, ReLU, Dropout, Linear to the classes (VirNucPro's `MLPClassifier`),
    on standardised features, by Adam."""

    setting, bounds, patience = "epochs", (1, MOST_EPOCHS), 8

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fit(self, x_NF: Matrix, y_N: Labels, setting: float, num_classes: int) -> Found:
        epochs = self.candidates(x_NF, y_N, num_classes)
        return next(epoch.head for epoch in epochs if epoch.setting == setting)

    def candidates(self, x_NF: Matrix, y_N: Labels, num_classes: int) -> Iterator[Candidate]:
        """Yield the network after each epoch; equal arguments give equal networks."""
        import torch
        from torch import nn

        standard = standardisation(x_NF)
        x = _singles(standard, x_NF)
        y = torch.from_numpy(y_N)
        generator = torch.Generator().manual_seed(self._seed)
        hidden_layer, norm = nn.Linear(x.shape[1], HIDDEN), nn.BatchNorm1d(HIDDEN)
        output_layer = nn.Linear(HIDDEN, num_classes)
        for layer in (hidden_layer, output_layer):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        network = nn.ModuleDict(
            {"hidden_layer": hidden_layer, "bn1": norm, "output_layer": output_layer}
        )
        balance = 1 / torch.bincount(y, minlength=num_classes).float()
        loss_of = nn.CrossEntropyLoss(weight=balance)
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        for number in range(1, MOST_EPOCHS + 1):
            # Of nearly equal sizes: BatchNorm needs at least two items in a batch.
            order = torch.randperm(len(x), generator=generator)
            for batch in order.tensor_split(-(-len(x) // BATCH)):
                hidden = norm(hidden_layer(x[batch])).relu()
                # nn.Dropout would draw from torch's one global generator.
                kept = torch.rand(hidden.shape, generator=generator) >= DROPOUT
                loss = loss_of(output_layer(hidden * kept / (1 - DROPOUT)), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            tensors = {key: value.numpy().copy() for key, value in network.state_dict().items()}
            yield Candidate(number, standard | tensors)


def _singles(standard: Found, x_NF: Matrix) -> torch.Tensor:
    """Return standardised features in float32, in blocks, so that few are float64 at a time."""
    import torch

    singles = torch.empty(x_NF.shape)  # torch's own memory: the alignment of NumPy's varies
    singles_NF = singles.numpy()
    for start in range(0, len(x_NF), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        singles_NF[rows] = standardised(standard, x_NF[rows])
    return singles


class Fitted(NamedTuple):
    """A head with calibrated scores, and its chosen setting."""

    head: Found
    setting: float
    calibration: Calibration
    """The calibration that is built into the head."""
    held_out_NC: npt.NDArray[np.float64]
    """The calibrated scores of the items, each by an inner fold that did not see it."""


def chosen_and_fitted(
    kind: Classifier,
    x_NF: Matrix,
    y_N: Labels,
    groups_N: npt.NDArray[Any],
    payload_N: npt.NDArray[Any],
    num_classes: int,
) -> Fitted:
    """Return the head fitted with the setting that folds of whole groups choose: the one with the
    least log-loss of calibrated scores on items of unseen groups and payloads. The calibration
    comes from the same logits."""
    folds_N = inner_folds(groups_N, y_N)
    folds = np.unique(folds_N).tolist()  # of few groups some folds are empty
    by_fold = [_tried(kind, x_NF, y_N, folds_N == fold, payload_N, num_classes) for fold in folds]
    choices, scores, losses = [], [], []
    for of_setting in zip(*by_fold, strict=False):  # as many as all folds tried
        logits_NC = np.empty((len(y_N), num_classes))
        for fold, one in zip(folds, of_setting, strict=True):
            logits_NC[folds_N == fold] = one.logits_NC
        calibrated = calibration.fitted(logits_NC, y_N)
        scores.append(softmax(calibrated.logits(logits_NC)))
        losses.append(log_loss(scores[-1], y_N))
        choices.append((of_setting[0].setting, calibrated))
    best = int(np.argmin(losses))
    setting, calibrated = choices[best]
    head = kind.fit(x_NF, y_N, setting, num_classes)
    return Fitted(calibrated.built_in(head), setting, calibrated, scores[best])


def inner_folds(groups_N: npt.NDArray[Any], y_N: Labels) -> npt.NDArray[np.int64]:
    """Return the folds that choose a setting."""
    return folds_of(groups_N, y_N, FOLDS, 1)


def outer_folds(groups_N: npt.NDArray[Any], y_N: Labels) -> npt.NDArray[np.int64]:
    """Return the folds that measure a head."""
    return folds_of(groups_N, y_N, FOLDS, 0)


def apart_from(
    is_held_out_N: npt.NDArray[np.bool_], payload_N: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return which items a fit may see: none that is held out, and no copy of one."""
    return ~np.isin(payload_N, payload_N[is_held_out_N])


class Tried(NamedTuple):
    """The results of one setting on items that the fit did not see."""

    setting: float
    logits_NC: npt.NDArray[np.float64]


def _tried(
    kind: Classifier,
    x_NF: Matrix,
    y_N: Labels,
    is_held_out_N: npt.NDArray[np.bool_],
    payload_N: npt.NDArray[Any],
    num_classes: int,
) -> list[Tried]:
    """Return the results of settings on the held-out items, until several in a row are no
    better."""
    tried, losses = list[Tried](), list[float]()
    learns_N = apart_from(is_held_out_N, payload_N)
    x, y, others, true = x_NF[learns_N], y_N[learns_N], x_NF[is_held_out_N], y_N[is_held_out_N]
    for setting, head in kind.candidates(x, y, num_classes):
        tried.append(Tried(setting, logits(head, others)))
        scores_NC = softmax(
            calibration.fitted(tried[-1].logits_NC, true).logits(tried[-1].logits_NC)
        )
        losses.append(log_loss(scores_NC, true))
        if len(losses) - 1 - int(np.argmin(losses)) >= kind.patience:
            break
    return tried


class Fold(NamedTuple):
    """A fold that measures, and the head that it measures."""

    held_out_N: npt.NDArray[np.bool_]
    learns_N: npt.NDArray[np.bool_]
    """The items that the head was fitted to."""
    fitted: Fitted


def out_of_fold(
    kind: Classifier,
    x_NF: Matrix,
    y_N: Labels,
    groups_N: npt.NDArray[Any],
    payload_N: npt.NDArray[Any],
    tell: Callable[[Fold], object] = bool,
) -> npt.NDArray[np.float64]:
    """Return the calibrated scores (N, C) of each item, by a head that saw no item of its group and
    none with its payload; `tell` gets each fold."""
    num_classes = int(y_N.max()) + 1
    scores_NC = np.empty((len(y_N), num_classes))
    folds_N = outer_folds(groups_N, y_N)
    for fold in range(FOLDS):
        held_out_N = folds_N == fold
        learns_N = apart_from(held_out_N, payload_N)
        learnt = x_NF[learns_N], y_N[learns_N], groups_N[learns_N], payload_N[learns_N]
        one = chosen_and_fitted(kind, *learnt, num_classes)
        scores_NC[held_out_N] = softmax(logits(one.head, x_NF[held_out_N]))
        tell(Fold(held_out_N, learns_N, one))
        log.info("fold %d of %d: %s %g", fold + 1, FOLDS, kind.setting, one.setting)
    return scores_NC
