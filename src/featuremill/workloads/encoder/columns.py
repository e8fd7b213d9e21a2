"""The columns of a part, their names and types, and a batch of rows. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from featuremill.workload.arrays import Matrix, lists_of_vectors, vectors
from featuremill.workloads.encoder.options import Options

__all__ = ["batch", "schema"]


def schema(options: Options, width: int, is_by_letter: bool) -> pa.Schema:
    """Return the columns: for each layer the pooled vectors, then the vectors of own tokens, called
    residues if each letter is a token."""
    fields: dict[str, pa.DataType] = {}
    vector = pa.list_(pa.float32(), width)
    number = pa.float16() if options.output_dtype == "float16" else pa.float32()
    what = "residues" if is_by_letter else "tokens"
    for layer in options.layers:
        fields |= {f"{pool}_layer_{layer}": vector for pool in options.pools}
        if options.per_residue:
            fields[f"{what}_layer_{layer}"] = pa.list_(pa.list_(number, width))
    return pa.schema(fields)


def batch(values: Sequence[Matrix], num_own: Sequence[int], columns: pa.Schema) -> pa.RecordBatch:
    """Return a batch with a row per record; `values` are those of each column, and `num_own` the
    number of own tokens of each record."""
    arrays = [
        lists_of_vectors(rows, num_own) if pa.types.is_list(field.type) else vectors(rows)
        for field, rows in zip(columns, values, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
