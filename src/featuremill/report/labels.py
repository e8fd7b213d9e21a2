"""Labels for the records on the map: one column of a user's table, joined by id."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.id_columns import ID_ALONE, IdColumns
from featuremill.base.text import clipped
from featuremill.inputs import labels

MAX_NAMES = 7
"""Labels with a colour of their own, the commonest ones; the page has no more that all can tell
apart."""
OTHER, NONE = "other labels", "no label"
MAX_TEXT = 40
log = logging.getLogger("featuremill.report")


class Labels(NamedTuple):
    """The labels of some records in a table."""

    column: str
    path: Path
    texts: list[str | None]
    """One a record, in their order; None where the table has none."""
    mismatch: str = ""
    """Where no record has a label, what ids are there and here."""
    id_column: str = ""
    """Of the table's ids, if it was named."""

    @property
    def file(self) -> str:
        """The table's name, as the page shows it."""
        return clipped(self.path.name)

    @property
    def title(self) -> str:
        """The column's name, as the page shows it."""
        return clipped(self.column, MAX_TEXT)

    @property
    def num_found(self) -> int:
        return sum(text is not None for text in self.texts)

    @property
    def numbers(self) -> list[float | None] | None:
        """The labels as numbers, where they all are and are too many to be names."""
        known = {text for text in self.texts if text is not None}
        if len(known) <= MAX_NAMES or not all(_is_number(text) for text in known):
            return None
        return [None if text is None else float(text) for text in self.texts]

    @property
    def names(self) -> list[str]:
        """The labels that get a colour, the commonest first; the others are OTHER."""
        counts = Counter(clipped(text, MAX_TEXT) for text in self.texts if text is not None)
        return sorted(counts, key=lambda name: (-counts[name], name))[:MAX_NAMES]


def read(
    path: Path,
    column: str,
    ids: Sequence[str],
    id_columns: IdColumns = ID_ALONE,
    id_column: str = "",
) -> Labels:
    """Return the labels of the whole `ids` from the table `path` (CSV, TSV or Parquet, plain or
    compressed), which has their `id_columns`. It may be of any length.

    Raises:
        UserError: where there is no such table or column, or it does not say which record a row is
            of.
    """
    wanted = {*ids, *(id_columns.accession(id) for id in ids)}
    found, _ = labels.read(path, column, None, id_columns, id_column, wanted, log)
    named = labels.NamedRecords("record on the map", id_columns, None)
    label_of = labels.of_ids(found, path, ids, named)
    texts = [label_of[id].name if id in label_of else None for id in ids]
    if not ids or found:
        return Labels(column, path, texts, id_column=id_column)
    example = labels.first_id(path, id_columns, id_column)
    mismatch = (
        f"{path}: no record on the map has a {column} there, by its id or accession: the first id "
        f"is {clipped(example)!r}, and the run's first is {clipped(ids[0])!r}"
    )
    return Labels(column, path, texts, mismatch)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
