"""Broken and odd inputs, one `Case` each: the file, and what must come of it.

Used for the readers and for whole commands (test_broken_inputs, test_audit). Every file that is
refused in part also holds a good record, so that a run has something left to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gzip
import io
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet
from xopen import xopen

Outcome = Literal["error", "refused", "note", "ok"]

UBIQUITIN = "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG"
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
INSULIN_A = "GIVEQCCTSICSLYQLENYCN"
GOOD = f">sp|P0CG48|UBC_HUMAN Polyubiquitin-C OS=Homo sapiens\n{UBIQUITIN}\n"
GENE = "ATGCAGATCTTCGTGAAGACTCTGACTGGTAAGACCATCACCCTCGAGGTTGAGCCCAGTGACACCATCGAGAAT"
VERSION_3 = 0x20080522
READS_AND_WRITES_EVERYTHING = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, in the words of version 3 (capabilities(7))."""


@dataclass(frozen=True)
class Case:
    """One kind of input and its documented outcome."""

    name: str
    make: Callable[[Path], Path]
    """Write the file into a folder and return its path."""
    outcome: Outcome
    """`error`: UserError; `refused`: a record has a reason; `note`: a good one has a note; `ok`."""
    fragment: str = ""
    """Part of that sentence, reason or note."""
    plan: Outcome | None = None
    """The outcome of `featuremill plan`, where it is not the reader's."""
    plan_fragment: str = ""
    init: str = ""
    """Part of what `featuremill init` says, where that is not what plan says."""
    unprivileged: bool = False
    """Root reads everything: use `as_ordinary_user` around the reading."""


@dataclass(frozen=True)
class Asked:
    """What a workload of tests/plugins is asked for that it cannot have."""

    name: str
    workload: str
    make: Callable[[Path], dict[str, object]]
    """Write what there is into a folder, and return keys of the config beside those that fit."""
    fragment: str
    """Part of the one sentence."""
    verb: Literal["plan", "weights"] = "plan"
    unprivileged: bool = False


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Give up root's right to read and write everything for a while, where we have it. Root stays
    the owner of what it owns: also of a checkout that is closed to all others."""
    if os.geteuid():
        yield
        return
    before = _capabilities()
    without = before.copy()
    without[0] &= ~READS_AND_WRITES_EVERYTHING
    _capabilities(without)
    try:
        yield
    finally:
        _capabilities(before)


def _capabilities(wanted: list[int] | None = None) -> list[int]:
    """Return this thread's capabilities, the effective ones first; or set them to the `wanted`."""
    library = ctypes.CDLL(None, use_errno=True)
    call = library.capget if wanted is None else library.capset
    words = (ctypes.c_uint32 * 6)(*(wanted or ()))
    if call((ctypes.c_uint32 * 2)(VERSION_3, 0), words):
        raise OSError(ctypes.get_errno(), "capabilities")
    return list(words)


def _file(content: bytes | str, name: str = "in.fa") -> Callable[[Path], Path]:
    """Return a maker of a file with this content."""
    data = content.encode() if isinstance(content, str) else content

    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    return make


def _with_good(record: bytes | str) -> Callable[[Path], Path]:
    """Return a maker of a FASTA file with a good record and this one."""
    data = record.encode() if isinstance(record, str) else record
    return _file(GOOD.encode() + data)


@functools.cache
def _many(num_records: int, template: str = ">p{}\n{}\n") -> bytes:
    """Return records that don't compress to nothing, so that half of them is half of the file."""
    letters = random.Random(1)
    sequences = ("".join(letters.choices(AMINO_ACIDS, k=60)) for _ in range(num_records))
    records = "".join(template.format(*pair) for pair in enumerate(sequences))
    return ("" if template.startswith(">") else "id,sequence\n").encode() + records.encode()


@functools.cache
def _packed(data: bytes, format: str) -> bytes:
    buffer = io.BytesIO()
    with xopen(buffer, "wb", threads=0, format=format) as stream:
        stream.write(data)
    return buffer.getvalue()


