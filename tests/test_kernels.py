"""The encoder's small operations, in PyTorch, in Triton and compiled for a CPU, against a reference
in float64.

Where there is no GPU, Triton's interpreter runs the kernels on the CPU. It has to be on before
Triton is imported, and stays on: it gets a process of its own.
"""

import multiprocessing
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch

from featuremill.workload.spread import on_device
from featuremill.workloads.esm2 import kernels, packing
from featuremill.workloads.esm2.kernels import reference
from featuremill.workloads.esm2.lanes import instructions, is_amx_granted

HEAD_DIMS = (16, 24, 32, 64, 128)
WIDTHS = (128, 320, 480, 640, 1280, 2560, 5120)
LENGTHS = (1, 17, 64, 333)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NUM_POSITIONS = 1100
BITS = {2: torch.int16, 4: torch.int32}


# What is checked, of the module `ours` on `device`.


def triton_kernels():
    from featuremill.workloads.esm2.kernels import triton_kernels

    return triton_kernels


def bits(tensor):
    return tensor.view(BITS[tensor.element_size()])


def guarded(*shape, dtype, device):
    """Return a tensor, and a function that tells whether the rows beside it are untouched."""
    whole = torch.full((shape[0] + 64, *shape[1:]), 7, dtype=dtype, device=device)
    before = bits(whole).clone()

    def is_kept():
        return all(torch.equal(bits(whole)[r], before[r]) for r in (slice(32), slice(-32, None)))

    return whole[32:-32], is_kept


def made_between_guards(ours, name, shape, dtype, *arguments):
    """Return what the kernel `name` makes, given memory between guards for it.

    A twin makes its result in torch's own operations: there is nothing to guard.
    """
    if ours is reference:
        return getattr(ours, name)(*arguments)
    device = arguments[0].device
    result, is_kept = guarded(*shape, dtype=dtype, device=device)
    with mock.patch.object(torch, "empty", return_value=result) as empty:
        found = getattr(ours, name)(*arguments)
    [asked] = empty.call_args_list
    assert asked.args == shape and asked.kwargs.get("dtype", FP32) == dtype
    assert found is result and is_kept()
    return found


def within(found, expected, bound):
    """Tell whether `found` is `expected` (float64), rounded, give or take `bound`."""
    kind = torch.finfo(found.dtype)
    # The interpreter cuts bf16 off in place of rounding it; kernels that are compiled do not.
    units = 1 if found.dtype == BF16 and "TRITON_INTERPRET" in os.environ else 0.5
    rounding = units * kind.eps * expected.abs() + kind.smallest_normal * kind.eps
    return bool(((found.double() - expected).abs() <= 1.01 * rounding + bound).all())


def turns_of(head_dim):
    frequencies = 10000 ** -(torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(NUM_POSITIONS), frequencies)
    return torch.stack((angles.cos(), angles.sin()), 2)


def turned_by(turns, positions, rows):
    """Return rows (tokens, ..., head) in float64, their pairs turned."""
    cosine, sine = turns[positions, None, None].double().unbind(-1)
    even, odd = rows.double().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


def normed(rows):
    """Return rows in float64, normalized, and by what they were multiplied."""
    centred = rows - rows.mean(-1, keepdim=True)
    scale = 1 / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred * scale, scale


def positions_of(num_tokens, generator):
    """Return what several sequences give, end to end, and the first and last position."""
    lengths = [1, 7, 2, 130, NUM_POSITIONS]
    whole = torch.cat([torch.arange(length) for length in lengths])
    start = int(torch.randint(len(whole) - num_tokens, (), generator=generator))
    positions = whole[start : start + num_tokens].clone()
    positions[0], positions[-1] = 0, NUM_POSITIONS - 1
    return positions


def numbers(*shape, generator):
    """Return normal numbers, some of them huge and some tiny, none past fp16."""
    scales = torch.tensor([1.0, 1.0, 1e-3, 1e-7, 0.0, 1e3])
    which = torch.randint(len(scales), shape, generator=generator)
    return torch.randn(shape, generator=generator) * scales[which]


def check_rotate(ours, dtype, head_dim, num_tokens, num_heads=3, device="cpu"):
    generator = torch.Generator().manual_seed(num_tokens)
    shape = (num_tokens, 3, num_heads, head_dim)
    qkv, is_kept = guarded(*shape, dtype=dtype, device=device)
    qkv.copy_(numbers(*shape, generator=generator))
    turns, positions = turns_of(head_dim), positions_of(num_tokens, generator)
    before = qkv.clone()
    ours.rotate_(qkv, turns.to(device), positions.to(device))

    qkv, before = qkv.cpu(), before.cpu()
    expected = turned_by(turns, positions, before[:, :2])
    of_pairs = before[:, :2].double().abs().unflatten(-1, (-1, 2)).sum(-1)
    error = 2**-22 * of_pairs.repeat_interleave(2, -1)
    assert within(qkv[:, :2], expected, error)
    assert torch.equal(bits(qkv[:, 2]), bits(before[:, 2])), "the value was touched"
    assert is_kept()
    reference.rotate_(before, turns, positions)
    twin = before[:, :2].double()
    assert within(qkv[:, :2], twin, error + torch.finfo(dtype).eps / 2 * twin.abs())


