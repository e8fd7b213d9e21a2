"""What went wrong, grouped by reason, with what a person can do about each."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from featuremill.base.reasons import kind_of
from featuremill.base.text import clipped as clipped

MAX_REASONS = 50
MAX_EXAMPLES = 3
MAX_DETAIL = 60


class Example(NamedTuple):
    """One record of a group, cut to a length that a table can hold."""

    id: str
    where: str
    detail: str
    """What the reason says about this record alone; often empty."""


class Problem(NamedTuple):
    """All records that failed or were refused for one reason."""

    status: str
    reason: str
    remedy: str
    number: int
    """Of records."""
    examples: list[Example]


class Problems(NamedTuple):
    """What failed.tsv says."""

    groups: list[Problem]
    """The commonest first; at most MAX_REASONS."""
    listed: int
    """Records in the file."""
    not_shown: int
    """Records whose reason is not among `groups`."""
    file: str
    """Its name."""


def read(path: Path) -> Problems:
    """Return the records of failed.tsv, grouped; memory does not grow with their number.

    Only the first thousand different reasons are told apart: reasons are a workload's words, and
    one that writes the sequence into them must not fill the memory.
    """
    counts: dict[tuple[str, str], int] = {}
    examples: dict[tuple[str, str], list[Example]] = {}
    listed = 0
    csv.field_size_limit(2**31 - 1)  # an id is as long as its header line
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            listed += 1
            reason, _, detail = row["reason"].partition(":")
            key = (row["status"], clipped(reason))
            if key not in counts and len(counts) >= 1_000:
                continue
            counts[key] = counts.get(key, 0) + 1
            if counts[key] <= MAX_EXAMPLES:
                where = f"{clipped(row['source'])}:{row['line']}"
                example = Example(clipped(row["id"]), where, clipped(detail.strip(), MAX_DETAIL))
                examples.setdefault(key, []).append(example)
    commonest = sorted(counts, key=lambda key: (-counts[key], key))[:MAX_REASONS]
    groups = [
        Problem(
            status, reason, kind_of(reason).remedy, counts[status, reason], examples[status, reason]
        )
        for status, reason in commonest
    ]
    return Problems(groups, listed, listed - sum(group.number for group in groups), path.name)
