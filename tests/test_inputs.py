"""The readers against Biopython on real files (test_broken_inputs has those that are broken)."""

import bz2
import gzip
import io
import lzma
import re
import string
import struct
import tarfile
from functools import partial
from io import StringIO
from pathlib import Path
from unittest import mock

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from Bio import SeqIO, bgzf
from Bio.Seq import Seq
from Bio.SeqFeature import SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord
from broken_inputs import INSULIN_A, UBIQUITIN, _packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xopen import xopen

from featuremill.base.errors import UserError
from featuremill.base.reasons import is_missing
from featuremill.inputs import (
    NamedColumns,
    TableOptions,
    columns,
    format_of,
    names_in_table,
    parquet,
    proteins,
    rows,
)
from featuremill.inputs.residues import ALPHABET, clean

DEMO = Path(__file__).parent.parent / "config" / "demo.fasta"


def read(*paths):
    return list(proteins(paths))


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_agrees_with_biopython_on_the_demo():
    with DEMO.open() as text:
        expected = [(r.id, r.description, str(r.seq)) for r in SeqIO.parse(text, "fasta")]
    records = read(DEMO)
    assert len({r.id for r in records}) == len({r.payload for r in records}) == 1000
    assert not [r for r in records if r.reason or r.note]
    described = [(r.id, f"{r.id} {r.description}".strip(), r.payload.decode()) for r in records]
    assert expected == described
    lines = DEMO.read_text().splitlines()
    assert all(lines[r.line - 1].startswith(f">{r.id}") for r in records)


@pytest.mark.parametrize("format", ["gz", "zst", "bz2", "xz"])
def test_compressed_files_read_the_same(format, tmp_path):
    path = tmp_path / f"demo.fasta.{format}"
    with xopen(path, "wb", threads=0) as stream:
        stream.write(DEMO.read_bytes())
    packed, plain = ([r._replace(source="") for r in read(one)] for one in (path, DEMO))
    assert packed == plain


ids = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1)
letters = st.text(ALPHABET.decode() + string.ascii_lowercase.replace("j", ""), min_size=1)
letters = letters.filter(lambda text: not is_missing(text))
fasta_records = st.lists(st.tuples(ids, letters), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    records=fasta_records,
    width=st.integers(1, 100),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    blank=st.sampled_from(["", "\n", " \n\t\n", "; comment\n"]),
    is_packed=st.booleans(),
    has_mark=st.booleans(),
)
def test_fasta_round_trip(records, width, end, blank, is_packed, has_mark, tmp_path):
    text = ""
    expected = []
    for id, sequence in records:
        lines = [sequence[i : i + width] for i in range(0, len(sequence), width)]
        text += blank
        expected.append((id, sequence.upper().encode(), text.count("\n") + 1))
        text += f">{id} of a test\n" + blank + "\n".join(lines) + "\n" + blank
    data = text.replace("\n", end).encode("utf-8-sig" if has_mark else "utf-8")
    path = write(tmp_path / "in.fa", gzip.compress(data) if is_packed else data)
    assert [(r.id, r.payload, r.line) for r in read(path)] == expected
    assert {r.description for r in read(path)} == {"of a test"}


@given(st.text())
def test_clean_never_lets_a_stranger_through(letters):
    payload, reason, _ = clean(letters)
    assert not payload.translate(None, ALPHABET)
    assert bool(payload) != bool(reason)


@pytest.mark.parametrize(
    ("letters", "note"),
    [
        ("ACGTTGCAAC" * 3, "looks like nucleotides"),
        ("ACGUUGCAAC" * 3, "looks like nucleotides"),
        ("ACGTNNNNNN" * 3, "looks like nucleotides"),
        ("ACGTTGCAACRYGTACGATCGACTAGCATC", "looks like nucleotides"),
        ("ACGTTGCAAC" * 2, ""),  # too short to say
        ("AATAATAATAATAATAATAATAATAATAATA", ""),  # antifreeze peptide, P02732
        ("MCCGPCGPCCGPCCGPCCGPCGPCGGGCGPCYGPNVCGPCYACGPCGGCYCGYPCC", ""),  # P08175
    ],
)
def test_nucleotides_are_told_from_odd_proteins(letters, note):
    assert clean(letters) == (letters.encode(), "", note)


