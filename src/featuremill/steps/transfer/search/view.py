"""Write hits as TSV or as an aligned table."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TextIO

from featuremill.kit.files import replacing
from featuremill.kit.processes import is_output_read
from featuremill.kit.text import one_line, plain
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.transfer.search.hits import Hit

Format = Literal["table", "tsv"]
GAP = "  "
NUMBERS = {"rank", "score", "length"}
MIN_DESCRIPTION = 20
"""The least width of a description on a narrow terminal."""


def write(batches: Iterable[Iterable[Hit]], path: Path | None, format: Format | None) -> None:
    """Write hits, as they are found, to `path` or standard output. Without `format`, terminals get
    a table, and others TSV."""
    with _output(path) as out:
        shown = format or ("table" if out.isatty() else "tsv")
        view = Aligned(out) if shown == "table" else Tsv(out)
        for hits in batches:
            view.write(hits)
            out.flush()
            if not path and not is_output_read():  # the reader has closed the pipe, like `head`
                return


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a temporary file that is renamed to `path` at the end."""
    if path and path.exists() and not path.is_file():  # do not replace a pipe or a device
        with path.open("w", encoding="utf-8") as out:
            yield out
        return
    if path:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as out:
            yield out
        return
    yield sys.stdout


class Tsv:
    """Writes tab-separated values."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._table: TsvWriter | None = None
        self._shown = plain if out.isatty() else str

    def write(self, hits: Iterable[Hit]) -> None:
        """Append the hits of some queries."""
        for hit in hits:
            self._table = self._table or TsvWriter(self._out, Hit._fields)
            texts = [self._shown(str(field)) for field in hit._replace(score=0)]
            texts[Hit._fields.index("score")] = f"{hit.score:.9g}"
            self._table.row(texts)


class Aligned:
    """Writes a table with aligned columns; on a terminal, the last column is clipped."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._widths = [len(name) for name in Hit._fields]
        self._has_headings = False

    def write(self, hits: Iterable[Hit]) -> None:
        """Append the hits of some queries."""
        rows = []
        for hit in hits:
            numbers = f"{hit.score:.6f}", f"{hit.length:,}"
            texts = [*map(str, hit[:3]), *numbers, hit.description]
            rows.append([plain(one_line(text)) for text in texts])
        columns = zip(*rows, strict=True) if rows else [()] * len(self._widths)
        self._widths = [
            max([width, *map(len, column)])
            for width, column in zip(self._widths, columns, strict=True)
        ]
        if not self._has_headings:
            self._has_headings = True
            rows.insert(0, list(Hit._fields))
        self._out.writelines(f"{self._line(row)}\n" for row in rows)

    def _line(self, row: list[str]) -> str:
        *cells, description = (
            f"{text:{'>' if name in NUMBERS else '<'}{width}}"
            for name, text, width in zip(Hit._fields, row, self._widths, strict=True)
        )
        start = GAP.join(cells) + GAP
        if self._out.isatty():
            left = max(shutil.get_terminal_size().columns - len(start), MIN_DESCRIPTION)
            description = description.rstrip()
            if len(description) > left:
                description = f"{description[: left - 1]}…"
        return f"{start}{description}".rstrip()
