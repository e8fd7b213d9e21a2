"""The workload `esm2`: representations of proteins by chosen layers, pooled or per residue."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from featuremill.inputs import proteins, regions
from featuremill.inputs.letters import alike, parts_of
from featuremill.kit.processes import SNAKEFILE
from featuremill.workload import Record, loading, networks
from featuremill.workload.networks import ATTRIBUTES as ATTRIBUTES
from featuremill.workload.networks import ONE_TOKEN as ONE_TOKEN
from featuremill.workload.networks import REMEDIES as REMEDIES
from featuremill.workload.networks import audited as audited
from featuremill.workload.networks import batch_cost as batch_cost
from featuremill.workloads.esm2 import estimates, tokens, triton_cache
from featuremill.workloads.esm2 import sources as CHECKPOINTS
from featuremill.workloads.esm2.embedding import embed as embed
from featuremill.workloads.esm2.estimates import unit_work as unit_work
from featuremill.workloads.esm2.options import Options as Options

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from featuremill.workload import Device, Weights
    from featuremill.workloads.esm2.attention import Backend
    from featuremill.workloads.esm2.encoder import Encoder
    from featuremill.workloads.esm2.packing import Packed
    from featuremill.workloads.esm2.pooling import Places
    from featuremill.workloads.esm2.transfer import Transfer

VERSION = "2"
VERSIONS_OF = ("fair-esm",)
COST_UNIT = "tokens"
BYTES_ARE_LENGTHS = True
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "esm2.yaml"
LENGTH_UNIT = "residues"
PRECISION = "dtype"
HOW_LONG = {"truncate": "truncated (set long to full to compute all)", "chunk": "in windows"}
"""The text of the note on a long protein, by the option `long`."""
REASONS = regions.REASONS
SPEED_OPTIONS = ("model", "dtype", "per_residue")
WAYS = ("dtype", "attention", "products", "kernels")


class Model(NamedTuple):
    """The encoder on its devices, and what to return."""

    encoder: Encoder
    options: Options
    backend: str
    """The methods that compute attention and the rest, for the receipt."""


class Batch(NamedTuple):
    """Proteins packed for the encoder, on the host."""

    pack: Packed
    places: Places


class Result(NamedTuple):
    """Values on their way to the host."""

    transfer: Transfer
    lengths: list[int]


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the protein records of `inputs`, or their regions; proteins that will be truncated or
    divided into windows get a note."""
    stream: Iterator[Record] = proteins(inputs, options).each(functools.partial(_noted, options))
    if options.regions:
        most = options.max_residues if options.long == "truncate" else None
        stream = regions.Regions(Path(options.regions)).split(stream, most)
    return stream


def _noted(options: Options, record: Record) -> Record:
    if len(record.payload) <= options.max_residues or options.long not in HOW_LONG:
        return record
    cut = f"longer than {options.max_residues} residues, {HOW_LONG[options.long]}"
    return record._replace(note="; ".join(filter(None, [record.note, cut])))


def cost(payload: bytes, options: Options) -> int:
    """Return the tokens to compute for a protein."""
    return tokens.num_tokens(len(parts_of(payload).letters), options)


def weights(options: Options) -> str:
    """Return the model."""
    return options.model


def caution(options: Options) -> str:
    """Return a caution about a network that is not an ESM-2."""
    if options.model not in CHECKPOINTS.bundled_names():
        return ""
    return (
        f"{options.model} is a demonstration model, not ESM-2. For science: model: "
        f"{CHECKPOINTS.SUGGESTED[0]}"
    )


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Resolve the dtype for `device`, count layers from 0, and name the model by its weights."""
    assert weights is not None
    settled = {
        "model": weights.name,
        "layers": networks.layers_from_0(options.layers, int(weights.metadata["num_layers"])),
        "dtype": networks.dtype_on(device, options.dtype),
    }
    return type(options).model_validate(options.model_dump() | settled)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns of values; `options` are resolved."""
    from featuremill.workload.arrays import layer_columns

    assert weights is not None
    return layer_columns(options, int(weights.metadata["embed_dim"]))


def weights_ahead(options: Options) -> Weights:
    """Return the name and sizes of the model before its conversion."""
    return estimates.weights_ahead(options.model)


def weights_mb(weights: Weights) -> float:
    """Return the size of the converted weights in MiB."""
    return estimates.model_of(weights).file_bytes / 2**20


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    """Return the estimated peak in MiB; `options` are resolved, `batch_cost` is tokens."""
    return estimates.estimate_mb(
        estimates.model_of(weights), device.kind, options.dtype, batch_cost
    )


