"""The kinds of networks that the engine computes. Read the settings and tokens of a Hugging Face
folder, and refuse other networks.

Reads no weights and imports no torch, so that a run is refused before its first job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import CONFIG, json_of

__all__ = [
    "ALPHABET",
    "ESM_1",
    "ESM_C",
    "RESIDUES",
    "ROTARY_BASE",
    "SAPROT",
    "SAPROT_TOKENS",
    "STRUCTURES",
    "Kind",
    "facts_of",
]
ROTARY_BASE = 10000.0
ALPHABET = (
    *("<cls>", "<pad>", "<eos>", "<unk>"),
    *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
    *("<null_1>", "<mask>"),
)
"""ESM-2's tokens in the order of their ids."""
ALPHABET_OF_ESM_C = (*ALPHABET[:31], "|", *ALPHABET[32:])
"""ESM C's tokens: those of ESM-2, with a separator of chains."""
RESIDUES = "ACDEFGHIKLMNPQRSTVWY#"
"""The first letter of SaProt's tokens, in the order of their ids; `#` is no known residue."""
STRUCTURES = "pynwrqhgdlvtmfsaeikc#"
"""The second letter; `#` is no known structure."""
SAPROT_TOKENS = (
    *("<cls>", "<pad>", "<eos>", "<unk>", "<mask>"),
    *map("".join, product(RESIDUES, STRUCTURES)),
)


class Kind(NamedTuple):
    """A kind of network, described by the content of its files."""

    title: str
    model_type: str
    required: Mapping[str, Any]
    """Settings that the encoder needs, if a checkpoint has them."""
    left_out: Mapping[str, Any]
    """The defaults of transformers for settings that a config.json lacks."""
    alphabet: tuple[str, ...]
    most_tokens: int
    """Largest number of rows of the embedding."""
    others: str
    """The advice for other networks, in error messages."""
    give: str
    """The valid inputs, in error messages."""


ESM2 = Kind(
    "ESM-2",
    "esm",
    {
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "layer_norm_eps": 1e-5,
        "rope_theta": ROTARY_BASE,
        "is_decoder": False,
    },
    {"position_embedding_type": "absolute", "token_dropout": False, "layer_norm_eps": 1e-12},
    ALPHABET,
    len(ALPHABET),
    "the workload esmc takes ESM C, and encoder takes BERT, T5, ModernBERT, ESM-1b and the "
    "Nucleotide Transformer (docs/encoders.md)",
    "the .pt of fair-esm, or a .safetensors, pytorch_model.bin or a folder of an EsmModel",
)
ESM_1 = ESM2._replace(
    title="ESM-1b or ESM-1v",
    required={
        "position_embedding_type": "absolute",
        "token_dropout": True,
        "layer_norm_eps": 1e-5,
        "is_decoder": False,
    },
    others="see docs/scores.md for the networks that scores takes",
    give="the .pt of fair-esm, or the folder of an EsmForMaskedLM",
)
SAPROT = ESM2._replace(
    title="SaProt",
    alphabet=SAPROT_TOKENS,
    most_tokens=len(SAPROT_TOKENS),
    others=ESM_1.others,
    give="the folder of an EsmForMaskedLM",
)
ESM_C = Kind(
    "ESM C",
    "esmc",
    {
        "vocab_size": 64,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
    },
    {},
    ALPHABET_OF_ESM_C,
    64,
    "the workload esm2 takes ESM-2, and encoder takes BERT, T5 and others (docs/encoders.md)",
    "the folder of an EsmcModel, a .safetensors, or the .pth of the package esm",
)


def facts_of(path: Path, kind: Kind = ESM2) -> dict[str, Any]:
    """Return the settings of such a network from the config.json in the folder `path`, or beside
    the file `path`; {} if there is no config.json, or that beside a file is of another model.

    Raises:
        UserError: if the folder has another network, or other tokens.
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
    if model_type != kind.model_type:
        if folder is not path:
            return {}
        stated = (
            "it names no model_type" if model_type is None else f"its model_type is {model_type!r}"
        )
        raise UserError(
            f"{config}: {stated}, and an {kind.title} has {kind.model_type!r}; {kind.others}."
        )
    settings: dict[str, Any] = {**kind.left_out, **facts}
    if reason := unlike(settings, kind):
        raise UserError(f"{config}: {reason}; {kind.others}.")
    _refuse_other_tokens(folder, settings, kind)
    return settings


def unlike(facts: Mapping[str, Any], kind: Kind) -> str:
    """Describe the first setting that this kind of network does not have; "" if there is none."""
    for fact, value in kind.required.items():
        if facts.get(fact, value) != value:
            return f"its settings have {fact} {facts[fact]}, where an {kind.title} has {value}"
    return ""


def _refuse_other_tokens(folder: Path, facts: Mapping[str, Any], kind: Kind) -> None:
    text, fast = folder / "vocab.txt", folder / "tokenizer.json"
    if facts.get("vocab_list"):
        _refuse_unless_alphabet(folder / CONFIG, facts["vocab_list"], kind)
    if text.is_file():
        _refuse_unless_alphabet(text, text.read_text("utf-8", "replace").split(), kind)
    if fast.is_file():
        content = json_of(fast)
        try:
            ids = content["model"]["vocab"]
            ids = ids | {
                token["content"]: token["id"] for token in content.get("added_tokens") or ()
            }
            tokens = sorted(ids, key=ids.__getitem__)
        except (AttributeError, KeyError, TypeError):
            raise UserError(
                f"{fast}: no vocabulary can be read in it; download it again."
            ) from None
        _refuse_unless_alphabet(fast, tokens, kind)


def _refuse_unless_alphabet(file: Path, tokens: list[str], kind: Kind) -> None:
    for id, token in enumerate(kind.alphabet):
        if tokens[id : id + 1] != [token]:
            actual = repr(tokens[id]) if id < len(tokens) else "missing"
            raise UserError(
                f"{file}: its token {id} is {actual}, and {kind.title}'s is {token!r}: the network "
                f"has learned another alphabet; {kind.others}."
            )
    if len(tokens) > kind.most_tokens:
        raise UserError(
            f"{file}: it has {len(tokens):,} tokens, and {kind.title} has {kind.most_tokens}; "
            f"{kind.others}."
        )
