"""From hidden states to what is delivered of each protein, in fp32.

Shape legend: T tokens, R residues of one protein, D width, N proteins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from featuremill.workloads.esm2 import columns
from featuremill.workloads.esm2.options import Options
from featuremill.workloads.esm2.tokens import Window

OUTPUT_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class Protein(NamedTuple):
    """Where a protein's windows lie in a pack."""

    windows: list[Window]
    """Residues [start, end) of each window."""
    offsets: list[int]
    """The row of each window's BOS."""

    def bos(self, hidden_TD: Tensor) -> Tensor:
        """Return the vector of BOS; of several windows, the mean of theirs."""
        return hidden_TD[self.offsets].mean(0)

    def residues(self, hidden_TD: Tensor) -> Tensor:
        """Return one vector a residue; where windows overlap, the mean over the windows."""
        parts = [
            hidden_TD[offset + 1 : offset + 1 + end - start]
            for offset, (start, end) in zip(self.offsets, self.windows, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        total_RD = hidden_TD.new_zeros(self.windows[-1][1], hidden_TD.shape[1])
        seen_R1 = hidden_TD.new_zeros(self.windows[-1][1], 1)
        for part, (start, end) in zip(parts, self.windows, strict=True):
            total_RD[start:end] += part
            seen_R1[start:end] += 1
        return total_RD / seen_R1


def arrays_of_layer(
    hidden_TD: Tensor, proteins: Sequence[Protein], options: Options
) -> list[pa.Array]:
    """Return a layer's columns in the order of the schema."""
    residues = [protein.residues(hidden_TD) for protein in proteins]
    arrays = []
    for pool in options.pools:
        if pool == "mean":
            pooled = [residues_RD.mean(0) for residues_RD in residues]
        else:
            pooled = [protein.bos(hidden_TD) for protein in proteins]
        arrays.append(columns.vectors(torch.stack(pooled).cpu().numpy()))
    if options.per_residue:
        joined = torch.cat(residues).to(OUTPUT_DTYPES[options.output_dtype]).cpu().numpy()
        arrays.append(columns.lists_of_vectors(joined, [len(rows) for rows in residues]))
    return arrays
