"""Account for each sample of a run: samples.tsv, beside failed.tsv and made of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.errors import IntegrityError
from featuremill.base.id_columns import SAMPLE
from featuremill.base.tsv import TsvWriter
from featuremill.merge.delivery import Source
from featuremill.store import failed
from featuremill.store.delivery import Accounts
from featuremill.store.ours import delivering
from featuremill.store.receipt import Receipt
from featuremill.store.records import read_records


def write(source: Source, records_path: Path, failures: Path, path: Path, sums: Accounts) -> None:
    """Write one row for each sample to `path`: its columns of the sheet, its records by status, how
    many were cut or cleaned, and its share of the device seconds. `failures` is failed.tsv; `sums`
    are the totals of all samples.

    A shard's seconds are shared out by cost among the records that ask for it.

    Raises:
        IntegrityError: when the samples do not come to the `sums`.
    """
    names = source.samples[SAMPLE]
    planned, duplicates, noted = np.zeros((3, len(names)), np.int64)
    cost_of_shard = np.zeros(len(source.receipts))
    columns = [SAMPLE, "status", "note", "shard", "cost"]
    for batch in read_records(records_path, columns):
        sample, shard = _numbers(batch, names), source.shard_numbers(batch)
        status = batch.column("status").cast(pa.string())
        planned += np.bincount(sample[shard >= 0], minlength=len(names))
        is_twice = np.asarray(pc.equal(status, "duplicate"))
        duplicates += np.bincount(sample[is_twice], minlength=len(names))
        is_noted = np.asarray(batch.column("note").is_valid())
        noted += np.bincount(sample[is_noted], minlength=len(names))
        costs = batch.column("cost").to_numpy()
        np.add.at(cost_of_shard, shard[shard >= 0], costs[shard >= 0])
    seconds_of_shard = np.array([_seconds(receipt) for receipt in source.receipts])
    seconds_a_cost = seconds_of_shard / np.maximum(cost_of_shard, 1)
    seconds = np.zeros(len(names))
    for batch in read_records(records_path, [SAMPLE, "shard", "cost"]):
        sample, shard = _numbers(batch, names), source.shard_numbers(batch)
        asks = shard >= 0
        took = batch.column("cost").to_numpy()[asks] * seconds_a_cost[shard[asks]]
        seconds += np.bincount(sample[asks], took, len(names))
    without = Counter((failure.sample, failure.status) for failure in failed.read(failures))
    statuses = ("failed", "refused", "pending")
    counts = {status: np.array([without[name, status] for name in names]) for status in statuses}
    counted = {
        "records": planned + duplicates + counts["refused"],
        "ok": planned - counts["failed"] - counts["pending"],
        "failed": counts["failed"],
        "refused": counts["refused"],
        "duplicate": duplicates,
        "pending": counts["pending"],
    }
    for name, numbers in counted.items():
        total = sums.input if name == "records" else getattr(sums, name)
        if numbers.sum() != total or (numbers < 0).any():
            raise IntegrityError(
                f"merge: {name} of all samples come to {numbers.sum():,} and not {total:,}; "
                "please report this."
            )
    if not sums.pending:
        del counted["pending"]
    rows = {
        **source.samples,
        **counted,
        "noted": noted,
        "seconds": [f"{value:.3f}" for value in seconds],
    }
    with delivering(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = TsvWriter(file, rows)
        for cells in zip(*rows.values(), strict=True):
            table.row(cells)


def _seconds(receipt: Receipt | None) -> float:
    """Return what a part took, of all its devices together; nothing of one that is pending."""
    return receipt.seconds["total"] * max(1, len(receipt.devices)) if receipt else 0.0


def _numbers(rows: pa.RecordBatch, names: list[str]) -> npt.NDArray[np.int64]:
    known = pc.index_in(rows.column(SAMPLE).cast(pa.string()), value_set=pa.array(names))
    numbers: npt.NDArray[np.int64] = known.to_numpy().astype(np.int64)
    return numbers
