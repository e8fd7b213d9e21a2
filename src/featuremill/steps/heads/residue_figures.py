"""Figures of predicted residues, by how many of each class are predicted as each (counts).

All figures follow from the counts, so those of a group are all that is kept of its residues.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featuremill.steps.heads import intervals
from featuremill.steps.heads.intervals import Estimate

Counts = npt.NDArray[Any]
"""Shape (…, C, C): true classes by predicted ones."""
Values = npt.NDArray[np.float64]


def accuracy(counts: Counts) -> Values:
    """Return the share of residues whose class is predicted: of three classes, Q3."""
    return _ratio(_right(counts).sum(-1), counts.sum((-2, -1)))


def mcc(counts: Counts) -> Values:
    """Return Matthews' correlation, of more than two classes Gorodkin's (2004), which is 0 for a
    prediction that does not depend on the class."""
    num, right = counts.sum((-2, -1)).astype(float), _right(counts).sum(-1)
    true, predicted = counts.sum(-1).astype(float), counts.sum(-2).astype(float)
    above = num * right - (true * predicted).sum(-1)
    spread = num**2 - np.square([true, predicted]).sum(-1)
    return _ratio(above, np.sqrt(spread[0] * spread[1]), 0.0)


def precision(counts: Counts) -> Values:
    """Return that of each class (…, C)."""
    return _ratio(_right(counts), counts.sum(-2))


def recall(counts: Counts) -> Values:
    """Return that of each class (…, C)."""
    return _ratio(_right(counts), counts.sum(-1))


def f1(counts: Counts) -> Values:
    """Return that of each class (…, C)."""
    return _ratio(2 * _right(counts), counts.sum(-2) + counts.sum(-1))


def macro_f1(counts: Counts) -> Values:
    """Return the mean of F1 over the classes that are there."""
    values = f1(counts)
    is_there = ~np.isnan(values)
    return _ratio(np.where(is_there, values, 0).sum(-1), is_there.sum(-1))


ALL = {"accuracy": accuracy, "macro_f1": macro_f1, "mcc": mcc}
OF_CLASSES = {"precision": precision, "recall": recall, "f1": f1}


def judged(
    counts_GCC: Counts, classes: list[str]
) -> tuple[dict[str, Estimate], dict[str, dict[str, Estimate]]]:
    """Return the figures of all residues and those of each class, with 95 % intervals from draws of
    whole groups, of which `counts_GCC` has the counts."""
    num_groups, num_classes, _ = counts_GCC.shape
    flat = counts_GCC.reshape(num_groups, -1).astype(float)
    random = np.random.default_rng(0)
    draws = np.empty((intervals.RESAMPLES, num_classes, num_classes))
    for place in range(len(draws)):
        times = np.bincount(random.integers(num_groups, size=num_groups), minlength=num_groups)
        draws[place] = (times @ flat).reshape(num_classes, num_classes)
    whole = counts_GCC.sum(0)
    scores = {name: _estimate(each(whole), each(draws)) for name, each in ALL.items()}
    of_classes = {
        letter: {
            name: _estimate(each(whole)[number], each(draws)[:, number])
            for name, each in OF_CLASSES.items()
        }
        for number, letter in enumerate(classes)
    }
    return scores, of_classes


def of_guesses(counts_CC: Counts) -> dict[str, float]:
    """Return the figures of always the most frequent class."""
    most, num_classes = counts_CC.sum(1).max() / counts_CC.sum(), len(counts_CC)
    return {
        "accuracy": float(most),
        "macro_f1": float(2 * most / (1 + most)) / num_classes,
        "mcc": 0.0,
    }


def _estimate(value: npt.NDArray[np.float64], draws: Values) -> Estimate:
    known = draws[~np.isnan(draws)]
    if not len(known) or np.isnan(value):  # a class that is never predicted has no precision
        return Estimate(0.0, 0.0, 1.0)
    low, high = np.percentile(known, (2.5, 97.5))
    return Estimate(float(value), float(low), float(high))


def _right(counts: Counts) -> Values:
    return np.diagonal(counts, axis1=-2, axis2=-1).astype(float)


def _ratio(above: Values, below: Values, otherwise: float = np.nan) -> Values:
    """Return above / below; `otherwise` where below is 0."""
    found = np.full(np.broadcast(above, below).shape, otherwise)
    np.divide(above, below, out=found, where=np.asarray(below) > 0)
    return found