def check_norm_rotate(ours, dtype, num_heads, head_dim, num_tokens, device="cpu"):
    """Query and key are normed before they are turned, each with its own weights."""
    generator = torch.Generator().manual_seed(num_tokens)
    width = num_heads * head_dim
    qkv, is_kept = guarded(num_tokens, 3, num_heads, head_dim, dtype=dtype, device=device)
    rows = torch.randn(num_tokens, 3, width, generator=generator)
    rows *= torch.tensor([1.0, 1e-3, 50.0])[:, None]  # epsilon counts for the key
    if num_tokens > 8:
        rows[1] += 30
        rows[2] = 3.0
        rows[3, :, 7] = 3000
        rows[4] = 0
    qkv.copy_(rows.view(qkv.shape))
    weight = torch.randn(2, width, generator=generator)
    turns, positions = turns_of(head_dim), positions_of(num_tokens, generator)
    before = qkv.cpu().clone()
    ours.rotate_(qkv, turns.to(device), positions.to(device), weight.to(device))

    qkv = qkv.cpu()
    wide = before[:, :2].double().flatten(2)
    found, scale = normed(wide)
    heads = (found * weight).unflatten(2, (num_heads, head_dim))
    expected = turned_by(turns, positions, heads)
    largest = 1 + wide.abs().amax(2, keepdim=True) * scale
    error = (2**-19 * weight.abs().amax(1, keepdim=True) * largest + 2**-21).unsqueeze(-1)
    assert within(qkv[:, :2], expected, error)
    assert torch.equal(bits(qkv[:, 2]), bits(before[:, 2])), "the value was touched"
    assert is_kept()


def check_gate(ours, dtype, width, num_tokens, device="cpu"):
    generator = torch.Generator().manual_seed(width + num_tokens)
    halves, is_kept = guarded(num_tokens, 2 * width, dtype=dtype, device=device)
    halves.copy_(numbers(num_tokens, 2 * width, generator=generator) * 4)
    halves[0, :8] = torch.tensor([0.0, -0.0, 80.0, -80.0, 100.0, -100.0, 3e3, -3e3])
    before = halves.clone()
    shape = (num_tokens, width)
    found = made_between_guards(ours, "gate", shape, dtype, halves)
    first, second = before.cpu().double().chunk(2, 1)
    expected = first * torch.sigmoid(first) * second
    # An exponent is rounded as what it is; and of bf16 the exponential is a shorter polynomial.
    of_exponent = 2**-23 * (6 + 2 * first.abs())
    error = (of_exponent + {FP32: 0, FP16: 1e-6, BF16: 1e-4}[dtype]) * expected.abs()
    error += 2**-125 * (1 + (first * second).abs())
    found = found.cpu()
    assert bool((found.isinf() == (expected.abs() > torch.finfo(dtype).max)).all())
    is_number = ~found.isinf()
    assert within(found[is_number], expected[is_number], error[is_number])
    assert torch.equal(bits(halves), bits(before)) and is_kept()


def rows_for_norm(num_tokens, width, generator):
    """Return rows each of which is hard in its own way."""
    rows = torch.randn(num_tokens, width, generator=generator)
    if num_tokens > 8:
        rows[1] += 1000  # E[x²] − E[x]² would cancel
        rows[2] = 3.0  # no variance but epsilon
        rows[3] *= 1e-3  # epsilon is 10 times the variance
        rows[4] *= 1e15
        rows[5] = 0
        rows[6, 7] = 3000  # one outlier, as ESM-2 has them
        rows[7] *= 1e-20
    return rows


