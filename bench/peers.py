"""fair-esm's and transformers' ESM-2 with given weights, and how far two results are apart.

Benchmark and tests share it; nothing here knows of either.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from esm.data import Alphabet
from esm.model.esm2 import ESM2
from torch import Tensor

ALPHABET = Alphabet.from_architecture("ESM-1b")
HUGGING_FACE_NAMES = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "LayerNorm",
}


def fair_esm(
    num_layers: int,
    width: int,
    heads: int,
    state: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Any:
    """Return fair-esm's model in fp32: with its own initial weights, or those of `state`."""
    torch.manual_seed(seed)
    model = ESM2(num_layers, width, heads).eval().requires_grad_(False)
    if state:
        found = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
        assert not found.unexpected_keys
        unused = ("contact_head", "inv_freq", "lm_head.weight")
        assert all(any(part in key for part in unused) for key in found.missing_keys)
    return model


def save_fair_esm(
    model: Any, path: Path, dtype: torch.dtype = torch.float32, **settings: Any
) -> Path:
    """Write `path` as fair-esm's published ESM-2 checkpoints are: settings in a Namespace."""
    state = {
        ("encoder." if k.startswith("lm_head") else "encoder.sentence_encoder.") + k: v.to(
            dtype
        ).cpu()
        for k, v in model.state_dict().items()
        if not k.startswith("contact_head")
    }
    cfg = {
        "encoder_layers": model.num_layers,
        "encoder_embed_dim": model.embed_dim,
        "encoder_attention_heads": model.attention_heads,
        "token_dropout": True,
    }
    torch.save({"cfg": {"model": Namespace(**cfg | settings)}, "model": state}, path)
    return path


def hugging_face_state(model: Any) -> dict[str, Tensor]:
    """Return the weights of a fair-esm model under the names of transformers' EsmModel."""
    state = {}
    for key, value in model.state_dict().items():
        if key.startswith("layers."):
            _, number, rest = key.split(".", 2)
            part, kind = rest.rsplit(".", 1)
            if part in HUGGING_FACE_NAMES:
                state[f"encoder.layer.{number}.{HUGGING_FACE_NAMES[part]}.{kind}"] = value
        elif key.startswith("emb_layer_norm_after"):
            state[f"encoder.{key}"] = value
        elif key == "embed_tokens.weight":
            state["embeddings.word_embeddings.weight"] = value
    return state


def hugging_face_config(model: Any) -> dict[str, Any]:
    """Return the settings of transformers' EsmConfig for a fair-esm model."""
    return {
        "model_type": "esm",
        "vocab_size": 33,
        "hidden_size": model.embed_dim,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.attention_heads,
        "intermediate_size": 4 * model.embed_dim,
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "emb_layer_norm_before": False,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "mask_token_id": 32,
    }


def relative_l2(found: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Return |found − expected| / |expected|, of all numbers together."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def cosines(found: npt.ArrayLike, expected: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the cosine of each row of `found` with that of `expected`."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosine: npt.NDArray[np.float64] = (found * expected).sum(-1) / norms
    return cosine
