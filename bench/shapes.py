"""The networks that are measured: the published shapes of ESM-2, and tiny ones for smoke runs."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Shape(NamedTuple):
    """The shape of one ESM-2."""

    name: str
    num_layers: int
    width: int
    num_heads: int
    stored_as: Literal["fp32", "fp16"] = "fp32"
    """Number type of the weights' values; the larger models were published in fp16."""

    def gemm_flops(self) -> int:
        """Return the operations of the matrix products with weights, for one token."""
        return 24 * self.width**2 * self.num_layers

    def num_weights(self) -> int:
        """Return the weights of the encoder's products, nearly all there are."""
        return 12 * self.width**2 * self.num_layers

    def flops(self, effective_length: float) -> float:
        """Return the operations of the encoder for one token of a set of that ΣL²/ΣL."""
        return self.gemm_flops() + 4 * effective_length * self.width * self.num_layers


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", 2, 64, 4),
        Shape("tiny narrow", 2, 32, 2),
        Shape("tiny short", 1, 64, 4),
        Shape("tiny flat", 1, 32, 2),
        Shape("tiny fp16", 2, 64, 4, "fp16"),
        Shape("8M", 6, 320, 20),
        Shape("35M", 12, 480, 20),
        Shape("150M", 30, 640, 20),
        Shape("650M", 33, 1280, 20),
        Shape("3B", 36, 2560, 40, "fp16"),
    )
}