def check_add_norm(ours, width, num_tokens, delta_dtype, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(width + num_tokens)
    shape = (num_tokens, width)
    residual, is_kept = guarded(*shape, dtype=FP32, device=device)
    residual.copy_(rows_for_norm(num_tokens, width, generator))
    weight = torch.randn(width, generator=generator).to(device)
    bias = torch.randn(width, generator=generator).to(device)
    before, delta = residual.clone(), None
    if delta_dtype:
        delta, is_delta_kept = guarded(*shape, dtype=delta_dtype, device=device)
        delta.copy_(torch.randn(shape, generator=generator))
        delta[5:7] = 0
        delta_before = delta.clone()
    twin_residual = before.clone()
    twin = reference.add_norm(twin_residual, delta, weight, bias, dtype)
    given = (residual, delta, weight, bias, dtype)
    found = made_between_guards(ours, "add_norm", shape, dtype, *given)

    expected = before if delta is None else before + delta.float()
    assert torch.equal(bits(residual), bits(expected))
    assert torch.equal(bits(residual), bits(twin_residual))
    if delta is not None:
        assert torch.equal(bits(delta), bits(delta_before)) and is_delta_kept()
    wide, weight, bias = expected.double(), weight.double(), bias.double()
    right, scale = normed(wide)
    error = 2**-20 * weight.abs() * (1 + wide.abs().amax(1, keepdim=True) * scale) + 2**-22
    assert found.dtype == dtype
    assert within(found, right * weight + bias, error)
    twin = twin.double()
    assert within(found, twin, 2 * error + torch.finfo(dtype).eps / 2 * twin.abs())
    assert is_kept()


def check_norm(ours, width, num_tokens, dtype, device="cpu"):
    """What is added to each row is normalized with it, and the stream does not get it."""
    generator = torch.Generator().manual_seed(width + num_tokens)
    shape = (num_tokens, width)
    residual, is_kept = guarded(*shape, dtype=FP32, device=device)
    residual.copy_(rows_for_norm(num_tokens, width, generator))
    running, weight, bias = torch.randn(3, width, generator=generator).to(device)
    before = residual.clone()
    for given in (running, None):
        arguments = (residual, given, weight, bias, dtype)
        found = made_between_guards(ours, "norm", shape, dtype, *arguments)
        assert torch.equal(bits(residual), bits(before)) and is_kept()
        other = before.clone()
        delta = None if given is None else given.expand(shape).contiguous()
        expected = reference.add_norm(other, delta, weight, bias, dtype).double()
        scale = 1 / (other.double().var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        largest = other.double().abs().amax(1, keepdim=True)
        error = 2**-19 * weight.double().abs() * (1 + largest * scale) + 2**-21
        bound = error + torch.finfo(dtype).eps / 2 * expected.abs()
        assert within(found, expected, bound)


def check_rows_do_not_meet(ours, device="cpu"):
    """The bits of a row are the same among others, alone, and at another place."""
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(40, 3, 3, 24, generator=generator).bfloat16().to(device)
    turns = turns_of(24).to(device)
    positions = torch.arange(40, device=device) * 7 % 11
    alone = [qkv[start:].clone() for start in (13, 39)]
    for part in (qkv, *alone):
        ours.rotate_(part, turns, positions[-len(part) :])
        assert torch.equal(part, qkv[-len(part) :])
    qkv = torch.randn(40, 3, 4, 16, generator=generator).bfloat16().to(device)
    turns, weight = turns_of(16).to(device), torch.randn(2, 64, generator=generator).to(device)
    gated = ours.gate(qkv.view(40, -1))
    alone = [qkv[start:].clone() for start in (13, 39)]
    ours.rotate_(qkv, turns, positions, weight)
    for part in alone:
        assert torch.equal(ours.gate(part.view(len(part), -1)), gated[-len(part) :])
        ours.rotate_(part, turns, positions[-len(part) :], weight)
        assert torch.equal(part, qkv[-len(part) :])
    for width in (128, 320, 1280):
        residual = torch.randn(40, width, generator=generator).to(device)
        weight, bias = torch.randn(2, width, generator=generator).to(device)
        delta = torch.randn(40, width, generator=generator).bfloat16().to(device)
        alone = [residual[start:].clone() for start in (13, 39)]
        among = ours.add_norm(residual, delta, weight, bias, FP32)
        for part in alone:
            found = ours.add_norm(part, delta[-len(part) :].clone(), weight, bias, FP32)
            assert torch.equal(found, among[-len(part) :])
        among = ours.norm(residual, bias, weight, bias, FP32)
        for part in alone:
            assert torch.equal(ours.norm(part, bias, weight, bias, FP32), among[-len(part) :])


def check_mean_rows(ours, width, error=5e-7, device="cpu", more=(1022, 2500)):
    lengths = [1, 2, 350, 3, *more[:1], 17, 64, 63, 32, 1, *more[1:]]
    starts = np.cumsum([1, *(length + 2 for length in lengths[:-1])])
    hidden = torch.full((starts[-1] + lengths[-1] + 9, width), torch.nan, device=device)
    generator = torch.Generator().manual_seed(2)
    for start, length in zip(starts, lengths, strict=True):
        hidden[start : start + length] = torch.randn(length, width, generator=generator) + 5
    starts = torch.tensor(starts, device=device)
    ends = starts + torch.tensor(lengths, device=device)
    shape = (len(lengths), width)
    found = made_between_guards(ours, "mean_rows", shape, FP32, hidden, starts, ends)
    assert found.shape == shape and found.dtype == FP32
    for n, (start, end) in enumerate(zip(starts, ends, strict=True)):
        expected = hidden[start:end].double().mean(0)
        assert within(found[n], expected, error * expected.abs().max())
        if n % 3 == 0:
            alone = ours.mean_rows(hidden[start:end].clone(), starts[:1] - 1, (end - start)[None])
            assert torch.equal(alone[0], found[n])


def triton_attention():
    from featuremill.workloads.esm2.kernels import triton_attention

    return triton_attention


LENGTHS_TO_ATTEND = (1, 300, 2, 15, 16, 17, 63, 64, 129, 65, 127, 128)


def check_attention_of_packs(
    _, dtype, head_dim, tiling, lengths=LENGTHS_TO_ATTEND, num_heads=2, device="cpu"
):
    """Of each sequence by itself, with and without rotary inside."""
    ours = triton_attention()
    tiling = ours.Tiling(*tiling)
    pack = packing.pack([np.full(n, 5) for n in lengths], sum(lengths) + 200, torch.device("cuda"))
    pack, num_real = on_device(pack, torch.device(device)), pack.bounds[-1]
    shape = (len(pack.tokens_T), 3, num_heads, head_dim)
    generator = torch.Generator().manual_seed(head_dim)
    given = torch.randn(shape, generator=generator)
    given[:, 1] *= 2
    given[::7, 1] *= 6  # keys that outweigh others
    given = given.to(dtype)
    turns = turns_of(head_dim)
    turned = given.double()
    turned[:, :2] = turned_by(turns, pack.positions_T.cpu(), given[:, :2])
    for turns_or_none, rows in ((turns.to(device), turned), (None, given.double())):
        qkv, is_kept = guarded(*shape, dtype=dtype, device=device)
        qkv.copy_(given)
        context, is_context_kept = guarded(shape[0], *shape[2:], dtype=dtype, device=device)
        with mock.patch.object(torch, "empty", return_value=context) as empty:
            found = ours.attend(qkv, pack, turns_or_none, tiling=tiling)
        assert found is context and empty.call_args.args == (shape[0], *shape[2:])
        assert is_kept() and is_context_kept() and found.isfinite().all()
        assert torch.equal(bits(qkv.cpu()[:, 2]), bits(given[:, 2])), "the value was touched"
        if turns_or_none is None:
            assert torch.equal(bits(qkv.cpu()), bits(given))
        units = 2 if "TRITON_INTERPRET" in os.environ else 1  # see `within`
        for start, end in pairwise(pack.bounds):
            expected = attended(rows[start:end])
            off = found[start:end].cpu().double() - expected
            bound = units * ATTENTION_BOUNDS[dtype] * (3 if turns_or_none is not None else 1)
            assert off.norm() <= bound * expected.norm(), end - start
        for number in (1, len(lengths) - 1):
            alone = packing.pack([np.full(lengths[number], 5)], device=torch.device("cuda"))
            alone = on_device(alone, torch.device(device))
            part = torch.ones(len(alone.tokens_T), *shape[1:], dtype=dtype, device=device)
            start, end = pack.bounds[number : number + 2]
            part[: end - start] = given[start:end]
            again = ours.attend(part, alone, turns_or_none, tiling=tiling)
            assert torch.equal(bits(again[: end - start]), bits(found[start:end]))
    assert num_real < len(found)


def check_what_is_no_number_stays_in_its_sequence(_, dtype, device="cpu"):
    """A record whose numbers overflowed has to fail, and no other one."""
    ours = triton_attention()
    pack = packing.pack([np.full(n, 5) for n in (40, 70, 30)], 256, torch.device("cuda"))
    pack = on_device(pack, torch.device(device))
    turns = turns_of(32).to(device)
    for part, value in ((0, torch.nan), (1, torch.nan), (2, torch.nan), (2, torch.inf)):
        qkv = torch.randn(len(pack.tokens_T), 3, 2, 32).to(dtype).to(device)
        qkv[60, part, 0, 5] = value
        context = ours.attend(qkv, pack, turns, tiling=ours.Tiling(64, 32))
        rows = [60] if part == 0 else list(range(40, 110))
        is_number = context.isfinite().all(2).cpu()
        assert not is_number[rows, 0].any()
        is_number[rows, 0] = True
        assert is_number.all()


# The same checks for the interpreted kernels, in a process of their own.


def interpret():
    assert "triton" not in sys.modules, "the reference needs no Triton"
    os.environ["TRITON_INTERPRET"] = "1"
    import triton

    assert triton.knobs.runtime.interpret
    torch.set_num_threads(1)
    have_bf16_multiplied()


def have_bf16_multiplied():
    """Triton's interpreter multiplies the bits of bf16, as if they were integers."""
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def multiply_wide(self, first, second, *others):
        for operand in (first, second):
            if operand.data.dtype == np.uint16:
                operand.data = (operand.data.astype(np.uint32) << 16).view(np.float32)
        return multiply(self, first, second, *others)

    InterpreterBuilder.create_dot = multiply_wide


def run_interpreted(check, arguments):
    with np.errstate(over="ignore"):
        check(triton_kernels(), *arguments)


@pytest.fixture(scope="module")
def interpreted():
    """Return a function that runs a check on the interpreted kernels."""
    if not find_spec("triton"):
        pytest.skip("Triton is for Linux")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, interpret) as process:
        yield lambda check, *arguments: process.submit(run_interpreted, check, arguments).result()


NORM_DTYPES = ((BF16, BF16), (None, FP32), (None, BF16), (FP16, FP16), (FP32, FP32))
"""Of what is added to the residual stream, if anything is, and of the result."""


def of_each_pair(first, second, third):
    """Return cases in which any two values of two of these meet, but not all three with all."""
    assert len(third) <= min(len(first), len(second))
    return [
        (one, two, third[(row + column) % len(third)])
        for row, one in enumerate(first)
        for column, two in enumerate(second)
    ]


# A tile follows from the width (of a head, of a row), and its edge from that and the number of
# rows: each width meets each length. Types say how it is loaded, rounded and stored: each meets
# each width. The compiled kernels, which take no time, have all with all.
ROTARY = [(dtype, d, n) for d, n, dtype in of_each_pair(HEAD_DIMS, LENGTHS, DTYPES)]
NORMS = [(width, n, *dtypes) for width, dtypes, n in of_each_pair(WIDTHS, NORM_DTYPES, LENGTHS)]
# Of wide rows a tile has one: more of them say nothing new, and the interpreter takes 10 ms each.
FOR_INTERPRETER = [(width, min(n, 83), *dtypes) for width, n, *dtypes in NORMS]
RUNNING = [(320, 64, BF16), (1280, 17, FP16), (480, 33, FP32)]
ALL_ROTARY = list(product(DTYPES, HEAD_DIMS, LENGTHS))
ALL_NORMS = [(width, n, *dtypes) for width, n, dtypes in product(WIDTHS, LENGTHS, NORM_DTYPES)]


NORMED = [
    (dtype, heads, d, n)
    for (heads, d), n, dtype in of_each_pair(((15, 64), (4, 16), (40, 64)), LENGTHS[:3], DTYPES)
]
"""Heads of ESM C and of a tiny one."""
CAUTIOUS = (128, 64, 8, 2)
TILINGS = [
    (64, CAUTIOUS),
    (32, (64, 64, 4, 3)),
    (64, (64, 64, 4, 3)),
    (64, (128, 128, 8, 2)),
    (16, CAUTIOUS),
    (24, (128, 64, 4, 2)),
    (32, CAUTIOUS),
    (80, CAUTIOUS),
    (96, (64, 128, 4, 2)),
    (128, CAUTIOUS),
    (128, (64, 64, 4, 2)),
]
"""Widths of a head, and tilings."""
ATTENDED = [(dtype, *each) for dtype in (BF16, FP16) for each in TILINGS]
FEW_TO_ATTEND = (2, 129, 65, 16)
GATED = [
    (dtype, width, n) for width, n, dtype in of_each_pair((2560, 128, 6912), LENGTHS[:3], DTYPES)
]


def named(values):
    return "-".join(str(value).removeprefix("torch.") for value in values)


OF_ALL = {
    "rotary": (check_rotate, ROTARY),
    "norm_with_rotary": (check_norm_rotate, NORMED),
    "gate": (check_gate, GATED),
    "add_norm": (check_add_norm, NORMS),
}
OF_TWINS = {"norm": (check_norm, RUNNING), "mean_rows": (check_mean_rows, product(WIDTHS))}
INTERPRETED = {"norm": (check_norm, RUNNING), "add_norm": (check_add_norm, FOR_INTERPRETER)}
COMPILED = {
    "rotary": (check_rotate, ALL_ROTARY),
    "add_norm": (check_add_norm, ALL_NORMS),
    "norm": (check_norm, list(product(WIDTHS, (333,), DTYPES))),
}


def each_case(checks):
    """Parametrize by the checks, and each one's cases."""
    cases = [
        pytest.param(check, case, id=f"{name}-{named(case)}")
        for name, (check, cases) in checks.items()
        for case in cases
    ]
    return pytest.mark.parametrize(("check", "case"), cases)


@each_case(OF_ALL | OF_TWINS)
def test_twin(check, case):
    check(reference, *case)


@each_case(OF_ALL | INTERPRETED)
def test_kernel_interpreted(interpreted, check, case):
    interpreted(check, *case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if number in (0, 12) else [pytest.mark.slow])
        for number, case in enumerate(ATTENDED)
    ],
    ids=named,
)
def test_attention_kernel_interpreted(interpreted, case):
    interpreted(check_attention_of_packs, *case, FEW_TO_ATTEND)


