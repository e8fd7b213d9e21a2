"""What workloads over networks of layers agree on: layers, the number type, tokens of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from featuremill.base.errors import UserError
from featuremill.lease.devices import Device

CPU_BATCH_TOKENS = 4096
TOKENS_PER_MULTIPROCESSOR = 128
"""Whole waves of the matrix products: 16,896 tokens on an H200."""
USUAL_MULTIPROCESSORS = 132
"""Stands in where nobody has asked the driver yet, as when a plan is announced."""


def layers_from_0(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return `layers` in order, each once, -1 and the like counted from 0 (the embedding).

    Raises:
        UserError: there is no such layer.
    """
    for layer in layers:
        if not -num_layers - 1 <= layer <= num_layers:
            raise UserError(
                f"options.layers: there is no layer {layer} in a model of {num_layers}; "
                f"use 0 to {num_layers}, or -1 for the last one."
            )
    return tuple(sorted({layer % (num_layers + 1) for layer in layers}))


def dtype_on(device: Device, dtype: str) -> str:
    """Return the number type that `dtype` means on `device`: bf16, fp16 or fp32.

    Raises:
        UserError: the device has no bf16.
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


def batch_tokens_on(device: Device) -> int:
    """Return the tokens that one batch may hold on `device` where nobody said it."""
    if device.kind == "cpu":
        return CPU_BATCH_TOKENS
    return TOKENS_PER_MULTIPROCESSOR * (device.num_multiprocessors or USUAL_MULTIPROCESSORS)


def forbid_short_cuts() -> None:
    """Keep cuBLAS to the precision that was asked for, in this process.

    NVIDIA's containers turn TF32 on for fp32 (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), and by default
    partial sums of one product may be added in 16 bits.
    """
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
