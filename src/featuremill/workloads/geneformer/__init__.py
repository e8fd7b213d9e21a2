"""The workload `geneformer`: vectors of cells, and their change when genes are perturbed.

Geneformer is a BERT whose tokens are the genes of a cell in the order of their expression. The
workload encoder computes the network. This package converts cells to tokens, perturbs these, and
compares vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.workload import Record, networks
from featuremill.workload.hugging_face import place_of
from featuremill.workload.networks import ATTRIBUTES as ATTRIBUTES
from featuremill.workload.networks import ONE_TOKEN as ONE_TOKEN
from featuremill.workload.networks import batch_cost as batch_cost
from featuremill.workloads import encoder
from featuremill.workloads.encoder import architectures
from featuremill.workloads.encoder import weights_mb as weights_mb
from featuremill.workloads.geneformer import cells, genes, h5ad
from featuremill.workloads.geneformer.options import ALL
from featuremill.workloads.geneformer.options import Options as Options
from featuremill.workloads.geneformer.perturbations import GENE_SHIFTS, GENES, SHIFTS

if TYPE_CHECKING:
    from torch import Tensor

    from featuremill.workload import Device, Weights
    from featuremill.workload.arrays import Matrix
    from featuremill.workloads.encoder.architectures import Facts
    from featuremill.workloads.encoder.loader import Encoder
    from featuremill.workloads.encoder.padding import Group
    from featuremill.workloads.geneformer.genes import Genes

VERSION = "3"
COST_UNIT = "tokens"
OBJECTS = "an AnnData for cells"
REMEDIES = {"smaller batches": "batch_tokens", "less written": "fewer layers"}
LENGTH_UNIT = "genes"
TAKES_FILES = True
READS_PICKLES = True
VERSIONS_OF = ("transformers",)
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "geneformer.yaml"
PRECISION = "dtype"
REASONS = (cells.UNKNOWN,)
SHIFT = pa.struct(
    {"gene": pa.string(), "kind": pa.string(), "cosine": pa.float64(), "tokens": pa.int32()}
)
"""`cosine` compares the cell with the perturbed cell, by the option `shift`; it is float64, as it
is near 1. It is NaN for an impossible perturbation: the gene is absent (without
`overexpress_absent`), is the only one and deleted, or is first already and overexpressed."""
SHIFT_TOWARDS = pa.struct([*SHIFT, pa.field("state", pa.string()), pa.field("shift", pa.float64())])
"""A shift towards a `state`: `shift` is the perturbed cell's cosine with the state, minus that of
the cell."""
COSINES = pa.field("cosines", pa.list_(pa.float64()))
"""For each of a row's `genes`, the cosine of its vectors in the cell and the perturbed cell. It is
NaN for perturbed genes and for those that are cut off. The list is empty if `cosine` is NaN, and
for all states but the first."""
LONG = 40
"""Tokens of a sequence that is computed in a test of the loaded network: the first half of it,
padded to the same length, must have the same vectors."""


class Model(NamedTuple):
    network: Encoder
    genes: Genes
    options: Options
    columns: pa.Schema
    batch_tokens: int
    """The largest number of tokens of a group of perturbed cells. It is constant, so that shapes do
    not depend on the batch."""
    states: dict[str, Matrix]
    """The vector of each state, in float64."""
    backend: str


class Batch(NamedTuple):
    units: list[list[Group]]
    """The groups of each unit: all cells, or one cell with its perturbed cells."""
    cells: list[cells.Cell]
    perturbed: list[list[cells.Perturbed]]
    """The perturbed cells of each cell; empty without perturbations."""


class Result(NamedTuple):
    """The tensors of a batch on the device."""

    values: list[list[list[Tensor]]]
    """For each group of each unit the vectors, followed by cosines or vectors of genes."""
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
    known = genes.load(options, facts)
    if "cls" in options.pool and not known.words.has_first:
        raise UserError("options.pool: V1 has no <cls>; take mean.")
    return facts, known


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the cells of `inputs` (.h5ad), each once, or once for each block of perturbations."""
    _, known = _opened(options, place_of(options.model))
    for path in inputs:
        yield from cells.records(path, options, known)


def write_object(inputs: Any, stem: Path) -> Path | None:
    """Write an AnnData; return None for other objects."""
    from featuremill.inputs.in_memory import is_a

    is_anndata = is_a(inputs, "anndata", "AnnData")
    return h5ad.write(inputs, stem.with_suffix(".h5ad")) if is_anndata else None


