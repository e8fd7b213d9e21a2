"""Read FASTQ by Biopython, including records of several lines; qualities are dropped.

The id is the first word after the '@', the description the rest of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from Bio.SeqIO.QualityIO import FastqGeneralIterator

from featuremill.base.errors import UserError
from featuremill.inputs import source
from featuremill.inputs.fasta import as_unicode
from featuremill.inputs.kinds import Sequences
from featuremill.workload import Record


def read(path: Path, kind: Sequences) -> Iterator[Record]:
    name = str(path)
    with source.open_text(path, errors="surrogateescape") as text:
        lines, meter = _Lines(text), source.meter_of(text)
        records = FastqGeneralIterator(lines)
        line = lines.number
        while True:
            try:
                title, letters, quality = next(records)
            except StopIteration:
                return
            except UserError:
                raise
            except ValueError as error:
                problem = str(error).rstrip(".").encode("ascii", "backslashreplace").decode()
                raise UserError(
                    f"{path}:{line}: this FASTQ record is broken ({problem:.200}); fix it, or "
                    "download or copy the file again."
                ) from None
            if "\0" in quality:
                raise source.has_nul(path, line, "\0 in qualities")
            meter.num_open = 0
            header, note = as_unicode(title)
            id, description = (*header.split(None, 1), "", "")[:2]
            yield kind.make(id, description, letters, name, line, note)
            line = lines.number


class _Lines:
    """Lines of text with line numbers, from the first line that is not blank.

    Biopython yields a record after it has read the title of the next; `number` is then the line of
    that title.
    """

    def __init__(self, text: Iterator[str]) -> None:
        self._lines = enumerate(text, 1)
        filled = ((number, line) for number, line in self._lines if line.strip())
        self.number, self._first = next(filled, (0, ""))

    def read(self, size: int) -> str:
        """Return ""; Biopython reads 0 characters to distinguish text from bytes."""
        assert size == 0, size
        return ""

    def readline(self) -> str:
        """Return the first line; Biopython calls this method once."""
        return self._first

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            self.number = number
            yield line
