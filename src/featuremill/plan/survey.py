"""What an input holds, for `init`: its records counted in one pass, in bounded memory.

Plan has all rows on disk and compares them (`repeats.py`). Here 24 bytes a record go to a temporary
file to find an id that stands for two sequences: hashes of its id and of its payload.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import xxhash
from pydantic import BaseModel

from featuremill import inputs
from featuremill.base.reasons import head_of
from featuremill.base.words import counted
from featuremill.inputs import columns_taken, source
from featuremill.plan.reading import with_progress
from featuremill.plan.repeats import conflict, same_hash
from featuremill.plan.spool import ID_KEY, Chunk, Tally, chunks_of, hash_of
from featuremill.workload import Record, Workload, optional
from featuremill.workload.plugin_errors import records_of


class Survey:
    """What an input holds."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.lengths: Counter[int] = Counter()
        """How many good records have each length."""
        self.longest = (0, "")
        """Length and id of the longest good record."""
        self.first_refused: dict[str, str] = {}
        """Where the first record stands that was refused for each reason."""
        self.conflict = ""
        """A sentence on the first id that stands for two different payloads, if any does."""

    def count(self, chunk: Chunk) -> None:
        """Count in the records of a chunk."""
        self.tally.count(chunk)
        self.lengths.update(chunk.good_lengths())
        for id, length, reason, place, line in zip(
            chunk.ids, chunk.lengths, chunk.reasons, chunk.sources, chunk.lines, strict=True
        ):
            if reason:
                self.first_refused.setdefault(head_of(reason), f"{place}:{line}")
            elif length > self.longest[0]:
                self.longest = length, id

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
        """Yield the lines that say all this to people."""
        if optional(workload, "TAKES_FILES"):
            yield names(paths)
        else:
            yield f"{names(paths)}: {', '.join(dict.fromkeys(_kind(path) for path in paths))}"
        yield from dict.fromkeys(filter(None, (columns_taken(p, options) for p in paths)))
        unit, tally = optional(workload, "LENGTH_UNIT"), self.tally
        kind = (
            "nucleotide " if self.tally.is_nucleotides else "protein " if unit == "residues" else ""
        )
        records = counted(tally.records, f"{kind}record")
        yield f"{records}, {counted(tally.total_length, unit.removesuffix('s'))}"
        if self.lengths:
            length, id = self.longest
            yield f"median length {self.median:,}, longest {length:,} ({id:.60})"
        for note, count in tally.notes.most_common():
            yield f"{count:,} of them: {note}"
        for reason, count in tally.refusals.most_common():
            yield f"{count:,} refused: {reason} (first: {self.first_refused[reason]})"
        if self.conflict:
            yield self.conflict


def surveyed(
    paths: Sequence[Path],
    name: str,
    workload: Workload,
    options: BaseModel,
    samples: Mapping[str, int] = MappingProxyType({}),
) -> Survey:
    """Read all records of `paths` and count what there is; `samples` are as in `chunks_of`."""
    found = Survey()
    with _Ids() as ids:
        for chunk in with_progress(
            chunks_of(records_of(name, workload, paths, options), 0, samples)
        ):
            found.count(chunk)
            ids.add(chunk)
        found.conflict = ids.first_conflict(records_of(name, workload, paths, options))
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


class _Ids(ExitStack):
    """The ids of good records and what stands under them; a context manager."""

    def __init__(self) -> None:
        super().__init__()
        folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self._paths = folder / "ids.bin", folder / "payloads.bin"
        self._files = [self.enter_context(path.open("wb")) for path in self._paths]
        self._num_written = 0

    def add(self, chunk: Chunk) -> None:
        """Take note of the good records of the next chunk."""
        good = [number for number, reason in enumerate(chunk.reasons) if not reason]
        keys = np.empty(len(good), ID_KEY)
        keys["hash"] = [hash_of(chunk.ids[n], chunk.samples[n]) for n in good]
        keys["ordinal"] = self._num_written + np.arange(len(good))
        payloads = np.array([xxhash.xxh3_64_intdigest(chunk.payloads[n]) for n in good], "<u8")
        for file, values in zip(self._files, (keys, payloads), strict=True):
            file.write(values.tobytes())
            file.flush()
        self._num_written += len(good)

    def first_conflict(self, records: Iterable[Record]) -> str:
        """Return a sentence that names the places of the first two records with one id and two
        payloads, or ""; `records` are the same ones anew, read only then."""
        if found := self._first_conflict():
            good = (record for record in records if not record.reason)
            first = next(islice(good, found[0], None))
            second = next(islice(good, found[1] - found[0] - 1, None))
            if first.id == second.id:  # else only their hashes are equal, which plan looks into
                return conflict(first._asdict(), second._asdict())
        return ""

    def _first_conflict(self) -> tuple[int, int] | None:
        """Return the numbers, among the good records, of the two whose second one comes first."""
        ids_path, payloads_path = self._paths
        if not self._num_written:
            return None
        payloads = np.memmap(payloads_path, "<u8", "r")
        pairs = []
        for ordinals, groups in same_hash([ids_path]):
            is_new = np.append(True, groups[1:] != groups[:-1])
            firsts = ordinals[np.flatnonzero(is_new)[np.cumsum(is_new) - 1]]
            others = payloads[ordinals] != payloads[firsts]
            if others.any():
                second = int(ordinals[others].min())
                pairs.append((int(firsts[ordinals == second][0]), second))
        return min(pairs, key=lambda pair: pair[1], default=None)
