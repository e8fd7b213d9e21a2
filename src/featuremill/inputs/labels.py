"""Read labels of records by id: a column of a table, and optionally a column of groups."""

from __future__ import annotations

import contextlib
import csv
import json
import logging
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE, IdColumns
from featuremill.base.matching import Matcher
from featuremill.base.reasons import is_missing as is_missing
from featuremill.base.text import clipped
from featuremill.base.words import listed
from featuremill.inputs import NamedColumns, columns, format_of, parquet, rows, source, table

ID = "id"
"""The name, in place of a column of groups, that makes each record a group."""
CHOOSE_IDS = "call the right one 'id', or name it with --id-column (id_column in a config)"
IDS_AT_ONCE = 2**17
MOST_AHEAD_BYTES = 2**23
"""Largest size of a table that is read before the first job: a few hundred thousand rows."""


class NamedRecords(NamedTuple):
    """The records to which the names in a table should belong."""

    called: str
    """The noun for messages: "record of results/my"."""
    id_columns: IdColumns
    log: logging.Logger | None
    """The logger for warnings of names without a record."""


class Label(NamedTuple):
    name: str
    """The label: a class, a number or letters."""
    group: str
    """The group; by default the record's sample or, without samples, the id."""
    line: int


def check(path: Path, column: str, id_columns: IdColumns = ID_ALONE, id_column: str = "") -> str:
    """Return the name of the column of ids in the table `path`: `id_column`, or found by its name;
    raise UserError if the table lacks `column` or one of the `id_columns`."""
    names = names_of(path)
    columns.find_named(path, names, column)
    id = names[find_id(path, names, id_column)]
    for key in id_columns.keys:
        if key not in names:
            raise UserError(
                f"{path}: the records are of {key}s, which may have the same ids, and this table "
                f"has no column {key!r}; add it."
            )
    return id


def find_id(path: Path, names: Sequence[str], id_column: str = "") -> int:
    """Return the index of the column of ids among `names`."""
    if id_column:
        return columns.find_named(path, names, id_column)
    return columns.find_id(path, names, CHOOSE_IDS)


def names_of(path: Path) -> list[str]:
    """Return the names of the columns of the table `path`; UserError if it is not a table."""
    with refusing_damage(path):
        is_parquet = format_of(path).module == "parquet"
        return parquet.names_of(path) if is_parquet else table.names_of(path)


