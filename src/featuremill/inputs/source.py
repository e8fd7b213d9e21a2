"""Open an input file as text: is it a file at all, how is it compressed, and is it sound?"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import datetime
import io
import lzma
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
"""What one record may take, unpacked: the longest known protein has 36,000 residues, but a small
compressed file can unpack to more than any memory holds."""
SAM = ("@HD\t", "@SQ\t", "@RG\t", "@PG\t", "@CO\t")
"""Beginnings of a file of alignments; no FASTQ file begins with them."""
UTF8_MARK = b"\xef\xbb\xbf"
SKIPPABLE = bytes(range(0x50, 0x60)), b"\x2a\x4d\x18"
"""How a frame of zstd begins that holds no data, such as pzstd writes: one of the first, and the
second."""
COMPRESSIONS = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}
"""First bytes of a compressed file, and xopen's name of the format."""
FULL_NAMES = {"gz": "gzip", "xz": "xz", "bz2": "bzip2"}
IN_AN_ENTRY = re.compile("\0(?!>|\\s*$)")
"""A NUL byte that no entry of a database of MMseqs2 ends with."""
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
}
"""First bytes of files that people give by mistake, whatever the suffix says."""


class DamagedError(Exception):
    """The file broke off, or its compressed data are corrupt; the reader knows at which record."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class Meter(io.RawIOBase):
    """A byte stream whose every failure to read becomes `DamagedError`; so does a record without
    an end."""

    def __init__(self, path: Path, stream: Any, max_bytes: int) -> None:
        self.num_open = 0
        """Bytes read since the reader last set this to 0, on having finished a record."""
        self._path, self._stream = path, stream
        self._max_bytes = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            # Not read(): when that fails, all that it had unpacked before the bad place is lost.
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
        except Exception as error:  # each decompressor has an exception class of its own
            raise _corrupt(error) from None
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
    """Return how `path` is compressed, from its first bytes, as its name may say anything."""
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

    A reader tells `meter_of` the text when it has finished a record; more than `max_bytes` without
    that is a `DamagedError`.

    Raises UserError where the first bytes show that this is no text in UTF-8.
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
    """Yield what `open_text` opened in blocks of whole lines, each ended by LF but the last one of
    the file; of `BLOCK_BYTES` or a line, whatever is longer."""
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
    """Return what counts the bytes of a text that `open_text` opened."""
    meter: Meter = text.buffer.raw  # type: ignore[attr-defined]
    return meter


class _Streams:
    """The data of streams of xz or bzip2 that stand one behind another. Python's own readers end
    in silence where bytes follow that are no stream, and with them what was in a damaged one."""

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
        """Return the beginning of the next stream; b"" where there is none."""
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
    """Say so where a file that seems cut short is a whole one of gzip with other bytes behind it;
    its reader takes them for the beginning of one more."""
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
    """Return the error for NUL bytes in `text`; what stood there is lost, and maybe whole records
    with it, unless they end the entries of a database."""
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
    """Refuse inputs whose time lies in the future: Snakemake refuses an output that is older.

    Raises:
        UserError: naming the first one.
    """
    now = now_by(clock)
    for path in inputs:
        if Path(path).exists() and (time := Path(path).stat().st_mtime) > now:
            when = datetime.datetime.fromtimestamp(time).isoformat(" ", "seconds")
            raise UserError(
                f"{path}: it was last changed in the future ({when}), by a clock that was wrong "
                "here or where it came from; Snakemake refuses what is made of it, so touch it."
            )


def now_by(clock: Path) -> float:
    """Return the time of the file system, whose clock may be another than ours; touches `clock`."""
    clock.touch()
    return clock.stat().st_mtime
