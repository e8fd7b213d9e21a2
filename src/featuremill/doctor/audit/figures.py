"""How far features are from their reference: running figures, protein by protein. No torch here.

Shape legend: R residues of one protein, N proteins, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]
NUM_NEIGHBOURS = 10
MIN_PROTEINS_FOR_TEN = 50
"""In a smaller sample the ten nearest are a good part of everything there is."""
BLOCK_ROWS = 256


class Compared(NamedTuple):
    """One protein's vectors beside their reference."""

    row: int
    not_finite: int
    """Values; the figures below are of proteins without any."""
    num_residues: int = 0
    cosine_sum: float = 0.0
    lowest_cosine: float = 1.0
    lowest_residue: int = 0
    """Of which residue that is, from 0."""
    relative_l2: float = 0.0


def compared(row: int, found_RD: Matrix, expected_RD: Matrix) -> Compared:
    """Compare the protein in `row` of the sample."""
    if count := int(found_RD.size - np.isfinite(found_RD).sum()):
        return Compared(row, count)
    cosines = cosines_of_rows(found_RD, expected_RD)
    lowest = int(cosines.argmin())
    told = len(cosines), float(cosines.sum()), float(cosines[lowest]), lowest
    return Compared(row, 0, *told, relative_l2(found_RD, expected_RD))


@dataclass
class Float16Figures:
    """What storing fp32 values per residue as float16 does to them."""

    relative_l2: list[float] = field(default_factory=list)
    overflows: int = 0
    rows: set[int] = field(default_factory=set)
    """Proteins with a value beyond 65,504, the largest of float16."""

    def add(self, row: int, values_RD: Matrix) -> None:
        """Take in a protein."""
        with np.errstate(over="ignore"):
            rounded_RD = values_RD.astype(np.float16).astype(np.float32)
        if lost := int(np.isinf(rounded_RD).sum()):
            self.overflows += lost
            self.rows.add(row)
        else:
            self.relative_l2.append(relative_l2(rounded_RD, values_RD))


class Agreement(NamedTuple):
    """Do proteins have the same neighbours in two sets of vectors?"""

    nearest_same: float
    """Share of proteins whose nearest neighbour is the same."""
    ten_overlap: float | None
    """Mean share of the ten nearest that are the same; None for a small sample."""
    cosine_given_up: float
    """How much farther the new nearest neighbour is, by the reference's cosine, at the worst."""


def cosines_of_rows(found: Matrix, expected: Matrix) -> npt.NDArray[np.float64]:
    """Return the cosine of each row of one matrix with that of the other, summed in fp64."""
    products = _sums(found, expected)
    norms = np.sqrt(_sums(found, found) * _sums(expected, expected))
    same = (found == expected).all(1).astype(np.float64)  # stands in where a vector is zero
    cosines: npt.NDArray[np.float64] = np.divide(products, norms, out=same, where=norms > 0)
    return np.minimum(cosines, 1.0, out=cosines)


def relative_l2(found: Matrix, expected: Matrix) -> float:
    """Return the norm of the difference over the norm of `expected`, of all rows together."""
    difference = found - expected
    distance = float(np.sqrt(_sums(difference, difference).sum()))
    size = float(np.sqrt(_sums(expected, expected).sum()))
    return distance / max(size, float(np.finfo(np.float32).tiny))


def _sums(one: Matrix, other: Matrix) -> npt.NDArray[np.float64]:
    sums: npt.NDArray[np.float64] = np.einsum("rd,rd->r", one, other, dtype=np.float64)
    return sums


def agreement(found_ND: Matrix, expected_ND: Matrix) -> Agreement | None:
    """Compare each protein's neighbours by cosine; None for fewer than two proteins."""
    num_proteins = len(expected_ND)
    if num_proteins < 2:
        return None
    found_ND64, expected_ND64 = _unit(found_ND), _unit(expected_ND)
    same, shared, given_up = 0, 0, 0.0
    for start in range(0, num_proteins, BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, num_proteins))
        found, expected = (_similarities(unit_ND, rows) for unit_ND in (found_ND64, expected_ND64))
        mine, theirs = found.argmax(1), expected.argmax(1)
        same += int((mine == theirs).sum())
        each = np.arange(len(rows))
        given_up = max(given_up, float((expected[each, theirs] - expected[each, mine]).max()))
        if num_proteins >= MIN_PROTEINS_FOR_TEN:
            shared += int((_is_near(found) & _is_near(expected)).sum())
    ten = shared / (NUM_NEIGHBOURS * num_proteins) if num_proteins >= MIN_PROTEINS_FOR_TEN else None
    return Agreement(same / num_proteins, ten, given_up)


def _unit(vectors_ND: Matrix) -> npt.NDArray[np.float64]:
    wide_ND = vectors_ND.astype(np.float64)
    norms = np.linalg.norm(wide_ND, axis=1, keepdims=True)
    wide_ND /= np.where(norms > 0, norms, 1)
    return wide_ND


def _similarities(unit_ND: npt.NDArray[np.float64], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    similarities: npt.NDArray[Any] = unit_ND[rows] @ unit_ND.T
    similarities[np.arange(len(rows)), rows] = -np.inf  # nobody is their own neighbour
    return similarities


def _is_near(similarities: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    nearest = np.argpartition(similarities, -NUM_NEIGHBOURS, axis=1)[:, -NUM_NEIGHBOURS:]
    is_near = np.zeros(similarities.shape, np.bool_)
    np.put_along_axis(is_near, nearest, True, axis=1)
    return is_near
