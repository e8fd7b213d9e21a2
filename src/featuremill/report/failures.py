"""What went wrong, grouped by reason, with what a person can do about each.

A reason is stable up to its first colon, so that it can be counted; the rest is about one record.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

MAX_REASONS = 50
MAX_EXAMPLES = 3
MAX_DETAIL = 60
MAX_TEXT = 120
"""Characters of a stranger's text (an id, a path) that the page shows."""

REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"not finite|\bnan\b|\binf",
        "The values left the range of the number format. Set options.dtype: fp32 and run again.",
    ),
    (
        r"out of memory|\boom\b",
        "This record alone does not fit the device. Use one with more memory, or let the options "
        "cut long records (truncate).",
    ),
    (
        r"stall|hang|hung|time ?out|timed out",
        "The device stopped answering on this record. Run again; if it recurs, try another device "
        "and read the shard's log.",
    ),
    (
        r"worker|crash|signal|died|killed|segfault",
        "It brought the worker down twice, alone. Run again on another device; if it recurs, the "
        "shard's log holds the stack for a bug report.",
    ),
    (
        r"error in the workload",
        "The workload stumbled over this record. The shard's log has the traceback for its author.",
    ),
    (
        r"empty|no (residues|sequence)",
        "A header without a sequence. Restore the sequence in the input, or remove the record.",
    ),
    (
        r"too long|longer than|exceeds|at most",
        "Choose in the options how long records are treated (truncate or chunk), or cut the "
        "record into domains.",
    ),
    (
        r"nucleotide|\bdna\b|\brna\b",
        "The record looks like nucleotides. Translate it first, or take it out of this input.",
    ),
    (
        r"stop|\*",
        "A stop inside a protein suggests a frame shift or a pseudogene. Mend the gene call, or "
        "split the record there.",
    ),
    (
        r"amino acid|letter|character|residue|alphabet|digit",
        "Mend the named characters in the input; X stands for an unknown residue.",
    ),
    (r"\bid\b|identifier|\bname\b", "Give the record an id of its own in the input."),
)
ANYTHING_ELSE = "Look at the record in its source; mend or remove it, then run the same command."


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


def remedy_for(reason: str) -> str:
    """Return what a person can do about `reason`."""
    for pattern, remedy in REMEDIES:
        if re.search(pattern, reason, re.IGNORECASE):
            return remedy
    return ANYTHING_ELSE


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
            status, reason, remedy_for(reason), counts[status, reason], examples[status, reason]
        )
        for status, reason in commonest
    ]
    return Problems(groups, listed, listed - sum(group.number for group in groups))


def clipped(text: str, most: int = MAX_TEXT) -> str:
    """Return `text` short enough to show, and "…" where something was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"
