"""Convert cells to tokens, write them with blocks of perturbations to payloads, and perturb them.

Rank-value encoding (Theodoris et al. 2023, doi:10.1038/s41586-023-06139-9) sorts a cell's genes by
x / total · 10⁴ / median, the largest first. Total and 10⁴ are the same for all genes of a cell and
do not change the order, so x / median is compared. A missing gene then changes no bit of the other
values. Genes with equal values are in the order of their tokens.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.inputs.letters import wrong_id
from featuremill.kit.errors import UserError
from featuremill.kit.reasons import Kind
from featuremill.kit.text import counted, one_line
from featuremill.workload import Record
from featuremill.workloads.geneformer import h5ad
from featuremill.workloads.geneformer.genes import TOKEN, Genes
from featuremill.workloads.geneformer.options import Options
from featuremill.workloads.geneformer.perturbations import BETWEEN

log = logging.getLogger("featuremill.geneformer")
BLOCK = 64
"""The largest number of perturbations of a record. If a job is killed, at most these are lost."""
COUNT = struct.Struct("<H")
UNKNOWN = Kind(
    "unknown_genes",
    ("no gene of the cell is known to the model",),
    "Nothing that was counted in the cell has a token and a median. Leave empty cells out.",
)
Tokens = npt.NDArray[np.int64]


class Cell(NamedTuple):
    """A record: a cell, and the genes to perturb in it."""

    perturbed: Tokens
    """(P,) tokens of genes, which the cell may lack. An anchor, which is perturbed together with
    each other gene, is the first."""
    tokens: Tokens
    """(T,) tokens of the cell's genes, the highest rank first."""

    @property
    def payload(self) -> bytes:
        """The number of perturbations, their tokens and the cell's tokens, in two bytes each."""
        both = np.concatenate((self.perturbed, self.tokens))
        return COUNT.pack(len(self.perturbed)) + both.astype(TOKEN).tobytes()


def cell_of(payload: bytes) -> Cell:
    (num_perturbed,) = COUNT.unpack_from(payload)
    tokens = np.frombuffer(payload, TOKEN, offset=COUNT.size).astype(np.int64)
    return Cell(tokens[:num_perturbed], tokens[num_perturbed:])


def records(path: Path, options: Options, genes: Genes) -> Iterator[Record]:
    """Yield the cells of `path`, each once for each block of perturbations."""
    cut = f"more than {genes.most:,} genes, truncated"
    with h5ad.opened(path, options.counts, options.gene_column) as file:
        token_of_column = _tokens_of(path, options, file, genes)
        if repeats := file.num_repeats():
            log.warning(
                "%s: %s the name of an earlier one, and cells of one name are refused; give each "
                "its own (in Python, adata.obs_names_make_unique()), or keep runs in files of "
                "their own and list these in a sheet of samples",
                path,
                counted(repeats, "cell has", "cells have"),
            )
        for block in file.blocks():
            _refuse_no_counts(path, options, file, block)
            for number, (name, tokens) in enumerate(_ranked(block, token_of_column, genes)):
                line = block.first + number + 1
                if reason := wrong_id(name) or ("" if len(tokens) else UNKNOWN.reason()):
                    yield Record(name, "", b"", str(path), line, reason, length=len(tokens))
                    continue
                note = cut if len(tokens) > genes.most else ""
                tokens = tokens[: genes.most]
                for id, perturbed in _blocks(name, tokens, options, genes):
                    payload = Cell(perturbed, tokens).payload
                    yield Record(id, "", payload, str(path), line, "", note, len(tokens))


def _tokens_of(path: Path, options: Options, file: h5ad.Cells, genes: Genes) -> Tokens:
    """Return the token of each gene of a file; -1 for genes without one."""
    mapping = genes.mapping or {}
    token_G = np.array([genes.tokens.get(mapping.get(id, id), -1) for id in file.genes], np.int64)
    known = np.flatnonzero(token_G >= 0)
    if not len(known):
        is_ensembl = any(map(h5ad.ENSEMBL.fullmatch, file.genes))
        problem = f"none of them is in {options.vocabulary}"
        remedy = "give the vocabulary of a model for this organism"
        if not is_ensembl:
            problem = "no Ensembl ids"
            remedy = "set gene_column under options to a column of var that has them"
        example = one_line((file.genes or ["none"])[0])[:40]
        raise UserError(
            f"{path}: {file.column}, such as {example!r}, are taken as the genes' ids, and these "
            f"are {problem}; {remedy}."
        )
    if 10 * len(known) < len(token_G):
        log.warning(
            "%s: the vocabulary has %d of the %d genes, so cells have few tokens; look whether the "
            "vocabulary is of this organism, and whether older ids need gene_mapping",
            path,
            len(known),
            len(token_G),
        )
    if genes.mapping is not None:
        return token_G
    in_order = known[np.argsort(token_G[known], kind="stable")]
    if len(twice := np.flatnonzero(np.diff(token_G[in_order]) == 0)):
        id = one_line(file.genes[in_order[twice[0]]])
        raise UserError(
            f"{path}: two genes are called {id} in it; add them up, drop one, or set "
            "gene_mapping under options."
        )
    return token_G


