"""The labels that a head is trained on: a class, and perhaps a group, by id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.text import clipped
from featuremill.inputs import RowOptions, rows
from featuremill.report import labels as tables


class Label(NamedTuple):
    """What the table says of an id."""

    name: str
    """Of the class."""
    group: str
    """The id itself where there are no groups."""
    line: int


class _Columns(RowOptions):
    """The columns that are read."""

    names: tuple[str, ...]

    def payload_columns(self) -> tuple[str, ...]:
        return self.names


def read(path: Path, column: str, group: str | None) -> tuple[dict[str, Label], int]:
    """Return the label of each id in the table `path` (CSV, TSV or Parquet, plain or compressed),
    and how many rows have none.

    Raises:
        UserError: when there is no such table or column, or a row is wrong.
    """
    wanted = (column, *([group] if group else []))
    for name in wanted:
        tables.check(path, name)
    found: dict[str, Label] = {}
    num_empty = 0
    for record in rows([path], _Columns(names=wanted)):
        where = f"{path}:{record.line}"
        if record.reason:
            raise UserError(f"{where}: this row has no id of a record ({record.reason}); mend it.")
        cells = {name: _text(value) for name, value in json.loads(record.payload).items()}
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
                "it belongs to nobody), or leave the row out."
            )
        found[record.id] = Label(cells[column], of_group, record.line)
    if not found:
        raise UserError(f"{path}: no row has a label in {column!r}; fill it in.")
    return found, num_empty


def of_fragments(found: dict[str, Label], translated: Path) -> tuple[dict[str, Label], int]:
    """Return the label of each fragment in the folder `translated` whose contig has one, and how
    many of those contigs have no fragment. A contig's group is that of its fragments.

    Raises:
        UserError: when that is no finished translation.
    """
    import pyarrow.parquet as pq

    from featuremill.steps.translate.folder import whole
    from featuremill.steps.translate.names import FRAGMENTS

    whole(translated)
    labelled: dict[str, Label] = {}
    without = set(found)
    with pq.ParquetFile(translated / FRAGMENTS) as file:
        for batch in file.iter_batches(columns=["id", "contig"]):
            for id, contig in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if contig in found:
                    labelled[id] = found[contig]
                    without.discard(contig)
    return labelled, len(without)


def _text(value: object) -> str:
    """Return a cell as text: what is no text in Parquet (numbers, yes and no) as JSON has it."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)
