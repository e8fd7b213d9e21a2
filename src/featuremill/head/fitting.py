"""Fitting a head: logistic regression, or the multilayer perceptron of VirNucPro.

Classes count alike, however many items they have. One setting is chosen by a fold inside the
training side: how strongly the regression is regularised, for how many epochs the perceptron is
trained. What is found depends on the data, the seed and, in its last digits, on torch and on the
number of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from featuremill.head.figures import FOLDS, Labels, folds_of, macro_f1
from featuremill.head.network import (
    ROWS_AT_ONCE,
    Matrix,
    logits,
    standardisation,
    standardised,
)

if TYPE_CHECKING:
    import torch

Found = dict[str, npt.NDArray[Any]]
"""Tensors of a head, by name."""
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of the sum of squared weights, beside the mean loss
HIDDEN = 512
DROPOUT = 0.5
LEARNING_RATE = 1e-3
BATCH = 256
MOST_EPOCHS = 40
PATIENCE = 8
"""Epochs without a better one after which no later one is tried."""
log = logging.getLogger("featuremill.head")


class Kind(Protocol):
    """A way to fit a head."""

    @property
    def setting(self) -> str:
        """What is chosen."""

    def choose(self, x_NF: Matrix, y_N: Labels, inner_N: Matrix, num_classes: int) -> float:
        """Return the setting that predicts best, by macro-F1, what is not in `inner_N` from what
        is."""

    def fit(self, x_NF: Matrix, y_N: Labels, setting: float, num_classes: int) -> Found:
        """Return a head of `num_classes` that was fitted to all items."""


class Logistic:
    """Logistic regression on standardised features, by L-BFGS."""

    setting = "penalty"

    def choose(self, x_NF: Matrix, y_N: Labels, inner_N: Matrix, num_classes: int) -> float:
        x, y, rest = x_NF[inner_N], y_N[inner_N], x_NF[~inner_N]
        found = [logits(self.fit(x, y, penalty, num_classes), rest) for penalty in PENALTIES]
        figures = [macro_f1(logits_NC.argmax(1), y_N[~inner_N]) for logits_NC in found]
        return PENALTIES[int(np.argmax(figures))]

    def fit(self, x_NF: Matrix, y_N: Labels, setting: float, num_classes: int) -> Found:
        import torch
        from torch.nn import functional

        found: Found = {**standardisation(x_NF)}
        x = torch.from_numpy(_singles(found, x_NF))
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


class Epoch(NamedTuple):
    """A perceptron after so many passes over what it is trained on."""

    number: int
    head: Found


class Perceptron:
    """Linear to 512, BatchNorm, ReLU, Dropout, Linear to the classes (VirNucPro's
    `MLPClassifier`), on standardised features, by Adam."""

    setting = "epochs"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, x_NF: Matrix, y_N: Labels, inner_N: Matrix, num_classes: int) -> float:
        best, best_figure = 1, -1.0
        for epoch in self._epochs(x_NF[inner_N], y_N[inner_N], num_classes):
            predicted_N = logits(epoch.head, x_NF[~inner_N]).argmax(1)
            if (figure := macro_f1(predicted_N, y_N[~inner_N])) > best_figure:
                best, best_figure = epoch.number, figure
            if epoch.number in (MOST_EPOCHS, best + PATIENCE):
                break
        return best

    def fit(self, x_NF: Matrix, y_N: Labels, setting: float, num_classes: int) -> Found:
        epochs = self._epochs(x_NF, y_N, num_classes)
        return next(epoch.head for epoch in epochs if epoch.number == setting)

    def _epochs(self, x_NF: Matrix, y_N: Labels, num_classes: int) -> Iterator[Epoch]:
        """Yield the network after each epoch, without an end: equal arguments, equal networks."""
        import torch
        from torch import nn

        standard = standardisation(x_NF)
        x = torch.from_numpy(_singles(standard, x_NF))
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
        number = 0
        while True:
            number += 1
            # Of nearly equal sizes: BatchNorm takes no batch of one.
            order = torch.randperm(len(x), generator=generator)
            for batch in order.tensor_split(-(-len(x) // BATCH)):
                hidden = norm(hidden_layer(x[batch])).relu()
                # Not nn.Dropout, which draws from the one generator that all torch shares.
                kept = torch.rand(hidden.shape, generator=generator) >= DROPOUT
                loss = loss_of(output_layer(hidden * kept / (1 - DROPOUT)), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            tensors = {key: value.numpy().copy() for key, value in network.state_dict().items()}
            yield Epoch(number, standard | tensors)


def _singles(standard: Found, x_NF: Matrix) -> Matrix:
    """Return standardised features in float32, without all of them in float64 at a time."""
    found = np.empty(x_NF.shape, np.float32)
    for start in range(0, len(x_NF), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        found[rows] = standardised(standard, x_NF[rows])
    return found


def chosen_and_fitted(
    kind: Kind, x_NF: Matrix, y_N: Labels, groups_N: npt.NDArray[Any], num_classes: int
) -> tuple[float, Found]:
    """Return the setting that a fold of whole groups chooses, and the head fitted with it."""
    inner_N = folds_of(groups_N, FOLDS, 1) != 0
    setting = kind.choose(x_NF, y_N, inner_N, num_classes)
    return setting, kind.fit(x_NF, y_N, setting, num_classes)


def out_of_fold(
    kind: Kind, x_NF: Matrix, y_N: Labels, groups_N: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the log-odds (N, C) of each item by a head that saw nothing of its group."""
    num_classes = int(y_N.max()) + 1
    found = np.empty((len(y_N), num_classes))
    folds_N = folds_of(groups_N, FOLDS, 0)
    for fold in range(FOLDS):
        outside = folds_N != fold
        setting, head = chosen_and_fitted(
            kind, x_NF[outside], y_N[outside], groups_N[outside], num_classes
        )
        found[~outside] = logits(head, x_NF[~outside])
        log.info("fold %d of %d: %s %g", fold + 1, FOLDS, kind.setting, setting)
    return found
