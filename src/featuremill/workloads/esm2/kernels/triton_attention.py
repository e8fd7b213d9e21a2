"""Attention within the sequences of a pack as one Triton kernel, which rotates the query when it is
loaded. Keys are rotated in place before, as many programs load each.

A program computes some queries of one head of one sequence, over all its keys in order. Its tiles
depend only on the device and the width of a head, and begin with the sequence, so the bits of a
sequence do not depend on others in the pack.

Shape legend: T tokens, P positions, H heads, d width of a head, f = d/2 pairs of a head, N pieces
of sequences; in kernels M queries and K keys of a tile, C columns of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from featuremill.workloads.esm2.kernels.triton_kernels import rotate_
from featuremill.workloads.esm2.packing import PIECE_ROWS, Packed


class Tiling(NamedTuple):
    """The sizes of tiles, and the numbers of warps and stages."""

    queries: int = 128
    """Queries of a program: a divisor of `PIECE_ROWS`."""
    keys: int = 64
    """Keys of a step. Sums are by step, so another number changes the bits."""
    warps: int = 4
    stages: int = 3
    """Number of steps in flight: one is computed, the others are loaded ahead."""


CAUTIOUS = Tiling(warps=8, stages=2)
"""A tiling for every GPU since Ampere, some of which have 99 KB of shared memory per block."""
FASTER: Mapping[tuple[tuple[int, int], int], Tiling] = {
    ((9, 0), 64): Tiling(64, 64, 4, 3),
    ((9, 0), 32): Tiling(64, 64, 4, 3),
}
"""The fastest tiling by a GPU's capability and `columns`, if `bench.attention` measured the kernel
to be faster than FlashAttention; otherwise FlashAttention has priority."""


def columns(head_dim: int) -> int:
    """Return the width of a tile for heads of this width."""
    return max(16, 1 << (head_dim - 1).bit_length())


def attend(
    qkv_T3Hd: Tensor, pack: Packed, rotary_Pf2: Tensor | None = None, *, tiling: Tiling
) -> Tensor:
    """Return context_THd of query, key and value (bf16 or fp16) by softmax attention within each
    sequence of the pack, its padding included.

    With `rotary_Pf2`, query and key are rotated as by `reference.rotate_`, and `qkv_T3Hd` may be
    overwritten.
    """
    num_tokens, _, num_heads, head_dim = qkv_T3Hd.shape
    assert qkv_T3Hd.is_contiguous() and pack.pieces_N3.is_contiguous()
    assert PIECE_ROWS % tiling.queries == 0
    # Within a sequence, kernels count in 32 bits.
    assert pack.longest * 3 * num_heads * head_dim < 2**31
    if rotary_Pf2 is not None:
        assert rotary_Pf2.is_contiguous() and rotary_Pf2.shape[1:] == (head_dim // 2, 2)
        assert len(rotary_Pf2) >= pack.longest
        rotate_(qkv_T3Hd, rotary_Pf2, pack.positions_T, only_keys=True)
    context_THd = torch.empty(
        num_tokens, num_heads, head_dim, dtype=qkv_T3Hd.dtype, device=qkv_T3Hd.device
    )
    num_parts = PIECE_ROWS // tiling.queries
    num_programs = len(pack.pieces_N3) * num_parts * num_heads
    assert num_programs < 2**31
    _attend[(num_programs,)](
        qkv_T3Hd,
        rotary_Pf2,
        pack.pieces_N3,
        context_THd,
        head_dim**-0.5 * math.log2(math.e),
        num_heads,
        head_dim,
        num_parts,
        tiling.queries,
        tiling.keys,
        columns(head_dim),
        rotary_Pf2 is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return context_THd


@triton.jit  # type: ignore[untyped-decorator]
def _attend(
    qkv: tl.tensor,
    turns: tl.tensor,
    pieces: tl.tensor,
    context: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PARTS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROTATES: tl.constexpr,
) -> None:
    """Attend with a tile of queries of one head; programs of one tile's heads are adjacent."""
    program = tl.program_id(0)
    head = program % HEADS
    part = program // HEADS % PARTS
    piece = pieces + program // (HEADS * PARTS) * 3
    start = tl.load(piece)
    length = tl.load(piece + 1) - start
    first = tl.load(piece + 2) + part * QUERIES
    if first >= length:
        return
    row = start.to(tl.int64) * (3 * HEADS * HEAD_DIM) + head * HEAD_DIM
    query = qkv + row
    key = query + HEADS * HEAD_DIM
    value = key + HEADS * HEAD_DIM

    query_MC = _rows(query, turns, first, length, HEADS, HEAD_DIM, QUERIES, COLUMNS, ROTATES)
    largest_M = tl.full((QUERIES,), float("-inf"), tl.float32)
    sum_M = tl.zeros((QUERIES,), tl.float32)
    total_MC = tl.zeros((QUERIES, COLUMNS), tl.float32)
    for begin in range(0, length, KEYS):
        key_KC = _rows(key, turns, begin, length, HEADS, HEAD_DIM, KEYS, COLUMNS, False)
        scores_MK = tl.dot(query_MC, key_KC.trans())
        is_real_K = begin + tl.arange(0, KEYS) < length
        scores_MK = tl.where(is_real_K[None, :], scores_MK, float("-inf"))
        # Each step has a real key, so the largest score is finite.
        new_M = tl.maximum(largest_M, tl.max(scores_MK, 1) * SCALE)
        kept_M = tl.exp2(largest_M - new_M)
        weights_MK = tl.exp2(scores_MK * SCALE - new_M[:, None])
        value_KC = _rows(value, turns, begin, length, HEADS, HEAD_DIM, KEYS, COLUMNS, False)
        total_MC = tl.dot(weights_MK.to(value_KC.dtype), value_KC, total_MC * kept_M[:, None])
        sum_M = sum_M * kept_M + tl.sum(weights_MK, 1)
        largest_M = new_M
    row_M = first + tl.arange(0, QUERIES)
    column_C = tl.arange(0, COLUMNS)
    at_MC = row_M[:, None] * (HEADS * HEAD_DIM) + column_C[None, :]
    to = context + start.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM
    is_real_MC = (row_M < length)[:, None] & (column_C < HEAD_DIM)[None, :]
    context_MC = (total_MC / sum_M[:, None]).to(context.dtype.element_ty)
    tl.store(to + at_MC, context_MC, is_real_MC)


