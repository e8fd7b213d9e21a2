"""Open an input file as text: check that it is a text file, decompress it, and detect damage."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import datetime
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from featuremill.base.errors import UserError
from featuremill.base.input_file import check as check

BUFFER_SIZE = 2**18
BLOCK_BYTES = 2**18
MAX_RECORD_BYTES = 100_000_000
"""Largest size of an unpacked record: the longest known protein has 36,000 residues, but a small
compressed file can unpack to more than the memory."""
SAM = ("@HD\t", "@SQ\t", "@RG\t", "@PG\t", "@CO\t")
"""First characters of a SAM file; no FASTQ file begins with them."""
UTF8_MARK = b"\xef\xbb\xbf"
SKIPPABLE = bytes(range(0x50, 0x60)), b"\x2a\x4d\x18"
"""The first byte (one of several) and the next three bytes of a zstd frame without data, as pzstd
writes."""
COMPRESSIONS = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}
"""First bytes of a compressed file, and xopen's name of the format."""
FULL_NAMES = {"gz": "gzip", "xz": "xz", "bz2": "bzip2"}
LAST_OF_BGZIP = bytes.fromhex("1f8b0804 00000000 00ff0600 42430200 1b000300 00000000 00000000")
"""The last member of a file of bgzip, which is empty. Bytes 16 and 17 of a member are its size in
bytes, less 1 (SAM specification, section 4.1)."""
IN_AN_ENTRY = re.compile("\0(?!>|\\s*$)")
"""A NUL byte that does not end an entry of an MMseqs2 database."""
WEB_PAGE = "is a web page (HTML), probably a failed download"
BINARY_HEADS = {
    b"%PDF": "is a PDF document",
    b"PK\x03\x04": "is a zip archive or an Office document",
    b"\xd0\xcf\x11\xe0": "is an old Office document",
    b"{\\rtf": "is a rich-text document",
    b"PAR1": "is a Parquet file (name it .parquet)",
    b"ARROW1": "is an Arrow (Feather) file (name it .arrow)",
    b"\xff\xff\xff\xff": "is an Arrow stream (name it .arrow)",
    b"FEA1": "is a Feather file of version 1, which is not read (write version 2 or Parquet)",
    b"\x89HDF": "is an HDF5 file",
    b"SQLite format 3": "is an SQLite database",
    b"BAM\x01": "is a BAM file of alignments",
    b"CRAM": "is a CRAM file of alignments",
    b"Rar!": "is a rar archive",
    b"7z\xbc\xaf": "is a 7z archive",
    b"]\0\0": "is compressed by lzma, which is not read (compress it as .xz)",
    b"\x04\x22\x4d\x18": "is compressed by lz4, which is not read (compress it as .zst)",
    b"LZIP": "is compressed by lzip, which is not read (compress it as .xz)",
    b"\x1f\x9d": "is compressed by compress (.Z), which is not read (compress it as .gz)",
}
"""First bytes of other files that are given by mistake, with any suffix."""


