"""Which proteins of an input are computed: a few of the longest, the others drawn by hash."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from featuremill.base.reasons import head_of
from featuremill.workload import Record

LONGEST_SHARE = 10
"""One protein in so many is taken for its length: errors of position show in long ones first."""


class Protein(NamedTuple):
    """One distinct sequence, under the first of its ids in alphabetical order."""

    id: str
    source: str
    line: int
    payload: bytes
    sha256: bytes

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"


@dataclass
class Sample:
    """The proteins to compute, and what was seen on the way to them."""

    proteins: list[Protein] = field(default_factory=list)
    """Distinct ones, by sha256, so their order says nothing about that of the input."""
    num_longest: int = 0
    """How many of them were taken for their length."""
    is_everything: bool = False
    """Whether the input has no other proteins than these."""
    num_records: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Why records were refused: the reason up to its first colon."""
    first_refused: dict[str, str] = field(default_factory=dict)
    """Where the first record stands that was refused for each reason."""
    notes: Counter[str] = field(default_factory=Counter)


def draw(records: Iterable[Record], size: int) -> Sample:
    """Read all `records` and return a sample of at most `size`, in memory for about twice that.

    Equal sequences count once. The same records in another order give the same sample.
    """
    sample = Sample()
    num_longest = min(size, max(1, size // LONGEST_SHARE))
    longest, by_hash = _Best(num_longest), _Best(size)
    for record in records:
        sample.num_records += 1
        if record.reason:
            reason = head_of(record.reason)
            sample.refused[reason] += 1
            sample.first_refused.setdefault(reason, f"{record.source}:{record.line}")
            continue
        sample.notes.update(record.note.split("; ") if record.note else ())
        digest = hashlib.sha256(record.payload).digest()
        protein = Protein(record.id, record.source, record.line, record.payload, digest)
        number = int.from_bytes(digest)
        longest.offer((-len(protein.payload), number), protein)
        by_hash.offer((number,), protein)
    chosen = dict(longest.kept)
    for digest in sorted(by_hash.kept):
        if len(chosen) < size:
            chosen.setdefault(digest, by_hash.kept[digest])
    sample.proteins = [chosen[digest] for digest in sorted(chosen)]
    sample.num_longest = len(longest.kept)
    sample.is_everything = not by_hash.is_choosy
    return sample


class _Best:
    """The `room` distinct proteins of lowest rank among those that were offered."""

    def __init__(self, room: int) -> None:
        self.kept: dict[bytes, Protein] = {}
        self.is_choosy = False
        """Whether a protein had to be left out."""
        self._room = room
        self._heap: list[tuple[tuple[int, ...], bytes]] = []

    def offer(self, rank: tuple[int, ...], protein: Protein) -> None:
        if known := self.kept.get(protein.sha256):
            self.kept[protein.sha256] = min(known, protein)
            return
        # The heap's top is the lowest entry: of negated ranks, that is what has to go first.
        heapq.heappush(self._heap, (tuple(-number for number in rank), protein.sha256))
        self.kept[protein.sha256] = protein
        if len(self._heap) > self._room:
            del self.kept[heapq.heappop(self._heap)[1]]
            self.is_choosy = True
