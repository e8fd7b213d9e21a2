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
from functools import cache
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

Places = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]


class Pass(NamedTuple):
    """A sequence for a forward pass."""

    tokens: Tokens
    rows: Places
    """The indices of the tokens whose log-probabilities are needed."""
    structure: bytes = b""
    """The 3Di letters of its residues; b"" if unknown."""


class Work(NamedTuple):
    """The passes of a protein, in order: of the unmasked protein, masked, of mutants, and of each
    mutant with one residue masked."""

    letters: bytes
    """The residues that are computed."""
    options: Options
    names: list[str]
    """The names of the variants."""
    bounds: Places
    """The start of each variant's substitutions in `places_S`, and the end of the last; a variant
    with insertions or deletions has none."""
    places_S: Places
    letters_S: npt.NDArray[np.uint8]
    wildtype: Places
    """Residues that are scored in the unmasked protein."""
    alone: Places
    """Residues that are masked alone, sorted; `masked` begins with them."""
    masked: list[tuple[int, ...]]
    """Sets of residues that are masked together."""
    masked_of_V: Places
    """The index in `masked` of each variant's set."""
    mutated: list[bytes]
    """The sequence of each variant; empty unless `pseudo` is computed."""
    rows: list[Row]
    """The rows of the table with their variants; empty if all variants are scored."""
    structure: bytes = b""
    """The 3Di letters of the residues; b"" if unknown."""
    mutated_structures: Sequence[bytes] = ()
    """The 3Di letters of each sequence in `mutated`."""

    @property
    def num_mutants(self) -> int:
        """The number of substitutions that are scored in mutants."""
        return ("mutant" in self.options.kinds) * len(self.places_S)


class Count(NamedTuple):
    """The numbers of passes and tokens of a protein."""

    passes: int
    tokens: int


def count(payload: bytes, options: Options) -> Count:
    """Count the passes and tokens of a protein without building them."""
    letters, listed = parts_of(payload)
    seen = letters[: options.seen(len(letters))]
    length, kinds, of_residues = len(seen), options.kinds, options.of_residues
    is_all = options.variants == "all"
    if is_all:
        num_variants = (len(AMINO_ACIDS) - 1) * sum(map(seen.count, AMINO_ACIDS.encode()))
    listed = listed if options.variants == "listed" else []
    substituted = [_places(variant) for variant in listed if not edits.is_indel(variant)]
    if not is_all:
        num_variants = len(substituted)
    together = set(substituted) if "masked" in kinds else set()
    alone = {index for indices in together if len(indices) == 1 for index in indices}
    if "masked_additive" in kinds:
        alone |= {index for indices in substituted for index in indices}
    num_alone = length if _masks_all(options) else len(alone)
    num_whole = num_variants * ("mutant" in kinds)
    num_whole += sum(len(indices) > 1 for indices in together)
    if "wildtype" in of_residues or ("wildtype" in kinds and num_variants > 0):
        every = "wildtype" in of_residues or is_all
        num_whole += _num_windows(length, options, None if every else substituted)
    sizes = [(num_whole, options.width(length) + NUM_SPECIAL)]
    sizes.append((num_alone, options.masked_tokens(length)))
    if "pseudo" in kinds:
        mutated = [seen] * num_variants if is_all else _mutated(listed, seen)
        sizes += [(len(each), options.masked_tokens(len(each))) for each in mutated]
    return Count(sum(number for number, _ in sizes), sum(number * size for number, size in sizes))


def _masks_all(options: Options) -> bool:
    """Return whether all residues are masked alone, independent of the variants."""
    of_all = options.variants == "all" and {"masked", "masked_additive"} & set(options.kinds)
    return bool("masked" in options.of_residues or of_all)


def _mutated(variants: Sequence[str], letters: bytes) -> list[bytes]:
    return [edits.mutated(variant, letters) for variant in variants]


