"""How fast a device might be that has computed nothing yet: operations, bytes, and an assumption.

A workload may have the operations that a unit of cost takes and, about, the bytes that go to and
from memory (`EstimatesWork`). Divided by a card's peaks that is the least time. A real run takes
longer: by how much a workload may know for a card (`UnitWork.shares`, measured); for a card with
the same peak of matrix products that is derived, for any other it is assumed. Every caller gets a
range, and has to say which it is.

What is known of a card are its maker's peaks: of dense matrix products that add up in fp32 (where a
sheet gives only the figure "with sparsity", half of it), and of the memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from featuremill.workload import UnitWork


@dataclass(frozen=True)
class Range:
    """What is assumed or expected of a quantity, and the ends within which it may lie."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, known: float) -> Range:
        return cls(known, known, known)

    @classmethod
    def sum(cls, ranges: Iterable[Range]) -> Range:
        low, middle, high = zip(*((one.low, one.middle, one.high) for one in ranges), strict=True)
        return cls(sum(low), sum(middle), sum(high))

    def map(self, change: Callable[[float], float]) -> Range:
        return Range(change(self.low), change(self.middle), change(self.high))


SHARES = Range(0.3, 0.5, 0.8)
"""Of what the peaks would allow: a slow run, the one assumed, a fast one. An assumption, for cards
on which nothing was measured."""
CPU_SHARES = Range(0.2, 1.0, 2.0)
"""Cores differ that much, and more: those with AMX, those without AVX-512; and cores that other
work shares are that much slower."""


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
    cards = exact or [card for card in CARDS if is_called(card.name, asked)]
    return sorted(cards, key=lambda card: (card.half_tflops, card.gigabytes_per_second))


def _words_of(name: str) -> list[str]:
    """Return the words of a GPU's name, however NVML, Slurm or a person spells it."""
    return re.findall(r"[a-z0-9]+", name.lower())


class Share(NamedTuple):
    """How much of what a card's peaks allow is expected, and how that is known."""

    of_peaks: Range
    kind: Literal["measured", "derived", "assumed"]
    card: str
    """On which it was measured; "" if on none."""


def share_on(work: UnitWork, precision: str, card: Card) -> Share:
    """Return the share that was measured on `card`, or on one with the same peak of matrix
    products; else the assumed one."""
    peers = [one for one in CARDS if one.half_tflops == card.half_tflops and one != card]
    for one in (card, *peers):
        if precision in (known := work.shares.get(one.name, {})):
            kind: Literal["measured", "derived"] = "measured" if one == card else "derived"
            return Share(Range(*known[precision]), kind, one.name)
    return Share(SHARES, "assumed", "")


def on_card(work: UnitWork, precision: str, card: Card) -> Range:
    """Return how much cost one card might compute in a second."""
    is_wide = precision == "fp32"
    tflops, times_the_bytes = (card.single_tflops, 2) if is_wide else (card.half_tflops, 1)
    least = work.operations / (tflops * 1e12)
    least += work.bytes_moved * times_the_bytes / (card.gigabytes_per_second * 1e9)
    shares = share_on(work, precision, card).of_peaks
    return shares.map(lambda share: min(share / least, work.host_per_second))


def on_cpu(work: UnitWork, precision: str, num_threads: int) -> Range:
    """Return how much cost so many cores of a CPU might compute in a second."""
    of_operations = work.operations / (work.core_gflops[precision] * 1e9)
    seconds = of_operations / num_threads + work.cpu_seconds
    return CPU_SHARES.map(lambda share: share / seconds)