def _refuse_no_counts(path: Path, options: Options, file: h5ad.Cells, block: h5ad.Block) -> None:
    values = block.values
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0) & (values == np.floor(values))))
    if len(bad):
        index = int(bad[0])
        cell = int(np.searchsorted(block.edges, index, side="right")) - 1
        gene = file.genes[int(block.columns[index])]
        raise UserError(
            f"{path}: {options.counts} holds {values[index]:g} for gene {one_line(gene)} of cell "
            f"{one_line(block.names[cell])}, which is no count; set counts under options to where "
            "the counts are, such as raw or layers/counts."
        )


def _ranked(
    block: h5ad.Block, token_of_column: Tokens, genes: Genes
) -> Iterator[tuple[str, Tokens]]:
    """Yield the name of each cell of a block, and the tokens of its genes by rank."""
    tokens = token_of_column[block.columns]
    is_known = (tokens >= 0) & (block.values > 0)
    edges = np.concatenate(([0], np.cumsum(is_known)))[block.edges]
    tokens, values = tokens[is_known], block.values[is_known]
    for name, start, end in zip(block.names, edges[:-1], edges[1:], strict=True):
        # A gene may have several counts, which are added up: of two ids that are mapped to one, or
        # of duplicates in a sparse matrix.
        own, inverse = np.unique(tokens[start:end], return_inverse=True)
        ranks = np.bincount(inverse, values[start:end]) / genes.medians[own]
        yield name, own[np.lexsort((own, -ranks))]


def _blocks(
    name: str, tokens: Tokens, options: Options, genes: Genes
) -> Iterator[tuple[str, Tokens]]:
    """Yield the id and the genes to perturb of each record of a cell."""
    if options.perturb == "none":
        yield name, np.empty(0, np.int64)
        return
    wanted = tokens if genes.chosen is None else np.array(genes.chosen, np.int64)
    if options.together:
        yield f"{name}{BETWEEN}1", wanted
        return
    anchor = np.array(genes.anchor, np.int64)
    if genes.chosen is None and genes.anchor:
        is_other = tokens != anchor
        wanted = tokens[is_other] if not is_other.all() else tokens[:0]
    for number, start in enumerate(range(0, max(1, len(wanted)), BLOCK), 1):
        block = wanted[start : start + BLOCK]
        yield f"{name}{BETWEEN}{number}", np.concatenate((anchor, block))


class Perturbed(NamedTuple):
    """A cell after a perturbation."""

    number: int
    """The number of the perturbation."""
    tokens: Tokens
    kept: Tokens
    """(K,) indices of the unperturbed genes in the unperturbed cell."""
    num_before: int
    """The number of genes of the unperturbed cell that it is compared with: fewer than all if the
    last ones are cut off, to have space for absent genes."""


def perturbations(cell: Cell, options: Options) -> list[Tokens]:
    if options.together:
        return [cell.perturbed]
    num_anchors = int(options.anchor != "")
    anchor, others = cell.perturbed[:num_anchors], cell.perturbed[num_anchors:]
    return [np.append(anchor, other) for other in others]


def possible(cell: Cell, options: Options, most: int) -> list[Perturbed]:
    """Return the cell, with at most `most` genes, after each possible perturbation. A perturbation
    is possible if its genes are in the cell or may be absent, a deletion leaves a gene, and the
    overexpressed genes are not first already.

    As in Geneformer, the perturbed cell ends after `most` genes. The unperturbed cell loses its
    last genes, as many as would exceed `most` together with the absent genes.
    """
    rank_of: dict[Any, int] = {token: rank for rank, token in enumerate(cell.tokens.tolist())}
    is_overexpressed = options.perturb == "overexpress"
    perturbed_cells = []
    for number, tokens in enumerate(perturbations(cell, options)):
        own = [rank_of[token] for token in tokens.tolist() if token in rank_of]
        num_absent = len(tokens) - len(own)
        kept = np.delete(np.arange(len(cell.tokens)), own)
        front = tokens if is_overexpressed else tokens[:0]
        num_before = min(len(cell.tokens), most - num_absent)
        if num_absent:
            kept = kept[: max(0, most - len(front))]
            is_possible = options.overexpress_absent and len(kept)
        else:
            is_moved = own != list(range(len(own)))
            is_possible = is_moved if is_overexpressed else len(kept)
        if is_possible:
            perturbed = np.concatenate((front, cell.tokens[kept]))
            perturbed_cells.append(Perturbed(number, perturbed, kept, num_before))
    return perturbed_cells
