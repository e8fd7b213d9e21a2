"""Divide contigs into windows, and translate the frames of each window that have no stop codon.

There are n = ceil(length / window) windows. Codons with a letter other than A, C, G and T yield no
residue. `Chunks` have equal lengths: the surplus, n * window - length, is distributed over the
n - 1 overlaps, with an extra letter in the first overlaps. `VirNucPro` has the windows of that
program (github.com/Li-Jing-1997/VirNucPro): the surplus is divided by n, so that the last window
may be shorter, and the nucleotides have one letter more than their codons.
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
"""Strand, number of letters before the first codon, and suffix of the id."""
Window = tuple[int, int, int]
"""Number (from 1), start and end."""
WHY_NONE = "a stop codon, or no codon of A, C, G and T alone, in each frame of each chunk"


class Chunks(NamedTuple):
    """Windows of equal length, in nucleotides."""

    window: int
    why_none: str = WHY_NONE

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, sorted by window, then F1 to F3, R1 to R3."""
        return _cut(contigs, self.window, even_windows, _codons_alone, reverse_complement)


class VirNucPro(NamedTuple):
    """Windows as in VirNucPro, in nucleotides."""

    window: int
    why_none: str = WHY_NONE

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, sorted by window, then F1 to F3, R1 to R3; without
        empty fragments, which VirNucPro would list."""
        return _cut(contigs, self.window, virnucpro_windows, _with_a_letter_more, _other_strand)


def even_windows(length: int, window: int) -> Iterator[Window]:
    """Yield the windows over `length` letters; a single, shorter one if `length` < `window`."""
    num_windows = max(1, -(-length // window))
    overlap, num_longer = divmod(num_windows * window - length, max(1, num_windows - 1))
    start = 0
    for number in range(1, num_windows + 1):
        yield number, start, min(start + window, length)
        start += window - overlap - (number <= num_longer)


def virnucpro_windows(length: int, window: int) -> Iterator[Window]:
    """Yield VirNucPro's windows over `length` letters.

    Each overlap has floor(surplus / n) letters; the remainder of the surplus is distributed over
    the first overlaps.
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
    """Return all complete codons of the frame, also those without a residue."""
    return strand[frame : len(strand) - (len(strand) - frame) % 3]


def _with_a_letter_more(strand: bytes, frame: int, num_residues: int) -> bytes:
    """Return one codon per residue, and one letter more if the window has it."""
    return strand[frame : frame + 3 * num_residues + 1]


def _other_strand(letters: bytes) -> bytes:
    """Return the reverse complement; letters other than A, C, G and T are not complemented."""
    return letters.translate(_PLAIN_COMPLEMENT)[::-1]


_PLAIN_COMPLEMENT = bytes.maketrans(b"ACGT", b"TGCA")


def _cut(
    contigs: Iterable[Record],
    size: int,
    windows: Callable[[int, int], Iterator[Window]],
    nucleotides_of: Callable[[bytes, int, int], bytes],
    other_strand: Callable[[bytes], bytes],
) -> Iterator[Cut]:
    batch: list[tuple[Record, list[Window]]] = []
    num_letters = 0
    for contig in contigs:
        contig_windows: list[Window] = []
        batch.append((contig, contig_windows))
        for window in windows(len(contig.payload), size):
            contig_windows.append(window)
            num_letters += size
            if num_letters >= BATCH_LETTERS:
                yield from _translated(batch, nucleotides_of, other_strand)
                contig_windows, num_letters = [], 0
                batch = [(contig, contig_windows)]
    yield from _translated(batch, nucleotides_of, other_strand)


def _translated(
    batch: list[tuple[Record, list[Window]]],
    nucleotides_of: Callable[[bytes, int, int], bytes],
    other_strand: Callable[[bytes], bytes],
) -> Iterator[Cut]:
    """Yield the contigs with the fragments of their windows, translated in one batch."""
    strands: list[tuple[bytes, bytes]] = []
    stretches = []
    for contig, contig_windows in batch:
        for _, start, end in contig_windows:
            forward = contig.payload[start:end]
            strands.append((forward, other_strand(forward)))
            for letters in strands[-1]:
                stretches += [_codons_alone(letters, frame, 0) for frame in range(3)]
    residues = genetic_code(STANDARD).skipping().translated(b"".join(stretches))
    last, left, strand_pairs = 0, iter(stretches), iter(strands)
    for contig, contig_windows in batch:
        fragments = []
        for (number, start, end), strand_pair in zip(contig_windows, strand_pairs, strict=False):
            for (strand, frame, name), codons in zip(FRAMES, left, strict=False):
                first, last = last, last + len(codons) // 3
                protein = residues[first:last]
                if b"*" in protein or not (protein := protein.replace(SKIPPED, b"")):
                    continue
                nucleotides = nucleotides_of(strand_pair[strand == "-"], frame, len(protein))
                low = start + frame if strand == "+" else end - frame - len(nucleotides)
                id = f"{contig.id}_chunk_{number}{name}"
                high = low + len(nucleotides)
                fragments.append(Fragment(id, low, high, strand, frame + 1, protein, nucleotides))
        yield contig, fragments
