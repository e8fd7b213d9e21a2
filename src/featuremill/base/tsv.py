"""TSV files, the format of all results that are text.

A line is a row, and no cell is quoted. Control characters are escaped (a tab is `\\x09`), and so is
a quotation mark at the start of a cell (`\\x22`), so that readers with and without quoting see the
same cells. None is an empty cell.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from featuremill.base.text import CONTROL, one_line

if TYPE_CHECKING:
    import pyarrow as pa

MARK, MARK_WRITTEN_OUT = '"', r"\x22"
MUST_CHANGE = f"^{MARK}|{CONTROL.pattern}"
BLOCK_ROWS = 1_024
"""Rows of a table that are text in memory at a time."""


def cell(value: object) -> str:
    if value is None:
        return ""
    text = one_line(str(value))
    return MARK_WRITTEN_OUT + text[1:] if text.startswith(MARK) else text


def original(text: str) -> str:
    """Return a cell with its first quotation mark unescaped; control characters stay escaped."""
    return MARK + text.removeprefix(MARK_WRITTEN_OUT) if text.startswith(MARK_WRITTEN_OUT) else text


def read(file: TextIO) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of ours, open with newline="", by the names of its columns.

    Earlier versions quoted cells that hold a quotation mark; csv knows these by their first letter.
    """
    csv.field_size_limit(2**31 - 1)  # an id is as long as its header line
    rows = csv.reader(file, delimiter="\t")
    names = next(rows, [])
    yield from (dict(zip(names, map(original, row), strict=False)) for row in rows)


class TsvWriter:
    """Writes the names of the columns, then rows."""

    def __init__(self, file: TextIO, names: Iterable[object]) -> None:
        """Open `file` with newline="" or newline="\\n"."""
        self._file = file
        self.row(names)

    def row(self, values: Iterable[object]) -> None:
        self._file.write("\t".join(map(cell, values)) + "\n")

    def columns(self, columns: Sequence[pa.ChunkedArray]) -> None:
        """Append rows of equally long Arrow columns; numbers have the digits that round-trip."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.table(columns, names=[str(number) for number in range(len(columns))])
        for start in range(0, table.num_rows, BLOCK_ROWS):
            block = table.slice(start, BLOCK_ROWS).combine_chunks()
            texts = [_cells(column) for column in block.columns]
            rows = pc.binary_join_element_wise(
                *texts, "\t", null_handling="replace", null_replacement=""
            )
            self._file.writelines(f"{row}\n" for row in rows.to_pylist())


def _cells(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column.cast(pa.string())
    if pa.types.is_primitive(column.type):
        return texts
    if not pc.any(pc.match_substring_regex(texts, MUST_CHANGE)).as_py():
        return texts
    return pa.chunked_array([[None if text is None else cell(text) for text in texts.to_pylist()]])
