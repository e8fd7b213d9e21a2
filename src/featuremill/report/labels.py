"""Read labels for the records on the map from columns of a user's table, by id."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE, KEYS, IdColumns
from featuremill.base.text import clipped
from featuremill.features.shown import Labels
from featuremill.inputs import labels

MAX_COLUMNS = 12
"""Largest number of columns in the menu of colours."""
MOST_BYTES = 2**25
"""Largest size of a table of which all columns are read."""
log = logging.getLogger("featuremill.report")


def read_all(
    path: Path, column: str, ids: Sequence[str], id_columns: IdColumns, id_column: str
) -> Iterator[Labels]:
    """Yield the labels in `column`, as `read` does, and then those in other columns of the table
    that have labels for these records.

    Raises:
        UserError: as `read` does for `column`.
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
    compressed, of any length), which has the `id_columns`.

    Raises:
        UserError: if there is no such table or column, or its rows are ambiguous.
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
