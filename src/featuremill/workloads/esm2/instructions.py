"""Find the vector instructions of this CPU: AMX, AVX-512, AVX2 or SSE."""

from __future__ import annotations

import functools

import torch

from featuremill.kit.environment import Variable

MOST_ISA = Variable("ONEDNN_MAX_CPU_ISA")
ISAS_ALLOWED = {
    "AVX512_CORE_BF16": ("avx512_bf16", "avx512", "avx2"),
    "AVX512_CORE_FP16": ("avx512_bf16", "avx512", "avx2"),
    "AVX512_CORE": ("avx512", "avx2"),
    "AVX512_CORE_VNNI": ("avx512", "avx2"),
    "AVX2": ("avx2",),
    "AVX2_VNNI": ("avx2",),
    "AVX2_VNNI_2": ("avx2",),
    "AVX": (),
    "SSE41": (),
}
"""The allowed instructions, by value of ONEDNN_MAX_CPU_ISA."""


def instructions(dtype: torch.dtype) -> str:
    """Return the instructions of this CPU that multiply numbers of `dtype`: "amx", "avx512_bf16",
    "avx512", "avx2", or "sse" if it has none of these. The variable ONEDNN_MAX_CPU_ISA can exclude
    later ones, for oneDNN and for featuremill."""
    is_bf16 = dtype == torch.bfloat16
    known = {
        "amx": is_bf16 and is_amx_granted(),
        "avx512_bf16": is_bf16 and torch.cpu._is_avx512_bf16_supported(),
        "avx512": torch.cpu._is_avx512_supported(),
        "avx2": torch.cpu._is_avx2_supported(),
    }
    allowed = ISAS_ALLOWED.get((MOST_ISA.text() or "").upper(), known)
    return next((isa for isa, has in known.items() if has and isa in allowed), "sse")


@functools.cache
def is_amx_granted() -> bool:
    """Return whether this process may use AMX, which it has to request from the kernel."""
    return bool(torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx())
