"""The options that workloads with layered networks share, and functions that resolve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from featuremill.base.devices import Device
from featuremill.base.errors import UserError
from featuremill.workload import Kind, OptionFile, WorkloadOptions
from featuremill.workload.contract import Wish

ATTRIBUTES = ("layers", "pool", "dtype", "long")
ONE_TOKEN = ("bos_", "cls_", "max_")
REMEDIES: Mapping[Wish, str] = {
    "smaller batches": "batch_tokens",
    "shorter records": "long: truncate",
    "less written": "fewer layers, no per_residue, or output_dtype: float16",
}
CPU_BATCH_TOKENS = 4096
TOKENS_PER_MULTIPROCESSOR = 128
"""Tokens of a batch per multiprocessor, for whole waves of matrix products: 16,896 on an H200."""
USUAL_MULTIPROCESSORS = 132
"""Number of multiprocessors where the device is not known yet, for example for plan's messages."""


class NetworkOptions(WorkloadOptions):
    """Options for the vectors of a network, and how they are computed."""

    EXECUTION = frozenset({"batch_tokens"})

    model: str
    layers: tuple[int, ...] = Field(default=(-1,), min_length=1)
    """Layers whose representations are delivered, one or several: 0 is the embedding, 1 the first
    block, -1 the last one (with the final norm, where the network has one)."""
    pool: tuple[str, ...] = Field(default=("mean",), min_length=1)
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the matrix products; the rest is fp32. `auto` is bf16 where the device has it,
    else fp16 on a GPU and fp32 on a CPU."""
    batch_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """Tokens that are computed together, with special tokens and padding. If not given: 128 for
    each multiprocessor of a GPU, 4096 on a CPU. Parts that are finished or started keep the number
    they have."""

    @field_validator("layers", "pool", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | str) else value


class LayerOptions(WorkloadOptions):
    """The option for layers of an `nn.Module` on GPUs and the CPU (`spread.over`)."""

    EXECUTION = frozenset({"gpu_layers"})

    gpu_layers: int | None = Field(default=None, ge=1)
    """Layers that GPUs compute, from the first one on; the CPU computes the others, many times more
    slowly. If not given, all. For models that fit no GPU here. No effect without a GPU."""

    def share_of_layers(self, kind: str, num_layers: int) -> float:
        """Return the share of the layers on devices of this kind."""
        if kind == "cpu" or self.gpu_layers is None:
            return 1.0
        return min(1.0, self.gpu_layers / num_layers)


class ResidueOptions(NetworkOptions):
    """Options for sequences: vectors for each residue, and long sequences."""

    POOLS: ClassVar[tuple[str, ...]]
    """The pools of the workload, in the order of their columns."""
    WHOLE_POOLS: ClassVar[frozenset[str]]
    """Pools over a whole sequence, including special tokens."""

    per_residue: bool = False
    output_dtype: Literal["float16", "float32"] = "float16"
    """Number type of the vectors per residue. Pooled vectors are always float32."""
    long: str = "truncate"
    max_residues: int | None = Field(default=None, ge=1)
    regions: OptionFile | None = None
    """A table (CSV, TSV, Parquet) of regions, with the columns `id`, `start`, `end` and, optional,
    `name`. Positions count from 1 and include both ends, as in UniProt. Each row is a record
    `<id>/<name>` or `<id>/<start>-<end>`: the whole record is computed, and the features are those
    of the region. Only for networks with a token per letter."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if "none" in self.pool and len(self.pool) > 1:
            raise ValueError("pool: none excludes the others")
        if "none" in self.pool and not self.per_residue:
            raise ValueError("pool: none leaves nothing to deliver; set per_residue: true with it")
        self._refuse_idle("max_residues", self.long == "full", "long: full")
        self._refuse_idle("output_dtype", not self.per_residue, "per_residue: false")
        if self.regions and (whole := self.WHOLE_POOLS & set(self.pool)):
            raise ValueError(
                f"pool: {min(whole)} is of whole sequences; leave it out, or leave out regions"
            )
        return self

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools to compute, in the order of their columns."""
        return tuple(pool for pool in self.POOLS if pool in self.pool)

    def delivers(self) -> set[Kind]:
        """Return the kinds of values: vectors of a record, of each of its tokens, or both."""
        kinds: dict[Kind, bool] = {"pooled": bool(self.pools), "per_residue": self.per_residue}
        return {kind for kind, is_there in kinds.items() if is_there}


Options = TypeVar("Options", bound=ResidueOptions)


def layers_from_0(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return `layers` sorted, without repeats and with numbers from 0 (the embedding); -1 is the
    last layer.

    Raises:
        UserError: if there is no such layer.
    """
    for layer in layers:
        if not -num_layers - 1 <= layer <= num_layers:
            raise UserError(
                f"options.layers: there is no layer {layer} in a model of {num_layers}; "
                f"use 0 to {num_layers}, or -1 for the last one."
            )
    return tuple(sorted({layer % (num_layers + 1) for layer in layers}))


def dtype_on(device: Device, dtype: str) -> str:
    """Return the dtype for `device`, with "auto" resolved: bf16, fp16 or fp32.

    Raises:
        UserError: if `dtype` is bf16 and the device does not support it.
    """
    if dtype == "bf16" and not device.has_bf16:
        raise UserError(
            f"options.dtype: {device.name} has no bf16; set dtype: auto, or choose fp16 or fp32."
        )
    if dtype != "auto":
        return dtype
    if device.has_bf16:
        return "bf16"
    return "fp16" if device.kind == "cuda" else "fp32"


def batch_cost(options: NetworkOptions, device: Device) -> int:
    """Return the largest number of tokens of a batch."""
    if options.batch_tokens:
        return options.batch_tokens
    if device.kind == "cpu":
        return CPU_BATCH_TOKENS
    return TOKENS_PER_MULTIPROCESSOR * (device.num_multiprocessors or USUAL_MULTIPROCESSORS)


def audited(options: Options, precision: str) -> Options:
    """Return the options for float32 vectors of all tokens, computed in `precision`."""
    more = {"dtype": precision, "per_residue": True, "output_dtype": "float32"}
    return options.model_validate(options.model_dump() | more)


def set_matmul_precision() -> None:
    """Disable TF32 and reductions in 16 bits for matrix products in this process.

    NVIDIA's containers enable TF32 for fp32 (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE). By default, cuBLAS
    may reduce partial sums in 16 bits.
    """
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
