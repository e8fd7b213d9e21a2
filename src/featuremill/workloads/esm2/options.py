"""What a config may set under `options` for the workload esm2."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from featuremill.inputs import TableOptions
from featuremill.workload import Kind

Pool = Literal["mean", "bos", "none"]
POOLS: tuple[Pool, ...] = ("mean", "bos")


class Options(TableOptions):
    """Which features of which ESM-2 are computed, and how."""

    EXECUTION = TableOptions.EXECUTION | {"batch_tokens"}
    PACKAGES = MappingProxyType(dict.fromkeys(("torch", "safetensors"), "featuremill[esm2]"))

    model: str = "mill_t6_8M"
    """The network: `mill_t6_8M` (small, comes with featuremill), one of Meta's `esm2_t6_8M_UR50D`,
    `esm2_t12_35M_UR50D`, `esm2_t30_150M_UR50D`, `esm2_t33_650M_UR50D`, `esm2_t36_3B_UR50D`,
    `esm2_t48_15B_UR50D` (downloaded once), or the path of a checkpoint of this architecture: the
    `.pt` of fair-esm, or a `.safetensors` or `pytorch_model.bin` of fair-esm or Hugging Face."""
    layers: tuple[int, ...] = Field(default=(-1,), min_length=1)
    """Layers whose representations are delivered, one or several: 0 is the embedding, 1 the first
    block, -1 the last one (the only one with the final LayerNorm applied)."""
    pool: tuple[Pool, ...] = Field(default=("mean",), min_length=1)
    """One vector a protein, made by `mean` (over its residues, without BOS and EOS), `bos` (the
    vector of the BOS token), both, or `none` (only together with `per_residue`)."""
    per_residue: bool = False
    """Also deliver one vector a residue."""
    output_dtype: Literal["float16", "float32"] = "float16"
    """Number type of the vectors per residue. Pooled vectors are always float32."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the matrix products; the rest is fp32. `auto` takes bf16 where the device has
    it, else fp16 on a GPU and fp32 on a CPU. fp16 has about an eighth of bf16's error; a GPU is as
    fast with it, most CPUs are several times slower than with fp32."""
    long: Literal["truncate", "full", "chunk"] = "truncate"
    """What happens to proteins of more than `max_residues`: `truncate` keeps the first ones, `full`
    computes them whole, `chunk` computes overlapping windows of `max_residues`."""
    max_residues: int = Field(default=1022, ge=1)
    """Residues that the network sees at once; ESM-2 was trained with up to 1022."""
    chunk_overlap: int = Field(default=256, ge=0)
    """Residues that neighbouring windows share at least (with `chunk`); a residue's vector is the
    mean over the windows that show it."""
    batch_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """Tokens (residues + 2) that are computed together. If not given: 128 for each multiprocessor
    of a GPU, 4096 on a CPU. Parts that are finished or begun keep the number they have."""

    @field_validator("layers", "pool", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | str) else value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse what contradicts itself and what would have no effect."""
        if "none" in self.pool and len(self.pool) > 1:
            raise ValueError("pool: none excludes the others")
        if "none" in self.pool and not self.per_residue:
            raise ValueError("pool: none leaves nothing to deliver; set per_residue: true with it")
        if self.long == "chunk" and self.chunk_overlap >= self.max_residues:
            raise ValueError("chunk_overlap must be smaller than max_residues")
        self._refuse_idle("max_residues", self.long == "full", "long: full")
        self._refuse_idle("chunk_overlap", self.long != "chunk", f"long: {self.long}")
        self._refuse_idle("output_dtype", not self.per_residue, "per_residue: false")
        return self

    def _refuse_idle(self, name: str, is_idle: bool, because: str) -> None:
        if is_idle and getattr(self, name) != type(self).model_fields[name].default:
            raise ValueError(f"{name} has no effect with {because}; leave it out")

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools to compute, in the order of their columns."""
        return tuple(pool for pool in POOLS if pool in self.pool)

    def delivers(self) -> set[Kind]:
        """Return what comes out: vectors of a protein, of each of its residues, or both."""
        kinds: dict[Kind, bool] = {"pooled": bool(self.pools), "per_residue": self.per_residue}
        return {kind for kind, is_there in kinds.items() if is_there}
