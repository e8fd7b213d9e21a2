"""Find the columns of vectors in a table or a part, and select one of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from featuremill.base.errors import UserError

CHOOSING = "--vectors (in Python, column=)"
"""The default advice, in messages, how to choose one column of several."""


class Column(NamedTuple):
    """A column of vectors."""

    name: str
    width: int
    """The length of a vector."""
    is_per_residue: bool
    start: int
    """The index of its first number in a row of embeddings.npy, which has all pooled columns."""
    total: int
    """The length of such a row."""


def columns_of(schema: pa.Schema, of_residues: bool = False) -> dict[str, Column]:
    """Return the columns with a vector per record (also per residue if `of_residues`), by name."""
    columns: dict[str, Column] = {}
    total = 0
    for name, kind in zip(schema.names, schema.types, strict=True):
        is_list = pa.types.is_list(kind)
        vector = kind.value_type if is_list else kind
        if pa.types.is_fixed_size_list(vector) and (of_residues or not is_list):
            columns[name] = Column(name, vector.list_size, is_list, total, 0)
            total += 0 if is_list else vector.list_size
    return {name: column._replace(total=total) for name, column in columns.items()}


def chosen(
    schema: pa.Schema,
    column: str | None,
    where: Path | str,
    choosing: str = CHOOSING,
    of_residues: bool = False,
) -> Column:
    """Return the column called `column`, or the only one, of the columns that `columns_of` returns.
    `choosing` is the advice in messages how to choose one of several.

    Raises:
        UserError: if there is no such column, or several and `column` is None.
    """
    columns = columns_of(schema, of_residues)
    names = list(columns)
    if column is None and len(names) > 1:
        raise UserError(
            f"{where}: it has several columns; choose one of {', '.join(names)} with {choosing}."
        )
    column = column or next(iter(names), "")
    if column not in names:
        what = "of vectors" if of_residues else "with one vector a record"
        raise UserError(
            f"{where}: there is no column {column!r} {what}; it has {', '.join(names) or 'none'}."
        )
    return columns[column]
