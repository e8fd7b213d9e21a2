"""How fast a device might be that has computed nothing yet: operations, bytes, and an assumption.

**No figure from here was measured on a GPU.** A token of ESM-2 costs a known number of operations
and, about, of bytes that go to and from memory. Divided by a card's peaks (`table.py`) that is the
least time it can take; a real run takes longer, and by how much is assumed. Every caller gets a
range, and has to say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from featuremill.plan.speeds.table import Card

SHARES = (0.3, 0.5, 0.8)
"""Of what the peaks would allow: a slow run, the one assumed, a fast one. An assumption."""
LENGTH_OF_ATTENTION = 1.4
"""Sum of squared lengths / sum of lengths, over the mean length: 437 / 309 in bench/ecoli.fasta.gz
(`effective_length` in the records of `make bench`)."""
BYTES_A_NUMBER_OF_WIDTH = 52
"""To and from memory for a token in a layer, a number of the model's width, with 2-byte products:
q, k and v written and read, attention's output too (8 numbers), the feed forward's middle (8), the
normed inputs (4), and the fp32 residual stream read and written thrice (3 x 2 x 4 bytes), less what
the norm is fused with. Counted in `workloads/esm2/encoder.py`, not measured."""
HOST_TOKENS_PER_SECOND = 2_300_000
"""What one host thread prepares: 0.017 s for 40,000 tokens, `seconds.prepare` in the receipts of
the demo on 2 cores of a Xeon. A GPU that is faster waits for it, so of small models every card
is assumed to be as fast as that."""
CPU_GFLOPS_A_CORE = {"fp32": 65.0, "bf16": 100.0, "fp16": 10.0}
"""What a core reached with ESM-2 of 8M to 150M in bench/results/2026-11-20-AMD-EPYC-2-cores-cpu
.json: 58 to 74 in fp32, 71 to 123 in bf16. fp16, which most CPUs emulate, is a guess."""
CPU_SECONDS_A_TOKEN = 75e-6
"""On top, whatever the threads: attention of a few numbers a head, and all that is no matrix
product. A network of 6 layers, 128 wide, took 62 to 107 µs a token in all, with one thread or two,
on 2 cores of a Xeon that others used as well; with this, the table of docs/measured.md is met
within a third."""
CPU_SHARES = (0.2, 1.0, 3.0)
"""Cores differ that much, and more: those with AMX, those without AVX-512; and cores that other
work shares are that much slower."""


class Shape(NamedTuple):
    """The architecture of an ESM-2."""

    num_layers: int
    width: int


def shape_told(metadata: Mapping[str, str]) -> Shape:
    """Return the architecture that the metadata of weights tell."""
    return Shape(int(metadata["num_layers"]), int(metadata["embed_dim"]))


class Rates(NamedTuple):
    """Tokens a second: what is assumed, and the ends of the range."""

    low: float
    middle: float
    high: float


def operations_a_token(shape: Shape, mean_tokens: float) -> float:
    """Return the floating point operations of a token in proteins of `mean_tokens` on average.

    Two for each number of the matrices (24 d² a layer), and attention's 4 L d a layer.
    """
    of_attention = 4 * LENGTH_OF_ATTENTION * mean_tokens * shape.width
    return shape.num_layers * (24 * shape.width**2 + of_attention)


def on_card(shape: Shape, mean_tokens: float, dtype: str, card: Card) -> Rates:
    """Return how fast one card might be."""
    tflops, times_the_bytes = (card.single_tflops, 2) if dtype == "fp32" else (card.half_tflops, 1)
    operations = operations_a_token(shape, mean_tokens)
    moved = shape.num_layers * shape.width * BYTES_A_NUMBER_OF_WIDTH * times_the_bytes
    least = operations / (tflops * 1e12) + moved / (card.gigabytes_per_second * 1e9)
    low, middle, high = (min(share / least, HOST_TOKENS_PER_SECOND) for share in SHARES)
    return Rates(low, middle, high)


def on_cpu(shape: Shape, mean_tokens: float, dtype: str, num_threads: int) -> Rates:
    """Return how fast so many cores of a CPU might be."""
    of_products = operations_a_token(shape, mean_tokens) / (CPU_GFLOPS_A_CORE[dtype] * 1e9)
    seconds = of_products / num_threads + CPU_SECONDS_A_TOKEN
    low, middle, high = (share / seconds for share in CPU_SHARES)
    return Rates(low, middle, high)
