"""Read FASTA of nucleotides, in which a record may be a chromosome.

Letters are cleaned while they are read, so that memory holds one copy of a record, where
`featuremill.inputs.fasta` needs four. Both parse lines in the same way.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from featuremill.inputs import bases, nucleotides, source
from featuremill.inputs.fasta import as_unicode, not_fasta
from featuremill.inputs.kinds import Sequences
from featuremill.inputs.letters import MOST_OF_A_WORD, maker
from featuremill.kit.workloads import Record

MAX_CONTIG_BYTES = 10 * source.MAX_RECORD_BYTES
"""The largest record; human chromosome 1 has 250 MB."""
PIECE_LETTERS = 2**20
"""The number of letters that are cleaned at a time."""
WHITE = " \t\ufeff"
"""Characters that are stripped from lines; concatenated files contain byte order marks."""
NO_LETTERS = tuple(">#;")
"""First characters of lines without letters."""


def contigs_in(paths: Sequence[Path]) -> Iterator[Record]:
    """Yield the records of files of any format."""
    return nucleotides(paths, fasta=__name__)


def read(path: Path, kind: Sequences) -> Iterator[Record]:
    """Yield the records of a FASTA file."""
    with source.open_text(path, "surrogateescape", MAX_CONTIG_BYTES) as text:
        meter, record = source.meter_of(text), None
        for number, is_continued, piece in _pieces(text):
            line = piece.strip()
            if not is_continued and not "A" <= line[:1] <= "z":
                line = line.lstrip(WHITE)
                if line[:1] == ">":
                    if record:
                        yield record.whole()
                    meter.num_open = 0
                    record = _Builder(line[1:], str(path), number)
                    continue
                if not line or line[0] in NO_LETTERS:
                    continue
            if not record:
                raise not_fasta(path, number, line, kind.readable)
            record.add(line)
        if record:
            yield record.whole()


def _pieces(text: io.TextIOWrapper) -> Iterator[tuple[int, bool, str]]:
    """Yield the lines of `text` as (line number, whether the line began in an earlier piece, text).
    Long lines of letters are divided into pieces."""
    number, is_continued = 1, False
    while piece := text.readline(PIECE_LETTERS):
        is_whole = piece.endswith("\n")
        if not is_whole and not is_continued and piece.lstrip(WHITE)[:1] in NO_LETTERS:
            piece += text.readline()
            is_whole = True
        yield number, is_continued, piece
        is_continued = not is_whole
        number += is_whole


class _Builder:
    """Builds a record from its lines."""

    def __init__(self, header: str, name: str, line: int) -> None:
        header, self._note = as_unicode(header)
        self._id, self._description = (*header.split(None, 1), "", "")[:2]
        self._name, self._line = name, line
        self._lines: list[str] = []
        self._num_letters = 0
        self._pieces: list[Record] = []
        """The records of the cleaned pieces, without their letters."""
        self._payload = io.BytesIO()
        """The cleaned letters; unlike a bytearray, BytesIO returns bytes without a copy."""

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._num_letters += len(line)
        if self._num_letters >= PIECE_LETTERS:
            self._keep(self._cleaned())

    def _keep(self, piece: Record) -> None:
        self._payload.write(piece.payload)
        self._pieces.append(piece._replace(payload=b""))

    def _cleaned(self) -> Record:
        """Return a record with the lines that are not yet cleaned."""
        make = maker(partial(bases.clean, num_before=self._payload.tell()))
        letters = "".join(self._lines)
        if self._pieces:  # do not read `NA` at the end of a record as a missing value
            letters = letters.ljust(MOST_OF_A_WORD)
        self._lines, self._num_letters = [], 0
        return make(self._id, self._description, letters, self._name, self._line, self._note)

    def whole(self) -> Record:
        """Return the complete record."""
        if not self._pieces:
            return self._cleaned()
        if self._num_letters:
            self._keep(self._cleaned())
        for piece in self._pieces:
            if piece.reason:
                return piece
        note = max((piece.note for piece in self._pieces), key=len)
        return self._pieces[0]._replace(payload=self._payload.getvalue(), note=note)
