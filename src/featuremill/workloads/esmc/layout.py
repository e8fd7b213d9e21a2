"""Settings and tokens of an ESM C's folder from Hugging Face, and the names of its tensors in
transformers, in the package esm, in the research folders, and in our files of weights.

Our file has the names of `esm2/layout.py`, and per layer query_key_norm.weight, in which that of
the query precedes that of the key. In `up`, the gate precedes the other matrix. Biases of products
and of the final LayerNorm are zeros.

Reads no weights and imports no torch, so that a run is refused before its first job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import CONFIG
from featuremill.workloads.esm2 import folder as of_esm2
from featuremill.workloads.esm2.architecture import ESM_C as ARCHITECTURE
from featuremill.workloads.esm2.architecture import Sizes
from featuremill.workloads.esm2.folder import ROTARY_BASE, Kind
from featuremill.workloads.esm2.layout import EMBEDDING, Entry

ALPHABET = (*of_esm2.ALPHABET[:31], "|", *of_esm2.ALPHABET[32:])
"""ESM C's tokens in the order of their ids: ESM-2's, with a break between chains."""
ROTARY = {"rope_type": "default", "rope_theta": ROTARY_BASE}
ESM_C = Kind(
    ARCHITECTURE.title,
    "esmc",
    {
        "vocab_size": ARCHITECTURE.num_rows,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    },
    {},
    ALPHABET,
    ARCHITECTURE.num_rows,
    "the workload esm2 takes ESM-2, and encoder takes BERT, T5 and others (docs/encoders.md)",
    "the folder of an EsmcModel, a .safetensors, or the .pth of the package esm",
)


class Names(NamedTuple):
    """The key names of one source."""

    embedding: str
    final_norm: str
    layer: str
    parts: Mapping[str, tuple[str, ...]]
    """The source's names for each of our tensors of a layer; several tensors are stacked."""
    of_encoder: tuple[str, ...]
    """Prefixes of the names of the encoder's tensors."""
    head: Mapping[str, str]
    """The source's name for each of our parts of the language-model head."""


TRANSFORMERS = Names(
    "embed_tokens.weight",
    "norm.weight",
    "layers.",
    {
        "attention_norm.weight": ("input_layernorm.weight",),
        "attention_norm.bias": ("input_layernorm.bias",),
        "qkv.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
        "query_key_norm.weight": ("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
        "out.weight": ("self_attn.o_proj.weight",),
        "feed_forward_norm.weight": ("post_attention_layernorm.weight",),
        "feed_forward_norm.bias": ("post_attention_layernorm.bias",),
        "up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "down.weight": ("mlp.down_proj.weight",),
    },
    ("embed_tokens.", "layers.", "norm."),
    {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "decoder": "lm_head.decoder"},
)
PACKAGE = Names(
    "embed.weight",
    "transformer.norm.weight",
    "transformer.blocks.",
    {
        "attention_norm.weight": ("attn.layernorm_qkv.0.weight",),
        "attention_norm.bias": ("attn.layernorm_qkv.0.bias",),
        "qkv.weight": ("attn.layernorm_qkv.1.weight",),
        "query_key_norm.weight": ("attn.q_ln.weight", "attn.k_ln.weight"),
        "out.weight": ("attn.out_proj.weight",),
        "feed_forward_norm.weight": ("ffn.0.weight",),
        "feed_forward_norm.bias": ("ffn.0.bias",),
        "up.weight": ("ffn.1.weight",),
        "down.weight": ("ffn.3.weight",),
    },
    ("embed.", "transformer."),
    {"dense": "sequence_head.0", "norm": "sequence_head.2", "decoder": "sequence_head.3"},
)
RESEARCH = PACKAGE._replace(
    parts={
        **PACKAGE.parts,
        "attention_norm.weight": ("attn.layernorm_qkv.layer_norm_weight",),
        "attention_norm.bias": ("attn.layernorm_qkv.layer_norm_bias",),
        "qkv.weight": ("attn.layernorm_qkv.weight",),
        "feed_forward_norm.weight": ("ffn.layer_norm_weight",),
        "feed_forward_norm.bias": ("ffn.layer_norm_bias",),
        "up.weight": ("ffn.fc1_weight",),
        "down.weight": ("ffn.fc2_weight",),
    },
    head={"dense": "lm_head.0", "norm": "lm_head.2", "decoder": "lm_head.3"},
)
"""The names of TransformerEngine, which also stores its own state."""
STATE_OF_ENGINE = "_extra_state"
"""The end of the names of that state."""


def facts_of(path: Path) -> dict[str, Any]:
    """Return the settings of an ESM C from the config.json in the folder `path`, or beside the file
    `path`; {} if there is no config.json, or that beside a file is of another model.

    Raises:
        UserError: the folder has another network, or other tokens.
    """
    facts = of_esm2.facts_of(path, ESM_C)
    rotary = facts.get("rope_parameters")
    if rotary and rotary != ROTARY:
        config = (path if path.is_dir() else path.parent) / CONFIG
        raise UserError(
            f"{config}: its settings have rope_parameters {rotary}, where an ESM C has {ROTARY}; "
            f"{ESM_C.others}."
        )
    return facts


def of_ours(sizes: Sizes) -> Iterator[Entry]:
    """Yield the tensors of our file without the rotary frequencies."""
    return entries(TRANSFORMERS, sizes)


def entries(names: Names, sizes: Sizes) -> Iterator[Entry]:
    """Yield the tensors of our file without the rotary frequencies, with their shapes and their
    `names` in the source."""
    width, hidden = sizes.width, sizes.feed_forward
    shapes = {
        "attention_norm.weight": (width,),
        "attention_norm.bias": (width,),
        "qkv.weight": (3 * width, width),
        "qkv.bias": (3 * width,),
        "query_key_norm.weight": (2 * width,),
        "out.weight": (width, width),
        "out.bias": (width,),
        "feed_forward_norm.weight": (width,),
        "feed_forward_norm.bias": (width,),
        "up.weight": (2 * hidden, width),
        "up.bias": (2 * hidden,),
        "down.weight": (width, hidden),
        "down.bias": (width,),
    }
    yield Entry(EMBEDDING, (names.embedding,), (sizes.architecture.num_rows, width))
    yield Entry("final_norm.weight", (names.final_norm,), (width,))
    yield Entry("final_norm.bias", (), (width,))
    for layer in range(sizes.num_layers):
        for part, shape in shapes.items():
            keys = tuple(f"{names.layer}{layer}.{key}" for key in names.parts.get(part, ()))
            yield Entry(f"layers.{layer}.{part}", keys, shape)


def head_entries(names: Names, sizes: Sizes) -> Iterator[Entry]:
    """Yield the tensors of the language-model head in our file."""
    width, num_rows = sizes.width, sizes.architecture.num_rows
    shapes = {"dense": (width, width), "norm": (width,), "decoder": (num_rows, width)}
    for part, shape in shapes.items():
        for kind in ("weight", "bias"):
            key = f"{names.head[part]}.{kind}"
            yield Entry(f"head.{part}.{kind}", (key,), shape if kind == "weight" else shape[:1])
