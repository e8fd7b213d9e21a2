"""An id that stands for two sequences, found while records stream by, as `init` does.

Plan has all rows on disk and compares them (`repeats.py`). Here 24 bytes a record go to a temporary
file: hashes of its id and of its payload. Memory is bounded as there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import xxhash

from featuremill.base.errors import UserError
from featuremill.plan.repeats import conflict, same_hash
from featuremill.plan.spool import ID_KEY
from featuremill.workload import Record

RECORDS_A_WRITE = 20_000


class Ids(ExitStack):
    """The ids of good records and what stands under them; a context manager."""

    def __init__(self) -> None:
        super().__init__()
        folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self._paths = folder / "ids.bin", folder / "payloads.bin"
        self._files = [self.enter_context(path.open("wb")) for path in self._paths]
        self._ids: list[int] = []
        self._payloads: list[int] = []
        self._num_written = 0

    def add(self, record: Record) -> None:
        """Take note of the next good record."""
        self._ids.append(xxhash.xxh3_64_intdigest(record.id.encode()))
        self._payloads.append(xxhash.xxh3_64_intdigest(record.payload))
        if len(self._ids) == RECORDS_A_WRITE:
            self._write()

    def _write(self) -> None:
        keys = np.empty(len(self._ids), ID_KEY)
        keys["hash"] = self._ids
        keys["ordinal"] = self._num_written + np.arange(len(keys))
        for file, values in zip(self._files, (keys, np.array(self._payloads, "<u8")), strict=True):
            file.write(values.tobytes())
            file.flush()
        self._num_written += len(keys)
        self._ids, self._payloads = [], []

    def refuse_conflict(self, records: Iterable[Record]) -> None:
        """Refuse an id with two payloads; `records` are the same ones anew, read only then.

        Raises:
            UserError: names the places of the first two.
        """
        self._write()
        if found := self._first_conflict():
            good = (record for record in records if not record.reason)
            first = next(islice(good, found[0], None))
            second = next(islice(good, found[1] - found[0] - 1, None))
            if first.id == second.id:  # else only their hashes are equal, which plan looks into
                raise UserError(conflict(first._asdict(), second._asdict()))

    def _first_conflict(self) -> tuple[int, int] | None:
        """Return the numbers, among the good records, of the two whose second one comes first."""
        ids_path, payloads_path = self._paths
        if not self._num_written:
            return None
        payloads = np.memmap(payloads_path, "<u8", "r")
        pairs = []
        for ordinals, groups in same_hash([ids_path]):
            is_new = np.append(True, groups[1:] != groups[:-1])
            firsts = ordinals[np.flatnonzero(is_new)[np.cumsum(is_new) - 1]]
            others = payloads[ordinals] != payloads[firsts]
            if others.any():
                second = int(ordinals[others].min())
                pairs.append((int(firsts[ordinals == second][0]), second))
        return min(pairs, key=lambda pair: pair[1], default=None)
