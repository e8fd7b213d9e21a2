"""Read FASTA in which `#` is the letter of an unknown structure, even at the beginning of a line,
where other FASTA has comments (`featuremill.inputs.fasta`). A strand (`<+>`) may be wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from featuremill.inputs import source
from featuremill.inputs.fasta import as_unicode, not_fasta
from featuremill.inputs.kinds import Sequences
from featuremill.workload import Record

OPEN = re.compile("<[+-][^<>]{0,200}$")
"""The end of a line that breaks within a strand: the next line may begin with its '>'."""
NEXT = re.compile(">[A-Za-z*]*(<([+-].*)?)?")
"""The form of that next line."""
WHITE = " \t\ufeff"
"""Whitespace before a line, and BOMs of concatenated files."""


def read(path: Path, kind: Sequences) -> Iterator[Record]:
    """Stream the records of a FASTA file."""
    with source.open_text(path, errors="surrogateescape") as text:
        meter, header, first, lines = source.meter_of(text), "", 0, list[str]()
        strand = ""
        for number, line in enumerate(text, 1):
            line = line.lstrip(WHITE).rstrip()
            is_header = line[:1] == ">" and not (strand and _goes_on(lines, line))
            if is_header:
                if first:
                    yield _record(path, kind, header, lines, first)
                meter.num_open = 0
                header, first, lines, strand = line[1:], number, [], ""
            elif line[:1] == ";" or not line:
                continue
            elif first:
                lines.append(line)
                match = OPEN.search(strand + line)
                strand = match.group() if match else ""
            elif line[0] != "#":
                raise not_fasta(path, number, line, kind.readable)
        if first:
            yield _record(path, kind, header, lines, first)


def _goes_on(lines: list[str], line: str) -> bool:
    """Return whether `line`, which begins with '>', continues a wrapped sequence: the line before
    it is as long as the first, and it is not longer."""
    width = len(lines[-1])
    return len(lines[0]) == width >= len(line) and NEXT.fullmatch(line) is not None


def _record(path: Path, kind: Sequences, header: str, lines: list[str], number: int) -> Record:
    header, note = as_unicode(header)
    id, description = (*header.split(None, 1), "", "")[:2]
    return kind.make(id, description, "".join(lines), str(path), number, note)
