"""Recognising a checkpoint as an ESM-2, and writing it in our layout."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from featuremill.base.progress import Progress
from featuremill.base.words import listed
from featuremill.workloads.esm2 import layout
from featuremill.workloads.esm2.folder import ROTARY_BASE, unlike
from featuremill.workloads.esm2.readers import Opened, open_checkpoint, refusal
from featuremill.workloads.esm2.sources import PUBLISHED
from featuremill.workloads.esm2.tokens import NUM_TOKENS

log = logging.getLogger("featuremill.weights")
NUMBER_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""Number types that a checkpoint may have, and what the safetensors format calls them."""
HEADS_OF_SHAPE = {(model.num_layers, model.width): model.num_heads for model in PUBLISHED.values()}
ELDER_KEYS = ("embed_positions.", "emb_layer_norm_before.", "embeddings.layer_norm.")
"""Keys of ESM-1b and ESM-1v, whose other tensors look like those of an ESM-2."""
IDLE_KEYS = ("embeddings.position_ids", "embeddings.position_embeddings.")
"""Keys that Hugging Face stores with an ESM-2 and does not use."""
COMMON_PARTS = {"lm_head", "contact_head", "pooler"}
"""What every published ESM-2 has besides the encoder, and nobody asks for here."""


class Checkpoint(NamedTuple):
    """A checkpoint of ESM-2."""

    tensors: Mapping[str, Tensor]
    """By the source's names, without the prefix of the whole model."""
    names: layout.Names
    num_layers: int
    width: int
    num_heads: int
    inv_freq: Tensor
    license: str
    is_half: bool
    """Whether fp16 holds each of its numbers: the larger ESM-2 were trained so, and fair-esm has
    them in fp16 and Hugging Face in fp32."""
    has_head: bool
    """Whether the language-model head is wanted, too."""

    def entries(self) -> Iterator[layout.Entry]:
        """Yield what our file holds of this checkpoint."""
        yield layout.Entry(layout.FREQUENCIES, (), tuple(self.inv_freq.shape))
        yield from layout.entries(self.names, self.num_layers, self.width, NUM_TOKENS)
        if self.has_head:
            yield from layout.head_entries(self.names, self.tensors, self.width, NUM_TOKENS)

    def tensor(self, entry: layout.Entry) -> Tensor:
        """Return the tensor of `entry`; several of the source's are put below each other."""
        parts = [self.tensors[key] for key in entry.keys] or [self.inv_freq]
        whole = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
        return whole.to(self.dtype(entry))

    def dtype(self, entry: layout.Entry) -> torch.dtype:
        """Return the number type of `entry`, in which no part of it loses anything."""
        if self.is_half:
            return torch.float16
        dtype = (self.tensors[entry.keys[0]] if entry.keys else self.inv_freq).dtype
        for key in entry.keys[1:]:
            dtype = torch.promote_types(dtype, self.tensors[key].dtype)
        return dtype

    @property
    def _embedding_dtype(self) -> torch.dtype:
        return torch.float16 if self.is_half else self.tensors[self.names.embedding].dtype

    def metadata(self) -> dict[str, str]:
        """Return what is known of the network, as text."""
        known = {
            "architecture": "esm2",
            "num_layers": str(self.num_layers),
            "embed_dim": str(self.width),
            "attention_heads": str(self.num_heads),
            "dtype": str(self._embedding_dtype).removeprefix("torch."),
        }
        return known | ({"license": self.license} if self.license else {})


def read(path: Path, has_head: bool = False) -> Checkpoint:
    """Return the ESM-2 checkpoint in `path`, with its language-model head or without; raise
    UserError, with the reason, if it is none."""
    opened = open_checkpoint(path)
    is_hugging_face = any(key.endswith(layout.HUGGING_FACE.embedding) for key in opened.tensors)
    names = layout.HUGGING_FACE if is_hugging_face else layout.FAIR_ESM
    prefix = re.compile("|".join(map(re.escape, names.prefixes)))
    tensors = {_plain(key, prefix): tensor for key, tensor in opened.tensors.items()}
    try:
        return _recognise(opened._replace(tensors=tensors), names, has_head)
    except ValueError as error:
        raise refusal(path, str(error)) from None


