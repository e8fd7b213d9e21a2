"""The records of a run by row or by id, with one vector per record (`Features`) or before they are
computed (`Planned`); and those on the map of a report, with labels and notes (`Shown`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE, WHOLE, IdColumns, accessions
from featuremill.base.text import clipped
from featuremill.features.index import NOWHERE, Index, hashes_at
from featuremill.features.parts import RecordsRows, RecordVectors
from featuremill.features.table import Column, Matrix, Rows, Stored, Table, checked
from featuremill.store import command_line, failed
from featuremill.store.delivery import Delivery
from featuremill.store.failed import Failure
from featuremill.store.formats import FAILED, index_of
from featuremill.store.plan import Input, Plan
from featuremill.store.records import read_records, samples_of, whole_ids
from featuremill.store.results import Results

BLOCK_BYTES = 2**25
"""Bytes of vectors in a block of `Features.blocks`."""
MOST_OF_ACCESSION = 3
"""Largest number of ids in a message about an accession of several records."""
MAX_TEXT = 40
MOST_SHOWN = 10_000
"""Largest number of records on a map."""


class Record(NamedTuple):
    """The record of a row."""

    id: str
    length: int
    """The length of the payload in the workload's unit, such as residues."""
    sha256: str
    """The sha256 of the payload, in hex."""
    description: str


