"""Find repeated ids: the same id with the same payload is one row, with another it is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.errors import UserError
from featuremill.plan.rows import Rows
from featuremill.plan.spool import ID_KEY

KEYS_A_PASS = 4_000_000
"""Keys held in memory at once (16 bytes each); more keys take more passes over the files."""
KEYS_A_BLOCK = 1_000_000
"""Keys that are read, or whose rows are looked up, at a time."""

Ordinals = npt.NDArray[np.int64]


def repeated_rows(rows: Rows, ids_paths: Sequence[Path]) -> Ordinals:
    """Return the ordinals of rows that repeat an earlier row's id and payload, ascending.

    Raises:
        UserError: when an id stands for two different payloads; names both places.
    """
    found = [_repeats(rows, *block) for block in same_hash(ids_paths)]
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _repeats(rows: Rows, ordinals: Ordinals, groups: Ordinals) -> Ordinals:
    """Return which of `ordinals` repeat another; those of a group have ids of the same hash."""
    order = np.argsort(ordinals)
    few = rows.take(ordinals[order], ["id", "sha256"]).combine_chunks()
    few = few.take(pa.array(np.argsort(order)))
    is_new = np.append(True, groups[1:] != groups[:-1])
    starts = np.flatnonzero(is_new)
    group = np.cumsum(is_new) - 1
    firsts = starts[group]
    same = np.ones(len(ordinals), bool)
    for name in ("id", "sha256"):
        column = few[name].combine_chunks()
        same &= pc.equal(column, column.take(pa.array(firsts))).to_numpy(zero_copy_only=False)
    is_plain = np.logical_and.reduceat(same, starts)[group]
    is_repeat = is_plain & (firsts != np.arange(len(ordinals)))
    others = _compared(rows, ordinals[~is_plain], few.filter(pa.array(~is_plain)))
    return np.concatenate([ordinals[is_repeat], others])


def _compared(rows: Rows, ordinals: Ordinals, few: pa.Table) -> Ordinals:
    """Return which of `ordinals` repeat another, one by one: ids of the same hash may differ."""
    order = np.argsort(ordinals)
    columns = few.take(pa.array(order)).to_pydict().values()
    repeats = []
    seen: dict[str, tuple[int, bytes]] = {}
    for ordinal, id, sha256 in zip(ordinals[order].tolist(), *columns, strict=True):
        first, first_sha256 = seen.setdefault(id, (ordinal, sha256))
        if first == ordinal:
            continue
        if first_sha256 != sha256:
            places = rows.take(np.array([first, ordinal]), ["id", "source", "line"])
            raise UserError(conflict(*places.to_pylist()))
        repeats.append(ordinal)
    return np.array(repeats, np.int64)


def conflict(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the sentence for two records with the same id and different payloads."""
    places = f"{first['source']}:{first['line']} and {second['source']}:{second['line']}"
    return (
        f"{places}: the id {first['id'][:100]!r} stands for two different sequences; "
        "rename or remove one of them."
    )


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
