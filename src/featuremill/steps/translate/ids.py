"""Ids of contigs: all different, and whole in a FASTA header."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from featuremill.inputs import Record
from featuremill.kit.errors import UserError
from featuremill.steps.translate.contigs import contigs_in


class Ids:
    """Remembers 24 bytes of each id and of where it stands."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._lines = array("q")
        self._files: dict[str, int] = {}
        """Each file, and how many ids stood before it."""

    def checked(self, contigs: Iterable[Record]) -> Iterator[Record]:
        """Yield `contigs`.

        Raises:
            UserError: for an id that two contigs have, at the latest when twice as many were read,
                and for one with white space in it.
        """
        for contig in contigs:
            if contig.id:
                self._add(contig)
                if len(self._lines).bit_count() == 1:  # a power of two
                    self.refuse_repeats()
            yield contig
        self.refuse_repeats()

    def _add(self, contig: Record) -> None:
        if len(contig.id.split()) > 1:
            raise UserError(
                f"{contig.source}:{contig.line}: there is white space in the id "
                f"{contig.id[:60]!r}, and in FASTA an id ends there; give it one without."
            )
        self._files.setdefault(contig.source, len(self._lines))
        self._digests += xxhash.xxh3_128_digest(contig.id.encode())
        self._lines.append(contig.line)

    def refuse_repeats(self) -> None:
        """Raise UserError for the first contig that has the id of an earlier one."""
        halves = np.frombuffer(bytes(self._digests), "<u8").reshape(-1, 2)
        order = np.argsort(halves[:, 0], kind="stable")
        same = np.flatnonzero((halves[order[1:]] == halves[order[:-1]]).all(axis=1))
        if not len(same):
            return
        index = int(np.argmin(order[same + 1]))
        first, second = (self._place(int(order[same[index] + n])) for n in (0, 1))
        id = next(r.id for r in contigs_in([Path(second[0])]) if r.line == second[1])
        raise UserError(
            f"{second[0]}:{second[1]}: the id {id[:60]!r} is also that of "
            f"{first[0]}:{first[1]}, and ids of fragments begin with it; rename one or, if these "
            "are the two reads of a pair, give their files as a sheet of samples (samples:)."
        )

    def _place(self, number: int) -> tuple[str, int]:
        """Return file and line of the contig that came as this one."""
        file = max((first, name) for name, first in self._files.items() if first <= number)[1]
        return file, self._lines[number]
