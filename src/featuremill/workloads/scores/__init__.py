"""The workload `scores`: scores of proteins and their variants by a protein language model.

ESM-2, ESM C, ESM-1b, ESM-1v and SaProt run on the engine of the workload esm2. This package chooses
the forward passes, and computes scores from the logits of the language-model head.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from featuremill.kit.processes import free_memory_mb
from featuremill.workload import UnitWork, networks
from featuremill.workloads import esm2
from featuremill.workloads.encoder import structures
from featuremill.workloads.esm2 import ENVIRONMENT as ENVIRONMENT
from featuremill.workloads.esm2 import start_ahead as start_ahead
from featuremill.workloads.esm2.architecture import ESM_1V, SAPROT, sizes_of
from featuremill.workloads.esm2.tokens import NUM_SPECIAL, NUM_TOKENS
from featuremill.workloads.scores import listed, sources
from featuremill.workloads.scores import sources as CHECKPOINTS
from featuremill.workloads.scores.options import Options as Options
from featuremill.workloads.scores.tables import SETTLED, with_columns
from featuremill.workloads.scores.variants import REASONS as VARIANT_REASONS
from featuremill.workloads.scores.variants import parts_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from torch import Tensor

    from featuremill.workload import Device, Record, Weights
    from featuremill.workload.figures import Figure
    from featuremill.workloads.esm2.architecture import Architecture
    from featuremill.workloads.esm2.transfer import Transfer
    from featuremill.workloads.scores.ensemble import Network, Networks
    from featuremill.workloads.scores.passes import Pass, Work

VERSION = "3"
VERSIONS_OF = ("fair-esm",)
REASONS = (*VARIANT_REASONS, *structures.REASONS)
COST_UNIT = "tokens"
LENGTH_UNIT = "residues"
PRECISION = "dtype"
SPEED_OPTIONS = ("model", "dtype")
ATTRIBUTES = ("variants", "marginals", "dtype", "long")
OUTPUTS = ("variant_scores",)
REMEDIES = {
    "smaller batches": "batch_tokens",
    "shorter records": "long: truncate",
    "less written": "listed variants, or no log_probabilities",
}
PASS_TOKENS = 450
"""Assumed tokens per pass, as the cost of a record is the sum over its passes."""
PACKS_PER_LOAD = 16
"""Packs of a batch of an ensemble on a GPU: networks that alternate are loaded once per batch."""
USABLE_SHARE = 0.9
"""The share of the memory that networks may use."""
log = logging.getLogger("featuremill.scores")


class Model(NamedTuple):
    networks: Networks
    options: Options
    batch_tokens: int
    backend: str


class Batch(NamedTuple):
    works: list[Work]
    pack_tokens: int


class Result(NamedTuple):
    """Log-probabilities that are copied to the host: a tensor per pack, network by network."""

    transfer: Transfer
    works: list[Work]


def cost(payload: bytes, options: Options) -> int:
    """Return the number of tokens of all passes of a protein, by all networks."""
    from featuremill.workloads.scores import passes

    letters, _ = parts_of(payload)
    num_tokens = passes.num_tokens(passes.work_of(payload, options))
    return (num_tokens or options.width(len(letters)) + NUM_SPECIAL) * len(options.networks)


def weights(options: Options) -> str:
    return options.model


def caution(options: Options) -> str:
    """Return a caution about networks other than ESM-2, and about the cost of an ensemble."""
    cautions = [esm2.caution(esm2.Options(model=each)) for each in sources.members(options.model)]
    if (num := len(cautions)) > 1:
        cautions.append(
            f"{options.model}: {num} networks take {num} times the passes of one; all are loaded "
            "if there is memory for them, else one at a time"
        )
    return "; ".join(filter(None, cautions))


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Return `options` with the dtype on `device`, the name of the weights and all columns."""
    assert weights is not None
    _refuse_beyond_positions(options, sizes_of(weights.metadata).architecture)
    settled = {
        "model": weights.name,
        "dtype": networks.dtype_on(device, options.dtype),
        "max_residues": None if options.long == "full" else options.limit,
        **with_columns(options).model_dump(include=SETTLED),
    }
    return Options.model_validate(options.model_dump() | settled)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    from featuremill.workloads.scores import columns

    return columns.schema(options)


