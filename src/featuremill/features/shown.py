"""Some records of a run, with what is known of each: what a report draws a map of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.id_columns import ID_ALONE, IdColumns
from featuremill.features.table import Matrix

MOST_SHOWN = 10_000
"""Records on a map."""


class Labelled(NamedTuple):
    """A column of labels for the records on the map."""

    title: str
    file: str
    """The table, as the page shows it."""
    texts: Sequence[str | None]
    """The label of each record; None without one."""

    @property
    def num_found(self) -> int:
        return sum(text is not None for text in self.texts)


class Shown(NamedTuple):
    """The records that a report shows: all, or some at even distances. Lists are as long as ids."""

    folder: Path
    """The folder of the results."""
    ids: list[str]
    """The whole ids."""
    lengths: list[int]
    unit: str
    """The unit of lengths, such as "residues"."""
    total: int
    """Rows of the table."""
    column: str
    """The column of values that is shown."""
    others: list[str]
    """The other columns of values in the file."""
    vectors: Matrix
    """(N, D) float32."""
    descriptions: list[str]
    id_columns: IdColumns = ID_ALONE
    """The columns of which the ids are made."""
    notes: Sequence[str | None] = ()
    """How records were cut or cleaned; empty if none was."""
    labels: Sequence[Labelled] = ()
    """The labels of the user's tables; the first colours the map."""
