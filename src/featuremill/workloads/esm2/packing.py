"""Concatenate token sequences into a pack, without padding between them.

Shape legend: T tokens of all sequences, with padding rows at the end; N pieces of sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from featuremill.workloads.esm2.tokens import MASK, PAD

if TYPE_CHECKING:
    from featuremill.workloads.esm2.tokens import Tokens

__all__ = ["Packed", "pack"]
ROW_MULTIPLE = 16
MIN_ROWS = 64
"""Smallest number of rows (a multiple of `ROW_MULTIPLE`) for which products on a CPU have the same
bits with any other rows; with fewer rows, other kernels may run."""
CUDA_ROW_MULTIPLE = 128
"""Rows of a tile of the matrix products."""
LONGEST_FILLING = 128
"""The longest sequence of padding rows, which attend to each other."""
PIECE_ROWS = 128
"""Largest number of rows of a piece of a sequence, see `Packed.pieces_N3`."""
_HOST = torch.device("cpu")


class Packed(NamedTuple):
    """Token sequences end to end; rows from `bounds[-1]` on are padding."""

    tokens_T: Tensor
    positions_T: Tensor
    bounds: list[int]
    """Start of sequence n: `bounds[n]`; its end: `bounds[n + 1]`."""
    cu_seqlens: Tensor
    """The bounds as int32, for kernels over all sequences. Padding forms sequences here: rows that
    a kernel skips would be uninitialised, and another kernel that loads whole tiles would read
    them."""
    pieces_N3: Tensor
    """The sequences, including padding, cut into pieces of at most `PIECE_ROWS` rows: start and end
    of the sequence, and the first row of the piece in it (int32). Pieces of the longest sequences
    come first, so that a GPU does not start large work last."""
    longest: int
    unmasked_T1: Tensor | None
    """The share of tokens other than `<mask>` in each token's sequence; None if it is 1."""


def num_rows(num_tokens: int, batch_tokens: int, device: torch.device) -> int:
    """Return the number of rows to compute for a pack of `num_tokens` in batches of `batch_tokens`.

    cuBLAS selects a kernel by the number of rows, and kernels may round differently. So on CUDA
    every batch has the rows of a full one (a longer sequence, as many as it needs). On an H200,
    1,000 proteins then had the same bits in one shard and in six. A kernel whose blocks share a sum
    (stream-K) might round by the position of a row: `make bench-gpu` counts such differences.
    """
    if device.type == "cuda":
        return _up(max(num_tokens, batch_tokens), CUDA_ROW_MULTIPLE)
    return max(MIN_ROWS, _up(num_tokens, ROW_MULTIPLE))


def blocks(num_rows: int, most: int) -> list[slice]:
    """Return the blocks of rows between attentions: of `most` rows, a multiple of `ROW_MULTIPLE`,
    except for the last two; none below `MIN_ROWS` if there are as many rows."""
    starts = list(range(0, num_rows, most))
    if len(starts) > 1 and num_rows - starts[-1] < MIN_ROWS:
        starts[-1] -= MIN_ROWS
    return [slice(*bounds) for bounds in zip(starts, [*starts[1:], num_rows], strict=True)]


def shares(num_rows: int, count: int) -> int:
    """Return the number of rows of a block so that each of `count` threads has a block."""
    return max(2 * MIN_ROWS, _up(-(-num_rows // count), ROW_MULTIPLE))


def below(num_bytes: int, row_bytes: int) -> int:
    """Return the largest number of rows of `row_bytes` for which a block is below `num_bytes`."""
    return max(2 * MIN_ROWS, (num_bytes - 1) // row_bytes // ROW_MULTIPLE * ROW_MULTIPLE)


def pack(
    sequences: Sequence[Tokens],
    batch_tokens: int = 0,
    device: torch.device = _HOST,
    mask: int = MASK,
) -> Packed:
    """Pack token sequences, each with its BOS and EOS, for batches of `batch_tokens` on `device`.

    The pack is on the host. `mask` is the id of the mask token.
    """
    lengths = [len(sequence) for sequence in sequences]
    bounds = [0, *np.cumsum(lengths).tolist()]
    filling = num_rows(bounds[-1], batch_tokens, device) - bounds[-1]
    tokens = np.concatenate([*sequences, np.full(filling, PAD)])
    positions = np.concatenate([*map(np.arange, lengths), np.zeros(filling, np.int64)])
    # Padding is cut into sequences that are not longer than the longest real one.
    step = min(max(lengths), LONGEST_FILLING)
    ends = range(step, filling + step, step)
    all_bounds = bounds + [bounds[-1] + min(end, filling) for end in ends]
    return Packed(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        bounds,
        torch.tensor(all_bounds, dtype=torch.int32),
        torch.tensor(_pieces(all_bounds), dtype=torch.int32),
        max(lengths),
        _unmasked(sequences, filling, mask),
    )


def _pieces(bounds: Sequence[int]) -> list[tuple[int, int, int]]:
    sequences = sorted(pairwise(bounds), key=lambda ends: ends[0] - ends[1])
    return [
        (start, end, first)
        for start, end in sequences
        for first in range(0, end - start, PIECE_ROWS)
    ]


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _unmasked(sequences: Sequence[Tokens], filling: int, mask: int) -> Tensor | None:
    shares = [np.float32(np.count_nonzero(s == mask)) / np.float32(len(s)) for s in sequences]
    if not any(shares):
        return None
    each = [np.full(len(s), 1 - share) for s, share in zip(sequences, shares, strict=True)]
    return torch.from_numpy(np.concatenate([*each, np.ones(filling, np.float32)]))[:, None]
