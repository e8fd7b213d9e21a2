"""The columns of a part: names, types, and a batch of rows. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from featuremill.workload.arrays import Matrix, lists_of_vectors, vectors
from featuremill.workloads.esm2.options import Options


def schema(options: Options, width: int) -> pa.Schema:
    """Return the columns: for each layer its pooled vectors, then its residues."""
    fields: dict[str, pa.DataType] = {}
    vector = pa.list_(pa.float32(), width)
    number = pa.float16() if options.output_dtype == "float16" else pa.float32()
    for layer in options.layers:
        fields |= {f"{pool}_layer_{layer}": vector for pool in options.pools}
        if options.per_residue:
            fields[f"residues_layer_{layer}"] = pa.list_(pa.list_(number, width))
    return pa.schema(fields)


def batch(
    values: Sequence[Matrix], lengths: Sequence[int], options: Options, width: int
) -> pa.RecordBatch:
    """Return one row for each protein of `lengths`, from the values of the layers in order."""
    columns = schema(options, width)
    arrays = [
        lists_of_vectors(rows, lengths) if pa.types.is_list(field.type) else vectors(rows)
        for field, rows in zip(columns, values, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
