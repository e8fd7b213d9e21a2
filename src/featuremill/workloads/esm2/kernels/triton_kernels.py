"""Triton kernels for rotary, residual sum with LayerNorm, SwiGLU's gate, and means of rows, each of
which reads its data once.

`reference` defines the operations. Tiles and warps depend only on shapes, without autotuning, so
results do not depend on timing. The bits of a row do not depend on the number of rows.

Shape legend: T tokens, P positions, H heads, d width of a head, f = d/2 pairs of a head, D width, F
width of the feed forward, G twice that, N segments; in kernels R rows and C columns of a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from featuremill.workloads.esm2.kernels.reference import NORM_EPSILON

WARPS = 4
ELEMENTS_PER_WARP = 512
"""Elements per warp: 16 per thread, or two loads of 16 bytes in 16 bits, four in 32. Sums are by
warp, so another number changes the bits. On an H200, others made LayerNorm at most a sixth faster,
a batch less than 1 % (2026-11-26-NVIDIA-H200-norms.json in bench/results)."""


def rotate_(
    qkv_T3Hd: Tensor,
    rotary_Pf2: Tensor,
    positions_T: Tensor,
    weight_2D: Tensor | None = None,
    only_keys: bool = False,
) -> None:
    """See `reference.rotate_`; with `only_keys`, the query is not changed."""
    num_tokens, _, num_heads, head_dim = qkv_T3Hd.shape
    assert qkv_T3Hd.is_contiguous() and rotary_Pf2.is_contiguous() and positions_T.is_contiguous()
    assert rotary_Pf2.shape[1:] == (head_dim // 2, 2) and len(positions_T) == num_tokens
    if weight_2D is not None:
        assert weight_2D.is_contiguous() and weight_2D.shape == (2, num_heads * head_dim)
        num_rows, width = 2 * num_tokens, weight_2D.shape[1]
        columns = triton.next_power_of_2(width)
        rows = max(1, WARPS * ELEMENTS_PER_WARP // columns)
        assert num_rows < 2**31
        _norm_rotate[(triton.cdiv(num_rows, rows),)](
            qkv_T3Hd,
            weight_2D,
            rotary_Pf2,
            positions_T,
            num_rows,
            width,
            head_dim,
            NORM_EPSILON,
            rows,
            columns,
            num_warps=rows * columns // ELEMENTS_PER_WARP,
        )
        return
    columns = triton.next_power_of_2(head_dim)
    rows = WARPS * ELEMENTS_PER_WARP // columns
    num_rows = num_tokens * (1 if only_keys else 2) * num_heads
    assert num_rows < 2**31
    _rotate[(triton.cdiv(num_rows, rows),)](
        qkv_T3Hd,
        rotary_Pf2,
        positions_T,
        num_rows,
        num_heads,
        head_dim,
        only_keys,
        rows,
        columns,
        num_warps=WARPS,
    )


def add_norm(
    residual_TD: Tensor,
    delta_TD: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """See `reference.add_norm`."""
    assert delta_TD is None or (delta_TD.is_contiguous() and delta_TD.shape == residual_TD.shape)
    return _launch_norm(residual_TD, delta_TD, None, weight_D, bias_D, dtype)


def norm(
    residual_TD: Tensor,
    running_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """See `reference.norm`."""
    assert running_D is None or (running_D.is_contiguous() and running_D.shape == weight_D.shape)
    return _launch_norm(residual_TD, None, running_D, weight_D, bias_D, dtype)


def _launch_norm(
    residual_TD: Tensor,
    delta_TD: Tensor | None,
    running_D: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    num_rows, width = residual_TD.shape
    assert residual_TD.is_contiguous() and weight_D.is_contiguous() and bias_D.is_contiguous()
    normed_TD = torch.empty(num_rows, width, dtype=dtype, device=residual_TD.device)
    columns = triton.next_power_of_2(width)
    rows = max(1, WARPS * ELEMENTS_PER_WARP // columns)
    _add_norm[(triton.cdiv(num_rows, rows),)](
        residual_TD,
        delta_TD,
        running_D,
        weight_D,
        bias_D,
        normed_TD,
        num_rows,
        width,
        NORM_EPSILON,
        rows,
        columns,
        num_warps=rows * columns // ELEMENTS_PER_WARP,
    )
    return normed_TD


def gate(halves_TG: Tensor) -> Tensor:
    """See `reference.gate`."""
    assert halves_TG.is_contiguous()
    num_rows, width = len(halves_TG), halves_TG.shape[1] // 2
    gated_TF = torch.empty(num_rows, width, dtype=halves_TG.dtype, device=halves_TG.device)
    columns = WARPS * ELEMENTS_PER_WARP
    assert num_rows < 2**31
    _gate[(num_rows, triton.cdiv(width, columns))](
        halves_TG, gated_TF, width, columns, num_warps=WARPS
    )
    return gated_TF


def mean_rows(hidden_TD: Tensor, starts_N: Tensor, ends_N: Tensor) -> Tensor:
    """See `reference.mean_rows`; this one does not wait for the GPU."""
    assert hidden_TD.is_contiguous() and starts_N.is_contiguous() and ends_N.is_contiguous()
    num_segments, width = len(starts_N), hidden_TD.shape[1]
    means_ND = torch.empty(num_segments, width, device=hidden_TD.device)
    columns, rows = 64, WARPS * ELEMENTS_PER_WARP // 64
    _mean_rows[(num_segments, triton.cdiv(width, columns))](
        hidden_TD, starts_N, ends_N, means_ND, width, rows, columns, num_warps=WARPS
    )
    return means_ND


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _rotate(
    qkv: tl.tensor,
    turns: tl.tensor,
    positions: tl.tensor,
    num_rows: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ONLY_KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Rotate a tile of rows, each the query or key of one head of one token.

    All heads of query and key, or of the key, are numbered as rows, token by token; the value is
    skipped.
    """
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column_C = tl.arange(0, COLUMNS)
    OF_TOKEN: tl.constexpr = HEADS if ONLY_KEYS else 2 * HEADS
    SKIPPED: tl.constexpr = HEADS if ONLY_KEYS else 0
    token_R = (row_R // OF_TOKEN).to(tl.int64)
    start_R = (token_R * (3 * HEADS) + SKIPPED + row_R % OF_TOKEN) * HEAD_DIM
    is_real_R = row_R < num_rows
    is_real_RC = is_real_R[:, None] & (column_C < HEAD_DIM)[None, :]
    position_R = tl.load(positions + token_R, is_real_R, 0)

    at_RC = turns + position_R[:, None] * HEAD_DIM + column_C[None, :]
    turns_RC = tl.load(at_RC, is_real_RC, 0.0)
    cosine_Rf, sine_Rf = tl.split(turns_RC.reshape(ROWS, COLUMNS // 2, 2))
    # A program loads all of its tile before it stores, and no other program uses that tile.
    at_RC = qkv + start_R[:, None] + column_C[None, :]
    pairs_RC = tl.load(at_RC, is_real_RC, 0.0).to(tl.float32)
    real_Rf, imaginary_Rf = tl.split(pairs_RC.reshape(ROWS, COLUMNS // 2, 2))
    turned_Rf2 = tl.join(
        real_Rf * cosine_Rf - imaginary_Rf * sine_Rf,
        real_Rf * sine_Rf + imaginary_Rf * cosine_Rf,
    )
    tl.store(at_RC, turned_Rf2.reshape(ROWS, COLUMNS).to(qkv.dtype.element_ty), is_real_RC)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _norm_rotate(
    qkv: tl.tensor,
    weight: tl.tensor,
    turns: tl.tensor,
    positions: tl.tensor,
    num_rows: tl.tensor,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    EPSILON: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Normalize and rotate a tile of whole rows, each the query or key of one token."""
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column_C = tl.max_contiguous(tl.arange(0, COLUMNS), 4)
    token_R = (row_R // 2).to(tl.int64)
    part_R = row_R % 2
    is_real_R = row_R < num_rows
    is_real_RC = is_real_R[:, None] & (column_C < WIDTH)[None, :]
    position_R = tl.load(positions + token_R, is_real_R, 0)
    at_RC = qkv + ((token_R * 3 + part_R) * WIDTH)[:, None] + column_C[None, :]

    row_RC = tl.load(at_RC, is_real_RC, 0.0).to(tl.float32)
    mean_R = tl.sum(row_RC, 1) / WIDTH
    centred_RC = tl.where(is_real_RC, row_RC - mean_R[:, None], 0.0)
    variance_R = tl.sum(centred_RC * centred_RC, 1) / WIDTH
    scale_R = tl.rsqrt(variance_R + EPSILON)
    of_part_RC = weight + (part_R * WIDTH)[:, None] + column_C[None, :]
    normed_RC = centred_RC * scale_R[:, None] * tl.load(of_part_RC, is_real_RC, 0.0)

    of_position_RC = turns + position_R[:, None] * HEAD_DIM + (column_C % HEAD_DIM)[None, :]
    turns_RC = tl.load(of_position_RC, is_real_RC, 0.0)
    cosine_Rf, sine_Rf = tl.split(turns_RC.reshape(ROWS, COLUMNS // 2, 2))
    real_Rf, imaginary_Rf = tl.split(normed_RC.reshape(ROWS, COLUMNS // 2, 2))
    turned_Rf2 = tl.join(
        real_Rf * cosine_Rf - imaginary_Rf * sine_Rf,
        real_Rf * sine_Rf + imaginary_Rf * cosine_Rf,
    )
    tl.store(at_RC, turned_Rf2.reshape(ROWS, COLUMNS).to(qkv.dtype.element_ty), is_real_RC)


@triton.jit  # type: ignore[untyped-decorator]
def _gate(
    halves: tl.tensor,
    gated: tl.tensor,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Store SiLU of the first half of some columns of a row times the second half."""
    row = tl.program_id(0).to(tl.int64)
    column_C = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_real_C = column_C < WIDTH
    at_C = halves + row * (2 * WIDTH) + column_C
    first_C = tl.load(at_C, is_real_C, 0.0).to(tl.float32)
    second_C = tl.load(at_C + WIDTH, is_real_C, 0.0).to(tl.float32)
    gated_C = first_C * tl.sigmoid(first_C) * second_C
    tl.store(gated + row * WIDTH + column_C, gated_C.to(gated.dtype.element_ty), is_real_C)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _add_norm(
    residual: tl.tensor,
    delta: tl.tensor,
    running: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    normed: tl.tensor,
    num_rows: tl.tensor,
    WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Add a tile of whole rows to the residual stream and normalize them.

    `delta` may be None, and so may `running`, which is added to each row but not to the stream.
    """
    row_R = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    # Vectors of 4, for both types: with 8 for 16 bits and 4 for 32 bits, the tile would change its
    # layout through shared memory at every load and store (3 times the barriers).
    column_C = tl.max_contiguous(tl.arange(0, COLUMNS), 4)
    is_column_C = column_C < WIDTH
    is_real_RC = (row_R < num_rows)[:, None] & is_column_C[None, :]
    at_RC = row_R[:, None] * WIDTH + column_C[None, :]

    sum_RC = tl.load(residual + at_RC, is_real_RC, 0.0)
    if delta is not None:
        sum_RC += tl.load(delta + at_RC, is_real_RC, 0.0).to(tl.float32)
        tl.store(residual + at_RC, sum_RC, is_real_RC)
    if running is not None:
        sum_RC += tl.load(running + column_C, is_column_C, 0.0)[None, :]
    mean_R = tl.sum(sum_RC, 1) / WIDTH
    # The variance of the values minus their mean: E[x²] − E[x]² would cancel.
    centred_RC = tl.where(is_real_RC, sum_RC - mean_R[:, None], 0.0)
    variance_R = tl.sum(centred_RC * centred_RC, 1) / WIDTH
    scale_R = tl.rsqrt(variance_R + EPSILON)

    weight_C = tl.load(weight + column_C, is_column_C, 0.0)
    bias_C = tl.load(bias + column_C, is_column_C, 0.0)
    normed_RC = centred_RC * scale_R[:, None] * weight_C[None, :] + bias_C[None, :]
    tl.store(normed + at_RC, normed_RC.to(normed.dtype.element_ty), is_real_RC)


@triton.jit(do_not_specialize_on_alignment=["starts", "ends"])  # type: ignore[untyped-decorator]
def _mean_rows(
    hidden: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    means: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Average some columns of one segment: ROWS partial sums, then their sum."""
    segment = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + segment), tl.load(ends + segment)
    column_C = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column_C = column_C < WIDTH
    total_RC = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(start, end, ROWS):
        row_R = first + tl.arange(0, ROWS)
        is_real_RC = (row_R < end)[:, None] & is_column_C[None, :]
        total_RC += tl.load(hidden + row_R[:, None] * WIDTH + column_C[None, :], is_real_RC, 0.0)
    mean_C = tl.sum(total_RC, 0) / (end - start).to(tl.float32)
    tl.store(means + segment * WIDTH + column_C, mean_C, is_column_C)