@contextlib.contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Raise UserError if the table `path` is missing, or an error in the block shows damage."""
    source.check(path)
    try:
        yield
    except source.DamagedError as damage:
        raise UserError(f"{path}: this file {damage.problem}; {damage.remedy}.") from None
    except (csv.Error, pa.ArrowException) as error:
        raise UserError(f"{path}: this table is broken ({error}); export it again.") from None


def read(
    path: Path,
    column: str,
    group: str | None,
    id_columns: IdColumns = ID_ALONE,
    id_column: str = "",
    wanted: Container[str] | None = None,
    log: logging.Logger | None = None,
) -> tuple[dict[str, Label], int]:
    """Return the label of each id in the table `path` (CSV, TSV or Parquet, plain or compressed),
    and the number of rows without a label. The table has the `id_columns` of the records; returned
    ids are whole, as those of features. The `group` "id" is the record. With `wanted`, other ids
    are skipped. `log` gets warnings of doubtful labels.

    Raises:
        UserError: if the table or a column is missing, or a row is invalid.
    """
    by = None if group == ID else group
    needed = (column, *([by] if by else []))
    for name in needed:
        id_name = check(path, name, id_columns, id_column)
    labels: dict[str, Label] = {}
    num_empty = num_unwanted = 0
    names = tuple(dict.fromkeys([*needed, *id_columns.keys]))
    for record in rows([path], NamedColumns(id_column=id_name, names=names)):
        where = f"{path}:{record.line}"
        if record.reason:
            raise UserError(f"{where}: this row has no id of a record ({record.reason}); fix it.")
        cells = {name: text(value) for name, value in json.loads(record.payload).items()}
        if not cells[column]:
            num_empty += 1
            continue
        if not all(cells[key] for key in id_columns.keys):
            raise UserError(
                f"{where}: this row does not say whose {clipped(record.id)!r} is; fix it."
            )
        id = id_columns.whole(cells, record.id)
        if wanted is not None and id not in wanted:
            num_unwanted += 1
            continue
        if id in labels:
            raise UserError(
                f"{where}: {clipped(id)!r} has a label in line {labels[id].line} already; leave "
                "one of them."
            )
        of_group = cells[by] if by else id if group == ID else id_columns.owner(id) or id
        if not of_group or (by and is_missing(of_group)):
            raise UserError(
                f"{where}: {clipped(id)!r} has no {group}; give it one (its own id, where it has "
                "no relatives), or leave the row out."
            )
        labels[id] = Label(cells[column], of_group, record.line)
    if not labels and not num_unwanted:
        raise UserError(f"{path}: no row has a label in {column!r}; fill it in.")
    if log:
        for doubt in _doubts({label.name for label in labels.values()}):
            log.warning("%s: in %r, %s.", path, column, doubt)
    return labels, num_empty


def read_ahead(
    path: Path,
    column: str,
    group: str | None,
    id_columns: IdColumns = ID_ALONE,
    id_column: str = "",
    wanted: Container[str] | None = None,
) -> dict[str, Label]:
    """Return the labels as `read` does, before the first job; {} if missing or too large."""
    if not path.is_file() or path.stat().st_size > MOST_AHEAD_BYTES:
        return {}
    return read(path, column, group, id_columns, id_column, wanted)[0]


def first_id(path: Path, id_columns: IdColumns = ID_ALONE, id_column: str = "") -> str:
    """Return the whole id in the first row of the table, as `read` does."""
    names = names_of(path)
    id = names[find_id(path, names, id_column)]
    options = NamedColumns(id_column=id, names=id_columns.keys or tuple(names)[:1])
    first = next(iter(rows([path], options)))
    if not first.payload:
        return first.id
    cells = {name: text(value) for name, value in json.loads(first.payload).items()}
    return id_columns.whole(cells, first.id)


def _doubts(names: Collection[str]) -> Iterator[str]:
    """Yield warnings of words for missing values and of labels that differ only in case."""
    if absent := sorted(filter(is_missing, names)):
        says = ", ".join(map(repr, absent))
        yield f"{says} counts as a label like any other; for no label, leave the cell empty"
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(name.casefold(), []).append(repr(clipped(name)))
    for some in alike.values():
        if len(some) > 1:
            yield f"{listed(some)} count as different labels; write them alike if they are one"


class HasId(Protocol):
    """A record without a vector."""

    @property
    def id(self) -> str: ...


class HasIds(Protocol):
    """Features: the ids of rows, and the records without a vector."""

    num_rows: int

    def ids_of(self, rows: npt.NDArray[np.int64]) -> list[str]: ...

    def failures(self) -> Iterator[HasId]: ...


def by_record(
    labels: Mapping[str, Label], path: Path, parts: Sequence[HasIds], records: NamedRecords
) -> dict[str, Label]:
    """Return `labels` by the ids of records; the table `path` may name records by id or accession.
    A name without a record is kept.

    Raises:
        UserError: if a name belongs to several records, or few names belong to a record.
    """
    ids = chain.from_iterable(map(_ids_of, parts))
    return of_ids(labels, path, ids, records)


def of_ids(
    labels: Mapping[str, Label], path: Path, ids: Iterable[str], records: NamedRecords
) -> dict[str, Label]:
    """Return `labels` by these `ids`, as `by_record` does."""
    lines = {name: label.line for name, label in labels.items()}
    names = Matcher(path, lines, records.called, records.id_columns, records.log).match(ids)
    names.check()
    renamed = {}
    for name, label in labels.items():
        id = names.id_of.get(name, name)
        renamed[id] = label._replace(group=id) if label.group == name else label
    return renamed


def _ids_of(part: HasIds) -> Iterator[str]:
    for start in range(0, part.num_rows, IDS_AT_ONCE):
        yield from part.ids_of(np.arange(start, min(start + IDS_AT_ONCE, part.num_rows)))
    yield from (failure.id for failure in part.failures())


def text(value: object) -> str:
    """Return a cell as text: numbers and booleans of Parquet as in JSON, "" for null and NaN."""
    if value is None or value != value:  # NaN
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)
