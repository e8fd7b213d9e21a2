"""Which proteins of an input are computed: a few of the longest, the others drawn by hash."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from featuremill.kit.reasons import head_of
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
    def position(self) -> str:
        return f"{self.source}:{self.line}"


class Sample(NamedTuple):
    """The proteins to compute, by sha256, and what else the input holds."""

    proteins: list[Protein]
    records: int
    refused: Counter[str]
    """Records by why."""
    first_refused: dict[str, str]
    """The position (`path:line`) of the first refused record."""


def draw(records: Iterable[Record], size: int) -> Sample:
    """Read all `records` and return a sample of at most `size`; in memory is about twice that.

    Equal sequences count once. The same records in another order give the same sample.
    """
    num_records, refused, first_refused = 0, Counter[str](), dict[str, str]()
    longest, by_hash = _Best(min(size, max(1, size // LONGEST_SHARE))), _Best(size)
    for record in records:
        num_records += 1
        if record.reason:
            head = head_of(record.reason)
            refused[head] += 1
            first_refused.setdefault(head, f"{record.source}:{record.line}")
            continue
        payload = record.payload
        digest = hashlib.sha256(payload).digest()
        protein = Protein(record.id, record.source, record.line, payload, digest)
        number = int.from_bytes(digest)
        longest.offer((-len(payload), number), protein)
        by_hash.offer((number,), protein)
    chosen = dict(longest.kept)
    for digest in sorted(by_hash.kept):
        if len(chosen) < size:
            chosen.setdefault(digest, by_hash.kept[digest])
    proteins = [chosen[digest] for digest in sorted(chosen)]
    return Sample(proteins, num_records, refused, first_refused)


class _Best:
    """The `room` distinct proteins of lowest rank among those that were offered."""

    def __init__(self, room: int) -> None:
        self.kept: dict[bytes, Protein] = {}
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
