"""Vectors of cells from Geneformer, and how far they turn when genes are perturbed.

Geneformer is a BERT over genes in the order of their expression. The workload encoder computes the
network. This package makes the tokens of a cell, perturbs them, and compares vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.workload import Record, networks
from featuremill.workload.hugging_face import place_of
from featuremill.workload.networks import ATTRIBUTES, ONE_TOKEN, batch_cost
from featuremill.workloads import encoder
from featuremill.workloads.encoder import architectures, weights_mb
from featuremill.workloads.geneformer import cells, genes
from featuremill.workloads.geneformer.options import ALL, Options

if TYPE_CHECKING:
    from torch import Tensor

    from featuremill.workload import Device, Weights
    from featuremill.workload.arrays import Matrix
    from featuremill.workloads.encoder.architectures import Encoder, Facts
    from featuremill.workloads.encoder.padding import Group
    from featuremill.workloads.geneformer.genes import Genes

__all__ = [
    "ATTRIBUTES",
    "COST_UNIT",
    "ENVIRONMENT",
    "LENGTH_UNIT",
    "ONE_TOKEN",
    "PRECISION",
    "READS_PICKLES",
    "REASONS",
    "REMEDIES",
    "TAKES_FILES",
    "VERSION",
    "VERSIONS_OF",
    "Options",
    "audited",
    "batch_cost",
    "collect",
    "cost",
    "load",
    "memory_mb",
    "num_vectors",
    "options_of_model",
    "prepare",
    "records",
    "resolve",
    "run",
    "schema",
    "weights",
    "weights_ahead",
    "weights_mb",
]

VERSION = "3"
COST_UNIT = "tokens"
OBJECTS = "an AnnData for cells"
REMEDIES = {"smaller batches": "batch_tokens", "less written": "fewer layers"}
LENGTH_UNIT = "genes"
TAKES_FILES = True
READS_PICKLES = True
"""With torch's weights_only."""
VERSIONS_OF = ("transformers",)
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "geneformer.yaml"
PRECISION = "dtype"
REASONS = (cells.UNKNOWN,)
SHIFT = pa.struct(
    {"gene": pa.string(), "kind": pa.string(), "cosine": pa.float64(), "tokens": pa.int32()}
)
"""`cosine` compares the cell with the perturbed cell, by the option `shift`; float64, since it is
near 1. NaN if the gene is not among the cell's `tokens`, is deleted and the only one, or is
overexpressed and first already."""
SHIFT_TOWARDS = pa.struct([*SHIFT, pa.field("state", pa.string()), pa.field("shift", pa.float64())])
"""The same with `shift` towards a `state`: the perturbed cell's cosine with the state, minus the
cell's."""
SHIFTS = "shifts"
"""The column that the outputs `perturbations` and `gene_statistics` read."""
LONG = 40
"""Tokens of the test at load time; half as many, padded to it, must give the same vectors."""


class Model(NamedTuple):
    """The network on its device, and what to return."""

    network: Encoder
    genes: Genes
    options: Options
    columns: pa.Schema
    batch_tokens: int
    """Tokens of a group of perturbed cells: these have the same shapes in any batch."""
    states: dict[str, Matrix]
    """The vector of each state, float64."""
    backend: str


class Batch(NamedTuple):
    """Cells on the host."""

    units: list[list[Group]]
    """Groups that are computed together: all cells, or each cell with its perturbations."""
    cells: list[cells.Cell]
    done: list[list[cells.Perturbed]]
    """The possible perturbations of each cell."""


class Result(NamedTuple):
    """For each group of each unit, on the device: the vectors, followed by the cosines with `shift:
    genes`."""

    values: list[list[list[Tensor]]]
    batch: Batch


def _facts_of(folder: Path) -> Facts:
    facts = architectures.facts_of(folder)
    if facts.architecture is not architectures.BERT:
        raise UserError(
            f"options.model: {folder}: this is a {facts.architecture.name}, and a Geneformer is a "
            "bert; give the folder of one."
        )
    return facts