@pytest.mark.slow
@pytest.mark.parametrize("case", [ATTENDED[0], ATTENDED[13]], ids=named)
def test_attention_kernel_interpreted_at_all_lengths(interpreted, case):
    interpreted(check_attention_of_packs, *case, (*LENGTHS_TO_ATTEND, 1024), 1)


def test_what_is_no_number_stays_in_its_sequence(interpreted):
    interpreted(check_what_is_no_number_stays_in_its_sequence, FP16)


def test_rows_do_not_meet(interpreted):
    interpreted(check_rows_do_not_meet)


@pytest.mark.parametrize("width", [128, 480])
def test_mean_rows_kernel_interpreted(interpreted, width):
    if metadata.version("triton").startswith("3.6."):
        pytest.skip("this interpreter cannot count loops with NumPy 2.4")
    interpreted(check_mean_rows, width, 5e-7, "cpu", ())


def test_bits_of_twins_depend_neither_on_other_rows_nor_on_threads():
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(2000, 3, 5, 24, generator=generator)
    hidden, delta, _ = numbers.view(2000, 3, 120).unbind(1)
    turns, positions = turns_of(24), torch.arange(2000) % NUM_POSITIONS
    starts, ends = torch.tensor([1, 300]), torch.tensor([299, 1999])

    def results():
        qkv, residual = numbers.clone(), hidden.clone()
        reference.rotate_(qkv, turns, positions)
        normed = reference.add_norm(residual, delta, hidden[0], hidden[1], FP32)
        return qkv, residual, normed, reference.mean_rows(residual, starts, ends)

    num_threads = torch.get_num_threads()
    check_rows_do_not_meet(reference)
    expected = results()
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        assert all(map(torch.equal, results(), expected))
    torch.set_num_threads(num_threads)


