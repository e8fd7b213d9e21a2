"""What the encoder does between matrix products: Triton's kernels on CUDA, PyTorch elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from featuremill.workloads.esm2.kernels import twins


class Kernels(NamedTuple):
    """Three operations, and by name (for the receipt) what computes them."""

    name: str
    """"torch", or Triton with its version: "triton 3.7.1"."""
    rotate_: Callable[[Tensor, Tensor, Tensor], None]
    """See `twins.rotate_`: (qkv_T3Hd, turns_Pf2, positions_T), in place."""
    add_norm: Callable[[Tensor, Tensor | None, Tensor, Tensor, torch.dtype], Tensor]
    """See `twins.add_norm`: (residual_TD, delta_TD, weight_D, bias_D, dtype) → normed_TD."""
    mean_rows: Callable[[Tensor, Tensor, Tensor], Tensor]
    """See `twins.mean_rows`: (hidden_TD, starts_N, ends_N) → means_ND."""


TORCH = Kernels("torch", twins.rotate_, twins.add_norm, twins.mean_rows)


def choose(device: torch.device) -> Kernels:
    """Return the kernels for `device`."""
    return TORCH
