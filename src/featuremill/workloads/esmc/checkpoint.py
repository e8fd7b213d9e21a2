"""Recognise a checkpoint as an ESM C, and describe its tensors, which have one of three namings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from featuremill.workloads.esm2.architecture import ESM_C as ARCHITECTURE
from featuremill.workloads.esm2.architecture import Sizes
from featuremill.workloads.esm2.conversion import (
    Checkpoint,
    check_tensors,
    num_layers,
    number,
    open_checkpoint,
    refusal,
    refuse_other_sizes,
    width_of,
)
from featuremill.workloads.esm2.folder import ESM_C, ROTARY_BASE
from featuremill.workloads.esm2.layout import FREQUENCIES, Entry, Names, entries

PREFIX = "esmc."
"""The prefix of the encoder's keys in a checkpoint with a head."""
HEAD_DIM = 64
"""The width of a head in every published ESM C, whose files do not state the number of heads."""
VECTOR = 16
"""Numbers that the operations between products compute together."""
COMMON_PARTS = {"lm_head", "sequence_head"}
"""Parts of every published ESM C besides the encoder, which are not used here."""
# The names of tensors in our file are in esm2/layout.py; biases that these lack are zeros there.
WITHOUT_BIAS = ("final_norm", "qkv", "out", "up", "down")
TRANSFORMERS = Names(
    {
        "embed_tokens": ("embed_tokens.",),
        "final_norm": ("norm.",),
        "attention_norm": ("input_layernorm.",),
        "qkv": ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
        "query_key_norm": ("self_attn.q_norm.", "self_attn.k_norm."),
        "out": ("self_attn.o_proj.",),
        "feed_forward_norm": ("post_attention_layernorm.",),
        "up": ("mlp.gate_proj.", "mlp.up_proj."),
        "down": ("mlp.down_proj.",),
        "head.dense": ("lm_head.dense.",),
        "head.norm": ("lm_head.layer_norm.",),
        "head.decoder": ("lm_head.decoder.",),
    },
    "layers.",
    ("embed_tokens.", "layers.", "norm."),
    without_bias=WITHOUT_BIAS,
)
PACKAGE = Names(
    {
        "embed_tokens": ("embed.",),
        "final_norm": ("transformer.norm.",),
        "attention_norm": ("attn.layernorm_qkv.0.",),
        "qkv": ("attn.layernorm_qkv.1.",),
        "query_key_norm": ("attn.q_ln.", "attn.k_ln."),
        "out": ("attn.out_proj.",),
        "feed_forward_norm": ("ffn.0.",),
        "up": ("ffn.1.",),
        "down": ("ffn.3.",),
        "head.dense": ("sequence_head.0.",),
        "head.norm": ("sequence_head.2.",),
        "head.decoder": ("sequence_head.3.",),
    },
    "transformer.blocks.",
    ("embed.", "transformer."),
    without_bias=WITHOUT_BIAS,
)
RESEARCH = PACKAGE._replace(
    parts={
        **PACKAGE.parts,
        "attention_norm": ("attn.layernorm_qkv.layer_norm_",),
        "qkv": ("attn.layernorm_qkv.",),
        "feed_forward_norm": ("ffn.layer_norm_",),
        "up": ("ffn.fc1_",),
        "down": ("ffn.fc2_",),
        "head.dense": ("lm_head.0.",),
        "head.norm": ("lm_head.2.",),
        "head.decoder": ("lm_head.3.",),
    }
)
"""The names of TransformerEngine, which also stores its own state."""
STATE_OF_ENGINE = "_extra_state"
"""The end of the names of that state."""


def read(path: Path, has_head: bool = False) -> Checkpoint:
    """Return the ESM C checkpoint in `path`, with or without its language-model head.

    Raises:
        UserError: it is no ESM C; the message has the reason.
    """
    opened = open_checkpoint(path, ESM_C)
    tensors = {
        key.removeprefix(PREFIX): tensor
        for key, tensor in opened.tensors.items()
        if not key.endswith(STATE_OF_ENGINE)
    }
    try:
        return _recognise(tensors, opened.facts, has_head)
    except ValueError as error:
        raise refusal(path, str(error), ESM_C) from None


def _names(tensors: Mapping[str, Tensor]) -> Names:
    for names in (RESEARCH, PACKAGE):
        if names.keys("qkv", "weight", f"{names.layer}0.")[0] in tensors:
            return names
    return TRANSFORMERS


def _recognise(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], has_head: bool
) -> Checkpoint:
    """Return the checkpoint; raise ValueError with the reason if it is no ESM C."""
    names = _names(tensors)
    width = width_of(tensors, names.embedding)
    count = num_layers(tensors, names.layer)
    heads = number(facts, "attention_heads", width // HEAD_DIM)
    if not heads or width % (2 * heads):
        raise ValueError(f"{heads} attention heads do not divide its width {width}")
    sizes = Sizes(ARCHITECTURE, count, heads, width, _feed_forward(tensors, names))
    known_sizes = {"num_layers": count, "embed_dim": width, "feed_forward": sizes.feed_forward}
    refuse_other_sizes(known_sizes, facts)
    exponents = torch.arange(0, sizes.head_dim, 2).float() / sizes.head_dim
    added = {FREQUENCIES: 1.0 / ROTARY_BASE**exponents}
    frequencies = Entry(FREQUENCIES, (), (sizes.head_dim // 2,))
    ours = [frequencies, *entries(names, sizes, has_head)]
    dtype = tensors[names.embedding].dtype
    for entry in ours:
        if not entry.keys and entry.name not in added:
            added[entry.name] = torch.zeros(entry.shape, dtype=dtype)
    dense = names.parts["head.dense"][0].removesuffix(".")
    if has_head and not any(key.startswith(dense) for key in tensors):
        raise ValueError(
            f"it has no language-model head (no tensor {dense}…), as an EsmcForMaskedLM has"
        )
    checkpoint = Checkpoint(tensors, added, ours, sizes, str(facts.get("license", "")))
    check_tensors(checkpoint, names.of_encoder, (), COMMON_PARTS)
    return checkpoint


def _feed_forward(tensors: Mapping[str, Tensor], names: Names) -> int:
    (key,) = names.keys("down", "weight", f"{names.layer}0.")
    if key not in tensors:
        raise ValueError(f"it has no tensor {key}")
    hidden = tensors[key].shape[-1]
    if hidden % VECTOR:
        raise ValueError(f"its feed forward is {hidden} wide, which is no multiple of {VECTOR}")
    return hidden
