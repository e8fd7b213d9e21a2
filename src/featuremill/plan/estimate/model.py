"""The model of a run that may not be there yet: its shape, by its weights file or by its name."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.errors import UserError
from featuremill.plan.speeds import shape_of
from featuremill.plan.speeds.assumed import Shape
from featuremill.store import files
from featuremill.workload import Weights, Workload
from featuremill.workload import weights as weights_verb
from featuremill.workloads.esm2 import memory


class Model(NamedTuple):
    """What is known of the model; all None for a workload without one."""

    weights: Weights | None
    """Without a digest where the model was not converted yet."""
    shape: Shape | None
    is_here: bool
    """Whether its converted weights are written down here."""


def model_of(name: str, workload: Workload, options: Any) -> Model:
    """Return the model of the workload called `name`.

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
    if name != "esm2":
        command = shlex.join(["featuremill", "weights", asked, "--output", str(path)])
        raise UserError(
            f"{path}: this run's model is not there yet, and nothing is known of it; make it with "
            f"`{command}`, then again."
        )
    known = memory.model_of(asked)
    metadata = {
        "num_layers": str(known.num_layers),
        "embed_dim": str(known.width),
        "dtype": {value: key for key, value in memory.FILE_DTYPES.items()}[known.file_dtype],
    }
    weights = Weights(known.name, path, "", metadata)
    return Model(weights, Shape(known.num_layers, known.width), False)


def device_memory_mb(model: Model, kind: str, dtype: str, batch_tokens: int) -> int | None:
    """Return the estimated peak of one job, in MiB of its device; None for a model that is no
    ESM-2."""
    known = _known(model)
    return memory.estimate_mb(known, kind, dtype, batch_tokens) if known else None


def weights_mb(model: Model) -> float:
    """Return the size of the converted weights, in MiB; 0 for a model that is no ESM-2."""
    known = _known(model)
    if known is None:
        return 0.0
    numbers = known.num_matrix_numbers + known.num_other_numbers
    return numbers * memory.NUMBER_BYTES[known.file_dtype] / 2**20


def _known(model: Model) -> memory.Model | None:
    if model.shape is None or model.weights is None:
        return None
    file_dtype = memory.FILE_DTYPES.get(model.weights.metadata.get("dtype", ""))
    return memory.Model(model.weights.name, *model.shape, file_dtype) if file_dtype else None
