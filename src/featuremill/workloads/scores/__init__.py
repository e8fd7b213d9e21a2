"""Scores of proteins and their variants from the language-model head of ESM-2 or ESM C.

The workloads esm2 and esmc have the networks; here stand which passes a score takes, and what is
read off them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from featuremill.workload import UnitWork, networks
from featuremill.workloads import esm2, esmc
from featuremill.workloads.esm2 import ENVIRONMENT, memory_mb, start_ahead
from featuremill.workloads.esm2.architecture import sizes_of
from featuremill.workloads.esm2.tokens import NUM_SPECIAL, NUM_TOKENS
from featuremill.workloads.scores import sources as CHECKPOINTS
from featuremill.workloads.scores.listed import records
from featuremill.workloads.scores.options import Options
from featuremill.workloads.scores.tables import SETTLED, with_columns
from featuremill.workloads.scores.variants import REASONS, parts_of

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from featuremill.workload import Device, Weights
    from featuremill.workload.figures import Figure
    from featuremill.workloads.esm2.encoder import Encoder
    from featuremill.workloads.esm2.transfer import Transfer
    from featuremill.workloads.scores.head import Head
    from featuremill.workloads.scores.passes import Pass, Work

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
    "Options",
    "audited",
    "batch_cost",
    "caution",
    "collect",
    "cost",
    "figures",
    "load",
    "memory_mb",
    "num_vectors",
    "prepare",
    "records",
    "resolve",
    "run",
    "schema",
    "start_ahead",
    "unit_work",
    "weights",
    "weights_ahead",
    "weights_mb",
]

VERSION = "2"
COST_UNIT = "tokens"
LENGTH_UNIT = "residues"
PRECISION = "dtype"
SPEED_OPTIONS = ("model", "dtype")
ATTRIBUTES = ("variants", "marginals", "dtype", "long")
REMEDIES = {
    "smaller batches": "batch_tokens",
    "shorter records": "long: truncate",
    "less written": "listed variants, or no log_probabilities",
}
USUAL_PASS = 450
"""Tokens of a pass, for the share of attention: the cost of a record tells only all of its passes
together."""


class Model(NamedTuple):
    """The network with its head, and what to deliver."""

    encoder: Encoder
    head: Head
    options: Options
    batch_tokens: int
    """Tokens of a pack."""
    backend: str
    """What computes attention and the rest, for the receipt."""


class Batch(NamedTuple):
    """What is computed of each protein."""

    works: list[Work]
    pack_tokens: int


class Result(NamedTuple):
    """Log-probabilities on their way to the host: a tensor a pack."""

    transfer: Transfer
    works: list[Work]


def cost(payload: bytes, options: Options) -> int:
    """Return the tokens of all passes of a protein."""
    from featuremill.workloads.scores import passes

    letters, _ = parts_of(payload)
    return passes.count(payload, options).tokens or options.width(len(letters)) + NUM_SPECIAL


def weights(options: Options) -> str:
    """Return the model."""
    return options.model


def caution(options: Options) -> str:
    """Return what a network that is no ESM-2 is for."""
    return esm2.caution(esm2.Options(model=options.model))


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Settle the dtype for `device`, and name the model by its weights."""
    assert weights is not None
    settled = {
        "model": weights.name,
        "dtype": networks.dtype_on(device, options.dtype),
        "max_residues": None if options.long == "full" else options.limit,
        **with_columns(options).model_dump(include=SETTLED),
    }
    return Options.model_validate(options.model_dump() | settled)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns of scores; `options` are resolved ones."""
    from featuremill.workloads.scores import columns

    return columns.schema(options)


def batch_cost(options: Options, device: Device) -> int:
    """Return the tokens that one batch may hold."""
    return networks.batch_cost(options.of_esm2, device)


def weights_ahead(options: Options) -> Weights:
    """Return what is known of the model before it is converted."""
    if CHECKPOINTS.is_esm_c(options.model):
        return esmc.weights_ahead(esmc.Options(model=options.model), CHECKPOINTS.LAYOUT)
    return esm2.weights_ahead(options.of_esm2)


def weights_mb(weights: Weights) -> float:
    """Return the size of the converted weights, the head included, in MiB."""
    sizes = sizes_of(weights.metadata)
    width, num_rows = sizes.width, sizes.architecture.num_rows
    numbers = width**2 + (num_rows + 3) * width + num_rows
    return esm2.weights_mb(weights) + 4 * numbers / 2**20


def unit_work(weights: Weights, mean_tokens: float) -> UnitWork | None:
    """Return what a token takes."""
    return esm2.unit_work(weights, min(mean_tokens, USUAL_PASS))


def audited(options: Options, precision: str) -> Options:
    """Return the options that deliver the log-probabilities at each residue, unrounded."""
    kept = options.model_dump(include={"model", "long", "max_residues", "batch_tokens"})
    more = {"dtype": precision, "variants": "none", "log_probabilities": "wildtype"}
    return Options.model_validate(kept | more)


def num_vectors(payload: bytes, options: Options) -> int:
    """Return how many residues of a protein are seen."""
    letters, _ = parts_of(payload)
    return options.seen(len(letters))


def figures(
    columns: Sequence[str], read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
) -> list[Figure]:
    """Return how the scores agree with measured ones, and heat maps of the first proteins."""
    from featuremill.workloads.scores import agreement_figure, heat_maps
    from featuremill.workloads.scores.columns import VARIANTS

    if VARIANTS not in columns:
        return []
    return [*agreement_figure.figures(read), *heat_maps.figures(read)]


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the network with its weights and its head."""
    from featuremill.workloads.scores.head import Head

    assert weights is not None
    network = esm2.load(options.of_esm2, devices, weights)
    head = Head(weights.path, network.encoder)
    pack_tokens = batch_cost(options, devices[0])
    return Model(network.encoder, head, options, pack_tokens, network.backend)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Say which passes there are of each protein; `run` packs them."""
    from featuremill.workloads.scores import passes

    works = [passes.work_of(payload, model.options) for payload in payloads]
    return Batch(works, min(model.batch_tokens, batch_cost))


def run(model: Model, batch: Batch) -> Result:
    """Compute all passes, a pack after the other; a GPU is still at it on return."""
    from featuremill.workloads.esm2.transfer import Slabs, Transfer

    slabs = Slabs(batch.pack_tokens * NUM_TOKENS * 4, 1)
    found = (_log_probabilities(model, batch, some) for some in _packs(batch))
    return Result(Transfer(found, slabs), batch.works)


def _packs(batch: Batch) -> Iterator[list[Pass]]:
    """Yield passes that fit one pack, in order."""
    from featuremill.workloads.scores import passes

    some: list[Pass] = []
    left = batch.pack_tokens
    for work in batch.works:
        for one in passes.passes(work):
            if some and len(one.tokens) > left:
                yield some
                some, left = [], batch.pack_tokens
            some.append(one)
            left -= len(one.tokens)
    if some:
        yield some


def _log_probabilities(model: Model, batch: Batch, some: Sequence[Pass]) -> Tensor:
    """Return the log-probabilities of the rows that these passes ask for."""
    import numpy as np
    import torch

    from featuremill.workloads.esm2 import packing

    encoder = model.encoder
    pack = packing.pack([one.tokens for one in some], batch.pack_tokens, encoder.device)
    rows = np.concatenate([start + one.rows for start, one in zip(pack.bounds, some, strict=False)])
    rows_R = torch.from_numpy(rows)
    if encoder.device.type != "cpu":
        pack, rows_R = pack.each(lambda tensor: tensor.pin_memory()), rows_R.pin_memory()
    states = encoder.representations(pack.to(encoder.device), (encoder.num_layers,))
    ((_, hidden_TD),) = states
    return model.head.log_probabilities(hidden_TD, rows_R.to(hidden_TD.device, non_blocking=True))


def collect(model: Model, result: Result) -> pa.RecordBatch:
    """Return the scores of a batch, one row a protein."""
    import numpy as np

    from featuremill.workloads.scores import columns, passes

    every = [tensor.numpy() for tensor in result.transfer.wait()]
    found = np.concatenate([*every, np.empty((0, NUM_TOKENS), np.float32)])
    bounds = np.cumsum([passes.num_rows(work) for work in result.works])
    return columns.batch(result.works, np.split(found, bounds[:-1]), model.options)
