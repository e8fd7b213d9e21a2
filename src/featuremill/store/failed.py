"""failed.tsv: the records of a run without values, each with the reason; its one reader.

They are also told by reason, with what a person can do about each.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from featuremill.base.reasons import head_of, kind_of
from featuremill.base.text import clipped

MOST_LISTED = 50
"""Groups of failed.tsv."""
MOST_TOLD_APART = 1_000
"""Reasons: they are a workload's words, and one that writes the sequence into them must not fill
the memory."""
MOST_EXAMPLES = 3
MOST_DETAIL = 60


class Failure(NamedTuple):
    """A record without values: a row of failed.tsv, whose columns these are."""

    id: str
    """Its control characters are written out, as in the file."""
    source: str
    """The input file."""
    line: str
    status: str
    """failed, refused or, in partial results, pending."""
    reason: str
    sample: str = ""
    """A column of runs with samples alone."""


COLUMNS = Failure._fields[:-1]
"""Those of a run without samples."""


def read(path: Path) -> Iterator[Failure]:
    """Yield the rows of the failed.tsv at `path`, one in memory at a time.

    Raises:
        FileNotFoundError: when it is gone.
        KeyError: when it lacks a column.
    """
    csv.field_size_limit(2**31 - 1)  # an id is as long as its header line
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            told = {name: row[name] for name in COLUMNS}
            yield Failure(**told, sample=row.get("sample", ""))


class Reason(NamedTuple):
    """What records have in common that are counted together."""

    status: str
    """failed or refused."""
    kind: str
    """Its word in base/reasons.py, as retry takes it."""
    reason: str
    """Up to its first colon: what it says of more than one record."""


class Example(NamedTuple):
    """One record of a group, cut to a length that a table can hold."""

    id: str
    where: str = ""
    detail: str = ""
    """What the reason says about this record alone; often empty."""


class Group(NamedTuple):
    """All records that failed, or were refused, for one reason."""

    status: str
    kind: str
    reason: str
    number: int
    """Of records."""
    examples: Sequence[Example] = ()
    command: str | None = None
    """What lets them be tried again, where that makes sense."""
    logs: str | None = None
    """What finds the logs that tell more, where they do."""
    samples: Mapping[str, int] = MappingProxyType({})
    """Records of each sample, the most first; of refused ones only once there is failed.tsv."""

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return kind_of(self.reason).remedy

    def as_json(self) -> dict[str, Any]:
        """Return it as programs get it."""
        ids = [example.id for example in self.examples]
        told = {**self._asdict(), "examples": ids, "remedy": self.remedy}
        samples = told.pop("samples")
        return {**told, "samples": samples} if samples else told


class Listed(NamedTuple):
    """What failed.tsv says."""

    groups: list[Group]
    """The commonest first; at most MOST_LISTED."""
    listed: int
    """Records in the file."""
    not_shown: int
    """Records whose reason is not among `groups`."""
    file: str
    """Its name."""


def reason_of(status: str, text: str) -> Reason:
    """Return what is counted together with the reason `text` of a record."""
    return Reason(status, kind_of(text).name, clipped(head_of(text)))


def by_number(samples: Mapping[str, int]) -> dict[str, int]:
    """Return how many records samples have, the most first."""
    return dict(sorted(samples.items(), key=lambda one: (-one[1], one[0])))


def read_list(path: Path) -> Listed:
    """Return the records of failed.tsv, grouped; memory does not grow with their number."""
    counts: Counter[Reason] = Counter()
    examples: defaultdict[Reason, list[Example]] = defaultdict(list)
    samples: defaultdict[Reason, Counter[str]] = defaultdict(Counter)
    listed = 0
    for failure in read(path):
        listed += 1
        reason = reason_of(failure.status, failure.reason)
        if reason not in counts and len(counts) >= MOST_TOLD_APART:
            continue
        counts[reason] += 1
        if failure.sample:
            samples[reason][failure.sample] += 1
        if len(examples[reason]) < MOST_EXAMPLES:
            detail = failure.reason.partition(":")[2].strip()
            where = f"{clipped(failure.source)}:{failure.line}"
            id = f"{failure.sample}/{failure.id}" if failure.sample else failure.id
            example = Example(clipped(id), where, clipped(detail, MOST_DETAIL))
            examples[reason].append(example)
    commonest = sorted(counts, key=lambda one: (-counts[one], one))[:MOST_LISTED]
    groups = [
        Group(*reason, counts[reason], examples[reason], samples=by_number(samples[reason]))
        for reason in commonest
    ]
    return Listed(groups, listed, listed - sum(group.number for group in groups), path.name)
