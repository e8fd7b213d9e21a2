"""The first pass of planning: one stream of records, dealt in chunks to those who spool them."""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from featuremill.base.environment import AS_PROTEINS
from featuremill.base.errors import UserError, WorkloadError
from featuremill.base.progress import Progress
from featuremill.base.reasons import CONFLICT, kind_of
from featuremill.base.text import clipped
from featuremill.config import Run
from featuremill.config.project import proteins_of
from featuremill.inputs import Stream
from featuremill.inputs.samples import Sheet
from featuremill.plan import repeats
from featuremill.plan.processes import Processes
from featuremill.plan.records import Rows
from featuremill.plan.repeats import Ordinals
from featuremill.plan.spool import (
    NUM_BUCKETS,
    Chunk,
    Pieces,
    Tally,
    chunks_of,
    ids_path,
    lots_of,
    spool,
)
from featuremill.store.plan import Counts, Lengths
from featuremill.workload import Record, optional, plugin_errors

log = logging.getLogger("featuremill.plan")
Lot = TypeVar("Lot", Chunk, Pieces, Chunk | Pieces)
ROWS_AT_ONCE = 3_000_000
"""Rows that are sorted at once, by however many processes; some 200 bytes of memory each."""
BYTES_A_PROCESS = 2**24
"""The bytes that a process spools in the second that it takes to start."""


class Spooled:
    """What reading an input left behind."""

    def __init__(
        self, inputs: tuple[str, ...], folders: list[Path], tally: Tally, length_unit: str
    ) -> None:
        self.folders = folders
        """The folders of the processes that spooled; chunks were dealt to them in turn."""
        self.tally = tally
        self.rows = Rows(folders)
        self._inputs = inputs
        self._length_unit = length_unit

    @cached_property
    def repeats(self) -> Ordinals:
        """The ordinals of rows that repeat an earlier row's id and payload, ascending; records
        whose id stands for two payloads are refused with it.

        Raises:
            UserError: when no record is left to compute.
        """
        repeated = repeats.find(self.rows, [ids_path(folder) for folder in self.folders])
        if repeated.conflicts:
            repeats.refuse(self.folders, self.rows, repeated.conflicts, self.tally)
            self.rows = Rows(self.folders)
        if self.tally.records == self.tally.refused:
            raise UserError(self._nothing_left(repeated.conflicts))
        return repeated.repeats

    def counts(self, unique: int) -> Counts:
        """Return what a plan says of the records, of which so many payloads are to be computed."""
        tally = self.tally
        return Counts(
            input=tally.records,
            refused=tally.refused,
            duplicate=len(self.repeats),
            planned=tally.records - tally.refused - len(self.repeats),
            unique=unique,
        )

    @property
    def lengths(self) -> Lengths:
        tally = self.tally
        lengths = Lengths(
            total=tally.total_length, longest=tally.longest, costliest=tally.costliest
        )
        # Plans of proteins are as they were before there was anything else.
        if self._length_unit == lengths.unit:
            return lengths
        return lengths.model_copy(update={"unit": self._length_unit})

    def _nothing_left(self, in_conflict: Mapping[int, str]) -> str:
        inputs, tally = ", ".join(self._inputs), self.tally
        if not tally.records:
            return f"{inputs}: there is no record in the input; check the path in `inputs`."
        count, reason = min((-count, reason) for reason, count in tally.refusals.items())
        is_conflict = kind_of(reason) is CONFLICT
        all_of_them = f"all {tally.records:,} records were"
        if tally.records == 1:
            all_of_them = "the only record was"
        remedy = "check that the input is what the workload expects."
        if is_conflict:
            first = np.array([min(in_conflict)], np.int64)
            id = clipped(self.rows.take(first, ["id"])["id"][0].as_py())
            reason += f", such as {id!r} (an id is the first word of a header)"
            remedy = (
                "give each record its own id, or list files that use the same ids in a sheet of "
                "samples (samples:)."
            )
        return f"{inputs}: {all_of_them} refused, {-count:,} because: {reason}; {remedy}"


