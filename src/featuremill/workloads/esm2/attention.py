"""Attention within each sequence of a pack, behind one function with two backends.

Shape legend: T tokens, H heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from featuremill.devices import BF16_CAPABILITY
from featuremill.workloads.esm2.packing import Packed


class Backend(NamedTuple):
    """What computes attention, by name (for the receipt), and (qkv_T3Hd, pack) → context_THd."""

    name: str
    attend: Callable[[Tensor, Packed], Tensor]


def choose(device: torch.device, dtype: torch.dtype, num_heads: int, head_dim: int) -> Backend:
    """Return the backend: one kernel a pack on Ampere and later in 16 bits, SDPA elsewhere."""
    if dtype != torch.float32 and _capability(device) >= BF16_CAPABILITY:
        return Backend(_varlen_kernel(device), attend_varlen)
    probe = torch.zeros(1, num_heads, 16, head_dim, device=device, dtype=dtype)
    kernel = torch.nn.attention.SDPBackend(torch._fused_sdp_choice(probe, probe, probe))
    return Backend(f"sdpa {kernel.name.lower()} per sequence", attend_per_sequence)


def attend_per_sequence(qkv_T3Hd: Tensor, pack: Packed) -> Tensor:
    """Attend with one call of SDPA a sequence."""
    context_THd = torch.empty_like(qkv_T3Hd[:, 0])
    context_THd[pack.bounds[-1] :] = 0
    for start, end in zip(pack.bounds, pack.bounds[1:], strict=False):
        query, key, value = qkv_T3Hd[start:end].permute(1, 2, 0, 3).unsqueeze(1)
        context_1HLd = F.scaled_dot_product_attention(query, key, value)
        context_THd[start:end] = context_1HLd[0].transpose(0, 1)
    return context_THd


def attend_varlen(qkv_T3Hd: Tensor, pack: Packed) -> Tensor:
    """Attend with one kernel over the whole pack."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv_T3Hd.unbind(1)
    bounds, longest = pack.cu_seqlens, pack.longest
    context_THd = varlen_attn(query, key, value, bounds, bounds, longest, longest)
    assert isinstance(context_THd, Tensor)
    return context_THd


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _varlen_kernel(device: torch.device) -> str:
    """Return which kernel torch runs for varlen_attn here; later releases may prefer cuDNN's.

    cuDNN's was seen to be 4 times slower (pytorch#187770), so the receipt tells them apart.
    """
    from torch.nn.attention import varlen

    index = torch.cuda.current_device() if device.index is None else device.index
    return "varlen cudnn" if varlen._should_use_cudnn(index) else "varlen flash_attention"