def test_what_is_dropped_or_read_otherwise_is_told():
    assert clean("MKV**\n") == (b"MKV", "", "* at the end dropped")
    assert clean("MKJ*") == (b"MKX", "", "* at the end dropped; J read as X")
    assert clean("JJJJ").note == "J read as X; no known residue"


def test_a_change_is_made_of_every_record_whoever_makes_it(tmp_path):
    paths = [tmp_path / "a.fa", tmp_path / "b.csv"]
    paths[0].write_text(">p1\nMKV\n>p2\nMK\n")
    paths[1].write_text("id,sequence\np3,MKV\n")

    def changed(record):
        return record._replace(note=f"{record.id}!")

    assert [record.note for record in proteins(paths).each(changed)] == ["p1!", "p2!", "p3!"]
    *pieces, last = proteins(paths).each(changed).pieces()
    made = [each for piece in pieces for each in proteins([]).each(changed).records_of(piece)]
    assert [record.note for record in [*made, last]] == ["p1!", "p2!", "p3!"]


def test_all_inputs_are_looked_at_before_the_first_is_read(tmp_path):
    with pytest.raises(UserError, match=r"gone\.fa"):
        next(proteins([DEMO, tmp_path / "gone.fa"]))


TABLE = pd.DataFrame(
    {
        "Entry": ["NA", "001", "1e5", "P 1", "\U0001f9ec"],
        "Protein names": ["", "null", "TRUE", "a, b", '"q"'],
        "Sequence": [UBIQUITIN, INSULIN_A, "MKV*", "mkvj", "MK V"],
    }
)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.zst", "t.parquet"])
def test_table_keeps_ids_as_they_are(name, tmp_path):
    path = tmp_path / name
    if name.endswith("parquet"):
        TABLE.to_parquet(path)
    else:
        with xopen(path, "w") as handle:
            TABLE.to_csv(handle, index=False, sep="\t" if "tsv" in name else ",")
    records = read(path)
    assert [r.id for r in records] == TABLE["Entry"].tolist()
    assert [r.description for r in records] == TABLE["Protein names"].tolist()
    assert [r.payload for r in records[2:]] == [b"MKV", b"MKVX", b"MKV"]
    first_line = 1 if name.endswith("parquet") else 2
    assert [r.line for r in records] == list(range(first_line, first_line + 5))


def test_table_of_several_chunks_counts_on(tmp_path):
    rows = "".join(f"P{number},MKV\n\n" for number in range(12_000))
    records = read(write(tmp_path / "in.csv", "id,sequence\n" + rows))
    assert [r.line for r in records] == list(range(2, 24_002, 2))
    pd.DataFrame({"id": range(25_000), "sequence": "MKV"}).to_parquet(tmp_path / "in.parquet")
    records = read(tmp_path / "in.parquet")
    assert [(r.id, r.line) for r in records] == [(str(n), n + 1) for n in range(25_000)]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["ID", "SEQ"], (0, 1, None)),
        (["name", "id", "sequence"], (1, 2, None)),
        (["name", "sequence", "protein"], (0, 1, None)),
        (["protein", "Accession "], (1, 0, None)),
        (["Entry", "Entry Name", "Protein names", "Sequence"], (0, 3, 2)),
        (["seq id", "description", "aa"], (0, 2, 1)),
        (["sequence_id", "sequence_aa"], (0, 1, None)),
    ],
)
def test_columns_are_found(names, found):
    assert columns.find(Path("t.csv"), names, columns.Named()) == found


