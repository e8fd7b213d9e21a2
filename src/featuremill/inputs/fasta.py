"""Read FASTA: cut files into pieces, parse pieces (in parallel), and recognise other formats.

Blank lines and lines that begin with ';' or '#' are skipped. The id is the first word of the
header, the description the rest of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.inputs import source
from featuremill.inputs.kinds import Sequences
from featuremill.inputs.letters import LATIN_1
from featuremill.workload import Record

LINES_CHECKED = 3_000
WHITE = "".join(filter(str.isspace, map(chr, range(0x3001)))).replace("\n", "") + "\ufeff"
"""Whitespace before a line, and BOMs of concatenated files."""
HEADER = re.compile(f"\n[{re.escape(WHITE)}]*>")
ODD = re.compile("\n[^A-Za-z>]")
"""Lines that need the slow path, as do those with a character of `RARE`."""
RARE = "\t\v\f\x1c\x1d\x1e\x1f"
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


class Piece(NamedTuple):
    """Consecutive whole records of a file, as text."""

    path: str
    line: int
    """The line number of the first header, which begins the text."""
    text: str
    num_records: int
    is_first: bool


def pieces(path: Path, kind: Sequences) -> Iterator[Piece]:
    """Yield the file in pieces of at least one record.

    Raises:
        DamagedError: if the file cannot be read to its end; earlier records were yielded.
        UserError: if the file has another format.
    """
    _refuse_labels(path)
    waiting: list[str] = []
    num_headers, line, is_first = 0, 1, True
    with source.open_text(path, errors="surrogateescape") as text:
        meter = source.meter_of(text)
        try:
            for block in source.blocks(text):
                starts = [match.end() - 2 for match in HEADER.finditer("\n" + block)]
                if not starts:
                    waiting.append(block)
                    continue
                meter.num_open = 0
                if not num_headers:
                    before, block = "".join((*waiting, block[: starts[0]])), block[starts[0] :]
                    _refuse_other(path, before + block.partition("\n")[0], kind)
                    line, waiting = 1 + before.count("\n"), []
                    starts = [start - starts[0] for start in starts]
                num_headers += len(starts)
                if num_headers > 1:
                    letters = "".join((*waiting, block[: starts[-1]]))
                    yield Piece(str(path), line, letters, num_headers - 1, is_first)
                    line, num_headers, is_first = line + letters.count("\n"), 1, False
                    waiting = []
                waiting.append(block[starts[-1] :])
        except source.DamagedError:
            if not num_headers:
                _refuse_other(path, "".join(waiting), kind)
            raise
    if num_headers:
        yield Piece(str(path), line, "".join(waiting), 1, is_first)
    else:
        _refuse_other(path, "".join(waiting), kind)


def _refuse_other(path: Path, text: str, kind: Sequences) -> None:
    """Raise UserError if the `text` before the first header has a line that is not a comment."""
    for number, line in enumerate(text.split("\n"), 1):
        start = line.lstrip()
        if start and start[0] not in "#;>":
            raise not_fasta(path, number, start, kind.readable)


def records_of(piece: Piece, kind: Sequences) -> Iterator[Record]:
    path, line, text, make = piece.path, piece.line, piece.text, kind.make
    if not text.isascii() or any(white in text for white in RARE) or ODD.search(text):
        text = "\n".join(map(_plain, text.split("\n")))
    for record in text[1:].split("\n>"):
        header, _, letters = record.partition("\n")
        note = ""
        if not header.isascii():
            header, note = as_unicode(header)
        id, description = (*header.split(None, 1), "", "")[:2]
        if " " in letters:
            letters = "\n".join(map(str.strip, letters.split("\n")))
        yield make(id, description.rstrip(), letters.replace("\n", ""), path, line, note)
        line += record.count("\n") + 1


def _plain(line: str) -> str:
    """Return the line without whitespace at its ends; "" for a comment."""
    line = line.strip()
    if line and not "A" <= line[0] <= "z":
        line = line.lstrip(WHITE)
    return "" if line[:1] in ("#", ";") else line


def _refuse_labels(path: Path) -> None:
    """Raise UserError if each record has a second line of labels, as from predictors of structure
    and topology: two lines of the same length, which differs between records."""
    lengths: list[list[int]] = []
    line_number = 0
    with source.open_text(path, errors="surrogateescape") as text:
        for number, line in enumerate(itertools.islice(text, LINES_CHECKED), 1):
            line = line.lstrip().lstrip("\ufeff").rstrip()
            if line[:1] == ">":
                if lengths and len(lengths[-1]) != 2:
                    return
                lengths.append([])
            elif lengths and line and line[0] not in "#;":
                lengths[-1].append(len(line))
                line_number = line_number or number + 1
    if len(lengths[-1] if lengths else ()) != 2:
        lengths = lengths[:-1]  # its other lines were not read
    if len({length for length, _ in lengths}) > 1 and all(a == b for a, b in lengths):
        raise UserError(
            f"{path}:{line_number}: each record has two lines of one length, so the second one is "
            "of labels and no sequence; take the lines of labels out."
        )


def as_unicode(header: str) -> tuple[str, str]:
    """Return `header` as valid Unicode, and a note if its bytes were not UTF-8."""
    try:
        header.encode()
    except UnicodeEncodeError:
        return header.encode("utf-8", "surrogateescape").decode("latin-1"), LATIN_1
    return header, ""


def not_fasta(path: Path, number: int, start: str, readable: str) -> UserError:
    """Return the error for a file whose first non-blank line, `start`, is not FASTA."""
    where = f"{path}:{number}"
    if "\0" in start:
        return source.has_nul(path, number, start)
    for heads, kind in LOOKALIKES.items():
        if start.startswith(heads):
            return UserError(f"{where}: this {kind}; {readable}.")
    shown = start.strip().encode("ascii", "backslashreplace").decode()
    shown = f"{shown[:37]}..." if len(shown) > 40 else shown
    return UserError(f"{where}: a record starts with '>', but here is '{shown}'; {readable}.")
