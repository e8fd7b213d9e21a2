"""ESM-2 features of proteins: the representations of chosen layers, pooled, per residue or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from featuremill.errors import UserError
from featuremill.inputs import proteins
from featuremill.workload import Record
from featuremill.workloads.esm2 import tokens
from featuremill.workloads.esm2.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.devices import Device
    from featuremill.workload import Weights
    from featuremill.workloads.esm2.encoder import Encoder
    from featuremill.workloads.esm2.packing import Packed
    from featuremill.workloads.esm2.pooling import Protein

__all__ = [
    "COST_UNIT",
    "VERSION",
    "Options",
    "batch_cost",
    "collect",
    "cost",
    "load",
    "prepare",
    "records",
    "resolve",
    "run",
    "schema",
    "weights",
]

VERSION = "1"
COST_UNIT = "tokens"
CPU_BATCH_TOKENS = 4096
TOKENS_PER_MULTIPROCESSOR = 128
"""Whole waves of the matrix products: 16,896 tokens on an H100."""
USUAL_MULTIPROCESSORS = 132
"""Stands in where nobody has asked the driver yet, as when a plan is announced."""


class Model(NamedTuple):
    """The encoder on its device, and what to deliver."""

    encoder: Encoder
    options: Options
    backend: str
    """Which attention kernel runs, for the receipt."""


class Batch(NamedTuple):
    """Proteins packed for the encoder."""

    pack: Packed
    proteins: list[Protein]


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Stream the protein records of `inputs`; those that will be truncated get a note."""
    cut = f"longer than {options.max_residues} residues, truncated"
    for record in proteins(inputs):
        if options.long == "truncate" and len(record.payload) > options.max_residues:
            yield record._replace(note="; ".join(filter(None, [record.note, cut])))
        else:
            yield record


def cost(payload: bytes, options: Options) -> int:
    """Return the tokens that are computed for a protein."""
    return tokens.num_tokens(len(payload), options)


def weights(options: Options) -> str:
    """Return the model."""
    return options.model


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Settle the dtype for `device`, count layers from 0, and name the model by its weights."""
    assert weights is not None
    settled = {
        "model": weights.name,
        "layers": _layers(options.layers, int(weights.metadata["num_layers"])),
        "dtype": _dtype(options.dtype, device),
    }
    return Options.model_validate(options.model_dump() | settled)


def _layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    for layer in layers:
        if not -num_layers - 1 <= layer <= num_layers:
            raise UserError(
                f"options.layers: there is no layer {layer} in a model of {num_layers}; "
                f"use 0 to {num_layers}, or -1 for the last one."
            )
    return tuple(sorted({layer % (num_layers + 1) for layer in layers}))


def _dtype(dtype: str, device: Device) -> str:
    if dtype == "bf16" and not device.has_bf16:
        raise UserError(
            f"options.dtype: {device.name} has no bf16; set dtype: auto, or choose fp16 or fp32."
        )
    if dtype != "auto":
        return dtype
    if device.has_bf16:
        return "bf16"
    return "fp16" if device.kind == "cuda" else "fp32"


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns of values; `options` are resolved ones."""
    from featuremill.workloads.esm2 import columns

    assert weights is not None
    return columns.schema(options, int(weights.metadata["embed_dim"]))


def batch_cost(options: Options, device: Device) -> int:
    """Return the tokens that one batch may hold."""
    if options.batch_tokens is not None:
        return options.batch_tokens
    if device.kind == "cpu":
        return CPU_BATCH_TOKENS
    return TOKENS_PER_MULTIPROCESSOR * (device.num_multiprocessors or USUAL_MULTIPROCESSORS)


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the encoder with its weights on the device."""
    import torch

    from featuremill.workloads.esm2.encoder import DTYPES, Encoder

    assert weights is not None
    encoder = Encoder(
        weights.path, weights.metadata, torch.device(devices[0].kind), DTYPES[options.dtype]
    )
    return Model(encoder, options, encoder.backend.name)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Tokenize and pack proteins, on the host."""
    from featuremill.workloads.esm2.packing import pack
    from featuremill.workloads.esm2.pooling import Protein

    sequences: list[tokens.Tokens] = []
    placed: list[Protein] = []
    row = 0
    for payload in payloads:
        windows = tokens.windows(len(payload), model.options)
        offsets = []
        for window in windows:
            offsets.append(row)
            sequences.append(tokens.tokenize(payload, window))
            row += len(sequences[-1])
        placed.append(Protein(windows, offsets))
    return Batch(pack(sequences), placed)


def run(model: Model, batch: Batch) -> list[pa.Array]:
    """Return the columns of a batch, one row a protein."""
    from featuremill.workloads.esm2.pooling import arrays_of_layer

    pack = batch.pack.to(model.encoder.device)
    arrays: list[pa.Array] = []
    for _, hidden_TD in model.encoder.representations(pack, model.options.layers):
        arrays += arrays_of_layer(hidden_TD, batch.proteins, model.options)
    return arrays


def collect(model: Model, result: list[pa.Array]) -> pa.RecordBatch:
    """Return the features of a batch, one row a protein."""
    import pyarrow as pa

    from featuremill.workloads.esm2 import columns

    schema = columns.schema(model.options, model.encoder.width)
    return pa.RecordBatch.from_arrays(result, schema=schema)
