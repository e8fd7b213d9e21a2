"""Read a sheet of samples: a table whose rows name a sample, one of its files, and other columns.

Samples are sorted by name, so the order of the rows does not matter between samples; files of a
sample are in the order of its rows. All cells are texts.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.id_columns import SAMPLE as SAMPLE
from featuremill.base.reasons import is_missing
from featuremill.base.text import clipped, plain_name
from featuremill.base.words import counted
from featuremill.inputs import NamedColumns, columns, is_table, labels, rows, source
from featuremill.workload import Record
from featuremill.workload.outputs import ABOUT

FILE = "file"
"""The column of files; all columns but this and SAMPLE describe the samples."""
COUNTED = ("records", "ok", "failed", "refused", "duplicate", "pending", "noted", "seconds")
"""The columns of counts in samples.tsv."""
MOST_LISTED = 5
"""Largest number of invalid rows in a message."""
RESERVED = {"name", *ABOUT, *COUNTED}
"""Names of columns of results, which a sheet may not have."""


class Row(NamedTuple):
    owner: int
    """The index of the sample in the order of names."""
    file: str
    line: int
    """The line number in the sheet."""


class Sheet(NamedTuple):
    path: Path
    about: Mapping[str, Sequence[str]]
    """The names of the samples, and their values in each other column of the sheet."""
    rows: Sequence[Row]
    """The rows, sorted by sample."""

    @property
    def summary(self) -> str:
        """A text with the numbers of samples and files."""
        files = f"{counted(len(self.about[SAMPLE]), 'sample')} in {counted(len(self.rows), 'file')}"
        return f"{self.path}: {files}"

    @property
    def shared(self) -> list[str]:
        return [file for file, times in Counter(row.file for row in self.rows).items() if times > 1]

    def passes(self) -> Iterator[dict[str, int]]:
        """Yield the files in order with the owner of each, in passes without a repeated file."""
        owners: dict[str, int] = {}
        for row in self.rows:
            if row.file in owners:
                yield owners
                owners = {}
            owners[row.file] = row.owner
        yield owners

    def refuse_unknown(self, column: str) -> None:
        columns.find_named(self.path, list(self.about), column)

    def refuse_missing(self, besides: Collection[str] = ()) -> None:
        """Raise UserError if a file, except those in `besides`, cannot be read."""
        if wrong := self.missing(besides):
            more = f" (and {len(wrong) - 1:,} more such rows)" if len(wrong) > 1 else ""
            raise UserError(f"{wrong[0]}{more}")

    def missing(self, besides: Collection[str] = ()) -> list[str]:
        """Return a sentence for each file that is missing or cannot be read."""
        wrong = []
        for row in self.rows:
            try:
                if row.file not in besides:
                    source.check(Path(row.file))
            except UserError as error:
                wrong.append(f"{self.path}:{row.line}: {error}")
        return wrong


def is_sheet(path: Path) -> bool:
    """Return whether the table at `path` has the columns of a sheet, and no column of ids."""
    if not path.is_file() or not is_table(path):
        return False
    try:
        names = labels.names_of(path)
    except UserError:  # reported when the records are read
        return False
    return SAMPLE in names and FILE in names and not columns.has_id(names)


def read(path: Path) -> Sheet:
    """Return the sheet at `path` (CSV, TSV or Parquet), without opening the files in it. The same
    object is returned until the sheet changes.

    Raises:
        UserError: if it is not a sheet, or a row is invalid.
    """
    source.check(path)
    about = path.stat()
    return _read(path, (about.st_ino, about.st_size, about.st_mtime_ns))


@functools.lru_cache(maxsize=8)
def _read(path: Path, _: tuple[int, int, int]) -> Sheet:
    names = labels.names_of(path)
    for name in (SAMPLE, FILE):
        if name not in names:
            raise UserError(
                f"{path}:1: a sheet of samples has a column {name!r}, and here are "
                f"{columns.listed(names)}; add it, or rename one."
            )
    own = [name for name in names if name not in (SAMPLE, FILE)]
    for name in own:
        if not name or name in RESERVED or "/" in name or name[0] == ".":
            raise UserError(f"{path}:1: a column cannot be called {name!r} here; rename it.")
    files: dict[str, dict[str, int]] = defaultdict(dict)
    about_samples: dict[str, tuple[dict[str, str], int]] = {}
    in_small_letters: dict[str, tuple[str, int]] = {}
    options = NamedColumns(id_column=SAMPLE, names=(FILE, *own))
    wrong: list[str] = []
    for record in rows([path], options):
        try:
            _take(record, path, files, about_samples, in_small_letters)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        # Missing files are added, so that one message lists all problems.
        sheet = Sheet(path, {}, _rows_of(files))
        wrong += sheet.missing()
        more = len(wrong) - MOST_LISTED
        also = [f"And {error}" for error in wrong[1:MOST_LISTED]]
        raise UserError(" ".join([wrong[0], *also, *[f"And {more:,} more."] * (more > 0)]))
    samples = sorted(files)
    about = {SAMPLE: samples}
    about |= {name: [about_samples[sample][0][name] for sample in samples] for name in own}
    return Sheet(path, about, _rows_of(files))


def _rows_of(files: Mapping[str, Mapping[str, int]]) -> list[Row]:
    return [
        Row(number, file, line)
        for number, sample in enumerate(sorted(files))
        for file, line in files[sample].items()
    ]


def _take(
    record: Record,
    path: Path,
    files: dict[str, dict[str, int]],
    about_samples: dict[str, tuple[dict[str, str], int]],
    in_small_letters: dict[str, tuple[str, int]],
) -> None:
    sample, where = record.id, f"{path}:{record.line}"
    if record.reason or is_missing(sample):
        why = record.reason or f"{sample!r} is a word for a missing value"
        raise UserError(f"{where}: this row names no sample ({why}); fix it.")
    cells = {name: labels.text(cell) for name, cell in json.loads(record.payload).items()}
    try:
        plain_name(sample)
    except ValueError as error:
        raise UserError(f"{where}: sample {clipped(sample)!r}: {error}.") from None
    other, line = in_small_letters.setdefault(sample.lower(), (sample, record.line))
    if other != sample:
        raise UserError(
            f"{where}: sample {sample!r} differs from {other!r} in line {line} only by capital "
            "letters, and some file systems take both for one; rename one of them."
        )
    file = _file(cells.pop(FILE), where)
    if (line := files[sample].setdefault(file, record.line)) != record.line:
        raise UserError(
            f"{where}: {file} is a file of sample {sample!r} in line {line} already; keep one."
        )
    known, line = about_samples.setdefault(sample, (cells, record.line))
    for name, cell in cells.items():
        if cell != known[name]:
            raise UserError(
                f"{where}: sample {sample!r} has {name} {clipped(cell)!r} here and "
                f"{clipped(known[name])!r} in line {line}; give all its rows the same."
            )


def _file(cell: str, where: str) -> str:
    if not cell or is_missing(cell):
        raise UserError(f"{where}: this row names no file; name one, or leave the row out.")
    if cell.startswith("~"):
        raise UserError(f"{where}: {cell}: ~ works only in a shell; write the whole path.")
    return str(Path(cell))
