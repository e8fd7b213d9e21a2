"""Convert ESM-2's tokens, which passes and scores use, to SaProt's tokens and back.

A SaProt token is a pair of a residue and a 3Di letter of structure. A masked residue keeps its
structure, and the probability of a residue is the sum over its tokens, as in `predict_mut` of
SaProt's `model/saprot/saprot_foldseek_mutation_model.py`. Variants keep the wild type's structure.

Shape legend: T tokens of a pass, R rows of the head, V tokens of the network, E those of ESM-2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from featuremill.workloads.esm2.folder import ALPHABET, RESIDUES, SAPROT_TOKENS, STRUCTURES
from featuremill.workloads.esm2.tokens import EOS

if TYPE_CHECKING:
    from torch import Tensor

    from featuremill.workloads.esm2.tokens import Tokens

NUM_SPECIAL = len(SAPROT_TOKENS) - len(RESIDUES) * len(STRUCTURES)
UNKNOWN = RESIDUES.index("#")
NO_STRUCTURE = STRUCTURES.index("#")
RESIDUE_OF_TOKEN = np.array(
    [RESIDUES.index(token) if token in RESIDUES else UNKNOWN for token in ALPHABET]
)
"""The index of SaProt's residue for each ESM-2 token; that of `#` for the mask and for tokens that
SaProt lacks."""
STRUCTURE_NUMBERS = bytes.maketrans(STRUCTURES.encode(), bytes(range(len(STRUCTURES))))
"""The index of each 3Di letter, for `bytes.translate`."""


def own_tokens(tokens_T: Tokens, structure: bytes) -> Tokens:
    """Return SaProt's tokens for ESM-2's tokens and the residues' 3Di letters; b"" is an unknown
    structure. The special tokens at both ends are the same in both alphabets."""
    is_residue = tokens_T > EOS
    structures = np.full(len(tokens_T), NO_STRUCTURE)
    if structure:
        structures[is_residue] = np.frombuffer(structure.translate(STRUCTURE_NUMBERS), np.uint8)
    pairs = NUM_SPECIAL + len(STRUCTURES) * RESIDUE_OF_TOKEN[tokens_T] + structures
    own_T: Tokens = np.where(is_residue, pairs, tokens_T)
    return own_T


def of_residues(log_probabilities_RV: Tensor) -> Tensor:
    """Return log_probabilities_RE: of each residue, summed over the 3Di letters."""
    pairs = log_probabilities_RV[:, NUM_SPECIAL:]
    of_pairs: Tensor = pairs.reshape(-1, len(RESIDUES), len(STRUCTURES)).logsumexp(2)
    return of_pairs[:, RESIDUE_OF_TOKEN.tolist()]
