"""ESM-1b, ESM-1v and SaProt with random weights, saved as their authors do."""

from __future__ import annotations

import warnings
from argparse import Namespace
from itertools import product

import esm
import torch
from esm.model.esm1 import ProteinBertModel
from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer

ALPHABET = esm.data.Alphabet.from_architecture("ESM-1b")
SAPROT_RESIDUES, SAPROT_STRUCTURES = "ACDEFGHIKLMNPQRSTVWY#", "pynwrqhgdlvtmfsaeikc#"
SAPROT_TOKENS = [
    *("<cls>", "<pad>", "<eos>", "<unk>", "<mask>"),
    *map("".join, product(SAPROT_RESIDUES, SAPROT_STRUCTURES)),
]


def save_elder(path, layers=3, width=48, heads=3, seed=1, has_norm=True):
    """Write what fair-esm's `load_model_and_alphabet` reads, with contact weights beside it."""
    settings = {
        "layers": layers,
        "embed_dim": width,
        "ffn_embed_dim": 4 * width,
        "attention_heads": heads,
        "max_positions": 1024,
        "token_dropout": True,
    }
    torch.manual_seed(seed)
    args = Namespace(arch="roberta_large", emb_layer_norm_before=has_norm, **settings)
    model = ProteinBertModel(args, ALPHABET).eval().requires_grad_(False)
    model.embed_tokens.weight *= 0.2
    for name, parameter in model.named_parameters():
        if not name.startswith(("embed", "contact_head")):
            parameter += torch.randn_like(parameter) * 0.05
    state = {
        ("encoder." if k.startswith("lm_head") else "encoder.sentence_encoder.") + k: v
        for k, v in model.state_dict().items()
        if not k.startswith("contact_head")
    }
    told = {f"encoder_{key}": value for key, value in settings.items() if "_p" not in key}
    told |= {"arch": "roberta_large", "max_positions": 1024}
    told["token_dropout"] = told.pop("encoder_token_dropout")
    torch.save({"args": Namespace(**told), "model": state}, path)
    contacts = {k: v for k, v in model.state_dict().items() if k.startswith("contact_head")}
    torch.save({"model": contacts}, path.with_name(f"{path.stem}-contact-regression.pt"))
    return path


def fair_esm_of(path):
    """Return the network that fair-esm itself loads from `path`."""
    with torch.serialization.safe_globals([Namespace]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Regression weights not found")
        network, _ = esm.pretrained.load_model_and_alphabet(str(path))
    return network.eval().requires_grad_(False)


def _randomised(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return model.eval().requires_grad_(False)


def elder_of_hugging_face(folder, has_norm=True, seed=5):
    """Return an EsmForMaskedLM with absolute positions, saved in `folder`."""
    config = EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=48, num_hidden_layers=3,
        num_attention_heads=3, intermediate_size=192, position_embedding_type="absolute",
        max_position_embeddings=1026, emb_layer_norm_before=has_norm, token_dropout=True,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    model = _randomised(EsmForMaskedLM(config), seed)
    model.save_pretrained(folder)
    return model


def saprot(folder, seed=7):
    """Return a SaProt and its tokenizer, saved in `folder`."""
    config = EsmConfig(
        vocab_size=446, mask_token_id=4, pad_token_id=1, hidden_size=48, num_hidden_layers=3,
        num_attention_heads=3, intermediate_size=192, position_embedding_type="rotary",
        max_position_embeddings=1026, emb_layer_norm_before=False, token_dropout=True,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    model = _randomised(EsmForMaskedLM(config), seed)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(SAPROT_TOKENS) + "\n")
    return model, EsmTokenizer(str(folder / "vocab.txt"))
