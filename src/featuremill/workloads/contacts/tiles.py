"""Which rows and heads of attention are computed at once. Imports no torch.

All of it depends on a sequence's length only, so its batch changes no bit.
"""

from __future__ import annotations

from typing import NamedTuple

TILE_BYTES = {"cpu": 2**20, "cuda": 2**26}
"""Probabilities that are computed at once, of one lane: on a CPU a core's cache holds them."""
MOST_TILES = 32
"""The tiles of a sequence, at most, as each tile has sums of columns of its own."""


class Tile(NamedTuple):
    """Some rows of a sequence."""

    sequence: int
    """The number of the sequence in its pack."""
    number: int
    """The number of the tile in its sequence."""
    rows: slice


def cut(sequence: int, part: slice, kind: str) -> list[Tile]:
    """Return the tiles of a sequence, the `part` of its pack, for a `kind` of device."""
    length = part.stop - part.start
    step = max(1, TILE_BYTES[kind] // (4 * length), -(-length // MOST_TILES))
    return [
        Tile(sequence, number, slice(start, min(start + step, length)))
        for number, start in enumerate(range(0, length, step))
    ]


def heads_at_once(num_rows: int, length: int, kind: str) -> int:
    """Return how many heads of a tile are computed together."""
    return max(1, TILE_BYTES[kind] // (4 * num_rows * length))
