"""The layers on one device, and the methods that compute them.

Shape legend: T tokens of all sequences, D width, F inner width of the feed-forward layers, H heads,
d width of a head, P positions, f = d/2 pairs of a head, O outputs of a product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from featuremill.workload.spread import DIRECT, Copies
from featuremill.workloads.esm2 import lanes, packing
from featuremill.workloads.esm2.attention import Backend
from featuremill.workloads.esm2.kernels import Kernels
from featuremill.workloads.esm2.matmul import OneDnnAmx, Product, Stream
from featuremill.workloads.esm2.packing import Packed

BLOCK_BYTES = 2**25
"""Largest size of a tensor of a block on a CPU: glibc maps larger blocks afresh each time, and page
faults took 10 % of the time (ESM C of 300M's width, fp32)."""


class Norm(NamedTuple):
    """Scale and shift of a LayerNorm, in fp32."""

    weight_D: Tensor
    bias_D: Tensor


class Layer(NamedTuple):
    """One pre-LayerNorm transformer block."""

    attention_norm: Norm
    qkv: Product
    query_key_norm_2D: Tensor | None
    """Weights of the LayerNorms of query and key, in fp32; None if there are none."""
    out: Product
    feed_forward_norm: Norm
    up: Product
    is_gated: bool
    down: Product

    def hidden(self, normed_TD: Tensor, kernels: Kernels) -> Tensor:
        """Return hidden_TF, the inner tensor of the feed-forward layers."""
        return kernels.gate(self.up(normed_TD)) if self.is_gated else self.up.gelu(normed_TD)


class Block(NamedTuple):
    """Rows that are computed together between two attentions."""

    rows: slice
    stream: Stream

    def rows_of(self, tensor: Tensor) -> Tensor:
        """Return the rows of this block in a tensor of all rows."""
        return tensor if self.rows == slice(0, len(tensor)) else tensor[self.rows]


class Stage(NamedTuple):
    """The layers on one device, and the methods that compute them."""

    device: torch.device
    layers: list[Layer]
    running_D: list[Tensor | None]
    """Cumulative sums in fp32 of the biases of products added on this device: before the first
    layer (None), and after each added product."""
    backend: Backend
    form: type[Product]
    kernels: Kernels
    copies: Copies
    """The method that copies tensors from the previous stage."""

    @property
    def name(self) -> str:
        """The methods of this stage, for the receipt."""
        ways = {
            "attention": self.backend.name,
            "products": self.form.name,
            "rest": self.kernels.name,
            "copies between GPUs": self.copies.name,
        }
        if self.copies is DIRECT:
            del ways["copies between GPUs"]
        return "; ".join(f"{what}: {way}" for what, way in ways.items())

    def rotates_in_attention(self, layer: Layer) -> bool:
        """Return whether the layer's attention includes the rotation of query and key."""
        return self.backend.rotate_and_attend is not None and layer.query_key_norm_2D is None

    def attend(self, layer: Layer, qkv_T3Hd: Tensor, pack: Packed, rotary_Pf2: Tensor) -> Tensor:
        """Return context_THd; query and key are already rotated, unless attention does that."""
        if self.backend.rotate_and_attend is not None and self.rotates_in_attention(layer):
            return self.backend.rotate_and_attend(qkv_T3Hd, pack, rotary_Pf2)
        return self.backend.attend(qkv_T3Hd, pack)

    def append(self, layer: Layer) -> None:
        """Append a layer."""
        self.layers.append(layer)
        for product in (layer.out, layer.down):
            known_D, bias_D = self.running_D[-1], product.bias_O.float()
            self.running_D.append(bias_D if known_D is None else known_D + bias_D)

    def bring(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the previous stage, on this device."""
        return self.copies.bring(tensor, self.device)

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Set the current GPU, on which Triton launches kernels, in a context."""
        if self.device.type == "cuda":
            return torch.cuda.device(self.device)
        return contextlib.nullcontext()

    def block_rows(self, num_rows: int) -> int:
        """Return the number of rows of a block: all rows; on a CPU, a share for each lane, limited
        by `BLOCK_BYTES` or by the product."""
        if self.device.type != "cpu":
            return num_rows
        if issubclass(self.form, OneDnnAmx):
            return self.form.ROWS
        row_bytes = max((layer.up.bias_O.nbytes for layer in self.layers), default=1)  # the widest
        return min(packing.shares(num_rows, lanes.number()), packing.below(BLOCK_BYTES, row_bytes))

    def blocks(self, residual_TD: Tensor) -> list[Block]:
        """Return the blocks of the residual stream, which will be overwritten."""
        num_rows = len(residual_TD)
        cut = packing.blocks(num_rows, self.block_rows(num_rows))
        parts = [residual_TD] if len(cut) == 1 else [residual_TD[rows] for rows in cut]
        streams = (self.form.STREAM(part, self.running_D) for part in parts)
        return [Block(rows, stream) for rows, stream in zip(cut, streams, strict=True)]

    def each(self, compute: Callable[[Block], None], blocks: list[Block]) -> None:
        """Compute every block, on a CPU each in one of the lanes."""
        if self.device.type == "cpu":
            lanes.each(compute, blocks)
        else:
            for block in blocks:
                compute(block)

    def rows(
        self,
        compute: Callable[[Block, Tensor | None], Tensor],
        blocks: list[Block],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        into: Tensor | None = None,
    ) -> Tensor:
        """Return the rows of all blocks, each row of that shape. With several blocks, each writes
        its rows into one tensor: `into`, if not None."""
        if len(blocks) == 1:
            computed: list[Tensor] = []
            self.each(lambda block: computed.append(compute(block, None)), blocks)
            return computed[0]
        if into is None:
            into = torch.empty(blocks[-1].rows.stop, *shape, dtype=dtype, device=self.device)
        rows = into

        def put(block: Block) -> None:
            compute(block, block.rows_of(rows))

        self.each(put, blocks)
        return rows
