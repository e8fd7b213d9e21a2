"""failed.tsv: the records of a run without values, with their reasons, and grouped by reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from featuremill.base import tsv
from featuremill.base.id_columns import KEYS
from featuremill.base.reasons import head_of, kind_of
from featuremill.base.text import clipped

MOST_LISTED = 50
"""Most groups of records that are shown."""
MOST_TOLD_APART = 1_000
"""Most different reasons that are counted: a workload may write the sequence into each."""
MOST_EXAMPLES = 3
MOST_DETAIL = 60


class Failure(NamedTuple):
    """A record without values: a row of failed.tsv, whose columns these are."""

    id: str
    """With escaped control characters, as in the file."""
    source: str
    """The input file."""
    line: str
    status: str
    """failed, refused or, in partial results, pending."""
    reason: str
    sample: str = ""
    """The file has this column where the records are of a sheet of samples."""

    @property
    def whole_id(self) -> str:
        """The id with the sample, which is unique in the run."""
        return "/".join([*filter(None, self[len(COLUMNS) :]), self.id])


COLUMNS = tuple(name for name in Failure._fields if name not in KEYS)
"""The columns, but for the keys of ids, which come last."""


def read(path: Path) -> Iterator[Failure]:
    """Yield the rows of the failed.tsv at `path`, one in memory at a time.

    Raises:
        FileNotFoundError: it is gone.
        KeyError: it lacks a column.
    """
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in tsv.read(file):
            values = {name: row[name] for name in COLUMNS}
            yield Failure(**values, **{key: row.get(key, "") for key in KEYS})


class Reason(NamedTuple):
    """The reason of a group of records."""

    status: str
    """failed or refused."""
    kind: str
    """The name of the kind in base/reasons.py."""
    reason: str
    """The head: the text before the first colon."""


class Example(NamedTuple):
    """A record of a group, with texts that are cut to fit into a table."""

    id: str
    where: str = ""
    detail: str = ""
    """The text of the reason after the first colon; often empty."""


class Group(NamedTuple):
    """The records that failed, or were refused, for one reason."""

    status: str
    kind: str
    reason: str
    number: int
    examples: Sequence[Example] = ()
    command: str | None = None
    """The command that tries failed records again."""
    logs: str | None = None
    """The command that finds logs with details."""
    samples: Mapping[str, int] = MappingProxyType({})
    """Number of records by sample, the largest first. For refused records it needs failed.tsv."""

    @property
    def remedy(self) -> str:
        return kind_of(self.reason).remedy

    def as_json(self) -> dict[str, Any]:
        ids = [example.id for example in self.examples]
        fields = {**self._asdict(), "examples": ids, "remedy": self.remedy}
        samples = fields.pop("samples")
        return {**fields, "samples": samples} if samples else fields


class Listed(NamedTuple):
    """The content of failed.tsv in groups."""

    groups: list[Group]
    """The largest first; at most MOST_LISTED."""
    listed: int
    """Records in the file."""
    not_shown: int
    """Records whose reason is not among `groups`."""
    file: str


def reason_of(status: str, text: str) -> Reason:
    return Reason(status, kind_of(text).name, clipped(head_of(text)))


def by_number(samples: Mapping[str, int]) -> dict[str, int]:
    """Return the number of records of each sample, the largest first."""
    return dict(sorted(samples.items(), key=lambda item: (-item[1], item[0])))


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
            id = clipped(failure.whole_id)
            example = Example(id, where, clipped(detail, MOST_DETAIL))
            examples[reason].append(example)
    commonest = sorted(counts, key=lambda reason: (-counts[reason], reason))[:MOST_LISTED]
    groups = [
        Group(*reason, counts[reason], examples[reason], samples=by_number(samples[reason]))
        for reason in commonest
    ]
    return Listed(groups, listed, listed - sum(group.number for group in groups), path.name)
