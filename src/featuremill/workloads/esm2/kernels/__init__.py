"""Operations between matrix products: Triton on CUDA, LLVM on x86 CPUs, or PyTorch."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from featuremill.kit import environment
from featuremill.kit.errors import error_text
from featuremill.workloads.esm2 import triton_cache
from featuremill.workloads.esm2.kernels import reference
from featuremill.workloads.esm2.lanes import instructions

log = logging.getLogger("featuremill.workloads.esm2")


class Kernels(NamedTuple):
    """The functions of five operations, by one method."""

    name: str
    """"torch", or the compiler with its version: "triton 3.7.1", "llvm 22.1, avx512"."""
    rotate_: Callable[[Tensor, Tensor, Tensor, Tensor | None], None]
    """See `reference.rotate_`: (qkv_T3Hd, rotary_Pf2, positions_T, weight_2D), in place."""
    add_norm: Callable[[Tensor, Tensor | None, Tensor, Tensor, torch.dtype], Tensor]
    """See `reference.add_norm`: (residual_TD, delta_TD, weight_D, bias_D, dtype) → normed_TD."""
    norm: Callable[[Tensor, Tensor | None, Tensor, Tensor, torch.dtype], Tensor]
    """See `reference.norm`: (residual_TD, running_D, weight_D, bias_D, dtype) → normed_TD."""
    gate: Callable[[Tensor], Tensor]
    """See `reference.gate`: halves_TG → gated_TF."""
    mean_rows: Callable[[Tensor, Tensor, Tensor], Tensor]
    """See `reference.mean_rows`: (hidden_TD, starts_N, ends_N) → means_ND."""


TORCH = Kernels(
    name="torch",
    rotate_=reference.rotate_,
    add_norm=reference.add_norm,
    norm=reference.norm,
    gate=reference.gate,
    mean_rows=reference.mean_rows,
)


class OnCpu(NamedTuple):
    """Functions compiled for this CPU and a shape of heads."""

    name: str
    """LLVM's version and the CPU's instructions, for the receipt."""
    kernels: Kernels
    attend: Callable[[Tensor, slice, Tensor], None]
    """(qkv_L3Hd of one sequence, heads, context_LHd): writes the context of these heads."""


def compiled_on_cpu(dtype: torch.dtype, num_heads: int, head_dim: int) -> OnCpu | None:
    """Return the functions compiled for this CPU; None without AVX2 or LLVM, or for odd widths."""
    isa = instructions(dtype)
    if isa == "sse" or head_dim % 8 or num_heads * head_dim % 16 or not _has_llvm():
        return None
    from featuremill.workloads.esm2.kernels import llvm
    from featuremill.workloads.esm2.kernels import llvm_kernels as ours

    rows = Kernels(
        name=f"{llvm.VERSION}, {instructions(torch.float32)}",
        rotate_=ours.rotate_,
        add_norm=ours.add_norm,
        norm=reference.norm,
        gate=ours.gate,
        mean_rows=reference.mean_rows,
    )
    return OnCpu(f"{llvm.VERSION}, {isa}", rows, ours.attend)


@functools.cache
def _has_llvm() -> bool:
    try:
        import llvmlite.binding  # noqa: F401
    except (ImportError, OSError) as error:
        log.warning(
            "llvmlite cannot be imported (%s), so PyTorch's slower operations stand in for what it "
            "would compile: about half the speed in bf16, three quarters of it in fp32.",
            error_text(error),
        )
        return False
    return True


def ways(device: torch.device, dtype: torch.dtype, num_heads: int, head_dim: int) -> list[Kernels]:
    """Return the methods for `device`, the best first; PyTorch is the last."""
    if device.type == "cpu":
        ours = compiled_on_cpu(dtype, num_heads, head_dim)
        return [*([ours.kernels] if ours else []), TORCH]
    if device.type != "cuda":
        return [TORCH]
    try:
        return [_triton(), TORCH]
    except Exception as error:  # its import looks for a driver and its own build
        log.warning(
            "Triton cannot be imported (%s: %s), so PyTorch's slower operations stand in for the "
            "kernels: about 0.7 of the speed.",
            type(error).__name__,
            str(error).strip().partition("\n")[0],
        )
        return [TORCH]


def has_triton() -> bool:
    """Return whether Triton can be imported. If not, `ways` logs why."""
    try:
        _triton()
    except Exception:
        return False
    return True


def keep_flash_attention() -> None:
    """Make FlashAttention-4 keep its compiled kernels inside Triton's folder, from which it loads
    them. Otherwise each process compiles them again."""
    folder = triton_cache.folder() / "flash_attention"
    with contextlib.suppress(OSError):  # then they stay in memory
        folder.mkdir(parents=True, exist_ok=True)
        environment.FLASH_ATTENTION_CUTE_DSL_CACHE_DIR.set_default(str(folder))
        environment.FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED.set_default("1")


def _triton() -> Kernels:
    triton_cache.keep_compiled()
    import triton

    from featuremill.workloads.esm2.kernels import triton_kernels

    ours, name = triton_kernels, f"triton {triton.__version__}"
    return Kernels(name, ours.rotate_, ours.add_norm, ours.norm, ours.gate, ours.mean_rows)
