"""Count every input record, and list those without values: failed.tsv and, to try again,
failed.fa."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Self, TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.arrays import Digests, digests
from featuremill.base.errors import IntegrityError
from featuremill.base.id_columns import WHOLE, IdColumns
from featuremill.base.reasons import PENDING
from featuremill.base.tsv import TsvWriter
from featuremill.merge.gather import Gatherer
from featuremill.merge.shuffle import Shuffle
from featuremill.store.delivery import Accounts
from featuremill.store.failed import COLUMNS
from featuremill.store.ours import delivering
from featuremill.store.parts import Part, order_of, read_verified
from featuremill.store.records import STATUSES, id_columns_of, read_records, whole_ids
from featuremill.store.results import Results

LISTED_COLUMNS = (*WHOLE, "description", "source", "line", "status", "reason", "shard")
"""The columns of records.parquet that the lists need."""
FAILURE = pa.schema({"reason": pa.string(), "payload": pa.large_binary()})
"""The further columns of a failed record that the lists need."""
NOT_YET = PENDING.reason()
SEQUENCE = re.compile(rb"[A-Za-z*.-]*")
log = logging.getLogger("featuremill.merge")


def account(gatherer: Gatherer, table: Path, fasta: Path) -> Accounts:
    """Write `table` and `fasta` and return how many records are ok, failed, and so on.

    `input` is the sum of the other counts. `ok` is the planned records without failed and pending
    ones; the writers check this number.

    Raises:
        IntegrityError: when the shard of a failed record is gone or not what it was.
    """
    survey = gatherer.survey
    is_pending = np.array([part is None for part in gatherer.parts])
    pending = int(survey.rows_of_shard[is_pending].sum())
    with (
        closing(Shuffle(gatherer.scratch / "failed.bin", FAILURE, survey.edges)) as failures,
        Lists.opened(table, fasta, gatherer.id_columns) as lists,
    ):
        for number, part in enumerate(gatherer.parts):
            if part and part.num_failed:
                places, name = gatherer.places_in(number), gatherer.shards[number]
                _add_failures(failures, part, places, gatherer.folder, name)
        failures.finish()
        failed = failures.num_rows
        if failed or pending or survey.counts["refused"]:
            for number, block in enumerate(gatherer.blocks(LISTED_COLUMNS)):
                shard = gatherer.shard_numbers(block)
                late = np.flatnonzero(np.append(is_pending, False)[shard])  # shard -1: none
                lists.add(block, failures.read(number), int(survey.edges[number]), late)
    kinds = [survey.counts[kind] for kind in STATUSES]
    planned, refused, duplicate = kinds
    return Accounts(
        input=sum(kinds),
        ok=planned - failed - pending,
        failed=failed,
        refused=refused,
        duplicate=duplicate,
        **({"pending": pending} if is_pending.any() else {}),
    )


def _add_failures(
    failures: Shuffle, part: Part, planned: npt.NDArray[np.void], folder: Results, shard: str
) -> None:
    sha256, reasons = part.columns()
    rows = order_of(sha256)[planned["row"]]
    is_failed = np.asarray(reasons.is_valid())[rows]
    rows = rows[is_failed]
    payloads = payloads_of(folder, part, shard, planned["row"][is_failed], sha256[rows])
    if len(rows):
        columns = [reasons.take(pa.array(rows)), payloads]
        failed = pa.record_batch(columns, schema=failures.columns)
        failures.add(planned["ordinal"][is_failed].copy(), failed)


def payloads_of(
    folder: Results, part: Part, shard: str, rows: npt.NDArray[np.int32], sha256: Digests
) -> pa.Array:
    """Return the payloads of `rows` of a shard, which are failed records with these digests.

    Raises:
        IntegrityError: when the shard is gone, or not what it was.
    """
    path = folder.shard(shard)
    if not path.exists():
        raise IntegrityError(
            f"{path}: this shard is gone, and some of its records failed; "
            f"delete {folder.plan} and run the same command again to plan anew."
        )
    records = read_verified(path).take(pa.array(rows))
    if not np.array_equal(digests(records["sha256"]), sha256):
        raise part.has_wrong_row()
    return pa.concat_arrays([pa.nulls(0, pa.large_binary()), *records["payload"].chunks])


class Lists:
    """The open failed.tsv and failed.fa."""

    def __init__(self, rows: TextIO, records: BinaryIO, name: str, id_columns: IdColumns) -> None:
        self._table = TsvWriter(rows, [*COLUMNS, *id_columns.keys])
        self._keys = id_columns.keys
        self._records = records
        self._name = name
        self._takes_fasta = True

    @classmethod
    @contextmanager
    def opened(cls, table: Path, fasta: Path, id_columns: IdColumns) -> Iterator[Self]:
        """Yield the lists, which become `table` and `fasta` after the block."""
        with (
            delivering(table) as new_table,
            delivering(fasta) as new_fasta,
            new_table.open("w", encoding="utf-8", newline="") as rows,
            new_fasta.open("wb") as records,
        ):
            yield cls(rows, records, fasta.name, id_columns)

    def add(
        self, block: pa.Table, failed: pa.RecordBatch, first: int, pending: npt.NDArray[np.int64]
    ) -> None:
        """List a block's refused, failed and pending records; `first` is its first ordinal."""
        where = failed.column("ordinal").to_numpy() - first
        reasons = dict(zip(where.tolist(), failed.column("reason").to_pylist(), strict=True))
        reasons |= dict.fromkeys(pending.tolist(), NOT_YET)
        is_refused = np.asarray(pc.equal(block["status"].cast(pa.string()), "refused"))
        listed = np.union1d(np.flatnonzero(is_refused), np.array(list(reasons), np.int64))
        if not len(listed):
            return
        rows = block.take(pa.array(listed)).select(["id", "source", "line", "reason", *self._keys])
        for position, id, source, line, reason, *keys in zip(
            listed.tolist(), *(column.to_pylist() for column in rows.columns), strict=True
        ):
            why = reasons.get(position)
            status = "refused" if why is None else "pending" if why is NOT_YET else "failed"
            self._table.row([id, source, line, status, why or reason, *keys])
        self._add_fasta(block.take(pa.array(where)), failed.column("payload").to_pylist())

    def _add_fasta(self, rows: pa.Table, payloads: list[bytes]) -> None:
        ids, descriptions = whole_ids(rows).to_pylist(), rows["description"].to_pylist()
        for id, description, payload in zip(ids, descriptions, payloads, strict=True):
            if not self._takes_fasta:
                return
            if not SEQUENCE.fullmatch(payload):
                log.info("%s is left empty: these records are no sequences.", self._name)
                self._takes_fasta = False
                self._records.seek(0)
                self._records.truncate()
                return
            header = " ".join(f"{id} {description or ''}".split())
            self._records.write(f">{header}\n".encode() + payload + b"\n")


NOTED = ("id", "source", "line", "note")
"""The columns of notes.tsv."""


def write_notes(records_path: Path, path: Path, *, has_any: bool) -> None:
    """Write notes.tsv, the records that were cut or cleaned before they were computed: a row for
    each, in input order, where records.parquet `has_any`."""
    columns = [*NOTED, *id_columns_of(records_path).keys]
    with delivering(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = TsvWriter(file, columns)
        for batch in read_records(records_path, columns) if has_any else ():
            noted = batch.filter(pc.is_valid(batch.column("note")))
            for cells in zip(*noted.to_pydict().values(), strict=True):
                table.row(cells)
