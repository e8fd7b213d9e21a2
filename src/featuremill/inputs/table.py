"""Read CSV and TSV tables, row by row.

Comment lines (#) above the header are skipped, as is Excel's `sep=`. The last line with a # that
has no fewer cells than the line below it is the header, unless the line below has the names of
columns. Cells are read as text: an id `NA` or `001` is kept. The line of a record is the first line
of its row. Blank rows are skipped, and missing cells at the end of a row are empty.

An opening quotation mark without a closing one hides the rows after it. Therefore quoting is read
strictly, as csv, pandas, R's write.csv and spreadsheets write it. A quoted cell over several lines
is accepted if its lines are not rows by themselves, or if the file shows that its writer quotes. A
TSV table has no quoting by its standard (IANA, text/tab-separated-values): marks that quote nothing
are plain characters, as in UniProt's tables, if the line is a whole row; else they are refused.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.inputs import columns, source
from featuremill.inputs.kinds import Kind
from featuremill.workload import Record

MARK = '"'
EXCEL = re.compile(r'"?sep=(.)"?[,;\t]*\s*', re.IGNORECASE)
"""First line in which Excel names the separator."""
JSON = re.compile(r"\s*(\{|\[\s*([\[{]|$))")
"""The beginning of a JSON document or a line of JSON."""
NEVER = "nothing closes its cell"
STANDS_ALONE = "another one stands inside its cell"
HIDES = "whole rows stand before"
TAB = "\t"
csv.field_size_limit(source.MAX_RECORD_BYTES)


class Line(NamedTuple):
    number: int
    text: str


def read(path: Path, kind: Kind) -> Iterator[Record]:
    """Yield the rows of a CSV or TSV table."""
    taken = kind.taken(path, names_of(path))
    name, indices = str(path), taken.indices
    for line, cells in rows(path):
        yield taken.of_row([cells[index] for index in indices], name, line)


def names_of(path: Path) -> list[str]:
    """Return the names of the columns; the suffix does not matter."""
    return _head(path)[2]


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the cells of each row, one cell for each column.

    Raises:
        UserError: if rows are ambiguous; the message has the line.
    """
    num_before, separator, names = _head(path)
    width = len(names)
    with source.open_text(path, "strict") as text:
        meter = source.meter_of(text)
        lines = _Lines(path, text, separator, width)
        try:
            for _ in range(num_before + 1):
                next(lines)
            for number, cells in lines.rows():
                meter.num_open = 0
                if len(cells) != width:
                    if len(cells) > width:
                        raise UserError(
                            f"{path}:{number}: this row has {len(cells)} cells, and the header has "
                            f"{width} names; add the missing name to the header, or quote what has "
                            "a separator in it."
                        )
                    cells += [""] * (width - len(cells))
                if any(cells):
                    yield number, cells
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None


def _head(path: Path) -> tuple[int, str, list[str]]:
    """Return the number of lines before the header, the separator, and the names of the columns."""
    num_before, chosen = 0, ""
    with source.open_text(path, errors="strict") as text:
        try:
            line = text.readline()
            if excel := EXCEL.fullmatch(line):
                num_before, chosen, line = 1, excel[1], text.readline()
            while line.startswith("#") and (following := text.readline()):
                separator = chosen or _separator_of(following)
                if following[0] != "#" and _is_header(line, following, separator):
                    break
                num_before, line = num_before + 1, following
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None
    if line.startswith(">"):
        raise UserError(f"{path}: this looks like FASTA, not like a table; name it .fasta.")
    if JSON.match(line):
        raise UserError(f"{path}: this looks like JSON, not like a table; write it as a table.")
    separator = chosen or _separator_of(line)
    lines = _Lines(path, iter([line]), separator, 0)
    return num_before, separator, lines.cells_of(next(lines)) if line.strip() else []


def _is_header(line: str, following: str, separator: str) -> bool:
    """Return whether a line with a # is the header, not a comment above it: it has no fewer cells
    than the line below, and not only the line below has a usual name of an id column."""
    has_id = [columns.has_id(_names(text, separator)) for text in (line, following)]
    return following.count(separator) <= line.count(separator) and has_id != [False, True]


def _names(line: str, separator: str) -> list[str]:
    return [cell.strip().strip(MARK) for cell in line.split(separator)]


def _separator_of(line: str) -> str:
    return TAB if TAB in line else max(",;|", key=line.count)


