"""What the encoder does between matrix products: Triton's kernels on CUDA, PyTorch elsewhere."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from featuremill.workloads.esm2.kernels import twins

log = logging.getLogger("featuremill.workloads.esm2")


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
    """Return Triton's kernels on CUDA, if they run and agree with their twins; else PyTorch's."""
    if device.type != "cuda":
        return TORCH
    try:
        kernels = _triton()
        _probe(kernels, device)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # Triton runs a compiler and a driver: much can be missing
        log.warning(
            "Triton's kernels do not run here (%s: %s), so PyTorch's slower operations stand in; "
            "most often the C compiler that Triton needs is missing: install gcc and python3-dev.",
            type(error).__name__,
            str(error).strip().partition("\n")[0],
        )
        return TORCH
    return kernels


def _triton() -> Kernels:
    import triton

    from featuremill.workloads.esm2.kernels import triton_kernels

    ours = triton_kernels
    return Kernels(f"triton {triton.__version__}", ours.rotate_, ours.add_norm, ours.mean_rows)


def _probe(kernels: Kernels, device: torch.device) -> None:
    """Raise unless `kernels` compute on `device` what their twins do."""
    # Triton launches on the current device, whichever its tensors are on.
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with current:
        found, expected = (_of_small_input(which, device) for which in (kernels, TORCH))
    for one, other in zip(found, expected, strict=True):
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
            raise RuntimeError("a kernel's results are not those of its twin")


def _of_small_input(kernels: Kernels, device: torch.device) -> tuple[Tensor, ...]:
    """Return what `kernels` make of a few numbers, in fp16 as every GPU has it."""
    numbers = torch.arange(5 * 3 * 2 * 16, device=device).sin()
    qkv_T3Hd = numbers.view(5, 3, 2, 16).half()
    turns_Pf2 = numbers[:48].view(3, 8, 2).clone()
    kernels.rotate_(qkv_T3Hd, turns_Pf2, torch.tensor([2, 0, 1, 2, 1], device=device))
    residual_TD, (weight_D, bias_D) = numbers[:160].view(5, 32).clone(), numbers[-64:].view(2, 32)
    delta_TD = numbers[160:320].view(5, 32).half()
    summed_TD = kernels.add_norm(residual_TD, delta_TD, weight_D, bias_D, torch.float16)
    normed_TD = kernels.add_norm(residual_TD, None, weight_D, bias_D, torch.float32)
    bounds = torch.tensor([1, 2, 5], device=device)
    means_ND = kernels.mean_rows(residual_TD, bounds[:-1].clone(), bounds[1:].clone())
    return qkv_T3Hd, residual_TD, summed_TD, normed_TD, means_ND
