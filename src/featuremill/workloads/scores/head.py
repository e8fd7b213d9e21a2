"""The language-model head: from hidden states to log-probabilities of the 33 tokens, in fp32.

ESM C's has 64 rows; those that are no token count in the sum of probabilities, as in transformers.
Of SaProt's 446 those of a residue are one (`alphabets`).

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
"""Rows that are computed at once, filled up with zeros: always of one shape, so a row has the same
bits whatever the other rows are."""


class Head:
    """The head on the device of an encoder's last layer."""

    def __init__(self, path: Path, encoder: Encoder, prefix: str = "") -> None:
        """`prefix` stands before all names in the file at `path`."""
        self._is_saprot = encoder.architecture is SAPROT
        device = encoder.stages[-1].device
        ways = Fallbacks(device, torch.float32, encoder.num_heads, encoder.head_dim)
        form = ways.products[0]
        with safe_open(path, framework="pt") as file:

            def get(name: str) -> tuple[Tensor, Tensor]:
                parts = (
                    file.get_tensor(f"{prefix}head.{name}.{part}") for part in ("weight", "bias")
                )
                weight, bias = (part.to(device, torch.float32) for part in parts)
                return weight, bias

            self._dense = form(*get("dense"))
            self._norm = get("norm")
            self._decoder = form(*get("decoder"))

    @torch.inference_mode()
    def log_probabilities(self, hidden_TD: Tensor, rows_R: Tensor) -> Tensor:
        """Return log_probabilities_RV of these rows of a pack."""
        parts = [self._of(hidden_TD.index_select(0, rows)) for rows in torch.split(rows_R, ROWS)]
        return torch.cat(parts)

    def _of(self, hidden_RD: Tensor) -> Tensor:
        num_rows = len(hidden_RD)
        filled_RD = F.pad(hidden_RD, (0, 0, 0, ROWS - num_rows))
        dense_RD = self._dense.gelu(filled_RD)
        normed_RD = F.layer_norm(dense_RD, dense_RD.shape[1:], *self._norm, NORM_EPSILON)
        found_RV = self._decoder(normed_RD)[:num_rows].log_softmax(-1)
        return of_residues(found_RV) if self._is_saprot else found_RV[:, :NUM_TOKENS]
