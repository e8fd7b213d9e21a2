"""Labels for the records on the map: one column of a user's table, joined by id."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.accession import accession
from featuremill.base.errors import UserError
from featuremill.base.matching import Matcher
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


def read_all(
    path: Path, column: str, ids: Sequence[str], samples: Sequence[str], id_column: str
) -> Iterator[Labels]:
    """Yield the labels in `column` as `read` does, and those in the table's other columns, as far
    as they are labels of these records.

    Raises:
        UserError: as `read` does, about `column`.
    """
    yield read(path, column, ids, samples, id_column)
    names = labels.names_of(path)
    whose = {column, labels.SAMPLE, names[labels.find_id(path, names, id_column)]}
    others = [name for name in names if name not in whose]
    for name in others[:MAX_COLUMNS] if path.stat().st_size <= MOST_BYTES else ():
        with contextlib.suppress(UserError):
            more = read(path, name, ids, samples, id_column, warns=False)
            if more.num_found:
                yield more


def read(
    path: Path,
    column: str,
    ids: Sequence[str],
    samples: Sequence[str] = (),
    id_column: str = "",
    warns: bool = True,
) -> Labels:
    """Return the labels of `ids` from the table `path` (CSV, TSV or Parquet, plain or compressed);
    with `samples`, the samples of the ids, the table has a column of them. It may be of any length.

    Raises:
        UserError: where there is no such table or column, or it does not say which record a row is
            of.
    """
    of_samples, teller = any(samples), log if warns else None
    full = [_full(samples[place] if samples else "", id) for place, id in enumerate(ids)]
    wanted = set(full)
    for place, id in enumerate(ids):
        wanted.add(_full(samples[place] if samples else "", accession(id)))
    found, _ = labels.read(path, column, None, of_samples, id_column, wanted, teller)
    lines = {name: label.line for name, label in found.items()}
    names = Matcher(path, lines, "record on the map", of_samples).match(full)
    names.check()
    text_of = {id: found[name].name for name, id in names.id_of.items()}
    texts = [text_of.get(id) for id in full]
    if not ids or found:
        return Labels(column, path, texts, id_column=id_column)
    example = labels.first_id(path, of_samples, id_column)
    mismatch = (
        f"{path}: no record on the map has a {column} there, by its id or accession: the first id "
        f"is {clipped(example)!r}, and the run's first is {clipped(full[0])!r}"
    )
    return Labels(column, path, texts, mismatch)


def _full(sample: str, id: str) -> str:
    """Return an id that no other record of the run has."""
    return f"{sample}/{id}" if sample else id