def test_the_docs_name_the_columns_that_are_found():
    described = TableOptions.descriptions()
    for key, ranks in (("id_column", columns.IDS), ("sequence_column", columns.SEQUENCES)):
        told = re.findall(r"`(\w+)`", described[key])
        expected = [name for rank in ranks for name in rank]
        if key == "sequence_column":
            expected += [name for rank in columns.DESCRIPTIONS for name in rank]
        assert told == expected


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_columns_are_chosen(name, tmp_path):
    path = tmp_path / name
    table = pd.DataFrame({"id": ["wrong"], "Code": ["right"], "seq": ["MKL"], "my aa": ["MKV"]})
    table.to_parquet(path) if name.endswith("parquet") else table.to_csv(path, index=False)

    def read_with(**chosen):
        return [(r.id, r.payload) for r in proteins([path], TableOptions(**chosen))]

    assert read_with() == [("wrong", b"MKL")]
    assert read_with(id_column="Code") == [("right", b"MKL")]
    assert read_with(id_column="Code", sequence_column="my aa") == [("right", b"MKV")]
    for chosen, sentence in (
        ({"id_column": "code"}, "there is no column 'code'; set id_column under options to one of"),
        ({"sequence_column": "aa"}, "there is no column 'aa'; set sequence_column under options"),
        ({"id_column": "seq"}, "'seq' cannot be both the id and the sequence column; set id_col"),
    ):
        with pytest.raises(UserError, match=re.escape(f"{path}: {sentence}")):
            read_with(**chosen)


def genome(molecule="DNA"):
    entry = SeqRecord(Seq("ACGT" * 60), id="TINY.1", name="TINY", description="A tiny genome.")
    entry.annotations = {"molecule_type": molecule, "organism": "Escherichia coli"}
    qualifiers = [
        {"protein_id": ["AAA1.1"], "product": ["ubiquitin"], "translation": [UBIQUITIN]},
        {"locus_tag": ["b0002"], "translation": [INSULIN_A]},
        {"locus_tag": ["b0003"], "pseudo": [""]},
        {"locus_tag": ["b0004"], "translation": ["MK*V"]},
    ]
    entry.features = [
        SeqFeature(SimpleLocation(start, start + 30, 1), type="CDS", qualifiers=told)
        for start, told in enumerate(qualifiers)
    ]
    return entry


@pytest.mark.parametrize(("format", "name"), [("genbank", "g.gbk.gz"), ("embl", "g.embl")])
def test_coding_features_become_records(format, name, tmp_path):
    buffer = StringIO()
    SeqIO.write([genome(), genome()], buffer, format)
    data = buffer.getvalue().encode()
    records = read(write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data))
    assert [r.id for r in records] == ["AAA1.1", "b0002", "b0004"] * 2
    assert [r.line for r in records] == [1, 2, 3, 4, 5, 6]
    assert records[0].description == "ubiquitin [Escherichia coli]"
    assert records[0].payload == UBIQUITIN.encode()
    assert records[2].reason == "stop codon (*) inside the sequence: residue 3"


def test_protein_entries_are_records_themselves(tmp_path):
    entry = SeqRecord(Seq(UBIQUITIN), id="NP_1.1", name="NP_1", description="polyubiquitin-C")
    entry.annotations["molecule_type"] = "protein"
    with (tmp_path / "p.gp").open("w") as text:
        SeqIO.write([entry], text, "genbank")
    (record,) = read(tmp_path / "p.gp")
    assert (record.id, record.payload) == ("NP_1.1", UBIQUITIN.encode())
    assert record.description == "polyubiquitin-C"


SWISS = """\
ID   TEST_HUMAN              Reviewed;          22 AA.
AC   P12345; Q99999;
DE   RecName: Full=Test protein;
OS   Homo sapiens (Human).
SQ   SEQUENCE   22 AA;  2500 MW;  0000000000000000 CRC64;
     MKTAYIAKQR QISFVKSHFS RQ
//
ID   OTHER_HUMAN             Unreviewed;         5 AA.
AC   A0A023FBW4;
SQ   SEQUENCE   5 AA;  500 MW;  0000000000000000 CRC64;
     MKTAY
//
"""
PIR = """\
>P1;CRYA_DUCK
ALPHA CRYSTALLIN B CHAIN
MDITIHNPLI
RRPL*
>F1;X
A FRAGMENT (TITLE)
MKV*
"""


