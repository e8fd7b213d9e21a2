"""Causal networks of transformers: read their configs, load them, and check each on an example.

The configs of KNOWN networks are read without transformers and torch. transformers renames and
reshapes a checkpoint's tensors for its network, and lists those that do not fit, which are refused.
Padding follows the tokens, so no token attends to it.

Shape legend: B sequences, H heads, K heads of keys, T tokens, D width of a head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from featuremill.kit.errors import UserError, is_device_error, is_out_of_memory
from featuremill.kit.text import one_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["KNOWN", "NOT_GATED", "counted", "of_text", "unchanged_up_to", "why_not"]
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
HEADS = (
    *("lm_head.", "embed_out.", "score.", "classifier."),
    *("vision_tower.", "multi_modal_projector.", "language_model.lm_head."),
)
"""The prefixes of tensors of heads in checkpoints."""
ATTENTION = "featuremill"
PLAIN = "eager"
"""transformers' name for attention without a fused kernel, which each of its networks has."""
Result = TypeVar("Result")
PARTS = "experts that do not become one tensor"
MOST_OFF = 1e-4
"""Largest relative L2 difference in fp32: of an example with fused and with eager attention, and of
its first half alone and within the whole."""


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


def filled(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[torch.nn.Module, dict[str, set[str]]]:
    """Return the network of a config with its weights in their widest dtype, and the names of
    missing, unexpected and wrongly shaped tensors."""
    import torch
    import transformers

    own_config = transformers_config(config)
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(own_config)]
    own_config._attn_implementation = _attention_of(kind, own_config)
    own_config.use_cache = False
    named_tensors = named(tensors)
    widest = torch.float16
    for tensor in named_tensors.values():
        if tensor.is_floating_point():
            widest = torch.promote_types(widest, tensor.dtype)
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        whole, loading = kind.from_pretrained(
            None,
            config=own_config,
            state_dict=named_tensors,
            dtype=widest,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except RuntimeError:
        return torch.nn.Module(), {PARTS: {"one is missing, unexpected or of another shape"}}
    finally:
        transformers.utils.logging.set_verbosity(verbosity)
    network: torch.nn.Module = whole.base_model
    own = next(f"{name}." for name, module in whole.named_modules() if module is network)
    return network, {
        "missing": {name for name in loading["missing_keys"] if name.startswith(own)},
        "unexpected": {name for name in loading["unexpected_keys"] if not name.startswith(HEADS)},
        "of another shape": {
            f"{name} {tuple(shape)} for {tuple(wanted)}"
            for name, shape, wanted in loading["mismatched_keys"]
            if name.startswith(own)
        },
    }


class Counted(NamedTuple):
    """The numbers of parameters of a network, by transformers."""

    products: int
    """Parameters of linear layers, without the head."""
    others: int
    """Other parameters, without the head; experts are among them, as they are no modules."""
    head: int
    """Parameters of the head; 0 if it shares the embedding."""
    has_all_scores: bool
    """Whether attention is eager, which has all scores in memory at once."""


def counted(config: Mapping[str, Any]) -> Counted:
    """Return the numbers of parameters of the network of a config, without allocating memory."""
    import torch
    import transformers
    from transformers.pytorch_utils import Conv1D

    own_config = transformers_config(config)
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(own_config)]
    with torch.device("meta"):
        whole = kind(own_config)
    head = whole.get_output_embeddings()
    is_tied = head is None or bool(own_config.tie_word_embeddings)
    heads = 0 if is_tied else sum(each.numel() for each in head.parameters())
    every = sum(each.numel() for each in {*whole.parameters()}) - heads
    products = sum(
        each.weight.numel()
        for each in whole.modules()
        if isinstance(each, torch.nn.Linear | Conv1D) and each is not head
    )
    return Counted(products, every - products, heads, _attention_of(kind, own_config) == PLAIN)


