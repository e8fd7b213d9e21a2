"""failed.tsv: the records of a run without values, each with the reason; its one reader."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Failure(NamedTuple):
    """A record without values: a row of failed.tsv, whose columns these are."""

    id: str
    """Its control characters are written out, as in the file."""
    source: str
    """The input file."""
    line: str
    status: str
    """failed, refused or, in partial results, pending."""
    reason: str
    sample: str = ""
    """A column of runs with samples alone."""


COLUMNS = Failure._fields[:-1]
"""Those of a run without samples."""


def read(path: Path) -> Iterator[Failure]:
    """Yield the rows of the failed.tsv at `path`, one in memory at a time.

    Raises:
        FileNotFoundError: when it is gone.
        KeyError: when it lacks a column.
    """
    csv.field_size_limit(2**31 - 1)  # an id is as long as its header line
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            told = {name: row[name] for name in COLUMNS}
            yield Failure(**told, sample=row.get("sample", ""))
