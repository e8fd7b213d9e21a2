"""The vectors of a training: those of the records that are not held out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from featuremill.features import Matrix, Parts, Rows
from featuremill.steps.autoencoders.order import key_of, mixed


def is_held_out(parts: Parts, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return for each row whether its record is held out: by its sha256 and the seed alone, so that
    no edit of the input moves another record."""
    hashes = mixed(parts.hash_of_row ^ np.uint64(key_of(seed, 2)))
    return hashes < np.uint64(min(share * 2.0**64, 2**64 - 1))


class Chosen:
    """The vectors of some rows, numbered from 0."""

    def __init__(self, parts: Parts, is_chosen: npt.NDArray[np.bool_]) -> None:
        self._parts = parts
        self._rows = np.flatnonzero(is_chosen & (parts.num_of_row > 0))
        self._ends = np.cumsum(parts.num_of_row[self._rows])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def num_records(self) -> int:
        return len(self._rows)

    def take(self, numbers: Rows) -> Matrix:
        """Return the vectors (n, width) of these `numbers`, in float32."""
        place = np.searchsorted(self._ends, numbers, side="right")
        rows = self._rows[place]
        return self._parts.take(rows, numbers - self._ends[place] + self._parts.num_of_row[rows])
