"""In what the networks differ that the engine computes: ESM-2, and ESM C.

Both are pre-LayerNorm transformers with rotary positions. Biases that a network does not have (ESM
C has them in two LayerNorms of a layer only) stand as zeros in our file of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Architecture(NamedTuple):
    """What one network does and the other does not."""

    name: str
    """As the metadata of its weights say it."""
    title: str
    """As people say it."""
    has_token_dropout: bool
    """Whether training masked tokens, and embeddings are scaled by the share of those that are
    left."""
    is_gated: bool
    """Whether the feed forward is a SwiGLU, with the gate above the rest of `up`."""
    norms_query_and_key: bool
    """Whether these go through a LayerNorm before they are turned."""
    unscaled_layers: int
    """With so many layers, what a layer adds to the residual stream is added as it is; with others
    it is divided by the root of their ratio. 0: always as it is."""

    def divisor(self, num_layers: int) -> float:
        """Return by what the residual branches of a network of `num_layers` are divided."""
        return (num_layers / self.unscaled_layers) ** 0.5 if self.unscaled_layers else 1.0


ESM2 = Architecture("esm2", "ESM-2", True, False, False, 0)
ESM_C = Architecture("esmc", "ESM C", False, True, True, 36)
ARCHITECTURES = {architecture.name: architecture for architecture in (ESM2, ESM_C)}


class Sizes(NamedTuple):
    """What is known of a network from the metadata of its weights."""

    architecture: Architecture
    num_layers: int
    num_heads: int
    width: int
    feed_forward: int
    """Width between the two halves of the feed forward."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.num_heads


def sizes_of(metadata: Mapping[str, str]) -> Sizes:
    """Return the sizes that the metadata of weights tell."""
    width = int(metadata["embed_dim"])
    return Sizes(
        ARCHITECTURES[metadata.get("architecture", ESM2.name)],
        int(metadata["num_layers"]),
        int(metadata["attention_heads"]),
        width,
        int(metadata.get("feed_forward", 4 * width)),
    )
