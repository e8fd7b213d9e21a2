"""Reading parts: find each wanted row of a shard's part by the shard's own row number.

A part's rows stand in the order of batches, a shard's in the order of sha256; so the n-th row of
the shard is the n-th of the part's sha256 column, sorted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.errors import IntegrityError
from featuremill.journal import digest_of_file
from featuremill.shardfile import digests
from featuremill.store import RunFolder, read_json


class Part(NamedTuple):
    """One part, memory-mapped, with its receipt."""

    receipt: dict[str, Any]
    batches: list[pa.RecordBatch]
    first_rows: npt.NDArray[np.int64]
    """Row number of each batch's first row."""
    order: npt.NDArray[np.int64]
    """order[n] is the row of the part that is the shard's n-th."""

    def take(
        self, shard_rows: npt.NDArray[np.int64]
    ) -> list[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        """Return (positions in `shard_rows`, their rows), a pair for each batch that has any."""
        rows = self.order[shard_rows]
        which = np.searchsorted(self.first_rows, rows, side="right") - 1
        by_batch = np.argsort(which, kind="stable")
        edges = np.flatnonzero(np.diff(which[by_batch])) + 1
        taken = []
        for positions in np.split(by_batch, edges):
            number = int(which[positions[0]])
            inside = rows[positions] - self.first_rows[number]
            taken.append((positions, self.batches[number].take(pa.array(inside))))
        return taken

    def statuses(self) -> dict[int, str]:
        """Return the shard rows that failed, each with its reason."""
        rank = np.empty(len(self.order), np.int64)
        rank[self.order] = np.arange(len(self.order))
        failed: dict[int, str] = {}
        for batch, first in zip(self.batches, self.first_rows, strict=True):
            for row, reason in enumerate(batch.column("reason").to_pylist()):
                if reason is not None:
                    failed[int(rank[first + row])] = reason
        return failed


def open_part(folder: RunFolder, recipe: str, shard: str, num_records: int) -> Part:
    """Return the part of `shard`, its bytes and its rows checked.

    Raises:
        IntegrityError: when the receipt or the bytes are not right; the part is then set aside and
            the receipt removed, so that the next run computes it again.
    """
    path, receipt_path = folder.part(recipe, shard), folder.receipt(recipe, shard)
    receipt = read_json(receipt_path) or {}
    problem = _problem(path, receipt, recipe, shard)
    if problem:
        raise _set_aside(path, receipt_path, problem)
    with pa.memory_map(str(path)) as source:
        batches = list(pa.ipc.open_stream(source))
    sha256 = digests(pa.chunked_array([b.column("sha256") for b in batches], pa.binary(32)))
    order = np.argsort(sha256)
    counts = [batch.num_rows for batch in batches]
    if len(sha256) != num_records or len(np.unique(sha256)) != num_records:
        raise _set_aside(
            path, receipt_path, f"it holds {len(sha256)} rows for {num_records} records"
        )
    return Part(receipt, batches, np.cumsum([0, *counts[:-1]]), order)


def _problem(path: Path, receipt: dict[str, Any], recipe: str, shard: str) -> str:
    if (receipt.get("recipe"), receipt.get("shard")) != (recipe, shard):
        return "its receipt is for another part"
    if not path.exists():
        return "it is gone"
    if digest_of_file(path) != receipt.get("part"):
        return "its bytes are not those that were written"
    return ""


def _set_aside(path: Path, receipt_path: Path, problem: str) -> IntegrityError:
    if path.exists():
        path.replace(path.with_suffix(".bad"))
    receipt_path.unlink(missing_ok=True)
    return IntegrityError(f"{path}: {problem}; run the same command again to compute it anew.")