def _packed_records(format: str, template: str = ">p{}\n{}\n") -> bytes:
    """Return what has more than one block of its format, so that half of it has records."""
    return _packed(_many(30_000 if format == "bz2" else 8_000, template), format)


def _cut(format: str, name: str = "", template: str = ">p{}\n{}\n") -> Callable[[Path], Path]:
    """Return a maker of a compressed file of which the last third is missing."""

    def make(folder: Path) -> Path:  # not before: whoever needs another case imports this as well
        data = _packed_records(format, template)
        return _file(data[: len(data) * 2 // 3], name or f"in.fa.{format}")(folder)

    return make


def _corrupt(folder: Path) -> Path:
    data = bytearray(_packed_records("gz"))
    data[-6] ^= 0xFF  # in the check sum
    return _file(bytes(data), "in.fa.gz")(folder)


def _wrapped(num_residues: int) -> str:
    letters = (UBIQUITIN * (num_residues // len(UBIQUITIN) + 1))[:num_residues]
    return "\n".join(letters[i : i + 60] for i in range(0, num_residues, 60)) + "\n"


def _zip(folder: Path) -> Path:
    path = folder / "in.fa"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("proteins.fa", GOOD)
    return path


def _directory(folder: Path) -> Path:
    path = folder / "in.fa"
    path.mkdir()
    return path


def _pipe(folder: Path) -> Path:
    path = folder / "in.fa"
    os.mkfifo(path)
    return path


def _dead_link(folder: Path) -> Path:
    path = folder / "in.fa"
    path.symlink_to(folder / "gone.fa")
    return path


def _unreadable(folder: Path) -> Path:
    folder.chmod(0o755)
    path = _file(GOOD)(folder)
    path.chmod(0)
    return path


def _parquet(columns: dict[str, list[object]]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "in.parquet"
        pa.parquet.write_table(pa.table(columns), path)
        return path

    return make


PROKKA = """\
LOCUS       NODE_1_length_191762_cov_13.663119176120 bp   DNA linear
            28-NOV-2026
DEFINITION  Genus species strain strain.
FEATURES             Location/Qualifiers
"""
FLAT_HEAD = """\
LOCUS       TINY                 120 bp    DNA     linear   BCT 01-JAN-2020
DEFINITION  A tiny genome.
ACCESSION   TINY
VERSION     TINY.1
SOURCE      Escherichia coli
  ORGANISM  Escherichia coli
            Bacteria.
FEATURES             Location/Qualifiers
     source          1..120
                     /organism="Escherichia coli"
"""
FLAT_CDS = f"""\
     CDS             1..66
                     /product="insulin A chain"
                     /translation="{INSULIN_A}"
"""
FLAT_TAIL = f"ORIGIN\n        1 {'acgtacgtac ' * 6}\n       61 {'acgtacgtac ' * 6}\n//\n"

SAM = "@HD\tVN:1.6\tSO:coordinate\n@SQ\tSN:chr1\tLN:1000\n"
HTML = "\n<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"
FASTQ = f"@read1\n{GENE}\n+\n{'I' * len(GENE)}\n"

BROKEN: list[Case] = [
    # Not a file of records at all.
    Case("missing", lambda folder: folder / "in.fa", "error", "does not exist"),
    Case("directory", _directory, "error", "this is a folder", init="no file in this folder"),
    Case("pipe", _pipe, "error", "this is a pipe"),
    Case("dead link", _dead_link, "error", "is a link to a file that is gone"),
    Case("no permission", _unreadable, "error", "you may not read this file", unprivileged=True),
    Case("empty", _file(""), "error", "this file is empty"),
    Case("empty gz", _file(_packed(b"", "gz"), "in.fa.gz"), "error", "no record in this file"),
    Case("blank lines only", _file("\n \n\t\n\r\n"), "error", "no record in this file"),
    Case("comments only", _file("; nothing\n# here\n"), "error", "no record in this file"),
    # Something else than its name says.
    Case(
        "no header first", _file(f"{UBIQUITIN}\n{GOOD}"), "error", "in.fa:1: a record starts with"
    ),
    Case("text first", _file(f"\nDear all,\n{GOOD}"), "error", "in.fa:2: a record starts with"),
    Case("HTML", _file(HTML), "error", "this is a web page (HTML), probably a failed download"),
    Case("HTML named gz", _file(HTML, "in.fa.gz"), "error", "this is a web page (HTML)"),
    Case("HTML named csv", _file(HTML, "in.csv"), "error", "this is a web page (HTML)"),
    Case("PDF", _file(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"), "error", "is a PDF document"),
    Case("zip", _zip, "error", "is a zip archive or an Office document"),
    Case("spreadsheet", _file(b"PK\x03\x04", "in.xlsx"), "error", "save it as CSV"),
    Case("FASTQ", _file(FASTQ), "error", "looks like FASTQ"),
    Case("SAM", _file(SAM), "error", "is a SAM file of alignments"),
    Case("GenBank named fa", _file(FLAT_HEAD), "error", "looks like GenBank; name it .gb"),
    Case("JSON", _file('{"id": "P1"}\n'), "error", "looks like JSON"),
    Case("UTF-16", _file(GOOD.encode("utf-16")), "error", "this text is UTF-16"),
    Case("UTF-16 without mark", _file(GOOD.encode("utf-16-le")), "error", "this text is UTF-16"),
    # Damaged on the way.
    Case(
        "a3m of MMseqs2",
        _file(f">101\n{INSULIN_A}\n>U\t50\nGIVEQCCaaTS--\n\0>102\nMKV\n\0", "in.a3m"),
        "error",
        "in.a3m:5: a NUL byte ends an alignment here, as in .a3m files",
    ),
    Case(
        "a3m of MMseqs2, far in",
        _file(f">101\n{INSULIN_A}\n" * 20_000 + "\0>102\nMKV\n", "in.a3m"),
        "error",
        "in.a3m:39999: a NUL byte ends an alignment here",
    ),
    Case("NUL bytes at the end", _file(GOOD + "\0" * 99), "error", "of the file was lost"),
    Case("NUL bytes", _with_good(b">nul\nMKV\0\0\0LL\n"), "error", "in.fa:4: there are NUL bytes"),
    Case(
        "NUL bytes far in",
        lambda folder: _file(_many(9000) + b">nul\nMK\0VLL\n>p\nMKV\n")(folder),
        "error",
        "in.fa:18001: there are NUL bytes",
    ),
    Case("cut gz", _cut("gz"), "error", "is cut short at about record"),
    Case("cut zst", _cut("zst"), "error", "is cut short at about record"),
    Case("cut bz2", _cut("bz2"), "error", "is cut short at about record"),
    Case("cut xz", _cut("xz"), "error", "is cut short at about record"),
    Case("cut csv.gz", _cut("gz", "in.csv.gz", "{},{}\n"), "error", "is cut short at about record"),
    Case("cut head of gz", _file(_packed(b"", "gz")[:7], "in.fa.gz"), "error", "is cut short"),
    Case(
        "bytes after gz",
        _file(_packed(GOOD.encode(), "gz") + b"some other bytes", "in.fa.gz"),
        "error",
        "has other bytes after its gzip data",
    ),
    Case("corrupt gz", _corrupt, "error", "is corrupt"),
    Case(
        "two records run into one",
        _file(f"{GOOD.strip()}>P2 next\n{INSULIN_A}\n"),
        "error",
        "in.fa:1: there is a '>' inside this record's sequence",
    ),
    Case(
        "a special token, and two records run into one",
        _file(f"{GOOD.strip()}<mask>>P2 next\n{INSULIN_A}\n"),
        "error",
        "in.fa:1: there is a '>' inside this record's sequence",
    ),
    # Records that are refused.
    Case("empty record", _file(f">P1\n{GOOD}"), "refused", "empty sequence"),
    Case("last record empty", _with_good(">P1 nothing follows"), "refused", "empty sequence"),
    Case("only a stop", _with_good(">P1\n*\n"), "refused", "empty sequence"),
    Case("no id", _with_good(f">\n{INSULIN_A}\n"), "refused", "no id"),
    Case("no id but spaces", _with_good(f">  \t\n{INSULIN_A}\n"), "refused", "no id"),
    Case(
        "illegal letter",
        _with_good(">P1\nMKV LA#\nGG\n"),
        "refused",
        "not an amino acid: '#' at residue 6",
    ),
    Case(
        "special token",
        _with_good(">P1\nMKV<ma\nsk>LA<EOS>\n"),
        "refused",
        "not an amino acid: '<mask>' at residue 4",
    ),
    Case(
        "a missing value of pandas",
        _with_good(">P1\n<NA>\n"),
        "refused",
        "a word for a missing sequence: <NA>",
    ),
    Case("digits", _with_good(">P1\n1 MKV\n"), "refused", "not an amino acid: '1' at residue 1"),
    Case(
        "accented letter",
        _with_good(">P1\nMK\u00e9V\n"),
        "refused",
        "not an amino acid: '\u00e9' at residue 3",
    ),
    Case("sharp s", _with_good(">P1\nMKV\u00df\n"), "refused", "not an amino acid: '\u00df'"),
    Case(
        "zero-width space",
        _with_good(">P1\nMK\u200bV\n"),
        "refused",
        "not an amino acid: U+200B at residue 3",
    ),
    Case(
        "Latin-1 byte in a sequence",
        _with_good(b">P1\nMK\xe9V\n"),
        "refused",
        "not an amino acid: byte 0xE9 at residue 3",
    ),
    Case(
        "internal stop",
        _with_good(">P1\nMKV*\nLLG\n"),
        "refused",
        "stop codon (*) inside the sequence: residue 4",
    ),
    # Records that are taken, with a word about it.
    Case(
        "nucleotides",
        _file(f">gene1\n{GENE}\n>gene2\n{GENE.lower()[:60]}\n"),
        "note",
        "looks like",
        "error",
        "most of the records look like nucleotides",
    ),
    Case("RNA", _with_good(f">rna\n{GENE.replace('T', 'U')}\n"), "note", "looks like nucleotides"),
    Case("J", _with_good(f">P1\nMKVJ{INSULIN_A}j\n"), "note", "J read as X"),
    Case("in turns", _with_good(">P1\nMdKpTvA\nvYqIa\n"), "note", "small letters take turns"),
    Case("only X", _with_good(f">P1\n{'X' * 50}\n"), "note", "no known residue"),
    Case("only gaps", _with_good(">P1\n---..\n"), "note", "no known residue"),
    Case(
        "Latin-1 header",
        _with_good(b">P1 \xe9nolase de Saccharomyces\nMKVLA\n"),
        "note",
        "header read as Latin-1",
    ),
    Case("Latin-1 id", _with_good(b">prot\xe9ine\nMKVLA\n"), "note", "header read as Latin-1"),
    # Odd, but nothing is wrong.
    Case("byte-order mark", _file(b"\xef\xbb\xbf" + GOOD.encode()), "ok"),
    Case("byte-order mark inside", _with_good("\ufeff>P1\nMKV\n"), "ok"),
    Case("CRLF", _file(GOOD.replace("\n", "\r\n")), "ok"),
    Case("lone CR", _file(GOOD.replace("\n", "\r")), "ok"),
    Case("no newline at the end", _file(GOOD.strip()), "ok"),
    Case("blank lines inside", _file(GOOD.replace("\n", "\n\n \n")), "ok"),
    Case("semicolon comments", _file(f"; Pearson's comments\n{GOOD}; inside\nMKV\n"), "ok"),
    Case("indented", _with_good("  >P1\n  MKV\n\tLLA\n"), "ok"),
    Case("trailing stop", _with_good(">P1\nMKVLA*\n"), "note", "* at the end dropped"),
    Case("lower case", _with_good(">P1\nmkvla\n"), "ok"),
    Case("white space in a sequence", _with_good(">P1\nMKV LA\tGG  \n"), "ok"),
    Case("B, Z, U and O", _with_good(f">P1\n{INSULIN_A}BZUOX\n"), "ok"),
    Case(
        "insertions of an a3m",
        _with_good(f">P1\n{INSULIN_A}--aa\n"),
        "note",
        "count as residues; small letters beside gaps",
    ),
    Case("gaps", _with_good(f">P1\n{INSULIN_A}--X.\n"), "note", "gaps (- or .) are kept"),
    Case("one residue", _with_good(">P1\nM\n"), "ok"),
    Case("36,000 residues", _with_good(f">Q8WZ42|TITIN\n{_wrapped(36_000)}"), "ok"),
    Case("10 MB on one line", _with_good(f">P1\n{'MKVLAGSTEW' * 1_000_000}\n"), "ok"),
    Case("tab in the header", _with_good(">P1\tof a table\nMKV\n"), "ok"),
    Case("slash in an id", _with_good(">Q9Y6K9/12-80\nMKV\n>../../etc/passwd\nMKVL\n"), "ok"),
    Case("pipes in an id", _with_good(">gi|123|ref|NP_1.1|\nMKV\n"), "ok"),
    Case("emoji id", _with_good(">\U0001f9ec\U0001f468\u200d\U0001f52c\nMKV\n"), "ok"),
    Case("id of 10 kB", _with_good(f">{'P' * 10_240} long\nMKV\n"), "ok"),
    Case("description of 1 MB", _with_good(f">P1 {'word ' * 200_000}\nMKV\n"), "ok"),
    Case("merged headers of NCBI", _with_good(">WP_1.1 a [b]\x01WP_2.1 a [c]\nMKV\n"), "ok"),
    Case("plain text named gz", _file(GOOD, "in.fa.gz"), "ok"),
    Case("gz named fa", _file(_packed(GOOD.encode(), "gz"), "in.fa"), "ok"),
    Case("gz in two members", _file(2 * _packed(b"", "gz") + _packed(GOOD.encode(), "gz")), "ok"),
    Case("unknown suffix", _file(GOOD, "proteins.2024"), "ok"),
    Case("space in the name", _file(GOOD, "my proteins (1).fa"), "ok"),
    # Matters of the plan: the reader passes both on.
    Case("same id, same sequence", _file(GOOD + GOOD), "ok"),
    Case(
        "same id, other sequence",
        _with_good(f">sp|P0CG48|UBC_HUMAN\n{INSULIN_A}\n>P9\n{INSULIN_A}\n"),
        "ok",
        plan="refused",
        plan_fragment="the id stands for two different sequences: the other one is at ",
    ),
    Case(
        "every record refused",
        _file(">P1\n>P2\nMK*V\n"),
        "refused",
        "empty sequence",
        plan="error",
        plan_fragment="empty sequence",
    ),
    # Tables.
    Case("csv, empty", _file("\n", "in.csv"), "error", "no column of ids is found (columns: none)"),
    Case("csv, header only", _file("id,sequence\n", "in.csv"), "error", "no record in this file"),
    Case(
        "csv without id",
        _file(f"gene,sequence\nubc,{UBIQUITIN}\n", "in.csv"),
        "error",
        "no column of ids is found (columns: 'gene', 'sequence')",
    ),
    Case(
        "csv without sequence",
        _file("id,length\nP1,76\n", "in.csv"),
        "error",
        "no column of sequences is found (columns: 'id', 'length')",
    ),
    Case(
        "csv with two sequences",
        _file("id,Sequence,aa_seq\nP1,MKV,MKL\n", "in.csv"),
        "error",
        "'Sequence', 'aa_seq' may each be the sequence column",
    ),
    Case(
        "AIRR's table, with nucleotides in the first one",
        _file(f"sequence_id\tsequence\tsequence_aa\nh1\t{GENE}\t{UBIQUITIN}\n", "in.tsv"),
        "error",
        "'sequence', 'sequence_aa' may each be the sequence column; set sequence_column",
    ),
    Case(
        "csv, a row too long",
        _file(f"id,sequence\nP1,{UBIQUITIN}\nP2,MKV,extra\n", "in.csv"),
        "error",
        "in.csv:3: this row has 3 cells, and the header has 2 names",
    ),
    Case(
        "csv, all rows too long",
        _file(f"id,sequence\nP1,{UBIQUITIN},1\nP2,MKV,2\n", "in.csv"),
        "error",
        "in.csv:2: this row has 3 cells, and the header has 2 names; add the missing name",
    ),
    Case(
        "csv, a row too short",
        _file(f"id,sequence\nP1,{UBIQUITIN}\nP2\n", "in.csv"),
        "refused",
        "empty sequence",
    ),
    Case(
        "csv, open quote",
        _file('id,sequence\n"P1,MKV\nP2,MKL\n', "in.csv"),
        "error",
        "in.csv:2: a quotation mark stands here, and nothing closes its cell",
    ),
    Case(
        "csv, two open quotes",
        _file('id,sequence,note\nP1,MKV,"a\nP2,MKL,b\nP3,MKM,"c\n', "in.csv"),
        "error",
        "in.csv:2: a quotation mark stands here, and another one stands inside its cell in",
    ),
    Case(
        "csv, a quote closed rows later",
        _file('id,sequence,note\nP1,MKV,"a\nP2,MKL,b\nP3,MKM,c"\n', "in.csv"),
        "error",
        "in.csv:2: a quotation mark stands here, and whole rows stand before its cell ends, in "
        "line 4",
    ),
    Case(
        "csv in Latin-1",
        _file(f"id,sequence\nprot\u00e9ine,{UBIQUITIN}\n".encode("latin-1"), "in.csv"),
        "error",
        "not in UTF-8 (byte 0xE9)",
    ),
    Case("FASTA named csv", _file(GOOD, "in.csv"), "error", "looks like FASTA"),
    Case(
        "csv with comments",
        _file(f"# of a tool\n# 2026\nid,sequence\nP1,{UBIQUITIN}\n#2,MKV\n", "in.csv"),
        "ok",
    ),
    Case(
        "csv with a comment of as many cells",
        _file(f"# of a tool, v2\nid,sequence\nP1,{UBIQUITIN}\n", "in.csv"),
        "ok",
    ),
    Case(
        "csv with a sentence above quoted names",
        _file(
            f"# by x, v2, 2026\n'entry',\"Sequence\"\nP1,{UBIQUITIN}\n".replace("'", '"'), "in.csv"
        ),
        "ok",
    ),
    Case(
        "csv whose header is a comment, with an id like a name",
        _file(f"#entry,sequence\nid,{UBIQUITIN}\n", "in.csv"),
        "ok",
    ),
    Case(
        "tsv whose header is a comment",
        _file(f"## v2\n#ID\tSeq\tNote\nP1\t{UBIQUITIN}\n", "in.tsv"),
        "ok",
    ),
    Case("csv of Excel", _file(f"sep=;\r\nid;sequence\r\nP1;{UBIQUITIN}\r\n", "in.csv"), "ok"),
    Case(
        "JSON named csv",
        _file(f'[{{"id": "P1", "sequence": "{UBIQUITIN}"}}]', "in.csv"),
        "error",
        "this looks like JSON, not like a table",
    ),
    Case("csv with blank rows", _file(f"id,sequence\n\nP1,{UBIQUITIN}\n,\n", "in.csv"), "ok"),
    Case(
        "csv with semicolons",
        _file(f"ID;Seq\nNA;{UBIQUITIN}\n001;MKV\n", "in.csv"),
        "note",
        "NA",
    ),
    Case(
        "parquet that is none",
        _file(f"PAR1{GOOD}", "in.parquet"),
        "error",
        "this Parquet file cannot be read",
    ),
    Case(
        "feather 1 by name",
        _file(b"FEA1\0\0\0\0", "in.feather"),
        "error",
        "Feather file of version",
    ),
    Case(
        "feather.gz",
        _file(gzip.compress(b"ARROW1\0\0"), "in.feather.gz"),
        "error",
        "unpack it first",
    ),
    Case("text named arrow", _file(GOOD, "in.arrow"), "error", "this is no Parquet or Arrow file"),
    Case("arrow of none", _file("ARROW1\0\0", "in.arrow"), "error", "this Arrow file cannot be"),
    Case("feather 1", _file(b"FEA1\0\0\0\0"), "error", "is a Feather file of version 1"),
    Case("arrow stream named fa", _file(b"\xff" * 4 + b"\0" * 9), "error", "name it .arrow"),
    Case(
        "arrow named fa",
        _file("ARROW1\0\0"),
        "error",
        "is an Arrow (Feather) file (name",
    ),
    Case("parquet without columns", _parquet({"x": [1]}), "error", "no column of ids is found"),
    Case(
        "parquet with holes",
        _parquet({"id": [1, 2, None], "sequence": [UBIQUITIN, None, "MKV"]}),
        "refused",
        "no id",
    ),
    # Flat files.
    Case(
        "genbank without CDS",
        _file(FLAT_HEAD + FLAT_TAIL, "in.gb"),
        "error",
        "no CDS in this file has a /translation",
    ),
    Case(
        "genbank of Prokka",
        _file(PROKKA + FLAT_TAIL, "in.gbk"),
        "error",
        "give its .faa, or run Prokka with --centre X --compliant",
    ),
    Case("FASTA named gb", _file(GOOD, "in.gb"), "error", "there is no genbank entry"),
    Case(
        "genbank cut in its sequence",
        _file(FLAT_HEAD + FLAT_CDS + FLAT_TAIL[:99], "in.gb"),
        "error",
        "entry 1 is cut short",
    ),
    Case(
        "genbank cut in its features",
        _file(FLAT_HEAD + FLAT_CDS[:60], "in.gb"),
        "error",
        "entry 1 cannot be read as genbank",
    ),
    Case(
        "CDS without a name",
        _file(
            FLAT_HEAD
            + FLAT_CDS
            + FLAT_CDS.replace("/product", '/protein_id="P1.1"\n' + " " * 21 + "/product")
            + FLAT_TAIL,
            "in.gb",
        ),
        "refused",
        "no id",
    ),
]


def _numbered(
    change: Callable[[Path], object], **options: object
) -> Callable[[Path], dict[str, object]]:
    """Return a maker of a number and of a folder with one, of which `change` spoils something."""

    def make(folder: Path) -> dict[str, object]:
        (folder / "number.txt").write_text("1")
        (folder / "more" / "inner").mkdir(parents=True)
        (folder / "more" / "inner" / "a.txt").write_text("2")
        change(folder)
        return {"options": {"number": "number.txt", "more": "more", **options}}

    return make


def _weighed(change: Callable[[Path], object]) -> Callable[[Path], dict[str, object]]:
    """The same of a folder of weights, `more`."""

    def make(folder: Path) -> dict[str, object]:
        _numbered(change)(folder)
        return {"options": {"network": "more"}}

    return make


def _read(name: str, content: str | bytes) -> Callable[[Path], dict[str, object]]:
    """Return a maker of an input."""

    def make(folder: Path) -> dict[str, object]:
        _file(content, name)(folder)
        return {"inputs": [name]}

    return make


def _not_utf8(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder / "more") + b"/caf\xe9.txt")).write_text("3")


def _loop(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")


def _pipe(name: str) -> Callable[[Path], object]:
    return lambda folder: os.mkfifo(folder / name)


def _closed(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).chmod(0)


def _as_it_is(folder: Path) -> None:
    """Spoil nothing."""


ROWS = "id,age,count,text\n"
ASKED = [
    Asked(
        "an option file without end",
        "numbered",
        _numbered(_pipe("pipe"), number="pipe"),
        "options.number: pipe: this is no regular file",
    ),
    Asked(
        "an option file that is a link to itself",
        "numbered",
        _numbered(_loop, number="loop"),
        "options.number: loop: there is no such file",
    ),
    Asked(
        "an option file below a file",
        "numbered",
        _numbered(_as_it_is, number="number.txt/inside"),
        "options.number: number.txt/inside: there is no such file",
    ),
    Asked(
        "an option file of an endless name",
        "numbered",
        _numbered(_as_it_is, number="n" * 5000),
        "it cannot be read (File name too long)",
    ),
    Asked(
        "an option file that is closed",
        "numbered",
        _numbered(_closed("number.txt")),
        "options.number: number.txt: it cannot be read (Permission denied)",
        unprivileged=True,
    ),
    Asked(
        "two option files where one is due",
        "numbered",
        _numbered(_as_it_is, number=["number.txt", "b.txt"]),
        "options.number: give the path of a file, not ['number.txt', 'b.txt']",
    ),
    Asked(
        "a folder with a closed one in it",
        "numbered",
        _numbered(_closed("more/inner")),
        "options.more: more/inner: it cannot be read (Permission denied)",
        unprivileged=True,
    ),
    Asked(
        "a folder with a name that is not in UTF-8",
        "numbered",
        _numbered(_not_utf8),
        "more: the name of caf\ufffd.txt in it is not in UTF-8",
    ),
    Asked(
        "weights without end",
        "weighed",
        _weighed(lambda folder: (shutil.rmtree(folder / "more"), _pipe("more")(folder))),
        "more: this is no regular file; name the one with the weights",
        "weights",
    ),
    Asked(
        "weights with a closed folder",
        "weighed",
        _weighed(_closed("more/inner")),
        "more: more/inner cannot be read (Permission denied)",
        "weights",
        unprivileged=True,
    ),
    Asked(
        "weights with a closed file",
        "weighed",
        _weighed(_closed("more/inner/a.txt")),
        "more/inner/a.txt: it cannot be read (Permission denied)",
        "weights",
        unprivileged=True,
    ),
    Asked(
        "weights with a name that is not in UTF-8",
        "weighed",
        _weighed(_not_utf8),
        "more: the name of caf\ufffd.txt in it is not in UTF-8",
        "weights",
    ),
    Asked(
        "rows that are not in UTF-8",
        "cells",
        _read("in.csv", ROWS.encode() + b"P1,1,1,caf\xe9\n"),
        "in.csv",
    ),
    Asked(
        "a row of too many cells",
        "cells",
        _read("in.csv", f"{ROWS}P1,1,1,x,y\n"),
        "in.csv:2: this row has 5 cells, and the header has 4 names",
    ),
    Asked(
        "a column that the workload reads is not there",
        "cells",
        _read("in.tsv", "id\tage\ttext\nP1\t1\tx\n"),
        "in.tsv: there is no column 'count', which this workload reads",
    ),
    Asked(
        "a workbook named csv",
        "cells",
        _read("in.csv", b"PK\x03\x04\x14\x00rest"),
        "is a zip archive",
    ),
    Asked(
        "rows, all of another type",
        "cells",
        _read("in.csv", f"{ROWS}P1,old,1,x\nP2,young,1,x\n"),
        "all 2 records were refused, 2 because: not of its column's type",
    ),
    Asked("reads, cut", "bases", _read("in.fq", "@r1\nACGT\n+\nII"), "in.fq:1: this FASTQ record"),
    Asked("alignments as reads", "bases", _read("in.fq", b"BAM\x01rest"), "is a BAM file"),
    Asked(
        "proteins among nucleotides only",
        "bases",
        _read("in.fa", f">a\n{UBIQUITIN}\n"),
        "in.fa:1: record 'a' is a protein",
    ),
]
