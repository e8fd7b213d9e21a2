"""Load causal networks of transformers, and check each on an example before it is used.

transformers renames and reshapes a checkpoint's tensors for its network, and lists those that do
not fit, which are refused. Padding follows the tokens, so no token attends to it.

Shape legend: B sequences, H heads, K heads of keys, T tokens, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from featuremill.kit.errors import is_device_error, is_out_of_memory
from featuremill.kit.text import one_line
from featuremill.workloads.encoder import decoders

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["NotProven", "counted", "filled", "prove", "tried"]
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


def filled(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[torch.nn.Module, dict[str, set[str]]]:
    """Return the network of a config with its weights in their widest dtype, and the names of
    missing, unexpected and wrongly shaped tensors."""
    import torch
    import transformers

    own_config = decoders.transformers_config(config)
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(own_config)]
    own_config._attn_implementation = _attention_of(kind, own_config)
    own_config.use_cache = False
    named_tensors = decoders.named(tensors)
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

    own_config = decoders.transformers_config(config)
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
    layer. The `encoder` is an `architectures.Encoder`.

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
