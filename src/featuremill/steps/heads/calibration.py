"""Calibration: scores that are probabilities.

A head that weights classes equally gives scores for equally frequent classes, and its logits may be
too large or too small. One scale for all logits and one shift for each class correct both: scores
are softmax(scale · logits + shift). For two classes this is Platt scaling; for more, temperature
scaling with a bias (Alexandari, Kundaje and Shrikumar 2020). Both are fitted to the logits of items
whose group the head did not see.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.steps.heads.figures import Labels
from featuremill.steps.heads.network import Tensors, softmax

Floats = npt.NDArray[np.float64]
MOST_STEPS = 50
ENOUGH = 1e-9
"""Newton's method ends with a step that lowers the loss by less than this for each item."""
RIDGE = 1e-9
LAST_LAYERS = ("", "output_layer.")


class Calibration(NamedTuple):
    """Turns logits into calibrated logits."""

    scale: float
    shift_C: Floats
    """Shape (C,), with mean 0, since only differences count."""

    def logits(self, logits_NC: Floats) -> Floats:
        """Return calibrated logits (N, C)."""
        calibrated: Floats = self.scale * logits_NC + self.shift_C
        return calibrated

    def built_in(self, tensors: Tensors) -> dict[str, npt.NDArray[np.float64]]:
        """Return the tensors of a head with the calibration built into its last layer."""
        layer = next(name for name in LAST_LAYERS if f"{name}bias" in tensors)
        weight, bias = (tensors[f"{layer}{key}"].astype(np.float64) for key in ("weight", "bias"))
        last = {f"{layer}weight": self.scale * weight, f"{layer}bias": self.logits(bias)}
        return {**tensors, **last}


def fitted(logits_NC: Floats, y_N: Labels) -> Calibration:
    """Return the calibration with the least log-loss on these items, by Newton's method.

    Targets are Platt's (1999): a little less than 1 and more than 0, so that logits that separate
    the items get no infinite scale. A scale below 0 would invert the head; it becomes 0.
    """
    num, num_classes = logits_NC.shape
    z_NC = logits_NC - logits_NC.mean(1, keepdims=True)
    unit = float(z_NC.std()) or 1.0
    z_NC = z_NC / unit
    counts_C = np.bincount(y_N, minlength=num_classes)
    little_C = 1 / (counts_C + num_classes)
    target_NC = np.repeat(little_C[y_N][:, None], num_classes, 1)
    target_NC[np.arange(num), y_N] = 1 - (num_classes - 1) * little_C[y_N]
    rates_C = target_NC.mean(0)
    only_rates = np.array([0.0, *(np.log(rates_C) - np.log(rates_C).mean())])
    parameters, loss = only_rates, _loss(only_rates, z_NC, target_NC)
    for _ in range(MOST_STEPS):
        step = _newton_step(parameters, z_NC, target_NC)
        share = 1.0
        while (new := _loss(parameters - share * step, z_NC, target_NC)) > loss and share > ENOUGH:
            share /= 2
        gain, parameters, loss = loss - new, parameters - share * step, new
        if gain < ENOUGH:
            break
    if parameters[0] <= 0:
        parameters = only_rates
    return Calibration(float(parameters[0]) / unit, parameters[1:] - parameters[1:].mean())


def _loss(parameters: Floats, z_NC: Floats, target_NC: Floats) -> float:
    logits_NC = parameters[0] * z_NC + parameters[1:]
    top_N = logits_NC.max(1)
    sums_N = top_N + np.log(np.exp(logits_NC - top_N[:, None]).sum(1))
    return float((sums_N - (target_NC * logits_NC).sum(1)).mean())


def _newton_step(parameters: Floats, z_NC: Floats, target_NC: Floats) -> Floats:
    """Return the inverse Hessian times the gradient, for (scale, shifts)."""
    p_NC = softmax(parameters[0] * z_NC + parameters[1:])
    off_NC = p_NC - target_NC
    gradient = np.array([(off_NC * z_NC).sum(), *off_NC.sum(0)])
    mean_N1 = (p_NC * z_NC).sum(1, keepdims=True)
    of_shift_C = (p_NC * (z_NC - mean_N1)).sum(0)
    hessian = np.empty((len(gradient), len(gradient)))
    hessian[0, 0] = (p_NC * np.square(z_NC - mean_N1)).sum()
    hessian[0, 1:] = hessian[1:, 0] = of_shift_C
    hessian[1:, 1:] = np.diag(p_NC.sum(0)) - p_NC.T @ p_NC
    hessian += RIDGE * len(z_NC) * np.eye(len(gradient))
    step: Floats = np.linalg.solve(hessian, gradient)
    return step
