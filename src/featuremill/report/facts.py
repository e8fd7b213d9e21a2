"""Read the facts of the report from a run's files, in bounded memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from featuremill.base import tsv, words
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.id_columns import ID, KEYS, SAMPLE, IdColumns
from featuremill.base.text import clipped
from featuremill.features.records import Labels, Shown
from featuremill.features.table import Table
from featuremill.inputs import columns, labels
from featuremill.report import embedding, lengths
from featuremill.report.lengths import Lengths
from featuremill.report.shards import Piece, Shard, busy_seconds, pieces_of, shard_of, wall_seconds
from featuremill.store import failed
from featuremill.store.delivery import Accounts, Delivery
from featuremill.store.formats import SAMPLES, format_of
from featuremill.store.records import with_whole_ids
from featuremill.store.results import Results
from featuremill.workload import find_workload, optional, plugin_errors, workloads
from featuremill.workload.figures import Figure

MAX_COLUMNS = 12
"""Largest number of columns in the menu of colours."""
MOST_BYTES = 2**25
"""Largest size of a table of which all columns are read."""
log = logging.getLogger("featuremill.report")


class Facts(NamedTuple):
    """The content of the report."""

    delivery: Delivery
    lengths: Lengths
    shards: list[Shard]
    """The shards, in the order of their beginning."""
    pieces: list[Piece]
    """The shards and earlier attempts, for the timeline."""
    problems: failed.Listed
    embedding: Shown | str
    """The records on the map, or a sentence why there is none."""
    doubts: list[str]
    """Contradictions between the files and manifest.json; normally empty."""
    labels: Labels | None = None
    """The labels that colour the map; None: it is coloured by length."""
    samples: Sequence[Mapping[str, str]] = ()
    """The rows of samples.tsv, in a run with samples."""
    of_workload: Sequence[Figure] = ()
    """The workload's own figures."""

    @property
    def wall_seconds(self) -> float:
        """Clock time on the timeline, with unfinished attempts and without pauses, in seconds."""
        return wall_seconds(piece.working for piece in self.pieces)

    def busy_seconds(self, lane: str) -> float:
        """Return the seconds in which the device of `lane` computed."""
        return busy_seconds(piece.working for piece in self.pieces if piece.lane == lane)

    @property
    def lanes(self) -> list[str]:
        """The names of all devices that computed."""
        return sorted({piece.lane for piece in self.pieces})

    @property
    def on_devices(self) -> str:
        """A text with the number of GPUs, CPUs or devices that computed the shards."""
        kinds = {"GPU" if shard.receipt.is_on_gpu else "CPU" for shard in self.shards}
        return f"on {words.counted(len(self.lanes), kinds.pop() if len(kinds) == 1 else 'device')}"

    @property
    def cost_unit(self) -> str:
        """The unit of cost, such as "tokens"; early manifests lack it."""
        return clipped(self.delivery.cost_unit) or "cost"


def read(
    root: Path,
    is_partial: bool = False,
    label_file: Path | None = None,
    label: str = "",
    id_column: str = "",
) -> Facts:
    """Return the facts of the merged run in `root`. The column `label` of `label_file` colours the
    map, by the ids in `id_column` ("": found by its name). Without a file, `label` is a column of
    the sheet of samples (default: their names).

    Raises:
        UserError: if there are no merged results, or no such column.
        IntegrityError: if a file is damaged.
    """
    results = Results(root)
    merged = results.partial if is_partial else results
    delivery, path = results.read_delivery(is_partial), merged.delivery
    known = {receipt.shard for receipt in delivery.receipts} | {
        taken.part for taken in delivery.taken
    }
    if not delivery.parts.keys() <= known:
        raise IntegrityError(f"{path}: its content is not what was written; {delivery.REMEDY}.")
    try:
        facts = _read(results, merged, delivery)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        # A reader may raise any of these for a damaged table.
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise IntegrityError(
            f"{path}: it, or a file that it names, is damaged or gone ({problem}); "
            "delete manifest.json and run the same command again."
        ) from error
    shown = facts.embedding
    if isinstance(shown, str):
        return facts
    colours = list[Labels]()
    if label_file is not None:
        whose = (shown.ids, shown.id_columns, id_column)
        colours += read_labels(label_file, label, *whose)
    if facts.samples:
        path, column = merged.root / SAMPLES, label if label_file is None and label else SAMPLE
        names = list(facts.samples[0])
        columns.find_named(path, names, column)  # refuses a column that the sheet lacks
        own = names[: names.index("records")] if "records" in names else names
        names = [column, *(name for name in own if name != column)]
        row_of = {row[SAMPLE]: row for row in facts.samples}
        rows = [row_of[shown.id_columns.owner(id)] for id in shown.ids]
        colours += [Labels(name, path, [row[name] or None for row in rows]) for name in names]
    return facts._replace(
        labels=colours[0] if colours else None, embedding=shown._replace(labels=colours)
    )


