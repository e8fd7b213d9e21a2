"""What trains a head, by its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from featuremill.features import Listed
from featuremill.steps.heads import regression, train
from featuremill.steps.heads.card import Card, Task
from featuremill.steps.heads.train import Chosen as Chosen


class Trainer(Protocol):
    """A module that trains."""

    def train(self, chosen: Chosen, /) -> Card: ...

    def refuse_unfit(self, chosen: Chosen, parts: Sequence[Listed], /) -> None: ...


TRAINERS: Mapping[Task | None, Trainer] = {
    None: train,
    "classification": train,
    "regression": regression,
}


def train_head(chosen: Chosen) -> Card:
    """Train a head, write it and return its card.

    Raises:
        UserError: runs or labels cannot be used.
    """
    return TRAINERS[chosen.task].train(chosen)


def refuse_unfit(chosen: Chosen, parts: Sequence[Listed]) -> None:
    """Refuse labels of which no head can be made, before there are features.

    Raises:
        UserError: as `train_head` does.
    """
    TRAINERS[chosen.task].refuse_unfit(chosen, parts)