class DamagedError(Exception):
    """The file is truncated, or its compressed data are corrupt; the caller adds the record."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class Meter(io.RawIOBase):
    """A byte stream that raises `DamagedError` for failures and for records without an end."""

    def __init__(self, path: Path, stream: Any, max_bytes: int) -> None:
        self.num_open = 0
        """Bytes read since the last finished record; readers set it to 0."""
        self._path, self._stream = path, stream
        self._max_bytes = max_bytes
        self._first = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            # When read() fails, the data before the damage are lost.
            data: bytes = self._stream.read1(len(buffer))
        except DamagedError:
            raise
        except EOFError:
            if compression_of(self._path) == "gz":
                _refuse_followed(self._path)
            raise DamagedError("is cut short", "download or copy it again") from None
        except OSError as error:
            if error.errno is not None:
                raise DamagedError(
                    f"cannot be read further ({error.strerror})", "check the disk"
                ) from None
            raise _corrupt(error) from None
        except Exception as error:  # each decompressor has its own exceptions
            raise _corrupt(error) from None
        self._first = self._first or data.lstrip()[:1]
        # Of FASTQ, Illumina's bcl2fastq writes no last member (samtools/samtools#1467).
        if not data and self._first != b"@" and compression_of(self._path) == "gz":
            _refuse_unended(self._path)
        self.num_open += len(data)
        if self.num_open > self._max_bytes:
            megabytes = self._max_bytes // 10**6
            raise DamagedError(
                f"has more than {megabytes:,} MB without the end of a record",
                "look what it holds (if it is compressed, what it unpacks to)",
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _corrupt(error: Exception) -> DamagedError:
    if "Not a gzipped file" in str(error):
        return _followed("gz")
    return DamagedError(f"is corrupt ({error})", "download or copy it again")


def compression_of(path: Path) -> str | None:
    """Return the compression of `path`, by its first bytes; None if it is not compressed."""
    with path.open("rb") as stream:
        head = stream.read(6)
    if head[:1] in SKIPPABLE[0] and head[1:4] == SKIPPABLE[1]:
        return "zst"
    return next((name for magic, name in COMPRESSIONS.items() if head.startswith(magic)), None)


@contextlib.contextmanager
def open_text(
    path: Path, errors: str, max_bytes: int = MAX_RECORD_BYTES
) -> Iterator[io.TextIOWrapper]:
    """Yield `path` decompressed, as text; CR, LF and CRLF all end a line. `errors` as in `open`.

    A reader sets `meter_of(text).num_open` to 0 when it has finished a record; more than
    `max_bytes` without that is a `DamagedError`.

    Raises UserError if the first bytes show that the file is not UTF-8 text.
    """
    check(path)
    with io.BufferedReader(Meter(path, _opened(path), max_bytes), BUFFER_SIZE) as buffered:
        head = buffered.peek(BUFFER_SIZE)
        _check_head(path, head)
        if head.startswith(UTF8_MARK):
            buffered.read(len(UTF8_MARK))
        with io.TextIOWrapper(buffered, encoding="utf-8", errors=errors) as text:
            yield text


def blocks(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield the text of `open_text` in blocks of whole lines that end with LF, of `BLOCK_BYTES` or
    a line, whichever is longer; the last line may lack its LF."""
    decode = codecs.getincrementaldecoder("utf-8")(text.errors or "strict")
    decoder = io.IncrementalNewlineDecoder(decode, translate=True)
    parts: list[str] = []
    while data := text.buffer.read1(BLOCK_BYTES):  # type: ignore[attr-defined]
        part = decoder.decode(data)
        if end := part.rfind("\n") + 1:
            yield "".join((*parts, part[:end]))
            parts = []
        parts.append(part[end:])
    if last := "".join((*parts, decoder.decode(b"", final=True))):
        yield last


def _opened(path: Path) -> Any:
    compression = compression_of(path)
    if not compression:
        return path.open("rb")
    if compression in ("xz", "bz2"):
        return _Streams(path.open("rb"), compression)
    from xopen import xopen  # here: workers open no inputs

    return xopen(path, "rb", threads=0, format=compression)


def meter_of(text: io.TextIOWrapper) -> Meter:
    """Return the meter that counts the bytes of a text of `open_text`."""
    meter: Meter = text.buffer.raw  # type: ignore[attr-defined]
    return meter