class Records:
    """The records of a table of a run; a row is the index of a record in the table."""

    def __init__(self, folder: Results, table: Table) -> None:
        """`table` has the ids of the rows."""
        self.folder, self.table = folder, table
        self._hashes = hashes_at(table.path.with_name(index_of(table.path.name)), table.num_rows)
        self.name = str(folder.root)
        self.num_rows = table.num_rows
        self.id_columns = table.id_columns

    def samples(self) -> dict[str, list[str]]:
        """Return the columns of the sheet of samples in the last plan, with the names of the
        samples; {} without a sheet."""
        return samples_of(self.folder.records) if self.id_columns.keys else {}

    def index(self) -> Index:
        """Return the index of the ids, by merge or built now.

        Raises:
            UserError: if two records have the same id.
        """
        return Index(self, self._hashes)

    def ids_of(self, rows: Rows) -> list[str]:
        """Return the whole ids of `rows`: <sample>/<id>, or the id without a sample."""
        ids_found = np.empty(len(rows), object)
        for places, batch in self.table.pieces(checked(rows, self.num_rows), WHOLE):
            ids_found[places] = whole_ids(batch).to_pylist()
        ids: list[str] = ids_found.tolist()
        return ids

    def rows_of(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the rows of those `ids` that exist, by the index of results by shard, or else by
        reading all ids. For very many ids, use `index`."""
        row_of: dict[str, int] = {}
        if self._hashes:
            listed = list(dict.fromkeys(ids))
            rows = self.index().rows_of(listed).tolist()
            return {id: row for id, row in zip(listed, rows, strict=True) if row != NOWHERE}
        wanted = set(ids)
        wanted_ids = pa.array(wanted, pa.string())
        for first, batch in self.table.batches(WHOLE) if wanted else ():
            ids_there = whole_ids(batch)
            places = pc.indices_nonzero(pc.is_in(ids_there, value_set=wanted_ids))
            names = ids_there.take(places).to_pylist()
            row_of.update(zip(names, (first + places.to_numpy()).tolist(), strict=True))
            if len(row_of) == len(wanted):
                break
        return row_of

    def rows_named(self, names: Iterable[str]) -> dict[str, int]:
        """Return the rows of those `names` that exist: whole ids, or the accession of one record,
        with or without its sample.

        Raises:
            UserError: if a name is the accession of several records, and not an id.
        """
        listed = dict.fromkeys(names)
        row_of = self.rows_of(listed)
        of_accession = self._ids_of_accessions(listed.keys() - row_of.keys())
        for name, ids in of_accession.items():
            if len(ids) > 1:
                raise UserError(
                    f"{self.folder.root}: {name!r} is the accession of several records, such as "
                    f"{', '.join(ids)}; give a whole id, in quotes for the shell."
                )
        rows = self.rows_of([ids[0] for ids in of_accession.values()])
        return row_of | {name: rows[ids[0]] for name, ids in of_accession.items()}

    def _ids_of_accessions(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return up to MOST_OF_ACCESSION ids of records for each of `names` as accession."""
        ids_of: dict[str, list[str]] = {}
        wanted = pa.array(names, pa.string())
        for _, batch in self.table.batches(WHOLE) if names else ():
            short = accessions(batch["id"])
            whole = whole_ids(batch.set_column(batch.schema.get_field_index("id"), "id", short))
            for here in [short, whole] if self.id_columns.keys else [short]:
                places = pc.indices_nonzero(pc.is_in(here, value_set=wanted))
                ids = whole_ids(batch).take(places).to_pylist()
                for name, id in zip(here.take(places).to_pylist(), ids, strict=True):
                    of_name = ids_of.setdefault(name, [])
                    if len(of_name) < MOST_OF_ACCESSION and id not in of_name:
                        of_name.append(id)
        return ids_of

    def records_of(self, rows: Rows) -> dict[int, Record]:
        """Return the records of `rows`, by row."""
        records: dict[int, Record] = {}
        rows = np.unique(checked(rows, self.num_rows))
        others = Record._fields[1:]
        for places, batch in self.table.pieces(rows, [*WHOLE, *others]):
            columns = (_plain(each) for each in (whole_ids(batch), *map(batch.column, others)))
            records.update(zip(rows[places].tolist(), map(Record, *columns), strict=True))
        return records

    def ranks_of(self, rows: Rows) -> Rows:
        """Return the rank of each of `rows` by sha256 and id, for any order of the results."""
        records = self.records_of(rows)
        ascending = sorted(records, key=lambda row: (records[row].sha256, records[row].id))
        rank_of = {row: rank for rank, row in enumerate(ascending)}
        return np.array([rank_of[row] for row in rows.tolist()], np.int64)

    def digests(self) -> Iterator[tuple[str, str]]:
        """Yield the id and the sha256 of the payload, in hex, of all rows in order."""
        for _, batch in self.table.batches([*WHOLE, "sha256"]):
            yield from zip(whole_ids(batch).to_pylist(), _plain(batch["sha256"]), strict=True)


class Planned(Records):
    """The records of a planned run that will have a vector, unless they fail."""

    is_of_plan = True

    def __init__(self, run: str | Path) -> None:
        """Read the records.parquet of `run`, such as "results/demo".

        Raises:
            UserError: if there is no plan.
            IntegrityError: if the plan is damaged.
        """
        folder = Results(Path(run))
        self.inputs = folder.read_plan().inputs
        first, ordinals = 0, [np.empty(0, np.int64)]
        for batch in read_records(folder.records, ["status"]):
            is_planned = pc.equal(batch["status"].cast(pa.string()), "planned")
            ordinals.append(first + pc.indices_nonzero(is_planned).to_numpy().astype(np.int64))
            first += batch.num_rows
        super().__init__(folder, RecordsRows(folder.records, np.concatenate(ordinals)))

    def failures(self) -> Iterator[Record]:
        """Yield the records that are known to get no vector: the refused ones."""
        every = Table(self.folder.records)
        for _, batch in every.batches([*WHOLE, "status"]):
            is_refused = pc.equal(batch["status"].cast(pa.string()), "refused")
            for id in whole_ids(batch).filter(is_refused).to_pylist():
                yield Record(id, 0, "", "")


class Features(Records):
    """The records of a run with a vector, in the order of the results (of the input, or of shards).

    Records with equal payloads have equal vectors.
    """

    def __init__(
        self,
        folder: Results,
        delivered: Results,
        delivery: Delivery,
        column: Column,
        table: Table,
        vectors: Stored | RecordVectors | Matrix,
        check: Callable[[], None],
    ) -> None:
        """`table` has the ids of the rows, `vectors` their vectors."""
        super().__init__(folder, table)
        self.delivered, self.delivery = delivered, delivery
        self.check = check
        """Compares all files that are read with their digests in manifest.json; raises
        IntegrityError, which names the first file that differs."""
        self.plan: Plan | None = folder.find_plan()
        """The present plan, which may be newer than the results."""
        self.column, self.width = column.name, column.width
        self.recipe: str = delivery.recipe
        self.settings = delivery.settings
        self.vectors = vectors

    @property
    def inputs(self) -> list[Input]:
        """The input files of the run; a sheet of samples comes first."""
        return self.delivery.inputs

    @property
    def is_of_plan(self) -> bool:
        """Whether the results belong to the last plan; True if there is no plan."""
        return self.plan is None or self.delivery.is_of(self.plan)

    def samples(self) -> dict[str, list[str]]:
        """Return the columns of the sheet of samples, with the names of the samples; {} without a
        sheet.

        Raises:
            UserError: the sheet of these results is gone, or was planned anew since.
        """
        if not self.id_columns.keys:
            return {}
        if not self.folder.records.exists():
            raise UserError(
                f"{self.folder.records}: there is no such file, which has the sheet of samples of "
                "these results; copy it with them, or name a table that has the groups, too."
            )
        if not self.is_of_plan:
            raise UserError(
                f"{self.name}: its sheet of samples was planned anew after these results, so they "
                "may not be of the same samples; make the results anew: "
                f"{command_line.again(self.folder.root)}"
            )
        return super().samples()

    def blocks(self) -> Iterator[tuple[list[str], Matrix]]:
        """Yield the ids and the vectors (rows, width) of all rows in order, in blocks of about 32
        MiB, in the dtype of the results."""
        enough = max(1, BLOCK_BYTES // (self.width * self.vectors.dtype.itemsize))
        first, block = 0, list[Matrix]()
        for start, vectors in self.vectors_in_blocks(enough):
            block.append(vectors)
            end = start + len(vectors)
            if end - first >= enough or end == self.num_rows:
                yield self.ids_of(np.arange(first, end)), np.concatenate(block)
                first, block = end, []

    def vectors_in_blocks(self, num_rows: int) -> Iterator[tuple[int, Matrix]]:
        """Yield the first row and the vectors (rows, width) of blocks of at most `num_rows`."""
        if isinstance(self.vectors, Stored):
            yield from self.vectors.blocks(num_rows)
            return
        for start in range(0, self.num_rows, num_rows):
            yield start, self.vectors[start : start + num_rows]

    def take(self, rows: Rows) -> Matrix:
        """Return the vectors (rows, width) of `rows`, in their order; all rows have to exist."""
        return self.vectors[checked(rows, self.num_rows)]

    def failures(self) -> Iterator[Failure]:
        """Yield the records of the run without a vector, with reasons, in order of the input."""
        path = self.delivered.root / FAILED[0]
        failures = failed.read(path) if path.exists() else iter(())
        return (failure._replace(id=failure.whole_id) for failure in failures)


Listed = Features | Planned
"""Records by id, with vectors or before they are computed."""


class Labels(NamedTuple):
    """The labels of some records in a column of a table."""

    column: str
    path: Path
    texts: list[str | None]
    """The label of each record, in their order; None without one."""
    mismatch: str = ""
    """If no record has a label: a sentence with ids of both sides."""
    id_column: str = ""
    """The name of the column of ids, if the user named it."""

    @property
    def file(self) -> str:
        """The name of the table on the page."""
        return clipped(self.path.name)

    @property
    def title(self) -> str:
        """The name of the column on the page."""
        return clipped(self.column, MAX_TEXT)

    @property
    def num_found(self) -> int:
        return sum(text is not None for text in self.texts)


class Shown(NamedTuple):
    """The records on the map of a report: all, or evenly spaced ones."""

    folder: Path
    ids: list[str]
    """The whole ids."""
    lengths: list[int]
    unit: str
    """The unit of lengths, such as "residues"."""
    total: int
    """Number of rows of the table."""
    column: str
    others: list[str]
    """The other columns of values in the file."""
    vectors: Matrix
    """The vectors: (N, D) float32."""
    descriptions: list[str]
    id_columns: IdColumns = ID_ALONE
    notes: Sequence[str | None] = ()
    """Notes how records were truncated or cleaned; empty if there is none."""
    labels: Sequence[Labels] = ()
    """The labels from the user's tables; the first ones colour the map."""


def _plain(column: pa.Array) -> list[Any]:
    """Return the values of a column; digests, which are bytes in records.parquet, in hex."""
    values = column.to_pylist()
    is_bytes = pa.types.is_fixed_size_binary(column.type)
    return [value.hex() for value in values] if is_bytes else values
