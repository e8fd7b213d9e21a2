"""Which records have no values, by reason, with examples: from the parts, before there are results.

Reads the `reason` and `sha256` of the parts whose receipts count failed rows, and of
manifest.parquet what says whose rows they are. Where parts were removed, failed.tsv knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base.reasons import head_of, kind_of
from featuremill.status import failed_counts as listed
from featuremill.status.failed_counts import MAX_EXAMPLES, clipped
from featuremill.status.shards import Shard
from featuremill.store.parts import failed_rows
from featuremill.store.results import Results

MOST_PARTS = 100
"""Parts with failed rows that a quick look reads: more of them fail for the same reasons."""


class Key(NamedTuple):
    """What records have in common that are counted together."""

    status: str
    kind: str
    """Its word in reasons.py, as retry takes it."""
    reason: str
    """Up to its first colon: what it says of more than one record."""


class Group(NamedTuple):
    """All records that failed, or were refused, for one reason."""

    key: Key
    remedy: str
    number: int
    """Of input records."""
    examples: list[str]
    """Ids."""
    command: str | None = None
    """What lets them be tried again, where that makes sense."""
    logs: str | None = None
    """What finds the logs that tell more, where they do."""


class Failures(NamedTuple):
    """What there is to say of records without values."""

    groups: list[Group]
    """The commonest first."""
    unread: int
    """Failed rows of parts that were not read."""
    is_manifest_readable: bool = True


def read_failures(
    folder: Results, plan: dict[str, Any], shards: list[Shard], reads_all: bool
) -> Failures:
    """Return the failed and refused records by reason."""
    if any(shard.state == "removed" for shard in shards):
        found = listed.read(folder.root / "failed.tsv").groups
        groups = [
            _group(_key(one.status, one.reason), one.number, [e.id for e in one.examples])
            for one in found
        ]
        return Failures(groups, 0)
    failing = [s for s in shards if s.state == "finished" and s.receipt and s.receipt["failed"]]
    chosen = failing if reads_all else failing[:MOST_PARTS]
    unread = sum(s.receipt["failed"] for s in failing[len(chosen) :] if s.receipt)
    counts: Counter[Key] = Counter()
    for reason, number in plan["refusals"].items():
        counts[_key("refused", reason)] += number
    examples: dict[Key, list[str]] = {}
    failed = {shard.name: failed_keys(folder, plan["recipe"], shard.name) for shard in chosen}
    is_readable = True
    try:
        seen = _Finder(failed, list(counts), folder.manifest).find()
        counts |= seen.counts
        examples = seen.examples
    except (OSError, LookupError, pa.ArrowException):
        is_readable = False
        for rows in failed.values():
            counts.update(rows.values())
    groups = [_group(key, number, examples.get(key, [])) for key, number in counts.items()]
    groups.sort(key=lambda one: (one.key.status, -one.number, one.key))
    return Failures(groups, unread, is_readable)


def _group(key: Key, number: int, examples: list[str]) -> Group:
    return Group(key, remedy_of(key), number, examples)


def remedy_of(key: Key) -> str:
    """Return what to do about it."""
    return kind_of(key.reason).remedy


def _key(status: str, reason: str) -> Key:
    return Key(status, kind_of(reason).name, clipped(head_of(reason)))


def failed_keys(folder: Results, recipe: str, shard: str) -> dict[int, Key]:
    """Return the shard's rows that failed, each with its reason."""
    try:
        rows, reasons = failed_rows(folder.part(recipe, shard))
    except (OSError, pa.ArrowInvalid):  # --verify says so
        return {}
    return dict(zip(rows.tolist(), (_key("failed", one) for one in reasons), strict=True))


def _valid(column: pa.ChunkedArray) -> list[int]:
    """Return where the column has a value."""
    found: list[int] = pc.indices_nonzero(column.is_valid()).to_pylist()
    return found  # NumPy's way over a pyarrow array would bring pandas


class _Finder:
    """Looks through manifest.parquet for the records of failed rows, and for refused ones."""

    def __init__(
        self, failed: dict[str, dict[int, Key]], refused: Iterable[Key], manifest: Path
    ) -> None:
        self.counts: Counter[Key] = Counter()
        self.examples: dict[Key, list[str]] = {}
        self._names = {name: number for number, name in enumerate(failed)}
        self._keys = {
            number << 32 | row: key
            for number, rows in enumerate(failed.values())
            for row, key in rows.items()
        }
        self._failed = np.fromiter(self._keys, np.int64)
        self._refused = list(refused)
        self._manifest = manifest

    def find(self) -> _Finder:
        """Count the failed records and take examples of both kinds."""
        with pq.ParquetFile(self._manifest) as file:
            for number in range(file.num_row_groups):
                wants = any(self._wants(key) for key in self._refused)
                if not wants and not len(self._failed):
                    break
                found = list(self._failed_in(file, number))
                found += list(self._refused_in(file, number)) if wants else []
                self.counts.update(key for _, key in found if key.status == "failed")
                if any(self._wants(key) for _, key in found):
                    self._take_examples(file.read_row_group(number, ["id"])["id"], found)
        return self

    def _wants(self, key: Key) -> bool:
        return len(self.examples.get(key, [])) < MAX_EXAMPLES

    def _failed_in(self, file: Any, number: int) -> Iterator[tuple[int, Key]]:
        """Yield where in the row group a failed record stands, and why it failed."""
        if not len(self._failed):
            return
        rows = file.read_row_group(number, ["shard", "row"]).combine_chunks()
        shard = rows["shard"].unify_dictionaries().combine_chunks()
        shard = shard.chunk(0) if isinstance(shard, pa.ChunkedArray) else shard
        numbers = [self._names.get(name, -1) for name in shard.dictionary.to_pylist()]
        which = np.array([*numbers, -1])[shard.indices.fill_null(len(numbers)).to_numpy()]
        row = rows["row"].fill_null(0).to_numpy()
        place: npt.NDArray[np.int64] = np.where(which < 0, -1, which << 32 | row)
        for at in np.flatnonzero(np.isin(place, self._failed)):
            yield int(at), self._keys[int(place[at])]

    def _refused_in(self, file: Any, number: int) -> Iterator[tuple[int, Key]]:
        reason = file.read_row_group(number, ["reason"])["reason"]
        for at in _valid(reason):
            yield int(at), _key("refused", reason[int(at)].as_py())

    def _take_examples(self, ids: Any, found: list[tuple[int, Key]]) -> None:
        for at, key in found:
            if self._wants(key):
                self.examples.setdefault(key, []).append(clipped(ids[at].as_py()))
