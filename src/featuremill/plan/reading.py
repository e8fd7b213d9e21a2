"""The first pass of planning: one stream of records, dealt in chunks to those who spool them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError
from featuremill.base.progress import Progress
from featuremill.config import Config
from featuremill.inputs.samples import Sheet
from featuremill.plan import conflicts, repeats
from featuremill.plan.processes import Processes
from featuremill.plan.repeats import Ordinals
from featuremill.plan.rows import Rows
from featuremill.plan.spool import Chunk, Tally, chunks_of, ids_path, spool
from featuremill.store.plan import Counts, Lengths
from featuremill.workload import Record, Workload, optional, plugin_errors
from featuremill.workload.option_files import paths_of

log = logging.getLogger("featuremill.plan")


class Spooled:
    """What reading an input left behind."""

    def __init__(
        self, inputs: tuple[str, ...], folders: list[Path], tally: Tally, length_unit: str
    ) -> None:
        self.folders = folders
        """One for each process that spooled; chunks were dealt to them in turn."""
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
        found = repeats.find(self.rows, [ids_path(folder) for folder in self.folders])
        if found.conflicts:
            conflicts.refuse(self.folders, self.rows, found.conflicts, self.tally)
            self.rows = Rows(self.folders)
        if self.tally.records == self.tally.refused:
            raise UserError(self._nothing_left())
        return found.repeats

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
        """What a plan says of the records' lengths."""
        found = Lengths(total=self.tally.total_length, longest=self.tally.longest)
        # Plans of proteins are as they were before there was anything else.
        if self._length_unit == found.unit:
            return found
        return found.model_copy(update={"unit": self._length_unit})

    def _nothing_left(self) -> str:
        inputs, tally = ", ".join(self._inputs), self.tally
        if not tally.records:
            return f"{inputs}: there is no record in the input; check the path in `inputs`."
        count, reason = min((-count, reason) for reason, count in tally.refusals.items())
        all_of_them = f"all {tally.records:,} records were"
        if tally.records == 1:
            all_of_them = "the only record was"
        return (
            f"{inputs}: {all_of_them} refused, {-count:,} because: {reason}; "
            "check that the input is what the workload expects."
        )


def read_records(
    config: Config,
    workload: Workload,
    options: Any,
    folder: Path,
    processes: Processes,
    sheet: Sheet | None = None,
) -> Spooled:
    """Spool every record of the config's inputs, or of its `sheet` of samples, below `folder`; the
    processes are started if it takes more than a chunk."""
    chunks = with_progress(_chunks(config, workload, options, sheet))
    beginning = list(itertools.islice(chunks, 2))
    if len(beginning) > 1:
        processes.start()
    folders = [folder / str(number) for number in range(processes.num_started or 1)]
    settled = options.model_dump_json()
    tasks = [(each, config.workload, settled) for each in folders]
    tally = Tally()
    for part in processes.deal(spool, tasks, itertools.chain(beginning, chunks)):
        tally.add(part)
    named = (str(sheet.path),) if sheet else config.inputs
    return Spooled(named, folders, tally, optional(workload, "LENGTH_UNIT"))


def _chunks(
    config: Config, workload: Workload, options: Any, sheet: Sheet | None
) -> Iterator[Chunk]:
    inputs: tuple[list[Path], dict[str, int]] = ([Path(path) for path in config.inputs], {})
    passes = [*sheet.passes()] if sheet else [inputs]
    # Files of options may name records, and a workload holds such names against all inputs.
    everything = dict.fromkeys(chain.from_iterable(paths for paths, _ in passes))
    first = 0
    for number, (paths, samples) in enumerate(passes, 1):
        others: dict[str, Path] = {}
        if len(passes) > 1 and paths_of(options):
            others = {str(path): path for path in everything if str(path) not in samples}
        read = [*paths, *others.values()]
        records = plugin_errors.records_of(config.workload, workload, read, options)
        if others:
            records = _without(records, others, to_the_end=number == len(passes))
        for chunk in chunks_of(records, first, samples):
            yield chunk
            first = chunk.first + len(chunk.ids)


def _without(
    records: Iterator[Record], others: Mapping[str, Path], to_the_end: bool
) -> Iterator[Record]:
    """Yield the records before those of the files `others`, which are read, too, if
    `to_the_end`."""
    for record in records:
        if record.source not in others:
            yield record
        elif not to_the_end:
            return


def with_progress(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks, and log how far that is."""
    shown = Progress(log, "reading")
    for chunk in chunks:
        yield chunk
        shown.at(chunk.first + len(chunk.ids))
