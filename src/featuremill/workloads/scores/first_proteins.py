"""Figures of the first proteins of a run; limits the size of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from featuremill.workload.figures import Figure

__all__ = ["figures_of"]
MOST_PROTEINS = 6
Protein = TypeVar("Protein")


def figures_of(
    proteins: Iterator[Protein], figure: Callable[[int, Protein], Figure]
) -> list[Figure]:
    """Return `figure(number, protein)` of the first proteins; numbers start at 1. If there are more
    proteins, the sentence of the first figure states it."""
    first = list(islice(proteins, MOST_PROTEINS + 1))
    every = [figure(number, each) for number, each in enumerate(first[:MOST_PROTEINS], start=1)]
    if len(first) > MOST_PROTEINS:
        more = f" Only the first {MOST_PROTEINS} proteins are drawn; the results have all."
        every[0] = every[0]._replace(sentence=every[0].sentence + more)
    return every
