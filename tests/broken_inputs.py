"""Broken and odd inputs, one `Case` each: the file, and what must come of it.

Used for the readers and for whole commands (test_broken_inputs, test_audit). Every file that is
refused in part also holds a good record, so that a run has something left to do.
"""

import contextlib
import ctypes
import functools
import gzip
import io
import os
import random
import shutil
import zipfile
from collections.abc import Callable
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
def as_ordinary_user():
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


def _capabilities(wanted=None):
    """Return this thread's capabilities, the effective ones first; or set them to the `wanted`."""
    library = ctypes.CDLL(None, use_errno=True)
    call = library.capget if wanted is None else library.capset
    words = (ctypes.c_uint32 * 6)(*(wanted or ()))
    if call((ctypes.c_uint32 * 2)(VERSION_3, 0), words):
        raise OSError(ctypes.get_errno(), "capabilities")
    return list(words)


def _file(content, name="in.fa"):
    """Return a maker of a file with this content."""
    data = content.encode() if isinstance(content, str) else content

    def make(folder):
        path = folder / name
        path.write_bytes(data)
        return path

    return make


def _with_good(record):
    """Return a maker of a FASTA file with a good record and this one."""
    data = record.encode() if isinstance(record, str) else record
    return _file(GOOD.encode() + data)


@functools.cache
def _many(num_records, template=">p{}\n{}\n"):
    """Return records that don't compress to nothing, so that half of them is half of the file."""
    letters = random.Random(1)
    sequences = ("".join(letters.choices(AMINO_ACIDS, k=60)) for _ in range(num_records))
    records = "".join(template.format(*pair) for pair in enumerate(sequences))
    return ("" if template.startswith(">") else "id,sequence\n").encode() + records.encode()


@functools.cache
def _packed(data, format):
    buffer = io.BytesIO()
    with xopen(buffer, "wb", threads=0, format=format) as stream:
        stream.write(data)
    return buffer.getvalue()


def _packed_records(format, template=">p{}\n{}\n"):
    """Return what has more than one block of its format, so that half of it has records."""
    return _packed(_many(30_000 if format == "bz2" else 8_000, template), format)


