"""The `options` of the workload esm2."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.inputs import TableOptions
from featuremill.workload.networks import ResidueOptions

Pool = Literal["mean", "max", "std", "bos", "none"]


class Options(ResidueOptions, TableOptions):
    """The options of the workload esm2: which features of which ESM-2 to compute, and how."""

    EXECUTION = ResidueOptions.EXECUTION | TableOptions.EXECUTION
    POOLS = ("mean", "max", "std", "bos")
    WHOLE_POOLS = frozenset({"bos"})
    PACKAGES = MappingProxyType(dict.fromkeys(("torch", "safetensors"), "featuremill[esm2]"))

    model: str = "mill_t6_8M"
    """The network: `mill_t6_8M` (bundled for trials; it is not an ESM-2), one of Meta's
    `esm2_t6_8M_UR50D`, `esm2_t12_35M_UR50D`, `esm2_t30_150M_UR50D`, `esm2_t33_650M_UR50D`,
    `esm2_t36_3B_UR50D`, `esm2_t48_15B_UR50D` (downloaded once; a prefix `facebook/` means the
    same), or the path of weights of this architecture: the `.pt` of fair-esm, a `.safetensors` or
    `pytorch_model.bin`, or the folder of a model from Hugging Face."""
    pool: tuple[Pool, ...] = Field(default=("mean",), min_length=1)
    """The vector of a protein: `mean`, `max` or `std` over its residues, without BOS and EOS (the
    standard deviation divides by n), `bos` (the vector of the BOS token), several of these, or
    `none` (only together with `per_residue`)."""
    per_residue: bool = False
    """Also deliver one vector per residue."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the matrix products; the rest is fp32. `auto` is bf16 where the device has it,
    else fp16 on a GPU and fp32 on a CPU. fp16 has about an eighth of bf16's error. A GPU is as fast
    with it; most CPUs are several times slower than with fp32."""
    long: Literal["truncate", "full", "chunk"] = "truncate"
    """Proteins of more than `max_residues`: `truncate` keeps the first residues, `full` computes
    the whole protein, `chunk` computes overlapping windows of `max_residues`."""
    max_residues: int = Field(default=1022, ge=1)
    """Residues that the network sees at once; ESM-2 was trained with up to 1022."""
    chunk_overlap: int = Field(default=256, ge=0)
    """The least overlap of neighbouring windows in residues (with `chunk`); a residue's vector is
    the mean over its windows."""

    @model_validator(mode="after")
    def _windows_agree(self) -> Self:
        """Raise ValueError for windows that overlap completely, and an overlap without windows."""
        if self.long == "chunk" and self.chunk_overlap >= self.max_residues:
            raise ValueError("chunk_overlap must be smaller than max_residues")
        self._refuse_idle("chunk_overlap", self.long != "chunk", f"long: {self.long}")
        return self
