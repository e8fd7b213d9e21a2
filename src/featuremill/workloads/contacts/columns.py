"""The Arrow columns of contacts: their schema, and record batches from NumPy arrays.

Does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.kit.reasons import NOT_FINITE
from featuremill.workload.arrays import lists, numbers
from featuremill.workloads.contacts.options import Options

PAIRS = "contacts"
"""The column that the output `contacts_tsv` writes."""
MAP = "contact_map"
"""The column that the output `contacts_h5` writes: L lists of L probabilities."""
ATTENTION = "attention"
"""The column that the output `attention_h5` writes: for each layer and head, L × L probabilities;
empty for most proteins."""
PAIR = pa.struct(
    {
        "i": pa.int32(),
        "j": pa.int32(),
        "residue_i": pa.string(),
        "residue_j": pa.string(),
        "probability": pa.float32(),
    }
)
MOST_NUMBERS = 2**31 - 1
"""The largest number of values of a column in a batch, as Arrow's offsets are int32."""
Map = npt.NDArray[np.float32]
"""Probabilities, residues × residues."""
Attention = npt.NDArray[Any]
"""Probabilities, layers × heads × residues × residues."""


def schema(options: Options) -> pa.Schema:
    """Return the columns for resolved `options`."""
    number = pa.from_numpy_dtype(np.dtype(options.output_dtype))
    fields: dict[str, pa.DataType] = {}
    if options.pairs != "none":
        fields[PAIRS] = pa.list_(PAIR)
    if options.maps:
        fields[MAP] = pa.list_(pa.list_(number))
    if options.attention_of:
        fields[ATTENTION] = pa.list_(pa.list_(pa.list_(number)))
    return pa.schema(fields)


def batch(
    proteins: Sequence[bytes],
    maps: Sequence[Map],
    attentions: Sequence[Attention | None],
    options: Options,
) -> pa.RecordBatch:
    """Return one row for each of `proteins`, which are the computed residues. `maps` is empty if
    the options need no contacts."""
    arrays = []
    if options.pairs != "none":
        arrays.append(_pairs(proteins, maps, options))
    if options.maps:
        arrays.append(_nested([each.astype(options.output_dtype) for each in maps]))
    if options.attention_of:
        empty = np.empty((0, 1, 1), options.output_dtype)
        arrays.append(
            _nested(
                [
                    empty if each is None else each.reshape(*each.shape[:2], -1)
                    for each in attentions
                ]
            )
        )
    values = pa.RecordBatch.from_arrays(arrays, schema=schema(options))
    pairs = zip(maps or attentions, attentions, strict=True)
    wrong = [
        None
        if all(np.isfinite(matrix).all() for matrix in pair if matrix is not None)
        else NOT_FINITE.reason()
        for pair in pairs
    ]
    return values.append_column("reason", pa.array(wrong, pa.string())) if any(wrong) else values


def pairs_of(map_LL: Map, options: Options) -> tuple[Any, Any, Any]:
    """Return i, j (counted from 0) and the probability of each listed pair, the highest first."""
    first, second = np.triu_indices(len(map_LL), options.min_separation)
    of_pair = map_LL[first, second]
    order = np.argsort(-of_pair, kind="stable")
    if options.pairs == "top":
        most = min(options.pairs_per_residue * len(map_LL), len(order))
        order = order[: max(1, round(most))]
    else:
        order = order[: np.count_nonzero(of_pair >= options.min_probability)]
    return first[order], second[order], of_pair[order]


def _pairs(proteins: Sequence[bytes], maps: Sequence[Map], options: Options) -> pa.Array:
    pairs = [pairs_of(map_LL, options) for map_LL in maps]
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    columns = [numbers((np.concatenate(side) + 1).astype(np.int32)) for side in sides]
    for side in sides:
        residues = zip(proteins, side, strict=True)
        letters = [np.frombuffer(protein, np.uint8)[at].tobytes() for protein, at in residues]
        columns.append(pa.array(list(b"".join(letters).decode()), pa.string()))
    columns.append(numbers(np.concatenate([pair[2] for pair in pairs])))
    rows = pa.StructArray.from_arrays(columns, fields=list(PAIR))
    return lists(rows, [len(pair[0]) for pair in pairs])


def _nested(arrays: Sequence[npt.NDArray[Any]]) -> pa.Array:
    """Return arrays of one rank as nested lists, one for each array."""
    values = numbers(np.concatenate([each.reshape(-1) for each in arrays]))
    for axis in range(arrays[0].ndim - 1, 0, -1):
        lengths = [np.full(math.prod(each.shape[:axis]), each.shape[axis]) for each in arrays]
        values = lists(values, np.concatenate(lengths).tolist())
    return lists(values, [len(each) for each in arrays])


def square(row: pa.ListScalar) -> npt.NDArray[Any]:
    """Return a value of `MAP` as a matrix."""
    matrix: npt.NDArray[Any] = row.values.flatten().to_numpy().reshape(len(row.values), -1)
    return matrix


def stack(row: pa.ListScalar) -> npt.NDArray[Any]:
    """Return a value of `ATTENTION` that is not empty as an array (layers, heads, L, L)."""
    layers = row.values
    heads = layers.flatten()
    flat = heads.flatten().to_numpy()
    side = round((len(flat) / len(heads)) ** 0.5)
    stacked: npt.NDArray[Any] = flat.reshape(len(layers), -1, side, side)
    return stacked
