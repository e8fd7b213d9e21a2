"""Causal networks of transformers, with the weights of a folder; and what each has to prove before
it is used.

transformers gives a checkpoint's tensors the names and the form that its network has, and lists
what did not fit: that is refused. Filling stands behind the tokens, so no token sees it.

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
"""transformers' name for attention by the plain sums, which each of its networks has."""
Result = TypeVar("Result")
PARTS = "experts that do not become one tensor"
MOST_OFF = 1e-4
"""Relative L2, in fp32, of an example by torch's attention and by the plain sums, and of its first
half alone and with the other half behind it."""


def filled(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[torch.nn.Module, dict[str, set[str]]]:
    """Return the network of a config with its weights in their widest number type, and the names of
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
    loud = transformers.utils.logging.get_verbosity()
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
        transformers.utils.logging.set_verbosity(loud)
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
    """The size of a network, by transformers."""

    products: int
    """Numbers of the products, each of which is a module; without the head."""
    others: int
    """The other numbers, without the head: experts are one tensor, and no module."""
    head: int
    """The numbers of the head; 0 where it is the embedding."""
    lays_out_scores: bool
    """Whether attention goes by the plain sums, which have all scores at once."""


def counted(config: Mapping[str, Any]) -> Counted:
    """Return the size of the network of a config, without allocating memory for it."""
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
    """Return the name of the attention for a kind of network: ours if it takes any, else SDPA or
    eager."""
    import transformers
    from transformers.masking_utils import sdpa_mask

    transformers.AttentionInterface.register(ATTENTION, _attention)
    transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    is_torch_s = kind._supports_sdpa
    if kind._supports_attention_backend and (
        is_torch_s or getattr(own_config, "attn_logit_softcapping", None)
    ):
        return ATTENTION
    return "sdpa" if is_torch_s else PLAIN


class NotProven(Exception):  # noqa: N818  (no error: it is what an example has to say)
    """Why a network is not used."""


def tried(compute: Callable[[], Result]) -> Result:
    """Return what `compute` returns.

    Raises:
        NotProven: it raises anything that is not about the device.
    """
    try:
        return compute()
    except Exception as error:  # whatever a network does with what it is given
        if is_out_of_memory(error) or is_device_error(error):
            raise
        detail = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise NotProven(f"it fails at an example ({detail})") from None


def prove(encoder: Any, tokens_T: Tensor) -> None:
    """Compute an example in fp32 whole, half, and by the plain sums, and compare each layer. The
    `encoder` is one of `architectures`.

    Raises:
        NotProven: it cannot be computed, the states are not there as other networks have them, or
            they differ.
    """
    config = encoder.network.config
    layers, half = range(encoder.num_layers + 1), max(1, len(tokens_T) // 2)
    own = config._attn_implementation
    whole = tried(lambda: encoder.hidden_states(tokens_T[None], None, layers))
    begun = tried(lambda: encoder.hidden_states(tokens_T[None, :half], None, layers))
    config._attn_implementation = PLAIN
    plain = tried(lambda: encoder.hidden_states(tokens_T[None], None, layers))
    config._attn_implementation = own
    shape = (1, len(tokens_T), encoder.width)
    for layer in layers:
        if whole[layer].shape != shape:
            raise NotProven(f"layer {layer} has {whole[layer].shape[-1]:,} numbers a token")
        for what, ours, theirs in (
            ("the plain sums give other values", whole[layer], plain[layer]),
            ("a token sees those behind it", begun[layer], whole[layer][:, :half]),
        ):
            off = float((ours - theirs).norm() / theirs.norm())
            if not off <= MOST_OFF:  # also where it is not a number
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
    """Return what transformers' attention returns, (B, T, H, D). Queries and keys, which were
    turned in fp32, get the type of the values; some networks bend their scores."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query_BHTD, key_BKTD = query_BHTD.to(value_BKTD.dtype), key_BKTD.to(value_BKTD.dtype)
    if softcap is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_BHTD, key_BKTD, value_BKTD, attention_mask, **more
        )
        return output
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
