"""ESM-2 models of fair-esm and transformers, and checkpoints as those libraries write them."""

import functools
import json
from argparse import Namespace
from pathlib import Path

import dnaio
import numpy as np
import torch
from esm.data import Alphabet
from esm.model.esm2 import ESM2
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parent.parent
BUNDLED = ROOT / "src/featuremill/workloads/esm2/bundled/mill_t6_8M.safetensors"
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


def demo_proteins(count, longest=1500):
    """Return `count` real proteins of at most `longest` residues, spread over the demo file."""
    with dnaio.open(ROOT / "config" / "demo.fasta") as reader:
        proteins = [record.sequence for record in reader if 30 <= len(record.sequence) <= longest]
    assert len(proteins) >= count
    return [proteins[i * len(proteins) // count] for i in range(count)]


def proteins_of_all_lengths(count, longest=1500):
    """Return `count` of those proteins, from the shortest to the longest."""
    proteins = sorted(demo_proteins(400, longest), key=len)
    return [proteins[i * (len(proteins) - 1) // (count - 1)] for i in range(count)]


def fair_esm(num_layers, width, heads, state=None, seed=0):
    """Return fair-esm's model in fp32: with its own initial weights, or those of `state`."""
    torch.manual_seed(seed)
    model = ESM2(num_layers, width, heads).eval().requires_grad_(False)
    if state:
        found = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
        assert not found.unexpected_keys
        unused = ("contact_head", "inv_freq", "lm_head.weight")
        assert all(any(part in key for part in unused) for key in found.missing_keys)
    return model


def fair_esm_bundled():
    return fair_esm(6, 320, 20, load_file(BUNDLED))


def tokens_of(sequence):
    """Return what fair-esm's own batch converter makes of a sequence; `<mask>` is a token."""
    return ALPHABET.get_batch_converter()([("", sequence)])[2]


def representations(model, tokens):
    """Return fair-esm's hidden states (layers + 1, tokens, width) of one sequence."""
    layers = range(model.num_layers + 1)
    with torch.inference_mode():
        states = model(tokens.reshape(1, -1), repr_layers=layers)["representations"]
    return torch.stack([states[layer][0] for layer in layers])


class Compared:
    """Weights of ours (`found`), fair-esm's `network` with the same, and what that one says."""

    def __init__(self, found, network):
        self.found, self.network = found, network
        self.states = functools.lru_cache(64)(self._states)
        """Gives the hidden states of a sequence; they cost more than what is held against them."""

    def _states(self, sequence):
        return representations(self.network, tokens_of(sequence)).numpy()


def save_fair_esm(model, path, dtype=torch.float32, **settings):
    """Write `path` as fair-esm's published ESM-2 checkpoints are: settings in a Namespace."""
    state = {
        ("encoder." if k.startswith("lm_head") else "encoder.sentence_encoder.") + k: v.to(dtype)
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


def hugging_face_state(model):
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


def hugging_face_config(model):
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


def save_hugging_face(model, folder, prefix="esm."):
    """Write a folder as transformers does: model.safetensors and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {prefix + k: v.contiguous() for k, v in hugging_face_state(model).items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hugging_face_config(model)))
    return folder / "model.safetensors"


def relative_l2(found, expected):
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def cosines(found, expected):
    """Return the cosine of each row of `found` with that of `expected`."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return (found * expected).sum(-1) / norms
