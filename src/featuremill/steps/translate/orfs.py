"""Find open reading frames in six frames, from a start or stop codon to a stop codon.

An open reading frame may extend to an end of the contig: it then begins with the first complete
codon, or ends with the last. The stop codon is excluded. A start codon is translated like any other
codon (GTG is V), as it is unknown whether the protein begins there. A run of `GAP_LETTERS` N has
unknown letters, and divides a contig like its ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.inputs import Record
from featuremill.steps.translate.contigs import BATCH_LETTERS, CONTIG_LETTERS, Cut, Fragment
from featuremill.steps.translate.genetic_code import (
    BETWEEN,
    END,
    STOP,
    GeneticCode,
    codons,
    reverse_complement,
)

STRANDS = "+-"
GAP_LETTERS = 10
"""The least number of consecutive N in a gap, as at NCBI."""
GAP = re.compile(rb"N{%d,}" % GAP_LETTERS)
LONG = BATCH_LETTERS
"""Longer contigs are translated alone, in pieces of a frame."""


class Stretch(NamedTuple):
    """Complete codons of a frame."""

    contig: Record
    fragments: list[Fragment]
    numbers: count[int]
    """Counts the fragments of the contig."""
    strand: str
    start: int
    """The number of letters before it on the contig, in reading direction."""
    is_open: bool
    """Whether it is the first of its frame; otherwise it follows a stop codon."""
    letters: bytes


class Orfs(NamedTuple):
    """Fragments are open reading frames of at least `min_residues`."""

    code: GeneticCode
    min_residues: int
    from_start: bool = True
    """Whether they begin with a start codon, or at the start of the contig."""

    @property
    def why_none(self) -> str:
        """The reason for contigs without fragments."""
        return f"no open reading frame of {self.min_residues} residues"

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, sorted by strand, frame and position."""
        batch: list[Record] = []
        num_letters = 0
        for contig in contigs:
            if len(contig.payload) > LONG:
                yield from self._of_many(batch)
                batch, num_letters = [], 0
                yield from self._of_long(contig)
                continue
            batch.append(contig)
            num_letters += CONTIG_LETTERS + len(contig.payload)
            if num_letters >= BATCH_LETTERS:
                yield from self._of_many(batch)
                batch, num_letters = [], 0
        yield from self._of_many(batch)

    def _of_many(self, contigs: list[Record]) -> Iterator[Cut]:
        stretches, cuts = [], []
        for contig in contigs:
            fragments: list[Fragment] = []
            cuts.append((contig, fragments))
            numbers, size = count(1), len(contig.payload)
            parted = _parted(contig.payload)
            for strand in STRANDS if size >= 3 else "":
                letters = parted if strand == "+" else reverse_complement(parted)
                for frame in range(min(3, size - 2)):
                    whole = letters[frame : size - (size - frame) % 3]
                    about = (contig, fragments, numbers, strand, frame, True, whole)
                    stretches.append(Stretch(*about))
        self._find(stretches)
        yield from cuts

    def _of_long(self, contig: Record) -> Iterator[Cut]:
        """Yield the fragments of a long contig in pieces, which end with stop codons."""
        yield contig, []  # each contig is yielded at least once
        length, numbers, parted = len(contig.payload), count(1), _parted(contig.payload)
        for strand in STRANDS:
            for frame in range(3):
                at, size = frame, 3 * BATCH_LETTERS
                last = length - (length - frame) % 3
                while at < last:
                    end = min(at + size, last)
                    if strand == "+":
                        letters = parted[at:end]
                    else:
                        letters = reverse_complement(parted[length - end : length - at])
                    if end < last:
                        num_codons = self.code.translated(letters).rfind(STOP) + 1
                        if not num_codons:
                            size *= 2
                            continue
                        letters = letters[: 3 * num_codons]
                    fragments: list[Fragment] = []
                    is_open = at == frame
                    stretch = Stretch(contig, fragments, numbers, strand, at, is_open, letters)
                    self._find([stretch])
                    yield contig, fragments
                    at, size = at + len(letters), 3 * BATCH_LETTERS

    def _find(self, stretches: list[Stretch]) -> None:
        joined = BETWEEN.join(stretch.letters for stretch in stretches)
        codon_numbers = codons(joined)
        residues = self.code.residues[codon_numbers]
        sizes = np.array([len(stretch.letters) // 3 for stretch in stretches], np.int64)
        firsts = np.cumsum(sizes + 1) - sizes - 1
        continued = firsts[np.array([not stretch.is_open for stretch in stretches], np.bool_)]
        begins, ends = self._bounds(codon_numbers, residues, continued)
        owners = np.searchsorted(firsts, begins, "right") - 1
        text = residues.tobytes()
        for owner, begin, end in zip(*(a.tolist() for a in (owners, begins, ends)), strict=True):
            stretch = stretches[owner]
            length = len(stretch.contig.payload)
            low = stretch.start + 3 * (begin - int(firsts[owner]))
            high = low + 3 * (end - begin)
            frame = low % 3 + 1
            if stretch.strand == "-":
                low, high = length - high, length - low
            id = f"{stretch.contig.id}_orf_{next(stretch.numbers)}"
            about = (id, low, high, stretch.strand, frame)
            stretch.fragments.append(Fragment(*about, text[begin:end], joined[3 * begin : 3 * end]))

    def _bounds(
        self,
        codon_numbers: npt.NDArray[np.uint16],
        residues: npt.NDArray[np.uint8],
        continued: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the starts and ends of open reading frames among codons.

        `codon_numbers` and `residues` are those of all codons; `continued` has the indices of the
        first codons of stretches that follow a stop codon.
        """
        ends = np.flatnonzero((residues == STOP) | (residues == END))
        ends = np.append(ends, len(residues))
        begins = np.append(0, ends[:-1] + 1)
        is_long = ends - begins >= self.min_residues
        begins, ends = begins[is_long], ends[is_long]
        if self.from_start:
            starts = np.append(np.flatnonzero(self.code.is_start[codon_numbers]), len(residues))
            starts = starts[np.searchsorted(starts, begins)]
            is_after_end = np.append(True, residues[:-1] == END)[begins]
            is_open = is_after_end & ~np.isin(begins, continued)
            begins = np.where(is_open, begins, starts)
            is_long = ends - begins >= self.min_residues
            begins, ends = begins[is_long], ends[is_long]
        return begins, ends


def _parted(letters: bytes) -> bytes:
    """Return `letters` with the letters of gaps replaced, so that their codons are END."""
    if b"N" * GAP_LETTERS not in letters:  # much faster than the regular expression
        return letters
    return GAP.sub(lambda gap: BETWEEN[:1] * len(gap[0]), letters)