# The same checks for what is compiled for a CPU, and attention there.

ISAS = {
    "amx": is_amx_granted,
    "avx512_bf16": torch.cpu._is_avx512_bf16_supported,
    "avx512": torch.cpu._is_avx512_supported,
    "avx2": torch.cpu._is_avx2_supported,
}


@pytest.fixture(params=ISAS)
def on_cpu(request, monkeypatch):
    """Return what is compiled for these instructions."""
    if not ISAS[request.param]():
        pytest.skip(f"this CPU has no {request.param}")
    from featuremill.workloads.esm2.kernels import llvm_kernels

    def instructions(dtype):
        is_for_bf16 = request.param in ("amx", "avx512_bf16")
        return "avx512" if is_for_bf16 and dtype != BF16 else request.param

    monkeypatch.setattr(llvm_kernels, "instructions", instructions)
    return llvm_kernels


@each_case(OF_ALL)
def test_operation_on_a_cpu(on_cpu, check, case):
    check(on_cpu, *case)


def test_rows_on_a_cpu_do_not_meet(on_cpu):
    check_rows_do_not_meet(SimpleNamespace(**vars(on_cpu), norm=reference.norm))


ATTENTION_BOUNDS = {FP32: 1e-6, FP16: 6e-4, BF16: 4e-3}
"""Relative L2: the dtype's own rounding, and as much again."""


