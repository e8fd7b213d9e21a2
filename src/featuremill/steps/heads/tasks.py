"""What trains a head, by its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from featuremill.features import Listed
from featuremill.kit.errors import UserError
from featuremill.steps.heads import card, regression, residue_predict, residues, train
from featuremill.steps.heads.card import Card, Task
from featuremill.steps.heads.computed import Choices
from featuremill.steps.heads.predict import predict as predict_records
from featuremill.steps.heads.train import Chosen as Chosen


class Trainer(Protocol):
    """A module that trains."""

    def train(self, chosen: Chosen, /) -> Card: ...

    def refuse_unfit(self, chosen: Chosen, parts: Sequence[Listed], /) -> None: ...


TRAINERS: Mapping[Task | None, Trainer] = {
    None: train,
    "classification": train,
    "regression": regression,
    "per_residue": residues,
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


def predict(
    folder: Path,
    runs: Sequence[Path],
    output: Path,
    columns: Sequence[str],
    takes_any_recipe: bool,
    choices: Choices,
    probabilities: Path | None,
) -> None:
    """Write the predictions of the head in `folder`, of whichever task.

    Raises:
        UserError: the head, the features or an output cannot be used.
    """
    arguments = folder, runs, output, columns, takes_any_recipe, choices
    head, _ = card.read(folder)
    if head.task == "per_residue":
        residue_predict.predict(*arguments, probabilities)
    elif probabilities:
        raise UserError(
            "--probabilities: this is of heads for residues; the scores of records are in --output."
        )
    else:
        predict_records(*arguments)
