"""The map of the embeddings: which records it shows. A step draws it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.arrays import matrix
from featuremill.base.id_columns import WHOLE
from featuremill.config.project import draws_records
from featuremill.features.shown import MOST_SHOWN, Shown
from featuremill.features.table import Table
from featuremill.store.records import STATUSES, read_records, whole_ids
from featuremill.workload.figures import Figure

TITLE = "The embedding space"
TEXT = "description"


def read(table: Table, records: Path, unit: str, has_notes: bool) -> Shown | str:
    """Return the records on the map of a run's table, or the sentence that says why there is none,
    which is empty where results have no vectors of a fixed width.

    `records` is the ledger of the run, with lengths in `unit`, and notes if it `has_notes`.
    """
    columns = [field.name for field in table.schema if _is_vector(field.type)]
    if not columns:
        return ""
    if table.num_rows < 3:
        return f"A map needs at least three records; this run has {table.num_rows}."
    column, *others = columns
    if (width := table.schema.field(column).type.list_size) < 2:
        return f"The values of {column} have one dimension, so there is nothing to map."
    rows = table.spread(MOST_SHOWN, width)
    vectors = np.empty((len(rows), width), np.float32)
    of_text = [TEXT] if TEXT in table.schema.names else []
    about: dict[str, list[str]] = {name: [] for name in ("id", "length", TEXT)}
    for places, batch in table.pieces(rows, [*WHOLE, "length", column, *of_text]):
        vectors[places] = matrix(batch[column])
        about["id"] += whole_ids(batch).to_pylist()
        for name in ("length", *of_text):
            about[name] += batch[name].to_pylist()
    ids, lengths, texts = about.values()
    texts = [text or "" for text in texts] or [""] * len(ids)
    of_all = (table.num_rows, column, others, vectors, texts, table.id_columns)
    shown = Shown(table.path.parent, ids, lengths, unit, *of_all)  # type: ignore[arg-type]
    return shown._replace(notes=_notes(records, ids)) if has_notes else shown


def _notes(records: Path, ids: list[str]) -> list[str | None]:
    """Return the note of each of `ids`: of the row with its values, not of one that repeats it."""
    names = [*WHOLE, "note", "status"]
    notes: dict[str, str] = {}
    for batch in read_records(records, names):
        planned = pc.equal(batch["status"].cast(pa.string()), STATUSES[0])
        noted = batch.filter(pc.and_(planned, pc.is_valid(batch["note"])))
        notes.update(zip(whole_ids(noted).to_pylist(), noted["note"].to_pylist(), strict=True))
    return [notes.get(id) for id in ids]


def _is_vector(type: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(type) and pa.types.is_floating(type.value_type))


def drawn(shown: Shown | str) -> Figure:
    """Return the map, or the sentence that says why there is none."""
    if isinstance(shown, str):
        return Figure("embeddings", TITLE, shown)
    figure: Figure = draws_records().figure(shown)
    return figure._replace(name="embeddings", title=TITLE)
