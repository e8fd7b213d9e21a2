"""The workload `contacts`: contacts of proteins from the attention of ESM-2 or ESM-1b.

The workload esm2 computes the network. This package reads its attention, and computes contacts with
the regression of ESM's authors.
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
from featuremill.workloads.contacts.options import Options as Options
from featuremill.workloads.esm2 import ENVIRONMENT as ENVIRONMENT
from featuremill.workloads.esm2 import start_ahead as start_ahead
from featuremill.workloads.esm2.architecture import ESM_1V, sizes_of
from featuremill.workloads.esm2.tokens import NUM_SPECIAL
from featuremill.workloads.scores.sources import ESM_1, refuse_beyond_positions

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.workload import Device, Weights
    from featuremill.workload.figures import Figure
    from featuremill.workloads.contacts.attention import Observer
    from featuremill.workloads.contacts.columns import Attention
    from featuremill.workloads.esm2.encoder import Encoder
    from featuremill.workloads.esm2.packing import Packed
    from featuremill.workloads.esm2.transfer import Transfer

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
"""The end of the payload of a protein whose attention is delivered."""
CPU_SLACK = 1.1
COPIES_OF_ATTENTION = 3
"""Copies of attention in memory: as computed, as a column, and as a column of the batch before."""
TILE_BYTES = {"cpu": 2**20, "cuda": 2**26}
"""The size of the probabilities that a lane computes at once; on a CPU, they fit in the cache."""
NUMBER_BYTES = {"float16": 2, "float32": 4}


class Model(NamedTuple):
    encoder: Encoder
    observer: Observer
    options: Options
    backend: str


class Batch(NamedTuple):
    """Proteins on the host."""

    pack: Packed | None
    """The proteins that are computed; None if there are none."""
    proteins: list[bytes]
    """The residues of each protein, truncated."""
    is_seen: list[bool]
    """Whether a protein is computed."""
    with_attention: list[bool]


class Result(NamedTuple):
    """Contacts that are copied to the host, with attention."""

    transfer: Transfer
    proteins: list[bytes]
    attentions: list[Attention | None]


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the proteins of `inputs`. Truncated proteins have a note; the payloads of proteins in
    `attention_of` end with a mark.

    Raises:
        UserError: `attention_of` names a protein that is not in the inputs, or the network has
            fewer positions than the options need.
    """
    if ESM_1.takes(options.model):
        refuse_beyond_positions(ESM_1V, options.long == "full", options.max_residues, "truncate")
    stream: Iterator[Record] = esm2.records(inputs, options.of_esm2)
    return _marked(stream, options.attention_of) if options.attention_of else stream


def _marked(stream: Iterator[Record], names: Sequence[str]) -> Iterator[Record]:
    option = "options.attention_of"
    wanted = Matcher(Path(option), {name: n for n, name in enumerate(names, 1)}, "protein")
    for record in stream:
        if wanted.name_of(record.id) is None or record.reason:
            yield record
        else:
            length = len(record.payload)
            yield record._replace(payload=record.payload + WITH_ATTENTION, length=length)
    # An accession may be listed beside its id, which has matched.
    matched = {accession(id) for id in wanted.id_of.values()}
    if unknown := [name for name in wanted.unmatched if name not in matched]:
        raise UserError(
            f"{option}: no protein of the inputs is called {clipped(unknown[0])!r}; write the id "
            "or the accession as the inputs have it, or take it out."
        )


def cost(payload: bytes, options: Options) -> int:
    """Return the number of tokens to compute for a protein; 1 if it is not computed."""
    if not _is_seen(payload, options):
        return 1
    return options.seen(len(payload.rstrip())) + NUM_SPECIAL


def _is_seen(payload: bytes, options: Options) -> bool:
    """Return whether a protein is computed: for contacts all are, else those with attention."""
    return options.needs_regression or payload.endswith(WITH_ATTENTION)


def weights(options: Options) -> str:
    return options.model


def options_of_model(model: str) -> Options:
    """Return options for `model`, with attention alone if it has no regression."""
    if CHECKPOINTS.has_none(model):
        return Options(model=model, pairs="none", maps=False, attention_of=(model,))
    return Options(model=model)


