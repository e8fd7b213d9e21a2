"""List the records that were cut or cleaned before they were computed: notes.tsv."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.compute as pc

from featuremill.base.text import one_line
from featuremill.store.ours import delivering
from featuremill.store.records import id_columns_of, read_records

COLUMNS = ("id", "source", "line", "note")


def write(records_path: Path, path: Path, *, has_any: bool) -> None:
    """Write a row a record with a note, in input order, where records.parquet `has_any`."""
    columns = [*COLUMNS, *id_columns_of(records_path).keys]
    with delivering(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(columns)
        for batch in read_records(records_path, columns) if has_any else ():
            noted = batch.filter(pc.is_valid(batch.column("note")))
            for id, source, line, note, *keys in zip(*noted.to_pydict().values(), strict=True):
                table.writerow([one_line(id), one_line(source), line, one_line(note), *keys])
