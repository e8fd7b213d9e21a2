"""FASTA in which `#` is a letter, that of a residue without a known structure, also where a line
begins; in other FASTA it marks a comment there (`featuremill.inputs.fasta`). A strand (`<+>`) that
was wrapped between two lines is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from featuremill.inputs import source
from featuremill.inputs.fasta import as_unicode, not_fasta
from featuremill.inputs.kinds import Sequences
from featuremill.workload import Record

OPEN = re.compile("<[+-][^<>]*$")
"""How a line ends in the middle of a strand: the next one may begin with its '>'."""
WHITE = " \t\ufeff"
"""What may stand before a line: files glued together keep their BOMs."""


def read(path: Path, kind: Sequences) -> Iterator[Record]:
    """Stream the records of a FASTA file."""
    with source.open_text(path, errors="surrogateescape") as text:
        meter, header, first, lines = source.meter_of(text), "", 0, list[str]()
        for number, line in enumerate(text, 1):
            line = line.lstrip(WHITE).rstrip()
            if line[:1] == ">" and not (lines and OPEN.search(lines[-1])):
                if first:
                    yield _record(path, kind, header, lines, first)
                meter.num_open = 0
                header, first, lines = line[1:], number, []
            elif line[:1] == ";" or not line:
                continue
            elif first:
                lines.append(line)
            elif line[0] != "#":
                raise not_fasta(path, number, line, kind.readable)
        if first:
            yield _record(path, kind, header, lines, first)


def _record(path: Path, kind: Sequences, header: str, lines: list[str], number: int) -> Record:
    header, note = as_unicode(header)
    id, description = (*header.split(None, 1), "", "")[:2]
    return kind.make(id, description, "".join(lines), str(path), number, note)
