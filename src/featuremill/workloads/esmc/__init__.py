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
from featuremill.workload.networks import ATTRIBUTES as ATTRIBUTES
from featuremill.workload.networks import ONE_TOKEN as ONE_TOKEN
from featuremill.workload.networks import REMEDIES as REMEDIES
from featuremill.workload.networks import audited as audited
from featuremill.workload.networks import batch_cost as batch_cost
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import BYTES_ARE_LENGTHS as BYTES_ARE_LENGTHS
from featuremill.workloads.esm2 import COST_UNIT as COST_UNIT
from featuremill.workloads.esm2 import ENVIRONMENT as ENVIRONMENT
from featuremill.workloads.esm2 import LENGTH_UNIT as LENGTH_UNIT
from featuremill.workloads.esm2 import PRECISION as PRECISION
from featuremill.workloads.esm2 import REASONS as REASONS
from featuremill.workloads.esm2 import SPEED_OPTIONS as SPEED_OPTIONS
from featuremill.workloads.esm2 import WAYS as WAYS
from featuremill.workloads.esm2 import collect as collect
from featuremill.workloads.esm2 import cost as cost
from featuremill.workloads.esm2 import load as load
from featuremill.workloads.esm2 import memory_mb as memory_mb
from featuremill.workloads.esm2 import num_vectors as num_vectors
from featuremill.workloads.esm2 import prepare as prepare
from featuremill.workloads.esm2 import records as records
from featuremill.workloads.esm2 import resolve as resolve
from featuremill.workloads.esm2 import run as run
from featuremill.workloads.esm2 import schema as schema
from featuremill.workloads.esm2 import start_ahead as start_ahead
from featuremill.workloads.esm2 import unit_work as unit_work
from featuremill.workloads.esm2 import weights as weights
from featuremill.workloads.esm2 import weights_mb as weights_mb
from featuremill.workloads.esm2 import with_options as with_options
from featuremill.workloads.esmc import sources as CHECKPOINTS

if TYPE_CHECKING:
    from featuremill.workload import Device

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
