"""Write gene_shifts.parquet: one row per perturbation and affected gene, with cells, mean and
deviation of the cosines that the workload geneformer computes with `gene_shifts: true`.

A cosine is that of a gene's vectors in the cell and the perturbed cell. `cells` is the number of
cells with both genes; `deviation` is that of a sample (n - 1). About 100 bytes per row are in
memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from featuremill.workload.outputs import Target, need
from featuremill.workloads.geneformer.gene_statistics import described
from featuremill.workloads.geneformer.perturbations import FORMAT as LONG_TABLE
from featuremill.workloads.geneformer.perturbations import (
    GENE_SHIFTS,
    GENES,
    numbers_of,
    write_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = LONG_TABLE._replace(
    file="gene_shifts.parquet",
    bytes_a_record=0,
    columns=re.compile(f"{GENE_SHIFTS}|{GENES}"),
    columns_like=f"{GENE_SHIFTS} (options: gene_shifts: true)",
)
FEW = 2_000_000
"""The least number of cosines that are collected before they are added to the sums."""


class Writer:
    """Accumulates blocks, and writes at the end."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        need([name for name in values.names if name == GENE_SHIFTS], "gene_shifts", "them")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._perturbed: dict[tuple[str, str], int] = {}
        """The number of each perturbation (kind, genes), in order of appearance."""
        self._affected: dict[str, int] = {}
        self._keys = np.zeros(0, np.int64)
        """Sorted keys of rows: the number of the perturbation, and in the lower 32 bits that of the
        affected gene."""
        self._sums = np.zeros((3, 0))
        """The number of cells, mean, and sum of squared deviations of each row."""
        self._new: list[tuple[Any, Any]] = []
        """Keys and cosines that are not in the sums yet."""

    def write(self, block: pa.Table) -> None:
        import pyarrow.compute as pc

        shifts = block[GENE_SHIFTS].combine_chunks()
        rows = pc.list_parent_indices(shifts).to_numpy()
        shifts = pc.list_flatten(shifts)
        names = block[GENES].combine_chunks()
        genes = numbers_of(self._affected, pc.list_flatten(names).dictionary_encode())
        kinds, perturbed = (pc.struct_field(shifts, name).to_pylist() for name in ("kind", "gene"))
        numbers = np.array(
            [
                self._perturbed.setdefault(each, len(self._perturbed))
                for each in zip(kinds, perturbed, strict=True)
            ],
            np.int64,
        )
        cosines = pc.struct_field(shifts, "cosines")
        lengths = pc.list_value_length(cosines).to_numpy()
        # A list of cosines has all genes of its record, or is empty.
        starts = np.concatenate(([0], np.cumsum(pc.list_value_length(names).to_numpy())))[rows]
        indices = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        indices += np.arange(len(indices))
        values = pc.list_flatten(cosines).to_numpy()
        is_there = ~np.isnan(values)
        keys = (np.repeat(numbers, lengths) << 32) + genes[indices]
        self._new.append((keys[is_there], values[is_there]))
        if sum(len(keys) for keys, _ in self._new) > max(FEW, len(self._keys)):
            self._merge()

    def close(self) -> None:
        import pyarrow as pa

        self._merge()
        numbers, genes = self._keys >> 32, self._keys & 0xFFFFFFFF
        kinds, perturbed = (
            np.array(each, object) for each in zip(*self._perturbed or [("", "")], strict=True)
        )
        affected = np.array([*self._affected], object)
        order = np.lexsort(
            (_ranks(affected)[genes], _ranks(perturbed)[numbers], _ranks(kinds)[numbers])
        )
        texts_of = {"gene": perturbed[numbers], "kind": kinds[numbers], "affected": affected[genes]}
        columns = {name: pa.array(texts[order], pa.string()) for name, texts in texts_of.items()}
        write_table(pa.table(columns | described(self._sums[:, order])), self._target)

    def _merge(self) -> None:
        """Add the new cosines to the sums (Chan, Golub and LeVeque 1979)."""
        values = np.concatenate([np.zeros(0), *(values for _, values in self._new)])
        new = np.stack([np.ones(len(values)), values, np.zeros(len(values))])
        counts, means, squares = np.concatenate((self._sums, new), axis=1)
        keys = np.concatenate((self._keys, *(keys for keys, _ in self._new)))
        self._keys, inverse = np.unique(keys, return_inverse=True)
        num, self._new = len(self._keys), []
        totals = np.bincount(inverse, counts, num)
        together = np.bincount(inverse, counts * means, num) / totals
        squares = squares + counts * (means - together[inverse]) ** 2
        self._sums = np.stack([totals, together, np.bincount(inverse, squares, num)])


def _ranks(texts: Any) -> Any:
    return np.unique(texts.astype(str), return_inverse=True)[1].reshape(-1)
