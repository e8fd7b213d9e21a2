"""MosaicBERT, the encoder of DNABERT-2 and DNABERT-S, without its pooler and heads.

Written from the papers: BERT (Devlin et al. 2019, post-LayerNorm) with ALiBi in place of position
embeddings (Press et al. 2022) and GEGLU feed-forward layers (Shazeer 2020), combined by Portes et
al. 2023. Modules have the names of the published checkpoints.

With bf16, the matrix products, their inputs and outputs and the bias of attention are in bf16;
embeddings, residual stream, LayerNorm and, inside torch's kernels, softmax are in fp32.

Shape legend: B sequences, T tokens of the longest, E width, H heads, d width of a head, I width of
the feed-forward layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from featuremill.kit.errors import UserError

KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("vocab_size", "type_vocab_size", "layer_norm_eps", "hidden_act"),
)
ALIGNED = 8
"""Rows of the bias begin at multiples of this number of elements. Otherwise torch copies the bias
for its CUDA kernels in each layer (`pad_bias` of attention.cpp)."""


class MosaicBert(nn.Module):
    """The encoder with weights of torch's initialization, to be filled by `load_state_dict`.

    It has no buffers, so it may be built on the meta device and loaded with `assign=True`. `config`
    is the content of config.json; UserError if it is of another architecture.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        if missing := [key for key in KEYS if key not in config]:
            raise UserError(
                f"config.json: {', '.join(missing)} is missing; get the file again from where the "
                "weights are from."
            )
        width, num_heads = config["hidden_size"], config["num_attention_heads"]
        if config["hidden_act"] != "gelu":
            raise UserError(
                f"config.json: hidden_act is {config['hidden_act']!r}, and only 'gelu' is computed "
                "of MosaicBERT; take a checkpoint that has it."
            )
        if width % num_heads:
            raise UserError(
                f"config.json: hidden_size {width} does not divide by num_attention_heads "
                f"{num_heads}; get the file again from where the weights are from."
            )
        self.num_heads: int = num_heads
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.encoder = nn.ModuleDict({"layer": layers})

    @torch.no_grad()
    def forward(self, tokens_BT: Tensor, is_token_BT: Tensor | None = None) -> list[Tensor]:
        """Return hidden_BTE in fp32: the embeddings, then one tensor per layer.

        `is_token_BT` (bool) is False for padding; None: no padding. Each sequence has a token.
        Values at padding are undefined.
        """
        hidden_BTE: Tensor = self.embeddings(tokens_BT)
        dtype = next(self.encoder.parameters()).dtype
        bias_BHTT = attention_bias(
            self.num_heads, tokens_BT.shape[1], is_token_BT, dtype, tokens_BT.device
        )
        hidden = [hidden_BTE]
        layers: Any = self.encoder["layer"]
        for layer in layers:
            hidden.append(layer(hidden[-1], bias_BHTT))
        return hidden


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of ALiBi for each head: 2^(-8/n), 2^(-16/n), … for n heads.

    This holds for powers of two. Other numbers of heads take the slopes of the next lower power,
    then the first, third, … of twice that power (Press et al. 2022, and their code).
    """
    power = 1 << (num_heads.bit_length() - 1)
    exponents = [8 * (head + 1) / power for head in range(power)]
    exponents += [4 * (2 * head + 1) / power for head in range(num_heads - power)]
    return [2.0**-exponent for exponent in exponents]


def attention_bias(
    num_heads: int,
    num_tokens: int,
    is_token_BT: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return the bias_BHTT that is added to the logits of attention; B is 1 without padding.

    The bias is -slope · |i - j|, the symmetric ALiBi of Portes et al. 2023, and -inf for keys of
    padding. Its B · H · T · T numbers take most of the memory for long sequences.
    """
    num_keys = -(-num_tokens // ALIGNED) * ALIGNED
    slopes_H11 = torch.tensor(alibi_slopes(num_heads), device=device)[:, None, None]
    queries_T1 = torch.arange(num_tokens, dtype=torch.float32, device=device)[:, None]
    keys_K = torch.arange(num_keys, dtype=torch.float32, device=device)
    bias_BHTK = ((queries_T1 - keys_K).abs() * -slopes_H11).to(dtype)[None]
    if is_token_BT is not None:
        is_padding_BK = F.pad(~is_token_BT, (0, num_keys - num_tokens))
        bias_BHTK = bias_BHTK.masked_fill(is_padding_BK[:, None, None], -torch.inf)
    return bias_BHTK[..., :num_tokens]


class Norm(nn.LayerNorm):
    """LayerNorm in fp32, also with weights in 16 bits."""

    def forward(self, input: Tensor) -> Tensor:
        weight_E, bias_E = self.weight.float(), self.bias.float()
        return F.layer_norm(input, self.normalized_shape, weight_E, bias_E, self.eps)


class Product(nn.Linear):
    """A matrix product in the dtype of its weights."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype))


class Embeddings(nn.Module):
    """Token embeddings with the embedding of token type 0 and a LayerNorm, without positions."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
        self.LayerNorm = Norm(width, config["layer_norm_eps"])

    def forward(self, tokens_BT: Tensor) -> Tensor:
        words_BTE: Tensor = self.word_embeddings(tokens_BT).float()
        hidden_BTE: Tensor = self.LayerNorm(words_BTE + self.token_type_embeddings.weight[0])
        return hidden_BTE


class Layer(nn.Module):
    """Attention and gated feed-forward layers, each with a residual connection and a LayerNorm
    after it. One linear layer returns query, key and value."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.num_heads: int = config["num_attention_heads"]
        width, inner = config["hidden_size"], config["intermediate_size"]
        eps = config["layer_norm_eps"]
        own = nn.ModuleDict({"Wqkv": Product(width, 3 * width)})
        output = nn.ModuleDict({"dense": Product(width, width), "LayerNorm": Norm(width, eps)})
        self.attention = nn.ModuleDict({"self": own, "output": output})
        self.mlp = nn.ModuleDict(
            {
                "gated_layers": Product(width, 2 * inner, bias=False),
                "wo": Product(inner, width),
                "layernorm": Norm(width, eps),
            }
        )

    def forward(self, hidden_BTE: Tensor, bias_BHTT: Tensor) -> Tensor:
        own: Any = self.attention
        qkv_BT3Hd = own["self"]["Wqkv"](hidden_BTE).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = qkv_BT3Hd.permute(2, 0, 3, 1, 4)
        context_BHTd = F.scaled_dot_product_attention(query, key, value, bias_BHTT)
        context_BTE = own["output"]["dense"](context_BHTd.transpose(1, 2).flatten(2))
        hidden_BTE = own["output"]["LayerNorm"](hidden_BTE + context_BTE)
        gate_BTI, up_BTI = self.mlp["gated_layers"](hidden_BTE).chunk(2, dim=-1)
        inner_BTE = self.mlp["wo"](F.gelu(gate_BTI) * up_BTI)
        output_BTE: Tensor = self.mlp["layernorm"](hidden_BTE + inner_BTE)
        return output_BTE