def read_labels(
    path: Path, column: str, ids: Sequence[str], id_columns: IdColumns, id_column: str
) -> Iterator[Labels]:
    """Yield the labels in `column`, as `labels_in` does, and then those in other columns of the
    table that have labels for these records.

    Raises:
        UserError: as `labels_in` does for `column`.
    """
    yield labels_in(path, column, ids, id_columns, id_column)
    names = labels.names_of(path)
    whose = {column, *KEYS, names[labels.find_id(path, names, id_column)]}
    others = [name for name in names if name not in whose]
    for name in others[:MAX_COLUMNS] if path.stat().st_size <= MOST_BYTES else ():
        with contextlib.suppress(UserError):
            more = labels_in(path, name, ids, id_columns, id_column, warns=False)
            if more.num_found:
                yield more


def labels_in(
    path: Path,
    column: str,
    ids: Sequence[str],
    id_columns: IdColumns,
    id_column: str,
    warns: bool = True,
) -> Labels:
    """Return the labels of the whole `ids` from the table `path` (CSV, TSV or Parquet, plain or
    compressed, of any length), which has the `id_columns`.

    Raises:
        UserError: if there is no such table or column, or its rows are ambiguous.
    """
    wanted = {*ids, *(id_columns.accession(id) for id in ids)}
    rows, _ = labels.read(path, column, None, id_columns, id_column, wanted, log if warns else None)
    named = labels.NamedRecords("record on the map", id_columns, None)
    label_of = labels.of_ids(rows, path, ids, named)
    texts = [label_of[id].name if id in label_of else None for id in ids]
    if not ids or rows:
        return Labels(column, path, texts, id_column=id_column)
    example = labels.first_id(path, id_columns, id_column)
    mismatch = (
        f"{path}: no record on the map has a {column} there, by its id or accession: the first id "
        f"is {clipped(example)!r}, and the run's first is {clipped(ids[0])!r}"
    )
    return Labels(column, path, texts, mismatch)


def _samples(merged: Results) -> list[dict[str, str]]:
    path = merged.root / SAMPLES
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(tsv.read(file))


def _read(results: Results, merged: Results, delivery: Delivery) -> Facts:
    problems = failed.read_list(merged.root / "failed.tsv")
    num_rows, known_lengths = lengths.read(results.records)
    shards = sorted(map(shard_of, delivery.receipts), key=lambda shard: shard.working)
    the_map: Shown | str = (
        "This run wrote no embeddings.parquet; add parquet to its outputs to see the map."
    )
    num_rows_of = {"records.parquet": num_rows, "failed.tsv": problems.listed}
    drawn: Sequence[Figure] = ()
    for output in ("parquet_dataset", "parquet"):
        path = merged.root / format_of(output).file
        if path.name in delivery.outputs:
            table = Table(path)
            num_rows_of["embeddings.parquet"] = table.num_rows
            about = (delivery.lengths.unit, bool(delivery.notes))
            the_map = embedding.read(table, results.records, *about)
            drawn = _figures(delivery.settings.workload, table)
    pieces = pieces_of(results, shards)
    doubts = _doubts(delivery.counts, num_rows_of)
    known = (delivery, known_lengths, shards, pieces, problems, the_map, doubts)
    return Facts(*known, samples=_samples(merged), of_workload=drawn)


def _figures(name: str, table: Table) -> Sequence[Figure]:
    """Return the workload's own figures of its results; () if it is not installed."""
    if name not in workloads():
        return ()
    figures = optional(find_workload(name), "figures")
    with plugin_errors.attributed_to(name, "figures"):
        drawn: Sequence[Figure] = figures(table.schema.names, partial(_columns, table))
    return drawn


def _columns(table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a table; ids are whole."""
    keys = KEYS if ID in columns else ()
    for _, batch in table.batches([*columns, *keys]):
        yield with_whole_ids(batch) if keys else batch


def _doubts(counts: Accounts, num_rows: dict[str, int]) -> list[str]:
    """Return a sentence for each file whose number of rows differs from that in manifest.json."""
    claimed = {
        "records.parquet": counts.input,
        "failed.tsv": counts.failed + counts.refused + counts.pending,
        "embeddings.parquet": counts.ok,
    }
    return [
        f"{name} holds {words.records(number)} where manifest.json has {claimed[name]:,}."
        for name, number in num_rows.items()
        if number != claimed[name]
    ]
