"""What a folder from Hugging Face says of its network and its tokens; refuses what is no ESM-2.

Reads no weights and needs no torch, so a run is refused before its first job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError
from featuremill.workload.hugging_face import CONFIG, json_of

MODEL_TYPE = "esm"
ROTARY_BASE = 10000.0
REQUIRED = {
    "position_embedding_type": "rotary",
    "token_dropout": True,
    "layer_norm_eps": 1e-5,
    "rope_theta": ROTARY_BASE,
    "is_decoder": False,
}
"""Settings that the encoder relies on, where a checkpoint states them."""
LEFT_OUT = {"position_embedding_type": "absolute", "token_dropout": False, "layer_norm_eps": 1e-12}
"""What transformers takes where a config.json does not state them."""
ALPHABET = (
    *("<cls>", "<pad>", "<eos>", "<unk>"),
    *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
    *("<null_1>", "<mask>"),
)
"""ESM-2's tokens in the order of their ids."""
OTHERS = (
    "the workload encoder takes BERT, T5, ModernBERT, ESM-1b and the Nucleotide Transformer "
    "(docs/encoders.md)"
)


def facts_of(path: Path) -> dict[str, Any]:
    """Return what the config.json in the folder `path`, or beside the file `path`, says of an ESM;
    nothing where there is none, or where the one beside a file is of another model.

    Raises:
        UserError: it is of another network than ESM-2, or its tokens are others.
    """
    folder = path if path.is_dir() else path.parent
    config = folder / CONFIG
    if not config.is_file():
        return {}
    try:
        facts = json.loads(config.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{config}: this config of a model cannot be read ({error}); download it again, or "
            "take it away if it does not belong to the weights beside it."
        ) from None
    model_type = facts.get("model_type") if isinstance(facts, dict) else None
    if model_type != MODEL_TYPE:
        if folder is not path:
            return {}
        told = (
            "it names no model_type" if model_type is None else f"its model_type is {model_type!r}"
        )
        raise UserError(f"{config}: {told}, and an ESM-2 has {MODEL_TYPE!r}; {OTHERS}.")
    settings: dict[str, Any] = LEFT_OUT | facts
    if reason := unlike(settings):
        raise UserError(f"{config}: {reason}; {OTHERS}.")
    _refuse_other_tokens(folder, settings)
    return settings


def unlike(facts: Mapping[str, Any]) -> str:
    """Return in words which of the settings is not an ESM-2's; "" where all are."""
    for fact, value in REQUIRED.items():
        if facts.get(fact, value) != value:
            return f"its settings say {fact} {facts[fact]}, where an ESM-2 has {value}"
    return ""


def _refuse_other_tokens(folder: Path, facts: Mapping[str, Any]) -> None:
    """Raise UserError where a file says that the ids of tokens are not ESM-2's."""
    text, fast = folder / "vocab.txt", folder / "tokenizer.json"
    if facts.get("vocab_list"):
        _refuse_unless_alphabet(folder / CONFIG, facts["vocab_list"])
    if text.is_file():
        _refuse_unless_alphabet(text, text.read_text("utf-8", "replace").split())
    if fast.is_file():
        told = json_of(fast)
        try:
            ids = told["model"]["vocab"]
            ids = ids | {token["content"]: token["id"] for token in told.get("added_tokens") or ()}
            tokens = sorted(ids, key=ids.__getitem__)
        except (AttributeError, KeyError, TypeError):
            raise UserError(
                f"{fast}: no vocabulary can be read in it; download it again."
            ) from None
        _refuse_unless_alphabet(fast, tokens)


def _refuse_unless_alphabet(file: Path, tokens: list[str]) -> None:
    for id, token in enumerate(ALPHABET):
        if tokens[id : id + 1] != [token]:
            found = repr(tokens[id]) if id < len(tokens) else "missing"
            raise UserError(
                f"{file}: its token {id} is {found}, and ESM-2's is {token!r}: the network has "
                f"learned another alphabet; {OTHERS}."
            )
    if len(tokens) > len(ALPHABET):
        raise UserError(
            f"{file}: it has {len(tokens):,} tokens, and ESM-2 has {len(ALPHABET)}; {OTHERS}."
        )
