"""Build the encoder of a T5 with memory linear in the length of a sequence, not quadratic.

The relative position bias of two tokens depends on their distance only (Raffel et al. 2020, section
2.1). transformers expands it for all pairs of tokens. Here it is expanded for a block of queries,
whose attention is then computed. Imports torch only when a network is built.

Shape legend: B sequences, H heads, T tokens, R queries of a block, K keys (T, padded), W width of a
head, D distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["MOST_SCORES", "build"]
ATTENTION = "featuremill_t5"
MOST_SCORES = {"cpu": 2**22, "cuda": 2**27}
"""Largest number of scores of a block, by device. On a CPU, larger blocks were slower (20,000
tokens of 4 heads: 16 s with these, 30 s with four times as many)."""
LEAST_TOKENS = 16
"""Smallest number of queries of a block."""
ALIGNED = 8
"""Keys are padded to a multiple of this number, which CUDA kernels need (see `mosaicbert`)."""


def build(config: Mapping[str, Any]) -> torch.nn.Module:
    """Return the network of a config, without weights."""
    import transformers

    transformers.AttentionInterface.register(ATTENTION, _attention)
    transformers.AttentionMaskInterface.register(ATTENTION, _mask)
    own_config = transformers.T5Config.from_dict(dict(config))
    own_config._attn_implementation = ATTENTION
    network: Any = transformers.T5EncoderModel(own_config)
    first = network.encoder.block[0].layer[0].SelfAttention  # its bias is used by all layers
    first.compute_bias = partial(_bias_of_distances, first)
    encoder: torch.nn.Module = network
    return encoder


def _padded(num_keys: int) -> int:
    return -(-num_keys // ALIGNED) * ALIGNED


def _bias_of_distances(attention: Any, num_tokens: int, _: int, **__: Any) -> Tensor:
    """Return bias_HD of the distances from 1 - T (last token to first) to the padded T."""
    import torch

    device = attention.relative_attention_bias.weight.device
    buckets_D = attention._relative_position_bucket(
        torch.arange(1 - num_tokens, _padded(num_tokens), device=device),
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    bias_HD: Tensor = attention.relative_attention_bias(buckets_D).T.contiguous()
    return bias_HD


def _mask(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
    """Return is_token_B11T; None: no padding."""
    return None if attention_mask is None else attention_mask[:, None, None, :].bool()


def _attention(
    _: torch.nn.Module,
    query_BHTW: Tensor,
    key_BHTW: Tensor,
    value_BHTW: Tensor,
    is_token_B11T: Tensor | None,
    *,
    position_bias: Tensor,
    scaling: float,
    **__: Any,
) -> tuple[Tensor, None]:
    """Return attention (B, T, H, W) as transformers expects it; `position_bias` is bias_HD."""
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention

    num_sequences, num_heads, num_tokens, _width = query_BHTW.shape
    num_biases = num_heads if is_token_B11T is None else num_sequences * num_heads
    most = MOST_SCORES[query_BHTW.device.type]
    num_rows = max(LEAST_TOKENS, most // (num_biases * num_tokens))
    # On a GPU, scores and bias must have the same dtype.
    bias_HD = position_bias.to(query_BHTW.dtype) if query_BHTW.is_cuda else position_bias
    bias_HTK = bias_HD.unfold(1, _padded(num_tokens), 1)  # a view, from the last token to the first
    context_BTHW = torch.empty_like(query_BHTW.transpose(1, 2).contiguous())
    for start in range(0, num_tokens, num_rows):
        end = min(start + num_rows, num_tokens)
        bias_BHRK = bias_HTK[:, num_tokens - end : num_tokens - start].flip(1)[None]
        if is_token_B11T is not None:
            is_padding_B11K = pad(~is_token_B11T, (0, bias_BHRK.shape[-1] - num_tokens))
            bias_BHRK = bias_BHRK.masked_fill(is_padding_B11K, -torch.inf)
        bias_BHRT = bias_BHRK[..., :num_tokens]
        context_BTHW[:, start:end] = scaled_dot_product_attention(
            query_BHTW[:, :, start:end], key_BHTW, value_BHTW, bias_BHRT, scale=scaling
        ).transpose(1, 2)
    return context_BTHW, None
