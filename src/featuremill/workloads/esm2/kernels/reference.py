"""The operations of the encoder between its matrix products, in PyTorch.

They are used if neither Triton nor LLVM's code runs; the kernels are tested against them. The bits
of a row do not depend on other rows, nor, on a CPU, on the number of threads.

Shape legend: T tokens, P positions, H heads, d width of a head, f = d/2 pairs of a head, D width,
F width of the feed forward, G twice that, N segments.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["NORM_EPSILON"]
NORM_EPSILON = 1e-5

SERIAL_ELEMENTS = 32_000
"""A number of elements below torch's grain size (32,768), for which torch uses one thread."""


def rotate_(
    qkv_T3Hd: Tensor,
    rotary_Pf2: Tensor,
    positions_T: Tensor,
    weight_2D: Tensor | None = None,
) -> None:
    """Turn query and key in place by their positions, in fp32 (rotary embedding, arXiv:2104.09864).

    Where `weight_2D` (fp32) is given, query and key are normed before that: LayerNorm over all
    heads, the query's with the first row as weight and the key's with the second, without bias.

    Elements 2i and 2i + 1 of a head make one complex number; at position p it is multiplied by
    `rotary_Pf2[p, i]` (fp32), its cosine and sine. The value stays as it is. `qkv_T3Hd` is
    contiguous, of bf16, fp16 or fp32; each of `positions_T` (int64) is below P.
    """
    num_tokens, _, num_heads, head_dim = qkv_T3Hd.shape
    turns_Tf = torch.view_as_complex(rotary_Pf2)[positions_T]
    turns_T1D = turns_Tf.unsqueeze(1).expand(-1, num_heads, -1).flatten(1).unsqueeze(1)
    qk_T2D = qkv_T3Hd.view(num_tokens, 3, -1)[:, :2]
    wide_T2D = qk_T2D.float()
    if weight_2D is not None:
        wide_T2D = F.layer_norm(wide_T2D, weight_2D.shape[1:], eps=NORM_EPSILON) * weight_2D
    pairs_T2D = torch.view_as_complex(wide_T2D.view(num_tokens, 2, -1, 2))
    rows = num_tokens
    if qkv_T3Hd.device.type == "cpu":
        # The last numbers of a thread's share go through other code, which rounds differently.
        rows = SERIAL_ELEMENTS // (num_heads * head_dim)
    for start in range(0, num_tokens, rows):
        pairs_T2D[start : start + rows].mul_(turns_T1D[start : start + rows])
    if wide_T2D is not qk_T2D:
        qk_T2D.copy_(wide_T2D)


def add_norm(
    residual_TD: Tensor,
    delta_TD: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Add `delta_TD` (if any) to the residual stream in place; return its LayerNorm as `dtype`.

    `residual_TD`, `weight_D` and `bias_D` are fp32, `delta_TD` is bf16, fp16 or fp32; all are
    contiguous. Sum, mean and variance are taken in fp32 (arXiv:1607.06450, epsilon 1e-5).
    """
    if delta_TD is not None:
        residual_TD.add_(delta_TD)
    return norm(residual_TD, None, weight_D, bias_D, dtype)


def norm(
    residual_TD: Tensor,
    running_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return the LayerNorm of each row of the residual stream plus `running_D` (if any) as `dtype`.

    All arguments are fp32 and contiguous, and are not changed; see `add_norm`.
    """
    sum_TD = residual_TD if running_D is None else residual_TD + running_D
    return F.layer_norm(sum_TD, sum_TD.shape[1:], weight_D, bias_D, NORM_EPSILON).to(dtype)


def gate(halves_TG: Tensor) -> Tensor:
    """Return gated_TF: SiLU of the first half of each row times the second one (arXiv:2002.05202).

    It is computed in fp32 and rounded once, to the dtype of `halves_TG` (contiguous).
    """
    first_TF, second_TF = halves_TG.float().chunk(2, 1)
    return (F.silu(first_TF) * second_TF).to(halves_TG.dtype)


def mean_rows(hidden_TD: Tensor, starts_N: Tensor, ends_N: Tensor) -> Tensor:
    """Return means_ND (fp32): each over rows [start, end) of `hidden_TD` (fp32, contiguous).

    `starts_N` and `ends_N` (int64, contiguous) are on the device of `hidden_TD`; segments are not
    empty, in the order of rows, and do not overlap.
    """
    if hidden_TD.device.type == "cpu":
        segments = zip(starts_N.tolist(), ends_N.tolist(), strict=True)
        return torch.stack([hidden_TD[start:end].mean(0) for start, end in segments])
    # One call that does not wait for the GPU. It adds row by row: over 36,000 rows the relative
    # error is 3e-6 instead of 6e-8, and a CPU takes 5 times as long. Every second segment is a gap.
    bounds_2N = torch.stack((starts_N, ends_N), 1).flatten()
    means = torch.segment_reduce(hidden_TD, "mean", offsets=bounds_2N, axis=0, unsafe=True)
    return means[::2]
