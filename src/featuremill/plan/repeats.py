"""Find repeated ids: one row where the payload is the same, and refused where payloads differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.reasons import CONFLICT
from featuremill.plan.records import Rows
from featuremill.plan.spool import ID_KEY

KEYS_A_PASS = 4_000_000
"""Keys held in memory at once (16 bytes each); more keys take more passes over the files."""
KEYS_A_BLOCK = 1_000_000
"""Keys that are read, or whose rows are looked up, at a time."""

KEY = ("id", "owner", "sha256")
"""Columns that repeats have in common; the last one alone tells an id's payloads apart."""
Ordinals = npt.NDArray[np.int64]


class Found(NamedTuple):
    """The rows whose id occurs several times: repeated rows and conflicting rows."""

    repeats: Ordinals
    """Rows that repeat an earlier row's id and payload, ascending."""
    conflicts: dict[int, str]
    """Rows whose id stands for different payloads, each with the reason to refuse it."""


def find(rows: Rows, ids_paths: Sequence[Path]) -> Found:
    """Return the rows whose id occurs several times, as repeats or as conflicts."""
    conflicts: dict[int, str] = {}
    rows_of_block = [_repeats(rows, *block, conflicts) for block in same_hash(ids_paths)]
    repeats = np.sort(np.concatenate(rows_of_block)) if rows_of_block else np.empty(0, np.int64)
    return Found(repeats, conflicts)


def _repeats(
    rows: Rows, ordinals: Ordinals, groups: Ordinals, conflicts: dict[int, str]
) -> Ordinals:
    """Return which of `ordinals` repeat another, and add `conflicts`; those of a group have ids of
    the same hash."""
    order = np.argsort(ordinals)
    few = rows.take(ordinals[order], KEY).combine_chunks()
    few = few.take(pa.array(np.argsort(order)))
    is_new = np.append(True, groups[1:] != groups[:-1])
    starts = np.flatnonzero(is_new)
    group = np.cumsum(is_new) - 1
    firsts = starts[group]
    same = np.ones(len(ordinals), bool)
    for name in KEY:
        column = few[name].combine_chunks()
        same &= pc.equal(column, column.take(pa.array(firsts))).to_numpy(zero_copy_only=False)
    is_plain = np.logical_and.reduceat(same, starts)[group]
    is_repeat = is_plain & (firsts != np.arange(len(ordinals)))
    others = _compared(rows, ordinals[~is_plain], few.filter(pa.array(~is_plain)), conflicts)
    return np.concatenate([ordinals[is_repeat], others])


def _compared(rows: Rows, ordinals: Ordinals, few: pa.Table, conflicts: dict[int, str]) -> Ordinals:
    """Return which of `ordinals` repeat another; compare ids themselves, as hashes may collide."""
    order = np.argsort(ordinals)
    columns = few.take(pa.array(order)).to_pydict().values()
    of_id: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
    for ordinal, id, owner, sha256 in zip(ordinals[order].tolist(), *columns, strict=True):
        of_id.setdefault((owner, id), []).append((ordinal, sha256))
    repeats = []
    for (first, first_sha256), *others in of_id.values():
        another = next((ordinal for ordinal, sha256 in others if sha256 != first_sha256), None)
        if another is None:
            repeats += [ordinal for ordinal, _ in others]
            continue
        positions = rows.take(np.array([first, another]), ["source", "line"]).to_pylist()
        to_first, to_another = (
            CONFLICT.reason(f"the other one is at {position['source']}:{position['line']}")
            for position in positions
        )
        conflicts |= {
            ordinal: to_another if sha256 == first_sha256 else to_first
            for ordinal, sha256 in [(first, first_sha256), *others]
        }
    return np.array(repeats, np.int64)


def same_hash(ids_paths: Sequence[Path]) -> Iterator[tuple[Ordinals, Ordinals]]:
    """Yield ordinals whose ids' hash is there more than once, and a number for each hash.

    Those of a hash stand together, ascending, in one block.
    """
    files = [np.memmap(path, ID_KEY, "r") for path in ids_paths if path.stat().st_size]
    num_keys = sum(map(len, files))
    num_passes = max(1, -(-num_keys // KEYS_A_PASS))
    step = np.uint64(2**64 // num_passes + 1) if num_passes > 1 else None
    for number in range(num_passes):
        keys = _keys(files, step, number)
        keys = keys[np.lexsort((keys["ordinal"], keys["hash"]))]
        is_new = np.ones(len(keys), bool)
        is_new[1:] = keys["hash"][1:] != keys["hash"][:-1]
        several = ~(is_new & np.append(is_new[1:], True))
        ordinals, groups = keys["ordinal"][several], np.cumsum(is_new)[several]
        start = 0
        while start < len(groups):
            last = groups[min(start + KEYS_A_BLOCK, len(groups)) - 1]
            end = int(np.searchsorted(groups, last, "right"))
            yield ordinals[start:end], groups[start:end]
            start = end


def _keys(
    files: Sequence[npt.NDArray[np.void]], step: np.uint64 | None, number: int
) -> npt.NDArray[np.void]:
    """Return the keys whose hash falls into pass `number`."""
    if step is None:
        return np.concatenate([np.empty(0, ID_KEY), *files])
    pieces = [np.empty(0, ID_KEY)]
    for keys in files:
        for start in range(0, len(keys), KEYS_A_BLOCK):
            block = keys[start : start + KEYS_A_BLOCK]
            pieces.append(block[block["hash"] // step == number])
    return np.concatenate(pieces)
