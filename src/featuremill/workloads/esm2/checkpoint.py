"""Recognise a checkpoint as an ESM-2, ESM-1b, ESM-1v or SaProt, and describe its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from featuremill.workloads.esm2 import folder, layout
from featuremill.workloads.esm2.architecture import (
    ESM2,
    ESM_1B,
    ESM_1V,
    PUBLISHED,
    SAPROT,
    Architecture,
    Sizes,
)
from featuremill.workloads.esm2.conversion import (
    Checkpoint,
    Opened,
    check_tensors,
    num_layers,
    number,
    open_checkpoint,
    refusal,
    refuse_other_sizes,
    width_of,
)
from featuremill.workloads.esm2.folder import ROTARY_BASE, Kind, unlike

__all__ = ["read"]
HEADS_OF_SHAPE = {(model.num_layers, model.width): model.num_heads for model in PUBLISHED.values()}
ARCH_OF_ESM_1 = "roberta_large"
"""The name of ESM-1b and ESM-1v in fair-esm's settings; ESM-1 and MSA Transformer differ."""
ESM_1_KEYS = ("embed_positions.", "emb_layer_norm_before.", "embeddings.layer_norm.")
"""Keys of ESM-1b and ESM-1v that an ESM-2 lacks; the other tensors are the same."""
HEAD = "lm_head."
IDLE_KEYS = ("embeddings.position_ids", "embeddings.position_embeddings.")
"""Keys in Hugging Face's checkpoints of ESM-2 that are not used."""
COMMON_PARTS = {"lm_head", "contact_head", "pooler"}
"""Parts of every published ESM-2 besides the encoder, which are not used here."""


def read(path: Path, has_head: bool = False, kind: Kind = folder.ESM2) -> Checkpoint:
    """Return the checkpoint of such a network in `path`, with or without its language-model head.

    Raises:
        UserError: if it is not one; the message has the reason.
    """
    opened = open_checkpoint(path, kind)
    is_hugging_face = any(key.endswith(layout.HUGGING_FACE.embedding) for key in opened.tensors)
    names = layout.HUGGING_FACE if is_hugging_face else layout.FAIR_ESM
    prefix = re.compile("|".join(map(re.escape, names.prefixes)))
    tensors = {_plain(key, prefix): tensor for key, tensor in opened.tensors.items()}
    try:
        return _recognise(opened._replace(tensors=tensors), names, has_head, kind)
    except ValueError as error:
        raise refusal(path, str(error), kind) from None


def _plain(key: str, prefix: re.Pattern[str]) -> str:
    """Return `key` without the prefix of the whole model and without TensorFlow's names.

    transformers 5 reads gamma and beta as weight and bias, and may also save these names.
    """
    bare = key[matched.end() :] if (matched := prefix.match(key)) else key
    return re.sub(
        r"(?<=LayerNorm\.)gamma$", "weight", re.sub(r"(?<=LayerNorm\.)beta$", "bias", bare)
    )


def _recognise(opened: Opened, names: layout.Names, has_head: bool, kind: Kind) -> Checkpoint:
    """Return the checkpoint; raise ValueError with the reason if it is not of this kind."""
    tensors, facts = opened.tensors, opened.facts
    architecture = _architecture(opened, names, kind)
    if opened.is_elder:  # as fair-esm does when it loads one, to the head's tied matrix as well
        for key in tensors.keys() & {names.embedding, *layout.DECODERS}:
            tensors[key] = tensors[key].clone()
            tensors[key][architecture.mask] = 0
    width = width_of(tensors, names.embedding)
    if (rows := len(tensors[names.embedding])) != architecture.num_rows:
        raise ValueError(
            f"its embedding has {rows} rows, where an {architecture.title} has "
            f"{architecture.num_rows} (the workload encoder computes a folder of such a network, "
            "docs/encoders.md)"
        )
    count = num_layers(tensors, names.layer)
    refuse_other_sizes({"num_layers": count, "embed_dim": width}, facts)
    if architecture.num_positions:
        num_heads = _heads(facts, width, 0)
        inv_freq = torch.zeros(width // num_heads // 2)  # nothing is rotated
    else:
        inv_freq, num_heads = _rotary(tensors, facts, count, width)
    if has_head and not any(key.startswith(HEAD) for key in tensors):
        raise ValueError(
            f"it has no language-model head (no tensor {HEAD}…), as an EsmForMaskedLM has"
        )
    sizes = Sizes(architecture, count, num_heads, width, 4 * width)
    decoder = next((key for key in layout.DECODERS if key in tensors), names.embedding)
    entries = [
        layout.Entry(layout.FREQUENCIES, (), tuple(inv_freq.shape)),
        *(
            entry._replace(keys=(decoder,)) if entry.name == layout.DECODER else entry
            for entry in layout.entries(names, sizes, has_head)
        ),
    ]
    added, license = {layout.FREQUENCIES: inv_freq}, str(facts.get("license", ""))
    checkpoint = Checkpoint(tensors, added, entries, sizes, license)
    idle = IDLE_KEYS[:1] if architecture.num_positions else IDLE_KEYS
    check_tensors(checkpoint, names.of_encoder, idle, COMMON_PARTS)
    return checkpoint._replace(is_half=checkpoint.fits_half())


def _architecture(opened: Opened, names: layout.Names, kind: Kind) -> Architecture:
    """Return the architecture of the checkpoint; raise ValueError if it is not of this kind."""
    facts, tensors = opened.facts, opened.tensors
    if kind is folder.ESM_1:
        if opened.is_elder and facts.get("arch") != ARCH_OF_ESM_1:
            raise ValueError(f"its arch is {facts.get('arch')!r}, and not {ARCH_OF_ESM_1!r}")
        settings = {"token_dropout": False, **facts} if opened.is_elder else facts
        if reason := unlike(settings, kind):
            raise ValueError(reason)
        has_norm = any(key.startswith(names.parts["first_norm"]) for key in tensors)
        if not opened.is_elder and facts.get("emb_layer_norm_before", has_norm) != has_norm:
            raise ValueError("its tensors and its settings differ in emb_layer_norm_before")
        return ESM_1B if has_norm else ESM_1V
    if opened.is_elder or any(key.startswith(ESM_1_KEYS) for key in tensors):
        raise ValueError("it is of an older network (ESM-1, ESM-1b, ESM-1v or MSA Transformer)")
    if reason := unlike(facts, kind):
        raise ValueError(reason)
    return SAPROT if kind is folder.SAPROT else ESM2


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
    usual = HEADS_OF_SHAPE.get((count, width), 0)
    if stored:
        heads_stored, remainder = divmod(width, 2 * len(stored[0]))
        heads = number(facts, "attention_heads", usual) or heads_stored
        if remainder or heads != heads_stored:
            raise ValueError("its rotary frequencies do not fit its width and heads")
    head_dim = width // _heads(facts, width, heads if stored else usual)
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    return (stored[0] if stored else 1.0 / ROTARY_BASE**exponents), width // head_dim


def _heads(facts: Mapping[str, Any], width: int, usual: int) -> int:
    """Return the number of heads in the settings, or else `usual` if that is not 0."""
    heads = number(facts, "attention_heads", usual)
    if not heads:
        raise ValueError(
            "the number of its attention heads is missing; put its config.json beside it"
        )
    if width % (2 * heads):
        raise ValueError(f"{heads} attention heads do not divide its width {width}")
    return heads
