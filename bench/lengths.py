"""Token counts and length distributions; a token is a residue that is computed, BOS or EOS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

MAX_RESIDUES = 1022
"""Where every engine here truncates, as extract.py does."""
NUM_SPECIAL = 2

Protein = tuple[str, str]
"""Id and sequence."""


def tokens_of(proteins: Sequence[Protein]) -> list[int]:
    """Return the real tokens of each protein."""
    return [min(len(sequence), MAX_RESIDUES) + NUM_SPECIAL for _, sequence in proteins]


def sorted_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield rows, the longest first, in batches within `budget` tokens with their padding."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(row)
    yield batch


def effective_length(proteins: Sequence[Protein]) -> float:
    """Return ΣL²/ΣL of the tokens, on which the cost of attention depends."""
    tokens = np.array(tokens_of(proteins), np.float64)
    return float((tokens**2).sum() / tokens.sum())


def describe(proteins: Sequence[Protein]) -> dict[str, Any]:
    """Return what a set of proteins is like; lengths are residues before truncation."""
    lengths = np.array([len(sequence) for _, sequence in proteins])
    return {
        "proteins": len(proteins),
        "residues": int(lengths.sum()),
        "tokens": sum(tokens_of(proteins)),
        "mean": round(float(lengths.mean()), 1),
        "median": int(np.median(lengths)),
        "p95": int(np.percentile(lengths, 95)),
        "max": int(lengths.max()),
        "effective_length": round(effective_length(proteins), 1),
    }
