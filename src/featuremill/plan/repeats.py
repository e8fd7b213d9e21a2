"""Find repeated ids: the same id with the same payload is one row, with another it is an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.errors import UserError
from featuremill.plan.spool import ID_KEY

KEYS_A_PASS = 16_000_000
"""Keys held in memory at once (16 bytes each); more keys take more passes over the file."""


def repeated_rows(rows: pa.Table, ids_path: Path) -> npt.NDArray[np.int64]:
    """Return the ordinals of rows that repeat an earlier row's id and payload.

    Raises:
        UserError: when an id stands for two different payloads; names both places.
    """
    repeats: list[int] = []
    for ordinals in _same_hash(ids_path):
        few = rows.select(["id", "sha256"]).take(pa.array(ordinals))
        seen: dict[str, tuple[int, bytes]] = {}
        for ordinal, id, sha256 in zip(ordinals.tolist(), *few.to_pydict().values(), strict=True):
            first, first_sha256 = seen.setdefault(id, (ordinal, sha256))
            if first == ordinal:
                continue
            if first_sha256 != sha256:
                raise UserError(_conflict(*rows.take(pa.array([first, ordinal])).to_pylist()))
            repeats.append(ordinal)
    return np.sort(np.array(repeats, np.int64))


def _conflict(first: dict[str, Any], second: dict[str, Any]) -> str:
    places = f"{first['source']}:{first['line']} and {second['source']}:{second['line']}"
    return (
        f"{places}: the id {first['id']!r} stands for two different sequences; "
        "rename or remove one of them."
    )


def _same_hash(ids_path: Path) -> Iterator[npt.NDArray[np.int64]]:
    """Yield, pass by pass, the ordinals (ascending) of ids whose hash is there more than once."""
    if ids_path.stat().st_size == 0:
        return
    keys = np.memmap(ids_path, ID_KEY, "r")
    num_passes = -(-len(keys) // KEYS_A_PASS)
    step = np.uint64(2**64 // max(2, num_passes) + 1)
    for number in range(num_passes):
        part = keys if num_passes == 1 else keys[keys["hash"] // step == number]
        part = np.sort(part, order=["hash", "ordinal"])
        same = part["hash"][1:] == part["hash"][:-1]
        several = np.concatenate((same, [False])) | np.concatenate(([False], same))
        if several.any():
            yield np.sort(part["ordinal"][several])
