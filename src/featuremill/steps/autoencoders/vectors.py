"""Choose and shuffle the vectors of a training.

The order is a keyed permutation that depends only on seed and step. A position of an epoch is
mapped to a vector by a bijection that is computed, not stored. Blocks of adjacent vectors are
shuffled over the run, and then vectors within a window of blocks, so that each step reads from a
window that fits in the page cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from featuremill.features import Matrix, Parts, Rows

BLOCK = 2**8
"""The number of vectors in a block, which are adjacent on disk."""
WINDOW = 2**18
"""The number of vectors in a window; a multiple of BLOCK."""
ROUNDS = 6
Places = npt.NDArray[np.uint64]


def mixed(numbers: Places) -> Places:
    """Return 64-bit hashes of 64-bit numbers (the finaliser of SplitMix64, a bijection)."""
    hashed = numbers + np.uint64(0x9E3779B97F4A7C15)
    hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashed ^ (hashed >> np.uint64(31))


def key_of(*words: int) -> int:
    """Return a 64-bit key for several numbers."""
    key = np.zeros(1, np.uint64)
    for word in words:
        key = mixed(key ^ np.uint64(word % 2**64))
    return int(key[0])


def permuted(places: Places, size: int, key: int) -> Places:
    """Return the images of `places` under a permutation of range(`size`): a Feistel network over
    the next power of four, repeated until the result is below `size`."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    keys = mixed(np.arange(ROUNDS, dtype=np.uint64) ^ np.uint64(key))
    images = places.astype(np.uint64)
    left = np.arange(len(images))  # indices of results that are not below `size`
    while len(left):
        high, low = images[left] >> bits, images[left] & mask
        for of_round in keys:
            high, low = low, high ^ (mixed(low ^ of_round) & mask)
        images[left] = (high << bits) | low
        left = left[images[left] >= size]
    return images


class Order:
    """The order of the vectors; each vector occurs once per epoch."""

    def __init__(self, num_vectors: int, seed: int) -> None:
        self._num, self._seed = num_vectors, seed
        self._num_blocks = -(-num_vectors // BLOCK)

    def vectors(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return the vectors at `count` positions from `first`, counted over all epochs."""
        positions = np.arange(first, first + count, dtype=np.uint64)
        epochs = positions // np.uint64(self._num)
        chosen = positions % np.uint64(self._num)
        for epoch in np.unique(epochs).tolist():
            left = np.flatnonzero(epochs == epoch)
            while len(left):  # the last block may extend beyond the last vector
                chosen[left] = self._padded(chosen[left], epoch)
                left = left[chosen[left] >= self._num]
        return chosen.astype(np.int64)

    def _padded(self, places: Places, epoch: int) -> Places:
        """Return the images of `places` in the padded range of complete blocks."""
        block = np.uint64(BLOCK)
        windows = places // np.uint64(WINDOW)
        images = np.empty_like(places)
        for window in np.unique(windows).tolist():
            here, first = windows == window, window * WINDOW
            size = min(WINDOW, self._num_blocks * BLOCK - first)
            key = key_of(self._seed, epoch, 1, window)
            images[here] = permuted(places[here] - np.uint64(first), size, key) + np.uint64(first)
        blocks = permuted(images // block, self._num_blocks, key_of(self._seed, epoch, 0))
        return blocks * block + images % block


def is_held_out(parts: Parts, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return whether the record of each row is held out. It depends only on sha256 and seed, so
    that edits of the input do not affect other records."""
    hashes = mixed(parts.hash_of_row ^ np.uint64(key_of(seed, 2)))
    return hashes < np.uint64(min(share * 2.0**64, 2**64 - 1))


class Chosen:
    """The vectors of the chosen rows, numbered from 0."""

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
        """Return the vectors `numbers`, shape (n, width), in float32."""
        index = np.searchsorted(self._ends, numbers, side="right")
        rows = self._rows[index]
        return self._parts.take(rows, numbers - self._ends[index] + self._parts.num_of_row[rows])
