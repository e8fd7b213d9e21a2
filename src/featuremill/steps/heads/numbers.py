"""Labels that are numbers: their values, and whether labels look like numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress

from featuremill.inputs.labels import Label
from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped

MOST_CLASSES = 20
"""Different numbers that may be names of classes without a word about it."""


def value_of(text: str) -> float | None:
    """Return the finite number that `text` is; None if it is none."""
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    return None


def check(found: Mapping[str, Label], file: str, column: str) -> None:
    """Raise UserError where a label is no number."""
    for id, label in found.items():
        if value_of(label.name) is None:
            where = f"{file}:{label.line}" if label.line else file
            raise UserError(
                f"{where}: {clipped(label.name)!r}, the label of {clipped(id)!r} in {column!r}, is "
                "no number; write one, or leave the cell empty where none is known."
            )


def refuse_many(names: Collection[str], file: str, column: str) -> None:
    """Raise UserError where labels are so many different numbers that they are hardly classes."""
    different = {*names}
    if len(different) > MOST_CLASSES and all(value_of(name) is not None for name in different):
        raise UserError(
            f"{file}: {column!r} has {len(different):,} different numbers, and a classifier takes "
            "each for the name of a class; to predict the number, give task: regression (--task "
            "regression), and if they are names, task: classification."
        )
