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
from featuremill.inputs import RowOptions, columns, format_of, rows, source, table


class Label(NamedTuple):
    """What the table says of an id."""

    name: str
    """The label itself."""
    group: str
    """The id itself where there are no groups."""
    line: int


class Columns(RowOptions):
    """The columns that are read."""

    names: tuple[str, ...]

    def payload_columns(self) -> tuple[str, ...]:
        return self.names


def check(path: Path, column: str) -> None:
    """Read the header of the table `path`; raise UserError where it has no id or no `column`."""
    names = names_of(path)
    columns.find_id(path, names)
    columns.find_named(path, names, column)


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


def read(path: Path, column: str, group: str | None) -> tuple[dict[str, Label], int]:
    """Return the label of each id in the table `path` (CSV, TSV or Parquet, plain or compressed),
    and how many rows have none.

    Raises:
        UserError: when there is no such table or column, or a row is wrong.
    """
    wanted = (column, *([group] if group else []))
    for name in wanted:
        check(path, name)
    found: dict[str, Label] = {}
    num_empty = 0
    for record in rows([path], Columns(names=wanted)):
        where = f"{path}:{record.line}"
        if record.reason:
            raise UserError(f"{where}: this row has no id of a record ({record.reason}); fix it.")
        cells = {name: text(value) for name, value in json.loads(record.payload).items()}
        if not cells[column]:
            num_empty += 1
            continue
        if record.id in found:
            raise UserError(
                f"{where}: {clipped(record.id)!r} has a label in line {found[record.id].line} "
                "already; leave one of them."
            )
        of_group = cells[group] if group else record.id
        if not of_group:
            raise UserError(
                f"{where}: {clipped(record.id)!r} has no {group}; give it one (its own id, where "
                "it has no relatives), or leave the row out."
            )
        found[record.id] = Label(cells[column], of_group, record.line)
    if not found:
        raise UserError(f"{path}: no row has a label in {column!r}; fill it in.")
    return found, num_empty


def text(value: object) -> str:
    """Return a cell as text: what is no text in Parquet (numbers, yes and no) as JSON has it."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)
