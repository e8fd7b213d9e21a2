"""The forward pass of a head, in NumPy and float64: class scores of features, calibrated.

The tensors define the network. A logistic regression has `weight` (classes, features) and `bias`; a
perceptron with one hidden layer has those of VirNucPro's `MLPClassifier`, under its names. With
`mean` and `scale` (features,), features are standardised first.

The scores of a row depend on that row only, to the last bit: not on other rows, threads or BLAS.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featuremill.steps.heads.card import Calibration, Tensors

Matrix = npt.NDArray[Any]
Scores = npt.NDArray[np.float64]
EPSILON = 1e-5
"""The default of BatchNorm (`torch.nn.BatchNorm1d`)."""
ROWS_AT_ONCE = 4096
TINY = 1e-8
FLOAT64_BITS = 53
LEAST_EXPONENT = -1000
"""Smallest exponent of a row's unit: the inverse of a smaller power of two would be infinite."""


def standardisation(x_NF: Matrix) -> dict[str, npt.NDArray[np.float64]]:
    """Return the `mean` and the `scale` (F,) by which features get mean 0 and deviation 1.

    Constant features are not scaled.
    """
    deviation = x_NF.std(0, dtype=np.float64)
    scale = np.where(deviation > TINY, deviation + TINY, 1.0)
    return {"mean": x_NF.mean(0, dtype=np.float64), "scale": scale}


def standardised(tensors: Tensors, x_NF: Matrix) -> Matrix:
    """Return the features in float64, standardised if `tensors` has `mean` and `scale`."""
    x = x_NF.astype(np.float64)
    if "mean" in tensors:
        x -= tensors["mean"]
        x /= tensors["scale"]
    return x


def logits(tensors: Tensors, x_NF: Matrix) -> npt.NDArray[np.float64]:
    """Return the log-odds (N, C) of each class, up to a constant for each row."""
    num_classes = len(tensors["bias" if "bias" in tensors else "output_layer.bias"])
    logits_NC = np.empty((len(x_NF), num_classes))
    for start in range(0, len(x_NF), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        x = standardised(tensors, x_NF[rows])
        if "weight" in tensors:
            logits_NC[rows] = _linear(tensors, "", x)
            continue
        hidden = _linear(tensors, "hidden_layer.", x)
        hidden -= tensors["bn1.running_mean"]
        hidden /= np.sqrt(tensors["bn1.running_var"].astype(np.float64) + EPSILON)
        hidden *= tensors["bn1.weight"]
        hidden += tensors["bn1.bias"]
        logits_NC[rows] = _linear(tensors, "output_layer.", np.maximum(hidden, 0, out=hidden))
    return logits_NC


def _linear(tensors: Tensors, layer: str, x: Matrix) -> Matrix:
    y = product(x, tensors[f"{layer}weight"].astype(np.float64))
    y += tensors[f"{layer}bias"]
    return y


def product(x_NF: Matrix, w_CF: Matrix) -> Matrix:
    """Return x times the transpose of w, (N, C). A row has the same bits in any matrix.

    Each entry is split into two integers times a power of two per row. The integers have so few
    bits that float64 sums their products exactly, in any order (Ozaki et al. 2012,
    doi:10.1007/s11075-011-9478-1). Digits below 2^-40 of a row's largest entry are lost.
    """
    bits = (FLOAT64_BITS - x_NF.shape[1].bit_length()) // 2
    x_high, x_low, x_unit = _halves(x_NF, bits)
    w_high, w_low, w_unit = _halves(w_CF, bits)
    y: Matrix = x_high @ w_low.T
    y += x_low @ w_high.T
    y *= 2.0**-bits
    y += x_high @ w_high.T
    y *= x_unit
    y *= w_unit.T
    return y


def _halves(rows: Matrix, bits: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return integers `high` and `low` of at most `bits` bits, and a power of two `unit` per row:
    an entry is about (high + low / 2^bits) · unit."""
    exponent = np.frexp(np.abs(rows).max(1, keepdims=True, initial=0))[1] - bits
    exponent = np.maximum(exponent, LEAST_EXPONENT)
    low = rows * np.ldexp(1.0, -exponent)
    high = np.rint(low)
    low -= high
    low *= 2.0**bits
    return high, np.rint(low, out=low), np.ldexp(1.0, exponent)


def softmax(logits_NC: Matrix) -> npt.NDArray[np.float64]:
    """Return scores (N, C) that are positive and sum to 1 in each row."""
    scores: npt.NDArray[np.float64] = np.exp(logits_NC - logits_NC.max(1, keepdims=True))
    scores /= scores.sum(1, keepdims=True)
    return scores


def calibration_of(logits_NC: Scores, y_N: npt.NDArray[np.int64]) -> Calibration:
    """Return the calibration with the smallest log-loss on these held-out items.

    Targets are Platt's (1999), slightly below 1 and above 0, so that the scale stays finite for
    logits that separate the items. The scale is not negative, which would invert the head.
    """
    from scipy.optimize import minimize

    num, num_classes = logits_NC.shape
    z_NC = logits_NC - logits_NC.mean(1, keepdims=True)
    unit = float(z_NC.std()) or 1.0
    z_NC = z_NC / unit
    margin_C = 1 / (np.bincount(y_N, minlength=num_classes) + num_classes)
    target_NC = np.repeat(margin_C[y_N][:, None], num_classes, 1)
    target_NC[np.arange(num), y_N] = 1 - (num_classes - 1) * margin_C[y_N]

    def loss_and_slope(parameters: Scores) -> tuple[float, Scores]:
        calibrated_NC = parameters[0] * z_NC + parameters[1:]
        p_NC = softmax(calibrated_NC)
        off_NC = p_NC - target_NC
        slope = np.array([(off_NC * z_NC).sum(), *off_NC.sum(0)]) / num
        return float(-(target_NC * np.log(np.maximum(p_NC, 1e-300))).sum() / num), slope

    bounds = [(0, None), *[(None, None)] * num_classes]
    start = np.append(1.0, np.log(target_NC.mean(0)))
    options = {"ftol": 1e-15, "gtol": 1e-9}
    best = minimize(loss_and_slope, start, jac=True, bounds=bounds, options=options).x
    shift_C: Scores = best[1:] - best[1:].mean()
    return Calibration(scale=float(best[0]) / unit, shift=shift_C.tolist())
