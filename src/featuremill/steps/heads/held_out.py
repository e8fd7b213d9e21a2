"""Scores of a head's training records, each by a head that saw no record of its group and no copy.

The head's own score of such a record is no prediction: it has seen the label. Records are found by
the sha256 of their payload, since other samples may have the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.kit.errors import IntegrityError
from featuremill.kit.files import sha256_of
from featuremill.kit.ids import IdColumns
from featuremill.kit.runs import whole_ids, with_keys
from featuremill.steps.heads.card import HELD_OUT, Card
from featuremill.steps.heads.joined import Source

__all__ = ["COLUMN", "NO", "UNKNOWN", "YES", "read"]
Scores = npt.NDArray[np.float64]
YES, NO, UNKNOWN = "yes", "no", "unknown"
"""Whether a head was trained on a record."""
COLUMN = "seen_in_training"


class HeldOut(NamedTuple):
    """The labelled records, in the order of their sha256."""

    ids: list[str]
    sha256s: list[str]
    labels: list[str] | list[float]
    groups: list[str]
    scores_NC: Scores
    """Scores in the order of the card's classes."""


def write(
    path: Path,
    ids: Sequence[str],
    sha256s: Sequence[str],
    columns: Mapping[str, Any],
    id_columns: IdColumns,
) -> str:
    """Write the labelled records, in the order of their sha256; return the file's sha256."""
    cells = zip(*map(id_columns.cells, ids), strict=True)
    of_ids = dict(zip(id_columns.names, map(list, cells), strict=True))
    table = pa.table({**of_ids, "sha256": sha256s, **columns})
    pq.write_table(table, path, compression="zstd")
    return sha256_of(path)


def checked(folder: Path, card: Card) -> Path:
    """Return the path of the held-out records of the head in `folder`.

    Raises:
        IntegrityError: the file is gone or was changed.
    """
    path = folder / HELD_OUT
    if not path.is_file() or sha256_of(path) != card.held_out_sha256:
        raise IntegrityError(f"{path}: it is gone or not what was written; train the head again.")
    return path


def read(folder: Path, card: Card) -> HeldOut | None:
    """Return the held-out scores of the head in `folder`; None for an imported head.

    Raises:
        IntegrityError: they are damaged or were changed.
    """
    if card.held_out_sha256 is None:
        return None
    table = pq.read_table(checked(folder, card))
    scores = [table[name].to_numpy() for name in card.columns]
    ids = whole_ids(with_keys(table)).to_pylist()
    sha256s, labels, groups = (table[name].to_pylist() for name in ("sha256", "label", "group"))
    return HeldOut(ids, sha256s, labels, groups, np.stack(scores, axis=1))


class Seen:
    """The records of some features on which a head was trained."""

    def __init__(self, held_out: HeldOut | None, features: Source) -> None:
        self._held_out = held_out if features.recipe is not None else None
        self._row_of: dict[str, int] = {}
        if not self._held_out:
            return
        pairs = zip(self._held_out.ids, self._held_out.sha256s, strict=True)
        by_pair = {pair: row for row, pair in enumerate(pairs)}
        # The score of any copy will do: it is of a head that saw none.
        by_sha256 = {sha256: row for (_, sha256), row in by_pair.items()}
        for id, sha256 in features.digests():
            if sha256 in by_sha256:
                self._row_of[id] = by_pair.get((id, sha256), by_sha256[sha256])

    def held_out(self, ids: Sequence[str], scores_NC: Scores) -> tuple[Scores, list[str]]:
        """Return scores, held-out ones where there are, and for each id YES, NO or UNKNOWN."""
        if not self._held_out:
            return scores_NC, [UNKNOWN] * len(ids)
        rows = np.array([self._row_of.get(id, -1) for id in ids], np.int64)
        is_seen = rows >= 0
        scores = np.where(is_seen[:, None], self._held_out.scores_NC[rows], scores_NC)
        return scores, [YES if is_one else NO for is_one in is_seen]