def write(checkpoint: Checkpoint, path: Path) -> str:
    """Write `checkpoint` to `path` as safetensors, tensor by tensor; return the file's sha256.

    The bytes follow from the values alone. (The safetensors library wants all tensors in memory at
    once, which is 30 GB for the largest model, and does not promise the order of its header.)
    """
    header: dict[str, Any] = {}
    end = 0
    for entry in checkpoint.entries():
        dtype = checkpoint.dtype(entry)
        start, end = end, end + dtype.itemsize * torch.Size(entry.shape).numel()
        header[entry.name] = {
            "dtype": NUMBER_TYPES[dtype],
            "shape": list(entry.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    shown = Progress(log, "converting", "MB")
    with path.open("wb") as file:
        for chunk in _chunks(checkpoint, len(text).to_bytes(8, "little") + text):
            file.write(chunk)
            digest.update(chunk)
            shown.at(file.tell() // 10**6, end // 10**6)
    return digest.hexdigest()


def _plain(key: str, prefix: re.Pattern[str]) -> str:
    """Return `key` without the whole model's prefix and without TensorFlow's words.

    transformers 5 reads gamma and beta as weight and bias, and then also saves under those names.
    """
    bare = key[found.end() :] if (found := prefix.match(key)) else key
    return re.sub(
        r"(?<=LayerNorm\.)gamma$", "weight", re.sub(r"(?<=LayerNorm\.)beta$", "bias", bare)
    )


def _recognise(opened: Opened, names: layout.Names, has_head: bool) -> Checkpoint:
    """Return the checkpoint; raise ValueError with what is wrong about it."""
    tensors, facts = opened.tensors, opened.facts
    _refuse_elders(opened)
    if names.embedding not in tensors:
        raise ValueError(f"it has no tensor {names.embedding}")
    num_layers = 0
    while any(key.startswith(f"{names.layer}{num_layers}.") for key in tensors):
        num_layers += 1
    if tensors[names.embedding].dim() != 2:
        raise ValueError(f"its tensor {names.embedding} is no table")
    width = tensors[names.embedding].shape[-1]
    found = {"num_layers": num_layers, "embed_dim": width}
    for fact, value in found.items():
        if _number(facts, fact, value) != value:
            raise ValueError(f"its tensors have {fact} {value}, its settings have {facts[fact]}")
    inv_freq, num_heads = _rotary(tensors, facts, num_layers, width)
    if has_head and not any(key.startswith(layout.HEAD) for key in tensors):
        raise ValueError(
            f"it has no language-model head (no tensor {layout.HEAD}…), as an EsmForMaskedLM has"
        )
    license = str(facts.get("license", ""))
    checkpoint = Checkpoint(
        tensors, names, num_layers, width, num_heads, inv_freq, license, False, has_head
    )
    _check_tensors(checkpoint)
    keys = [key for entry in checkpoint.entries() for key in entry.keys]
    is_half = all(_fits_half(tensor) for tensor in (inv_freq, *map(tensors.__getitem__, keys)))
    return checkpoint._replace(is_half=is_half)


def _fits_half(tensor: Tensor) -> bool:
    """Tell whether `tensor` is in fp16, or in fp32 with numbers that fp16 holds."""
    if tensor.dtype != torch.float32:
        return tensor.dtype == torch.float16
    return torch.equal(tensor.half().float(), tensor)


def _number(facts: Mapping[str, Any], name: str, otherwise: int) -> int:
    """Return the count that the settings give as `name`; they may be of anybody's making."""
    given = facts.get(name)
    text = str(otherwise if given is None or str(given) == "0" else given)
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(f"its settings have {name} {text[:40]!r}, which is no count")
    return int(text)


def _refuse_elders(opened: Opened) -> None:
    facts = opened.facts
    if opened.is_elder or any(key.startswith(ELDER_KEYS) for key in opened.tensors):
        raise ValueError("it is of an older network (ESM-1, ESM-1b, ESM-1v or MSA Transformer)")
    if reason := unlike(facts):
        raise ValueError(reason)


def _rotary(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], num_layers: int, width: int
) -> tuple[Tensor, int]:
    """Return the rotary frequencies and the number of heads.

    Frequencies in the checkpoint are kept as they are: where training ran in fp16 they are rounded
    to it, and the network learned with the rounded ones (huggingface/transformers#19587).
    """
    stored = [tensor for key, tensor in tensors.items() if key.endswith("inv_freq")]
    if any(not torch.equal(tensor, stored[0]) for tensor in stored):
        raise ValueError("its layers differ in their rotary frequencies")
    heads = _number(facts, "attention_heads", HEADS_OF_SHAPE.get((num_layers, width), 0))
    if stored:
        heads_stored, rest = divmod(width, 2 * len(stored[0]))
        heads = heads or heads_stored
        if rest or heads != heads_stored:
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


def _check_tensors(checkpoint: Checkpoint) -> None:
    """Raise ValueError where a tensor is missing, has another shape or type, or is one too many."""
    names = checkpoint.names
    used = set[str]()
    for entry in checkpoint.entries():
        used.update(entry.keys)
        missing = [key for key in entry.keys if key not in checkpoint.tensors]
        if missing:
            raise ValueError(f"it has no tensor {missing[0]}")
        shape = (entry.shape[0] // max(1, len(entry.keys)), *entry.shape[1:])
        for key in entry.keys:
            if checkpoint.tensors[key].shape != shape:
                has = tuple(checkpoint.tensors[key].shape)
                raise ValueError(f"its tensor {key} has the shape {has} and not {shape}")
        if checkpoint.dtype(entry) not in NUMBER_TYPES:
            raise ValueError(f"its numbers are {checkpoint.dtype(entry)}")
    encoder = (names.layer, names.embedding.partition(".")[0])
    heads = set[str]()
    for key in checkpoint.tensors:
        is_known = key in used or key.endswith("inv_freq") or key.startswith(IDLE_KEYS)
        if key.startswith(encoder) and not is_known:
            raise ValueError(f"its tensor {key} is no part of an ESM-2")
        if not is_known:
            heads.add(key.partition(".")[0])
    if rest := sorted(heads - COMMON_PARTS):
        log.info("%s left out: features are those of the encoder below", listed(rest))


def _chunks(checkpoint: Checkpoint, header: bytes) -> Iterator[Any]:
    yield header
    for entry in checkpoint.entries():
        yield checkpoint.tensor(entry).reshape(-1).view(torch.uint8).numpy()
