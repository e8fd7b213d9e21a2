"""The workload `esmc`: representations of proteins by layers of ESM C, pooled or per residue.

The workload esm2 computes the network. This package has what differs: checkpoints and defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from featuremill.kit.errors import UserError
from featuremill.workload import Weights
from featuremill.workload import weights as conversion
from featuremill.workload.networks import ATTRIBUTES, ONE_TOKEN, REMEDIES, audited, batch_cost
from featuremill.workloads import esm2
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


class Options(esm2.Options):
    """The network, the features to compute, and how."""

    model: str = "esmc_300m"
    """The network: `esmc_300m`, `esmc_600m` or `esmc_6b` (in Hugging Face's cache, after `hf
    download biohub/ESMC-300M` and the like), the name of another ESM C in that cache, or the path
    of weights of this architecture: the folder of a model from Hugging Face, a `.safetensors`, or
    the `.pth` of the package esm."""
    max_residues: int = Field(default=2046, ge=1)
    """Residues that the network sees at once; ESM C was trained with up to 2046."""


def weights_ahead(options: Options, layout: str = CHECKPOINTS.LAYOUT) -> Weights:
    """Return the metadata of the model, from a conversion to `layout` or from its checkpoint."""
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
    """Return the dtype and the methods for the operations on `device`, by the names in `WAYS`."""
    from featuremill.workloads.esm2 import fallbacks
    from featuremill.workloads.esm2.architecture import ESM_C

    return dict(zip(WAYS, fallbacks.ways(device, weights, ESM_C, load), strict=True))
