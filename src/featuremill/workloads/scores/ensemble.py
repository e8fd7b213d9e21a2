"""Load the networks of a run with their language-model heads: all of an ensemble, or one at a time.

A head returns log-probabilities of ESM-2's 33 tokens from hidden states, in fp32. ESM C's head has
64 rows; the softmax includes rows without a token, as in transformers. SaProt's has 446 rows. Its
tokens are pairs of a residue and a 3Di letter of structure. A masked residue keeps its structure,
and the probability of a residue is the sum over its tokens, as in `predict_mut` of SaProt's
`model/saprot/saprot_foldseek_mutation_model.py`. Variants keep the wild type's structure.

Shape legend: T tokens of a pass, R rows of the head, D width, V tokens of the network, E those of
ESM-2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from featuremill.workload import Device, Weights
from featuremill.workloads import esm2
from featuremill.workloads.esm2.architecture import SAPROT
from featuremill.workloads.esm2.encoder import Encoder
from featuremill.workloads.esm2.fallbacks import Fallbacks
from featuremill.workloads.esm2.folder import ALPHABET, RESIDUES, SAPROT_TOKENS, STRUCTURES
from featuremill.workloads.esm2.kernels.reference import NORM_EPSILON
from featuremill.workloads.esm2.tokens import EOS, NUM_TOKENS

if TYPE_CHECKING:
    from featuremill.workloads.esm2.tokens import Tokens

ROWS = 256
"""Rows per product, padded with zeros. The shape is constant, so that the bits of a row do not
depend on other rows."""
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


class Head:
    """The head on the device of an encoder's last layer."""

    def __init__(self, path: Path, encoder: Encoder, prefix: str = "") -> None:
        """`prefix` begins the names of all tensors in the file at `path`."""
        self._is_saprot = encoder.architecture is SAPROT
        device = encoder.stages[-1].device
        fallbacks = Fallbacks(device, torch.float32, encoder.num_heads, encoder.head_dim)
        product = fallbacks.products[0]
        with safe_open(path, framework="pt") as file:

            def get(name: str) -> tuple[Tensor, Tensor]:
                parts = (
                    file.get_tensor(f"{prefix}head.{name}.{part}") for part in ("weight", "bias")
                )
                weight, bias = (part.to(device, torch.float32) for part in parts)
                return weight, bias

            self._dense = product(*get("dense"))
            self._norm = get("norm")
            self._decoder = product(*get("decoder"))

    @torch.inference_mode()
    def log_probabilities(self, hidden_TD: Tensor, rows_R: Tensor) -> Tensor:
        """Return log_probabilities_RE of the rows `rows_R` of a pack."""
        parts = []
        for rows in torch.split(rows_R, ROWS):
            num_rows = len(rows)
            padded_RD = F.pad(hidden_TD.index_select(0, rows), (0, 0, 0, ROWS - num_rows))
            dense_RD = self._dense.gelu(padded_RD)
            normed_RD = F.layer_norm(dense_RD, dense_RD.shape[1:], *self._norm, NORM_EPSILON)
            all_RV = self._decoder(normed_RD)[:num_rows].log_softmax(-1)
            if self._is_saprot:  # add up the probabilities of all structures of a residue
                pairs = all_RV[:, NUM_SPECIAL:].reshape(-1, len(RESIDUES), len(STRUCTURES))
                parts.append(pairs.logsumexp(2)[:, RESIDUE_OF_TOKEN.tolist()])
            else:
                parts.append(all_RV[:, :NUM_TOKENS])
        return torch.cat(parts)


class Network(NamedTuple):
    encoder: Encoder
    head: Head


class Networks:
    """The networks of a run, in the order of the config's models."""

    def __init__(
        self,
        options: esm2.Options,
        devices: Sequence[Device],
        weights: Weights,
        num: int,
        num_together: int,
    ) -> None:
        """`num_together` of the `num` networks are loaded at a time: all, or one."""
        self._options, self._devices, self._weights, self.num = options, devices, weights, num
        self._loaded = [self._load(number) for number in range(num_together)]
        self.backend = self._loaded[0].encoder.backend
        """The names of the compute backends, for the receipt."""
        if num > 1:
            how = "all loaded" if num_together > 1 else "one loaded at a time"
            self.backend = f"{num} networks, {how}; {self.backend}"

    def each(self) -> Iterator[Network]:
        """Yield the networks; they are loaded one at a time if memory is short."""
        if len(self._loaded) == self.num:
            yield from self._loaded
            return
        self._loaded.clear()
        for number in range(self.num):
            yield self._load(number)

    def _load(self, number: int) -> Network:
        prefix = f"{number}." if self.num > 1 else ""
        encoder = esm2.load(self._options, self._devices, self._weights, prefix=prefix).encoder
        return Network(encoder, Head(self._weights.path, encoder, prefix))
