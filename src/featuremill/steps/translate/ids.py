"""Check that the ids of contigs are distinct and have no white space."""

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
    """Stores 24 bytes for each id: a digest and the position."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._lines = array("q")
        self._files: dict[str, int] = {}
        """The number of ids before each file."""

    def checked(self, contigs: Iterable[Record]) -> Iterator[Record]:
        """Yield `contigs`.

        Raises:
            UserError: an id has white space, or is not unique. Duplicates are found when the number
                of contigs has doubled, or at the end.
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
        first, second = (self._position(int(order[same[index] + n])) for n in (0, 1))
        id = next(r.id for r in contigs_in([Path(second[0])]) if r.line == second[1])
        raise UserError(
            f"{second[0]}:{second[1]}: the id {id[:60]!r} is also that of "
            f"{first[0]}:{first[1]}, and ids of fragments begin with it; rename one or, if these "
            "are the two reads of a pair, give their files as a sheet of samples (samples:)."
        )

    def _position(self, number: int) -> tuple[str, int]:
        """Return the file and the line of the contig with this number."""
        file = max((first, name) for name, first in self._files.items() if first <= number)[1]
        return file, self._lines[number]
