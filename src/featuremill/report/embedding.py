"""The map of the embeddings: a sample of rows on its first two principal components, coloured by
length or by a label of the user's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pyarrow as pa

from featuremill.base import words
from featuremill.base.arrays import matrix
from featuremill.base.id_columns import WHOLE, IdColumns
from featuremill.base.text import clipped
from featuremill.features.table import Table
from featuremill.report.agreement import agreement
from featuremill.report.chart import categories
from featuremill.report.labels import MAX_TEXT, NONE, OTHER, Labels
from featuremill.report.lengths import ticks
from featuremill.store.records import whole_ids
from featuremill.workload.figures import FAINT, REST, Figure, drawn, values

TITLE = "The embedding space"
GREYS = {OTHER: REST, NONE: FAINT}
LEGEND_PIXELS = 300
"""What a phone has for a legend."""

MAX_POINTS = 5_000
MAX_READ = 100_000_000
"""Values that are read to take the sample from; a larger file gives some of its row groups."""


class Projection(NamedTuple):
    """A map of the embedding space."""

    column: str
    """The column of values that is shown."""
    others: list[str]
    """Further columns of values that the file has."""
    ids: list[str]
    """As long as they are."""
    lengths: list[int]
    xy: np.ndarray
    """(N, 2) float64."""
    explained: tuple[float, float]
    """Share of the sample's variance along each axis."""
    total: int
    """Rows in the file, or the files."""
    vectors: np.ndarray
    """(N, D) float32, what the map was made of."""
    id_columns: IdColumns
    """Of which the ids are made."""


def read(table: Table) -> Projection | str:
    """Return the map of a run's table, or the sentence that says why there is none."""
    columns = [field.name for field in table.schema if _is_vector(field.type)]
    if not columns:
        return "This workload delivers no vectors of a fixed width, so there is nothing to map."
    if table.num_rows < 3:
        return f"A map needs at least three records; this run has {table.num_rows}."
    column, *others = columns
    if (width := table.schema.field(column).type.list_size) < 2:
        return f"The values of {column} have one dimension, so there is nothing to map."
    rows = _sample(table, width)
    ids, lengths, vectors = list[str](), list[int](), np.empty((len(rows), width), np.float32)
    for places, batch in table.pieces(rows, [*WHOLE, "length", column]):
        ids += whole_ids(batch).to_pylist()
        lengths += batch["length"].to_pylist()
        vectors[places] = matrix(batch[column])
    xy, explained = principal_plane(vectors)
    known = (column, others, ids, lengths, xy, explained, table.num_rows, vectors)
    return Projection(*known, table.id_columns)


def _is_vector(type: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(type) and pa.types.is_floating(type.value_type))


