"""Tokenize residues, and divide long proteins into windows. Imports neither torch nor, until it
tokenizes, NumPy."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from featuremill.workloads.esm2.options import Options

if TYPE_CHECKING:
    import numpy as np

    Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]

__all__ = ["EOS", "MASK", "NUM_SPECIAL", "NUM_TOKENS", "Tokens", "tokenize"]
BOS, PAD, EOS, MASK = 0, 1, 2, 32
NUM_TOKENS = 33
NUM_SPECIAL = 2
"""Number of special tokens of each window: BOS and EOS."""

Window = tuple[int, int]


def windows(num_residues: int, options: Options) -> list[Window]:
    """Return the windows [start, end) of a protein, which the network sees separately.

    `chunk`: window k starts at k * (max_residues - chunk_overlap); the last one is moved back so
    that it ends with the protein and still has max_residues.
    """
    width = options.max_residues
    if options.long == "full" or num_residues <= width:
        return [(0, num_residues)]
    if options.long == "truncate":
        return [(0, width)]
    last = num_residues - width
    starts = [*range(0, last, width - options.chunk_overlap), last]
    return [(start, start + width) for start in starts]


def num_tokens(num_residues: int, options: Options) -> int:
    """Return the number of tokens that are computed for a protein."""
    return sum(end - start + NUM_SPECIAL for start, end in windows(num_residues, options))


def tokenize(payload: bytes, window: Window) -> Tokens:
    """Return BOS, the tokens of the payload's residues [start, end), and EOS."""
    import numpy as np

    start, end = window
    tokens = np.empty(end - start + NUM_SPECIAL, np.int64)
    tokens[0], tokens[-1] = BOS, EOS
    tokens[1:-1] = _token_of_byte()[np.frombuffer(payload, np.uint8, end - start, start)]
    return tokens


@cache
def _token_of_byte() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return fair-esm's own alphabet as a table over bytes; other letters become `<unk>`."""
    import numpy as np
    from esm.data import Alphabet

    alphabet = Alphabet.from_architecture("ESM-1b")
    assert (alphabet.cls_idx, alphabet.padding_idx, alphabet.eos_idx) == (BOS, PAD, EOS)
    assert alphabet.mask_idx == MASK and len(alphabet) == NUM_TOKENS
    table = np.full(256, alphabet.unk_idx, np.int64)
    for token, index in alphabet.to_dict().items():
        if len(token) == 1:
            table[ord(token)] = index
    return table
