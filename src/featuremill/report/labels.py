"""Labels for the records on the map: one column of a user's table, joined by id."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.accession import accessions
from featuremill.base.text import clipped
from featuremill.inputs import columns, format_of, source, table
from featuremill.inputs.labels import SAMPLE, refusing_damage

MAX_NAMES = 7
"""Labels with a colour of their own, the commonest ones; the page has no more that all can tell
apart."""
OTHER, NONE = "other labels", "no label"
MAX_TEXT = 40
MAX_ROW_BYTES = 10_000_000


class Labels(NamedTuple):
    """What a table says of some records."""

    column: str
    path: Path
    texts: list[str | None]
    """One a record, in their order; None where the table has none."""
    mismatch: str = ""
    """Where no record has a label, what ids are there and here."""

    @property
    def file(self) -> str:
        """The table's name, as the page shows it."""
        return clipped(self.path.name)

    @property
    def title(self) -> str:
        """The column's name, as the page shows it."""
        return clipped(self.column, MAX_TEXT)

    @property
    def num_found(self) -> int:
        return sum(text is not None for text in self.texts)

    @property
    def numbers(self) -> list[float | None] | None:
        """The labels as numbers, where they all are and are too many to be names."""
        known = {text for text in self.texts if text is not None}
        if len(known) <= MAX_NAMES or not all(_is_number(text) for text in known):
            return None
        return [None if text is None else float(text) for text in self.texts]

    @property
    def names(self) -> list[str]:
        """The labels that get a colour, the commonest first; the others are OTHER."""
        counts = Counter(clipped(text, MAX_TEXT) for text in self.texts if text is not None)
        return sorted(counts, key=lambda name: (-counts[name], name))[:MAX_NAMES]


def read(path: Path, column: str, ids: Sequence[str], samples: Sequence[str] = ()) -> Labels:
    """Return the labels of `ids` from the table `path` (CSV, TSV or Parquet, plain or compressed);
    where `samples` say whose they are, the table does, too.

    The table is read row by row and may be as long as it likes. A row counts whose id is the same
    or is the accession in it (P12345 for sp|P12345|NAME_HUMAN); the first one that has a label.
    Raises UserError where there is no such table or column.
    """
    wanted: dict[tuple[str, str], list[int]] = {}
    known = accessions(pa.array(ids, pa.string())).to_pylist()
    for place, keys in enumerate(zip(ids, known, strict=True)):
        for key in set(keys):
            wanted.setdefault((samples[place] if samples else "", key), []).append(place)
    texts: list[str | None] = [None] * len(ids)
    example = ""
    with refusing_damage(path):
        rows = _parquet if format_of(path).module == "parquet" else _delimited
        for sample, id, text in rows(path, column, bool(samples)):
            example = example or (id and _full(sample, id))
            for place in wanted.get((sample, id), ()):
                if text and texts[place] is None:
                    texts[place] = text
    if not ids or any(text is not None for text in texts):
        return Labels(column, path, texts)
    there = f"its first is {clipped(example)!r}" if example else "it has no row with one"
    mismatch = (
        f"{path}: no record on the map has a {column} there, by its id: {there}, the run's first "
        f"is {clipped(_full(samples[0] if samples else '', ids[0]))!r}"
    )
    return Labels(column, path, texts, mismatch)


def _full(sample: str, id: str) -> str:
    """Return what tells a record from all others."""
    return f"{sample}/{id}" if sample else id


def _places(path: Path, names: Sequence[str], column: str, of_samples: bool) -> list[int]:
    """Return where a row has its sample, if it does, its id and its label."""
    of_sample = [columns.find_named(path, names, SAMPLE)] if of_samples else []
    return [*of_sample, columns.find_id(path, names), columns.find_named(path, names, column)]


def _delimited(path: Path, column: str, of_samples: bool) -> Iterator[tuple[str, str, str]]:
    separator, names = table.header(path)
    places = _places(path, names, column, of_samples)
    csv.field_size_limit(MAX_ROW_BYTES)
    with source.open_text(path, "replace", MAX_ROW_BYTES) as text:
        meter = source.meter_of(text)
        reader = csv.reader(text, delimiter=separator)
        next(reader)
        for row in reader:
            meter.num_open = 0
            if len(row) > max(places):
                *sample, id, label = (row[place].strip() for place in places)
                yield "".join(sample), id, label


def _parquet(path: Path, column: str, of_samples: bool) -> Iterator[tuple[str, str, str]]:
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        names = file.schema_arrow.names
        places = _places(path, names, column, of_samples)
        for batch in file.iter_batches(columns=[names[place] for place in places]):
            cells = (batch.column(names[place]).cast(pa.string()) for place in places)
            for row in zip(*(values.to_pylist() for values in cells), strict=True):
                *sample, id, label = ((cell or "").strip() for cell in row)
                yield "".join(sample), id, label


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