class _Streams:
    """The data of concatenated xz or bzip2 streams. Python's own readers silently ignore bytes that
    follow a stream and do not begin another one, and so the data of a damaged stream."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._now = self._new()

    def _new(self) -> Any:
        return lzma.LZMADecompressor() if self._name == "xz" else bz2.BZ2Decompressor()

    def read1(self, size: int) -> bytes:
        while True:
            if self._now.eof:
                if not (rest := self._rest()):
                    return b""
                self._now = self._new()
                data: bytes = self._now.decompress(rest, size)
            elif self._now.needs_input:
                if not (more := self._file.read(BUFFER_SIZE)):
                    raise EOFError
                data = self._now.decompress(more, size)
            else:
                data = self._now.decompress(b"", size)
            if data:
                return data

    def _rest(self) -> bytes:
        """Return the beginning of the next stream; b"" if there is none."""
        rest: bytes = self._now.unused_data + self._file.read(BUFFER_SIZE)
        while self._name == "xz" and rest and not rest.strip(b"\0"):  # padding
            rest = self._file.read(BUFFER_SIZE)
        if self._name == "xz":
            rest = rest.lstrip(b"\0")
        magic = next(magic for magic, name in COMPRESSIONS.items() if name == self._name)
        if rest and not rest.startswith(magic):
            raise _followed(self._name)
        return rest

    def close(self) -> None:
        self._file.close()


def _followed(name: str) -> DamagedError:
    problem = f"has other bytes after its {FULL_NAMES[name]} data"
    return DamagedError(problem, "compress or download it again")


def _refuse_followed(path: Path) -> None:
    """Raise DamagedError if a file that seems truncated is complete gzip data followed by other
    bytes, which its reader takes for another member."""
    with path.open("rb") as file:
        unpacked = zlib.decompressobj(31)
        while data := unpacked.unconsumed_tail or unpacked.unused_data or file.read(BUFFER_SIZE):
            if unpacked.eof:
                if not data.lstrip(b"\0"):
                    return
                if not data.startswith(b"\x1f\x8b\x08"):
                    raise _followed("gz")
                unpacked = zlib.decompressobj(31)
            try:
                unpacked.decompress(data, BUFFER_SIZE)
            except zlib.error:
                return


def _refuse_unended(path: Path) -> None:
    """Raise DamagedError if the gzip file at `path` was written by bgzip, but lacks the empty
    member with which bgzip ends a file: it was cut between two members."""
    last = b""
    with path.open("rb") as file:
        while member := file.read(len(LAST_OF_BGZIP)):
            if member[:4] != LAST_OF_BGZIP[:4] or member[10:16] != LAST_OF_BGZIP[10:16]:
                return
            last = member
            num_bytes = int.from_bytes(member[16:18], "little") + 1
            file.seek(num_bytes - len(member), os.SEEK_CUR)
    if last != LAST_OF_BGZIP:
        raise DamagedError("is cut short", "download or copy it again")


def _check_head(path: Path, head: bytes) -> None:
    if any(head.startswith(magic) for magic in COMPRESSIONS):
        raise UserError(f"{path}: this is compressed twice; unpack it once (gzip -d, zstd -d).")
    if head[257:262] == b"ustar":
        raise UserError(f"{path}: these are files in one tar archive; unpack it and name them.")
    for magic, kind in BINARY_HEADS.items():
        if head.startswith(magic):
            raise UserError(f"{path}: this {kind}; give the sequences as FASTA or as a table.")
    start = head.lstrip()[:100].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        raise UserError(f"{path}: this {WEB_PAGE}; open it in a browser to see why.")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head[:100].count(0) * 3 > len(head[:100]):
        raise UserError(f"{path}: this text is UTF-16 or binary; save it as UTF-8 or plain text.")
    if b"\0" in head:
        line = head[: head.index(0)].count(b"\n") + 1
        raise has_nul(path, line, head.decode("utf-8", "replace"))


def has_nul(path: Path | str, line: int, text: str) -> UserError:
    """Return the error for NUL bytes in `text`: data are lost, unless they end the entries of a
    database."""
    if not IN_AN_ENTRY.search(text):
        return UserError(
            f"{path}:{line}: a NUL byte ends an alignment here, as in .a3m files and databases of "
            "MMseqs2 and ColabFold; give the queries as FASTA."
        )
    return UserError(
        f"{path}:{line}: there are NUL bytes here, so a part of the file was lost on a disk or on "
        "the way; copy or download it again."
    )


def refuse_future(inputs: Iterable[str], clock: Path) -> None:
    """Raise UserError for an input whose modification time is in the future, because Snakemake
    refuses outputs that are older than inputs."""
    now = now_by(clock)
    for path in inputs:
        if Path(path).exists() and (time := Path(path).stat().st_mtime) > now:
            when = datetime.datetime.fromtimestamp(time).isoformat(" ", "seconds")
            raise UserError(
                f"{path}: it was last changed in the future ({when}), by a clock that was wrong "
                "here or where it came from; Snakemake refuses what is made of it, so touch it."
            )


def now_by(clock: Path) -> float:
    """Touch the file `clock`; return its time, which is by the clock of the file system."""
    clock.touch()
    return clock.stat().st_mtime