@pytest.mark.parametrize("name", ["e.dat", "e.txt", "e.embl", "uniprot.fa"])
def test_a_uniprot_flat_file_is_read_whatever_its_name(tmp_path, name):
    records = read(write(tmp_path / name, SWISS))
    expected = [("P12345", b"MKTAYIAKQRQISFVKSHFSRQ"), ("A0A023FBW4", b"MKTAY")]
    assert [(r.id, r.payload) for r in records] == expected
    assert "Test protein" in records[0].description


def test_a_title_of_pir_is_no_sequence(tmp_path):
    records = read(write(tmp_path / "e.pir", PIR))
    assert [(r.id, r.description, r.payload) for r in records] == [
        ("CRYA_DUCK", "ALPHA CRYSTALLIN B CHAIN", b"MDITIHNPLIRRPL"),
        ("X", "A FRAGMENT (TITLE)", b"MKV"),
    ]
    fasta = read(write(tmp_path / "e.fa", ">P1;a b\nMKV\n>P1;c\nMKL\n"))
    assert [(r.id, r.payload) for r in fasta] == [("P1;a", b"MKV"), ("P1;c", b"MKL")]


def test_a_line_of_labels_is_no_sequence(tmp_path):
    three = "".join(f">p{n}\n{'MKV' * n}\n{'HHE' * n}\n" for n in range(1, 4))
    said = r"t\.3line:3: each record has two lines of one length, so "
    with pytest.raises(UserError, match=said):
        read(write(tmp_path / "t.3line", three))
    for wrapped in (
        "".join(f">p{n}\n{'MKV' * 4}\n{'MKL' * 4}\n" for n in range(3)),
        f"{three}>p4\nMKV\nMK\n",
        ">one\nMKV\nHHH\n",
    ):
        assert len(read(write(tmp_path / "w.fa", wrapped))) == wrapped.count(">")


MISSING = r"NA nan NaN None null NULL N/A #N/A na none Null NONE \N"


