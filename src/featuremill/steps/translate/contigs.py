"""FASTA of nucleotides, where a record may be a chromosome.

Letters are cleaned while they are read, so a record takes its own size in memory, however its lines
are cut; `featuremill.inputs.fasta` would take four times that. What counts as a line of which kind
is as there.
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
"""What a record may take: the human chromosome 1 has 250 MB."""
PIECE_LETTERS = 2**20
"""So many are cleaned together."""
WHITE = " \t\ufeff"
"""What may stand before a line: files glued together keep their BOMs."""
NO_LETTERS = tuple(">#;")
"""How a line of something else begins."""


def contigs_in(paths: Sequence[Path]) -> Iterator[Record]:
    """Stream the records of files of any kind."""
    return nucleotides(paths, fasta=__name__)


def read(path: Path, kind: Sequences) -> Iterator[Record]:
    """Stream the records of a FASTA file."""
    with source.open_text(path, "surrogateescape", MAX_CONTIG_BYTES) as text:
        meter, record = source.meter_of(text), None
        for number, is_begun, piece in _pieces(text):
            line = piece.strip()
            if not is_begun and not "A" <= line[:1] <= "z":
                line = line.lstrip(WHITE)
                if line[:1] == ">":
                    if record:
                        yield record.whole()
                    meter.num_open = 0
                    record = _Growing(line[1:], str(path), number)
                    continue
                if not line or line[0] in NO_LETTERS:
                    continue
            if not record:
                raise not_fasta(path, number, line, kind.readable)
            record.add(line)
        if record:
            yield record.whole()


def _pieces(text: io.TextIOWrapper) -> Iterator[tuple[int, bool, str]]:
    """Yield the lines of `text`, long ones of letters in pieces: the line's number, whether it
    began in an earlier piece, and what is there."""
    number, is_begun = 1, False
    while piece := text.readline(PIECE_LETTERS):
        is_whole = piece.endswith("\n")
        if not is_whole and not is_begun and piece.lstrip(WHITE)[:1] in NO_LETTERS:
            piece += text.readline()
            is_whole = True
        yield number, is_begun, piece
        is_begun = not is_whole
        number += is_whole


class _Growing:
    """A record of which more lines may come."""

    def __init__(self, header: str, name: str, line: int) -> None:
        header, self._note = as_unicode(header)
        self._id, self._description = (*header.split(None, 1), "", "")[:2]
        self._name, self._line = name, line
        self._lines: list[str] = []
        self._num_letters = 0
        self._pieces: list[Record] = []
        """One for each piece that was cleaned, without its letters."""
        self._payload = io.BytesIO()
        """Cleaned letters; unlike a bytearray, it becomes bytes without a copy."""

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._num_letters += len(line)
        if self._num_letters >= PIECE_LETTERS:
            self._keep(self._cleaned())

    def _keep(self, piece: Record) -> None:
        self._payload.write(piece.payload)
        self._pieces.append(piece._replace(payload=b""))

    def _cleaned(self) -> Record:
        """Return a record of the lines that are waiting."""
        make = maker(partial(bases.clean, num_before=self._payload.tell()))
        letters = "".join(self._lines)
        if self._pieces:  # the end of a record may be `NA`, and is no word for a missing one
            letters = letters.ljust(MOST_OF_A_WORD)
        self._lines, self._num_letters = [], 0
        return make(self._id, self._description, letters, self._name, self._line, self._note)

    def whole(self) -> Record:
        """Return the whole record."""
        if not self._pieces:
            return self._cleaned()
        if self._num_letters:
            self._keep(self._cleaned())
        for piece in self._pieces:
            if piece.reason:
                return piece
        note = max((piece.note for piece in self._pieces), key=len)
        return self._pieces[0]._replace(payload=self._payload.getvalue(), note=note)
