"""ESM-2 models of fair-esm and transformers, and checkpoints as those libraries write them."""

import functools
import json
from pathlib import Path

import dnaio
import torch
from bench.peers import (
    ALPHABET,
    cosines,
    fair_esm,
    hugging_face_config,
    hugging_face_state,
    relative_l2,
    save_fair_esm,
)
from safetensors.torch import load_file, save_file

__all__ = [
    "ALPHABET",
    "BUNDLED",
    "ROOT",
    "Compared",
    "cosines",
    "demo_proteins",
    "fair_esm",
    "fair_esm_bundled",
    "hugging_face_config",
    "hugging_face_state",
    "proteins_of_all_lengths",
    "relative_l2",
    "representations",
    "save_fair_esm",
    "save_hugging_face",
    "tokens_of",
]

ROOT = Path(__file__).parent.parent
BUNDLED = ROOT / "src/featuremill/workloads/esm2/bundled/mill_t6_8M.safetensors"


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


def save_hugging_face(model, folder, prefix="esm.", head=None):
    """Write a folder as transformers does: model.safetensors and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {prefix + k: v.contiguous() for k, v in hugging_face_state(model).items()}
    state |= {k: v.clone() for k, v in (head or {}).items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hugging_face_config(model)))
    return folder / "model.safetensors"