def loaded_mb(options: Options, device: Device, weights: Weights) -> float:
    """Return the size of the loaded weights alone, in MiB."""
    model = estimates.model_of(weights)
    return estimates.weights_bytes(model, device.kind, options.dtype) / 2**20


def num_vectors(payload: bytes, options: Options) -> int:
    """Return the number of residues of a protein, or of its region, that get a vector."""
    parts = parts_of(payload)
    if parts.region:
        return parts.tokens[1] - parts.tokens[0]
    length = len(parts.letters)
    return min(length, options.max_residues) if options.long == "truncate" else length


def ways(device: Device, weights: Weights | None) -> dict[str, str]:
    """Return the methods for attention, products and the rest on `device`, and the dtype."""
    from featuremill.workloads.esm2 import fallbacks
    from featuremill.workloads.esm2.architecture import ESM2

    return dict(zip(WAYS, fallbacks.ways(device, weights, ESM2, load), strict=True))


def start_ahead(devices: Sequence[Device]) -> None:
    """Start preparations of the kernels on a thread, while torch is imported."""
    if devices[0].kind == "cuda":
        triton_cache.start_ahead()


def load(
    options: Options,
    devices: Sequence[Device],
    weights: Weights | None,
    attention: Backend | None = None,
    prefix: str = "",
) -> Model:
    """Return the encoder with its weights, the layers spread over `devices` in their order.

    `attention` replaces all methods for attention. `prefix` precedes all names in the file of
    weights.
    """
    with loading.part("modules"):
        from featuremill.workload import spread
        from featuremill.workloads.esm2 import packing
        from featuremill.workloads.esm2.encoder import DTYPES, Encoder

    assert weights is not None
    places = spread.places(devices)
    num_rows = 0
    if devices[0].kind == "cuda":
        num_rows = packing.num_rows(0, batch_cost(options, devices[0]), places[0])
    dtype = DTYPES[options.dtype]
    encoder = Encoder(weights.path, weights.metadata, places, dtype, num_rows, attention, prefix)
    return Model(encoder, options, encoder.backend)


def with_options(model: Model, options: Options) -> Model | None:
    """Return the loaded encoder with other options; None for another dtype."""
    return model._replace(options=options) if options.dtype == model.options.dtype else None


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Tokenize and pack proteins, on the host."""
    from featuremill.workload import spread
    from featuremill.workloads.esm2 import packing, pooling

    parts = [parts_of(payload) for payload in payloads]
    together = alike(parts)
    seen = [parts[first].letters for first, *_ in together]
    windows = [tokens.windows(len(letters), model.options) for letters in seen]
    sequences = [
        tokens.tokenize(letters, window)
        for letters, each in zip(seen, windows, strict=True)
        for window in each
    ]
    device = model.encoder.device
    pack, indices = packing.pack(sequences, batch_cost, device), pooling.places(windows)
    if any(each.region for each in parts):
        protein_of = {index: n for n, some in enumerate(together) for index in some}
        spans = [(protein_of[index], *each.tokens) for index, each in enumerate(parts)]
        indices = indices.of_regions(spans)
    return spread.pinned(Batch(pack, indices), device)


def run(model: Model, batch: Batch) -> Result:
    """Compute a batch and send its values to the host. A GPU is still computing on return."""
    from featuremill.workloads.esm2 import pooling
    from featuremill.workloads.esm2.transfer import Slabs, Transfer

    lengths, options = batch.places.lengths, model.options
    num_rows = max(len(batch.pack.tokens_T), sum(lengths))  # regions may overlap
    layer_bytes = pooling.bytes_of_layer(num_rows, len(lengths), model.encoder.width, options)
    slabs = Slabs(layer_bytes, len(options.layers))
    return Result(Transfer(on_device(model, batch), slabs), lengths)


def on_device(model: Model, batch: Batch) -> Iterator[Tensor]:
    """Yield the values of a batch on their devices, in schema order, layer by layer."""
    from featuremill.workload import spread
    from featuremill.workloads.esm2.pooling import tensors_of_layer

    encoder = model.encoder
    # Places are copied from the host to each device, as copies between GPUs need a tested method.
    places_on = functools.cache(functools.partial(spread.on_device, batch.places))
    for _, hidden_TD in encoder.representations(batch.pack, model.options.layers):
        places = places_on(hidden_TD.device)
        yield from tensors_of_layer(hidden_TD, places, model.options, encoder.mean_rows)


def collect(model: Model, result: Result) -> pa.RecordBatch:
    """Return the features of a batch, one row for each protein."""
    from featuremill.workload.arrays import layer_batch, layer_columns

    values = [tensor.numpy() for tensor in result.transfer.wait()]
    columns = layer_columns(model.options, model.encoder.width)
    return layer_batch(values, result.lengths, columns)
