"""Divide contigs into windows, and translate the frames of each window that have no stop codon.

There are n = ceil(length / window) windows. Codons with a letter other than A, C, G and T yield no
residue. Windows have equal lengths: the surplus, n * window - length, is distributed over the n - 1
overlaps, with an extra letter in the first overlaps. In those of VirNucPro
(github.com/Li-Jing-1997/VirNucPro), the surplus is divided by n, so that the last window may be
shorter; the nucleotides have one letter more than their codons, and in the reverse complement,
letters other than A, C, G and T are not complemented.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from featuremill.inputs import Record
from featuremill.steps.translate.contigs import BATCH_LETTERS, Cut, Fragment
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
PLAIN_COMPLEMENT = bytes.maketrans(b"ACGT", b"TGCA")


class Chunks(NamedTuple):
    """Windows, in nucleotides: of equal length, or as in VirNucPro."""

    window: int
    is_virnucpro: bool = False
    why_none: str = "a stop codon, or no codon of A, C, G and T alone, in each frame of each chunk"

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, sorted by window, then F1 to F3, R1 to R3; without
        empty fragments, which VirNucPro would list."""
        batch: list[tuple[Record, list[Window]]] = []
        num_letters = 0
        for contig in contigs:
            contig_windows: list[Window] = []
            batch.append((contig, contig_windows))
            for window in windows(len(contig.payload), self.window, self.is_virnucpro):
                contig_windows.append(window)
                num_letters += self.window
                if num_letters >= BATCH_LETTERS:
                    yield from self._translated(batch)
                    contig_windows, num_letters = [], 0
                    batch = [(contig, contig_windows)]
        yield from self._translated(batch)

    def _translated(self, batch: list[tuple[Record, list[Window]]]) -> Iterator[Cut]:
        """Yield the contigs with the fragments of their windows, translated in one batch."""
        strands: list[tuple[bytes, bytes]] = []
        stretches = []
        for contig, contig_windows in batch:
            for _, start, end in contig_windows:
                forward = contig.payload[start:end]
                reverse = reverse_complement(forward)
                if self.is_virnucpro:
                    reverse = forward.translate(PLAIN_COMPLEMENT)[::-1]
                strands.append((forward, reverse))
                for letters in strands[-1]:
                    ends = (len(letters) - (len(letters) - frame) % 3 for frame in range(3))
                    stretches += [letters[frame:end] for frame, end in enumerate(ends)]
        residues = genetic_code(STANDARD).skipping().translated(b"".join(stretches))
        last, left, strand_pairs = 0, iter(stretches), iter(strands)
        for contig, contig_windows in batch:
            fragments = []
            for (number, start, end), strand_pair in zip(
                contig_windows, strand_pairs, strict=False
            ):
                for (strand, frame, name), codons in zip(FRAMES, left, strict=False):
                    first, last = last, last + len(codons) // 3
                    protein = residues[first:last]
                    if b"*" in protein or not (protein := protein.replace(SKIPPED, b"")):
                        continue
                    letters = codons  # also those without a residue
                    if self.is_virnucpro:
                        stop = frame + 3 * len(protein) + 1
                        letters = strand_pair[strand == "-"][frame:stop]
                    low = start + frame if strand == "+" else end - frame - len(letters)
                    id = f"{contig.id}_chunk_{number}{name}"
                    about = (id, low, low + len(letters), strand, frame + 1)
                    fragments.append(Fragment(*about, protein, letters))
            yield contig, fragments


def windows(length: int, window: int, is_virnucpro: bool = False) -> Iterator[Window]:
    """Yield the windows over `length` letters; a single, shorter one if `length` < `window`."""
    num_windows = max(1, -(-length // window))
    surplus = num_windows * window - length
    overlap = surplus // max(1, num_windows - (not is_virnucpro))
    num_longer = surplus - overlap * (num_windows - 1)
    start = 0
    for number in range(1, num_windows + 1):
        yield number, start, min(start + window, length)
        start += window - overlap - (number <= num_longer)
