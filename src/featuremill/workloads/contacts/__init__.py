"""Contacts of proteins from the attention of ESM-2 or ESM-1b, with the regression of its authors.

The workload esm2 has the network; here stands what is read off its attention.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.ids import Matcher, accession
from featuremill.kit.reasons import Kind
from featuremill.kit.text import clipped
from featuremill.workload import Record, RecordFailed, networks
from featuremill.workloads import esm2
from featuremill.workloads.contacts import sources as CHECKPOINTS
from featuremill.workloads.contacts.options import Options
from featuremill.workloads.contacts.tiles import TILE_BYTES
from featuremill.workloads.esm2 import ENVIRONMENT, start_ahead
from featuremill.workloads.esm2.architecture import ESM_1V, sizes_of
from featuremill.workloads.esm2.tokens import NUM_SPECIAL
from featuremill.workloads.scores.kin import refuse_beyond_positions

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.workload import Device, Weights
    from featuremill.workload.figures import Figure
    from featuremill.workloads.contacts.attention import Watch
    from featuremill.workloads.contacts.columns import Attention
    from featuremill.workloads.esm2.architecture import Architecture
    from featuremill.workloads.esm2.encoder import Encoder
    from featuremill.workloads.esm2.packing import Packed
    from featuremill.workloads.esm2.transfer import Transfer

__all__ = [
    "ATTRIBUTES",
    "CHECKPOINTS",
    "COST_UNIT",
    "ENVIRONMENT",
    "LENGTH_UNIT",
    "PRECISION",
    "REASONS",
    "REMEDIES",
    "SPEED_OPTIONS",
    "VERSION",
    "VERSIONS_OF",
    "Options",
    "batch_cost",
    "caution",
    "collect",
    "cost",
    "figures",
    "load",
    "memory_mb",
    "options_of_model",
    "prepare",
    "records",
    "resolve",
    "run",
    "schema",
    "start_ahead",
    "weights",
    "weights_ahead",
    "weights_mb",
]

VERSION = "1"
VERSIONS_OF = ("fair-esm",)
COST_UNIT = "tokens"
LENGTH_UNIT = "residues"
PRECISION = "dtype"
SPEED_OPTIONS = ("model", "dtype")
ATTRIBUTES = ("dtype", "long", "output_dtype")
OUTPUTS = ("contacts_tsv",)
REMEDIES = {
    "smaller batches": "batch_tokens",
    "shorter records": "long: truncate",
    "less written": "maps: false, or output_dtype: float16",
}
TOO_MANY = Kind(
    "numbers",
    ("more numbers than a column holds",),
    "Set max_residues lower, or take the protein out of attention_of.",
)
REASONS = (TOO_MANY,)
WITH_ATTENTION = b"\n"
"""Stands behind the residues of a protein whose attention is wanted."""
CPU_SLACK = 1.1
COPIES_OF_ATTENTION = 3
"""Copies of a batch's attention: as computed, as a column, and the column of the batch before."""
NUMBER_BYTES = {"float16": 2, "float32": 4}


class Model(NamedTuple):
    """The network, what looks at its attention, and what to deliver."""

    encoder: Encoder
    watch: Watch
    options: Options
    backend: str
    """The backends of attention and the rest, for the receipt."""


class Batch(NamedTuple):
    """Proteins packed for the encoder, on the host."""

    pack: Packed | None
    """The packed proteins; None if nothing is wanted of them."""
    proteins: list[bytes]
    """The residues of each, cut to what the network may see."""
    is_seen: list[bool]
    """Whether a protein is in the pack."""
    with_attention: list[bool]


