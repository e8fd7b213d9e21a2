"""List the records that were cut or cleaned before they were computed: notes.tsv."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

from featuremill.base.tsv import TsvWriter
from featuremill.store.ours import delivering
from featuremill.store.records import id_columns_of, read_records

COLUMNS = ("id", "source", "line", "note")


def write(records_path: Path, path: Path, *, has_any: bool) -> None:
    """Write a row a record with a note, in input order, where records.parquet `has_any`."""
    columns = [*COLUMNS, *id_columns_of(records_path).keys]
    with delivering(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = TsvWriter(file, columns)
        for batch in read_records(records_path, columns) if has_any else ():
            noted = batch.filter(pc.is_valid(batch.column("note")))
            for cells in zip(*noted.to_pydict().values(), strict=True):
                table.row(cells)
