"""Labels of records: a table's column of labels, and perhaps one of groups, by id."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import UserError
from featuremill.base.text import clipped
from featuremill.inputs import NamedColumns, columns, format_of, rows, source, table

ID = "id"
"""In place of a column of groups: each record is one."""
SAMPLE = "sample"
"""The column that says whose record an id is, where records are of samples."""


class Label(NamedTuple):
    """What the table says of an id."""

    name: str
    """The label itself."""
    group: str
    """Where there are no groups, the id itself or, of samples, the record's."""
    line: int


def check(path: Path, column: str, of_samples: bool = False) -> None:
    """Read the header of the table `path`; raise UserError where it has no id or no `column` or,
    if `of_samples`, no column `sample`."""
    names = names_of(path)
    columns.find_id(path, names)
    columns.find_named(path, names, column)
    if of_samples and SAMPLE not in names:
        raise UserError(
            f"{path}: the records are of samples, which may have the same ids, and this table has "
            f"no column {SAMPLE!r}; add it."
        )


def names_of(path: Path) -> list[str]:
    """Return the names of the columns of the table `path`; raise UserError where it is none."""
    with refusing_damage(path):
        is_parquet = format_of(path).module == "parquet"
        return list(pq.read_schema(path).names if is_parquet else table.header(path)[1])


@contextlib.contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Raise UserError where the table `path` is not there, or turns out to be broken."""
    source.check(path)
    try:
        yield
    except source.DamagedError as damage:
        raise UserError(f"{path}: this file {damage.problem}; {damage.remedy}.") from None
    except (csv.Error, pa.ArrowException) as error:
        raise UserError(f"{path}: this table is broken ({error}); export it again.") from None


def read(
    path: Path, column: str, group: str | None, of_samples: bool = False
) -> tuple[dict[str, Label], int]:
    """Return the label of each id in the table `path` (CSV, TSV or Parquet, plain or compressed),
    and how many rows have none. If the records are `of_samples`, the table has a column `sample`,
    and an id is `<sample>/<id>` here, as those of features are. The `group` "id" is the record.

    Raises:
        UserError: when there is no such table or column, or a row is wrong.
    """
    by = None if group == ID else group
    wanted = (column, *([by] if by else []))
    for name in wanted:
        check(path, name, of_samples)
    found: dict[str, Label] = {}
    num_empty = 0
    whose = [SAMPLE] if of_samples else []
    for record in rows([path], NamedColumns(names=tuple(dict.fromkeys([*wanted, *whose])))):
        where = f"{path}:{record.line}"
        if record.reason:
            raise UserError(f"{where}: this row has no id of a record ({record.reason}); fix it.")
        cells = {name: text(value) for name, value in json.loads(record.payload).items()}
        if not cells[column]:
            num_empty += 1
            continue
        if of_samples and not cells[SAMPLE]:
            raise UserError(
                f"{where}: this row does not say whose {clipped(record.id)!r} is; fix it."
            )
        id = f"{cells[SAMPLE]}/{record.id}" if of_samples else record.id
        if id in found:
            raise UserError(
                f"{where}: {clipped(id)!r} has a label in line {found[id].line} already; leave one "
                "of them."
            )
        of_group = cells[by] if by else cells[SAMPLE] if of_samples and group != ID else id
        if not of_group:
            raise UserError(
                f"{where}: {clipped(id)!r} has no {group}; give it one (its own id, where it has "
                "no relatives), or leave the row out."
            )
        found[id] = Label(cells[column], of_group, record.line)
    if not found:
        raise UserError(f"{path}: no row has a label in {column!r}; fill it in.")
    return found, num_empty


def text(value: object) -> str:
    """Return a cell as text: what is no text in Parquet (numbers, yes and no) as JSON has it."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)
