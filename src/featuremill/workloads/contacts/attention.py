"""Compute attention, and from its probabilities the contacts, head by head and layer by layer.

The regression is linear in the symmetrised and corrected maps, so no map is stored:

    logit_ij = bias + sum of w (p_ij + p_ji) - sum of w a_i a_j / t

over all heads, where p are a head's probabilities without the special tokens, a_i is the sum of row
i and column i of p, and t is the sum of a (average product correction, Dunn et al. 2008,
doi:10.1093/bioinformatics/btm604). For any number of layers, memory holds only one sum whose size
is the square of the protein's length. All numbers are fp32. Attention is computed in tiles of rows
and heads, which depend on the length of their sequence only, so the batch changes no bit.

Shape legend: T tokens, L tokens or residues of one sequence, R tokens of a tile, N layers, H heads,
h heads of a tile, d width of a head, K tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from featuremill.workloads.contacts.sources import Regression
from featuremill.workloads.esm2 import lanes
from featuremill.workloads.esm2.attention import Backend
from featuremill.workloads.esm2.packing import Packed

MOST_TILES = 32
"""The largest number of tiles of a sequence; each tile has its own sums of columns in memory."""


class Tile(NamedTuple):
    """A range of rows of a sequence."""

    sequence: int
    """The index of the sequence in its pack."""
    number: int
    """The index of the tile in its sequence."""
    rows: slice


def tiles_of(sequence: int, part: slice, tile_bytes: int) -> list[Tile]:
    """Return the tiles of a sequence, which is the `part` of a pack."""
    length = part.stop - part.start
    step = max(1, tile_bytes // (4 * length), -(-length // MOST_TILES))
    return [
        Tile(sequence, number, slice(start, min(start + step, length)))
        for number, start in enumerate(range(0, length, step))
    ]


class Sums(NamedTuple):
    """The sums of one sequence over the computed layers."""

    weighted_LL: Tensor
    """The weighted sum of all heads' probabilities, with special tokens."""
    margins_NHL: Tensor
    """The sum of the row and the column of each residue."""

    def to(self, device: torch.device) -> Sums:
        """Return the same on `device`, copied through the host."""
        return Sums(*(tensor.cpu().to(device) for tensor in self))


