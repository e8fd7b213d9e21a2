"""Rotary, residual sum with LayerNorm, and attention on a CPU, each one pass of compiled code.

`reference` says what the first two compute, `llvm_attention` how the last one does. No row's bits
depend on other rows, and no sequence's on others.

Shape legend: T tokens, P positions, H heads, d width of a head, D width.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from featuremill.workloads.esm2.instructions import instructions
from featuremill.workloads.esm2.kernels.llvm import (
    BF16,
    FP16,
    FP32,
    INT64,
    POINTER,
    TARGETS,
    Function,
    Value,
)
from featuremill.workloads.esm2.kernels.llvm_attention import (
    TILES,
    AmxAttention,
    Attention,
    PairAttention,
)
from featuremill.workloads.esm2.kernels.reference import NORM_EPSILON

KINDS = {torch.float32: FP32, torch.float16: FP16, torch.bfloat16: BF16}
ATTENTION = {"amx": AmxAttention, "avx512_bf16": PairAttention}
"""By instructions, where these multiply narrower numbers than fp32."""
_here = threading.local()
_compiling_attention = threading.Lock()
"""Every lane wants it at once, and one is to compile it."""


def rotate_(qkv_T3Hd: Tensor, turns_Pf2: Tensor, positions_T: Tensor) -> None:
    """See `reference.rotate_`."""
    num_tokens, _, num_heads, head_dim = qkv_T3Hd.shape
    assert qkv_T3Hd.is_contiguous() and turns_Pf2.is_contiguous() and positions_T.is_contiguous()
    assert turns_Pf2.shape[1:] == (head_dim // 2, 2) and len(positions_T) == num_tokens
    turn = _rotate(instructions(torch.float32), qkv_T3Hd.dtype, num_heads, head_dim)
    turn(qkv_T3Hd.data_ptr(), turns_Pf2.data_ptr(), positions_T.data_ptr(), num_tokens)


def add_norm(
    residual_TD: Tensor,
    delta_TD: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """See `reference.add_norm`."""
    num_rows, width = residual_TD.shape
    assert residual_TD.is_contiguous() and weight_D.is_contiguous() and bias_D.is_contiguous()
    assert delta_TD is None or (delta_TD.is_contiguous() and delta_TD.shape == residual_TD.shape)
    normed_TD = torch.empty(num_rows, width, dtype=dtype)
    delta_dtype = None if delta_TD is None else delta_TD.dtype
    norm = _add_norm(instructions(torch.float32), width, delta_dtype, dtype)
    addresses = [each.data_ptr() for each in (residual_TD, weight_D, bias_D, normed_TD)]
    norm(0 if delta_TD is None else delta_TD.data_ptr(), *addresses, num_rows)
    return normed_TD


def attend(qkv_L3Hd: Tensor, heads: slice, context_LHd: Tensor) -> None:
    """Put down the context of some heads of one sequence."""
    length, _, num_heads, head_dim = qkv_L3Hd.shape
    assert qkv_L3Hd.is_contiguous() and context_LHd.is_contiguous()
    assert context_LHd.shape == (length, num_heads, head_dim)
    dtype = qkv_L3Hd.dtype
    with _compiling_attention:
        attention = _attend(instructions(dtype), dtype, num_heads, head_dim)
    memory = _memory(attention.num_bytes(length))
    first, last, _ = heads.indices(num_heads)
    addresses = [each.data_ptr() for each in (qkv_L3Hd, context_LHd, memory)]
    attention.run(*addresses, length, first, last, TILES)


def _memory(num_bytes: int) -> Tensor:
    """Return at least so much memory that is this thread's own."""
    known: Tensor | None = getattr(_here, "memory", None)
    if known is None or len(known) < num_bytes:
        known = _here.memory = torch.empty(num_bytes, dtype=torch.uint8)
    return known


class _Attend(NamedTuple):
    run: Callable[..., None]
    num_bytes: Callable[[int], int]


