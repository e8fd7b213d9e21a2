"""How fast a device might be that has computed nothing yet: operations, bytes, and an assumption.

**No figure from here was measured on a GPU.** A token of ESM-2 costs a known number of operations
and, about, of bytes that go to and from memory. Divided by a card's peaks that is the
least time it can take; a real run takes longer, and by how much is assumed. Every caller gets a
range, and has to say so.

What is known of a card are its maker's peaks: of dense matrix products that add up in fp32 (where a
sheet gives only the figure "with sparsity", half of it), and of the memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Range:
    """What is assumed or expected of a quantity, and the ends within which it may lie."""

    low: float
    middle: float
    high: float

    def map(self, change: Callable[[float], float]) -> Range:
        """Return all three, changed."""
        return Range(change(self.low), change(self.middle), change(self.high))


SHARES = Range(0.3, 0.5, 0.8)
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
CPU_GFLOPS_A_CORE = {"fp32": 160.0, "bf16": 480.0, "fp16": 10.0}
"""Between what a core reached with ESM-2 of 8M to 150M in the two records of bench/results of
2026-11-23: in fp32 135 (a Xeon) and 197 (an EPYC), in bf16 648 (that Xeon, with AMX) and 371.
fp16, which most CPUs emulate, is a guess."""
CPU_SECONDS_A_TOKEN = 12e-6
"""On top, whatever the threads: reading, plan, results, and what Python takes. Of 7 to 16 µs in
those records; with it both are met within a third."""
CPU_SHARES = Range(0.2, 1.0, 2.0)
"""Cores differ that much, and more: those with AMX, those without AVX-512; and cores that other
work shares are that much slower."""


class Shape(NamedTuple):
    """The architecture of an ESM-2."""

    num_layers: int
    width: int


def shape_told(metadata: Mapping[str, str]) -> Shape | None:
    """Return the architecture that the metadata of weights tell; None where they tell none.

    The keys are those of ESM-2, as all formulas here are; other weights that tell them are an
    encoder of the same kind.
    """
    found = [metadata.get(key, "") for key in ("num_layers", "embed_dim")]
    return Shape(*map(int, found)) if all(number.isdecimal() for number in found) else None


class Card(NamedTuple):
    """The peak figures of a GPU."""

    name: str
    """As NVML says it."""
    half_tflops: float
    """bf16 and fp16 on the matrix units, in 10¹² operations a second."""
    single_tflops: float
    """fp32 without the matrix units, which featuremill's fp32 does not use."""
    gigabytes_per_second: float
    has_bf16: bool = True
    memory_mb: int = 0
    num_multiprocessors: int = 0


CARDS = (
    Card("Tesla T4", 65, 8.1, 320, False, 15360, 40),
    Card("NVIDIA GeForce RTX 2080 Ti", 53.8, 13.4, 616, False, 11264, 68),
    Card("NVIDIA A100-SXM4-40GB", 312, 19.5, 1555, True, 40960, 108),
    Card("NVIDIA A100-PCIE-40GB", 312, 19.5, 1555, True, 40960, 108),
    Card("NVIDIA A100-SXM4-80GB", 312, 19.5, 2039, True, 81920, 108),
    Card("NVIDIA A100 80GB PCIe", 312, 19.5, 1935, True, 81920, 108),
    Card("NVIDIA A30", 165, 10.3, 933, True, 24576, 56),
    Card("NVIDIA A40", 149.7, 37.4, 696, True, 46068, 84),
    Card("NVIDIA A10", 125, 31.2, 600, True, 23028, 72),
    Card("NVIDIA RTX A5000", 111.1, 27.8, 768, True, 24564, 64),
    Card("NVIDIA RTX A6000", 154.8, 38.7, 768, True, 49140, 84),
    Card("NVIDIA GeForce RTX 3090", 71, 35.6, 936, True, 24576, 82),
    Card("NVIDIA L4", 121, 30.3, 300, True, 23034, 58),
    Card("NVIDIA L40", 181, 90.5, 864, True, 46068, 142),
    Card("NVIDIA L40S", 362, 91.6, 864, True, 46068, 142),
    Card("NVIDIA GeForce RTX 4090", 165.2, 82.6, 1008, True, 24564, 128),
    Card("NVIDIA GeForce RTX 5090", 209.5, 104.8, 1792, True, 32607, 170),
    Card("NVIDIA H100 PCIe", 756, 51, 2000, True, 81559, 114),
    Card("NVIDIA H100 NVL", 835, 60, 3900, True, 95830, 132),
    Card("NVIDIA H100 80GB HBM3", 989, 67, 3350, True, 81559, 132),
    Card("NVIDIA H200", 989, 67, 4800, True, 143771, 132),
    Card("NVIDIA GH200 480GB", 989, 67, 4000, True, 97871, 132),
    Card("NVIDIA B200", 2250, 80, 8000, True, 183359, 148),
)
"""NVIDIA's data sheets and architecture whitepapers of each, from T4 (2019) to B200 (2024)."""


def is_called(name: str, asked: str) -> bool:
    """Tell whether the GPU `name` is one of those that are `asked` for: "h100" is several."""
    known, words = _words_of(name), _words_of(asked)
    return bool(words) and all(word in known for word in words)


def cards_called(asked: str) -> list[Card]:
    """Return the cards that `asked` may mean, the slowest first.

    The whole name means that card alone.
    """
    exact = [card for card in CARDS if _words_of(card.name) == _words_of(asked)]
    found = exact or [card for card in CARDS if is_called(card.name, asked)]
    return sorted(found, key=lambda card: (card.half_tflops, card.gigabytes_per_second))


def _words_of(name: str) -> list[str]:
    """Return the words of a GPU's name, however NVML, Slurm or a person spells it."""
    return re.findall(r"[a-z0-9]+", name.lower())


def operations_a_token(shape: Shape, mean_tokens: float) -> float:
    """Return the floating point operations of a token in proteins of `mean_tokens` on average.

    Two for each number of the matrices (24 d² a layer), and attention's 4 L d a layer.
    """
    of_attention = 4 * LENGTH_OF_ATTENTION * mean_tokens * shape.width
    return shape.num_layers * (24 * shape.width**2 + of_attention)


def on_card(shape: Shape, mean_tokens: float, dtype: str, card: Card) -> Range:
    """Return how many tokens a second one card might compute."""
    tflops, times_the_bytes = (card.single_tflops, 2) if dtype == "fp32" else (card.half_tflops, 1)
    operations = operations_a_token(shape, mean_tokens)
    moved = shape.num_layers * shape.width * BYTES_A_NUMBER_OF_WIDTH * times_the_bytes
    least = operations / (tflops * 1e12) + moved / (card.gigabytes_per_second * 1e9)
    return SHARES.map(lambda share: min(share / least, HOST_TOKENS_PER_SECOND))


def on_cpu(shape: Shape, mean_tokens: float, dtype: str, num_threads: int) -> Range:
    """Return how many tokens a second so many cores of a CPU might compute."""
    of_products = operations_a_token(shape, mean_tokens) / (CPU_GFLOPS_A_CORE[dtype] * 1e9)
    seconds = of_products / num_threads + CPU_SECONDS_A_TOKEN
    return CPU_SHARES.map(lambda share: share / seconds)
