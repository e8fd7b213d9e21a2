"""Why records failed, as their parts come: each part is read once, and only its reasons."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from featuremill.status.shards import Shard
from featuremill.store.results import Results

MOST_PARTS = 100
"""Parts with failed rows that are read: more of them fail for the same reasons."""
MOST_A_LOOK = 5
"""So many at once: a look must not take long when a run with many failures is opened."""
MOST_SHOWN = 10


class Reason(NamedTuple):
    """Why records failed that have this in common."""

    kind: str
    """Its word in reasons.py."""
    reason: str
    number: int
    """Of distinct records."""
    remedy: str


class Reasons:
    """Counts the reasons of finished parts."""

    def __init__(self, folder: Results, recipe: str) -> None:
        self._folder = folder
        self._recipe = recipe
        self._seen: set[str] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._remedies: dict[str, str] = {}

    def look(self, failing: list[Shard]) -> list[Reason]:
        """Return the commonest reasons in the parts of the shards `failing`."""
        new = [shard for shard in failing if shard.name not in self._seen]
        for shard in new[: min(MOST_A_LOOK, max(0, MOST_PARTS - len(self._seen)))]:
            self._seen.add(shard.name)
            self._read(shard)
        return [
            Reason(kind, reason, number, self._remedies[kind])
            for (kind, reason), number in self._counts.most_common(MOST_SHOWN)
        ]

    def _read(self, shard: Shard) -> None:
        from featuremill.status.failures import failed_keys, remedy_of  # bring pyarrow and NumPy

        for key in failed_keys(self._folder, self._recipe, shard.name).values():
            self._counts[key.kind, key.reason] += 1
            self._remedies[key.kind] = remedy_of(key)