def read_records(
    config: Run, options: Any, folder: Path, processes: Processes, sheet: Sheet | None = None
) -> Spooled:
    """Spool every record of the config's inputs, or of its `sheet` of samples, below `folder`, as
    the settled `options` say; the processes are started if it takes more than a chunk."""
    names = dict.fromkeys(row.file for row in sheet.rows) if sheet else config.inputs
    files = list(map(Path, names))
    chunks = with_progress(_chunks(config, files, options, folder, sheet))
    beginning = list(itertools.islice(chunks, 2))
    if len(beginning) > 1:
        num_bytes = sum(path.stat().st_size for path in files)
        processes.start(max(2, num_bytes // BYTES_A_PROCESS))
    folders = [folder / str(number) for number in range(processes.num_started or 1)]
    settled = options.model_dump_json()
    tasks = [(each, config.workload, settled) for each in folders]
    tally = Tally()
    for part in processes.deal(spool, tasks, itertools.chain(beginning, chunks)):
        tally.add(part)
    processes.at_once = max(1, ROWS_AT_ONCE * NUM_BUCKETS // max(1, tally.records))
    return Spooled(config.named, folders, tally, optional(config.module, "LENGTH_UNIT"))


def _chunks(
    config: Run, files: list[Path], options: Any, folder: Path, sheet: Sheet | None
) -> Iterator[Chunk | Pieces]:
    records = plugin_errors.records_of(config.workload, config.module, files, options)
    if not (sheet and sheet.shared):
        owners = {row.file: row.owner for row in sheet.rows} if sheet else {}
        yield from lots_of(records.pieces() if isinstance(records, Stream) else records, owners)
        return
    first = 0
    with tempfile.TemporaryFile(dir=folder) as kept:
        once = _Once(records, sheet.shared, kept)
        for owners in sheet.passes():
            records_again = chain.from_iterable(map(once.records_of, owners))
            for chunk in chunks_of(records_again, first, owners):
                yield chunk
                first = chunk.end
        once.refuse_more()


class _Once:
    """The records of files that are read once, in their order, though samples share some."""

    def __init__(self, records: Iterator[Record], shared: Iterable[str], kept: IO[bytes]) -> None:
        """Keep the records of files that are `shared` in the file `kept`."""
        self._records = records
        self._ahead: Record | None = None
        """The first record of the next file."""
        self._shared = set(shared)
        self._file = kept
        self._kept: dict[str, tuple[int, int]] = {}
        """The offset of a file's records there, and their number."""

    def records_of(self, file: str) -> Iterator[Record]:
        if file in self._kept:
            begin, times = self._kept[file]
            self._file.seek(begin)
            for _ in range(times):
                fields = json.loads(self._file.readline())
                yield Record(**fields | {"payload": fields["payload"].encode("latin-1")})
            return
        begin, times = self._file.seek(0, os.SEEK_END), 0
        self._ahead = self._ahead or next(self._records, None)
        while self._ahead and self._ahead.source == file:
            if file in self._shared:
                payload = self._ahead.payload.decode("latin-1")
                fields = self._ahead._asdict() | {"payload": payload}
                # A reader may give NumPy's whole numbers.
                self._file.write(json.dumps(fields, default=int).encode() + b"\n")
                times += 1
            yield self._ahead
            self._ahead = next(self._records, None)
        self._kept[file] = begin, times

    def refuse_more(self) -> None:
        """Refuse records that are left when those of all files were asked for.

        Raises:
            WorkloadError: a file's records do not follow one another, in the order of the files.
        """
        if left := self._ahead or next(self._records, None):
            raise WorkloadError(
                f"{left.source}:{left.line}: this record comes after those of another file; that "
                "is for the author of the workload to fix."
            )


def refuse_nucleotides(paths: Sequence[str], log: logging.Logger) -> None:
    """Refuse inputs that look like nucleotides, or only warn where the user says what they are.

    Raises:
        UserError: unless the user set `FEATUREMILL_AS_PROTEINS=1`.
    """
    problem = "most of the records look like nucleotides, not proteins"
    if AS_PROTEINS.value():
        log.warning("%s; continuing, as %s=1 is set", problem, AS_PROTEINS)
        return
    instead = ""
    if commands := proteins_of(paths):
        instead = f"translate them first: {commands[0]}, and then featuremill init {commands[1]}; "
    raise UserError(
        f"{', '.join(paths[:3])}: {problem}; {instead}{AS_PROTEINS}=1 takes them for proteins all "
        "the same."
    )


def with_progress(chunks: Iterable[Lot]) -> Iterator[Lot]:
    """Yield the chunks, and log how far that is."""
    shown = Progress(log, "reading")
    for chunk in chunks:
        yield chunk
        shown.at(chunk.end)
