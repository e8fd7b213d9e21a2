"""Cut attention into tiles of rows and heads that are computed at once.

Tiles depend on the length of their sequence only, so the batch changes no bit. Does not import
torch.
"""

from __future__ import annotations

from typing import NamedTuple

TILE_BYTES = {"cpu": 2**20, "cuda": 2**26}
"""The size of the probabilities that a lane computes at once; on a CPU, they fit in the cache."""
MOST_TILES = 32
"""The largest number of tiles of a sequence; each tile has its own sums of columns in memory."""


class Tile(NamedTuple):
    """A range of rows of a sequence."""

    sequence: int
    """The index of the sequence in its pack."""
    number: int
    """The index of the tile in its sequence."""
    rows: slice


def cut(sequence: int, part: slice, kind: str) -> list[Tile]:
    """Return the tiles of a sequence, which is the `part` of a pack, for a `kind` of device."""
    length = part.stop - part.start
    step = max(1, TILE_BYTES[kind] // (4 * length), -(-length // MOST_TILES))
    return [
        Tile(sequence, number, slice(start, min(start + step, length)))
        for number, start in enumerate(range(0, length, step))
    ]


def heads_at_once(num_rows: int, length: int, kind: str) -> int:
    return max(1, TILE_BYTES[kind] // (4 * num_rows * length))
