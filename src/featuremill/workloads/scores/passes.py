"""What is computed of a protein, and its scores from the log-probabilities that come out.

A pass is the network's look at one sequence: the protein as it is, with places masked, or a variant
of it; or at a window of such a sequence. Of each pass, only the places that scores ask for go
through the language-model head.

The marginals are those of Meier et al. 2021 (doi:10.1101/2021.07.09.450648), as in fair-esm's
`examples/variant-prediction`; the pseudo-log-likelihood is that of Salazar et al. 2020
(doi:10.18653/v1/2020.acl-main.240).

Shape legend: L residues, V variants, S substitutions of all variants, R rows of all passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.workloads.esm2.tokens import MASK, Tokens, tokenize
from featuremill.workloads.scores.options import Marginal, Options
from featuremill.workloads.scores.variants import (
    AMINO_ACIDS,
    Row,
    parts_of,
    rows_of,
    structure_of,
    substitutions,
)

Places = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]


class Pass(NamedTuple):
    """One sequence for the network."""

    tokens: Tokens
    rows: Places
    """The tokens whose log-probabilities are wanted."""
    structure: bytes = b""
    """The 3Di letters of its residues; b"" where none is known."""


class Work(NamedTuple):
    """What is computed of a protein: passes of it as it is, the masked ones, then the mutants."""

    letters: bytes
    """The residues that the network sees."""
    width: int
    """Residues of a pass."""
    names: list[str]
    """Of the variants."""
    bounds: Places
    """Where each variant's substitutions begin, and where the last one's end."""
    places_S: Places
    letters_S: npt.NDArray[np.uint8]
    wildtype: Places
    """Places that are read off the protein as it is."""
    masked: list[tuple[int, ...]]
    """Places that are masked together."""
    masked_of_V: Places
    """Which of `masked` is each variant's."""
    has_mutants: bool
    rows: list[Row]
    """Of the table, each with its variant; none where all are scored."""
    structure: bytes = b""
    """The 3Di letters of the residues; b"" where none is known."""


def num_passes(payload: bytes, options: Options) -> int:
    """Return how many passes there are, without making them."""
    letters, listed = parts_of(payload)
    seen = letters[: options.seen(len(letters))]
    kinds, of_residues = options.kinds, options.of_residues
    if options.variants == "all":
        num_variants = (len(AMINO_ACIDS) - 1) * sum(map(seen.count, AMINO_ACIDS.encode()))
        sets: set[tuple[int, ...]] = set()
    else:
        listed = listed if options.variants == "listed" else []
        num_variants = len(listed)
        sets = {_places(variant) for variant in listed} if "masked" in kinds else set()
    num = 0
    if "wildtype" in of_residues or ("wildtype" in kinds and num_variants > 0):
        every = "wildtype" in of_residues or options.variants == "all"
        num = _num_windows(len(seen), options, None if every else listed)
    if "masked" in of_residues or ("masked" in kinds and options.variants == "all"):
        num += len(seen) + sum(len(places) > 1 for places in sets)
    else:
        num += len(sets)
    return num + num_variants * ("mutant" in kinds)


def work_of(payload: bytes, options: Options) -> Work:
    """Return what is computed of the protein in `payload`."""
    letters, listed = parts_of(payload)
    seen = letters[: options.seen(len(letters))]
    every = np.arange(len(seen))
    if options.variants == "all":
        names, places_S, letters_S = _all(seen)
        bounds = np.arange(len(names) + 1)
    else:
        names = listed if options.variants == "listed" else []
        each = [substitutions(name) for name in names]
        bounds = np.cumsum([0, *map(len, each)])
        places_S = np.array([one.place for some in each for one in some], np.int64)
        letters_S = np.array([ord(one.letter) for some in each for one in some], np.uint8)
    kinds, of_residues = options.kinds, options.of_residues
    wildtype = every if "wildtype" in of_residues else every[:0]
    is_all = options.variants == "all"
    if "wildtype" in kinds and names and not len(wildtype):
        wildtype = every if is_all else np.unique(places_S)
    masked: list[tuple[int, ...]] = []
    if "masked" in of_residues or ("masked" in kinds and is_all):
        masked = [(place,) for place in every.tolist()]
    masked_of_V = places_S
    if "masked" in kinds and not is_all:
        number_of = {places: number for number, places in enumerate(masked)}
        found = [number_of.setdefault(_places(name), len(number_of)) for name in names]
        masked, masked_of_V = list(number_of), np.array(found, np.int64)
    has_mutants = "mutant" in kinds
    return Work(
        seen,
        options.width(len(seen)),
        names,
        bounds,
        places_S,
        letters_S,
        wildtype,
        masked,
        masked_of_V,
        has_mutants,
        rows_of(payload) if options.variants == "listed" else [],
        structure_of(payload)[: len(seen)],
    )


