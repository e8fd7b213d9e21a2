"""ESM C features of proteins: the representations of chosen layers, pooled, per residue or both.

The workload esm2 has the engine; here stands what is another model's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.kit.errors import UserError
from featuremill.workload import Weights
from featuremill.workload import weights as conversion
from featuremill.workload.networks import ATTRIBUTES, ONE_TOKEN, REMEDIES, audited, batch_cost
from featuremill.workloads.esm2 import (
    BYTES_ARE_LENGTHS,
    COST_UNIT,
    ENVIRONMENT,
    LENGTH_UNIT,
    PRECISION,
    REASONS,
    SPEED_OPTIONS,
    WAYS,
    collect,
    cost,
    load,
    memory_mb,
    num_vectors,
    prepare,
    records,
    resolve,
    run,
    schema,
    start_ahead,
    unit_work,
    weights,
    weights_mb,
    with_options,
)
from featuremill.workloads.esmc import sources as CHECKPOINTS
from featuremill.workloads.esmc.options import Options

if TYPE_CHECKING:
    from featuremill.workload import Device

__all__ = [
    "ATTRIBUTES",
    "BYTES_ARE_LENGTHS",
    "CHECKPOINTS",
    "COST_UNIT",
    "ENVIRONMENT",
    "LENGTH_UNIT",
    "ONE_TOKEN",
    "PRECISION",
    "REASONS",
    "REMEDIES",
    "SPEED_OPTIONS",
    "VERSION",
    "WAYS",
    "Options",
    "audited",
    "batch_cost",
    "collect",
    "cost",
    "load",
    "memory_mb",
    "num_vectors",
    "prepare",
    "records",
    "resolve",
    "run",
    "schema",
    "start_ahead",
    "unit_work",
    "ways",
    "weights",
    "weights_ahead",
    "weights_mb",
    "with_options",
]

VERSION = "1"


def weights_ahead(options: Options, layout: str = CHECKPOINTS.LAYOUT) -> Weights:
    """Return the metadata of the model, converted to `layout` or not."""
    CHECKPOINTS.refuse_missing(options.model, layout)
    source = CHECKPOINTS.locate(options.model)
    if not source.path.exists() and (entry := conversion.converted(source.name, layout)):
        return Weights(source.name, Path(), "", entry.metadata)
    try:
        from featuremill.workloads.esmc import checkpoint
    except ImportError as error:
        raise UserError(
            f"{options.model}: looking into it needs {error.name}; pip install 'featuremill[esm2]'."
        ) from None
    return Weights(source.name, Path(), "", checkpoint.read(source.path).metadata())


def ways(device: Device, weights: Weights | None) -> dict[str, str]:
    """Return what would compute attention, products and the rest on `device`, in which dtype."""
    from featuremill.workloads.esm2 import probe
    from featuremill.workloads.esm2.architecture import ESM_C

    return dict(zip(WAYS, probe.ways(device, weights, ESM_C, load), strict=True))
