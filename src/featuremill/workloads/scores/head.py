"""The language-model head: log-probabilities of the 33 tokens from hidden states, in fp32.

ESM C's head has 64 rows; the softmax includes rows without a token, as in transformers. SaProt's
has 446 rows; those of one residue are summed (see `alphabets`).

Shape legend: R rows, D width, V tokens of the alphabet.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from featuremill.workloads.esm2.architecture import SAPROT
from featuremill.workloads.esm2.encoder import Encoder
from featuremill.workloads.esm2.fallbacks import Fallbacks
from featuremill.workloads.esm2.kernels.reference import NORM_EPSILON
from featuremill.workloads.esm2.tokens import NUM_TOKENS
from featuremill.workloads.scores.alphabets import of_residues

ROWS = 256
"""Rows per product, padded with zeros. The shape is constant, so that the bits of a row do not
depend on other rows."""


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
        """Return log_probabilities_RV of the rows `rows_R` of a pack."""
        parts = [
            self._scores(hidden_TD.index_select(0, rows)) for rows in torch.split(rows_R, ROWS)
        ]
        return torch.cat(parts)

    def _scores(self, hidden_RD: Tensor) -> Tensor:
        num_rows = len(hidden_RD)
        padded_RD = F.pad(hidden_RD, (0, 0, 0, ROWS - num_rows))
        dense_RD = self._dense.gelu(padded_RD)
        normed_RD = F.layer_norm(dense_RD, dense_RD.shape[1:], *self._norm, NORM_EPSILON)
        all_RV = self._decoder(normed_RD)[:num_rows].log_softmax(-1)
        return of_residues(all_RV) if self._is_saprot else all_RV[:, :NUM_TOKENS]
