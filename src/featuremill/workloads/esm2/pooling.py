"""Pool the hidden states of each protein, in fp32 until the last cast.

Shape legend: T rows of a pack, R residues of all proteins of a batch, W windows of them, N
proteins, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from featuremill.workloads.esm2.options import Options
from featuremill.workloads.esm2.tokens import NUM_SPECIAL, Window

MeanRows = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function (hidden_TD, starts_N, ends_N) → means_ND, such as `kernels.reference.mean_rows`."""
OUTPUT_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class Segments(NamedTuple):
    """Rows [start, end) of each protein."""

    starts_N: Tensor
    ends_N: Tensor


class Places(NamedTuple):
    """The rows of the proteins of a batch in a pack."""

    rows_R: Tensor
    """The row of each residue, in the first window that contains it."""
    further: list[tuple[Tensor, Tensor]]
    """For each further window: indices of residues, and their rows."""
    shown_R1: Tensor | None
    """The number of windows of each residue; None if it is always 1."""
    residues: Segments
    """The indices among R of each protein's residues, or among C of each region's."""
    bos_W: Tensor
    """The row of BOS of each window."""
    windows: Segments
    """The indices among W of each protein's windows."""
    chosen_C: Tensor | None = None
    """The residues of the regions, concatenated; None: all residues."""

    def of_regions(self, spans: Sequence[tuple[int, int, int]]) -> Places:
        """Return the places of regions, each as (protein, start, end) of its residues."""
        firsts = self.residues.starts_N.tolist()
        chosen = [np.arange(start, end) + firsts[protein] for protein, start, end in spans]
        bounds = [0, *accumulate(map(len, chosen))]
        return self._replace(
            chosen_C=torch.from_numpy(np.concatenate(chosen)), residues=_segments(bounds)
        )

    @property
    def lengths(self) -> list[int]:
        """Return the number of residues of each protein or region; only for places on the host."""
        lengths: list[int] = (self.residues.ends_N - self.residues.starts_N).tolist()
        return lengths


def places(windows: Sequence[Sequence[Window]]) -> Places:
    """Return the places of proteins whose windows are concatenated in a pack."""
    bos = [0, *accumulate(end - start + NUM_SPECIAL for each in windows for start, end in each)]
    bounds = [0, *accumulate(each[-1][1] for each in windows)]
    rows_R = np.empty(bounds[-1], np.int64)
    shown_R = np.zeros(bounds[-1], np.float32)
    further: list[tuple[Tensor, Tensor]] = []
    number = 0
    for first, each in zip(bounds, windows, strict=False):
        covered = 0
        for start, end in each:
            rows = np.arange(end - start) + bos[number] + 1
            rows_R[first + covered : first + end] = rows[covered - start :]
            if covered > start:
                which = np.arange(first + start, first + covered)
                further.append((torch.from_numpy(which), torch.from_numpy(rows[: covered - start])))
            shown_R[first + start : first + end] += 1
            covered, number = end, number + 1
    return Places(
        torch.from_numpy(rows_R),
        further,
        torch.from_numpy(shown_R)[:, None] if further else None,
        _segments(bounds),
        torch.tensor(bos[:-1]),
        _segments([0, *accumulate(map(len, windows))]),
    )


def _segments(bounds: Sequence[int]) -> Segments:
    return Segments(torch.tensor(bounds[:-1]), torch.tensor(bounds[1:]))


def tensors_of_layer(
    hidden_TD: Tensor, places: Places, options: Options, mean_rows: MeanRows
) -> list[Tensor]:
    """Return a layer's values in the order of the schema: pooled_ND in fp32, then residues_RD."""
    has_residues = options.per_residue or bool(set(options.pools) - {"bos"})
    residues_RD = _residues(hidden_TD, places) if has_residues else hidden_TD
    tensors = []
    for pool in options.pools:
        if pool == "mean":
            tensors.append(mean_rows(residues_RD, *places.residues))
        elif pool == "max":
            tensors.append(_max_rows(residues_RD, *places.residues))
        elif pool == "std":
            tensors.append(_std_rows(residues_RD, places.residues, mean_rows))
        else:
            tensors.append(mean_rows(hidden_TD.index_select(0, places.bos_W), *places.windows))
    if options.per_residue:
        tensors.append(residues_RD.to(OUTPUT_DTYPES[options.output_dtype]))
    return tensors


def bytes_of_layer(num_rows: int, num_proteins: int, width: int, options: Options) -> int:
    """Return the bytes of a layer's values, if every row of a pack is a residue."""
    num_bytes = num_proteins * len(options.pools) * torch.float32.itemsize
    if options.per_residue:
        num_bytes += num_rows * OUTPUT_DTYPES[options.output_dtype].itemsize
    return num_bytes * width


def _max_rows(residues_RD: Tensor, starts_N: Tensor, ends_N: Tensor) -> Tensor:
    """Return the maximum over the rows of each segment; segments are adjacent."""
    if residues_RD.device.type == "cpu":
        segments = zip(starts_N.tolist(), ends_N.tolist(), strict=True)
        return torch.stack([residues_RD[start:end].amax(0) for start, end in segments])
    bounds = torch.cat((starts_N, ends_N[-1:]))  # one call that does not wait for the GPU
    return torch.segment_reduce(residues_RD, "max", offsets=bounds, axis=0, unsafe=True)


def _std_rows(residues_RD: Tensor, segments: Segments, mean_rows: MeanRows) -> Tensor:
    """Return the population standard deviation over the rows of each segment."""
    lengths_N = segments.ends_N - segments.starts_N
    means_ND = mean_rows(residues_RD, *segments)
    means_RD = means_ND.repeat_interleave(lengths_N, 0, output_size=len(residues_RD))
    return mean_rows((residues_RD - means_RD).square_(), *segments).sqrt_()


def _residues(hidden_TD: Tensor, places: Places) -> Tensor:
    """Return a vector for each residue of the proteins or regions: the mean over its windows."""
    residues_RD = hidden_TD.index_select(0, places.rows_R)
    for which, rows in places.further:
        residues_RD.index_add_(0, which, hidden_TD.index_select(0, rows))
    if places.shown_R1 is not None:
        residues_RD /= places.shown_R1
    return residues_RD if places.chosen_C is None else residues_RD.index_select(0, places.chosen_C)
