"""Draw a sample of proteins: some of the longest, the others by hash."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from featuremill.kit.reasons import head_of
from featuremill.workload import Record

LONGEST_SHARE = 10
"""1/LONGEST_SHARE of the sample are the longest proteins, which show errors of positions first."""


class Protein(NamedTuple):
    """A distinct sequence, with the alphabetically first of its ids."""

    id: str
    source: str
    line: int
    payload: bytes
    sha256: bytes

    @property
    def position(self) -> str:
        return f"{self.source}:{self.line}"


class Sample(NamedTuple):
    """The proteins to compute, sorted by sha256, and counts of the input."""

    proteins: list[Protein]
    records: int
    refused: Counter[str]
    """The number of refused records by reason."""
    first_refused: dict[str, str]
    """The position (`path:line`) of the first refused record by reason."""


def draw(records: Iterable[Record], size: int) -> Sample:
    """Read all `records` and return a sample of at most `size` distinct sequences.

    The sample does not depend on the order of the records. Memory holds about 2 * size proteins.
    """
    num_records, refused, first_refused = 0, Counter[str](), dict[str, str]()
    longest, by_hash = _Lowest(min(size, max(1, size // LONGEST_SHARE))), _Lowest(size)
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


class _Lowest:
    """The `size` distinct proteins with the lowest rank."""

    def __init__(self, size: int) -> None:
        self.kept: dict[bytes, Protein] = {}
        self._size = size
        self._heap: list[tuple[tuple[int, ...], bytes]] = []

    def offer(self, rank: tuple[int, ...], protein: Protein) -> None:
        if known := self.kept.get(protein.sha256):
            self.kept[protein.sha256] = min(known, protein)
            return
        # The top of the heap has the lowest negated rank, so it is removed first.
        heapq.heappush(self._heap, (tuple(-number for number in rank), protein.sha256))
        self.kept[protein.sha256] = protein
        if len(self._heap) > self._size:
            del self.kept[heapq.heappop(self._heap)[1]]