@functools.cache
def _attend(isa: str, dtype: torch.dtype, num_heads: int, head_dim: int) -> _Attend:
    form = ATTENTION.get(isa, Attention)
    attention = form(KINDS[dtype], num_heads, head_dim, TARGETS[isa].lanes)
    return _Attend(attention.write().compiled(TARGETS[isa]), attention.num_bytes)


@functools.cache
def _rotate(isa: str, dtype: torch.dtype, num_heads: int, head_dim: int) -> Callable[..., None]:
    target, kind = TARGETS[isa], KINDS[dtype]
    function = Function("rotate", (POINTER, POINTER, POINTER, INT64))
    build = function.build
    qkv, turns, positions, num_rows = function.arguments
    width = num_heads * head_dim
    with function.loop(0, num_rows) as rows:
        row = function.at(qkv, kind, function.times(rows.index, 3 * width))
        position = function.load(positions, INT64, rows.index)
        turn = function.at(turns, FP32, function.times(position, head_dim))
        for start in range(0, head_dim, target.lanes):
            number = min(target.lanes, head_dim - start)
            both = function.load(turn, FP32, start, number)
            lanes = range(number)
            cosine = function.shuffle(both, both, [lane & ~1 for lane in lanes])
            minus = [lane | 1 if lane & 1 else number + lane + 1 for lane in lanes]
            sine = function.shuffle(both, build.fneg(both), minus)
            with function.loop(start, 2 * width, head_dim) as heads:
                pairs = function.wide(function.load(row, kind, heads.index, number), kind)
                swapped = function.shuffle(pairs, pairs, [lane ^ 1 for lane in lanes])
                turned = function.multiply_add(pairs, cosine, build.fmul(swapped, sine))
                function.store(function.narrow(turned, kind), row, kind, heads.index)
    return function.compiled(target)


@functools.cache
def _add_norm(
    isa: str, width: int, delta_dtype: torch.dtype | None, dtype: torch.dtype
) -> Callable[..., None]:
    target = TARGETS[isa]
    function = Function("add_norm", (*[POINTER] * 5, INT64))
    build, number = function.build, target.lanes
    delta, residual, weight, bias, normed, num_rows = function.arguments
    zero = function.all_lanes(0.0, number)
    share = function.all_lanes(1 / width, number)
    # Sums side by side: an addition takes four times as long as the next one can begin after.
    together = next(count for count in (5, 4, 3, 2, 1) if width // number % count == 0)

    def sum_of(row: Value, term: Callable[[Value | int], Value]) -> Value:
        with function.loop(0, width, together * number, [zero] * together) as columns:
            for part, known in enumerate(columns.carried):
                column = function.add(columns.index, part * number)
                columns.next.append(build.fadd(known, term(column)))
        return function.across(function.folded(build.fadd, columns.carried))

    with function.loop(0, num_rows) as rows:
        start = function.times(rows.index, width)
        row = function.at(residual, FP32, start)

        def added(column: Value) -> Value:
            known = function.load(row, FP32, column, number)
            if delta_dtype is None:
                return known
            kind = KINDS[delta_dtype]
            at = function.add(start, column)
            change = function.wide(function.load(delta, kind, at, number), kind)
            known = build.fadd(known, change)
            function.store(known, row, FP32, column)
            return known

        mean = build.fmul(sum_of(row, added), share)

        def centred(column: Value) -> Value:
            return build.fsub(function.load(row, FP32, column, number), mean)

        def squared(column: Value) -> Value:
            return build.fmul(centred(column), centred(column))

        variance = build.fmul(sum_of(row, squared), share)
        epsilon = function.all_lanes(NORM_EPSILON, number)
        root = function.call(
            f"llvm.sqrt.v{number}f32", variance.type, build.fadd(variance, epsilon)
        )
        scale = build.fdiv(function.all_lanes(1.0, number), root)
        with function.loop(0, width, number) as columns:
            factor = build.fmul(scale, function.load(weight, FP32, columns.index, number))
            shift = function.load(bias, FP32, columns.index, number)
            result = function.multiply_add(centred(columns.index), factor, shift)
            at = function.add(start, columns.index)
            function.store(function.narrow(result, KINDS[dtype]), normed, KINDS[dtype], at)
    return function.compiled(target)
