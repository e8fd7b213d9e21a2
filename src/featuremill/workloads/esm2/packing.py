"""Several token sequences as one, without padding between them.

Shape legend: T tokens of all sequences, and the few rows that fill the matrix products up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from featuremill.workloads.esm2.tokens import MASK, PAD, Tokens

ROW_MULTIPLE = 16
MIN_ROWS = 64
"""With this many rows or more, in multiples of `ROW_MULTIPLE`, products on a CPU give a row the
same bits whatever the other rows are; with fewer, other kernels run (tests/test_esm2.py)."""


class Packed(NamedTuple):
    """Token sequences laid end to end; rows from `bounds[-1]` on are filling."""

    tokens_T: Tensor
    positions_T: Tensor
    bounds: list[int]
    """Where sequence n starts: `bounds[n]`; where it ends: `bounds[n + 1]`."""
    cu_seqlens: Tensor
    """The same for the attention kernel (int32), with the filling as one more sequence."""
    longest: int
    unmasked_T1: Tensor | None
    """The share of tokens other than `<mask>` in each token's sequence; None where it is 1."""

    def to(self, device: torch.device) -> Packed:
        """Return the pack with its tensors on `device`."""
        if device.type == "cpu":
            return self
        unmasked_T1 = self.unmasked_T1
        return self._replace(
            tokens_T=_send(self.tokens_T, device),
            positions_T=_send(self.positions_T, device),
            cu_seqlens=_send(self.cu_seqlens, device),
            unmasked_T1=None if unmasked_T1 is None else _send(unmasked_T1, device),
        )


def pack(sequences: Sequence[Tokens]) -> Packed:
    """Pack token sequences, each with its BOS and EOS."""
    lengths = [len(sequence) for sequence in sequences]
    bounds = [0, *np.cumsum(lengths).tolist()]
    num_rows = max(MIN_ROWS, -(-bounds[-1] // ROW_MULTIPLE) * ROW_MULTIPLE)
    filling = num_rows - bounds[-1]
    tokens = np.concatenate([*sequences, np.full(filling, PAD)])
    positions = np.concatenate([np.arange(length) for length in (*lengths, filling)])
    return Packed(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        bounds,
        torch.tensor([*bounds, num_rows] if filling else bounds, dtype=torch.int32),
        max(*lengths, filling),
        _unmasked(sequences, filling),
    )


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True)


def _unmasked(sequences: Sequence[Tokens], filling: int) -> Tensor | None:
    shares = [np.float32(np.count_nonzero(s == MASK)) / np.float32(len(s)) for s in sequences]
    if not any(shares):
        return None
    each = [np.full(len(s), 1 - share) for s, share in zip(sequences, shares, strict=True)]
    return torch.from_numpy(np.concatenate([*each, np.ones(filling, np.float32)]))[:, None]