@pytest.mark.parametrize("word", MISSING.split())
def test_a_word_for_a_missing_sequence_is_no_peptide(tmp_path, word):
    frame = pd.DataFrame({"id": ["P1", "NA"], "sequence": [word, "NAN"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    write(tmp_path / "t.fa", f">P1\n{word}\n>NA\nNAN\n")
    for name in ("t.csv", "t.parquet", "t.fa"):
        missing, peptide = read(tmp_path / name)
        if word.startswith("#") and name == "t.fa":  # a comment there
            assert missing.reason == "empty sequence"
        else:
            assert missing.reason == f"a word for a missing sequence: {word}"
        assert (peptide.id, peptide.payload, peptide.reason) == ("NA", b"NAN", "")
        note = "" if name == "t.fa" else "the id is a word for a missing value: NA"
        assert peptide.note == note
    (real,) = read(write(tmp_path / "t.fa", ">P1\nNA*\n"))
    assert real.payload == b"NA"


TWO = b">a\nMKTAYIAKQR\n>b\nMKV\n"
ONE_MORE = b">c\nMKL\n"


def skippable(data, number):
    """Return a frame of zstd that holds no data of the file, as pzstd and others write them."""
    return struct.pack("<II", 0x184D2A50 + number, len(data)) + data


def bgzip(data):
    """Return `data` as bgzip packs them: members of 64 kB and an empty one of 28 bytes."""
    file = io.BytesIO()
    with mock.patch.object(file, "close"), bgzf.BgzfWriter(fileobj=file) as writer:
        writer.write(data)
    return file.getvalue()


STREAMS = {
    "pzstd.zst": skippable(b"size", 0) + _packed(TWO, "zst") + skippable(b"", 15),
    "info.zst": skippable(b"made by a pipeline", 14) + _packed(TWO, "zst"),
    "padded.xz": lzma.compress(TWO) + bytes(8),
    "bgzip.gz": bgzip(TWO),
    "padded.gz": gzip.compress(TWO) + bytes(512),
}
SEVERAL = {
    "several.xz": lzma.compress(TWO) + bytes(4) + lzma.compress(ONE_MORE) + bytes(4),
    "several.gz": gzip.compress(TWO) + gzip.compress(ONE_MORE),
    "mixed.gz": bgzip(TWO)[:-28] + gzip.compress(ONE_MORE),
    "several.bz2": bz2.compress(TWO) + bz2.compress(ONE_MORE),
    "several.zst": _packed(TWO, "zst") + _packed(ONE_MORE, "zst"),
}


@pytest.mark.parametrize("name", [*STREAMS, *SEVERAL])
def test_streams_behind_one_another_are_read_to_the_last(tmp_path, name):
    records = read(write(tmp_path / f"in.fa.{name}", (STREAMS | SEVERAL)[name]))
    assert [record.id for record in records] == ["a", "b"] + ["c"] * (name in SEVERAL)


def tar(data):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("in.fa")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


OTHER_BYTES = {
    "behind.gz": (gzip.compress(TWO) + b"signature", "has other bytes after its gzip data"),
    "behind.xz": (lzma.compress(TWO) + b"signature", "has other bytes after its xz data"),
    "behind.bz2": (bz2.compress(TWO) + b"signature", "has other bytes after its bzip2 data"),
    "cut.xz": (lzma.compress(TWO * 99)[:-30], "is cut short"),
    "cut.bz2": (bz2.compress(TWO * 99)[:-9], "is cut short"),
    "cut.gz": (gzip.compress(TWO * 99)[:-9], "is cut short"),
    "in.tar": (tar(TWO), "these are files in one tar archive; unpack it and name them"),
    "in.tar.gz": (gzip.compress(tar(TWO)), "these are files in one tar archive"),
    "twice.gz": (gzip.compress(gzip.compress(TWO)), "this is compressed twice; unpack it once"),
    "cut.bgz": (bgzip(TWO * 99)[:-28], "is cut short at about record 198"),
    "in.lz4": (b"\x04\x22\x4d\x18@@\xc0" + bytes(9), "this is compressed by lz4, which is not"),
    "in.lzma": (lzma.compress(TWO, lzma.FORMAT_ALONE), "this is compressed by lzma, which is not"),
}


@pytest.mark.parametrize("name", OTHER_BYTES)
def test_what_a_packed_file_is_is_said(tmp_path, name):
    data, sentence = OTHER_BYTES[name]
    with pytest.raises(UserError, match=sentence):
        read(write(tmp_path / name, data))


def as_arrow(table, path, new=pa.ipc.new_file):
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


AS_STREAM = partial(as_arrow, new=pa.ipc.new_stream)
"""As Hugging Face's datasets are."""


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (as_arrow, "in.arrow"),
        (AS_STREAM, "data-00000-of-00001.arrow"),
        (partial(feather.write_feather, compression="zstd"), "in.feather"),
        (pq.write_table, "in.feather"),
        (as_arrow, "in.parquet"),
    ],
)
def test_arrow_and_feather_are_tables_as_parquet_is(tmp_path, write, name, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_ROWS", 3)
    letters = ["MKV", None, "MKLA", "ACDEF", "GIVEQ"]
    columns = {"other": pa.array(range(5)), "sequence": pa.array(letters).dictionary_encode()}
    table = pa.table({**columns, "id": pa.array([1, 2, 3, 4, 5], pa.int64())})
    path = tmp_path / name
    write(table, path)
    assert format_of(path).name in ("Arrow table", "Parquet table")
    records = list(proteins([path]))
    assert [(r.id, r.payload, r.line) for r in records] == [
        (str(n), (text or "").encode(), n) for n, text in enumerate(letters, 1)
    ]
    assert [bool(record.reason) for record in records] == [False, True, False, False, False]
    assert names_in_table(path, "labels") == ["other", "sequence", "id"]
    (first, *_) = rows([path], NamedColumns(id_column="id", names=("other",)))
    assert first.payload == b'{"other":0}'
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match=f"{name}: this (Arrow|Parquet) file cannot be read"):
        list(proteins([path]))
