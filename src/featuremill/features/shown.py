"""The records on the map of a report, with their vectors, labels and notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.id_columns import ID_ALONE, IdColumns
from featuremill.features.table import Matrix

MOST_SHOWN = 10_000
"""Largest number of records on a map."""


class Labelled(NamedTuple):
    """A column of labels for the records on the map."""

    title: str
    file: str
    """The name of the table on the page."""
    texts: Sequence[str | None]
    """The label of each record; None without one."""

    @property
    def num_found(self) -> int:
        return sum(text is not None for text in self.texts)


class Shown(NamedTuple):
    """The records on the map of a report: all, or evenly spaced ones."""

    folder: Path
    """The folder of the results."""
    ids: list[str]
    """The whole ids."""
    lengths: list[int]
    unit: str
    """The unit of lengths, such as "residues"."""
    total: int
    """Number of rows of the table."""
    column: str
    """The column of the vectors."""
    others: list[str]
    """The other columns of values in the file."""
    vectors: Matrix
    """The vectors: (N, D) float32."""
    descriptions: list[str]
    id_columns: IdColumns = ID_ALONE
    """The columns of ids in the table."""
    notes: Sequence[str | None] = ()
    """Notes how records were truncated or cleaned; empty if there is none."""
    labels: Sequence[Labelled] = ()
    """The labels from the user's tables; the first ones colour the map."""