def passes(work: Work) -> Iterator[Pass]:
    """Yield the passes of a protein, in order."""
    length, width = len(work.letters), work.width
    starts_R = _nearest_starts(work.wildtype, length, width)
    for start in np.unique(starts_R).tolist():
        rows = work.wildtype[starts_R == start] - start + 1
        tokens = tokenize(work.letters, (start, start + width))
        yield Pass(tokens, rows, work.structure[start : start + width])
    for places in work.masked:
        start = _start_around(places[0], places[-1], length, width)
        tokens = tokenize(work.letters, (start, start + width))
        rows = np.array(places) - start + 1
        tokens[rows] = MASK
        yield Pass(tokens, rows, work.structure[start : start + width])
    if work.has_mutants:
        tokens_S = tokens_of(work.letters_S.tobytes())
        for begin, end in zip(work.bounds, work.bounds[1:], strict=False):
            places_S = work.places_S[begin:end]
            start = _start_around(int(places_S[0]), int(places_S[-1]), length, width)
            tokens = tokenize(work.letters, (start, start + width))
            rows = places_S - start + 1
            tokens[rows] = tokens_S[begin:end]
            yield Pass(tokens, rows, work.structure[start : start + width])


def num_rows(work: Work) -> int:
    """Return how many log-probabilities of 33 tokens come out."""
    num_masked = sum(map(len, work.masked))
    return len(work.wildtype) + num_masked + work.has_mutants * len(work.places_S)


def marginal(work: Work, kind: Marginal, found_R: Numbers) -> Numbers:
    """Return the score of each variant: what its new residues have, less what the old ones have."""
    if not work.names:
        return np.empty(0, np.float32)
    starts = work.bounds[:-1]
    if kind == "wildtype":
        rows_S = np.searchsorted(work.wildtype, work.places_S)
    elif kind == "masked":
        firsts = np.cumsum([len(work.wildtype), *map(len, work.masked)])
        rank_S = np.arange(len(work.places_S)) - np.repeat(starts, np.diff(work.bounds))
        rows_S = np.repeat(firsts[work.masked_of_V], np.diff(work.bounds)) + rank_S
    else:
        rows_S = num_rows(work) - len(work.places_S) + np.arange(len(work.places_S))
    old_S = tokens_of(work.letters)[work.places_S]
    new_S = tokens_of(work.letters_S.tobytes())
    differences_S = found_R[rows_S, new_S].astype(np.float64) - found_R[rows_S, old_S]
    return np.add.reduceat(differences_S, starts).astype(np.float32)


def of_every_residue(work: Work, source: str, found_R: Numbers) -> Numbers:
    """Return the rows of all residues, of the protein as it is or of each residue masked."""
    start = len(work.wildtype) if source == "masked" else 0
    return found_R[start : start + len(work.letters)]


def own(work: Work, found_L: Numbers) -> Numbers:
    """Return the log-probability of each residue itself."""
    log_probabilities: Numbers = found_L[np.arange(len(found_L)), tokens_of(work.letters)]
    return log_probabilities


def entropies(found_L: Numbers) -> Numbers:
    """Return the entropy of the 20 amino acids at each residue, in nats; together they count as
    1."""
    of_20 = found_L[:, tokens_of(AMINO_ACIDS.encode())].astype(np.float64)
    of_20 -= np.log(np.exp(of_20).sum(1, keepdims=True))
    entropies_L: Numbers = -(np.exp(of_20) * of_20).sum(1)
    return entropies_L.astype(np.float32)


def tokens_of(letters: bytes) -> Tokens:
    """Return the token of each letter."""
    return tokenize(letters, (0, len(letters)))[1:-1]


def _start_around(first: int, last: int, length: int, width: int) -> int:
    """Return where the window begins that has these places in its middle, or is as near to that as
    the ends of the protein allow."""
    return min(max(0, (first + last + 1 - width) // 2), length - width)


def _nearest_starts(places: Places, length: int, width: int) -> Places:
    """Return for each place where the window begins whose middle is nearest, of windows that
    overlap by half."""
    starts = np.append(np.arange(0, length - width, max(1, width // 2)), length - width)
    between = (starts[1:] + starts[:-1] + width) / 2
    nearest: Places = starts[np.searchsorted(between, places + 0.5)]
    return nearest


def _num_windows(length: int, options: Options, listed: Sequence[str] | None) -> int:
    """Return how many windows the residues of `listed` variants are read in; of all where None."""
    width = options.width(length)
    if width == length:
        return 1
    every = (
        range(length) if listed is None else (place for name in listed for place in _places(name))
    )
    return len(np.unique(_nearest_starts(np.fromiter(every, np.int64), length, width)))


def _places(variant: str) -> tuple[int, ...]:
    return tuple(one.place for one in substitutions(variant))


@cache
def _amino_acids() -> npt.NDArray[np.uint8]:
    return np.frombuffer(AMINO_ACIDS.encode(), np.uint8)


def _all(letters: bytes) -> tuple[list[str], Places, npt.NDArray[np.uint8]]:
    """Return all substitutions of one residue: their names, places and new letters."""
    old_L = np.frombuffer(letters, np.uint8)
    is_other = _amino_acids()[None] != old_L[:, None]
    is_other[~np.isin(old_L, _amino_acids())] = False
    places_V, numbers_V = np.nonzero(is_other)
    old = letters.decode()
    names = [
        f"{old[place]}{place + 1}{AMINO_ACIDS[number]}"
        for place, number in zip(places_V.tolist(), numbers_V.tolist(), strict=True)
    ]
    return names, places_V, _amino_acids()[numbers_V]
