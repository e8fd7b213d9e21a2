"""Write gene_embeddings.parquet: one row per gene, with the number of cells that have it and, for
each layer, the mean of its vectors, which the workload geneformer delivers with `gene_vectors:
true`.

Numbers are rounded to multiples of 2⁻³⁰, so that sums are exact, and the means are the same for any
order of the cells. Eight bytes per number of a mean are in memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from featuremill.kit.errors import UserError
from featuremill.workload.arrays import vectors
from featuremill.workload.outputs import Format, Target, need
from featuremill.workloads.geneformer.perturbations import GENES, numbers_of, write_table

if TYPE_CHECKING:
    import pyarrow as pa

OF_LAYER = re.compile(rf"{GENES}_(layer_\d+)")
FORMAT = Format(
    "gene_embeddings.parquet",
    "pandas, polars, DuckDB, R's arrow",
    0,
    "per_residue",
    columns=re.compile(rf"{GENES}|{OF_LAYER.pattern}|(cls|mean)_layer_\d+"),
    columns_like=f"{GENES}_layer_11 (options: gene_vectors: true)",
    times_as_large=0.0,
)
STEP = 2.0**-30
MOST = 2**63 * STEP
"""The largest sum that 64 bits hold."""


class Writer:
    """Accumulates blocks, and writes at the end."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        need([*filter(OF_LAYER.fullmatch, values.names)], "gene_embeddings", "vectors of genes")

    def __init__(self, target: Target) -> None:
        names = self._columns = [*filter(OF_LAYER.fullmatch, target.values.names)]
        self._target = target
        widths = [target.values.field(name).type.value_type.list_size for name in names]
        self._numbers: dict[str, int] = {}
        """The number of each gene, in order of appearance."""
        self._cells = np.zeros(0, np.int64)
        self._sums = [np.zeros((0, width), np.int64) for width in widths]
        """The sums of each column, of shape (genes, width), in steps."""
        self._largest = 0.0

    def write(self, block: pa.Table) -> None:
        import pyarrow.compute as pc

        texts = pc.list_flatten(block[GENES].combine_chunks()).dictionary_encode()
        known = self._numbers
        genes = numbers_of(known, texts)
        more = len(known) - len(self._cells)
        self._cells = np.pad(self._cells, (0, more)) + np.bincount(genes, minlength=len(known))
        for column, name in enumerate(self._columns):
            sums = np.pad(self._sums[column], ((0, more), (0, 0)))
            numbers = pc.list_flatten(pc.list_flatten(block[name].combine_chunks())).to_numpy()
            rows = numbers.reshape(len(genes), sums.shape[1]).astype(np.float32)
            self._check(rows)
            steps = np.rint(rows / np.float32(STEP)).astype(np.int64)
            for gene, row in zip(genes.tolist(), steps, strict=True):
                sums[gene] += row
            self._sums[column] = sums

    def close(self) -> None:
        import pyarrow as pa

        order = np.array([self._numbers[name] for name in sorted(self._numbers)], np.int64)
        cells = self._cells[order]
        columns = {"gene": pa.array(sorted(self._numbers), pa.string()), "cells": pa.array(cells)}
        for name, sums in zip(self._columns, self._sums, strict=True):
            means = (sums[order] * STEP / cells[:, None]).astype(np.float32)
            columns[OF_LAYER.sub(r"mean_\1", name)] = vectors(means)
        write_table(pa.table(columns), self._target)

    def _check(self, rows: Any) -> None:
        """Raise UserError for numbers whose sums could exceed 64 bits."""
        self._largest = float(np.maximum(self._largest, np.abs(rows).max(initial=0.0)))
        most = self._cells.max(initial=0)
        if not self._largest * most < MOST / 2:
            raise UserError(
                f"outputs: gene_embeddings cannot add up {most:,} vectors with "
                f"numbers up to {self._largest:g}; set output_dtype: float32 under options, or "
                "run fewer cells at once."
            )