def batch_cost(options: Options, device: Device) -> int:
    num = len(options.networks)
    num_packs = PACKS_PER_LOAD if num > 1 and device.kind == "cuda" else 1
    return num * num_packs * _pack_tokens(options, device)


def _pack_tokens(options: Options, device: Device) -> int:
    return networks.batch_cost(options.of_esm2, device)


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the proteins of `inputs` with their variants; truncated proteins have a note."""
    if sources.reader_of(options.model) is sources.ESM_1:
        _refuse_beyond_positions(options, ESM_1V)
    return listed.records(inputs, options)


def _refuse_beyond_positions(options: Options, architecture: Architecture) -> None:
    is_whole = options.long == "full"
    is_whole |= options.long == "proteingym" and options.has_whole_passes
    sources.refuse_beyond_positions(
        architecture, is_whole, options.max_residues, "truncate or chunk"
    )


def weights_ahead(options: Options) -> Weights:
    return CHECKPOINTS.weights_ahead(options.model)


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    """Return the estimated peak memory in MiB for resolved `options`; `batch_cost` is in tokens."""
    tokens = min(_pack_tokens(options, device), batch_cost)
    num_together = _num_together(options, device, weights, tokens)
    return _memory_mb(options, device, weights, tokens, num_together)


def _memory_mb(
    options: Options, device: Device, weights: Weights, pack_tokens: int, num_together: int
) -> int:
    single_mb: int = esm2.memory_mb(options.of_esm2, device, weights, pack_tokens)
    return single_mb + round((num_together - 1) * esm2.loaded_mb(options.of_esm2, device, weights))


def _num_together(options: Options, device: Device, weights: Weights, pack_tokens: int) -> int:
    """Return the number of networks that are loaded at a time: all if they fit, else one."""
    num = _num_networks(weights)
    available_mb = device.memory_mb if device.kind == "cuda" else free_memory_mb()
    need_mb = _memory_mb(options, device, weights, pack_tokens, num)
    return num if not available_mb or need_mb <= USABLE_SHARE * available_mb else 1


def _num_networks(weights: Weights) -> int:
    return int(weights.metadata.get(sources.NUM_NETWORKS, 1))


def weights_mb(weights: Weights) -> float:
    sizes = sizes_of(weights.metadata)
    width, num_rows = sizes.width, sizes.architecture.num_rows
    numbers = width**2 + (num_rows + 3) * width + num_rows
    return _num_networks(weights) * (esm2.weights_mb(weights) + 4 * numbers / 2**20)


def unit_work(weights: Weights, mean_tokens: float) -> UnitWork | None:
    return esm2.unit_work(weights, min(mean_tokens, PASS_TOKENS))


def audited(options: Options, precision: str) -> Options:
    """Return options that deliver the log-probabilities of each residue in fp32."""
    kept = options.model_dump(include={"model", "long", "max_residues", "batch_tokens"})
    if options.long == "proteingym":  # its windows are only for masked residues
        kept["long"] = "chunk"
    more = {"dtype": precision, "variants": "none", "log_probabilities": "wildtype"}
    return Options.model_validate(kept | more)


def num_vectors(payload: bytes, options: Options) -> int:
    letters, _ = parts_of(payload)
    return options.seen(len(letters))


def figures(
    columns: Sequence[str], read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
) -> list[Figure]:
    """Return the figure of scores against measured scores, and heat maps of some proteins."""
    from featuremill.workloads.scores import agreement, heat_maps
    from featuremill.workloads.scores.columns import VARIANTS

    if VARIANTS not in columns:
        return []
    return [*agreement.figures(read), *heat_maps.figures(read)]


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    from featuremill.workloads.scores import ensemble

    assert weights is not None
    pack_tokens = _pack_tokens(options, devices[0])
    num = _num_networks(weights)
    num_together = _num_together(options, devices[0], weights, pack_tokens)
    if num > 1:
        these_mb, all_mb = (
            f"{_memory_mb(options, devices[0], weights, pack_tokens, each):,}"
            for each in (num_together, num)
        )
        which = "all" if num_together > 1 else "one"
        text = f"{num} networks, {which} loaded at a time: about {these_mb} MB"
        if num_together > 1:
            log.info(text)
        else:
            log.warning(
                "%s, as all would take about %s MB; each is loaded again for every batch, which is "
                "slower",
                text,
                all_mb,
            )
    loaded = ensemble.Networks(options.of_esm2, devices, weights, num, num_together)
    return Model(loaded, options, pack_tokens, loaded.backend)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Return the passes of each protein; `run` packs them."""
    from featuremill.workloads.scores import passes

    works = [passes.work_of(payload, model.options) for payload in payloads]
    tokens = max(1, batch_cost // model.networks.num)
    return Batch(works, min(model.batch_tokens, tokens))


def run(model: Model, batch: Batch) -> Result:
    """Start all passes, pack by pack; on a GPU they may still run when this returns."""
    from featuremill.workloads.esm2.transfer import Slabs, Transfer

    slabs = Slabs(batch.pack_tokens * NUM_TOKENS * 4, 1)
    return Result(Transfer(_tensors(model, batch), slabs), batch.works)


def _tensors(model: Model, batch: Batch) -> Iterator[Tensor]:
    for network in model.networks.each():
        for some in _packs(batch):
            yield _log_probabilities(network, batch, some)
        del network  # free its memory before the next network is loaded


def _packs(batch: Batch) -> Iterator[list[Pass]]:
    """Yield lists of passes, in order; each list fits in a pack."""
    from featuremill.workloads.scores import passes

    some: list[Pass] = []
    left = batch.pack_tokens
    for work in batch.works:
        for next_pass in passes.passes(work):
            if some and len(next_pass.tokens) > left:
                yield some
                some, left = [], batch.pack_tokens
            some.append(next_pass)
            left -= len(next_pass.tokens)
    if some:
        yield some


def _log_probabilities(network: Network, batch: Batch, some: Sequence[Pass]) -> Tensor:
    """Return the log-probabilities of the rows of these passes."""
    import numpy as np
    import torch

    from featuremill.workload import spread
    from featuremill.workloads.esm2 import packing
    from featuremill.workloads.scores.ensemble import own_tokens

    encoder = network.encoder
    tokens, mask = [each.tokens for each in some], encoder.architecture.mask
    if encoder.architecture is SAPROT:
        tokens = [own_tokens(each.tokens, each.structure) for each in some]
    pack = packing.pack(tokens, batch.pack_tokens, encoder.device, mask)
    starts = zip(pack.bounds, some, strict=False)
    rows = np.concatenate([start + each.rows for start, each in starts])
    rows_R = torch.from_numpy(rows)
    pack, rows_R = spread.pinned((pack, rows_R), encoder.device)
    ((_, hidden_TD),) = encoder.representations(pack, (encoder.num_layers,))
    return network.head.log_probabilities(hidden_TD, rows_R.to(hidden_TD.device, non_blocking=True))


def collect(model: Model, result: Result) -> pa.RecordBatch:
    """Return the scores of a batch, one row per protein."""
    import numpy as np

    from featuremill.workloads.scores import columns, passes

    slabs = [tensor.numpy() for tensor in result.transfer.wait()]
    all_rows = np.concatenate([*slabs, np.empty((0, NUM_TOKENS), np.float32)])
    bounds = np.cumsum([passes.num_rows(work) for work in result.works])
    networks = np.split(all_rows, model.networks.num)
    return columns.batch(
        result.works, [np.split(rows, bounds[:-1]) for rows in networks], model.options
    )