class Observer:
    """A backend of attention that adds up the contacts of one pack after the other.

    Between `begin` and `attention`, the layers must be computed in order. At other times, it only
    computes attention.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        regression: Regression | None,
        tile_bytes: Mapping[str, int],
    ) -> None:
        """Without a regression, no contacts are computed. `tile_bytes` is the size of a tile's
        probabilities on each kind of device."""
        self.backend = Backend("fp32 probabilities, looked at", self.attend)
        self._shape, self._tile_bytes = (num_layers, num_heads), tile_bytes
        self._regression = regression
        self._weights_NH: dict[torch.device, Tensor] = {}
        self._layer = 0
        self._sums: list[Sums] = []
        self._maps: list[Tensor | None] = []

    def begin(
        self, pack: Packed, wanted: Sequence[bool], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Start observing the layers over `pack`; store the attention of the `wanted` sequences in
        `dtype`."""
        sizes = [end - start for start, end in zip(pack.bounds, pack.bounds[1:], strict=False)]
        self._layer = 0
        self._sums, self._maps = [], []  # free those of a batch that ran out of memory
        if self._regression is not None:
            self._sums = [
                Sums(
                    torch.zeros(size, size, device=device),
                    torch.empty(*self._shape, size - 2, device=device),
                )
                for size in sizes
            ]
        self._maps = [
            torch.empty(*self._shape, size - 2, size - 2, dtype=dtype) if is_wanted else None
            for size, is_wanted in zip(sizes, wanted, strict=True)
        ]

    def attend(self, qkv_T3Hd: Tensor, pack: Packed) -> Tensor:
        """Return context_THd of a pack."""
        context_THd = torch.empty_like(qkv_T3Hd[:, 0])
        context_THd[pack.bounds[-1] :] = 0
        device = qkv_T3Hd.device
        if self._sums and self._sums[0].weighted_LL.device != device:
            self._sums = [sums.to(device) for sums in self._sums]
        parts = [slice(*bounds) for bounds in zip(pack.bounds, pack.bounds[1:], strict=False)]
        tile_bytes = self._tile_bytes[device.type]
        tiles = [tiles_of(number, part, tile_bytes) for number, part in enumerate(parts)]
        columns = [
            torch.zeros(len(some), qkv_T3Hd.shape[2], part.stop - part.start, device=device)
            for some, part in zip(tiles, parts, strict=True)
        ]

        def attend_tile(tile: Tile) -> None:
            part = parts[tile.sequence]
            self._attend(qkv_T3Hd[part], context_THd[part], tile, columns[tile.sequence])

        pieces = [tile for some in tiles for tile in some]
        if device.type == "cpu":
            lanes.each(attend_tile, pieces)
        else:
            for tile in pieces:
                attend_tile(tile)
        for sums, columns_KHL in zip(self._sums, columns, strict=False):
            # Always in this order, so that the number of threads changes no bit.
            sums.margins_NHL[self._layer] += columns_KHL.sum(0)[:, 1:-1]
        self._layer += bool(self._maps)
        return context_THd

    def _attend(
        self, qkv_L3Hd: Tensor, context_LHd: Tensor, tile: Tile, columns_KHL: Tensor
    ) -> None:
        """Write the context of a tile, and add its probabilities to the sums."""
        length, _, num_heads, head_dim = qkv_L3Hd.shape
        rows = tile.rows
        tile_bytes = self._tile_bytes[qkv_L3Hd.device.type]
        together = max(1, tile_bytes // (4 * (rows.stop - rows.start) * length))
        first, last = max(rows.start, 1), min(rows.stop, length - 1)  # without BOS and EOS
        inner, residues = slice(first - rows.start, last - rows.start), slice(first - 1, last - 1)
        for head in range(0, num_heads, together):
            heads = slice(head, head + together)
            query_hRd = qkv_L3Hd[rows, 0, heads].transpose(0, 1).float() * head_dim**-0.5
            key_hdL = qkv_L3Hd[:, 1, heads].permute(1, 2, 0).float()
            attention_hRL = torch.bmm(query_hRd, key_hdL).softmax(-1)
            value_hLd = qkv_L3Hd[:, 2, heads].transpose(0, 1).float()
            context_LHd[rows, heads] = (
                torch.bmm(attention_hRL, value_hLd).transpose(0, 1).to(context_LHd.dtype)
            )
            if not self._maps or first >= last:
                continue
            own_hRL = attention_hRL[:, inner, 1:-1]
            if (maps := self._maps[tile.sequence]) is not None:
                maps[self._layer, heads, residues] = own_hRL.to(maps.dtype).cpu()
            if self._regression is not None:
                weights_h = self._weights_on(attention_hRL.device)[self._layer, heads]
                sums = self._sums[tile.sequence]
                weighted = sums.weighted_LL[rows].view(-1)
                weighted.addmv_(attention_hRL.view(len(attention_hRL), -1).t(), weights_h)
                sums.margins_NHL[self._layer, heads, residues] = own_hRL.sum(-1)
                columns_KHL[tile.number, heads, 1:-1] = own_hRL.sum(1)

    def _weights_on(self, device: torch.device) -> Tensor:
        assert self._regression is not None
        if device not in self._weights_NH:
            self._weights_NH[device] = self._regression.weights_NH.to(device)
        return self._weights_NH[device]

    def attention(self) -> list[Tensor | None]:
        """Return the attention (N, H, L, L) of each wanted sequence on the host, None for others,
        and stop observing. Call it after all layers."""
        maps, self._maps = self._maps, []
        return maps

    def contacts(self) -> Iterator[Tensor]:
        """Yield probabilities_LL of each sequence of the pack. Call it after all layers."""
        assert self._regression is not None and self._layer == self._shape[0]
        sums, self._sums = dict(enumerate(self._sums)), []
        if sums[0].weighted_LL.device.type != "cpu":
            for number in list(sums):
                yield self._contacts(sums.pop(number))
            return
        # Each in one lane: the rounding of a product depends on its number of threads.
        map_of: dict[int, Tensor] = {}

        def finish(number: int) -> None:
            map_of[number] = self._contacts(sums.pop(number))

        lanes.each(finish, list(sums))
        yield from (map_of[number] for number in sorted(map_of))

    def _contacts(self, sums: Sums) -> Tensor:
        assert self._regression is not None
        weights_N1 = self._weights_on(sums.weighted_LL.device).reshape(-1, 1)
        margins_NL = sums.margins_NHL.flatten(0, 1)
        shares_NL = margins_NL * (weights_N1 / margins_NL.sum(1, keepdim=True))
        logits_LL = self._regression.bias.item() - margins_NL.t() @ shares_NL
        weighted_LL = sums.weighted_LL[1:-1, 1:-1]
        logits_LL += weighted_LL
        logits_LL += weighted_LL.t()
        upper_LL = logits_LL.sigmoid_().triu_()
        return upper_LL + upper_LL.triu(1).t()
