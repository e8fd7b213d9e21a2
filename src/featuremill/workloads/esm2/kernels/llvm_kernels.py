"""Rotary, residual sum with LayerNorm, SwiGLU's gate, and attention on a CPU, each one pass of
compiled code.

`reference` defines the first three, `llvm_attention` the last one. The bits of a row do not depend
on other rows, and those of a sequence not on other sequences.

Shape legend: T tokens, P positions, H heads, d width of a head, D width, F width of the feed
forward, G twice that.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

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
    DEGREES,
    TILES,
    AmxAttention,
    Attention,
    PairAttention,
)
from featuremill.workloads.esm2.kernels.reference import NORM_EPSILON
from featuremill.workloads.esm2.lanes import instructions

KINDS = {torch.float32: FP32, torch.float16: FP16, torch.bfloat16: BF16}
ATTENTION = {"amx": AmxAttention, "avx512_bf16": PairAttention}
"""The classes of attention for instructions that multiply bf16."""
_here = threading.local()
_compiling_attention = threading.Lock()
"""A lock, so that only one of the lanes compiles the function."""


def rotate_(
    qkv_T3Hd: Tensor,
    rotary_Pf2: Tensor,
    positions_T: Tensor,
    weight_2D: Tensor | None = None,
) -> None:
    """See `reference.rotate_`."""
    num_tokens, _, num_heads, head_dim = qkv_T3Hd.shape
    assert qkv_T3Hd.is_contiguous() and rotary_Pf2.is_contiguous() and positions_T.is_contiguous()
    assert rotary_Pf2.shape[1:] == (head_dim // 2, 2) and len(positions_T) == num_tokens
    is_normed = weight_2D is not None
    assert weight_2D is None or weight_2D.is_contiguous()
    turn = _rotate(instructions(torch.float32), qkv_T3Hd.dtype, num_heads, head_dim, is_normed)
    addresses = [each.data_ptr() for each in (qkv_T3Hd, rotary_Pf2, positions_T)]
    turn(*addresses, 0 if weight_2D is None else weight_2D.data_ptr(), num_tokens)


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


def gate(halves_TG: Tensor) -> Tensor:
    """See `reference.gate`."""
    assert halves_TG.is_contiguous()
    num_rows, width = len(halves_TG), halves_TG.shape[1] // 2
    gated_TF = torch.empty(num_rows, width, dtype=halves_TG.dtype)
    put = _gate(instructions(torch.float32), halves_TG.dtype, width)
    put(halves_TG.data_ptr(), gated_TF.data_ptr(), num_rows)
    return gated_TF


def attend(qkv_L3Hd: Tensor, heads: slice, context_LHd: Tensor) -> None:
    """Write the context of some heads of one sequence."""
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
    """Return working memory of this thread, of at least `num_bytes`."""
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
def _rotate(
    isa: str, dtype: torch.dtype, num_heads: int, head_dim: int, is_normed: bool
) -> Callable[..., None]:
    target, kind = TARGETS[isa], KINDS[dtype]
    function = Function("rotate", (*[POINTER] * 4, INT64))
    build = function.build
    qkv, turns, positions, weight, num_rows = function.arguments
    width = num_heads * head_dim
    # Normed query and key are separate passes; otherwise all heads are rotated in one pass.
    parts = (slice(0, width), slice(width, 2 * width)) if is_normed else (slice(0, 2 * width),)
    with function.loop(0, num_rows) as rows:
        row = function.at(qkv, kind, function.times(rows.index, 3 * width))
        position = function.load(positions, INT64, rows.index)
        turn = function.at(turns, FP32, function.times(position, head_dim))

        def norm_of(part: slice, row: Value = row) -> tuple[Value, Value]:
            def value(column: Value) -> Value:
                at = function.add(column, part.start)
                return function.wide(function.load(row, kind, at, target.lanes), kind)

            return _mean_and_scale(function, width, target.lanes, value, value)

        norms = [norm_of(part) for part in parts] if is_normed else [None]
        for start in range(0, head_dim, target.lanes):
            number = min(target.lanes, head_dim - start)
            both = function.load(turn, FP32, start, number)
            lanes = range(number)
            cosine = function.shuffle(both, both, [lane & ~1 for lane in lanes])
            minus = [lane | 1 if lane & 1 else number + lane + 1 for lane in lanes]
            sine = function.shuffle(both, build.fneg(both), minus)
            for part, norm in zip(parts, norms, strict=True):
                with function.loop(part.start + start, part.stop, head_dim) as heads:
                    pairs = function.wide(function.load(row, kind, heads.index, number), kind)
                    if norm:
                        mean, scale = (function.shuffle(each, each, lanes) for each in norm)
                        factor = function.load(weight, FP32, heads.index, number)
                        pairs = build.fmul(build.fsub(pairs, mean), build.fmul(scale, factor))
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

        def known(column: Value) -> Value:
            return function.load(row, FP32, column, number)

        mean, scale = _mean_and_scale(function, width, number, added, known)
        with function.loop(0, width, number) as columns:
            factor = build.fmul(scale, function.load(weight, FP32, columns.index, number))
            shift = function.load(bias, FP32, columns.index, number)
            centred = build.fsub(known(columns.index), mean)
            result = function.multiply_add(centred, factor, shift)
            at = function.add(start, columns.index)
            function.store(function.narrow(result, KINDS[dtype]), normed, KINDS[dtype], at)
    return function.compiled(target)


def _mean_and_scale(
    function: Function,
    width: int,
    lanes: int,
    first: Callable[[Value], Value],
    again: Callable[[Value], Value],
) -> tuple[Value, Value]:
    """Return a row's mean and inverse standard deviation, in all lanes. `first` returns the numbers
    from a column on, `again` returns them a second time."""
    build = function.build
    share = function.all_lanes(1 / width, lanes)
    # Several sums, as the latency of an addition is four cycles.
    together = next(count for count in (5, 4, 3, 2, 1) if width // lanes % count == 0)

    def mean_of(term: Callable[[Value], Value]) -> Value:
        zeros = [function.all_lanes(0.0, lanes)] * together
        with function.loop(0, width, together * lanes, zeros) as columns:
            for part, known in enumerate(columns.carried):
                column = function.add(columns.index, part * lanes)
                columns.next.append(build.fadd(known, term(column)))
        total = function.across(function.folded(build.fadd, columns.carried))
        return build.fmul(total, share)

    mean = mean_of(first)

    def squared(column: Value) -> Value:
        centred = build.fsub(again(column), mean)
        return build.fmul(centred, centred)

    variance = mean_of(squared)
    epsilon = function.all_lanes(NORM_EPSILON, lanes)
    root = function.call(f"llvm.sqrt.v{lanes}f32", variance.type, build.fadd(variance, epsilon))
    return mean, build.fdiv(function.all_lanes(1.0, lanes), root)


@functools.cache
def _gate(isa: str, dtype: torch.dtype, width: int) -> Callable[..., None]:
    target, kind = TARGETS[isa], KINDS[dtype]
    function = Function("gate", (POINTER, POINTER, INT64))
    build, number = function.build, target.lanes
    halves, gated, num_rows = function.arguments
    ones = function.all_lanes(1.0, number)
    to_base_2 = function.all_lanes(math.log2(math.e), number)
    with function.loop(0, num_rows) as rows:
        row = function.at(halves, kind, function.times(rows.index, 2 * width))
        out = function.at(gated, kind, function.times(rows.index, width))
        with function.loop(0, width, number) as columns:
            first, second = (
                function.wide(function.load(row, kind, at, number), kind)
                for at in (columns.index, function.add(columns.index, width))
            )
            # 1 / (1 + exp(-x)) of x below 0 is exp(x) / (1 + exp(x)): nothing overflows.
            minus = build.fneg(first)
            below = build.fneg(function.greater(first, minus))
            power = function.power_of_2(build.fmul(below, to_base_2), DEGREES[kind])
            is_above = build.fcmp_ordered(">", first, minus)
            factor = build.fdiv(build.select(is_above, ones, power), build.fadd(ones, power))
            result = build.fmul(build.fmul(first, factor), second)
            function.store(function.narrow(result, kind), out, kind, columns.index)
    return function.compiled(target)