def work_of(payload: bytes, options: Options) -> Work:
    """Return the work for the protein in `payload`."""
    letters, listed = parts_of(payload)
    seen = letters[: options.seen(len(letters))]
    every = np.arange(len(seen))
    is_all = options.variants == "all"
    if is_all:
        names, places_S, letters_S = _all(seen)
        bounds = np.arange(len(names) + 1)
    else:
        names = listed if options.variants == "listed" else []
        each = [[] if edits.is_indel(name) else substitutions(name) for name in names]
        bounds = np.cumsum([0, *map(len, each)])
        places_S = np.array([change.residue for some in each for change in some], np.int64)
        letters_S = np.array([ord(change.letter) for some in each for change in some], np.uint8)
    kinds, of_residues = options.kinds, options.of_residues
    wildtype = every if "wildtype" in of_residues else every[:0]
    if "wildtype" in kinds and len(places_S) and not len(wildtype):
        wildtype = every if is_all else np.unique(places_S)
    sets = [()] * len(names) if is_all else [_places(name) for name in names]
    alone = every if _masks_all(options) else every[:0]
    if not len(alone) and "masked_additive" in kinds:
        alone = np.unique(places_S)
    elif not len(alone) and "masked" in kinds:
        alone = np.unique(np.array([indices[0] for indices in sets if len(indices) == 1], np.int64))
    masked: list[tuple[int, ...]] = [(index,) for index in alone.tolist()]
    masked_of_V = places_S
    if "masked" in kinds and not is_all:
        number_of = {indices: number for number, indices in enumerate(masked)}
        numbers = [number_of.setdefault(each, len(number_of)) if each else 0 for each in sets]
        masked, masked_of_V = list(number_of), np.array(numbers, np.int64)
    structure = structure_of(payload)[: len(seen)]
    mutants = names if "pseudo" in kinds else []
    return Work(
        seen,
        options,
        names,
        bounds,
        places_S,
        letters_S,
        wildtype,
        alone,
        masked,
        masked_of_V,
        _mutated(mutants, seen),
        rows_of(payload) if options.variants == "listed" else [],
        structure,
        [edits.mutated_structure(name, seen, structure) for name in mutants],
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
            places_S = work.places_S[begin:end]
            start = _start_around(int(places_S[0]), int(places_S[-1]), length, width)
            tokens = tokenize(work.letters, (start, start + width))
            rows = places_S - start + 1
            tokens[rows] = tokens_S[begin:end]
            yield Pass(tokens, rows, work.structure[start : start + width])
    for letters, structure in zip(work.mutated, work.mutated_structures, strict=True):
        for index in range(len(letters)):
            yield _masked(letters, structure, (index,), work.options)


def _masked(letters: bytes, structure: bytes, places: tuple[int, ...], options: Options) -> Pass:
    """Return the pass with these residues masked, in the window around them."""
    length = len(letters)
    width = options.width(length)
    start = _start_around(places[0], places[-1], length, width)
    tokens = tokenize(letters, (start, start + width))
    structure = structure[start : start + width]
    rows = np.array(places) - start + 1
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
    scores_V = np.full(len(work.names), np.nan, np.float32)
    has_score_V = np.diff(work.bounds) > 0
    if not has_score_V.any():
        return scores_V
    starts = work.bounds[:-1]
    first_mutant = len(work.wildtype) + sum(map(len, work.masked))
    if kind == "wildtype":
        rows_S = np.searchsorted(work.wildtype, work.places_S)
    elif kind == "masked":
        firsts = np.cumsum([len(work.wildtype), *map(len, work.masked)])
        rank_S = np.arange(len(work.places_S)) - np.repeat(starts, np.diff(work.bounds))
        rows_S = np.repeat(firsts[work.masked_of_V], np.diff(work.bounds)) + rank_S
    elif kind == "masked_additive":
        rows_S = len(work.wildtype) + np.searchsorted(work.alone, work.places_S)
    else:
        rows_S = first_mutant + np.arange(len(work.places_S))
    old_S = tokens_of(work.letters)[work.places_S]
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
    """Return the token of each letter."""
    return tokenize(letters, (0, len(letters)))[1:-1]


def _start_around(first: int, last: int, length: int, width: int) -> int:
    """Return the start of the window whose middle is nearest to these residues."""
    return min(max(0, (first + last + 1 - width) // 2), length - width)


def _nearest_starts(places: Places, length: int, width: int) -> Places:
    """Return for each residue the start of the half-overlapping window nearest to it."""
    starts = np.append(np.arange(0, length - width, max(1, width // 2)), length - width)
    between = (starts[1:] + starts[:-1] + width) / 2
    nearest: Places = starts[np.searchsorted(between, places + 0.5)]
    return nearest


def _num_windows(length: int, options: Options, sets: Sequence[tuple[int, ...]] | None) -> int:
    """Return the number of windows that contain residues of `sets`; None means all residues."""
    width = options.width(length)
    if width == length:
        return 1
    every = range(length) if sets is None else (index for indices in sets for index in indices)
    return len(np.unique(_nearest_starts(np.fromiter(every, np.int64), length, width)))


def _places(variant: str) -> tuple[int, ...]:
    """Return the indices of the substituted residues; () with insertions or deletions."""
    if edits.is_indel(variant):
        return ()
    return tuple(change.residue for change in substitutions(variant))


@cache
def _amino_acids() -> npt.NDArray[np.uint8]:
    return np.frombuffer(AMINO_ACIDS.encode(), np.uint8)


def _all(letters: bytes) -> tuple[list[str], Places, npt.NDArray[np.uint8]]:
    """Return the names, residue indices and new letters of all single substitutions."""
    old_L = np.frombuffer(letters, np.uint8)
    is_other = _amino_acids()[None] != old_L[:, None]
    is_other[~np.isin(old_L, _amino_acids())] = False
    places_V, numbers_V = np.nonzero(is_other)
    old = letters.decode()
    names = [
        f"{old[index]}{index + 1}{AMINO_ACIDS[number]}"
        for index, number in zip(places_V.tolist(), numbers_V.tolist(), strict=True)
    ]
    return names, places_V, _amino_acids()[numbers_V]
