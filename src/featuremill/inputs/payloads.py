"""The payload of a sequence: letters, and after line breaks its structure and region.

Letters alone are the payload. With a structure, its letters follow; with a region, the structure
(or nothing) and the region's first and last residue, from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Parts(NamedTuple):
    """The parts of a payload."""

    letters: bytes
    structure: bytes = b""
    region: tuple[int, int] | None = None
    """The first and the last residue of the region, from 1."""

    @property
    def tokens(self) -> tuple[int, int]:
        """The region as the bounds of a slice of letters, from 0."""
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
    """Return groups of record indices that share one computed sequence: regions of the same
    sequence together, any other record alone."""
    groups: dict[object, list[int]] = {}
    for index, each in enumerate(parts):
        groups.setdefault(each[:2] if each.region else index, []).append(index)
    return list(groups.values())