def attended(qkv, heads=slice(None)):
    """Return the context in float64."""
    query, key, value = qkv[:, :, heads].double().permute(1, 2, 0, 3)
    scores = query @ key.transpose(1, 2) * qkv.shape[-1] ** -0.5
    return (scores.softmax(-1) @ value).transpose(0, 1)


# Compiling one takes 0.2 s: each width meets one type, and all with all are slow.
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [
        pytest.param(dtype, width, marks=[pytest.mark.slow] if (row + column) % 3 else [])
        for row, dtype in enumerate(DTYPES)
        for column, width in enumerate([8, *HEAD_DIMS])
    ],
)
def test_attention_on_a_cpu(on_cpu, dtype, head_dim):
    for length in (1, 2, 31, 33, 128, 129, 300):
        check_attention(on_cpu, dtype, head_dim, length)


def check_attention(on_cpu, dtype, head_dim, length):
    generator = torch.Generator().manual_seed(length)
    qkv, is_kept = guarded(length, 3, 4, head_dim, dtype=dtype, device="cpu")
    qkv.copy_(torch.randn(qkv.shape, generator=generator))
    qkv[length // 2, 1] *= 6  # a key that outweighs the others
    before = qkv.clone()
    context, is_context_kept = guarded(length, 4, head_dim, dtype=dtype, device="cpu")
    context.fill_(7)
    for heads in (slice(1, 3), slice(0, 1)):
        on_cpu.attend(qkv, heads, context)
    expected = attended(before, slice(0, 3))
    found = context[:, :3].double()
    assert (found - expected).norm() <= ATTENTION_BOUNDS[dtype] * expected.norm()
    assert (context[:, 3] == 7).all() and is_kept() and is_context_kept()
    assert torch.equal(bits(qkv), bits(before))


def test_lanes_that_want_attention_at_once_have_it_compiled_once(on_cpu):
    from featuremill.workloads.esm2.kernels.llvm import Function

    qkv, context = torch.randn(9, 3, 4, 16), torch.empty(9, 4, 16)
    all_here = threading.Barrier(4)

    def attend(head):
        all_here.wait()
        on_cpu.attend(qkv, slice(head, head + 1), context)

    on_cpu._attend.cache_clear()
    whole = mock.patch.object(Function, "compiled", autospec=True, side_effect=Function.compiled)
    with whole as compiled, ThreadPoolExecutor(4) as threads:
        list(threads.map(attend, range(4)))
    assert compiled.call_count == 1
    assert (context - attended(qkv)).norm() <= 1e-6 * context.norm()


def test_attention_on_a_cpu_of_scores_far_apart(on_cpu):
    """The largest score may come first or last, and others may be nothing beside it."""
    for dtype in DTYPES:
        for at in (0, 150, 299):
            qkv = torch.randn(300, 3, 2, 16).to(dtype)
            qkv[:, 0], qkv[:, 1] = 4, -4
            qkv[at, 1] = 4  # its score is 64, and that of all others -64
            context = torch.empty(300, 2, 16, dtype=dtype)
            on_cpu.attend(qkv, slice(0, 2), context)
            assert torch.equal(context, qkv[at, 2].expand_as(context))
        qkv[:, 1] = 0  # all alike: the mean
        on_cpu.attend(qkv, slice(0, 2), context)
        mean = qkv[:, 2].double().mean(0)
        assert (context.double() - mean).norm() <= 5e-2 * (mean.norm() * 300**0.5)


def test_what_is_no_number_stays_none_on_a_cpu(on_cpu):
    """A record whose numbers overflowed has to fail, not to pass for another."""
    for dtype in (FP32, BF16):
        for part, value in ((0, torch.nan), (1, torch.nan), (2, torch.nan), (2, torch.inf)):
            qkv = torch.randn(70, 3, 2, 16).to(dtype)
            qkv[40, part, 0, 5] = value
            context = torch.empty(70, 2, 16, dtype=dtype)
            on_cpu.attend(qkv, slice(0, 2), context)
            rows = [40] if part == 0 else range(70)
            assert not context[list(rows), 0].isfinite().all(1).any()
            assert context[:, 1].isfinite().all()
        rows = torch.randn(3, 320)
        rows[1, 7] = torch.nan
        normed = on_cpu.add_norm(rows, None, torch.ones(320), torch.zeros(320), dtype)
        assert normed.isnan().all(1).tolist() == [False, True, False]


def test_a_sequence_on_a_cpu_has_its_bits_wherever_it_stands(on_cpu):
    generator = torch.Generator().manual_seed(4)
    for dtype in DTYPES:
        qkv = torch.randn(700, 3, 6, 24, generator=generator).to(dtype)
        together, apart = torch.empty(2, 700, 6, 24, dtype=dtype)
        on_cpu.attend(qkv[:400], slice(0, 6), together[:400])
        on_cpu.attend(qkv[400:], slice(0, 6), together[400:])
        on_cpu.attend(qkv[400:].clone(), slice(0, 6), apart[400:])
        for head in (5, 2, 0, 1, 3, 4):
            on_cpu.attend(qkv[:400].clone(), slice(head, head + 1), apart[:400])
        assert torch.equal(together, apart)


# The choice.

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_a_cpu_has_what_is_compiled_for_it_and_the_twins_behind_it(monkeypatch, caplog):
    *compiled, last = kernels.ways(CPU, BF16, 20, 16)
    assert last == kernels.TORCH and not caplog.records
    has = {"amx": "avx512", "avx512": "avx512", "avx512_bf16": "avx512", "avx2": "avx2"}
    names = [has[isa] for isa in [instructions(BF16)] if isa in has]
    assert [way.name.split(", ")[1] for way in compiled] == names
    for heads in ((20, 12), (3, 8)):  # rows that do not fill vectors
        assert kernels.ways(CPU, FP32, *heads) == [kernels.TORCH]
    monkeypatch.setattr(kernels, "instructions", lambda _: "sse")
    assert kernels.ways(CPU, BF16, 20, 16) == [kernels.TORCH] and not caplog.records
    monkeypatch.setattr(kernels, "instructions", lambda _: "avx2")
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    kernels._has_llvm.cache_clear()
    for _ in range(2):
        assert kernels.ways(CPU, BF16, 20, 16) == [kernels.TORCH]
    kernels._has_llvm.cache_clear()
    (record,) = caplog.records
    assert "llvmlite cannot be imported" in record.getMessage()


def test_amx_is_taken_where_the_system_grants_it(monkeypatch):
    assert (instructions(BF16) == "amx") == is_amx_granted() and instructions(FP32) != "amx"
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    is_amx_granted.cache_clear()
    assert not is_amx_granted() and instructions(BF16) != "amx"
    is_amx_granted.cache_clear()


def test_triton_comes_first_on_a_gpu_and_the_twins_behind_it():
    triton = pytest.importorskip("triton")
    first, last = kernels.ways(CUDA, BF16, 20, 16)
    assert first.name == f"triton {triton.__version__}" and last == kernels.TORCH
    assert first[1:] == tuple(getattr(triton_kernels(), field) for field in first._fields[1:])


# Triton's compiler needs no GPU.


class Compiled(NamedTuple):
    """What a launch was compiled to."""

    kernel: str
    code: bytes
    ptx: str
    stack_bytes: int
    """What registers did not hold."""
    shared_bytes: int


class Pretended:
    """Triton's driver of a GPU that is not there: it says of what architecture it would be."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_device(self):
        return self.capability  # kernels are kept by it

    def get_current_stream(self, _):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind):
        return kind


def launched(capability, folder, width, heads, dtype, lengths):
    """Return what our launches of a model's shapes, in batches of these lengths, are compiled to by
    Triton as it would do it on such a GPU, in order and each once. For a process of its own."""
    os.environ["TRITON_CACHE_DIR"] = folder
    from triton.backends import nvidia
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    found, launch = {}, JITFunction.run

    def only_compile(function, *arguments, grid, warmup, **more):
        compiled = launch(function, *arguments, grid=grid, warmup=True, **more)
        code, ptx = compiled.asm["cubin"], compiled.asm["ptx"]
        if code not in found:
            file = Path(folder) / "code"
            file.write_bytes(code)
            told = subprocess.run([tool, "-res-usage", file], check=True, capture_output=True)
            used = dict(re.findall(r"(STACK|LOCAL):(\d+)", told.stdout.decode()))
            stack = int(used["STACK"]) + int(used["LOCAL"])
            found[code] = Compiled(function.fn.__name__, code, ptx, stack, compiled.metadata.shared)
        return compiled

    driver.set_active(Pretended(capability))
    JITFunction.run = only_compile
    try:
        ours, of_row = triton_kernels(), torch.empty(width)
        for num_rows in lengths:
            residual, narrow = torch.empty(num_rows, width), torch.empty(num_rows, width).to(dtype)
            positions = torch.zeros(num_rows, dtype=torch.int64)
            turns = torch.empty(num_rows + 3, width // heads // 2, 2)
            ours.rotate_(narrow.new_empty(num_rows, 3, heads, width // heads), turns, positions)
            ours.add_norm(residual, None, of_row, of_row, dtype)
            ours.add_norm(residual, narrow, of_row, of_row, dtype)
            ours.norm(residual, None, of_row, of_row, dtype)
            ours.norm(residual, of_row, of_row, of_row, dtype)
            ours.mean_rows(residual, positions[:3].clone(), positions[:3].clone())
            if capability >= 80 and dtype != FP32:
                pack = packing.pack([np.full(num_rows, 5)], device=torch.device("cuda"))
                qkv = narrow.new_empty(len(pack.tokens_T), 3, heads, width // heads)
                attention = triton_attention()
                where = divmod(capability, 10), attention.columns(width // heads)
                tiling = attention.FASTER.get(where, attention.CAUTIOUS)
                attention.attend(qkv, pack, turns, tiling=tiling)
            if width // heads == 64:
                qkv = narrow.new_empty(num_rows, 3, heads, 64)
                ours.rotate_(qkv, turns, positions, torch.empty(2, width))
                ours.gate(narrow.new_empty(num_rows, 2 * 3 * width))
    finally:
        JITFunction.run = launch
    return list(found.values())


MODELS = {"8M": (320, 20), "35M": (480, 20), "150M": (640, 20), "3B": (2560, 40), "15B": (5120, 40)}


@pytest.mark.parametrize(
    "capability", [*(pytest.param(n, marks=pytest.mark.slow) for n in (75, 80, 90, 100)), 120]
)
@pytest.mark.parametrize(
    ("width", "heads", "wide"),
    [
        (1280, 20, False),
        pytest.param(1280, 20, True, marks=pytest.mark.slow),
        *(
            pytest.param(*shape, wide, marks=pytest.mark.slow)
            for shape in MODELS.values()
            for wide in (False, True)
        ),
    ],
)
def test_launches_compile_to_machine_code_once(capability, width, heads, wide, tmp_path, compiler):
    """From Turing to Blackwell, with the wide loads that their speed rests on, without a spill, and
    for any number of rows alike."""
    narrow = FP16 if capability < 80 else BF16
    given = (capability, str(tmp_path), width, heads, FP32 if wide else narrow)
    found = compiler(launched, *given, (256,))
    of_both = {"_rotate", "_add_norm", "_mean_rows"}
    of_esmc = {"_norm_rotate", "_gate"} if width // heads == 64 else set()
    of_attention = {"_attend"} if capability >= 80 and not wide else set()
    assert {each.kernel for each in found} == of_both | of_esmc | of_attention
    for each in found:
        assert len(each.code) > 1000 and each.stack_bytes == 0, each.kernel
        assert each.shared_bytes <= 101_376, "the smallest GPU's since Ampere"
        assert "ld.global.v4.b32" in each.ptx, each.kernel
        # Of 16 bits a thread stores half as much; a mean is one number for many that are read.
        assert re.search(r"st\.global\.v[24]\.b32", each.ptx) or each.kernel == "_mean_rows"
    again = compiler(launched, *given, (256, 1, 77, 333))
    assert [each.code for each in again] == [each.code for each in found]


@pytest.fixture(scope="module")
def compiler():
    """Return a function that calls another one in a process that compiles for pretended GPUs."""
    if not find_spec("triton"):
        pytest.skip("Triton is for Linux")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield lambda *call: process.submit(*call).result()


# The compiled kernels.


@pytest.mark.gpu
@each_case(OF_ALL | COMPILED)
def test_kernel(check, case):
    check(triton_kernels(), *case, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("case", ATTENDED, ids=named)
def test_attention_kernel(case):
    check_attention_of_packs(None, *case, (*LENGTHS_TO_ATTEND, 1024), 4, device="cuda")


@pytest.mark.gpu
def test_what_is_no_number_stays_in_its_sequence_on_a_gpu():
    for dtype in (BF16, FP16):
        check_what_is_no_number_stays_in_its_sequence(None, dtype, device="cuda")


@pytest.mark.gpu
def test_compiled_rows_do_not_meet():
    check_rows_do_not_meet(triton_kernels(), device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
def test_mean_rows_kernel(width):
    check_mean_rows(triton_kernels(), width, device="cuda")
    check_mean_rows(reference, width, error=1e-5, device="cuda")


@pytest.mark.gpu
def test_a_gpu_has_triton(caplog):
    name = kernels.ways(CUDA, BF16, 20, 16)[0].name
    assert name.startswith("triton ") and not caplog.records, caplog.text or name


@pytest.mark.gpu
def test_past_31_bits():
    """The last rows of tensors with more than 2³¹ elements."""
    free, _ = torch.cuda.mem_get_info()
    if free < 40e9:
        pytest.skip("needs 40 GB of a GPU's memory")
    ours, last = triton_kernels(), slice(-100, None)
    qkv = torch.randn(150_000, 3, 40, 128, device="cuda", dtype=BF16)
    assert qkv.numel() > 2**31
    turns, positions = turns_of(128).cuda(), torch.arange(len(qkv), device="cuda") % NUM_POSITIONS
    expected = qkv[last].clone()
    reference.rotate_(expected, turns, positions[last])
    ours.rotate_(qkv, turns, positions)
    assert torch.allclose(qkv[last].float(), expected.float(), rtol=2**-7, atol=1e-5)
    del qkv, turns, positions, expected
    residual = torch.randn(450_000, 5120, device="cuda")
    assert residual.numel() > 2**31
    delta = torch.ones(residual.shape, device="cuda", dtype=BF16)
    weight, bias = torch.randn(2, 5120, device="cuda")
    expected = residual[last].clone()
    expected_normed = reference.add_norm(expected, delta[last], weight, bias, BF16)
    normed = ours.add_norm(residual, delta, weight, bias, BF16)
    assert torch.equal(residual[last], expected)
    assert torch.allclose(normed[last].float(), expected_normed.float(), rtol=2**-7, atol=1e-4)
    del residual, delta, normed
    torch.cuda.empty_cache()  # tests after this one start processes that need memory too