def cost(payload: bytes, options: Options) -> int:
    """Return the number of tokens to compute: the cell's tokens × (1 + perturbations). With absent
    genes the rows are counted, as perturbed cells are longer, and the unperturbed cell is computed
    in several lengths."""
    cell = cells.cell_of(payload)
    if options.overexpress_absent:
        version = "V2" if options.version == "auto" else options.version
        most = genes.INPUT_SIZES[version] - genes.SPECIAL[version]
        return max(1, sum(map(len, _rows(cell, cells.possible(cell, options, most)))))
    return len(cell.tokens) * (1 + len(cells.perturbations(cell, options)))


def _lengths_before(perturbed: Sequence[cells.Perturbed]) -> list[int]:
    """Return the distinct lengths in which the unperturbed cell is computed, the longest first."""
    return sorted({each.num_before for each in perturbed}, reverse=True)


def _rows(cell: cells.Cell, perturbed: Sequence[cells.Perturbed]) -> list[cells.Tokens]:
    """Return the token rows of a cell: its own, then those of its perturbed cells."""
    before = [cell.tokens[:length] for length in _lengths_before(perturbed)]
    return before + [each.tokens for each in perturbed]


def weights(options: Options) -> str:
    return options.model


def options_of_model(model: str) -> Options:
    """Return options without the tables of genes, which do not change the memory."""
    return Options.model_construct(model=model, vocabulary="", medians="")


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Return `options` with all "auto" resolved for `device`, and layers counted from 0."""
    assert weights is not None
    resolved: dict[str, Any] = {
        "layers": networks.layers_from_0(options.layers, _facts_of(weights.path).num_layers),
        "dtype": networks.dtype_on(device, options.dtype),
    }
    if not options.vocabulary:  # of `options_of_model`
        return options.model_copy(update=resolved)
    _, known = _opened(options, weights.path)
    resolved["version"] = known.version
    if options.perturb != "none" and options.shift == "auto":
        is_by_genes = known.version == "V1" and options.pool == ("auto",)
        resolved["shift"] = "genes" if is_by_genes else "pooled"
    if options.pool == ("auto",):
        resolved["pool"] = ("cls" if known.words.has_first else "mean",)
    return options.model_copy(update=resolved)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    from featuremill.workload.arrays import layer_columns

    assert weights is not None
    names = pa.field(GENES, pa.list_(pa.string()))
    if options.perturb != "none":
        shift = SHIFT_TOWARDS if options.states else SHIFT
        if options.gene_shifts:
            with_genes = pa.struct([*shift, COSINES])
            return pa.schema([pa.field(GENE_SHIFTS, pa.list_(with_genes)), names])
        return pa.schema({SHIFTS: pa.list_(shift)})
    width = architectures.facts_of(weights.path).width
    pooled = layer_columns(options.of_encoder, width)
    if not options.gene_vectors:
        return pooled
    number = pa.float16() if options.output_dtype == "float16" else pa.float32()
    vectors = pa.list_(pa.list_(number, width))
    most = {} if options.genes == ALL else {"most_a_row": f"{len(options.genes)}"}
    of_genes = [
        pa.field(f"{GENES}_layer_{layer}", vectors, metadata=most) for layer in options.layers
    ]
    return pa.schema([*pooled, names, *of_genes])


def audited(options: Options, precision: str) -> Options:
    """Return options for the vectors of unperturbed cells, computed in `precision`."""
    of_perturbations = {"perturb", "together", "overexpress_absent", "anchor", "shift", "states"}
    of_genes = {"genes", "gene_shifts", "gene_vectors", "output_dtype"}
    kept = options.model_dump(exclude=of_perturbations | of_genes)
    return Options.model_validate(kept | {"dtype": precision})


def num_vectors(payload: bytes, options: Options) -> int:
    return 1


def weights_ahead(options: Options) -> Weights:
    return encoder.weights_ahead(options.of_encoder)


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    if options.perturb != "none":  # the network computes at most this many tokens at once
        batch_cost = min(batch_cost, networks.batch_cost(options, device))
    return encoder.memory_mb(options.of_encoder, device, weights, batch_cost)


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the network with its weights, after a test of padding."""
    from featuremill.workloads.encoder import loader

    assert weights is not None
    _, known = _opened(options, weights.path)
    network = loader.load(options, devices, weights.path, options.dtype)
    long = np.array([*known.words.first, *known.tokens.values()][: known.most], np.int64)[:LONG]
    loader.check_padding(network, known.words, long[: max(1, len(long) // 2)], long, options.dtype)
    columns, batch_tokens = schema(options, weights), batch_cost(options, devices[0])
    states = genes.states_of(options, architectures.facts_of(weights.path).width)
    return Model(network, known, options, columns, batch_tokens, states, network.backend)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Return groups of cells on the host. With perturbations, a group has rows of one cell and its
    perturbed cells, all of one length and without padding."""
    from featuremill.workloads.encoder import padding

    words, perturb = model.genes.words, model.options.perturb
    batch = Batch([], [cells.cell_of(payload) for payload in payloads], [])

    def row(tokens: cells.Tokens) -> Any:
        return np.concatenate((words.first, tokens, words.last)).astype(np.int64)

    if perturb == "none":
        rows = [row(cell.tokens) for cell in batch.cells]
        return batch._replace(units=[padding.groups(rows, words, batch_cost)])
    for cell in batch.cells:
        perturbed = cells.possible(cell, model.options, model.genes.most)
        rows = [row(tokens) for tokens in _rows(cell, perturbed)]
        # Longer rows come first, but the cell itself must come before its perturbed cells.
        num_before = len(rows) - len(perturbed) if model.options.overexpress_absent else 0
        unit = padding.groups(rows[:num_before], words, model.batch_tokens, 0.0)
        others = padding.groups(rows[num_before:], words, model.batch_tokens, 0.0)
        for group in others:
            unit.append(group._replace(places=[num_before + index for index in group.places]))
        batch.units.append(unit)
        batch.perturbed.append(perturbed)
    return batch


def run(model: Model, batch: Batch) -> Result:
    """Compute a batch. A GPU may still be computing on return."""
    from featuremill.workload import spread
    from featuremill.workloads.encoder import padding

    options = model.options.of_encoder
    values: list[list[list[Tensor]]] = []
    for number, unit in enumerate(batch.units):
        values.append([])
        own: list[Tensor] = []
        for group in unit:
            sent = spread.on_device(group, model.network.device)
            hidden = model.network.hidden_states(sent.tokens_BT, sent.is_token_BT, options.layers)
            values[-1].append(padding.values_of(sent, hidden, options))
            if batch.perturbed:
                cell, perturbed = batch.cells[number], batch.perturbed[number]
                values[-1][-1] += _gene_cosines(model, own, hidden, group.places, cell, perturbed)
            elif model.options.gene_vectors:
                values[-1][-1] += _vectors_of_genes(model, sent, hidden)
    return Result(values, batch)


def collect(model: Model, result: Result) -> pa.RecordBatch:
    if model.options.perturb == "none":
        return _vectors(model, result)
    rows = []
    batch = result.batch
    for cell, perturbed, unit, values in zip(
        batch.cells, batch.perturbed, batch.units, result.values, strict=True
    ):
        shifts = _shifts(model, cell, perturbed, unit, values)
        if model.options.gene_shifts:
            names = [model.genes.names[token] for token in cell.tokens.tolist()]
            rows.append({GENE_SHIFTS: shifts, GENES: names})
        else:
            rows.append({SHIFTS: shifts})
    return pa.RecordBatch.from_pylist(rows, model.columns)


def _vectors(model: Model, result: Result) -> pa.RecordBatch:
    from featuremill.workload.arrays import layer_batch, layer_columns, lists_of_vectors
    from featuremill.workloads.encoder import padding

    (unit,), (values,) = result.batch.units, result.values
    ones = [1] * len(result.batch.cells)
    pooled = layer_columns(model.options.of_encoder, model.network.width)
    of_cells = padding.in_order([each[: len(pooled)] for each in values], unit, ones)
    of_batch = layer_batch(of_cells, ones, pooled)
    if not model.options.gene_vectors:
        return of_batch
    chosen = model.genes.chosen
    genes_of_cells = [
        (cell.tokens if chosen is None else cell.tokens[np.isin(cell.tokens, chosen)]).tolist()
        for cell in result.batch.cells
    ]
    counts = [len(tokens) for tokens in genes_of_cells]
    indices = np.concatenate([group.places for group in unit])
    order = np.argsort(np.repeat(indices, np.take(counts, indices)), kind="stable")
    names = [[model.genes.names[token] for token in tokens] for tokens in genes_of_cells]
    of_genes = [
        lists_of_vectors(np.concatenate([part.cpu().numpy() for part in parts])[order], counts)
        for parts in zip(*(each[len(pooled) :] for each in values), strict=True)
    ]
    arrays = [*of_batch.columns, pa.array(names, pa.list_(pa.string())), *of_genes]
    return pa.RecordBatch.from_arrays(arrays, schema=model.columns)


def _vectors_of_genes(model: Model, group: Group, hidden: Mapping[int, Tensor]) -> list[Tensor]:
    """Return for each layer the vectors of the delivered genes of all cells in a group."""
    import torch

    is_chosen_BT = group.is_own_BT
    if model.genes.chosen is not None:
        chosen = torch.tensor(model.genes.chosen, device=group.tokens_BT.device)
        is_chosen_BT = is_chosen_BT & torch.isin(group.tokens_BT, chosen)
    number = getattr(torch, model.options.output_dtype)
    return [hidden[layer][is_chosen_BT].to(number) for layer in model.options.layers]


def _shifts(
    model: Model,
    cell: cells.Cell,
    perturbed: Sequence[cells.Perturbed],
    unit: Sequence[Group],
    values: Sequence[Sequence[Tensor]],
) -> list[dict[str, Any]]:
    """Return the shifts of a cell, also of impossible perturbations."""
    from featuremill.workloads.encoder import padding

    options = model.options
    names = [
        "+".join(model.genes.names[token] for token in tokens.tolist())
        for tokens in cells.perturbations(cell, options)
    ]
    common = {"kind": options.perturb, "tokens": len(cell.tokens)}
    shifts: list[dict[str, Any]] = [{"gene": name, "cosine": np.nan} | common for name in names]
    towards = {state: np.full(len(names), np.nan) for state in model.states}
    for shift in shifts if options.gene_shifts else ():
        shift[COSINES.name] = []
    if perturbed:
        before = _lengths_before(perturbed)
        rows_before = np.array([before.index(each.num_before) for each in perturbed])
        numbers = [each.number for each in perturbed]
        after = np.arange(len(perturbed)) + len(before)
        vectors_SE, *of_genes = padding.in_order(values, unit, [1] * (len(before) + len(perturbed)))
        if options.shift == "genes":
            cosines = of_genes[0][after]
        else:
            each_SS = [_cosines(vectors_SE, vectors_SE[index]) for index in range(len(before))]
            cosines = np.stack(each_SS)[rows_before, after]
        for each, cosine in zip(perturbed, cosines.tolist(), strict=True):
            shifts[each.number] |= {"cosine": cosine, "tokens": each.num_before}
        if options.gene_shifts:
            for each, row in zip(perturbed, of_genes[-1][after], strict=True):
                shifts[each.number][COSINES.name] = row
        for state, vector_E in model.states.items():
            towards_S = _cosines(vectors_SE, vector_E)
            towards[state][numbers] = towards_S[after] - towards_S[rows_before]
    if not towards:
        return shifts
    return [
        {**shift, "state": state, "shift": float(of_state[index])}
        | ({COSINES.name: []} if options.gene_shifts and number else {})
        for index, shift in enumerate(shifts)
        for number, (state, of_state) in enumerate(towards.items())
    ]


def _cosines(vectors_SE: Matrix, vector_E: Matrix) -> Matrix:
    """Return the cosine of each vector (S, E) with the vector (E,), in float64."""
    wide_SE, wide_E = vectors_SE.astype(np.float64), vector_E.astype(np.float64)
    norms_S = np.sqrt(np.einsum("se,se->s", wide_SE, wide_SE))
    cosines_S: Matrix = wide_SE @ wide_E / (norms_S * np.sqrt(wide_E @ wide_E))
    return cosines_S


def _gene_cosines(
    model: Model,
    own: list[Tensor],
    hidden: Mapping[int, Tensor],
    indices: Sequence[int],
    cell: cells.Cell,
    perturbed: Sequence[cells.Perturbed],
) -> list[Tensor]:
    """Return what the options `shift` and `gene_shifts` need for each cell of a group, in float64:
    the mean (B,) of the cosines between the vectors of a gene in the perturbed and the unperturbed
    cell, and these cosines (B, T). Unperturbed cells and missing genes have NaN.

    `own` collects the vectors of the unperturbed cells, which come first.
    """
    import torch

    wants_means, wants_each = model.options.shift == "genes", model.options.gene_shifts
    if not wants_means and not wants_each:
        return []
    (hidden_BTE,) = hidden.values()
    genes_BTE = hidden_BTE[:, len(model.genes.words.first) :]
    before = _lengths_before(perturbed)
    device = genes_BTE.device
    means_B = torch.full((len(indices),), torch.nan, dtype=torch.float64, device=device)
    each_BT = means_B.unsqueeze(1).repeat(1, len(cell.tokens) * wants_each)
    for row, (index, perturbed_TE) in enumerate(zip(indices, genes_BTE, strict=True)):
        if index < len(before):
            own.append(perturbed_TE)
            continue
        _, tokens, kept_K, num_before = perturbed[index - len(before)]
        kept = torch.from_numpy(kept_K).to(device)
        before_KE = own[before.index(num_before)][kept].double()
        after_KE = perturbed_TE[len(tokens) - len(kept) : len(tokens)].double()
        cosines_K = torch.cosine_similarity(before_KE, after_KE, dim=1)
        means_B[row] = cosines_K.mean()
        if wants_each:
            each_BT[row, kept] = cosines_K
    return [means_B] * wants_means + [each_BT] * wants_each
