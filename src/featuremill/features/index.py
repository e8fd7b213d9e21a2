"""An index of rows by id, with 17 bytes of memory per record.

It has a hash of each id and its row. A row is returned only after the id in that row was read and
compared, so hash collisions never assign a vector to a wrong id.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from featuremill.base.errors import UserError
from featuremill.base.text import clipped
from featuremill.features.table import Rows

NOWHERE = -1
"""The row of an id that does not exist."""
IDS_AT_ONCE = 2**17


Hashes = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""The hashes of ids in ascending order, and the row of each."""


def hashes_at(path: Path, num_rows: int) -> Hashes | None:
    """Return the memory-mapped index of merge, or None if it is missing or does not fit."""
    try:
        both = np.load(path, mmap_mode="r" if num_rows else None)
    except (OSError, ValueError, EOFError):
        return None
    return (both[0], both[1]) if both.shape == (2, num_rows) and both.dtype == np.uint64 else None


class Named(Protocol):
    """Rows with ids."""

    name: str
    """The name of the features in messages: a run's folder, or a file."""
    num_rows: int

    def ids_of(self, rows: Rows) -> list[str]:
        """Return the ids of `rows`."""


def _hashes(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.fromiter((xxh3_64_intdigest(id.encode()) for id in ids), np.uint64, len(ids))


def sorted_hashes(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the hashes of `ids` in ascending order, and the row of each; shape (2, ids)."""
    hashes = _hashes(ids)
    order = np.argsort(hashes, kind="stable")
    return np.stack([hashes[order], order.astype(np.uint64)])


class Index:
    """Finds the rows of features by the ids of records."""

    def __init__(self, features: Named, stored: Hashes | None = None) -> None:
        """Read all ids, unless their index is `stored`.

        Raises:
            UserError: if two records have the same id.
        """
        self._features = features
        self.is_met = np.zeros(features.num_rows, bool)
        """Rows that `rows_of` has returned."""
        if stored is not None:
            self._sorted: npt.NDArray[np.uint64] = stored[0]
            self._order: npt.NDArray[Any] = stored[1]
            return
        hashes = [np.empty(0, np.uint64)]
        for start in range(0, features.num_rows, IDS_AT_ONCE):
            end = min(features.num_rows, start + IDS_AT_ONCE)
            hashes.append(_hashes(features.ids_of(np.arange(start, end))))
        all_hashes = np.concatenate(hashes)
        self._order = np.argsort(all_hashes, kind="stable")
        self._sorted = all_hashes[self._order]
        self._refuse_repeated()

    def _refuse_repeated(self) -> None:
        equal = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        rows = np.unique(np.concatenate([self._order[equal], self._order[equal + 1]]))
        row_of: dict[str, int] = {}
        for id, row in zip(self._features.ids_of(rows), rows.tolist(), strict=True):
            if id in row_of:
                raise UserError(
                    f"{self._features.name}: records {row_of[id] + 1:,} and {row + 1:,} are both "
                    f"called {clipped(id)!r}, so vectors cannot be matched to records; give each "
                    "an id of its own."
                )
            row_of[id] = row

    def rows_of(self, ids: Sequence[str]) -> Rows:
        """Return the row of each id; NOWHERE if it does not exist."""
        rows_found = np.full(len(ids), NOWHERE)
        all_ids, hashes = np.array(ids, object), _hashes(ids)
        positions = np.searchsorted(self._sorted, hashes)
        pending = np.arange(len(ids))
        while True:
            pending = pending[positions[pending] < len(self._sorted)]
            pending = pending[self._sorted[positions[pending]] == hashes[pending]]
            if not len(pending):
                break
            rows = self._order[positions[pending]].astype(np.int64)
            is_same = np.array(self._features.ids_of(rows), object) == all_ids[pending]
            rows_found[pending[is_same]] = rows[is_same]
            pending = pending[~is_same]  # another id with the same hash: try the next row
            positions[pending] += 1
        self.is_met[rows_found[rows_found != NOWHERE]] = True
        return rows_found
