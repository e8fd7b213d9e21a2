"""The records on the map of a report, with their vectors, labels and notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.id_columns import ID_ALONE, IdColumns
from featuremill.base.text import clipped
from featuremill.features.table import Matrix

MAX_TEXT = 40
MOST_SHOWN = 10_000
"""Largest number of records on a map."""


class Labels(NamedTuple):
    """The labels of some records in a column of a table."""

    column: str
    path: Path
    texts: list[str | None]
    """The label of each record, in their order; None without one."""
    mismatch: str = ""
    """If no record has a label: a sentence with ids of both sides."""
    id_column: str = ""
    """The name of the column of ids, if the user named it."""

    @property
    def file(self) -> str:
        """The name of the table on the page."""
        return clipped(self.path.name)

    @property
    def title(self) -> str:
        """The name of the column on the page."""
        return clipped(self.column, MAX_TEXT)

    @property
    def num_found(self) -> int:
        return sum(text is not None for text in self.texts)


class Shown(NamedTuple):
    """The records on the map of a report: all, or evenly spaced ones."""

    folder: Path
    ids: list[str]
    """The whole ids."""
    lengths: list[int]
    unit: str
    """The unit of lengths, such as "residues"."""
    total: int
    """Number of rows of the table."""
    column: str
    others: list[str]
    """The other columns of values in the file."""
    vectors: Matrix
    """The vectors: (N, D) float32."""
    descriptions: list[str]
    id_columns: IdColumns = ID_ALONE
    notes: Sequence[str | None] = ()
    """Notes how records were truncated or cleaned; empty if there is none."""
    labels: Sequence[Labels] = ()
    """The labels from the user's tables; the first ones colour the map."""
