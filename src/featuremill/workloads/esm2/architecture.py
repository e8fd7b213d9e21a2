"""Differences between the networks that the engine computes: ESM-2, ESM C, ESM-1b, ESM-1v, SaProt;
their sizes, and the published ESM-2.

All are pre-LayerNorm transformers. ESM-1b and ESM-1v have learned position embeddings; in our file
of weights their rotary frequencies are zeros, which rotate by nothing. Missing biases are zeros
there, too (ESM C has biases only in two LayerNorms of a layer). SaProt is an ESM-2 whose tokens are
residues with their structures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ESM_1B", "ESM_1V", "ESM_C", "SAPROT", "Architecture", "Sizes", "sizes_of"]


class Architecture(NamedTuple):
    """The properties in which the networks differ."""

    name: str
    """The name in the metadata of its weights."""
    title: str
    """The name in messages."""
    num_rows: int
    """Number of rows of the embedding."""
    has_token_dropout: bool
    """Whether embeddings are scaled by the share of unmasked tokens, as in training."""
    is_gated: bool
    """Whether the feed-forward layers are a SwiGLU, with the gate in the first rows of `up`."""
    norms_query_and_key: bool
    """Whether query and key have a LayerNorm before the rotation."""
    unscaled_layers: int
    """The number of layers for which residual branches are not scaled; with n layers, they are
    divided by the root of n over this number. 0: never scaled."""
    mask: int = 32
    """The id of the mask token."""
    num_positions: int = 0
    """Number of rows of the position embeddings, including padding; 0 if positions are rotary."""
    norms_embedding: bool = False
    """Whether the sum of token and position embeddings has a LayerNorm."""

    def divisor(self, num_layers: int) -> float:
        """Return the divisor of the residual branches of a network of `num_layers`."""
        return (num_layers / self.unscaled_layers) ** 0.5 if self.unscaled_layers else 1.0


ESM2 = Architecture("esm2", "ESM-2", 33, True, False, False, 0)
ESM_C = Architecture("esmc", "ESM C", 64, False, True, True, 36)
ESM_1V = ESM2._replace(name="esm1v", title="ESM-1v", num_positions=1026)
ESM_1B = ESM_1V._replace(name="esm1b", title="ESM-1b", norms_embedding=True)
SAPROT = ESM2._replace(name="saprot", title="SaProt", num_rows=446, mask=4)
ARCHITECTURES = {
    architecture.name: architecture for architecture in (ESM2, ESM_C, ESM_1B, ESM_1V, SAPROT)
}


class Sizes(NamedTuple):
    """The sizes of a network, from the metadata of its weights."""

    architecture: Architecture
    num_layers: int
    num_heads: int
    """Number of heads; 0 if unknown."""
    width: int
    feed_forward: int
    """Inner width of the feed-forward layers; four times the width if unknown."""

    def metadata(self) -> dict[str, str]:
        """Return the sizes as metadata of weights."""
        known = {
            "architecture": self.architecture.name,
            "num_layers": str(self.num_layers),
            "embed_dim": str(self.width),
            "attention_heads": str(self.num_heads),
        }
        if self.architecture.is_gated:
            known["feed_forward"] = str(self.feed_forward)
        return known

    @property
    def num_matrix_numbers(self) -> int:
        """Number of weights of all layers: qkv, out, and feed-forward layers."""
        num_matrices = 3 if self.architecture.is_gated else 2
        of_layer = self.width * (4 * self.width + num_matrices * self.feed_forward)
        return self.num_layers * of_layer

    @property
    def num_outputs(self) -> int:
        """Number of biases of all layers: qkv, out, and feed-forward layers."""
        num_halves = 2 if self.architecture.is_gated else 1
        return self.num_layers * (5 * self.width + num_halves * self.feed_forward)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.num_heads


def sizes_of(metadata: Mapping[str, str]) -> Sizes:
    """Return the sizes in the metadata of weights."""
    width = int(metadata["embed_dim"])
    return Sizes(
        ARCHITECTURES[metadata.get("architecture", ESM2.name)],
        int(metadata["num_layers"]),
        int(metadata.get("attention_heads", 0)),
        width,
        int(metadata.get("feed_forward", 4 * width)),
    )


class Published(NamedTuple):
    """An ESM-2 on Meta's server."""

    num_layers: int
    width: int
    num_heads: int
    dtype: str
    gigabytes: float
    """The approximate size of its checkpoint in GB."""


PUBLISHED = {
    "esm2_t6_8M_UR50D": Published(6, 320, 20, "float32", 0.03),
    "esm2_t12_35M_UR50D": Published(12, 480, 20, "float32", 0.14),
    "esm2_t30_150M_UR50D": Published(30, 640, 20, "float32", 0.6),
    "esm2_t33_650M_UR50D": Published(33, 1280, 20, "float32", 2.6),
    "esm2_t36_3B_UR50D": Published(36, 2560, 40, "float16", 5.7),
    "esm2_t48_15B_UR50D": Published(48, 5120, 40, "float16", 30.3),
}
