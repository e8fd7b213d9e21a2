"""Choose the forward passes of a protein, and compute its scores from their log-probabilities.

A pass is one forward pass of the network over a sequence or a window of it: the protein, the
protein with masked residues, or a variant. The language-model head computes only the rows of a pass
that scores need.

The marginals are those of Meier et al. 2021 (doi:10.1101/2021.07.09.450648), as in fair-esm's
`examples/variant-prediction`; the pseudo-log-likelihood is that of Salazar et al. 2020
(doi:10.18653/v1/2020.acl-main.240). The additive masked marginal and its windows are those of
ProteinGym's `baselines/esm/compute_fitness.py` (Notin et al. 2023).

Shape legend: L residues, V variants, S substitutions of all variants, R rows of all passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.workloads.esm2.tokens import MASK, NUM_SPECIAL, tokenize
from featuremill.workloads.scores import edits
from featuremill.workloads.scores.options import Marginal, Options
from featuremill.workloads.scores.variants import (
    AMINO_ACIDS,
    Row,
    parts_of,
    rows_of,
    structure_of,
    substitutions,
)

if TYPE_CHECKING:
    from featuremill.workloads.esm2.tokens import Tokens

Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]


class Pass(NamedTuple):
    """A sequence for a forward pass."""

    tokens: Tokens
    rows: Indices
    """The indices of the tokens whose log-probabilities are needed."""
    structure: bytes = b""
    """The 3Di letters of its residues; b"" if unknown."""


class Work(NamedTuple):
    """The passes of a protein, in order: of the unmasked protein, masked, of mutants, and of each
    mutant with one residue masked."""

    letters: bytes
    options: Options
    listed: list[str]
    """The names of the listed variants; empty if all are scored."""
    bounds: Indices
    """The start of each variant's substitutions in `residues_S`, and the end of the last; a variant
    with insertions or deletions has none."""
    residues_S: Indices
    letters_S: npt.NDArray[np.uint8]
    wildtype: Indices
    """Residues that are scored in the unmasked protein."""
    alone: Indices
    """Residues that are masked alone, sorted; `masked` begins with them."""
    masked: list[tuple[int, ...]]
    """Sets of residues that are masked together."""
    masked_of_V: Indices
    """The index in `masked` of each variant's set."""
    rows: list[Row]
    """The rows of the table with their variants; empty if all variants are scored."""
    structure: bytes = b""
    """The 3Di letters of the residues; b"" if unknown."""
    mutated: Sequence[bytes] = ()
    """The sequence of each variant; empty unless `pseudo` is computed."""
    mutated_structures: Sequence[bytes] = ()
    """The 3Di letters of each sequence in `mutated`."""

    @property
    def names(self) -> list[str]:
        if self.options.variants != "all":
            return self.listed
        old, new = self.letters.decode(), self.letters_S.tobytes().decode()
        residues = self.residues_S.tolist()
        return [f"{old[at]}{at + 1}{letter}" for at, letter in zip(residues, new, strict=True)]

    @property
    def num_variants(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_mutants(self) -> int:
        """The number of substitutions that are scored in mutants."""
        return ("mutant" in self.options.kinds) * len(self.residues_S)


def num_tokens(work: Work) -> int:
    """Return the number of tokens of all passes of a protein, without building these."""
    options, length = work.options, len(work.letters)
    width = options.width(length)
    num_whole = len(np.unique(_nearest_starts(work.wildtype, length, width)))
    if work.num_mutants:
        num_whole += int(np.count_nonzero(np.diff(work.bounds)))
    num_masked = len(work.masked) * options.masked_tokens(length)
    num_pseudo = sum(len(each) * options.masked_tokens(len(each)) for each in work.mutated)
    return num_whole * (width + NUM_SPECIAL) + num_masked + num_pseudo


def work_of(payload: bytes, options: Options) -> Work:
    """Return the work for the protein in `payload`."""
    letters, listed = parts_of(payload)
    seen = letters[: options.seen(len(letters))]
    every = np.arange(len(seen))
    is_all = options.variants == "all"
    names = listed if options.variants == "listed" else []
    changes = [[] if edits.is_indel(name) else substitutions(name) for name in names]
    if is_all:
        residues_S, letters_S = _all(seen)
        bounds = np.arange(len(residues_S) + 1)
    else:
        bounds = np.cumsum([0, *map(len, changes)])
        residues_S = np.array([change.residue for some in changes for change in some], np.int64)
        letters_S = np.array([ord(change.letter) for some in changes for change in some], np.uint8)
    kinds, of_residues = options.kinds, options.of_residues
    wildtype = every if "wildtype" in of_residues else every[:0]
    if "wildtype" in kinds and len(residues_S) and not len(wildtype):
        wildtype = every if is_all else np.unique(residues_S)
    sets = [tuple(change.residue for change in some) for some in changes]
    if "masked" in of_residues or (is_all and {"masked", "masked_additive"} & set(kinds)):
        alone = every
    elif "masked_additive" in kinds:
        alone = np.unique(residues_S)
    elif "masked" in kinds:
        alone = np.unique(np.array([indices[0] for indices in sets if len(indices) == 1], np.int64))
    else:
        alone = every[:0]
    masked: list[tuple[int, ...]] = [(index,) for index in alone.tolist()]
    masked_of_V = residues_S
    if "masked" in kinds and not is_all:
        number_of = {indices: number for number, indices in enumerate(masked)}
        numbers = [number_of.setdefault(each, len(number_of)) if each else 0 for each in sets]
        masked, masked_of_V = list(number_of), np.array(numbers, np.int64)
    structure = structure_of(payload)[: len(seen)]
    work = Work(
        seen,
        options,
        names,
        bounds,
        residues_S,
        letters_S,
        wildtype,
        alone,
        masked,
        masked_of_V,
        rows_of(payload) if options.variants == "listed" else [],
        structure,
    )
    mutants = work.names if "pseudo" in kinds else []
    return work._replace(
        mutated=[edits.mutated(name, seen) for name in mutants],
        mutated_structures=[edits.mutated_structure(name, seen, structure) for name in mutants],
    )


def passes(work: Work) -> Iterator[Pass]:
    """Yield the passes of a protein, in order."""
    length, width = len(work.letters), work.options.width(len(work.letters))
    starts_R = _nearest_starts(work.wildtype, length, width)
    for start in np.unique(starts_R).tolist():
        rows = work.wildtype[starts_R == start] - start + 1
        tokens = tokenize(work.letters, (start, start + width))
        yield Pass(tokens, rows, work.structure[start : start + width])
    for indices in work.masked:
        yield _masked(work.letters, work.structure, indices, work.options)
    if work.num_mutants:
        tokens_S = tokens_of(work.letters_S.tobytes())
        for begin, end in zip(work.bounds, work.bounds[1:], strict=False):
            if begin == end:
                continue
            residues_S = work.residues_S[begin:end]
            start = _start_around(int(residues_S[0]), int(residues_S[-1]), length, width)
            tokens = tokenize(work.letters, (start, start + width))
            rows = residues_S - start + 1
            tokens[rows] = tokens_S[begin:end]
            yield Pass(tokens, rows, work.structure[start : start + width])
    for letters, structure in zip(work.mutated, work.mutated_structures, strict=True):
        for index in range(len(letters)):
            yield _masked(letters, structure, (index,), work.options)


def _masked(letters: bytes, structure: bytes, residues: tuple[int, ...], options: Options) -> Pass:
    """Return the pass with these residues masked, in the window around them."""
    length = len(letters)
    width = options.width(length)
    start = _start_around(residues[0], residues[-1], length, width)
    tokens = tokenize(letters, (start, start + width))
    structure = structure[start : start + width]
    rows = np.array(residues) - start + 1
    tokens[rows] = MASK
    num_tokens = options.masked_tokens(length)
    if num_tokens < len(tokens):  # a window of ProteinGym
        first = min(max(0, int(rows[0]) - num_tokens // 2), len(tokens) - num_tokens)
        end = first + num_tokens
        tokens, rows = tokens[first:end], rows - first
        structure = structure[max(0, first - 1) : end - 1]
    return Pass(tokens, rows, structure)


def num_rows(work: Work) -> int:
    """Return the number of rows that the language-model head computes."""
    num_masked = sum(map(len, work.masked))
    return len(work.wildtype) + num_masked + work.num_mutants + sum(map(len, work.mutated))


def marginal(work: Work, kind: Marginal, rows_R: Numbers) -> Numbers:
    """Return the score of each variant: the log-probabilities of its new residues minus those of
    the old ones. Except for `pseudo`, variants with insertions or deletions have NaN."""
    if kind == "pseudo":
        return _likelihood_ratios(work, rows_R)
    scores_V = np.full(work.num_variants, np.nan, np.float32)
    has_score_V = np.diff(work.bounds) > 0
    if not has_score_V.any():
        return scores_V
    starts = work.bounds[:-1]
    first_mutant = len(work.wildtype) + sum(map(len, work.masked))
    if kind == "wildtype":
        rows_S = np.searchsorted(work.wildtype, work.residues_S)
    elif kind == "masked":
        firsts = np.cumsum([len(work.wildtype), *map(len, work.masked)])
        rank_S = np.arange(len(work.residues_S)) - np.repeat(starts, np.diff(work.bounds))
        rows_S = np.repeat(firsts[work.masked_of_V], np.diff(work.bounds)) + rank_S
    elif kind == "masked_additive":
        rows_S = len(work.wildtype) + np.searchsorted(work.alone, work.residues_S)
    else:
        rows_S = first_mutant + np.arange(len(work.residues_S))
    old_S = tokens_of(work.letters)[work.residues_S]
    new_S = tokens_of(work.letters_S.tobytes())
    differences_S = rows_R[rows_S, new_S].astype(np.float64) - rows_R[rows_S, old_S]
    starts = starts[has_score_V]
    scores_V[has_score_V] = np.add.reduceat(differences_S, starts)
    return scores_V


def _likelihood_ratios(work: Work, rows_R: Numbers) -> Numbers:
    """Return the pseudo-log-likelihood of each variant minus that of the protein."""
    protein = own(work.letters, of_every_residue(work, "masked", rows_R)).sum(dtype=np.float64)
    ends = num_rows(work) - sum(map(len, work.mutated)) + np.cumsum([0, *map(len, work.mutated)])
    ratios = [
        own(letters, rows_R[start:end]).sum(dtype=np.float64) - protein
        for letters, start, end in zip(work.mutated, ends, ends[1:], strict=False)
    ]
    return np.array(ratios, np.float32)


def of_every_residue(work: Work, source: str, rows_R: Numbers) -> Numbers:
    """Return the rows of all residues, `masked` or not (`wildtype`)."""
    start = len(work.wildtype) if source == "masked" else 0
    return rows_R[start : start + len(work.letters)]


def own(letters: bytes, rows_L: Numbers) -> Numbers:
    """Return the log-probability of each residue of `letters`."""
    log_probabilities: Numbers = rows_L[np.arange(len(rows_L)), tokens_of(letters)]
    return log_probabilities


def entropies(rows_L: Numbers) -> Numbers:
    """Return the entropy in nats over the 20 amino acids, normalised, at each residue."""
    of_20 = rows_L[:, tokens_of(AMINO_ACIDS.encode())].astype(np.float64)
    of_20 -= np.log(np.exp(of_20).sum(1, keepdims=True))
    entropies_L: Numbers = -(np.exp(of_20) * of_20).sum(1)
    return entropies_L.astype(np.float32)


def tokens_of(letters: bytes) -> Tokens:
    return tokenize(letters, (0, len(letters)))[1:-1]


def _start_around(first: int, last: int, length: int, width: int) -> int:
    """Return the start of the window whose middle is nearest to these residues."""
    return min(max(0, (first + last + 1 - width) // 2), length - width)


def _nearest_starts(residues: Indices, length: int, width: int) -> Indices:
    """Return for each residue the start of the half-overlapping window nearest to it."""
    starts = np.append(np.arange(0, length - width, max(1, width // 2)), length - width)
    between = (starts[1:] + starts[:-1] + width) / 2
    nearest: Indices = starts[np.searchsorted(between, residues + 0.5)]
    return nearest


def _all(letters: bytes) -> tuple[Indices, npt.NDArray[np.uint8]]:
    """Return the residue indices and new letters of all single substitutions."""
    amino_acids = np.frombuffer(AMINO_ACIDS.encode(), np.uint8)
    old_L = np.frombuffer(letters, np.uint8)
    is_other = (amino_acids != old_L[:, None]) & np.isin(old_L, amino_acids)[:, None]
    residues_V, numbers_V = np.nonzero(is_other)
    return residues_V, amino_acids[numbers_V]
