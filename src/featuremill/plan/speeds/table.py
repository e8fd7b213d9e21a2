"""What makers' data sheets say of GPUs: the only thing known of a card that has computed nothing.

Nothing here was measured. Peaks are of dense matrix products that add up in fp32 (where a sheet
gives only the figure "with sparsity", half of it), and of the memory; a real program reaches a
share of them, and `assumed.py` says which share it takes for granted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from featuremill.base.errors import UserError


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


def words_of(name: str) -> list[str]:
    """Return the words of a GPU's name, however NVML, Slurm or a person spells it."""
    return re.findall(r"[a-z0-9]+", name.lower())


def is_called(name: str, asked: str) -> bool:
    """Tell whether the GPU `name` is one of those that are `asked` for: "h100" is several."""
    known = words_of(name)
    return all(word in known for word in words_of(asked)) and bool(words_of(asked))


def cards_called(asked: str) -> list[Card]:
    """Return the cards that `asked` may mean, the slowest first.

    The whole name means that card alone.
    """
    exact = [card for card in CARDS if words_of(card.name) == words_of(asked)]
    found = exact or [card for card in CARDS if is_called(card.name, asked)]
    return sorted(found, key=lambda card: (card.half_tflops, card.gigabytes_per_second))


def card_of(asked: str) -> Card:
    """Return the slowest card that `asked` may mean.

    Raises:
        UserError: when none in the table is called so.
    """
    if found := cards_called(asked):
        return found[0]
    known = ", ".join(card.name.removeprefix("NVIDIA ").removeprefix("GeForce ") for card in CARDS)
    raise UserError(
        f"nothing is known of the speed of a GPU called {asked!r}: no earlier run used one, and "
        f"the table has only {known}; give --tokens-per-second."
    )
