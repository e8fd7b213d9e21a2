"""What the payload of a sequence holds: letters, and behind line breaks what else counts.

Letters alone are themselves. With a structure, its letters follow; with a region, the structure (or
nothing) and the region's first and last residue, counted from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Parts(NamedTuple):
    """A payload taken apart."""

    letters: bytes
    structure: bytes = b""
    region: tuple[int, int] | None = None
    """Its first and last residue, from 1."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Its region as a slice of letters, from 0."""
        assert self.region
        return self.region[0] - 1, self.region[1]

    @property
    def payload(self) -> bytes:
        fields = [self.letters]
        if self.structure or self.region:
            fields.append(self.structure)
        if self.region:
            fields.append("-".join(map(str, self.region)).encode())
        return b"\n".join(fields)


def parts_of(payload: bytes) -> Parts:
    letters, *more = payload.split(b"\n")
    structure = more[0] if more else b""
    if len(more) < 2:
        return Parts(letters, structure)
    first, last = map(int, more[1].split(b"-"))
    return Parts(letters, structure, (first, last))


def alike(parts: Sequence[Parts]) -> list[list[int]]:
    """Return groups of records, by index, for which a network sees one sequence: the regions of a
    sequence together, any other record by itself."""
    groups: dict[object, list[int]] = {}
    for index, each in enumerate(parts):
        groups.setdefault(each[:2] if each.region else index, []).append(index)
    return list(groups.values())
