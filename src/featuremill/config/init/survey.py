"""What an input holds: its records counted in one pass, in bounded memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from featuremill import inputs
from featuremill.base.reasons import head_of
from featuremill.base.words import counted
from featuremill.config.init.ids import Ids
from featuremill.inputs import columns_taken, source
from featuremill.inputs.residues import NUCLEOTIDES
from featuremill.workload import Workload

RECORDS_A_MESSAGE = 1_000_000

log = logging.getLogger("featuremill.init")


@dataclass
class Survey:
    """What an input holds."""

    lengths: Counter[int] = field(default_factory=Counter)
    """How many good records have each length."""
    longest: tuple[int, str] = (0, "")
    """Length and id of the longest good record."""
    refused: Counter[str] = field(default_factory=Counter)
    first_refused: dict[str, str] = field(default_factory=dict)
    """Where the first record stands that was refused for each reason."""
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def num_residues(self) -> int:
        return sum(length * count for length, count in self.lengths.items())

    @property
    def num_records(self) -> int:
        return self.lengths.total() + self.refused.total()

    @property
    def is_nucleotides(self) -> bool:
        return 2 * self.notes[NUCLEOTIDES] > self.lengths.total()

    @property
    def median(self) -> int:
        """The (lower) median length of the good records."""
        before = 0
        for length in sorted(self.lengths):
            before += self.lengths[length]
            if 2 * before >= self.lengths.total():
                return length
        return 0

    def describe(self, paths: Sequence[Path], options: BaseModel) -> Iterator[str]:
        """Yield the lines that say all this to people."""
        yield f"{names(paths)}: {', '.join(dict.fromkeys(_kind(path) for path in paths))}"
        if isinstance(options, inputs.TableOptions):
            yield from dict.fromkeys(filter(None, (columns_taken(p, options) for p in paths)))
        kind = "nucleotide" if self.is_nucleotides else "protein"
        records = counted(self.num_records, f"{kind} record")
        yield f"{records}, {counted(self.num_residues, 'residue')}"
        if self.lengths:
            length, id = self.longest
            yield f"median length {self.median:,}, longest {length:,} ({id:.60})"
        for note, count in self.notes.most_common():
            yield f"{count:,} of them: {note}"
        for reason, count in self.refused.most_common():
            yield f"{count:,} refused: {reason} (first: {self.first_refused[reason]})"


def surveyed(paths: Sequence[Path], workload: Workload, options: BaseModel) -> Survey:
    """Read all records of `paths` and count what there is.

    Raises:
        UserError: when an id stands for two different payloads, as plan would.
    """
    found = Survey()
    with Ids() as ids:
        for number, record in enumerate(workload.records(paths, options), 1):
            if record.reason:
                reason = head_of(record.reason)
                found.refused[reason] += 1
                found.first_refused.setdefault(reason, f"{record.source}:{record.line}")
            else:
                length = len(record.payload)
                found.lengths[length] += 1
                if length > found.longest[0]:
                    found.longest = length, record.id
                ids.add(record)
            if record.note:
                found.notes.update(record.note.split("; "))
            if number % RECORDS_A_MESSAGE == 0:
                log.info("%s records so far", f"{number:,}")
        ids.refuse_conflict(workload.records(paths, options))
    return found


def _kind(path: Path) -> str:
    """Return what kind of file `path` is, for people, as in "FASTA, gz-compressed"."""
    compression = source.compression_of(path)
    name = inputs.format_of(path).name
    return f"{name}, {compression}-compressed" if compression else name


def names(paths: Sequence[Path]) -> str:
    """Return the paths for people: the first three, and how many more."""
    shown = ", ".join(str(path) for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