def _cut(format, name="", template=">p{}\n{}\n"):
    """Return a maker of a compressed file of which the last third is missing."""

    def make(folder):
        data = _packed_records(format, template)
        return _file(data[: len(data) * 2 // 3], name or f"in.fa.{format}")(folder)

    return make


def _corrupt(folder):
    data = bytearray(_packed_records("gz"))
    data[-6] ^= 0xFF  # in the check sum
    return _file(bytes(data), "in.fa.gz")(folder)


def _wrapped(num_residues):
    letters = (UBIQUITIN * (num_residues // len(UBIQUITIN) + 1))[:num_residues]
    return "\n".join(letters[i : i + 60] for i in range(0, num_residues, 60)) + "\n"


def _zip(folder):
    path = folder / "in.fa"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("proteins.fa", GOOD)
    return path


def _directory(folder):
    path = folder / "in.fa"
    path.mkdir()
    return path


def _pipe(folder):
    path = folder / "in.fa"
    os.mkfifo(path)
    return path


def _dead_link(folder):
    path = folder / "in.fa"
    path.symlink_to(folder / "gone.fa")
    return path


def _unreadable(folder):
    folder.chmod(0o755)
    path = _file(GOOD)(folder)
    path.chmod(0)
    return path


def _parquet(columns):
    def make(folder):
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


def _case(outcome, name, content, fragment="", file="", **more):
    """Return the case of a file; where it is not named, and no error, it has a good record, too."""
    if not callable(content):
        is_alone = file or outcome == "error"
        content = _file(content, file or "in.fa") if is_alone else _with_good(content)
    return Case(name, content, outcome, fragment, **more)


OUTCOMES = ("error", "refused", "note", "ok")
_error, _refused, _note, _ok = (functools.partial(_case, outcome) for outcome in OUTCOMES)
_csv_error, _csv_refused, _csv_note, _csv_ok = (
    functools.partial(_case, outcome, file="in.csv") for outcome in OUTCOMES
)

BROKEN: list[Case] = [
    # Not a file of records at all.
    _error("missing", lambda folder: folder / "in.fa", "does not exist"),
    _error("directory", _directory, "this is a folder", init="no file in this folder"),
    _error("pipe", _pipe, "this is a pipe"),
    _error("dead link", _dead_link, "is a link to a file that is gone"),
    _error("no permission", _unreadable, "you may not read this file", unprivileged=True),
    _error("empty", "", "this file is empty"),
    _error("empty gz", _packed(b"", "gz"), "no record in this file", "in.fa.gz"),
    _error("blank lines only", "\n \n\t\n\r\n", "no record in this file"),
    _error("comments only", "; nothing\n# here\n", "no record in this file"),
    # Something else than its name says.
    _error("no header first", f"{UBIQUITIN}\n{GOOD}", "in.fa:1: a record starts with"),
    _error("text first", f"\nDear all,\n{GOOD}", "in.fa:2: a record starts with"),
    _error("HTML", HTML, "this is a web page (HTML), probably a failed download"),
    _error("HTML named gz", HTML, "this is a web page (HTML)", "in.fa.gz"),
    _csv_error("HTML named csv", HTML, "this is a web page (HTML)"),
    _error("PDF", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "is a PDF document"),
    _error("zip", _zip, "is a zip archive or an Office document"),
    _error("spreadsheet", b"PK\x03\x04", "save it as CSV", "in.xlsx"),
    _error("FASTQ", FASTQ, "looks like FASTQ"),
    _error("SAM", SAM, "is a SAM file of alignments"),
    _error("GenBank named fa", FLAT_HEAD, "looks like GenBank; name it .gb"),
    _error("JSON", '{"id": "P1"}\n', "looks like JSON"),
    _error("UTF-16", GOOD.encode("utf-16"), "this text is UTF-16"),
    _error("UTF-16 without mark", GOOD.encode("utf-16-le"), "this text is UTF-16"),
    # Damaged on the way.
    _error(
        "a3m of MMseqs2",
        f">101\n{INSULIN_A}\n>U\t50\nGIVEQCCaaTS--\n\0>102\nMKV\n\0",
        "in.a3m:5: a NUL byte ends an alignment here, as in .a3m files",
        "in.a3m",
    ),
    _error(
        "a3m of MMseqs2, far in",
        f">101\n{INSULIN_A}\n" * 20_000 + "\0>102\nMKV\n",
        "in.a3m:39999: a NUL byte ends an alignment here",
        "in.a3m",
    ),
    _error("NUL bytes at the end", GOOD + "\0" * 99, "of the file was lost"),
    _error("NUL bytes", _with_good(b">nul\nMKV\0\0\0LL\n"), "in.fa:4: there are NUL bytes"),
    _error(
        "NUL bytes far in",
        lambda folder: _file(_many(9000) + b">nul\nMK\0VLL\n>p\nMKV\n")(folder),
        "in.fa:18001: there are NUL bytes",
    ),
    _error("cut gz", _cut("gz"), "is cut short at about record"),
    _error("cut zst", _cut("zst"), "is cut short at about record"),
    _error("cut bz2", _cut("bz2"), "is cut short at about record"),
    _error("cut xz", _cut("xz"), "is cut short at about record"),
    _error("cut csv.gz", _cut("gz", "in.csv.gz", "{},{}\n"), "is cut short at about record"),
    _error("cut head of gz", _packed(b"", "gz")[:7], "is cut short", "in.fa.gz"),
    _error(
        "bytes after gz",
        _packed(GOOD.encode(), "gz") + b"some other bytes",
        "has other bytes after its gzip data",
        "in.fa.gz",
    ),
    _error("corrupt gz", _corrupt, "is corrupt"),
    _error(
        "two records run into one",
        f"{GOOD.strip()}>P2 next\n{INSULIN_A}\n",
        "in.fa:1: there is a '>' inside this record's sequence",
    ),
    _error(
        "a special token, and two records run into one",
        f"{GOOD.strip()}<mask>>P2 next\n{INSULIN_A}\n",
        "in.fa:1: there is a '>' inside this record's sequence",
    ),
    # Records that are refused.
    _refused("empty record", f">P1\n{GOOD}", "empty sequence", "in.fa"),
    _refused("last record empty", ">P1 nothing follows", "empty sequence"),
    _refused("only a stop", ">P1\n*\n", "empty sequence"),
    _refused("no id", f">\n{INSULIN_A}\n", "no id"),
    _refused("no id but spaces", f">  \t\n{INSULIN_A}\n", "no id"),
    _refused("illegal letter", ">P1\nMKV LA#\nGG\n", "not an amino acid: '#' at residue 6"),
    _refused(
        "special token", ">P1\nMKV<ma\nsk>LA<EOS>\n", "not an amino acid: '<mask>' at residue 4"
    ),
    _refused("a missing value of pandas", ">P1\n<NA>\n", "a word for a missing sequence: <NA>"),
    _refused("digits", ">P1\n1 MKV\n", "not an amino acid: '1' at residue 1"),
    _refused("accented letter", ">P1\nMK\u00e9V\n", "not an amino acid: '\u00e9' at residue 3"),
    _refused("sharp s", ">P1\nMKV\u00df\n", "not an amino acid: '\u00df'"),
    _refused("zero-width space", ">P1\nMK\u200bV\n", "not an amino acid: U+200B at residue 3"),
    _refused(
        "Latin-1 byte in a sequence", b">P1\nMK\xe9V\n", "not an amino acid: byte 0xE9 at residue 3"
    ),
    _refused("internal stop", ">P1\nMKV*\nLLG\n", "stop codon (*) inside the sequence: residue 4"),
    # Records that are taken, with a word about it.
    _note(
        "nucleotides",
        f">gene1\n{GENE}\n>gene2\n{GENE.lower()[:60]}\n",
        "looks like",
        "in.fa",
        plan="error",
        plan_fragment="most of the records look like nucleotides",
    ),
    _note("RNA", f">rna\n{GENE.replace('T', 'U')}\n", "looks like nucleotides"),
    _note("J", f">P1\nMKVJ{INSULIN_A}j\n", "J read as X"),
    _note("in turns", ">P1\nMdKpTvA\nvYqIa\n", "small letters take turns"),
    _note("only X", f">P1\n{'X' * 50}\n", "no known residue"),
    _note("only gaps", ">P1\n---..\n", "no known residue"),
    _note("Latin-1 header", b">P1 \xe9nolase de Saccharomyces\nMKVLA\n", "header read as Latin-1"),
    _note("Latin-1 id", b">prot\xe9ine\nMKVLA\n", "header read as Latin-1"),
    # Odd, but nothing is wrong.
    _ok("byte-order mark", b"\xef\xbb\xbf" + GOOD.encode(), file="in.fa"),
    _ok("byte-order mark inside", "\ufeff>P1\nMKV\n"),
    _ok("CRLF", GOOD.replace("\n", "\r\n"), file="in.fa"),
    _ok("lone CR", GOOD.replace("\n", "\r"), file="in.fa"),
    _ok("no newline at the end", GOOD.strip(), file="in.fa"),
    _ok("blank lines inside", GOOD.replace("\n", "\n\n \n"), file="in.fa"),
    _ok("semicolon comments", f"; Pearson's comments\n{GOOD}; inside\nMKV\n", file="in.fa"),
    _ok("indented", "  >P1\n  MKV\n\tLLA\n"),
    _note("trailing stop", ">P1\nMKVLA*\n", "* at the end dropped"),
    _ok("lower case", ">P1\nmkvla\n"),
    _ok("white space in a sequence", ">P1\nMKV LA\tGG  \n"),
    _ok("B, Z, U and O", f">P1\n{INSULIN_A}BZUOX\n"),
    _note(
        "insertions of an a3m",
        f">P1\n{INSULIN_A}--aa\n",
        "count as residues; small letters beside gaps",
    ),
    _note("gaps", f">P1\n{INSULIN_A}--X.\n", "gaps (- or .) are kept"),
    _ok("one residue", ">P1\nM\n"),
    _ok("36,000 residues", f">Q8WZ42|TITIN\n{_wrapped(36_000)}"),
    _ok("10 MB on one line", f">P1\n{'MKVLAGSTEW' * 1_000_000}\n"),
    _ok("tab in the header", ">P1\tof a table\nMKV\n"),
    _ok("slash in an id", ">Q9Y6K9/12-80\nMKV\n>../../etc/passwd\nMKVL\n"),
    _ok("pipes in an id", ">gi|123|ref|NP_1.1|\nMKV\n"),
    _ok("emoji id", ">\U0001f9ec\U0001f468\u200d\U0001f52c\nMKV\n"),
    _ok("id of 10 kB", f">{'P' * 10_240} long\nMKV\n"),
    _ok("description of 1 MB", f">P1 {'word ' * 200_000}\nMKV\n"),
    _ok("merged headers of NCBI", ">WP_1.1 a [b]\x01WP_2.1 a [c]\nMKV\n"),
    _ok("plain text named gz", GOOD, file="in.fa.gz"),
    _ok("gz named fa", _packed(GOOD.encode(), "gz"), file="in.fa"),
    _ok("gz in two members", 2 * _packed(b"", "gz") + _packed(GOOD.encode(), "gz"), file="in.fa"),
    _ok("unknown suffix", GOOD, file="proteins.2024"),
    _ok("space in the name", GOOD, file="my proteins (1).fa"),
    # Matters of the plan: the reader passes both on.
    _ok("same id, same sequence", GOOD + GOOD, file="in.fa"),
    _ok(
        "same id, other sequence",
        f">sp|P0CG48|UBC_HUMAN\n{INSULIN_A}\n>P9\n{INSULIN_A}\n",
        plan="refused",
        plan_fragment="the id stands for two different sequences: the other one is at ",
    ),
    _refused(
        "every record refused",
        ">P1\n>P2\nMK*V\n",
        "empty sequence",
        "in.fa",
        plan="error",
        plan_fragment="empty sequence",
    ),
    # Tables.
    _csv_error("csv, empty", "\n", "no column of ids is found (columns: none)"),
    _csv_error("csv, header only", "id,sequence\n", "no record in this file"),
    _csv_error(
        "csv without id",
        f"gene,sequence\nubc,{UBIQUITIN}\n",
        "no column of ids is found (columns: 'gene', 'sequence')",
    ),
    _csv_error(
        "csv without sequence",
        "id,length\nP1,76\n",
        "no column of sequences is found (columns: 'id', 'length')",
    ),
    _csv_error(
        "csv with two sequences",
        "id,Sequence,aa_seq\nP1,MKV,MKL\n",
        "'Sequence', 'aa_seq' may each be the sequence column",
    ),
    _error(
        "AIRR's table, with nucleotides in the first one",
        f"sequence_id\tsequence\tsequence_aa\nh1\t{GENE}\t{UBIQUITIN}\n",
        "'sequence', 'sequence_aa' may each be the sequence column; set sequence_column",
        "in.tsv",
    ),
    _csv_error(
        "csv, a row too long",
        f"id,sequence\nP1,{UBIQUITIN}\nP2,MKV,extra\n",
        "in.csv:3: this row has 3 cells, and the header has 2 names",
    ),
    _csv_error(
        "csv, all rows too long",
        f"id,sequence\nP1,{UBIQUITIN},1\nP2,MKV,2\n",
        "in.csv:2: this row has 3 cells, and the header has 2 names; add the missing name",
    ),
    _csv_refused("csv, a row too short", f"id,sequence\nP1,{UBIQUITIN}\nP2\n", "empty sequence"),
    _csv_error(
        "csv, open quote",
        'id,sequence\n"P1,MKV\nP2,MKL\n',
        "in.csv:2: a quotation mark stands here, and nothing closes its cell",
    ),
    _csv_error(
        "csv, two open quotes",
        'id,sequence,note\nP1,MKV,"a\nP2,MKL,b\nP3,MKM,"c\n',
        "in.csv:2: a quotation mark stands here, and another one stands inside its cell in",
    ),
    _csv_error(
        "csv, a quote closed rows later",
        'id,sequence,note\nP1,MKV,"a\nP2,MKL,b\nP3,MKM,c"\n',
        "in.csv:2: a quotation mark stands here, and whole rows stand before its cell ends, in "
        "line 4",
    ),
    _csv_error(
        "csv in Latin-1",
        f"id,sequence\nprot\u00e9ine,{UBIQUITIN}\n".encode("latin-1"),
        "not in UTF-8 (byte 0xE9)",
    ),
    _csv_error("FASTA named csv", GOOD, "looks like FASTA"),
    _csv_ok("csv with comments", f"# of a tool\n# 2026\nid,sequence\nP1,{UBIQUITIN}\n#2,MKV\n"),
    _csv_ok(
        "csv with a comment of as many cells", f"# of a tool, v2\nid,sequence\nP1,{UBIQUITIN}\n"
    ),
    _csv_ok(
        "csv with a sentence above quoted names",
        f"# by x, v2, 2026\n'entry',\"Sequence\"\nP1,{UBIQUITIN}\n".replace("'", '"'),
    ),
    _csv_ok(
        "csv whose header is a comment, with an id like a name",
        f"#entry,sequence\nid,{UBIQUITIN}\n",
    ),
    _ok(
        "tsv whose header is a comment", f"## v2\n#ID\tSeq\tNote\nP1\t{UBIQUITIN}\n", file="in.tsv"
    ),
    _csv_ok("csv of Excel", f"sep=;\r\nid;sequence\r\nP1;{UBIQUITIN}\r\n"),
    _csv_error(
        "JSON named csv",
        f'[{{"id": "P1", "sequence": "{UBIQUITIN}"}}]',
        "this looks like JSON, not like a table",
    ),
    _csv_ok("csv with blank rows", f"id,sequence\n\nP1,{UBIQUITIN}\n,\n"),
    _csv_note("csv with semicolons", f"ID;Seq\nNA;{UBIQUITIN}\n001;MKV\n", "NA"),
    _error("parquet that is none", f"PAR1{GOOD}", "this Parquet file cannot be read", "in.parquet"),
    _error("feather 1 by name", b"FEA1\0\0\0\0", "Feather file of version", "in.feather"),
    _error("feather.gz", gzip.compress(b"ARROW1\0\0"), "unpack it first", "in.feather.gz"),
    _error("text named arrow", GOOD, "this is no Parquet or Arrow file", "in.arrow"),
    _error("arrow of none", "ARROW1\0\0", "this Arrow file cannot be", "in.arrow"),
    _error("feather 1", b"FEA1\0\0\0\0", "is a Feather file of version 1"),
    _error("arrow stream named fa", b"\xff" * 4 + b"\0" * 9, "name it .arrow"),
    _error("arrow named fa", "ARROW1\0\0", "is an Arrow (Feather) file (name"),
    _error("parquet without columns", _parquet({"x": [1]}), "no column of ids is found"),
    _refused(
        "parquet with holes",
        _parquet({"id": [1, 2, None], "sequence": [UBIQUITIN, None, "MKV"]}),
        "no id",
    ),
    # Flat files.
    _error(
        "genbank without CDS",
        FLAT_HEAD + FLAT_TAIL,
        "no CDS in this file has a /translation",
        "in.gb",
    ),
    _error(
        "genbank of Prokka",
        PROKKA + FLAT_TAIL,
        "give its .faa, or run Prokka with --centre X --compliant",
        "in.gbk",
    ),
    _error("FASTA named gb", GOOD, "there is no genbank entry", "in.gb"),
    _error(
        "genbank cut in its sequence",
        FLAT_HEAD + FLAT_CDS + FLAT_TAIL[:99],
        "entry 1 is cut short",
        "in.gb",
    ),
    _error(
        "genbank cut in its features",
        FLAT_HEAD + FLAT_CDS[:60],
        "entry 1 cannot be read as genbank",
        "in.gb",
    ),
    _refused(
        "CDS without a name",
        FLAT_HEAD
        + FLAT_CDS
        + FLAT_CDS.replace("/product", '/protein_id="P1.1"\n' + " " * 21 + "/product")
        + FLAT_TAIL,
        "no id",
        "in.gb",
    ),
]


def _as_it_is(folder):
    """Spoil nothing."""


def _numbered(name, fragment, change=_as_it_is, **more):
    """Return what is asked with a number and a folder with one, of which `change` spoils
    something; of `more`, `number` is an option."""

    def make(folder):
        _spoil(folder, change)
        return {"options": {"number": number, "more": "more"}}

    number = more.pop("number", "number.txt")
    return Asked(name, "numbered", make, fragment, **more)


def _spoil(folder, change):
    (folder / "number.txt").write_text("1")
    (folder / "more" / "inner").mkdir(parents=True)
    (folder / "more" / "inner" / "a.txt").write_text("2")
    change(folder)


def _weighed(name, fragment, change, **more):
    """The same of a folder of weights, `more`."""

    def make(folder):
        _spoil(folder, change)
        return {"options": {"network": "more"}}

    return Asked(name, "weighed", make, fragment, "weights", **more)


def _read(name, file, content, fragment):
    """Return what is asked of an input."""

    def make(folder):
        _file(content, file)(folder)
        return {"inputs": [file]}

    return Asked(name, "bases" if file.startswith("in.f") else "cells", make, fragment)


def _not_utf8(folder):
    Path(os.fsdecode(os.fsencode(folder / "more") + b"/caf\xe9.txt")).write_text("3")


def _closed(name):
    return lambda folder: (folder / name).chmod(0)


def _only_a_pipe(folder):
    shutil.rmtree(folder / "more")
    os.mkfifo(folder / "more")


DENIED = "cannot be read (Permission denied)"
NO_UTF8 = "more: the name of caf\ufffd.txt in it is not in UTF-8"
ROWS = "id,age,count,text\n"
ASKED = [
    _numbered(
        "an option file without end",
        "options.number: pipe: this is no regular file",
        lambda folder: os.mkfifo(folder / "pipe"),
        number="pipe",
    ),
    _numbered(
        "an option file that is a link to itself",
        "options.number: loop: there is no such file",
        lambda folder: (folder / "loop").symlink_to("loop"),
        number="loop",
    ),
    _numbered(
        "an option file below a file",
        "options.number: number.txt/inside: there is no such file",
        number="number.txt/inside",
    ),
    _numbered(
        "an option file of an endless name",
        "it cannot be read (File name too long)",
        number="n" * 5000,
    ),
    _numbered(
        "an option file that is closed",
        f"options.number: number.txt: it {DENIED}",
        _closed("number.txt"),
        unprivileged=True,
    ),
    _numbered(
        "two option files where one is due",
        "options.number: give the path of a file, not ['number.txt', 'b.txt']",
        number=["number.txt", "b.txt"],
    ),
    _numbered(
        "a folder with a closed one in it",
        f"options.more: more/inner: it {DENIED}",
        _closed("more/inner"),
        unprivileged=True,
    ),
    _numbered("a folder with a name that is not in UTF-8", NO_UTF8, _not_utf8),
    _weighed(
        "weights without end",
        "more: this is no regular file; name the one with the weights",
        _only_a_pipe,
    ),
    _weighed(
        "weights with a closed folder",
        f"more: more/inner {DENIED}",
        _closed("more/inner"),
        unprivileged=True,
    ),
    _weighed(
        "weights with a closed file",
        f"more/inner/a.txt: it {DENIED}",
        _closed("more/inner/a.txt"),
        unprivileged=True,
    ),
    _weighed("weights with a name that is not in UTF-8", NO_UTF8, _not_utf8),
    _read("rows that are not in UTF-8", "in.csv", ROWS.encode() + b"P1,1,1,caf\xe9\n", "in.csv"),
    _read(
        "a row of too many cells",
        "in.csv",
        f"{ROWS}P1,1,1,x,y\n",
        "in.csv:2: this row has 5 cells, and the header has 4 names",
    ),
    _read(
        "a column that the workload reads is not there",
        "in.tsv",
        "id\tage\ttext\nP1\t1\tx\n",
        "in.tsv: there is no column 'count', which this workload reads",
    ),
    _read("a workbook named csv", "in.csv", b"PK\x03\x04\x14\x00rest", "is a zip archive"),
    _read(
        "rows, all of another type",
        "in.csv",
        f"{ROWS}P1,old,1,x\nP2,young,1,x\n",
        "all 2 records were refused, 2 because: not of its column's type",
    ),
    _read("reads, cut", "in.fq", "@r1\nACGT\n+\nII", "in.fq:1: this FASTQ record"),
    _read("alignments as reads", "in.fq", b"BAM\x01rest", "is a BAM file"),
    _read(
        "proteins among nucleotides only",
        "in.fa",
        f">a\n{UBIQUITIN}\n",
        "in.fa:1: record 'a' is a protein",
    ),
]
