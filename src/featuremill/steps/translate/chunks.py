"""Windows of a contig, each in those of its six frames that have no stop.

There are n = ceil(length / window) windows. A codon with a letter besides A, C, G and T yields no
residue. `Chunks` are all of the same length: their surplus, n * window - length, is shared out over
the n - 1 overlaps, and the first few get one letter more. `VirNucPro` cuts as the program of that
name does (github.com/Li-Jing-1997/VirNucPro), whose overlaps share out the surplus by n, so that
its last window may be shorter, and whose nucleotides have a letter more than their codons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from featuremill.inputs import Record
from featuremill.steps.translate.fragments import BATCH_LETTERS, Cut, Fragment
from featuremill.steps.translate.genetic_code import (
    SKIPPED,
    STANDARD,
    genetic_code,
    reverse_complement,
)

FRAMES = [("+", frame, f"F{frame + 1}") for frame in range(3)]
FRAMES += [("-", frame, f"R{frame + 1}") for frame in range(3)]
"""Strand, letters left out at the beginning, and what ids end with."""
Window = tuple[int, int, int]
"""Number from 1, start and end."""


WHY_NONE = "a stop codon, or no codon of A, C, G and T alone, in each frame of each chunk"


class Chunks(NamedTuple):
    """Windows of so many nucleotides, all of the same length."""

    window: int
    why_none: str = WHY_NONE

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, by chunk and then F1 to F3, R1 to R3."""
        return _cut(contigs, self.window, even_windows, _codons_alone, reverse_complement)


class VirNucPro(NamedTuple):
    """Windows of so many nucleotides, as VirNucPro cuts them."""

    window: int
    why_none: str = WHY_NONE

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, by chunk and then F1 to F3, R1 to R3; without those
        that have no residue, which the program would list."""
        return _cut(contigs, self.window, virnucpro_windows, _with_a_letter_more, _other_strand)


def even_windows(length: int, window: int) -> Iterator[Window]:
    """Yield the windows over `length` letters: one, and a shorter one, where they are fewer."""
    num_windows = max(1, -(-length // window))
    overlap, num_longer = divmod(num_windows * window - length, max(1, num_windows - 1))
    start = 0
    for number in range(1, num_windows + 1):
        yield number, start, min(start + window, length)
        start += window - overlap - (number <= num_longer)


def virnucpro_windows(length: int, window: int) -> Iterator[Window]:
    """Yield VirNucPro's windows over `length` letters.

    Each overlap has floor(surplus / n) letters, and the first of them one more, as many as are then
    still missing in n - 1 overlaps.
    """
    num_windows = max(1, -(-length // window))
    surplus = num_windows * window - length
    overlap = surplus // num_windows
    num_longer = surplus - overlap * (num_windows - 1)
    start = 0
    for number in range(1, num_windows + 1):
        yield number, start, min(start + window, length)
        start += window - overlap - (number <= num_longer)


def _codons_alone(strand: bytes, frame: int, num_residues: int) -> bytes:  # noqa: ARG001
    """Return all whole codons of the frame, also those that yield no residue."""
    return strand[frame : len(strand) - (len(strand) - frame) % 3]


def _with_a_letter_more(strand: bytes, frame: int, num_residues: int) -> bytes:
    """Return as many codons as there are residues, and a letter more where the window has it."""
    return strand[frame : frame + 3 * num_residues + 1]


def _other_strand(letters: bytes) -> bytes:
    """Return the reverse complement, in which letters besides A, C, G and T are what they were."""
    return letters.translate(_PLAIN_COMPLEMENT)[::-1]


_PLAIN_COMPLEMENT = bytes.maketrans(b"ACGT", b"TGCA")


def _cut(
    contigs: Iterable[Record],
    size: int,
    windows: Callable[[int, int], Iterator[Window]],
    nucleotides_of: Callable[[bytes, int, int], bytes],
    other_strand: Callable[[bytes], bytes],
) -> Iterator[Cut]:
    waiting: list[tuple[Record, list[Window]]] = []
    num_letters = 0
    for contig in contigs:
        of_contig: list[Window] = []
        waiting.append((contig, of_contig))
        for window in windows(len(contig.payload), size):
            of_contig.append(window)
            num_letters += size
            if num_letters >= BATCH_LETTERS:
                yield from _translated(waiting, nucleotides_of, other_strand)
                of_contig, num_letters = [], 0
                waiting = [(contig, of_contig)]
    yield from _translated(waiting, nucleotides_of, other_strand)


def _translated(
    waiting: list[tuple[Record, list[Window]]],
    nucleotides_of: Callable[[bytes, int, int], bytes],
    other_strand: Callable[[bytes], bytes],
) -> Iterator[Cut]:
    """Yield the contigs with the fragments of their windows."""
    strands: list[tuple[bytes, bytes]] = []
    stretches = []
    for contig, of_contig in waiting:
        for _, start, end in of_contig:
            forward = contig.payload[start:end]
            strands.append((forward, other_strand(forward)))
            for letters in strands[-1]:
                stretches += [_codons_alone(letters, frame, 0) for frame in range(3)]
    residues = genetic_code(STANDARD).skipping().translated(b"".join(stretches))
    last, left, of_window = 0, iter(stretches), iter(strands)
    for contig, of_contig in waiting:
        fragments = []
        for (number, start, end), both in zip(of_contig, of_window, strict=False):
            for (strand, frame, name), codons in zip(FRAMES, left, strict=False):
                first, last = last, last + len(codons) // 3
                protein = residues[first:last]
                if b"*" in protein or not (protein := protein.replace(SKIPPED, b"")):
                    continue
                nucleotides = nucleotides_of(both[strand == "-"], frame, len(protein))
                low = start + frame if strand == "+" else end - frame - len(nucleotides)
                id = f"{contig.id}_chunk_{number}{name}"
                high = low + len(nucleotides)
                fragments.append(Fragment(id, low, high, strand, frame + 1, protein, nucleotides))
        yield contig, fragments
