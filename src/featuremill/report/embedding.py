"""The map of the embeddings, which a step draws, and the nearly equal records on it: copies,
fragments, close relatives, or errors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base import words
from featuremill.base.arrays import matrix
from featuremill.base.id_columns import WHOLE
from featuremill.base.text import clipped
from featuremill.config.project import draws_records
from featuremill.features.records import MOST_SHOWN, Shown
from featuremill.features.table import Table
from featuremill.store.records import STATUSES, read_records, whole_ids
from featuremill.workload.figures import Figure

TITLE = "The embedding space"
TEXT = "description"


def read(table: Table, records: Path, unit: str, has_notes: bool) -> Shown | str:
    """Return the records on the map of a run's table, or a sentence why there is none; "" if the
    results have no vectors of a fixed width.

    `records` is records.parquet of the run, with notes if it `has_notes`; `unit` is that of
    lengths.
    """
    columns = [
        field.name
        for field in table.schema
        if pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type)
    ]
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
    """Return the note of each of `ids`, from the planned record, not from its duplicates."""
    names = [*WHOLE, "note", "status"]
    notes: dict[str, str] = {}
    for batch in read_records(records, names):
        planned = pc.equal(batch["status"].cast(pa.string()), STATUSES[0])
        noted = batch.filter(pc.and_(planned, pc.is_valid(batch["note"])))
        notes.update(zip(whole_ids(noted).to_pylist(), noted["note"].to_pylist(), strict=True))
    return [notes.get(id) for id in ids]


def drawn(shown: Shown | str) -> Figure:
    """Return the figure of the map, or with the sentence why there is none."""
    if isinstance(shown, str):
        return Figure("embeddings", TITLE, shown)
    figure: Figure = draws_records().figure(shown)
    return figure._replace(name="embeddings", title=TITLE)


NEAR = 0.999
"""The cosine from which two vectors count as nearly equal."""
MOST_PAIRS = 20
ROWS_AT_ONCE = 512


class Pair(NamedTuple):
    """Two records, the longer one first, and the cosine of their vectors."""

    ids: tuple[str, str]
    lengths: tuple[int, int]
    cosine: str


def nearest(projection: Shown) -> tuple[str, list[Pair]]:
    """Return a sentence about nearly equal records on the map, and the nearest pairs of them."""
    norms = np.linalg.norm(projection.vectors, axis=1, keepdims=True)
    units = projection.vectors / np.where(norms, norms, 1)
    num_near, best, least = 0, list[tuple[float, int, int]](), -np.inf
    for first in range(0, len(units), ROWS_AT_ONCE):
        cosines = np.triu(units[first : first + ROWS_AT_ONCE] @ units[first:].T, 1)
        num_near += int((cosines >= NEAR).sum())
        nearer = np.flatnonzero(cosines > least)  # few, once some rows were compared
        if len(nearer) > MOST_PAIRS:
            closeness = cosines.ravel()[nearer]
            nearer = nearer[np.argpartition(closeness, -MOST_PAIRS)[-MOST_PAIRS:]]
        rows, others = np.unravel_index(nearer, cosines.shape)
        nearest = zip(cosines[rows, others], first + rows, first + others, strict=True)
        best = sorted([*best, *nearest], key=lambda pair: (-pair[0], *pair[1:]))[:MOST_PAIRS]
        least = best[-1][0] if len(best) == MOST_PAIRS else -np.inf
    pairs = [_pair(projection, *pair) for pair in best if pair[1] < pair[2]]
    num_shown = min(num_near, len(pairs))
    return _sentence(projection, num_near, num_shown, pairs), pairs[:num_shown]


def _pair(projection: Shown, cosine: float, *rows: int) -> Pair:
    first, second = sorted(rows, key=lambda row: (-projection.lengths[row], row))
    is_equal = np.array_equal(projection.vectors[first], projection.vectors[second])
    shown = "equal" if is_equal else f"{min(cosine, 0.99999):.5f}"
    ids = clipped(projection.ids[first]), clipped(projection.ids[second])
    return Pair(ids, (projection.lengths[first], projection.lengths[second]), shown)


def _sentence(projection: Shown, num_near: int, num_shown: int, pairs: list[Pair]) -> str:
    num = len(projection.ids)
    records = "the records" if num == projection.total else f"the {num:,} records on the map"
    if not num_near:
        text = f"No two of {records} have vectors with a cosine of {NEAR} or more"
        (first, second), _, cosine = pairs[0]
        return f"{text}. The nearest are {first} and {second}, with {cosine}."
    counted_pairs = words.counted(num_near, "pair")
    have = "has a cosine" if num_near == 1 else "have cosines"
    more = f" The {num_shown} nearest are here." if num_shown < num_near else ""
    return (
        f"{counted_pairs} of {records} {have} of {NEAR} or more.{more} Such records are copies, "
        "fragments or close relatives of each other. Keep them on one side when you split data "
        "for training."
    )
