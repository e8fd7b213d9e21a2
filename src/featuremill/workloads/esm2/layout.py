"""The tensors of our files of weights, and their names in fair-esm and in Hugging Face.

Our file has, per layer, `layers.<i>.` attention_norm, qkv (query, key and value as one matrix),
out, feed_forward_norm, up and down, each with .weight and .bias; and once embed_tokens.weight,
rotary.inv_freq, and final_norm.weight and .bias. ESM-1b and ESM-1v have embed_positions.weight,
ESM-1b first_norm.weight and .bias. ESM C has, per layer, query_key_norm.weight, that of the query
above that of the key, and `up` has the gate above the rest. With the language-model head, a file
also has head.dense, head.norm and head.decoder, each with .weight and .bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from featuremill.workloads.esm2.architecture import Sizes

__all__ = ["FREQUENCIES", "Entry", "Names", "entries"]
EMBEDDING = "embed_tokens.weight"
FREQUENCIES = "rotary.inv_freq"
POSITIONS = "embed_positions.weight"
FIRST_NORM = "first_norm"
DECODER = "head.decoder.weight"
WITHOUT_BIAS = ("embed_tokens", "embed_positions", "query_key_norm")


class Names(NamedTuple):
    """The key names of one source."""

    parts: Mapping[str, tuple[str, ...]]
    """Our name of a part → its prefixes in the source, before "weight" and "bias"; several are
    stacked. Parts of a layer are without the prefix of the layer."""
    layer: str
    """The prefix of a layer's keys, before its number."""
    of_encoder: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    """Prefixes of all keys of a whole model; the first that fits is removed."""
    without_bias: tuple[str, ...] = ()
    """Our names of the parts that have no bias in the source."""

    def keys(self, part: str, kind: str, prefix: str = "") -> tuple[str, ...]:
        """Return the keys of the weight or bias of our `part`; () if the source lacks it."""
        if kind == "bias" and part in self.without_bias:
            return ()
        return tuple(f"{prefix}{each}{kind}" for each in self.parts.get(part, ()))

    @property
    def embedding(self) -> str:
        """The key of the embedding."""
        return self.keys("embed_tokens", "weight")[0]


HEAD = {
    "head.dense": ("lm_head.dense.",),
    "head.norm": ("lm_head.layer_norm.",),
    "head.decoder": ("lm_head.",),
}
FAIR_ESM = Names(
    {
        "embed_tokens": ("embed_tokens.",),
        "embed_positions": ("embed_positions.",),
        "first_norm": ("emb_layer_norm_before.",),
        "attention_norm": ("self_attn_layer_norm.",),
        "qkv": ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
        "out": ("self_attn.out_proj.",),
        "feed_forward_norm": ("final_layer_norm.",),
        "up": ("fc1.",),
        "down": ("fc2.",),
        "final_norm": ("emb_layer_norm_after.",),
        **HEAD,
    },
    "layers.",
    ("layers.", "embed_tokens"),
    ("encoder.sentence_encoder.", "encoder."),
)
HUGGING_FACE = Names(
    {
        "embed_tokens": ("embeddings.word_embeddings.",),
        "embed_positions": ("embeddings.position_embeddings.",),
        "first_norm": ("embeddings.layer_norm.",),
        "attention_norm": ("attention.LayerNorm.",),
        "qkv": ("attention.self.query.", "attention.self.key.", "attention.self.value."),
        "out": ("attention.output.dense.",),
        "feed_forward_norm": ("LayerNorm.",),
        "up": ("intermediate.dense.",),
        "down": ("output.dense.",),
        "final_norm": ("encoder.emb_layer_norm_after.",),
        **HEAD,
    },
    "encoder.layer.",
    ("encoder.layer.", "embeddings"),
    ("esm.",),
)
DECODERS = ("lm_head.weight", "lm_head.decoder.weight")
"""The keys of the head's last matrix in fair-esm and in Hugging Face. A checkpoint may lack it, as
it is tied to the embedding."""


class Entry(NamedTuple):
    """One tensor of our file."""

    name: str
    keys: tuple[str, ...]
    """The names of the tensors of the source that are stacked; () if it has none."""
    shape: tuple[int, ...]
    keeps_type: bool = False
    """Whether it keeps its dtype if the others are stored in fp16."""


def entries(names: Names, sizes: Sizes, has_head: bool = False) -> Iterator[Entry]:
    """Yield the tensors of our file besides the rotary frequencies, with their required shapes."""
    architecture, width, hidden = sizes.architecture, sizes.width, sizes.feed_forward
    num_rows, num_halves = architecture.num_rows, 2 if architecture.is_gated else 1

    def both(part: str, shape: tuple[int, ...], layer: int | None = None) -> Iterator[Entry]:
        ours, theirs = ("", "") if layer is None else (f"layers.{layer}.", f"{names.layer}{layer}.")
        for kind in ("weight",) if part in WITHOUT_BIAS else ("weight", "bias"):
            kept = shape if kind == "weight" else shape[:1]
            yield Entry(f"{ours}{part}.{kind}", names.keys(part, kind, theirs), kept)

    yield from both("embed_tokens", (num_rows, width))
    yield from both("final_norm", (width,))
    for layer in range(sizes.num_layers):
        yield from both("attention_norm", (width,), layer)
        yield from both("qkv", (3 * width, width), layer)
        if architecture.norms_query_and_key:
            yield from both("query_key_norm", (2 * width,), layer)
        yield from both("out", (width, width), layer)
        yield from both("feed_forward_norm", (width,), layer)
        yield from both("up", (num_halves * hidden, width), layer)
        yield from both("down", (width, hidden), layer)
    if architecture.num_positions:
        yield from both("embed_positions", (architecture.num_positions, width))
    if architecture.norms_embedding:
        yield from both("first_norm", (width,))
    if has_head:
        yield from both("head.dense", (width, width))
        yield from both("head.norm", (width,))
        yield from both("head.decoder", (num_rows, width))
