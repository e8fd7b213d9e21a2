"""Contigs and their fragments: read FASTA, in which a record may be a chromosome; check the ids.

Letters are cleaned while they are read, so that memory holds one copy of a record, where
`featuremill.inputs.fasta` needs four. Both parse lines in the same way.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from featuremill.inputs import nucleotides, residues, source
from featuremill.inputs.fasta import as_unicode, not_fasta
from featuremill.inputs.kinds import Sequences
from featuremill.inputs.letters import MOST_OF_A_WORD, maker
from featuremill.kit.errors import UserError
from featuremill.kit.workloads import Record

BATCH_LETTERS = 2**18
"""The letters of contigs that are translated in one batch, as each NumPy call has a cost."""
CONTIG_LETTERS = 100
"""The cost of a contig's objects, in letters."""
MAX_CONTIG_BYTES = 10 * source.MAX_RECORD_BYTES
"""The largest record; human chromosome 1 has 250 MB."""
PIECE_LETTERS = 2**20
"""The number of letters that are cleaned at a time."""
WHITE = " \t\ufeff"
"""Characters that are stripped from lines; concatenated files contain byte order marks."""
NO_LETTERS = tuple(">#;")
"""First characters of lines without letters."""


class Fragment(NamedTuple):
    """A range of a contig that is translated to a protein."""

    id: str
    start: int
    """Start of [start, end), 0-based, on the forward strand of the contig."""
    end: int
    strand: str
    """`+`, or `-` for the reverse complement."""
    frame: int
    """1 + the number of letters before the first codon in the window, or modulo 3 in the contig; on
    strand -, they are counted from the other end."""
    protein: bytes
    nucleotides: bytes
    """The nucleotides of the strand, in reading direction."""


Cut = tuple[Record, list[Fragment]]
"""A contig and some of its fragments. Each contig is yielded at least once, in order; contigs with
many fragments are yielded several times in a row."""


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
        make = maker(partial(residues.clean_bases, num_before=self._payload.tell()))
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


class Ids:
    """Checks that the ids of contigs are distinct and have no white space. Stores 24 bytes for each
    id: a digest and the position."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._lines = array("q")
        self._files: dict[str, int] = {}
        """The number of ids before each file."""

    def checked(self, contigs: Iterable[Record]) -> Iterator[Record]:
        """Yield `contigs`.

        Raises:
            UserError: an id has white space, or is not unique. Duplicates are found when the number
                of contigs has doubled, or at the end.
        """
        for contig in contigs:
            if contig.id:
                self._add(contig)
                if len(self._lines).bit_count() == 1:  # a power of two
                    self.refuse_repeats()
            yield contig
        self.refuse_repeats()

    def _add(self, contig: Record) -> None:
        if len(contig.id.split()) > 1:
            raise UserError(
                f"{contig.source}:{contig.line}: there is white space in the id "
                f"{contig.id[:60]!r}, and in FASTA an id ends there; give it one without."
            )
        self._files.setdefault(contig.source, len(self._lines))
        self._digests += xxhash.xxh3_128_digest(contig.id.encode())
        self._lines.append(contig.line)

    def refuse_repeats(self) -> None:
        """Raise UserError for the first contig that has the id of an earlier one."""
        halves = np.frombuffer(bytes(self._digests), "<u8").reshape(-1, 2)
        order = np.argsort(halves[:, 0], kind="stable")
        same = np.flatnonzero((halves[order[1:]] == halves[order[:-1]]).all(axis=1))
        if not len(same):
            return
        index = int(np.argmin(order[same + 1]))
        first, second = (self._position(int(order[same[index] + n])) for n in (0, 1))
        id = next(r.id for r in contigs_in([Path(second[0])]) if r.line == second[1])
        raise UserError(
            f"{second[0]}:{second[1]}: the id {id[:60]!r} is also that of "
            f"{first[0]}:{first[1]}, and ids of fragments begin with it; rename one or, if these "
            "are the two reads of a pair, give their files as a sheet of samples (samples:)."
        )

    def _position(self, number: int) -> tuple[str, int]:
        """Return the file and the line of the contig with this number."""
        file = max((first, name) for name, first in self._files.items() if first <= number)[1]
        return file, self._lines[number]
