"""The kinds of networks ESM-1b, ESM-1v and SaProt, which the engine computes for scores, and the
first two also for contacts. Does not import torch."""

from __future__ import annotations

from itertools import product

from featuremill.workloads.esm2.folder import ALPHABET, ESM2, ROTARY_BASE, Kind

__all__ = ["ESM_1", "RESIDUES", "SAPROT", "SAPROT_TOKENS", "STRUCTURES"]
RESIDUES = "ACDEFGHIKLMNPQRSTVWY#"
"""The first letter of SaProt's tokens, in the order of their ids; `#` is no known residue."""
STRUCTURES = "pynwrqhgdlvtmfsaeikc#"
"""The second letter; `#` is no known structure."""
SAPROT_TOKENS = (
    *("<cls>", "<pad>", "<eos>", "<unk>", "<mask>"),
    *map("".join, product(RESIDUES, STRUCTURES)),
)
ESM_1 = Kind(
    "ESM-1b or ESM-1v",
    "esm",
    {
        "position_embedding_type": "absolute",
        "token_dropout": True,
        "layer_norm_eps": 1e-5,
        "is_decoder": False,
    },
    {"position_embedding_type": "absolute", "token_dropout": False, "layer_norm_eps": 1e-12},
    ALPHABET,
    len(ALPHABET),
    "see docs/scores.md for the networks that scores takes",
    "the .pt of fair-esm, or the folder of an EsmForMaskedLM",
)
SAPROT = Kind(
    "SaProt",
    "esm",
    {**ESM2.required, "rope_theta": ROTARY_BASE},
    ESM2.left_out,
    SAPROT_TOKENS,
    len(SAPROT_TOKENS),
    "see docs/scores.md for the networks that scores takes",
    "the folder of an EsmForMaskedLM",
)
