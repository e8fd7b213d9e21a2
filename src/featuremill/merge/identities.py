"""records.parquet laid out by shard, so that a job reads the records of its shards alone.

It is made once of each records.parquet, in store/identities, in two readings from the beginning to
the end; in memory is a chunk of it, however many records there are.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base.errors import IntegrityError
from featuremill.base.locking import locked
from featuremill.base.progress import Progress
from featuremill.merge.gather import IDENTITY, placed_by_shard
from featuremill.merge.shuffle import Shuffle
from featuremill.store import stored
from featuremill.store.delivered_shards import IDENTITIES
from featuremill.store.files import read_json, replacing_folder, sha256_of, write_json
from featuremill.store.plan import Plan
from featuremill.store.records import (
    READ_ROWS,
    id_columns_of,
    read_records,
    samples_of,
    shard_numbers,
)
from featuremill.store.results import Results

PLACE = pa.schema({"row": pa.int32(), "number": pa.int64()})
"""The record's row in its shard, and its place in the input."""
COLUMNS = pa.schema([*IDENTITY, *PLACE])
ROWS, SURVEY = "rows.bin", "survey.json"
log = logging.getLogger("featuremill.deliver")


class Identities:
    """The records of each shard: ids, headers, lengths, digests, samples."""

    def __init__(self, folder: Path, shards: Iterable[str], records: Path) -> None:
        """Open the identities in `folder`, which `lay_out` made of the file `records`."""
        survey = read_json(folder / SURVEY) or {}
        self.samples = samples_of(records)
        self.id_columns = id_columns_of(records)
        self.counts = Counter[str](survey["counts"])
        """Records by their status: planned, refused, duplicate."""
        self.rows_of_shard = np.array(survey["rows_of_shard"], np.int64)
        """Planned records of each of the plan's shards."""
        self.with_refused: set[int] = set(survey["with_refused"])
        """The row groups of records.parquet with refused records."""
        self._records = records
        self._shards = pa.array(list(shards), pa.string())
        self._starts = _starts(self.rows_of_shard)
        self._shuffle = Shuffle.opened(folder / ROWS, COLUMNS, self._starts)

    def close(self) -> None:
        """Close their file."""
        self._shuffle.close()

    def records_of(self, number: int) -> pa.RecordBatch:
        """Return the planned records of the plan's shard `number`, in the order of the input."""
        records = self._shuffle.read(number)
        if records.num_rows != self.rows_of_shard[number]:
            raise IntegrityError(
                f"{self._records}: what was laid out of it lacks rows; delete "
                f"store/{IDENTITIES} and run the same command again."
            )
        return records

    def shard_numbers(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the index into the plan's shards of each row of records.parquet; -1 where it has
        none."""
        return shard_numbers(rows, self._shards, self._records)


def lay_out(folder: Results, plan: Plan) -> Identities:
    """Return the identities of the planned records by shard; write them if they do not exist.

    Raises:
        IntegrityError: when records.parquet is not that of the `plan`.
    """
    names = [source.shard for source in plan.sources]
    laid_out = folder.store / IDENTITIES / plan.records_sha256[:32]
    say = partial(log.info, "another job lays out the records by shard; waiting")
    if not laid_out.is_dir():
        with locked(folder.store / "deliver.lock", say):
            if not laid_out.is_dir():
                stored.discard(folder, laid_out.parent)  # of an earlier plan
                _lay_out(folder, plan, names, laid_out)
    return Identities(laid_out, names, folder.records)


def _lay_out(folder: Results, plan: Plan, names: list[str], laid_out: Path) -> None:
    records = folder.records
    if sha256_of(records) != plan.records_sha256:
        folder.read_plan_of_records()  # says what to do
    shards = pa.array(names, pa.string())
    survey = _survey(records, shards)
    starts = _starts(np.array(survey["rows_of_shard"], np.int64))
    filled, first = starts[:-1].copy(), 0
    shown = Progress(log, "laying out records by shard")
    with replacing_folder(laid_out, is_synced=False) as new:
        shuffle = Shuffle(new / ROWS, COLUMNS, starts)
        read = [name for name in COLUMNS.names if name != "number"]
        for batch in read_records(records, ["shard", *read]):
            planned, where = placed_by_shard(shard_numbers(batch, shards, records), filled)
            rows = batch.take(pa.array(planned))
            known = {"number": pa.array(first + planned)}
            arrays = [
                known[field.name] if field.name in known else rows[field.name].cast(field.type)
                for field in COLUMNS
            ]
            shuffle.add(where, pa.record_batch(arrays, schema=COLUMNS))
            first += batch.num_rows
            shown.at(first, plan.counts.input)
        shuffle.save()
        shuffle.close()
        write_json(new / SURVEY, survey)


def _survey(records: Path, shards: pa.Array) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    rows_of_shard = np.zeros(len(shards), np.int64)
    total_length, with_refused = 0, list[int]()
    columns = ["status", "shard", "length"]
    with pq.ParquetFile(records) as file:
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(READ_ROWS, row_groups=[group], columns=columns):
                status = batch.column("status").cast(pa.string())
                pairs = status.value_counts().to_pylist()
                here = Counter[str]({pair["values"]: pair["counts"] for pair in pairs})
                shard = shard_numbers(batch, shards, records)
                rows_of_shard += np.bincount(shard[shard >= 0], minlength=len(shards))
                planned = batch.column("length").filter(pa.array(shard >= 0))
                total_length += pc.sum(planned).as_py() or 0
                if here["refused"] and group not in with_refused[-1:]:
                    with_refused.append(group)
                counts += here
    return {
        "counts": dict(counts),
        "rows_of_shard": rows_of_shard.tolist(),
        "total_length": total_length,  # earlier versions read it
        "with_refused": with_refused,
    }


def _starts(rows_of_shard: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(rows_of_shard)))