def caution(options: Options) -> str:
    return esm2.caution(esm2.Options(model=options.model))


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Return `options` with the dtype on `device` and the name of the weights.

    Raises:
        UserError: contacts need a regression, which the weights lack, or the network has fewer
            positions than the options need.
    """
    assert weights is not None
    architecture = sizes_of(weights.metadata).architecture
    refuse_beyond_positions(architecture, options.long == "full", options.max_residues, "truncate")
    has_none = weights.metadata.get(CHECKPOINTS.HAS_REGRESSION) == "no"
    if has_none and options.needs_regression and not options.regression:
        why = " (none was published for ESM-1v)" * (architecture is ESM_1V)
        raise UserError(
            f"options.model: {options.model} has no regression for contacts{why}; put fair-esm's "
            "<name>-contact-regression.pt beside the .pt, name one with regression, or set pairs: "
            "none and maps: false with attention_of, for attention alone."
        )
    resolved = {"model": weights.name, "dtype": networks.dtype_on(device, options.dtype)}
    return Options.model_validate(options.model_dump() | resolved)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    from featuremill.workloads.contacts import columns

    return columns.schema(options)


def batch_cost(options: Options, device: Device) -> int:
    return networks.batch_cost(options.of_esm2, device)


def weights_ahead(options: Options) -> Weights:
    return CHECKPOINTS.weights_ahead(options.model)


def weights_mb(weights: Weights) -> float:
    sizes = sizes_of(weights.metadata)
    return esm2.weights_mb(weights) + 4 * (sizes.num_layers * sizes.num_heads + 1) / 2**20


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    """Return the estimated peak memory in MiB for resolved `options`; `batch_cost` is in tokens.

    Besides the network's memory, each token of a batch has two rows as long as its protein, of sums
    and of probabilities, and a number for each head of each layer. Attention that is delivered is
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
        attention_bytes = NUMBER_BYTES[options.output_dtype] * (of_heads // 2) * longest**2
        num_bytes += COPIES_OF_ATTENTION * num_wanted * attention_bytes
    of_network = esm2.memory_mb(options.of_esm2, device, weights, batch_cost)
    return of_network + round(slack * num_bytes / 2**20)


def figures(
    columns: Sequence[str], read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
) -> list[Figure]:
    from featuremill.workloads.contacts import contact_maps
    from featuremill.workloads.contacts.columns import PAIRS

    return contact_maps.figures(read) if PAIRS in columns else []


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    from featuremill.workloads.contacts.attention import Observer

    assert weights is not None
    sizes, fitted = sizes_of(weights.metadata), None
    num_maps = (sizes.num_layers, sizes.num_heads)
    if options.regression:
        fitted = CHECKPOINTS.read_regression(Path(options.regression), *num_maps)
    elif options.needs_regression:
        fitted = CHECKPOINTS.regression_of(weights.path)
    observer = Observer(*num_maps, fitted, TILE_BYTES)
    network = esm2.load(options.of_esm2, devices, weights, observer.backend)
    return Model(network.encoder, observer, options, network.backend)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Tokenize and pack proteins on the host.

    Raises:
        RecordFailed: attention or contacts have more numbers than a column holds.
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
    """Compute a batch. On a GPU it may still be running when this returns."""
    import torch

    from featuremill.workloads.esm2.transfer import Slabs, Transfer

    encoder, observer = model.encoder, model.observer
    if batch.pack is None:
        return Result(Transfer((), Slabs(0, 1)), batch.proteins, [None] * len(batch.proteins))
    dtype = getattr(torch, model.options.output_dtype)
    wanted = list(compress(batch.with_attention, batch.is_seen))
    observer.begin(batch.pack, wanted, dtype, encoder.device)
    for _ in encoder.representations(batch.pack, (encoder.num_layers,)):
        pass  # the observer computes attention meanwhile
    num_bytes = 4 * sum(len(letters) ** 2 for letters in batch.proteins)
    contacts = observer.contacts() if model.options.needs_regression else iter(())
    maps = iter(observer.attention())
    of_sequences = [next(maps) if is_seen else None for is_seen in batch.is_seen]
    attentions = [each if each is None else each.numpy() for each in of_sequences]
    return Result(Transfer(contacts, Slabs(num_bytes, 1)), batch.proteins, attentions)


def collect(model: Model, result: Result) -> pa.RecordBatch:
    from featuremill.workloads.contacts import columns

    maps = [tensor.numpy() for tensor in result.transfer.wait()]
    return columns.batch(result.proteins, maps, result.attentions, model.options)
