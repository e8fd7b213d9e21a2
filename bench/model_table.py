"""Write the table of docs/install.md: GPU memory, host memory and disk space of each ESM-2.

`python -m bench.model_table docs/install.md` writes it; without a file it is
printed. The numbers are estimates by `estimates.py` and sizes of the formats, not measurements.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.kit.text import human_bytes
from featuremill.workload import Device, Weights, networks
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import estimates, sources

MARKED = re.compile(r"(<!-- models -->\n).*?(\n<!-- /models -->)", re.DOTALL)
PROTEINS = 10**6
RESIDUES = 350
"""Residues of a protein, for the last column: about the average."""


class Card(NamedTuple):
    """A typical GPU."""

    name: str
    num_multiprocessors: int
    has_bf16: bool


CARDS = (Card("T4", 40, False), Card("RTX 4090", 128, True), Card("H100, H200", 132, True))
HEADINGS = (
    "model",
    "parameters",
    *(f"{card.name} ({'bf16' if card.has_bf16 else 'fp16'})" for card in CARDS),
    "CPU, fp32",
    "CPU, bf16",
    "checkpoint + converted",
    "10⁶ proteins, mean",
    "10⁶ proteins, per residue",
)


def rows() -> Iterator[list[str]]:
    """Yield the cells of each model's row."""
    for name, published in sources.PUBLISHED.items():
        weights = estimates.weights_ahead(name)
        model = estimates.model_of(weights)
        numbers = model.num_matrix_numbers + model.num_other_numbers
        on_cards = [_memory_mb(card, weights) for card in CARDS]
        on_cpu = [
            estimates.estimate_mb(model, "cpu", dtype, networks.CPU_BATCH_TOKENS)
            for dtype in ("fp32", "bf16")
        ]
        files = f"{published.gigabytes:g} + {model.file_bytes / 1e9:.2g} GB"
        mean = PROTEINS * model.sizes.width * estimates.FLOAT_BYTES
        residues = PROTEINS * RESIDUES * model.sizes.width * estimates.NUMBER_BYTES["fp16"]
        yield [
            f"`{name}`",
            f"{numbers / 1e6:,.0f} M",
            *map(_gib, (*on_cards, *on_cpu)),
            files,
            human_bytes(mean),
            human_bytes(residues),
        ]


def _memory_mb(card: Card, weights: Weights) -> int:
    device = Device("cuda", "", card.name, card.has_bf16, 0, 0, card.num_multiprocessors)
    options = esm2.resolve(esm2.Options(), device, weights)
    return esm2.memory_mb(options, device, weights, esm2.batch_cost(options, device))


def _gib(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.1f} GB"


def table() -> str:
    """Return the table in Markdown."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *rows()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Print the table, or write it into the given page."""
    if not sys.argv[1:]:
        print(table())
        return
    page = Path(sys.argv[1])
    page.write_text(MARKED.sub(rf"\g<1>{table()}\g<2>", page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
