"""CSV and TSV tables, read by pandas in chunks.

Cells stay as they are written: an id `NA` or `001` is that. A record's line is its row, the header
being line 1 (the same thing, unless cells hold line breaks). Wholly blank rows are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.base.errors import UserError
from featuremill.inputs import source
from featuremill.inputs.kinds import Kind, Taken
from featuremill.workload import Record

if TYPE_CHECKING:  # it takes a third of a second to import, and most inputs are no tables
    import pandas as pd

CHUNK_ROWS = 10_000
MAX_CHUNK_BYTES = 10 * source.MAX_RECORD_BYTES
"""What that many rows may take."""


def read(path: Path, kind: Kind) -> Iterator[Record]:
    """Stream the rows of a CSV or TSV table."""
    import pandas as pd

    separator, names = header(path)
    taken = kind.taken(path, names)
    with source.open_text(path, "strict", MAX_CHUNK_BYTES) as text:
        meter = source.meter_of(text)
        try:
            chunks = pd.read_csv(
                text,
                sep=separator,
                header=0,
                names=range(len(names)),
                dtype=object,
                keep_default_na=False,
                na_filter=False,
                skip_blank_lines=False,  # so that rows can be counted
                chunksize=CHUNK_ROWS,
            )
            for chunk in chunks:
                meter.num_open = 0
                yield from _records(path, chunk, taken)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None
        except pd.errors.ParserError as error:
            problem = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
            raise UserError(
                f"{path}: this table is broken ({problem}); fix or export it again."
            ) from None


def _records(path: Path, chunk: pd.DataFrame, taken: Taken) -> Iterator[Record]:
    import pandas as pd

    if not isinstance(chunk.index, pd.RangeIndex):
        # pandas takes rows that are longer than the header for rows with an index column in front.
        raise UserError(
            f"{path}: the rows have more columns than the header; add the missing name to it."
        )
    blank = (chunk == "").all(axis=1).tolist()
    name, first = str(path), chunk.index.start + 2
    values = zip(*(chunk[place].tolist() for place in taken.places), strict=True)
    for row, cells in enumerate(values):
        if not blank[row]:
            yield taken.of_row(cells, name, first + row)


def names_of(path: Path) -> list[str]:
    """Return the names of the columns."""
    return header(path)[1]


def header(path: Path) -> tuple[str, list[str]]:
    """Return the separator and the names in the first line, whatever separator the suffix means."""
    with source.open_text(path, errors="strict") as text:
        try:
            line = text.readline()
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None
    if line.startswith(">"):
        raise UserError(f"{path}: this looks like FASTA, not like a table; name it .fasta.")
    separator = "\t" if "\t" in line else max(",;|", key=line.count)
    return separator, next(csv.reader([line], delimiter=separator), [])


def _not_utf8(path: Path, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    return UserError(
        f"{path}: this table is not in UTF-8 (byte 0x{byte:02X}); save it as 'CSV UTF-8'."
    )
