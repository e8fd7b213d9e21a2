"""Translate codons to residues in NumPy, with NCBI's genetic codes from Biopython.

Letters are upper-case IUPAC codes (`featuremill.inputs.residues.BASES`). An ambiguous codon with
only one meaning has this meaning (CTN is L, TAR a stop). Other ambiguous codons are X, or B, J or Z
for two residues, as in Biopython. A codon that is both a stop and a residue (all stops of the codes
27, 28 and 31) is the residue.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.inputs.residues import BASES
from featuremill.kit.errors import UserError
from featuremill.kit.text import listed

STANDARD = 1
STOP, END = ord("*"), ord("\n")
"""The residue characters of a stop codon, and of the separator BETWEEN."""
SKIPPED = b"-"
"""The residue character of ambiguous codons in a code from `skipping`."""
BETWEEN = b"\n\n\n"
"""The separator of sequences that are translated in one call; its residue is END."""
COMPLEMENT = bytes.maketrans(b"ACGTRYSWKMBDHVN", b"TGCAYRSWMKVHDBN")
_NUMBERS = bytes.maketrans(BASES + b"\n", bytes(range(len(BASES) + 1)))
_NUM_PLAIN = 4
"""A, C, G and T are the first letters of BASES."""


class GeneticCode(NamedTuple):
    """The residue of each codon; a codon's number has its letters as digits, base 16."""

    number: int
    residues: npt.NDArray[np.uint8]
    """ASCII codes of residues, shape (4096,)."""
    is_start: npt.NDArray[np.bool_]
    """Whether a codon of A, C, G and T can start a protein, shape (4096,)."""
    ambiguous_stops: tuple[str, ...]
    """Codons that are both a stop and a residue; they are translated to the residue."""

    def translated(self, letters: bytes) -> bytes:
        """Return the residue of each codon; the length of `letters` must be a multiple of 3."""
        return self.residues[codons(letters)].tobytes()

    def skipping(self) -> GeneticCode:
        """Return a code in which codons with a letter other than A, C, G and T are SKIPPED."""
        residues = self.residues.copy().reshape(16, 16, 16)
        plain = residues[:_NUM_PLAIN, :_NUM_PLAIN, :_NUM_PLAIN].copy()
        residues[residues != END] = ord(SKIPPED)
        residues[:_NUM_PLAIN, :_NUM_PLAIN, :_NUM_PLAIN] = plain
        return self._replace(residues=residues.reshape(-1))


def codons(letters: bytes) -> npt.NDArray[np.uint16]:
    """Return the number of each codon of `letters`."""
    numbers = np.frombuffer(letters.translate(_NUMBERS), np.uint8)
    codon_numbers = numbers[0::3].astype(np.uint16)
    for following in (numbers[1::3], numbers[2::3]):
        codon_numbers <<= 4
        codon_numbers |= following
    return codon_numbers


def reverse_complement(letters: bytes) -> bytes:
    """Return the reverse complement of `letters`."""
    return letters.translate(COMPLEMENT)[::-1]


@functools.cache
def genetic_code(number: int) -> GeneticCode:
    """Return NCBI's genetic code with this number.

    Raises:
        UserError: there is no such code.
    """
    from Bio.Data.CodonTable import unambiguous_dna_by_id
    from Bio.Seq import translate

    if number not in unambiguous_dna_by_id:
        known = listed(map(str, unambiguous_dna_by_id))
        raise UserError(
            f"--code {number}: NCBI has no such genetic code; its codes are {known} (1 is the "
            "standard code, 11 that of bacteria, archaea and their viruses)."
        )
    table = unambiguous_dna_by_id[number]
    letters = BASES.decode()
    every = "".join(itertools.chain.from_iterable(itertools.product(letters, repeat=3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about codons that are both stops and residues
        every_residue = np.frombuffer(translate(every, table=number).encode(), np.uint8)
    residues = np.full((16, 16, 16), END, np.uint8)
    residues[:15, :15, :15] = every_residue.reshape(15, 15, 15)
    is_start = np.zeros(4096, np.bool_)
    is_start[codons("".join(table.start_codons).encode())] = True
    both = tuple(codon for codon in table.stop_codons if codon in table.forward_table)
    return GeneticCode(number, residues.reshape(-1), is_start, both)
