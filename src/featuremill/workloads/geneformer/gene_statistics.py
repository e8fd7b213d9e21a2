"""Write gene_statistics.parquet: one row per gene and kind of perturbation, with cells, mean and
deviation of the cosines in the column `shifts` of the workload geneformer.

`cells` is the number of cells with the gene; `deviation` is that of a sample (n - 1). With states,
there is one row per gene, kind and state, and the numbers are those of the shifts towards it. Three
numbers per row are in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from featuremill.workload.outputs import Target
from featuremill.workloads.geneformer.perturbations import FORMAT as LONG_TABLE
from featuremill.workloads.geneformer.perturbations import (
    column_of,
    fields_of,
    long_table,
    write_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = LONG_TABLE._replace(file="gene_statistics.parquet", bytes_a_record=0)


class Writer:
    """Accumulates blocks, and writes at the end."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        column_of(values, "gene_statistics")

    def __init__(self, target: Target) -> None:
        self._target = target
        has_states = "state" in [
            field.name for field in fields_of(target.values, "gene_statistics")
        ]
        self._by = ("gene", "kind", "state") if has_states else ("gene", "kind")
        self._value = "shift" if has_states else "cosine"
        self._row_of: dict[tuple[str, ...], int] = {}
        self._sums = np.zeros((3, 0))
        """The number of cells, mean, and sum of squared deviations of each row."""

    def write(self, block: pa.Table) -> None:
        rows = long_table(block)
        keys = zip(*(rows[name].to_pylist() for name in self._by), strict=True)
        numbers = [self._row_of.setdefault(key, len(self._row_of)) for key in keys]
        groups, num_groups = np.array(numbers, np.int64), len(self._row_of)
        values = rows[self._value].to_numpy()
        is_there = ~np.isnan(values)
        sums = np.pad(self._sums, ((0, 0), (0, num_groups - self._sums.shape[1])))
        self._sums = _together(sums, _sums(values[is_there], groups[is_there], num_groups))

    def close(self) -> None:
        import pyarrow as pa

        order = sorted(self._row_of, key=lambda key: (*key[1:], key[0]))
        indices = [self._row_of[key] for key in order]
        columns = {
            name: pa.array([key[index] for key in order], pa.string())
            for index, name in enumerate(self._by)
        }
        write_table(pa.table(columns | described(self._sums[:, indices])), self._target)


def described(sums: Any) -> dict[str, pa.Array]:
    """Return the columns of `sums`, which are cells, means and sums of squared deviations."""
    import pyarrow as pa

    cells, means, squares = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.sqrt(np.where(cells > 1, squares, np.nan) / (cells - 1))
    return {
        "cells": pa.array(cells.astype(np.int64)),
        "mean": pa.array(np.where(cells > 0, means, np.nan)),
        "deviation": pa.array(deviations),
    }


def _sums(values: Any, groups: Any, num_groups: int) -> Any:
    """Return count, mean and sum of squared deviations of each group, shape (3, groups)."""
    counts = np.bincount(groups, minlength=num_groups)
    with np.errstate(invalid="ignore"):
        means = np.bincount(groups, values, num_groups) / counts
    squares = np.bincount(groups, (values - means[groups]) ** 2, num_groups)
    return np.stack([counts, np.where(counts > 0, means, 0.0), squares])


def _together(first: Any, second: Any) -> Any:
    """Return the sums of both (Chan, Golub and LeVeque 1979)."""
    counts = first[0] + second[0]
    weights = second[0] / np.maximum(counts, 1)
    distances = second[1] - first[1]
    means = first[1] + distances * weights
    return np.stack([counts, means, first[2] + second[2] + distances**2 * first[0] * weights])
