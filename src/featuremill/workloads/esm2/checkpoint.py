"""Recognising a checkpoint as an ESM-2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from featuremill.workloads.esm2 import layout
from featuremill.workloads.esm2.architecture import ESM2, Sizes
from featuremill.workloads.esm2.catalogue import PUBLISHED
from featuremill.workloads.esm2.conversion import (
    Checkpoint,
    check_tensors,
    num_layers,
    number,
    refuse_other_sizes,
    width_of,
)
from featuremill.workloads.esm2.folder import ROTARY_BASE, unlike
from featuremill.workloads.esm2.readers import Opened, open_checkpoint, refusal

HEADS_OF_SHAPE = {(model.num_layers, model.width): model.num_heads for model in PUBLISHED.values()}
ELDER_KEYS = ("embed_positions.", "emb_layer_norm_before.", "embeddings.layer_norm.")
"""Keys of ESM-1b and ESM-1v, whose other tensors look like those of an ESM-2."""
IDLE_KEYS = ("embeddings.position_ids", "embeddings.position_embeddings.")
"""Keys that Hugging Face stores with an ESM-2 and does not use."""
COMMON_PARTS = {"lm_head", "contact_head", "pooler"}
"""Parts of every published ESM-2 besides the encoder, which are not used here."""


def read(path: Path, has_head: bool = False) -> Checkpoint:
    """Return the ESM-2 checkpoint in `path`, with or without its language-model head.

    Raises:
        UserError: it is no ESM-2; the message has the reason.
    """
    opened = open_checkpoint(path)
    is_hugging_face = any(key.endswith(layout.HUGGING_FACE.embedding) for key in opened.tensors)
    names = layout.HUGGING_FACE if is_hugging_face else layout.FAIR_ESM
    prefix = re.compile("|".join(map(re.escape, names.prefixes)))
    tensors = {_plain(key, prefix): tensor for key, tensor in opened.tensors.items()}
    try:
        return _recognise(opened._replace(tensors=tensors), names, has_head)
    except ValueError as error:
        raise refusal(path, str(error)) from None


def _plain(key: str, prefix: re.Pattern[str]) -> str:
    """Return `key` without the whole model's prefix and without TensorFlow's words.

    transformers 5 reads gamma and beta as weight and bias, and then also saves under those names.
    """
    bare = key[matched.end() :] if (matched := prefix.match(key)) else key
    return re.sub(
        r"(?<=LayerNorm\.)gamma$", "weight", re.sub(r"(?<=LayerNorm\.)beta$", "bias", bare)
    )


def _recognise(opened: Opened, names: layout.Names, has_head: bool) -> Checkpoint:
    """Return the checkpoint; raise ValueError with the reason if it is no ESM-2."""
    tensors, facts = opened.tensors, opened.facts
    _refuse_elders(opened)
    width = width_of(tensors, names.embedding)
    if (rows := len(tensors[names.embedding])) != ESM2.num_rows:
        raise ValueError(
            f"its embedding has {rows} rows, where an ESM-2 has {ESM2.num_rows} (the workload "
            "encoder computes a folder of such a network, docs/encoders.md)"
        )
    count = num_layers(tensors, names.layer)
    refuse_other_sizes({"num_layers": count, "embed_dim": width}, facts)
    inv_freq, num_heads = _rotary(tensors, facts, count, width)
    if has_head and not any(key.startswith(layout.HEAD) for key in tensors):
        raise ValueError(
            f"it has no language-model head (no tensor {layout.HEAD}…), as an EsmForMaskedLM has"
        )
    entries = [
        layout.Entry(layout.FREQUENCIES, (), tuple(inv_freq.shape)),
        *layout.entries(names, count, width, ESM2.num_rows),
    ]
    if has_head:
        entries += layout.head_entries(names, tensors, width, ESM2.num_rows)
    checkpoint = Checkpoint(
        tensors,
        {layout.FREQUENCIES: inv_freq},
        entries,
        Sizes(ESM2, count, num_heads, width, 4 * width),
        str(facts.get("license", "")),
    )
    of_encoder = (names.layer, names.embedding.partition(".")[0])
    check_tensors(checkpoint, of_encoder, IDLE_KEYS, COMMON_PARTS)
    return checkpoint._replace(is_half=checkpoint.fits_half())


def _refuse_elders(opened: Opened) -> None:
    facts = opened.facts
    if opened.is_elder or any(key.startswith(ELDER_KEYS) for key in opened.tensors):
        raise ValueError("it is of an older network (ESM-1, ESM-1b, ESM-1v or MSA Transformer)")
    if reason := unlike(facts):
        raise ValueError(reason)


def _rotary(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], count: int, width: int
) -> tuple[Tensor, int]:
    """Return the rotary frequencies and the number of heads.

    Frequencies in the checkpoint are not recomputed: after training in fp16 they are rounded to it,
    and the network learned with the rounded ones (huggingface/transformers#19587).
    """
    stored = [tensor for key, tensor in tensors.items() if key.endswith("inv_freq")]
    if any(not torch.equal(tensor, stored[0]) for tensor in stored):
        raise ValueError("its layers differ in their rotary frequencies")
    heads = number(facts, "attention_heads", HEADS_OF_SHAPE.get((count, width), 0))
    if stored:
        heads_stored, remainder = divmod(width, 2 * len(stored[0]))
        heads = heads or heads_stored
        if remainder or heads != heads_stored:
            raise ValueError("its rotary frequencies do not fit its width and heads")
    if not heads:
        raise ValueError(
            "the number of its attention heads is missing; put its config.json beside it"
        )
    if width % (2 * heads):
        raise ValueError(f"{heads} attention heads do not divide its width {width}")
    head_dim = width // heads
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    return (stored[0] if stored else 1.0 / ROTARY_BASE**exponents), heads