def _sample(table: Table, width: int) -> np.ndarray:
    """Return evenly spaced rows, ascending: the same each time, from every region of a table that
    is ordered."""
    sizes = np.array([group.num_rows for group in table.groups])
    enough = max(1, min(len(sizes), MAX_READ // (int(sizes.max()) * width)))
    chosen = np.linspace(0, len(sizes) - 1, enough).round().astype(np.int64)
    ends = np.cumsum(sizes[chosen])
    wanted = np.linspace(0, ends[-1] - 1, min(MAX_POINTS, int(ends[-1]))).round().astype(np.int64)
    places = np.searchsorted(ends, wanted, side="right")
    first_rows = np.array([group.first_row for group in table.groups])[chosen]
    rows: np.ndarray = first_rows[places] + wanted - (ends - sizes[chosen])[places]
    return rows


def principal_plane(vectors: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Return `vectors` (N, D) on their first two principal axes, and the variance along each.

    Wide values are first narrowed by a randomised range finder with a fixed seed (Halko, Martinsson
    and Tropp 2011, algorithm 4.4): the exact SVD of 5,000 × 5,120 takes minutes on one core, this
    takes seconds, and the first two components agree beyond what a screen shows.
    """
    centred = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    variance = float(np.square(centred, dtype=np.float64).sum())
    rows, width = centred.shape
    narrow = centred
    if min(rows, width) > 64:
        guess = np.random.default_rng(0).standard_normal((width, 32), dtype=np.float32)
        for _ in range(20):
            guess = np.linalg.qr(centred.T @ (centred @ guess))[0]
        narrow = centred @ guess
    u, scale, _ = np.linalg.svd(narrow.astype(np.float64), full_matrices=False)
    xy = u[:, :2] * scale[:2]
    for axis in range(2):  # a sign is arbitrary: the farthest point lies on the positive side
        xy[:, axis] *= 1.0 if xy[np.abs(xy[:, axis]).argmax(), axis] >= 0 else -1.0
    share = np.square(scale[:2]) / variance if variance > 0 else np.zeros(2)
    return xy, (float(share[0]), float(share[1]))


def figure(projection: Projection | str, labels: Labels | None, unit: str) -> Figure:
    """Return the map, or the sentence that says why there is none."""
    if isinstance(projection, str):
        return Figure("embeddings", TITLE, projection)
    sentence = _sentence(projection, labels)
    labels = labels if labels and labels.num_found else None
    rows = _rows(projection, labels)
    chart = (
        alt.Chart(values(rows))
        .mark_circle(style="cloud", size=22 if len(projection.ids) > 1_000 else 40)
        .encode(
            x=_component("x", 1, projection.explained[0]),
            y=_component("y", 2, projection.explained[1]),
            color=_by_length(projection, unit) if labels is None else _by_label(labels, rows),
            tooltip=[
                "id:N",
                *([] if labels is None else [alt.Tooltip("label:N", title=labels.title)]),
                alt.Tooltip("length:Q", title=unit, format=",d"),
            ],
        )
        .properties(width="container", height=430)
    )
    return drawn("embeddings", TITLE, sentence, chart, "canvas")


def _rows(projection: Projection, labels: Labels | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"id": clipped(id), "length": length, "x": x, "y": y}
        for id, length, x, y in zip(
            projection.ids,
            projection.lengths,
            *([float(f"{value:.4g}") for value in axis] for axis in projection.xy.T),
            strict=True,
        )
    ]
    if labels is None:
        return rows
    numbers, names = labels.numbers, set(labels.names)
    for place, (row, text) in enumerate(zip(rows, labels.texts, strict=True)):
        row["label"] = NONE if text is None else clipped(text, MAX_TEXT)
        if numbers is not None:
            row["value"] = numbers[place]
        else:
            row["group"] = NONE if text is None else row["label"]
            row["group"] = OTHER if text is not None and row["group"] not in names else row["group"]
    # What is drawn last lies on top: that which has a colour.
    return sorted(rows, key=lambda row: row["label"] != NONE and row.get("group") != OTHER)


def _by_length(projection: Projection, unit: str) -> Any:
    return alt.Color(
        "length:Q",
        title=unit,
        scale=alt.Scale(type="log", range="ramp"),
        legend=alt.Legend(
            format=",d", values=ticks(min(projection.lengths), max(projection.lengths)), offset=26
        ),
    )


def _by_label(labels: Labels, rows: list[dict[str, Any]]) -> Any:
    if labels.numbers is not None:
        ramp, legend = alt.Scale(range="ramp"), alt.Legend(offset=26)
        return alt.Color("value:Q", title=labels.title, scale=ramp, legend=legend)
    present = {row["group"] for row in rows}
    rest = {name: colour for name, colour in GREYS.items() if name in present}
    names = [*labels.names, *rest]
    columns = LEGEND_PIXELS // (7 * max(map(len, names)) + 26)
    return alt.Color(
        "group:N",
        title=labels.title,
        scale=categories(names, tuple(rest.values())),
        legend=alt.Legend(columns=max(1, min(4, columns)), titleOrient="top", offset=26),
    )


def _component(field: str, number: int, explained: float) -> Any:
    title = f"component {number} ({words.share(explained, 1)})"
    axis = alt.Axis(labels=False, ticks=False, grid=False)
    encoding = alt.X if field == "x" else alt.Y
    return encoding(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(zero=False))


def _sentence(projection: Projection, labels: Labels | None) -> str:
    """Return what the map shows and how it was made."""
    shown, total = len(projection.ids), projection.total
    sampling = f"All {shown:,} records"
    if shown < total:
        sampling = f"{shown:,} of {total:,} records, evenly spaced in the file"
    text = (
        f"{sampling}, by the two directions in which {projection.column} varies most "
        f"({words.share(sum(projection.explained), 1)} of the variance; a principal component "
        "analysis)."
    )
    if projection.others:
        text += f" The file also holds {words.listed(projection.others)}."
    if labels is None:
        return text
    if not labels.num_found:
        return f"{text} Coloured by length: {labels.file} has no row with the id of one of them."
    text += f" Coloured by {labels.title} of {labels.file}"
    if labels.num_found < shown:
        text += f", which has a label for {labels.num_found:,} of them"
    if labels.numbers is None and (more := len(set(labels.texts) - {None}) - len(labels.names)) > 0:
        text += f"; {more:,} rarer labels are grey, point at one to read it"
    return f"{text}.{_agreement(projection, labels)}"


def _agreement(projection: Projection, labels: Labels) -> str:
    """Return how near records of one label lie to one another; "" where labels are numbers."""
    if labels.numbers is not None or not (agreed := agreement(projection.vectors, labels.texts)):
        return ""
    return (
        f" By these {agreed.num_labels:,} labels, the silhouette of {agreed.num_records:,} records "
        f"is {agreed.silhouette:.3f} (from -1 to 1, the larger the better labels are apart), and "
        f"of each record's {agreed.num_neighbours} nearest, {words.share(agreed.purity, 1)} have "
        f"its label (kNN purity; {words.share(agreed.chance, 1)} by chance); distances are "
        "Euclidean, between all numbers of the vectors."
    )
