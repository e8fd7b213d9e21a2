"""The columns of a part, and Arrow arrays from NumPy ones. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.kit.reasons import NOT_FINITE
from featuremill.workload.arrays import numbers
from featuremill.workloads.contacts.options import Options

PAIRS = "contacts"
"""The column by which the output `contacts_tsv` finds its rows."""
MAP = "contact_map"
"""The column of `contacts_h5`: L lists of L probabilities."""
ATTENTION = "attention"
"""The column of `attention_h5`: layers of heads of L × L probabilities; empty for most proteins."""
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
"""The numbers of a column in a batch, at most: Arrow's offsets are int32."""
Map = npt.NDArray[np.float32]
"""Probabilities, residues × residues."""
Attention = npt.NDArray[Any]
"""Probabilities, layers × heads × residues × residues."""


def schema(options: Options) -> pa.Schema:
    """Return the columns; `options` are resolved ones."""
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
    """Return one row for each of `proteins`, the residues that were seen. `maps` is empty where no
    contacts are wanted."""
    arrays = []
    if options.pairs != "none":
        arrays.append(_pairs(proteins, maps, options))
    if options.maps:
        arrays.append(_maps([each.astype(options.output_dtype) for each in maps]))
    if options.attention_of:
        arrays.append(_attentions(attentions, options))
    values = pa.RecordBatch.from_arrays(arrays, schema=schema(options))
    pairs = zip(maps or attentions, attentions, strict=True)
    wrong = [None if _are_finite(*each) else NOT_FINITE.reason() for each in pairs]
    return values.append_column("reason", pa.array(wrong, pa.string())) if any(wrong) else values


def _are_finite(*matrices: Map | Attention | None) -> bool:
    return all(np.isfinite(each).all() for each in matrices if each is not None)


def pairs_of(map_LL: Map, options: Options) -> tuple[Any, Any, Any]:
    """Return i, j (from 0) and the probability of each listed pair, the likeliest first."""
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
    every = [pairs_of(map_LL, options) for map_LL in maps]
    letters = [np.frombuffer(protein, "S1").astype("U1") for protein in proteins]
    sides = [[pair[side] for pair in every] for side in (0, 1)]
    columns = [
        *(numbers((np.concatenate(side) + 1).astype(np.int32)) for side in sides),
        *(
            pa.array(
                [
                    str(letter)
                    for some, at in zip(letters, side, strict=True)
                    for letter in some[at]
                ],
                pa.string(),
            )
            for side in sides
        ),
        numbers(np.concatenate([pair[2] for pair in every])),
    ]
    rows = pa.StructArray.from_arrays(columns, fields=list(PAIR))
    return _lists(rows, [len(pair[0]) for pair in every])


def _maps(maps: Sequence[npt.NDArray[Any]]) -> pa.Array:
    lengths = [len(each) for each in maps]
    flat = numbers(np.concatenate([each.reshape(-1) for each in maps]))
    return _lists(_lists(flat, np.repeat(lengths, lengths)), lengths)


def _attentions(attentions: Sequence[Attention | None], options: Options) -> pa.Array:
    """Return the attention of those that have one, as lists of layers of heads."""
    there = [each for each in attentions if each is not None]
    empty = np.empty(0, options.output_dtype)
    flat = numbers(np.concatenate([empty, *(each.reshape(-1) for each in there)]))
    heads = [each.shape[2] ** 2 for each in there for _ in range(each.shape[0] * each.shape[1])]
    layers = [each.shape[1] for each in there for _ in range(each.shape[0])]
    num_layers = [0 if each is None else len(each) for each in attentions]
    return _lists(_lists(_lists(flat, heads), layers), num_layers)


def _lists(inner: pa.Array, lengths: Sequence[int] | npt.NDArray[Any]) -> pa.ListArray:
    """Return lists of these lengths, of `inner` in order."""
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(numbers(bounds), inner)


def square(row: pa.ListScalar) -> npt.NDArray[Any]:
    """Return a cell of `MAP` as a matrix."""
    matrix: npt.NDArray[Any] = row.values.flatten().to_numpy().reshape(len(row.values), -1)
    return matrix


def stack(row: pa.ListScalar) -> npt.NDArray[Any]:
    """Return a cell of `ATTENTION`, which is not empty, as (layers, heads, L, L)."""
    layers = row.values
    heads = layers.flatten()
    flat = heads.flatten().to_numpy()
    side = round((len(flat) / len(heads)) ** 0.5)
    stacked: npt.NDArray[Any] = flat.reshape(len(layers), -1, side, side)
    return stacked
