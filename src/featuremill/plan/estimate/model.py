"""The model of a run that may not be there yet: its shape, by its weights file or by its name."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.errors import UserError
from featuremill.plan.speeds import shape_of
from featuremill.plan.speeds.assumed import Shape
from featuremill.store import files
from featuremill.workload import Device, TellsMemory, Weights, Workload
from featuremill.workload import weights as weights_verb


class Model(NamedTuple):
    """What is known of the model; all None for a workload without one."""

    weights: Weights | None
    """Without a digest where the model was not converted yet."""
    shape: Shape | None
    is_here: bool
    """Whether its converted weights are written down here."""

    def weights_mb(self, workload: Workload) -> float:
        """Return the size of the converted weights, in MiB; 0 where `workload` does not tell."""
        if self.weights is None or not isinstance(workload, TellsMemory):
            return 0.0
        return workload.weights_mb(self.weights)

    def memory_mb(
        self, workload: Workload, options: Any, device: Device, batch_cost: int
    ) -> int | None:
        """Return the estimated peak of one job, in MiB of its device; None where `workload` does
        not tell."""
        if self.weights is None or not isinstance(workload, TellsMemory):
            return None
        return workload.memory_mb(options, device, self.weights, batch_cost)


def model_of(workload: Workload, options: Any) -> Model:
    """Return the model of the workload.

    Raises:
        UserError: for a model that nobody can say anything about before its weights are there.
    """
    asked = workload.weights(options)
    if not asked:
        return Model(None, None, True)
    path = Path(weights_verb.json_of(asked))
    entry = files.read_sealed(path)
    if entry is not None:
        return Model(weights_verb.weights_of(entry), shape_of(str(path)), True)
    if not isinstance(workload, TellsMemory):
        command = shlex.join(["featuremill", "weights", asked, "--output", str(path)])
        raise UserError(
            f"{path}: this run's model is not there yet, and nothing is known of it; make it with "
            f"`{command}`, then again."
        )
    weights = workload.weights_ahead(options)
    shape = Shape(int(weights.metadata["num_layers"]), int(weights.metadata["embed_dim"]))
    return Model(weights, shape, False)
