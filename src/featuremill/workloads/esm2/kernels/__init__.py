"""What the encoder does between matrix products: Triton's kernels on CUDA, PyTorch elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from featuremill.base import environment, triton_cache
from featuremill.workloads.esm2.kernels import twins

log = logging.getLogger("featuremill.workloads.esm2")


class Kernels(NamedTuple):
    """Four operations, and by name (for the receipt) what computes them."""

    name: str
    """"torch", or Triton with its version: "triton 3.7.1"."""
    rotate_: Callable[[Tensor, Tensor, Tensor], None]
    """See `twins.rotate_`: (qkv_T3Hd, turns_Pf2, positions_T), in place."""
    add_norm: Callable[[Tensor, Tensor | None, Tensor, Tensor, torch.dtype], Tensor]
    """See `twins.add_norm`: (residual_TD, delta_TD, weight_D, bias_D, dtype) → normed_TD."""
    norm: Callable[[Tensor, Tensor | None, Tensor, Tensor, torch.dtype], Tensor]
    """See `twins.norm`: (residual_TD, running_D, weight_D, bias_D, dtype) → normed_TD."""
    mean_rows: Callable[[Tensor, Tensor, Tensor], Tensor]
    """See `twins.mean_rows`: (hidden_TD, starts_N, ends_N) → means_ND."""


TORCH = Kernels("torch", twins.rotate_, twins.add_norm, twins.norm, twins.mean_rows)


def ways(device: torch.device) -> list[Kernels]:
    """Return what may run on `device`, the best first: Triton's kernels on CUDA, then PyTorch."""
    if device.type != "cuda":
        return [TORCH]
    try:
        return [_triton(), TORCH]
    except Exception as error:  # its import looks for a driver and at what it was built for
        log.warning(
            "Triton cannot be imported (%s: %s), so PyTorch's slower operations stand in for the "
            "kernels: about 0.7 of the speed.",
            type(error).__name__,
            str(error).strip().partition("\n")[0],
        )
        return [TORCH]


def keep_compiled() -> None:
    """Have Triton keep what it compiles beside the weights, where a folder is named for these."""
    if folder := triton_cache.beside_weights():
        environment.TRITON_CACHE_DIR.set_default(folder)


def _triton() -> Kernels:
    keep_compiled()
    import triton

    from featuremill.workloads.esm2.kernels import triton_kernels

    ours, name = triton_kernels, f"triton {triton.__version__}"
    return Kernels(name, ours.rotate_, ours.add_norm, ours.norm, ours.mean_rows)