class _Lines(Iterator[Line]):
    """The lines of a table, and the cells of the rows that begin in them."""

    def __init__(self, path: Path, text: Iterator[str], separator: str, width: int) -> None:
        self._path, self._separator, self._width = path, separator, width
        self._left = enumerate(text, 1)
        self._ahead: deque[Line] = deque()
        """Lines that were read and pushed back."""
        self._open = 0
        """In a TSV table, the line of a quotation mark that opened an unfinished cell; else 0."""
        self._is_sure: bool | None = None
        """Whether the file is known to quote cells."""

    def __next__(self) -> Line:
        return self._ahead.popleft() if self._ahead else Line(*next(self._left))

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of the first line and the cells of each remaining row."""
        left, ahead, separator = self._left, self._ahead, self._separator
        while True:
            number, text = ahead.popleft() if ahead else next(left, (0, ""))
            if not number:
                return
            if self._open or MARK in text:
                yield number, self.cells_of(Line(number, text))
            else:
                yield number, text.rstrip("\n").split(separator)

    def cells_of(self, first: Line) -> list[str]:
        """Return the cells of the row that begins in this line; consume its other lines."""
        if self._open and first.text.strip() and not self._is_row(first):
            raise self._wrong(self._open, f"line {first.number} is no whole row")
        if MARK not in first.text:
            return first.text.rstrip("\n").split(self._separator)
        if not self._open and (closed := self._closed(first)):
            return closed
        if self._separator == TAB:
            return self._by_tabs(first)
        lines, cells, problem = self._quoted(first)
        if len(lines) == 1 and len(cells) != self._width and self._is_row(first):
            if problem:
                return self._plain(first)
            if not self._quotes():
                raise UserError(
                    f"{self._path}:{first.number}: this row has {len(cells)} cells if its "
                    f"quotation marks quote, and {self._width} if they do not; write its empty "
                    "cells at the end, or take the marks away."
                )
        if problem:
            where = "" if len(lines) == 1 else f" in line {lines[-1].number}"
            raise self._wrong(first.number, f"{problem}{where}")
        if len(lines) > 1 and (len(cells) != self._width or not self._is_one_row(lines)):
            raise self._wrong(first.number, f"{HIDES} its cell ends, in line {lines[-1].number}")
        return cells

    def _closed(self, line: Line) -> list[str]:
        """Return the cells of a line that is a whole row with marks only around cells; [] if it is
        not. This is the usual case, for which csv is several times slower."""
        cells = line.text.rstrip("\n").split(self._separator)
        if len(cells) != self._width:
            return []
        for index, cell in enumerate(cells):
            if MARK in cell:
                cells[index] = inner = cell[1:-1]
                if MARK in inner or cell != f"{MARK}{inner}{MARK}":
                    return []
        return cells

    def _by_tabs(self, first: Line) -> list[str]:
        if self._open:
            self._follow(first)
        lines, cells, problem = self._quoted(first)
        is_more = len(lines) > 1 or not self._is_row(first)
        if is_more and not problem and len(cells) == self._width:
            return cells
        if self._width and not self._is_row(first):
            raise self._wrong(first.number, problem or "the line is no whole row")
        self._ahead.extendleft(reversed(lines[1:]))
        if not self._open and (end := _end_of(first.text)) and end.is_inside:
            self._open = first.number
        return self._plain(first)

    def _plain(self, line: Line) -> list[str]:
        return [_unquoted(cell) for cell in line.text.rstrip("\n").split(self._separator)]

    def _follow(self, line: Line) -> None:
        """Raise UserError if an open cell ends in this line; clear it if it cannot end."""
        end = _end_of(MARK + line.text)
        if end is None:
            self._open = 0
        if end is None or (end.is_inside and end.num_cells == 1):
            return
        raise self._wrong(self._open, f"{HIDES} a mark could close its cell, in line {line.number}")

    def _quoted(self, first: Line) -> tuple[list[Line], list[str], str]:
        """Return the lines and the cells of a row with quoted cells, and the problem with them, if
        any. In a TSV table, a line that is a row by itself ends the row."""
        lines = [first]

        def texts() -> Iterator[str]:
            yield first.text
            for line in self:
                lines.append(line)
                if self._separator == TAB and self._is_row(line):
                    return
                yield line.text

        try:
            return lines, next(csv.reader(texts(), delimiter=self._separator, strict=True)), ""
        except csv.Error as error:
            return lines, [], NEVER if "end of data" in str(error) else STANDS_ALONE

    def _is_row(self, line: Line) -> bool:
        return line.text.count(self._separator) == self._width - 1

    def _is_one_row(self, lines: list[Line]) -> bool:
        are_rows = self._is_row(lines[0]) and any(map(self._is_row, lines[1:]))
        return not are_rows or self._quotes()

    def _quotes(self) -> bool:
        """Return whether the file shows that its writer quotes: the first name is quoted, or a line
        is a whole row only if separators inside marks do not count."""
        if self._is_sure is None:
            with source.open_text(self._path, "strict") as text:
                self._is_sure = text.readline().startswith(MARK) or any(map(self._shows, text))
        return self._is_sure

    def _shows(self, text: str) -> bool:
        if MARK not in text or text.count(self._separator) < self._width:
            return False
        try:
            (cells,) = csv.reader([text], delimiter=self._separator, strict=True)
        except csv.Error:
            return False
        return len(cells) == self._width

    def _wrong(self, line: int, problem: str) -> UserError:
        return UserError(
            f"{self._path}:{line}: a quotation mark stands here, and {problem}; close the "
            "cell in its own line, or take the mark away (inside a quoted cell, write it twice)."
        )


class _End(NamedTuple):
    """The end of a line of quoted cells in a TSV table."""

    is_inside: bool
    """Whether the last cell continues in the next line."""
    num_cells: int


def _end_of(text: str) -> _End | None:
    reader = csv.reader(iter([text, MARK]), delimiter=TAB, strict=True)
    try:
        cells = next(reader)
    except csv.Error:  # a mark within a cell
        return None
    return _End(reader.line_num > 1, len(cells))


def _unquoted(cell: str) -> str:
    """Return a cell of a TSV table without the marks that some writers put around texts."""
    if len(cell) > 1 and cell[0] == cell[-1] == MARK:
        inner = cell[1:-1].replace(MARK * 2, "")
        return cell[1:-1].replace(MARK * 2, MARK) if MARK not in inner else cell
    return cell


def _not_utf8(path: Path, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    return UserError(
        f"{path}: this table is not in UTF-8 (byte 0x{byte:02X}); save it as 'CSV UTF-8'."
    )
