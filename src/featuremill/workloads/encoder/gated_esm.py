"""transformers' ESM with the feed-forward layers of the Nucleotide Transformer 2: a SwiGLU.

The published model has code of its own, which is never run here. It differs from transformers' ESM
in two linear layers of each block: the first returns gate and value side by side (Shazeer 2020),
and neither has a bias if the config has `add_bias_fnn: false`.

Shape legend: B sequences, T tokens of the longest, E width, I inner width.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class Gated(nn.Module):
    """The gated linear layer from the width to the inner width, under the published name."""

    def __init__(self, width: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 2 * inner, bias=bias)

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        gate_BTI, value_BTI = self.dense(hidden_BTE).chunk(2, dim=-1)
        inner_BTI: Tensor = F.silu(gate_BTI) * value_BTI
        return inner_BTI


def with_gates(network: Any, bias: bool) -> Any:
    """Return the EsmModel `network` with gated feed-forward layers, without weights."""
    width, inner = network.config.hidden_size, network.config.intermediate_size
    for layer in network.encoder.layer:
        layer.intermediate = Gated(width, inner, bias)
        layer.output.dense = nn.Linear(inner, width, bias=bias)
    return network
