"""What a config may set under `options` for the workload esmc."""

from __future__ import annotations

from pydantic import Field

from featuremill.workloads import esm2


class Options(esm2.Options):
    """The network, the features to compute, and how."""

    model: str = "esmc_300m"
    """The network: `esmc_300m`, `esmc_600m` or `esmc_6b` (in Hugging Face's cache, after `hf
    download biohub/ESMC-300M` and the like), the name of another ESM C in that cache, or the path
    of weights of this architecture: the folder of a model from Hugging Face, a `.safetensors`, or
    the `.pth` of the package esm."""
    max_residues: int = Field(default=2046, ge=1)
    """Residues that the network sees at once; ESM C was trained with up to 2046."""
