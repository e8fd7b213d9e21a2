"""Labels for the records on the map: one column of a user's table, joined by id."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE, KEYS, IdColumns
from featuremill.base.text import clipped
from featuremill.inputs import labels

MAX_TEXT = 40
MAX_COLUMNS = 12
"""Columns of a table in the menu of colours."""
MOST_BYTES = 2**25
"""Size of a table of which all columns are read, one after the other."""
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
    """Name of the column of ids, if the user gave it."""

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


def read_all(
    path: Path, column: str, ids: Sequence[str], id_columns: IdColumns, id_column: str
) -> Iterator[Labels]:
    """Yield the labels in `column` as `read` does, and those in the table's other columns, as far
    as they are labels of these records.

    Raises:
        UserError: as `read` does, about `column`.
    """
    yield read(path, column, ids, id_columns, id_column)
    names = labels.names_of(path)
    whose = {column, *KEYS, names[labels.find_id(path, names, id_column)]}
    others = [name for name in names if name not in whose]
    for name in others[:MAX_COLUMNS] if path.stat().st_size <= MOST_BYTES else ():
        with contextlib.suppress(UserError):
            more = read(path, name, ids, id_columns, id_column, warns=False)
            if more.num_found:
                yield more


def read(
    path: Path,
    column: str,
    ids: Sequence[str],
    id_columns: IdColumns = ID_ALONE,
    id_column: str = "",
    warns: bool = True,
) -> Labels:
    """Return the labels of the whole `ids` from the table `path` (CSV, TSV or Parquet, plain or
    compressed), which has their `id_columns`. It may be of any length.

    Raises:
        UserError: where there is no such table or column, or it does not say which record a row is
            of.
    """
    wanted = {*ids, *(id_columns.accession(id) for id in ids)}
    rows, _ = labels.read(path, column, None, id_columns, id_column, wanted, log if warns else None)
    named = labels.NamedRecords("record on the map", id_columns, None)
    label_of = labels.of_ids(rows, path, ids, named)
    texts = [label_of[id].name if id in label_of else None for id in ids]
    if not ids or rows:
        return Labels(column, path, texts, id_column=id_column)
    example = labels.first_id(path, id_columns, id_column)
    mismatch = (
        f"{path}: no record on the map has a {column} there, by its id or accession: the first id "
        f"is {clipped(example)!r}, and the run's first is {clipped(ids[0])!r}"
    )
    return Labels(column, path, texts, mismatch)
