"""What a contig is cut into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from featuremill.inputs import Record

BATCH_LETTERS = 2**18
"""Contigs are translated together until they have so many letters: NumPy pays for each call."""
CONTIG_LETTERS = 100
"""What a contig counts for besides its letters: objects take memory as well."""


class Fragment(NamedTuple):
    """A stretch of a contig that is read as a protein."""

    id: str
    start: int
    """0-based, on the contig's forward strand; `end` is the first place behind it."""
    end: int
    strand: str
    """+ or -, against which it is read from `end` to `start`."""
    frame: int
    """1 + how many letters the reading leaves out before its first codon: of the chunk, or modulo 3
    of the contig; on the strand -, from its other end."""
    protein: bytes
    nucleotides: bytes
    """In reading direction."""


Cut = tuple[Record, list[Fragment]]
"""A contig and fragments of it. Each contig comes at least once, in order, those of many fragments
several times in a row."""


class Way(Protocol):
    """One way to cut contigs into fragments."""

    @property
    def why_none(self) -> str:
        """Why a contig has no fragment."""

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`; one that is refused has none."""
