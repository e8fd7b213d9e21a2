"""Read the config of a causal network without torch: positions, usual keys, tensor names.

The config of a network that is not KNOWN is read by transformers. `causal` builds the networks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from featuremill.kit.errors import UserError
from featuremill.kit.text import one_line

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["KNOWN", "NOT_GATED", "of_text", "unchanged_up_to", "why_not"]
KNOWN = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_text", "phi3"),
    *("gpt2", "gpt_neox"),
)
"""The model_types whose configs are read without transformers."""
USUAL = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "intermediate_size"),
    *("max_position_embeddings", "vocab_size", "hidden_act", "rope_parameters"),
    *("attn_logit_softcapping", "moe_intermediate_size", "num_experts_per_tok", "state_size"),
)
"""Keys that transformers has for every network, under any name in its config."""
SPELLED_OUT = "__float__"
"""The key of an object for a number that JSON lacks, such as Infinity."""
NOT_GATED = ("gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2", "codegen")
OF_TEXT = re.compile(r"^language_model\.(model\.)?")
"""The prefix of the text model's tensors in a multimodal network."""
IDLE = re.compile(
    r"\.(attn|attention)\.(masked_)?bias$|\.rotary_emb\.inv_freq$|\.attention\.rotary_emb\."
)
"""Buffers in older checkpoints, which the network computes itself."""
BY_LENGTH = ("dynamic", "longrope")
"""Types of rotary positions that change for sequences longer than in the original training."""
ROTARY = tuple(name for name in KNOWN if name != "gpt2")
"""The architectures with rotary positions, even if their config lacks the keys."""
GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}


def why_not(config: Mapping[str, Any]) -> str | None:
    """Return why transformers has no causal network for a config that is not KNOWN; "" if it has
    one, None if it lacks the model_type."""
    if find_spec("transformers") is None:
        return None
    from transformers.models.auto import modeling_auto

    name = config["model_type"]
    if (causal := modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(name)) is None:
        return None
    bare = modeling_auto.MODEL_MAPPING_NAMES.get(name)
    saved = config.get("architectures") or [causal]
    if not {causal, bare} & set(saved):
        return f"saved as {saved[0]}, which is no causal network"
    try:
        own = transformers_config(config)
    except Exception as error:  # an inconsistent config may raise any exception
        return f"and transformers cannot read it ({one_line(str(error))[:200]})"
    if own.is_encoder_decoder or not getattr(own, "is_decoder", True):
        return "no network whose tokens see those before them alone"
    return "" if own.get_text_config() is own else "a network of more than texts"


def transformers_config(config: Mapping[str, Any]) -> Any:
    """Return a config as an object of transformers."""
    import transformers

    return transformers.CONFIG_MAPPING[config["model_type"]].from_dict(_numbers(dict(config)))


def _numbers(value: Any) -> Any:
    """Return a value of a config with the numbers that transformers writes as objects."""
    if isinstance(value, Mapping):
        if value.keys() == {SPELLED_OUT}:
            return float(value[SPELLED_OUT])
        return {name: _numbers(each) for name, each in value.items()}
    return [_numbers(each) for each in value] if isinstance(value, list) else value


def of_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a network, or of the text part of a multimodal network."""
    if isinstance(text := config.get("text_config"), Mapping):
        config = {"model_type": f"{config['model_type']}_text", **text}
    return dict(config)


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the usual keys."""
    config = of_text(config)
    if config["model_type"] == "gpt2":
        usual = {key: config[name] for key, name in GPT2_KEYS.items() if config.get(name)}
        config = {**config, "intermediate_size": 4 * config["n_embd"], **usual}
    elif config["model_type"] not in KNOWN:
        own = transformers_config(config)
        read = {key: getattr(own, key, None) for key in USUAL}
        config |= {key: value for key, value in read.items() if value is not None}
    if config.get("quantization_config"):
        raise UserError("its weights are quantised, and only unquantised weights are computed")
    return {"vocab_size": 0, **config}


def positions(config: Mapping[str, Any]) -> int | None:
    """Return the largest number of tokens per sequence; None: unlimited. With rotary positions that
    depend on the longest sequence of a batch, it is the length that does not change them; without
    rotary positions, that in the config, since positions may be a table."""
    if any(_rotations(config)) or config["model_type"] in ROTARY:
        return unchanged_up_to(config)
    most = config.get("max_position_embeddings", 1024 if config["model_type"] == "gpt2" else None)
    return int(most) if most else None


def unchanged_up_to(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that leaves rotary positions of its batch unchanged, or None."""
    for rotation in _rotations(config):
        if rotation.get("rope_type", rotation.get("type")) in BY_LENGTH:
            name = "original_max_position_embeddings"
            most = config.get("max_position_embeddings")
            first = rotation.get(name) or config.get(name) or most
            return int(first) if first else None
    return None


def trained(config: Mapping[str, Any]) -> int | None:
    """Return the number of tokens per sequence in training, if `positions` sets no limit."""
    most = config.get("max_position_embeddings")
    return int(most) if most and positions(config) is None else None


def _rotations(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions, for all layers or for each type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(rotation := config.get(name), Mapping):
            yield rotation
            yield from (nested for nested in rotation.values() if isinstance(nested, Mapping))


def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors under their names in the network."""
    return {
        OF_TEXT.sub("", name): tensor for name, tensor in tensors.items() if not IDLE.search(name)
    }
