"""FASTA: dnaio parses; added are line numbers, encodings, and what else a file turns out to be.

Blank lines and lines that begin with ';' or '#' are skipped wherever they stand. The id is the
first word of the header, the description the rest of it.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from dnaio.readers import FastaReader

from featuremill.base.errors import UserError
from featuremill.inputs import source
from featuremill.inputs.kinds import Sequences
from featuremill.inputs.letters import LATIN_1
from featuremill.workload import Record

LINES_LOOKED_AT = 3_000
LOOKALIKES = {
    source.SAM: "is a SAM file of alignments",
    ("@",): "looks like FASTQ, which holds nucleotide reads",
    ("LOCUS  ",): "looks like GenBank; name it .gb",
    ("ID   ",): "looks like EMBL; name it .embl",
    ("{", "["): "looks like JSON",
    ("<",): "looks like XML",
    ("CLUSTAL", "MUSCLE"): "looks like an alignment in Clustal's format; convert it to FASTA",
    ("HEADER  ", "ATOM  ", "data_"): "looks like a structure (PDB or mmCIF)",
}


def read(path: Path, kind: Sequences) -> Iterator[Record]:
    _refuse_labels(path)
    name, make = str(path), kind.make
    with source.open_text(path, errors="surrogateescape") as text:
        lines, meter = _Lines(path, text, kind.readable), source.meter_of(text)
        for header, letters in _Reader(lines):
            meter.num_open = 0
            note = ""
            if not header.isascii():
                header, note = as_unicode(header)
            id, description = (*header.split(None, 1), "", "")[:2]
            yield make(id, description, letters, name, lines.headers.popleft(), note)


def _refuse_labels(path: Path) -> None:
    """Refuse records with a line of labels, as predictors of structure and topology write them:
    each has two lines of one length, which is not that of all records, as a wrapped line's is."""
    lengths: list[list[int]] = []
    place = 0
    with source.open_text(path, errors="surrogateescape") as text:
        for number, line in enumerate(itertools.islice(text, LINES_LOOKED_AT), 1):
            line = line.lstrip().lstrip("\ufeff").rstrip()
            if line[:1] == ">":
                if lengths and len(lengths[-1]) != 2:
                    return
                lengths.append([])
            elif lengths and line and line[0] not in "#;":
                lengths[-1].append(len(line))
                place = place or number + 1
    if len(lengths[-1] if lengths else ()) != 2:
        lengths = lengths[:-1]  # the rest of it was not looked at
    if len({length for length, _ in lengths}) > 1 and all(one == two for one, two in lengths):
        raise UserError(
            f"{path}:{place}: each record has two lines of one length, so the second one is of "
            "labels and no sequence; take the lines of labels out."
        )


def as_unicode(header: str) -> tuple[str, str]:
    """Return `header` as text that UTF-8 can hold, and a note where its bytes were none."""
    try:
        header.encode()
    except UnicodeEncodeError:
        return header.encode("utf-8", "surrogateescape").decode("latin-1"), LATIN_1
    return header, ""


class _Reader(FastaReader):  # type: ignore[misc]
    """dnaio's FASTA reader on lines that are decoded and counted already.

    Its own constructor decodes in the locale's encoding, and its own record class takes ASCII only.
    """

    def __init__(self, lines: _Lines) -> None:
        super().__init__(io.BytesIO(), sequence_class=lambda header, letters, _: (header, letters))
        self._file = lines


class _Lines:
    """Lines of text that remember where the headers stood.

    dnaio delivers a record when it has read the next one's header; so the first number in `headers`
    is always that of the record just delivered.
    """

    closed = False

    def __init__(self, path: Path, text: Iterator[str], readable: str) -> None:
        self.headers: deque[int] = deque()
        self._path = path
        self._readable = readable
        self._lines = enumerate(text, 1)

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            start = line.lstrip()
            if start and start[0] not in "#;>":
                raise not_fasta(self._path, number, start, self._readable)
            if start[:1] == ">":
                self.headers.append(number)
                yield line
                break
        headers = self.headers
        for number, line in self._lines:
            first = line[0]
            if first == ">":
                headers.append(number)
            elif not "A" <= first <= "z":  # a letter is the common case, and nothing to look into
                line = line.lstrip().lstrip("\ufeff")  # files glued together keep their BOMs
                if line[:1] == ">":
                    headers.append(number)
                elif line[:1] == ";":
                    continue
            yield line


def not_fasta(path: Path, number: int, start: str, readable: str) -> UserError:
    """Return the error for a file of FASTA whose first line with anything in it begins so."""
    where = f"{path}:{number}"
    if "\0" in start:
        return source.has_nul(path, number)
    for heads, kind in LOOKALIKES.items():
        if start.startswith(heads):
            return UserError(f"{where}: this {kind}; {readable}.")
    shown = start.strip().encode("ascii", "backslashreplace").decode()
    shown = f"{shown[:37]}..." if len(shown) > 40 else shown
    return UserError(f"{where}: a record starts with '>', but here is '{shown}'; {readable}.")