def _attention_of(kind: Any, own_config: Any) -> str:
    """Return the attention implementation for a class of networks: its own, "sdpa" or "eager"."""
    import transformers
    from transformers.masking_utils import sdpa_mask

    transformers.AttentionInterface.register(ATTENTION, _attention)
    transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    has_sdpa = kind._supports_sdpa
    if kind._supports_attention_backend and (
        has_sdpa or getattr(own_config, "attn_logit_softcapping", None)
    ):
        return ATTENTION
    return "sdpa" if has_sdpa else PLAIN


class NotProven(Exception):  # noqa: N818  (a result, not an error)
    """A network fails the check; the message has the reason."""


def tried(compute: Callable[[], Result]) -> Result:
    """Return what `compute` returns.

    Raises:
        NotProven: if it raises an error that is not one of the device.
    """
    try:
        return compute()
    except Exception as error:  # a network may raise any exception
        if is_out_of_memory(error) or is_device_error(error):
            raise
        detail = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise NotProven(f"it fails at an example ({detail})") from None


def prove(encoder: Any, tokens_T: Tensor) -> None:
    """Compute an example in fp32 whole, its first half, and with eager attention, and compare each
    layer. The `encoder` is a `loader.Encoder`.

    Raises:
        NotProven: if that fails, states have another shape, or they differ.
    """
    config = encoder.network.config
    layers, half = range(encoder.num_layers + 1), max(1, len(tokens_T) // 2)
    own = config._attn_implementation
    whole = tried(lambda: encoder.hidden_states(tokens_T[None], None, layers))
    first_half = tried(lambda: encoder.hidden_states(tokens_T[None, :half], None, layers))
    config._attn_implementation = PLAIN
    plain = tried(lambda: encoder.hidden_states(tokens_T[None], None, layers))
    config._attn_implementation = own
    shape = (1, len(tokens_T), encoder.width)
    for layer in layers:
        if whole[layer].shape != shape:
            raise NotProven(f"layer {layer} has {whole[layer].shape[-1]:,} numbers a token")
        for what, values, expected in (
            ("the plain sums give other values", whole[layer], plain[layer]),
            ("a token sees those behind it", first_half[layer], whole[layer][:, :half]),
        ):
            off = float((values - expected).norm() / expected.norm())
            if not off <= MOST_OFF:  # also true for NaN
                raise NotProven(f"{what} (layer {layer}, relative error {off:.1g})")


def _attention(
    module: torch.nn.Module,
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    attention_mask: Tensor | None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention (B, T, H, D) as transformers expects it. Queries and keys, which were
    rotated in fp32, are cast to the dtype of the values; some networks cap their scores."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query_BHTD, key_BKTD = query_BHTD.to(value_BKTD.dtype), key_BKTD.to(value_BKTD.dtype)
    if softcap is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_BHTD, key_BKTD, value_BKTD, attention_mask, **more
        )
        return output
    return _softcapped(
        query_BHTD, key_BKTD, value_BKTD, attention_mask, softcap, more["scaling"]
    ), None


def _softcapped(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    sees: Tensor | None,
    softcap: float,
    scaling: float,
) -> Tensor:
    """Return attention (B, T, H, D) with scores capped at `softcap` and its softmax in fp32. `sees`
    is True where a token attends to another; None: causal."""
    times = query_BHTD.shape[1] // key_BKTD.shape[1]
    key_BHTD, value_BHTD = (each.repeat_interleave(times, 1) for each in (key_BKTD, value_BKTD))
    scores_BHTT = (query_BHTD @ key_BHTD.transpose(2, 3)).float() * scaling
    scores_BHTT = (scores_BHTT / softcap).tanh() * softcap
    if sees is None:
        sees = scores_BHTT.new_ones(scores_BHTT.shape[-2:]).bool().tril()
    weights_BHTT = scores_BHTT.masked_fill(~sees, -1e30).softmax(-1).to(value_BHTD.dtype)
    return (weights_BHTT @ value_BHTD).transpose(1, 2).contiguous()