@triton.jit  # type: ignore[untyped-decorator]
def _rows(
    base: tl.tensor,
    turns: tl.tensor,
    begin: tl.tensor,
    length: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROTATES: tl.constexpr,
) -> tl.tensor:
    """Return rows of one head from position `begin`, rotated (also in memory) if ROTATES; rows past
    `length` are 0."""
    row_R = begin + tl.arange(0, ROWS)
    column_C = tl.arange(0, COLUMNS)
    if ROTATES:
        # Vectors of 4, as those of `turns`: layouts would have to be changed otherwise.
        column_C = tl.max_contiguous(column_C, 4)
    is_real_RC = (row_R < length)[:, None]
    if COLUMNS != HEAD_DIM:
        is_real_RC = is_real_RC & (column_C < HEAD_DIM)[None, :]
    at_RC = base + row_R[:, None] * (3 * HEADS * HEAD_DIM) + column_C[None, :]
    rows_RC = tl.load(at_RC, is_real_RC, 0.0)
    if ROTATES:
        of_RC = turns + row_R[:, None] * HEAD_DIM + column_C[None, :]
        turns_RC = tl.load(of_RC, is_real_RC, 0.0)
        cosine_Rf, sine_Rf = tl.split(turns_RC.reshape(ROWS, COLUMNS // 2, 2))
        wide_RC = rows_RC.to(tl.float32)
        real_Rf, imaginary_Rf = tl.split(wide_RC.reshape(ROWS, COLUMNS // 2, 2))
        turned_Rf2 = tl.join(
            (real_Rf * cosine_Rf - imaginary_Rf * sine_Rf).to(rows_RC.dtype),
            (real_Rf * sine_Rf + imaginary_Rf * cosine_Rf).to(rows_RC.dtype),
        )
        tl.store(at_RC, turned_Rf2.reshape(ROWS, COLUMNS), is_real_RC)
        # Loaded again, as what is split and joined has a layout that products do not take.
        tl.debug_barrier()
        rows_RC = tl.load(at_RC, is_real_RC, 0.0)
    return rows_RC
