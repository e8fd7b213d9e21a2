"""Windows of a contig, each in those of its six frames that have no stop: VirNucPro's chunks.

n = ceil(length / window) windows, each as long as the others; what they have too much is shared out
over the n - 1 overlaps, and the first few get one letter more. A codon with a letter besides A, C,
G and T yields no residue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from featuremill.inputs import Record
from featuremill.translate.fragments import BATCH_LETTERS, Cut, Fragment
from featuremill.translate.genetic_code import (
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


class Chunks(NamedTuple):
    """Windows of so many nucleotides."""

    window: int
    why_none: str = "a stop codon in each frame of each chunk"

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, by chunk and then F1 to F3, R1 to R3."""
        waiting: list[tuple[Record, list[Window]]] = []
        num_letters = 0
        for contig in contigs:
            found: list[Window] = []
            waiting.append((contig, found))
            for window in windows(len(contig.payload), self.window):
                found.append(window)
                num_letters += self.window
                if num_letters >= BATCH_LETTERS:
                    yield from _translated(waiting)
                    found, num_letters = [], 0
                    waiting = [(contig, found)]
        yield from _translated(waiting)


def windows(length: int, window: int) -> Iterator[Window]:
    """Yield the windows over `length` letters: one, and a shorter one, where they are fewer."""
    num_windows = max(1, -(-length // window))
    overlap, num_longer = divmod(num_windows * window - length, max(1, num_windows - 1))
    start = 0
    for number in range(1, num_windows + 1):
        yield number, start, min(start + window, length)
        start += window - overlap - (number <= num_longer)


def _translated(waiting: list[tuple[Record, list[Window]]]) -> Iterator[Cut]:
    """Yield the contigs with the fragments of their windows."""
    stretches = []
    for contig, found in waiting:
        for _, start, end in found:
            forward = contig.payload[start:end]
            strands = {"+": forward, "-": reverse_complement(forward)}
            size = end - start
            for strand, frame, _ in FRAMES:
                stretches.append(strands[strand][frame : size - (size - frame) % 3])
    residues = genetic_code(STANDARD).skipping().translated(b"".join(stretches))
    place, left = 0, iter(stretches)
    for contig, found in waiting:
        fragments = []
        for number, start, end in found:
            for (strand, frame, name), nucleotides in zip(FRAMES, left, strict=False):
                begin, place = place, place + len(nucleotides) // 3
                protein = residues[begin:place]
                if b"*" in protein or not (protein := protein.replace(SKIPPED, b"")):
                    continue
                low = start + frame if strand == "+" else end - frame - len(nucleotides)
                id = f"{contig.id}_chunk_{number}{name}"
                high = low + len(nucleotides)
                fragments.append(Fragment(id, low, high, strand, frame + 1, protein, nucleotides))
        yield contig, fragments
