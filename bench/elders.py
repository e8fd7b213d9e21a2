"""fair-esm's ESM-1b and ESM-1v and transformers' SaProt with random weights, and what the programs
of their authors make of variants.

Benchmark and tests share it; nothing here knows of either.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

import esm
import numpy as np
import numpy.typing as npt
import torch
from esm.data import Alphabet
from esm.model.esm1 import ProteinBertModel
from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer

ALPHABET = Alphabet.from_architecture("ESM-1b")
SAPROT_RESIDUES, SAPROT_STRUCTURES = "ACDEFGHIKLMNPQRSTVWY#", "pynwrqhgdlvtmfsaeikc#"
SAPROT_TOKENS = [
    *("<cls>", "<pad>", "<eos>", "<unk>", "<mask>"),
    *map("".join, product(SAPROT_RESIDUES, SAPROT_STRUCTURES)),
]
Numbers = npt.NDArray[np.float32]


def save_elder(
    path: Path,
    layers: int = 3,
    width: int = 48,
    heads: int = 3,
    seed: int = 1,
    *,
    has_norm: bool = True,
) -> Path:
    """Write what fair-esm's `load_model_and_alphabet` reads, with contact weights beside it."""
    settings = {
        "layers": layers,
        "embed_dim": width,
        "ffn_embed_dim": 4 * width,
        "attention_heads": heads,
    }
    arch: dict[str, Any] = {
        "arch": "roberta_large",
        "max_positions": 1024,
        "token_dropout": True,
    }
    torch.manual_seed(seed)
    args = Namespace(**settings, **arch, emb_layer_norm_before=has_norm)
    model = ProteinBertModel(args, ALPHABET).eval().requires_grad_(False)
    model.embed_tokens.weight *= 0.2
    for name, parameter in model.named_parameters():
        if not name.startswith(("embed", "contact_head")):
            scale = 0.35 / parameter.shape[-1] ** 0.5
            parameter += torch.randn_like(parameter) * scale
    state = {
        ("encoder." if k.startswith("lm_head") else "encoder.sentence_encoder.") + k: v
        for k, v in model.state_dict().items()
        if not k.startswith("contact_head")
    }
    told = {f"encoder_{key}": value for key, value in settings.items()} | arch
    torch.save({"args": Namespace(**told), "model": state}, path)
    contacts = {k: v for k, v in model.state_dict().items() if k.startswith("contact_head")}
    torch.save({"model": contacts}, path.with_name(f"{path.stem}-contact-regression.pt"))
    return path


def fair_esm_of(path: Path) -> Any:
    """Return the network that fair-esm itself loads from `path`."""
    with torch.serialization.safe_globals([Namespace]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Regression weights not found")
        network, _ = esm.pretrained.load_model_and_alphabet(str(path))
    return network.eval().requires_grad_(False)


def elder_log_probabilities(network: Any, sequence: str, masked: tuple[int, ...] = ()) -> Numbers:
    """Return log-probabilities (residues, 33) of a sequence with these places masked, as
    `predict.py` of fair-esm's examples computes them, by fair-esm's or transformers' network."""
    _, _, tokens = ALPHABET.get_batch_converter()([("protein", sequence)])
    for place in masked:
        tokens[0, 1 + place] = ALPHABET.mask_idx
    with torch.inference_mode():
        found = network(tokens)
    logits = found["logits"] if isinstance(found, dict) else found.logits
    rows: Numbers = torch.log_softmax(logits, -1)[0, 1:-1].numpy()
    return rows


def elder_of_hugging_face(folder: Path, *, has_norm: bool = True, seed: int = 5) -> Any:
    """Return an EsmForMaskedLM with absolute positions, saved in `folder`."""
    config = _config(
        vocab_size=33, mask_token_id=32, position_embedding_type="absolute",
        emb_layer_norm_before=has_norm,
    )  # fmt: skip
    model = _randomised(EsmForMaskedLM(config), seed)
    model.save_pretrained(folder)
    return model


def saprot(
    folder: Path, layers: int = 3, width: int = 48, heads: int = 3, seed: int = 7
) -> tuple[Any, Any]:
    """Return a SaProt and its tokenizer, saved in `folder`."""
    config = _config(
        layers, width, heads, vocab_size=446, mask_token_id=4, position_embedding_type="rotary",
        emb_layer_norm_before=False,
    )  # fmt: skip
    model = _randomised(EsmForMaskedLM(config), seed)
    model.save_pretrained(folder)
    words = Path(folder, "vocab.txt")
    words.write_text("\n".join(SAPROT_TOKENS) + "\n")
    return model, EsmTokenizer(str(words))


def saprot_probabilities(network: Any, tokenizer: Any, tokens: list[str]) -> torch.Tensor:
    """Return the probabilities (tokens and two ends, 446) of a sequence of SaProt's tokens."""
    given = tokenizer(" ".join(tokens), return_tensors="pt")
    assert given["input_ids"].shape[1] == len(tokens) + 2
    with torch.inference_mode():
        shares: torch.Tensor = network(**given).logits.softmax(-1)[0]
    return shares


def of_residue(shares: torch.Tensor, residue: str) -> torch.Tensor:
    """Return the share that all tokens of a residue have."""
    start = 5 + len(SAPROT_STRUCTURES) * SAPROT_RESIDUES.index(residue)
    return shares[start : start + len(SAPROT_STRUCTURES)].sum()


def saprot_score(network: Any, tokenizer: Any, combined: str, variant: str) -> float:
    """Return SaProt's score of a variant, by the definition of its `predict_mut`: the new residue's
    share over the old one's, with the residues of the variant masked as `#`."""
    tokens = [combined[n : n + 2] for n in range(0, len(combined), 2)]
    parts = [(part[0], int(part[1:-1]), part[-1]) for part in variant.split(":")]
    for _, position, _ in parts:
        tokens[position - 1] = "#" + tokens[position - 1][1]
    shares = saprot_probabilities(network, tokenizer, tokens)
    return sum(
        float(torch.log(of_residue(shares[position], new) / of_residue(shares[position], old)))
        for old, position, new in parts
    )


def _config(layers: int = 3, width: int = 48, heads: int = 3, **more: Any) -> Any:
    return EsmConfig(
        pad_token_id=1, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=1026, token_dropout=True,
        layer_norm_eps=1e-5, **more,
    )  # fmt: skip


def _randomised(model: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * (2 / parameter.shape[-1]) ** 0.5 * 0.5
    return model.eval().requires_grad_(False)