def _opened(options: Options, folder: Path) -> tuple[Facts, Genes]:
    facts = _facts_of(folder)
    known = genes.of(options, facts)
    if "cls" in options.pool and not known.words.has_first:
        raise UserError("options.pool: V1 has no <cls>; take mean.")
    return facts, known


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Stream the cells of `inputs` (.h5ad), each once, or once for each block of perturbations."""
    _, known = _opened(options, place_of(options.model))
    for path in inputs:
        yield from cells.records(path, options, known)


def write_object(inputs: Any, stem: Path) -> Path | None:
    """Write an AnnData."""
    from featuremill.inputs.in_memory import is_a
    from featuremill.workloads.geneformer import in_memory

    is_ours = is_a(inputs, "anndata", "AnnData")
    return in_memory.write(inputs, stem.with_suffix(".h5ad")) if is_ours else None


def cost(payload: bytes, options: Options) -> int:
    """Return the tokens to compute: the cell's tokens × (1 + perturbations)."""
    cell = cells.cell_of(payload)
    num_perturbed = 1 if options.together else len(cell.perturbed)
    return len(cell.tokens) * (1 + num_perturbed)


def weights(options: Options) -> str:
    """Return the folder of the network."""
    return options.model


def options_of_model(model: str) -> Options:
    """Return options without the files of genes, which say nothing of the memory."""
    return Options.model_construct(model=model, vocabulary="", medians="")


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Resolve version and dtype, and count layers from 0."""
    assert weights is not None
    settled: dict[str, Any] = {
        "layers": networks.layers_from_0(options.layers, _facts_of(weights.path).num_layers),
        "dtype": networks.dtype_on(device, options.dtype),
    }
    if not options.vocabulary:  # of `options_of_model`
        return options.model_copy(update=settled)
    _, known = _opened(options, weights.path)
    settled["version"] = known.version
    if options.perturb != "none" and options.shift == "auto":
        is_by_genes = known.version == "V1" and options.pool == ("auto",)
        settled["shift"] = "genes" if is_by_genes else "pooled"
    if options.pool == ("auto",):
        settled["pool"] = ("cls" if known.words.has_first else "mean",)
    return options.model_copy(update=settled)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns of vectors, or the column of shifts; `options` are resolved."""
    from featuremill.workloads.encoder import columns

    assert weights is not None
    if options.perturb != "none":
        return pa.schema({SHIFTS: pa.list_(SHIFT_TOWARDS if options.states else SHIFT)})
    width = architectures.facts_of(weights.path).width
    return columns.schema(options.of_encoder, width, is_by_letter=True)


def audited(options: Options, precision: str) -> Options:
    """Return the options for the cell's vector without perturbations."""
    more = {"dtype": precision, "perturb": "none", "genes": ALL, "together": False}
    more |= {"shift": "auto", "states": None}
    return Options.model_validate(options.model_dump() | more)


def num_vectors(payload: bytes, options: Options) -> int:
    """Return 1: a cell has one vector."""
    return 1


def weights_ahead(options: Options) -> Weights:
    """Return the network's facts from the folder's config; nothing is hashed."""
    return encoder.weights_ahead(options.of_encoder)


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    """Return the estimated peak in MiB; `options` are resolved."""
    if options.perturb != "none":  # the network computes at most this much of a block at once
        batch_cost = min(batch_cost, networks.batch_cost(options, device))
    return encoder.memory_mb(options.of_encoder, device, weights, batch_cost)


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the network with its weights, after a test of its operations."""
    from featuremill.workloads.encoder import check

    assert weights is not None
    _, known = _opened(options, weights.path)
    network = encoder.network(devices, weights.path, options.dtype)
    long = np.array([*known.words.first, *known.tokens.values()][: known.most], np.int64)[:LONG]
    check.padding(network, known.words, long[: max(1, len(long) // 2)], long, options.dtype)
    columns, batch_tokens = schema(options, weights), batch_cost(options, devices[0])
    states = genes.states_of(options, architectures.facts_of(weights.path).width)
    return Model(network, known, options, columns, batch_tokens, states, network.backend)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Make groups of cells on the host. With perturbations: a cell and its perturbed cells, all of
    one length and without padding."""
    from featuremill.workloads.encoder import padding

    words, perturb = model.genes.words, model.options.perturb
    given = [cells.cell_of(payload) for payload in payloads]

    def row(tokens: cells.Tokens) -> Any:
        return np.concatenate((words.first, tokens, words.last)).astype(np.int64)

    if perturb == "none":
        together = padding.groups([row(cell.tokens) for cell in given], words, batch_cost)
        return Batch([together], given, [])
    batch = Batch([], given, [])
    for cell in given:
        done = cells.possible(cell, model.options)
        rows = [row(tokens) for tokens in (cell.tokens, *(one.tokens for one in done)) if done]
        batch.units.append(padding.groups(rows, words, model.batch_tokens, 0.0))
        batch.done.append(done)
    return batch


