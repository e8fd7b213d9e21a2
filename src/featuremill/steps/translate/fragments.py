"""The fragments of contigs."""

from __future__ import annotations

from typing import NamedTuple

from featuremill.inputs import Record

BATCH_LETTERS = 2**18
"""The letters of contigs that are translated in one batch, as each NumPy call has a cost."""
CONTIG_LETTERS = 100
"""The cost of a contig's objects, in letters."""


class Fragment(NamedTuple):
    """A range of a contig that is translated to a protein."""

    id: str
    start: int
    """Start of [start, end), 0-based, on the forward strand of the contig."""
    end: int
    strand: str
    """`+`, or `-` for the reverse complement."""
    frame: int
    """1 + the number of letters before the first codon in the window, or modulo 3 in the contig; on
    strand -, they are counted from the other end."""
    protein: bytes
    nucleotides: bytes
    """The nucleotides of the strand, in reading direction."""


Cut = tuple[Record, list[Fragment]]
"""A contig and some of its fragments. Each contig is yielded at least once, in order; contigs with
many fragments are yielded several times in a row."""