class Result(NamedTuple):
    """Contacts on their way to the host."""

    transfer: Transfer
    proteins: list[bytes]
    attentions: list[Attention | None]


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Stream the proteins of `inputs`; those that will be truncated get a note, those whose
    attention is wanted a mark in their payload.

    Raises:
        UserError: none is called as `attention_of` has it, or the network has no such positions.
    """
    if CHECKPOINTS.is_esm_1(options.model):
        _refuse_beyond_positions(options, ESM_1V)
    stream: Iterator[Record] = esm2.records(inputs, options.of_esm2)
    return _marked(stream, options.attention_of) if options.attention_of else stream


def _refuse_beyond_positions(options: Options, architecture: Architecture) -> None:
    is_whole = options.long == "full"
    refuse_beyond_positions(architecture, is_whole, options.max_residues, "truncate")


def _marked(stream: Iterator[Record], names: Sequence[str]) -> Iterator[Record]:
    option = "options.attention_of"
    wanted = Matcher(Path(option), {name: n for n, name in enumerate(names, 1)}, "protein")
    for record in stream:
        if wanted.name_of(record.id) is None or record.reason:
            yield record
        else:
            length = len(record.payload)
            yield record._replace(payload=record.payload + WITH_ATTENTION, length=length)
    met = {accession(id) for id in wanted.id_of.values()}  # of an id that is named as well
    if strangers := [name for name in wanted.unmatched if name not in met]:
        raise UserError(
            f"{option}: no protein of the inputs is called {clipped(strangers[0])!r}; write the id "
            "or the accession as the inputs have it, or take it out."
        )


def cost(payload: bytes, options: Options) -> int:
    """Return the tokens to compute for a protein; 1 where nothing is."""
    if not _is_seen(payload, options):
        return 1
    return options.seen(len(payload.rstrip())) + NUM_SPECIAL


def _is_seen(payload: bytes, options: Options) -> bool:
    """Tell whether the network computes a protein: all, or those whose attention is wanted."""
    return options.needs_regression or payload.endswith(WITH_ATTENTION)


def weights(options: Options) -> str:
    """Return the model."""
    return options.model


def options_of_model(model: str) -> Options:
    """Return the options of a question about `model`: attention where there is no regression."""
    if CHECKPOINTS.has_none(model):
        return Options(model=model, pairs="none", maps=False, attention_of=(model,))
    return Options(model=model)


def caution(options: Options) -> str:
    """Return what a network that is no ESM-2 is for."""
    return esm2.caution(esm2.Options(model=options.model))


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Settle the dtype for `device`, and name the model by its weights.

    Raises:
        UserError: contacts are wanted, and the weights are here and have no regression, or the
            network has no such positions.
    """
    assert weights is not None
    architecture = sizes_of(weights.metadata).architecture
    _refuse_beyond_positions(options, architecture)
    has_none = weights.metadata.get(CHECKPOINTS.HAS_REGRESSION) == "no"
    if has_none and options.needs_regression and not options.regression:
        why = " (none was published for ESM-1v)" * (architecture is ESM_1V)
        raise UserError(
            f"options.model: {options.model} has no regression for contacts{why}; put fair-esm's "
            "<name>-contact-regression.pt beside the .pt, name one with regression, or set pairs: "
            "none and maps: false with attention_of, for attention alone."
        )
    settled = {"model": weights.name, "dtype": networks.dtype_on(device, options.dtype)}
    return Options.model_validate(options.model_dump() | settled)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns of contacts; `options` are resolved ones."""
    from featuremill.workloads.contacts import columns

    return columns.schema(options)


def batch_cost(options: Options, device: Device) -> int:
    """Return the tokens that one batch may hold."""
    return networks.batch_cost(options.of_esm2, device)


def weights_ahead(options: Options) -> Weights:
    """Return what is known of the model before it is converted."""
    return CHECKPOINTS.weights_ahead(options.model)


def weights_mb(weights: Weights) -> float:
    """Return the size of the converted weights, the regression included, in MiB."""
    sizes = sizes_of(weights.metadata)
    return esm2.weights_mb(weights) + 4 * (sizes.num_layers * sizes.num_heads + 1) / 2**20


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    """Return the estimated peak in MiB; `options` are resolved, `batch_cost` is tokens.

    Beside what the network takes, each token of a batch has a row of sums and one of probabilities,
    as long as its protein, and a number for each head of each layer. Attention that is delivered is
    in the memory of the host.
    """
    sizes = sizes_of(weights.metadata)
    longest = min(batch_cost, options.seen(batch_cost) + NUM_SPECIAL)
    of_heads = 2 * sizes.num_layers * sizes.num_heads
    num_bytes = 4 * batch_cost * (2 * longest + of_heads) + 4 * 4 * longest**2
    num_lanes, slack = (os.cpu_count() or 1, CPU_SLACK) if device.kind == "cpu" else (1, 1)
    num_bytes += 4 * TILE_BYTES[device.kind] * num_lanes
    if device.kind == "cpu":
        num_wanted = min(len(options.attention_of), max(1, batch_cost // longest))
        of_one = NUMBER_BYTES[options.output_dtype] * (of_heads // 2) * longest**2
        num_bytes += COPIES_OF_ATTENTION * num_wanted * of_one
    of_network = esm2.memory_mb(options.of_esm2, device, weights, batch_cost)
    return of_network + round(slack * num_bytes / 2**20)


def figures(
    columns: Sequence[str], read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
) -> list[Figure]:
    """Return contact maps of the first proteins with listed pairs."""
    from featuremill.workloads.contacts import contact_maps
    from featuremill.workloads.contacts.columns import PAIRS

    return contact_maps.figures(read) if PAIRS in columns else []


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the network with its weights and its regression."""
    from featuremill.workloads.contacts import regression
    from featuremill.workloads.contacts.attention import Watch

    assert weights is not None
    sizes = sizes_of(weights.metadata)
    fitted = None
    if options.regression:
        fitted = regression.read(Path(options.regression), sizes.num_layers, sizes.num_heads)
    elif options.needs_regression:
        fitted = regression.of_weights(weights.path)
    watch = Watch(sizes.num_layers, sizes.num_heads, fitted)
    network = esm2.load(options.of_esm2, devices, weights, watch.backend)
    return Model(network.encoder, watch, options, network.backend)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Tokenize and pack proteins, on the host.

    Raises:
        RecordFailed: their attention or contacts are more numbers than a column holds.
    """
    from featuremill.workload import spread
    from featuremill.workloads.esm2 import packing
    from featuremill.workloads.esm2.tokens import tokenize

    options, encoder = model.options, model.encoder
    proteins = [payload.rstrip() for payload in payloads]
    proteins = [letters[: options.seen(len(letters))] for letters in proteins]
    with_attention = [payload.endswith(WITH_ATTENTION) for payload in payloads]
    _refuse_too_many(model, [len(letters) for letters in proteins], with_attention)
    is_seen = [_is_seen(payload, options) for payload in payloads]
    if not any(is_seen):
        return Batch(None, proteins, is_seen, with_attention)
    seen = list(compress(proteins, is_seen))
    sequences = [tokenize(letters, (0, len(letters))) for letters in seen]
    pack = packing.pack(sequences, batch_cost, encoder.device)
    return Batch(spread.pinned(pack, encoder.device), proteins, is_seen, with_attention)


def _refuse_too_many(model: Model, lengths: Sequence[int], with_attention: Sequence[bool]) -> None:
    from featuremill.workloads.contacts.columns import MOST_NUMBERS

    encoder, options = model.encoder, model.options
    of_maps = sum(length**2 for length in lengths) * options.maps
    num_maps = encoder.num_layers * encoder.num_heads
    of_attention = num_maps * sum(
        length**2 for length, wanted in zip(lengths, with_attention, strict=True) if wanted
    )
    if (most := max(of_maps, of_attention)) > MOST_NUMBERS:
        raise RecordFailed(TOO_MANY.name, f"{most:,} numbers")


def run(model: Model, batch: Batch) -> Result:
    """Compute a batch and send its contacts to the host. A GPU is still computing on return."""
    import torch

    from featuremill.workloads.esm2.transfer import Slabs, Transfer

    encoder, watch = model.encoder, model.watch
    if batch.pack is None:
        return Result(Transfer((), Slabs(0, 1)), batch.proteins, [None] * len(batch.proteins))
    dtype = getattr(torch, model.options.output_dtype)
    wanted = list(compress(batch.with_attention, batch.is_seen))
    watch.begin(batch.pack, wanted, dtype, encoder.device)
    for _ in encoder.representations(batch.pack, (encoder.num_layers,)):
        pass  # attention is looked at on the way
    num_bytes = 4 * sum(len(letters) ** 2 for letters in batch.proteins)
    contacts = watch.contacts() if model.options.needs_regression else iter(())
    maps = iter(watch.attention())
    of_sequences = [next(maps) if is_seen else None for is_seen in batch.is_seen]
    attentions = [each if each is None else each.numpy() for each in of_sequences]
    return Result(Transfer(contacts, Slabs(num_bytes, 1)), batch.proteins, attentions)


def collect(model: Model, result: Result) -> pa.RecordBatch:
    """Return the contacts of a batch, one row a protein."""
    from featuremill.workloads.contacts import columns

    maps = [tensor.numpy() for tensor in result.transfer.wait()]
    return columns.batch(result.proteins, maps, result.attentions, model.options)