def run(model: Model, batch: Batch) -> Result:
    """Compute a batch. A GPU may still be computing on return."""
    from featuremill.workloads.encoder import padding

    options = model.options.of_encoder
    values: list[list[list[Tensor]]] = []
    for number, unit in enumerate(batch.units):
        values.append([])
        for group in unit:
            here = group.each_to(model.network.device)
            hidden = model.network.hidden_states(here.tokens_BT, here.is_token_BT, options.layers)
            values[-1].append(padding.values_of(here, hidden, options))
            if model.options.shift == "genes" and batch.done:
                (hidden_BTE,) = hidden.values()
                genes_BTE = hidden_BTE[:, len(model.genes.words.first) :]
                if group is unit[0]:  # the first of the longest: the cell itself
                    own_TE = genes_BTE[0]
                done = [batch.done[number][place - 1] for place in group.places if place]
                values[-1][-1].append(_cosines_of_genes(own_TE, genes_BTE, done))
    return Result(values, batch)


def collect(model: Model, result: Result) -> pa.RecordBatch:
    """Return the vector of each cell, or its shifts."""
    from featuremill.workloads.encoder import columns, padding

    given, units, options = result.batch.cells, result.batch.units, model.options
    if options.perturb == "none":
        ones = [1] * len(given)
        (values,) = result.values
        return columns.batch(padding.in_order(values, units[0], ones), ones, model.columns)
    rows = []
    for cell, done, unit, values in zip(
        given, result.batch.done, units, result.values, strict=True
    ):
        names = [
            "+".join(model.genes.names[token] for token in tokens.tolist())
            for tokens in cells.perturbations(cell, options)
        ]
        numbers = [one.number for one in done]
        cosines = np.full(len(names), np.nan)
        towards = {state: np.full(len(names), np.nan) for state in model.states}
        if done:
            vectors_SE, *by_genes = padding.in_order(values, unit, [1] * (1 + len(done)))
            (cosines_S,) = by_genes or [_cosines(vectors_SE, vectors_SE[0])]
            cosines[numbers] = cosines_S[1:]
            for state, vector_E in model.states.items():
                towards_S = _cosines(vectors_SE, vector_E)
                towards[state][numbers] = towards_S[1:] - towards_S[0]
        common = {"kind": options.perturb, "tokens": len(cell.tokens)}
        shifts = [
            {"gene": gene, "cosine": cosine} | common
            for gene, cosine in zip(names, cosines.tolist(), strict=True)
        ]
        if towards:
            shifts = [
                {**shift, "state": state, "shift": float(of_state[place])}
                for place, shift in enumerate(shifts)
                for state, of_state in towards.items()
            ]
        rows.append({SHIFTS: shifts})
    return pa.RecordBatch.from_pylist(rows, model.columns)


def _cosines(vectors_SE: Matrix, vector_E: Matrix) -> Matrix:
    """Return the cosine of each vector (S, E) with one (E,), summed in float64."""
    wide_SE, wide_E = vectors_SE.astype(np.float64), vector_E.astype(np.float64)
    norms_S = np.sqrt(np.einsum("se,se->s", wide_SE, wide_SE))
    cosines_S: Matrix = wide_SE @ wide_E / (norms_S * np.sqrt(wide_E @ wide_E))
    return cosines_S


def _cosines_of_genes(own_TE: Tensor, genes_BTE: Tensor, done: Sequence[cells.Perturbed]) -> Tensor:
    """Return for each perturbed cell the mean cosine of each unperturbed gene with itself in the
    cell, in float64. NaN without such a gene, and for the unperturbed cell, which is first."""
    import torch

    num_others = len(genes_BTE) - len(done)
    means = [torch.full((), torch.nan, dtype=torch.float64, device=own_TE.device)] * num_others
    for perturbed_TE, one in zip(genes_BTE[num_others:], done, strict=True):
        before_KE = own_TE[torch.from_numpy(one.kept).to(own_TE.device)].double()
        after_KE = perturbed_TE[len(one.tokens) - len(one.kept) : len(one.tokens)].double()
        means.append(torch.cosine_similarity(before_KE, after_KE, dim=1).mean())
    return torch.stack(means)
