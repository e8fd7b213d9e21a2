"""Causal networks of transformers: a token sees those before it alone. No torch until one is built.

Filling stands behind the tokens, so no token sees it.

Shape legend: B sequences, H heads, K heads of keys, T tokens, D width of a head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from featuremill.kit.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["PREFIXES", "unchanged_up_to"]
PREFIXES = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"), "model."
    ),
    "gemma3": "model.",
    "gpt2": "transformer.",
    "gpt_neox": "gpt_neox.",
}
"""The networks that tests hold against transformers, by model_type; and what stands before the
names of their tensors in a checkpoint with a head."""
HEADS = (
    *("lm_head.", "embed_out.", "score.", "classifier."),
    *("vision_tower.", "multi_modal_projector.", "language_model.lm_head."),
)
OF_TEXT = re.compile(r"^language_model\.(model\.)?")
"""Before the names of a network that also takes images."""
IDLE = re.compile(
    r"\.(attn|attention)\.(masked_)?bias$|\.rotary_emb\.inv_freq$|\.attention\.rotary_emb\."
)
"""Tables that checkpoints of older releases hold, and that the network makes for itself."""
ATTENTION = "featuremill"
BY_LENGTH = ("dynamic", "longrope")
"""Rotations that change where a batch has a longer sequence than the network was trained with
first."""
GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
NOT_GATED = ("gpt2", "gpt_neox")


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the usual keys: of a network that also takes images, the text's part."""
    if isinstance(text := config.get("text_config"), Mapping):
        config = {"model_type": f"{config['model_type']}_text", **text}
    if config["model_type"] == "gpt2":
        usual = {key: config[name] for key, name in GPT2_KEYS.items() if config.get(name)}
        config = {**config, "intermediate_size": 4 * config["n_embd"], **usual}
    if config.get("quantization_config"):
        raise UserError("its weights are quantised, and products are computed of whole numbers")
    return {"vocab_size": 0, **config}


def positions(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a sequence may have: where positions are a table, its rows; where the
    rotation depends on the longest sequence of a batch, as many as do not change it."""
    most = config.get("max_position_embeddings")
    if config["model_type"] == "gpt2":
        return int(most or 1024)
    return unchanged_up_to(config)


def unchanged_up_to(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens the longest sequence of a batch may have before it changes the
    rotation of all; None where none does."""
    for rotation in _rotations(config):
        if rotation.get("rope_type", rotation.get("type")) in BY_LENGTH:
            name = "original_max_position_embeddings"
            most = config.get("max_position_embeddings")
            first = rotation.get(name) or config.get(name) or most
            return int(first) if first else None
    return None


def trained(config: Mapping[str, Any]) -> int | None:
    """Return with how many tokens a sequence it was trained, where there could be more."""
    most = config.get("max_position_embeddings")
    return int(most) if most and positions(config) is None else None


def _rotations(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what the config says of rotary positions: of all layers, or of each kind of them."""
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(found := config.get(name), Mapping):
            yield found
            yield from (one for one in found.values() if isinstance(one, Mapping))


def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors under the names that they have in the network."""
    return {
        OF_TEXT.sub("", name): tensor for name, tensor in tensors.items() if not IDLE.search(name)
    }


def build(config: Mapping[str, Any]) -> torch.nn.Module:
    """Return the network of a config, without weights."""
    import transformers
    from transformers.masking_utils import sdpa_mask

    transformers.AttentionInterface.register(ATTENTION, _attention)
    transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    made._attn_implementation = ATTENTION
    made.use_cache = False
    network: torch.nn.Module = transformers.AutoModel.from_config(made)
    return network


def _attention(
    module: torch.nn.Module,
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    attention_mask: Tensor | None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return what transformers' attention returns, (B, T, H, D). Queries and keys, which were
    turned in fp32, get the type of the values; some networks bend their scores."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query_BHTD, key_BKTD = query_BHTD.to(value_BKTD.dtype), key_BKTD.to(value_BKTD.dtype)
    if softcap is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_BHTD, key_BKTD, value_BKTD, attention_mask, **more
        )
        return found
    return _bent(query_BHTD, key_BKTD, value_BKTD, attention_mask, softcap, more["scaling"]), None


def _bent(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    sees: Tensor | None,
    softcap: float,
    scaling: float,
) -> Tensor:
    """Return attention (B, T, H, D) whose scores do not exceed `softcap`, with its softmax in
    fp32. `sees` is True where a token sees another one; None: where that is not behind it."""
    times = query_BHTD.shape[1] // key_BKTD.shape[1]
    key_BHTD, value_BHTD = (each.repeat_interleave(times, 1) for each in (key_BKTD, value_BKTD))
    scores_BHTT = (query_BHTD @ key_BHTD.transpose(2, 3)).float() * scaling
    scores_BHTT = (scores_BHTT / softcap).tanh() * softcap
    if sees is None:
        sees = scores_BHTT.new_ones(scores_BHTT.shape[-2:]).bool().tril()
    weights_BHTT = scores_BHTT.masked_fill(~sees, -1e30).softmax(-1).to(value_BHTD.dtype)
    return (weights_BHTT @ value_BHTD).transpose(1, 2).contiguous()
