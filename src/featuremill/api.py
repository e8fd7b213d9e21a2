"""Features of sequences at hand, for notebooks: the engine of a run without its files."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill import config
from featuremill.base import reasons
from featuremill.base.arrays import matrices, matrix
from featuremill.base.errors import UserError
from featuremill.extract.at_hand import Refuse, values_in_batches
from featuremill.inputs import residues
from featuremill.lease.devices import Device, devices_for, with_processors
from featuremill.store.files import files_below
from featuremill.workload import Weights, refuse_without_packages, weights
from featuremill.workload.hugging_face import place_of
from featuremill.workloads import esm2
from featuremill.workloads.esm2.options import Pool

Features = npt.NDArray[np.float32] | list[npt.NDArray[np.floating[Any]]]
"""Vectors of sequences as one array, or an array a sequence of vectors of its residues."""
Progress = Callable[[int, int], object]
"""Called after each batch with (sequences done, sequences in all); equal ones count once."""


class _Loaded(NamedTuple):
    """A model and what it was made of."""

    asked: tuple[object, ...]
    """The model's name, or its path and what tells whether another file is there by now."""
    device: Device
    dtype: str
    weights: Weights
    model: esm2.Model


_loaded: list[_Loaded] = []
"""The model of the last call; none while it computes, so that no other thread gets it too."""


def forget_model() -> None:
    """Give back the memory of the model that `embed` keeps for the next call."""
    _loaded.clear()
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def embed(
    sequences: Sequence[str],
    model: str = "mill_t6_8M",
    *,
    layers: int | Sequence[int] = -1,
    pool: Pool | Sequence[Pool] = "mean",
    per_residue: bool = False,
    output_dtype: Literal["float16", "float32"] = "float16",
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto",
    long: Literal["truncate", "full", "chunk"] = "truncate",
    max_residues: int = 1022,
    chunk_overlap: int = 256,
    batch_tokens: int | None = None,
    device: Literal["auto", "cuda", "cpu"] = "auto",
    progress: Progress | None = None,
) -> Features | dict[str, Features]:
    """Return the features of sequences, in their order.

    With one layer and one pool: an array of shape (sequences, width), float32. With
    `pool="none", per_residue=True`: a list of one array a sequence, of shape (residues, width) and
    type `output_dtype`. Where `layers` or `pool` is a list, or both kinds are asked for: a
    dictionary of these by the names that columns of results have, such as `mean_layer_6`,
    `residues_layer_6`.

    The numbers are those of a run with the same options (config/README.md explains them) on the
    same device. Sequences are cleaned as there: lower case, white space, a '*' at the end, J. Equal
    ones are computed once. As there, only the first `max_residues` residues of a sequence count
    unless `long` says otherwise: a warning says of how many sequences more was cut off.

    Where memory runs out, batches get smaller, with one warning. The model stays loaded for the
    next call with the same one on the same device; `forget_model` gives its memory back.

    Raises:
        UserError: when an option is wrong, a sequence, named by its index, is no protein, or memory
            runs out for a single one.
    """
    is_one = isinstance(layers, int) and isinstance(pool, str)
    options = {
        "model": model,
        "layers": layers if isinstance(layers, int) else list(layers),
        "pool": pool if isinstance(pool, str) else list(pool),
        "per_residue": per_residue,
        "output_dtype": output_dtype,
        "dtype": dtype,
        "long": long,
        "max_residues": max_residues,
        "chunk_overlap": chunk_overlap,
        "batch_tokens": batch_tokens,
    }
    checked = config.validate({"inputs": ["memory"], "workload": "esm2", "options": options})
    refuse_without_packages(esm2.Options)
    payloads = _payloads(sequences)
    num_cut = sum(long == "truncate" and len(payload) > max_residues for payload in payloads)
    if num_cut:
        warnings.warn(
            f"{num_cut} of {len(payloads)} sequences are longer than {max_residues} residues and "
            "truncated; long='full' or 'chunk' computes them whole.",
            stacklevel=2,
        )
    (chosen,) = with_processors(devices_for(device)[:1])
    loaded, resolved = _ready(esm2.Options.model_validate(checked.options), chosen)

    values_of: list[Any] = [None] * len(payloads)
    num_done, num_distinct = 0, len(set(payloads))
    for places, values in values_in_batches(
        esm2,
        loaded.model,
        resolved,
        payloads,
        esm2.batch_cost(resolved, chosen),
        _refusing(payloads),
        lambda text: warnings.warn(text, stacklevel=7),
    ):
        columns = [_arrays(column) for column in values.columns]
        for equal, arrays in zip(places, zip(*columns, strict=True), strict=True):
            for place in equal:
                values_of[place] = arrays
        num_done += len(places)
        if progress:
            progress(num_done, num_distinct)
    _loaded[:] = [loaded]
    schema = esm2.schema(resolved, loaded.weights)
    found = {
        field.name: _together(field.type, [arrays[column] for arrays in values_of])
        for column, field in enumerate(schema)
    }
    return next(iter(found.values())) if is_one and len(found) == 1 else found


