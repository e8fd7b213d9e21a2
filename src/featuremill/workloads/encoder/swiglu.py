"""Networks with SwiGLU (Shazeer 2020): AMPLIFY and gLM2, without their heads, with RMSNorm and
rotary positions; and the Nucleotide Transformer 2.

The Nucleotide Transformer 2 differs from transformers' ESM in two linear layers of each block: the
first returns gate and value side by side, and neither has a bias if the config has `add_bias_fnn:
false`. Its published code is never run here.

AMPLIFY and gLM2 are written from the papers: a norm before attention and before the feed-forward
layers (RMSNorm; Zhang and Sennrich 2019), rotary positions (Su et al. 2021), SwiGLU and no biases.
The two differ in the names of their weights, and in the pairs of numbers that are rotated together.
The norm after the last layer belongs to the heads: hidden states are those of the authors' code,
which are without that norm.

With bf16, matrix products and attention are in bf16; embeddings, residual stream, norms and
rotation are in fp32.

Shape legend: B sequences, T tokens of the longest, E width, H heads, d width of a head, h half of
it, I inner width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from featuremill.kit.errors import UserError

NAMES = {
    "attention_norm": ["attention_norm"],
    "ffn_norm": ["ffn_norm"],
    # AMPLIFY's
    "q": ["query"],
    "k": ["key"],
    "v": ["value"],
    "wo": ["out"],
    "ffn.w12": ["gate", "up"],
    "ffn.w3": ["down"],
    # gLM2's
    "attention.wqkv": ["query", "key", "value"],
    "attention.wo": ["out"],
    "feed_forward.w1": ["gate"],
    "feed_forward.w3": ["up"],
    "feed_forward.w2": ["down"],
}
"""The part of a weight's name after the layer's number → the linear layers that it concatenates."""
OF_LAYER = re.compile(r"(?:transformer_encoder|encoder\.layers)\.(\d+)\.(.+)\.weight")
EMBEDDINGS = ("encoder.weight", "tok_embeddings.weight")
ROTARY_BASE = 10_000.0


def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `tensors` under the names of the modules here; unknown names are kept."""
    renamed = {}
    for name, tensor in tensors.items():
        match = OF_LAYER.fullmatch(name)
        if match and match[2] in NAMES:
            parts = NAMES[match[2]]
            for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
                renamed[f"layers.{match[1]}.{part}.weight"] = rows
        else:
            renamed["embedding.weight" if name in EMBEDDINGS else name] = tensor
    return renamed


class SwigluEncoder(nn.Module):
    """The encoder with weights of torch's initialization, to be filled by `load_state_dict`.

    Rotary positions rotate each pair of adjacent numbers of a head in an AMPLIFY; in a gLM2, each
    number with the number half a head further.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, heads = config["hidden_size"], config["num_attention_heads"]
        if width % heads or width // heads % 2:
            raise UserError(f"a width of {width} does not make {heads} heads of an even width")
        self.head_width: int = width // heads
        self.interleaved: bool = config["model_type"] == "AMPLIFY"
        self.embedding = nn.Embedding(config["vocab_size"], width)
        inner, eps = config["intermediate_size"], config["norm_eps"]
        self.layers = nn.ModuleList(
            Layer(width, inner, heads, eps) for _ in range(config["num_hidden_layers"])
        )

    def forward(self, tokens_BT: Tensor, is_token_BT: Tensor | None = None) -> list[Tensor]:
        """Return hidden_BTE in fp32: the embeddings, then one tensor per layer.

        `is_token_BT` (bool) is False for padding; None: no padding.
        """
        rotary = self._rotary(tokens_BT.shape[1], tokens_BT.device)
        is_seen_B11T = None if is_token_BT is None else is_token_BT[:, None, None]
        hidden = [self.embedding(tokens_BT).float()]
        for layer in self.layers:
            hidden.append(layer(hidden[-1], rotary, is_seen_B11T))
        return hidden

    def _rotary(self, num_tokens: int, device: torch.device) -> Rotary:
        exponents_h = torch.arange(0, self.head_width, 2, dtype=torch.float32) / self.head_width
        positions_T = torch.arange(num_tokens, dtype=torch.float32)
        angles_Th = torch.outer(positions_T, 1 / ROTARY_BASE**exponents_h)
        angles_Th = angles_Th.to(device)
        return Rotary(angles_Th.cos(), angles_Th.sin(), self.interleaved)


class Rotary(NamedTuple):
    """The rotary position embedding of the tokens of a sequence."""

    cosines_Th: Tensor
    sines_Th: Tensor
    interleaved: bool

    def __call__(self, head_BHTd: Tensor) -> Tensor:
        """Return queries or keys, rotated in fp32."""
        # Reshaped to pairs: [h, 2] if interleaved, else [2, h].
        pairs, dim = ((-1, 2), -1) if self.interleaved else ((2, -1), -2)
        first, second = head_BHTd.float().reshape(*head_BHTd.shape[:-1], *pairs).unbind(dim)
        rotated = (
            first * self.cosines_Th - second * self.sines_Th,
            first * self.sines_Th + second * self.cosines_Th,
        )
        return torch.stack(rotated, dim).flatten(-2).to(head_BHTd.dtype)


class Norm(nn.Module):
    """RMSNorm in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        mean_BT1 = hidden_BTE.square().mean(-1, keepdim=True)
        normed_BTE: Tensor = hidden_BTE * torch.rsqrt(mean_BT1 + self.eps) * self.weight
        return normed_BTE


class Layer(nn.Module):
    """Attention and feed-forward layers, each with a norm before it and a residual connection."""

    def __init__(self, width: int, inner: int, num_heads: int, eps: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.ffn_norm = Norm(width, eps), Norm(width, eps)
        self.query, self.key, self.value, self.out = (_product(width, width) for _ in range(4))
        self.gate, self.up = _product(width, inner), _product(width, inner)
        self.down = _product(inner, width)

    def forward(self, hidden_BTE: Tensor, rotary: Rotary, is_seen_B11T: Tensor | None) -> Tensor:
        normed_BTE = self.attention_norm(hidden_BTE)
        query, key, value = (
            product(normed_BTE).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for product in (self.query, self.key, self.value)
        )
        context_BHTd = F.scaled_dot_product_attention(
            rotary(query), rotary(key), value, is_seen_B11T
        )
        hidden_BTE = hidden_BTE + self.out(context_BHTd.transpose(1, 2).flatten(2))
        normed_BTE = self.ffn_norm(hidden_BTE)
        inner = F.silu(self.gate(normed_BTE)) * self.up(normed_BTE)
        output_BTE: Tensor = hidden_BTE + self.down(inner)
        return output_BTE


def _product(width: int, out: int) -> nn.Linear:
    return nn.Linear(width, out, bias=False)


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
