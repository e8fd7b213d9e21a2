"""Names of ESM-2's tensors in fair-esm, in Hugging Face, and in our files of weights.

Our file has, per layer, `layers.<i>.` attention_norm, qkv (query, key and value as one matrix),
out, feed_forward_norm, up and down, each with .weight and .bias; and once embed_tokens.weight,
rotary.inv_freq, and final_norm.weight and .bias. ESM-1b and ESM-1v have embed_positions.weight,
ESM-1b first_norm.weight and .bias. With the language-model head, it also has head.dense, head.norm
and head.decoder, each with .weight and .bias.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from featuremill.workloads.esm2.architecture import Architecture, Sizes

__all__ = ["EMBEDDING", "FREQUENCIES", "Entry"]
EMBEDDING = "embed_tokens.weight"
FREQUENCIES = "rotary.inv_freq"
POSITIONS = "embed_positions.weight"
FIRST_NORM = "first_norm"
HEAD = "lm_head."
"""Prefix of the keys of the language-model head, in every source."""


class Names(NamedTuple):
    """The key names of one source."""

    prefixes: tuple[str, ...]
    """Prefixes of all keys of a whole model; the first that fits is removed."""
    embedding: str
    layer: str
    final_norm: str
    parts: Mapping[str, tuple[str, ...]]
    """Our name of a part of a layer → the names in the source; several are stacked."""
    decoder: str
    """The name of the head's last matrix, which may be missing, as it is tied to the embedding."""
    positions: str
    first_norm: str


FAIR_ESM = Names(
    ("encoder.sentence_encoder.", "encoder."),
    "embed_tokens.weight",
    "layers.",
    "emb_layer_norm_after",
    {
        "attention_norm": ("self_attn_layer_norm",),
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.out_proj",),
        "feed_forward_norm": ("final_layer_norm",),
        "up": ("fc1",),
        "down": ("fc2",),
    },
    "lm_head.weight",
    "embed_positions.weight",
    "emb_layer_norm_before",
)
HUGGING_FACE = Names(
    ("esm.",),
    "embeddings.word_embeddings.weight",
    "encoder.layer.",
    "encoder.emb_layer_norm_after",
    {
        "attention_norm": ("attention.LayerNorm",),
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "out": ("attention.output.dense",),
        "feed_forward_norm": ("LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
    },
    "lm_head.decoder.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.layer_norm",
)


class Entry(NamedTuple):
    """One tensor of our file."""

    name: str
    keys: tuple[str, ...]
    """The names of the tensors of the source that are stacked."""
    shape: tuple[int, ...]
    keeps_type: bool = False
    """Whether it keeps its dtype if the others are stored in fp16."""


def of_ours(sizes: Sizes) -> Iterator[Entry]:
    """Yield the tensors of our file besides the rotary frequencies."""
    return entries(FAIR_ESM, sizes.num_layers, sizes.width, sizes.architecture.num_rows)


def entries(names: Names, num_layers: int, width: int, num_tokens: int) -> Iterator[Entry]:
    """Yield the tensors of our file besides the rotary frequencies, with their required shapes."""
    yield Entry(EMBEDDING, (names.embedding,), (num_tokens, width))
    for kind in ("weight", "bias"):
        yield Entry(f"final_norm.{kind}", (f"{names.final_norm}.{kind}",), (width,))
    matrices = {
        "qkv": (3 * width, width),
        "out": (width, width),
        "up": (4 * width, width),
        "down": (width, 4 * width),
    }
    for layer in range(num_layers):
        for part, theirs in names.parts.items():
            shape = matrices.get(part, (width,))
            for kind in ("weight", "bias"):
                yield Entry(
                    f"layers.{layer}.{part}.{kind}",
                    tuple(f"{names.layer}{layer}.{key}.{kind}" for key in theirs),
                    shape if kind == "weight" else shape[:1],
                )


def first_entries(names: Names, architecture: Architecture, width: int) -> Iterator[Entry]:
    """Yield the tensors of ESM-1b and ESM-1v before the layers, which ESM-2 lacks."""
    if rows := architecture.num_positions:
        yield Entry(POSITIONS, (names.positions,), (rows, width))
    if architecture.norms_embedding:
        for kind in ("weight", "bias"):
            yield Entry(f"{FIRST_NORM}.{kind}", (f"{names.first_norm}.{kind}",), (width,))


def head_entries(
    names: Names, tensors: Collection[str], width: int, num_tokens: int
) -> Iterator[Entry]:
    """Yield the tensors of the language-model head, for a source with these `tensors`."""
    decoder = names.decoder if names.decoder in tensors else names.embedding
    yield Entry("head.dense.weight", (f"{HEAD}dense.weight",), (width, width))
    yield Entry("head.dense.bias", (f"{HEAD}dense.bias",), (width,))
    for kind in ("weight", "bias"):
        yield Entry(f"head.norm.{kind}", (f"{HEAD}layer_norm.{kind}",), (width,))
    yield Entry("head.decoder.weight", (decoder,), (num_tokens, width))
    yield Entry("head.decoder.bias", (f"{HEAD}bias",), (num_tokens,))