def _ready(options: esm2.Options, device: Device) -> tuple[_Loaded, esm2.Options]:
    """Return the model, the one that is loaded if it is the same, and the settled options."""
    last = _loaded.pop() if _loaded else None
    asked = _asked(options.model)
    if last and last.asked == asked:
        found = last.weights
    else:
        found = weights.weights_of(weights.convert(options.model))
    resolved = esm2.resolve(options, device, found)
    if last and (last.asked, last.device, last.dtype) == (asked, device, resolved.dtype):
        return last._replace(model=last.model._replace(options=resolved)), resolved
    last = None  # before another one takes memory
    loaded = esm2.load(resolved, [device], found)
    return _Loaded(asked, device, resolved.dtype, found, loaded), resolved


def _asked(model: str) -> tuple[object, ...]:
    if not weights.is_path(model):
        return (model,)
    weights.refuse_missing(model)
    path = place_of(model).resolve()
    about = [(path / name).stat() for name in (files_below(path) if path.is_dir() else [""])]
    return str(path), *((one.st_ino, one.st_size, one.st_mtime_ns) for one in about)


def _arrays(column: pa.Array) -> Sequence[npt.NDArray[Any]]:
    """Return the array of each row of a column: a vector, or one a residue."""
    if pa.types.is_list(column.type):
        return matrices(pa.chunked_array([column]))
    return list(matrix(column))


def _together(kind: pa.DataType, arrays: list[npt.NDArray[Any]]) -> Features:
    """Return arrays as they are delivered: vectors as one matrix, matrices as a list."""
    if pa.types.is_list(kind):
        return arrays
    return np.array(arrays, np.float32).reshape(len(arrays), kind.list_size)


def _refusing(payloads: Sequence[bytes]) -> Refuse:
    """Return what says in a sentence why one of `payloads` cannot be computed."""

    def refuse(place: int, reason: str) -> None:
        if reasons.kind_of(reason) is reasons.NOT_FINITE:
            raise UserError(f"embed: {reason}, such as dtype='fp32'.")
        raise UserError(
            f"embed: memory ran out for one sequence of {len(payloads[place]):,} residues "
            f"({reason}); use long='truncate', or another device."
        )

    return refuse


def _payloads(sequences: Sequence[object]) -> list[bytes]:
    if isinstance(sequences, str):
        raise UserError("sequences: this is one string; give a list of them.")
    if isinstance(sequences, Mapping):
        raise UserError("sequences: this is a mapping; give a list, as in list(yours.values()).")
    payloads = []
    for index, sequence in enumerate(sequences):
        if not isinstance(sequence, str):
            kind = type(sequence).__name__
            raise UserError(f"sequences[{index}]: this is of type {kind}; give a string.")
        cleaned = residues.clean(sequence)
        if cleaned.reason:
            raise UserError(f"sequences[{index}]: {cleaned.reason}; remove or mend it.")
        payloads.append(cleaned.payload)
    return payloads
