"""Several token sequences as one, without padding between them.

Shape legend: T tokens of all sequences, and the padding rows that complete the matrix products; N
pieces of sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
"""With at least so many rows, in multiples of `ROW_MULTIPLE`, products on a CPU give a row the same
bits for any other rows; with fewer, other kernels may run."""
CUDA_ROW_MULTIPLE = 128
"""Rows of a tile of the matrix products."""
LONGEST_FILLING = 128
"""The longest sequence of padding rows, which attend to each other: more would be slower."""
PIECE_ROWS = 128
"""The most rows of a piece of a sequence, see `Packed.pieces_N3`."""
_HOST = torch.device("cpu")


class Packed(NamedTuple):
    """Token sequences end to end; rows from `bounds[-1]` on are padding."""

    tokens_T: Tensor
    positions_T: Tensor
    bounds: list[int]
    """Start of sequence n: `bounds[n]`; its end: `bounds[n + 1]`."""
    cu_seqlens: Tensor
    """The bounds as int32, for a kernel that attends within all sequences at once. Here the padding
    forms sequences as well: rows that the kernel skips would hold whatever was in memory, and
    another kernel that loads whole tiles would read them one layer later."""
    pieces_N3: Tensor
    """The sequences, padding included, cut into pieces of at most `PIECE_ROWS` rows: start and end
    of the sequence, and the piece's first row in it (int32). Those of the longest come first: on a
    GPU, large work should not be started last."""
    longest: int
    unmasked_T1: Tensor | None
    """The share of tokens other than `<mask>` in each token's sequence; None where it is 1."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Packed:
        """Return the pack with every tensor changed."""
        return self._replace(
            tokens_T=change(self.tokens_T),
            positions_T=change(self.positions_T),
            cu_seqlens=change(self.cu_seqlens),
            pieces_N3=change(self.pieces_N3),
            unmasked_T1=None if self.unmasked_T1 is None else change(self.unmasked_T1),
        )

    def to(self, device: torch.device) -> Packed:
        """Return the pack on `device`."""
        if self.tokens_T.device == device:
            return self
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))


def num_rows(num_tokens: int, batch_tokens: int, device: torch.device) -> int:
    """Return the rows to compute for a pack of `num_tokens` in batches of `batch_tokens`.

    cuBLAS picks a kernel by the number of rows, and kernels may round differently: on CUDA every
    batch has as many rows as a full one (a longer sequence, as many as it needs). On an H200, 1,000
    proteins then had the same bits in one shard and in six. A kernel whose blocks share a sum
    (stream-K) might round by a row's place: `make bench-gpu` counts.
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
    """Return the rows of a block so that each of `count` threads has one."""
    return max(2 * MIN_ROWS, _up(-(-num_rows // count), ROW_MULTIPLE))


def below(num_bytes: int, row_bytes: int) -> int:
    """Return the most rows of `row_bytes` that a block may have to stay below `num_bytes`."""
    return max(2 * MIN_ROWS, (num_bytes - 1) // row_bytes // ROW_MULTIPLE * ROW_MULTIPLE)


def pack(
    sequences: Sequence[Tokens],
    batch_tokens: int = 0,
    device: torch.device = _HOST,
    mask: int = MASK,
) -> Packed:
    """Pack token sequences, each with its BOS and EOS, for batches of `batch_tokens` on `device`.

    The pack itself is on the host. `mask` is the token that hides a residue.
    """
    lengths = [len(sequence) for sequence in sequences]
    bounds = [0, *np.cumsum(lengths).tolist()]
    filling = num_rows(bounds[-1], batch_tokens, device) - bounds[-1]
    tokens = np.concatenate([*sequences, np.full(filling, PAD)])
    positions = np.concatenate([*map(np.arange, lengths), np.zeros(filling, np.int64)])
    all_bounds = bounds + _ends_of_filling(bounds[-1], filling, max(lengths))
    return Packed(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        bounds,
        torch.tensor(all_bounds, dtype=torch.int32),
        torch.tensor(_pieces(all_bounds), dtype=torch.int32),
        max(lengths),
        _unmasked(sequences, filling, mask),
    )


def _ends_of_filling(start: int, filling: int, longest: int) -> list[int]:
    """Return the ends of the padding's sequences; none is longer than the longest real one."""
    step = min(longest, LONGEST_FILLING)
    return [start + min(end, filling) for end in range(step, filling + step, step)]


def _pieces(bounds: Sequence[int]) -> list[tuple[int, int, int]]:
    """See `Packed.pieces_N3`."""
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
