"""What an input holds, for `init`: its records counted in one pass, in bounded memory.

An id that stands for two payloads is found by plan, which has all rows on disk (`repeats.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel

from featuremill import inputs
from featuremill.base.reasons import head_of
from featuremill.base.words import counted
from featuremill.inputs import columns_taken, source
from featuremill.plan.reading import with_progress
from featuremill.plan.spool import Chunk, Tally, chunks_of
from featuremill.workload import Workload, optional
from featuremill.workload.plugin_errors import records_of


class Survey:
    def __init__(self) -> None:
        self.tally = Tally()
        self.lengths: Counter[int] = Counter()
        """How many good records have each length."""
        self.longest = (0, "")
        """Length and id of the longest good record."""
        self.ids: set[str] = set()
        """The first two ids of good records."""
        self._payloads: set[bytes] = set()
        self.first_refused: dict[str, str] = {}
        """The position (`path:line`) of the first refused record of each reason."""

    def count(self, chunk: Chunk) -> None:
        self.tally.count(chunk)
        for of_chunk, kept in ((chunk.ids, self.ids), (chunk.payloads, self._payloads)):
            good = iter(chunk.good(of_chunk))
            while len(kept) < 2 and (value := next(good, None)) is not None:
                kept.add(value)  # type: ignore[arg-type]
        self.lengths.update(chunk.good(chunk.lengths))
        for id, length, reason, path, line in zip(
            chunk.ids, chunk.lengths, chunk.reasons, chunk.sources, chunk.lines, strict=True
        ):
            if reason:
                self.first_refused.setdefault(head_of(reason), f"{path}:{line}")
            elif length > self.longest[0]:
                self.longest = length, id

    @property
    def only_id(self) -> str:
        """The id that all good records have though they differ; "" where there is none."""
        return next(iter(self.ids)) if len(self.ids) < len(self._payloads) else ""

    @property
    def median(self) -> int:
        """The (lower) median length of the good records."""
        before = 0
        for length in sorted(self.lengths):
            before += self.lengths[length]
            if 2 * before >= self.lengths.total():
                return length
        return 0

    def describe(
        self, paths: Sequence[Path], workload: Workload, options: BaseModel
    ) -> Iterator[str]:
        if optional(workload, "TAKES_FILES"):
            yield names(paths)
        else:
            yield f"{names(paths)}: {', '.join(dict.fromkeys(_kind(path) for path in paths))}"
        yield from dict.fromkeys(filter(None, (columns_taken(p, options) for p in paths)))
        unit, tally = optional(workload, "LENGTH_UNIT"), self.tally
        kind = "nucleotide " if tally.is_nucleotides else "protein " if unit == "residues" else ""
        records = counted(tally.records, f"{kind}record")
        yield f"{records}, {counted(tally.total_length, unit.removesuffix('s'))}"
        if self.lengths:
            length, id = self.longest
            yield f"median length {self.median:,}, longest {length:,} ({id:.60})"
        for note, count in tally.notes.most_common():
            yield f"{count:,} of them: {note}"
        for reason, count in tally.refusals.most_common():
            yield f"{count:,} refused: {reason} (first: {self.first_refused[reason]})"


def surveyed(
    paths: Sequence[Path],
    name: str,
    workload: Workload,
    options: BaseModel,
    owners: Mapping[str, int] = MappingProxyType({}),
) -> Survey:
    """Read all records of `paths` and count what there is; `owners` are as in `chunks_of`."""
    survey, records = Survey(), records_of(name, workload, paths, options)
    for chunk in with_progress(chunks_of(records, 0, owners)):
        survey.count(chunk)
    return survey


def _kind(path: Path) -> str:
    """Return what kind of file `path` is, for people, as in "FASTA, gz-compressed"."""
    compression = source.compression_of(path)
    name = inputs.name_of(path)
    return f"{name}, {compression}-compressed" if compression else name


def names(paths: Sequence[Path]) -> str:
    """Return the paths for people: the first three, and how many more."""
    shown = ", ".join(str(path) for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
