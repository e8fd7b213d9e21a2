"""Readers of what is no protein: nucleotides and rows, and files that are of another kind."""

import gzip
import json
import math
import re
from io import StringIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from Bio import SeqIO, bgzf
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord
from broken_inputs import FASTQ, GENE, UBIQUITIN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xopen import xopen

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.inputs import (
    NucleotideOptions,
    RowOptions,
    columns,
    columns_taken,
    nucleotides,
    proteins,
    rows,
)
from featuremill.inputs.residues import BASES, clean_bases

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def told(records):
    return [(record.id, record.payload, record.line) for record in records]


# Nucleotides


@pytest.mark.parametrize(
    ("letters", "payload", "note"),
    [
        ("acgt\nNNN ", b"ACGTNNN", ""),
        ("RYSWKMBDHVN", b"RYSWKMBDHVN", ""),
        ("AUGC", b"ATGC", "U read as T"),
        ("augt", b"ATGT", "U read as T"),
    ],
)
def test_letters_become_bases(letters, payload, note):
    assert clean_bases(letters) == (payload, "", note)


@pytest.mark.parametrize(
    ("letters", "reason"),
    [
        ("", "empty sequence"),
        (" \n", "empty sequence"),
        ("ACGT-ACGT", "not a nucleotide: '-' at base 5"),
        ("AC GE", "not a nucleotide: 'E' at base 4"),
        ("ACGX", "not a nucleotide: 'X' at base 4"),
        ("ACG*", "not a nucleotide: '*' at base 4"),
        ("AC\u00e9", "not a nucleotide: '\u00e9' at base 3"),
        ("AC\udce9", "not a nucleotide: byte 0xE9 at base 3"),
        (UBIQUITIN, "a protein, not nucleotides: 'Q' at base 2"),
        (UBIQUITIN[:9], "not a nucleotide: 'Q' at base 2"),  # too short to say
        (UBIQUITIN + "#", "not a nucleotide: 'Q' at base 2"),
        ("ACGT" * 30 + "E", "not a nucleotide: 'E' at base 121"),  # a typing error
    ],
)
def test_other_letters_are_refused(letters, reason):
    assert clean_bases(letters) == (b"", reason, "")


@given(st.text())
def test_clean_never_lets_a_stranger_through(letters):
    payload, reason, _ = clean_bases(letters)
    assert not payload.translate(None, BASES)
    assert bool(payload) != bool(reason)


ids = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1)
letters = st.text("ACGTRYSWKMBDHVNacgtrn", min_size=1, max_size=40)
letters = letters.filter(lambda text: not reasons.is_missing(text))
qualities = st.sampled_from("@+>!I~")


@SAME_FOLDER
@given(
    records=st.lists(st.tuples(ids, letters, st.data()), min_size=1, max_size=6),
    width=st.integers(1, 50),
    end=st.sampled_from(["\n", "\r\n"]),
    blank=st.sampled_from(["", "\n", " \n\n"]),
    repeats_title=st.booleans(),
    ends=st.booleans(),
    name=st.sampled_from(["in.fq", "in.fastq.gz", "in.fa", "in"]),
)
def test_fastq_round_trip(records, width, end, blank, repeats_title, ends, name, tmp_path):
    """Also over several lines, with '@' and '+' at the beginning of qualities."""
    text, expected = blank, []
    for id, sequence, data in records:
        size = len(sequence)
        told = data.draw(st.text(qualities, min_size=size, max_size=size))
        expected.append((id, sequence.upper().encode(), text.count("\n") + 1))
        text += f"@{id} a read\n"
        text += "".join(f"{sequence[at : at + width]}\n" for at in range(0, size, width))
        text += f"+{id} a read\n" if repeats_title else "+\n"
        text += "".join(f"{told[at : at + width]}\n" for at in range(0, size, width))
    data = (text if ends else text[:-1]).replace("\n", end).encode()
    path = write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    found = list(nucleotides([path]))
    assert [(r.id, r.payload, r.line) for r in found] == expected
    assert {r.description for r in found} == {"a read"}


@pytest.mark.parametrize("format", ["gz", "zst", "bz2", "xz"])
@pytest.mark.parametrize("name", ["reads.fastq", "reads.txt"])
def test_compressed_fastq_reads_the_same(format, name, tmp_path):
    text = "".join(
        f"@r{n} x\n{GENE[n % 60 :]}\n+\n{'@' * len(GENE[n % 60 :])}\n" for n in range(99)
    )
    plain = write(tmp_path / "plain.fq", text)
    path = tmp_path / f"{name}.{format}"
    with xopen(path, "wb", threads=0) as stream:
        stream.write(text.encode())
    assert told(list(nucleotides([path]))) == told(list(nucleotides([plain])))


def test_bgzip_of_many_members_is_read_whole(tmp_path):
    members = [gzip.compress(f"@r{n}\nACGT\n+\nIIII\n".encode()) for n in range(5)]
    path = write(tmp_path / "in.fastq.gz", b"".join(members))
    assert [record.id for record in nucleotides([path])] == ["r0", "r1", "r2", "r3", "r4"]


def test_reads_may_lack_the_last_member_of_bgzip(tmp_path):
    """bcl2fastq of Illumina writes none (https://github.com/samtools/samtools/issues/1467)."""
    path, text = tmp_path / "in.fastq.gz", "".join(f"@r{n}\nACGT\n+\nIIII\n" for n in range(9_999))
    with bgzf.BgzfWriter(path) as file:
        file.write(text)
    members = path.read_bytes()[:-28]
    write(path, members)
    assert [record.id for record in nucleotides([path])] == [f"r{n}" for n in range(9_999)]
    with path.open("rb") as file:
        _, size_of_first, *_ = next(bgzf.BgzfBlocks(file))
    write(path, members[:size_of_first])
    with pytest.raises(UserError, match="this FASTQ record is broken"):
        list(nucleotides([path]))


def test_the_same_reads_from_every_format(tmp_path):
    reads = {"r1": "ACGTRN", "r2": "acgu", "r3": "GATTACA"}
    fasta = write(tmp_path / "in.fna", "".join(f">{id}\n{seq}\n" for id, seq in reads.items()))
    text = "".join(f"@{id}\n{seq}\n+\n{'I' * len(seq)}\n" for id, seq in reads.items())
    fastq = write(tmp_path / "in.fq", text)
    frame = pd.DataFrame({"id": reads.keys(), "dna": reads.values()})
    frame.to_csv(tmp_path / "in.csv", index=False)
    frame.to_csv(tmp_path / "in.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "in.parquet")
    tables = [tmp_path / name for name in ("in.csv", "in.tsv", "in.parquet")]
    for path in (fasta, fastq, *tables):
        found = [(r.id, r.payload, r.note) for r in nucleotides([path])]
        second = ("r2", b"ACGT", "U read as T")
        assert found == [("r1", b"ACGTRN", ""), second, ("r3", b"GATTACA", "")]
    options = NucleotideOptions()
    assert columns_taken(tables[0], options) == "id from column 'id', sequence from 'dna'"
    chosen = NucleotideOptions(id_column="dna", sequence_column="id")
    told = [record.reason[:16] for record in nucleotides(tables[:1], chosen)]
    assert told == ["not a nucleotide"] * 3


@pytest.mark.parametrize(("format", "name"), [("genbank", "g.gbk"), ("embl", "g.embl")])
def test_entries_of_flat_files_are_records(format, name, tmp_path):
    entry = SeqRecord(Seq(GENE), id="TINY.1", name="TINY", description="A tiny genome.")
    entry.annotations["molecule_type"] = "DNA"
    buffer = StringIO()
    SeqIO.write([entry, entry], buffer, format)
    found = list(nucleotides([write(tmp_path / name, buffer.getvalue())]))
    assert told(found) == [("TINY.1", GENE.encode(), 1), ("TINY.1", GENE.encode(), 2)]
    assert found[0].description == "A tiny genome."


def test_a_mixed_file_loses_single_records_and_says_why(tmp_path):
    text = f">a\n{GENE}\n>b\n{UBIQUITIN}\n>c\nAC-GT\n>d\n>\nACGT\n>e\nacgu\n"
    found = list(nucleotides([write(tmp_path / "in.fa", text)]))
    reasons = ["a protein, not nucleotides", "not a nucleotide", "empty sequence", "no id"]
    assert [record.reason.partition(":")[0] for record in found] == ["", *reasons, ""]
    assert [record.line for record in found] == [1, 3, 5, 7, 8, 10]


# Rows

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
)


class Typed(RowOptions):
    """A table of known columns."""

    def payload_columns(self):
        return {"age": float, "count": int, "text": str, "is_old": bool, "trace": list}


class Chosen(RowOptions):
    """A table of chosen columns, as they stand."""

    def payload_columns(self):
        return ["b"]


CELLS = st.fixed_dictionaries(
    {
        "age": st.none() | st.floats(allow_nan=False),
        "count": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])),
        "is_old": st.none() | st.booleans(),
        "trace": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    }
)
TYPES = {"id": pa.string(), "age": pa.float64(), "count": pa.int64(), "text": pa.string()}
SCHEMA = pa.schema({**TYPES, "is_old": pa.bool_(), "trace": pa.list_(pa.float64())})


@SAME_FOLDER
@given(table=st.lists(CELLS, min_size=1, max_size=5), end=st.sampled_from(["\n", "\r\n"]))
def test_equal_values_are_equal_bytes_from_every_format(table, end, tmp_path):
    records = [{"id": f"cell {n}", **row} for n, row in enumerate(table)]
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), tmp_path / "t.parquet")
    texts = [{**row, "trace": json.dumps(row["trace"])} for row in records]
    frame = pd.DataFrame(texts, dtype=object)
    frame.to_csv(tmp_path / "t.csv", index=False, lineterminator=end)
    # Other columns, in another order, are nothing to a workload that names its own.
    other = frame[frame.columns[::-1]].assign(batch="x")
    other.to_csv(tmp_path / "t.tsv.gz", index=False, sep="\t", lineterminator=end)
    compact = {"ensure_ascii": False, "sort_keys": True, "separators": (",", ":")}
    expected = [json.dumps(row, **compact).encode() for row in table]
    for name in ("t.parquet", "t.csv", "t.tsv.gz"):
        found = list(rows([tmp_path / name], Typed()))
        assert not [record.reason for record in found if record.reason]
        assert [record.payload for record in found] == expected
        assert [record.id for record in found] == [f"cell {n}" for n in range(len(table))]
        assert [json.loads(record.payload) for record in found] == table


@SAME_FOLDER
@given(
    table=st.lists(
        st.fixed_dictionaries({"a": VALUES, "\U0001f9ec": st.lists(VALUES, max_size=3)}), min_size=1
    )
)
def test_all_columns_of_parquet_come_back_as_they_stood(table, tmp_path):
    kinds = {type(row["a"]) for row in table} - {type(None)}
    if len(kinds) > 1 or any(len({type(v) for v in row["\U0001f9ec"]}) > 1 for row in table):
        table = [{"a": repr(row["a"]), "\U0001f9ec": []} for row in table]
    elif len({type(v) for row in table for v in row["\U0001f9ec"]}) > 1:
        table = [{**row, "\U0001f9ec": []} for row in table]
    records = [{"name": f"r{n}", **row} for n, row in enumerate(table)]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "t.parquet")
    found = list(rows([tmp_path / "t.parquet"]))
    assert [json.loads(record.payload) for record in found] == table


def test_a_payload_is_compact_json_with_its_keys_in_order(tmp_path):
    columns = {"cell_type": ["T", None], "id": [7, 8], "Z": [0.1, math.nan]}
    columns |= {"when": pa.array([0, None], pa.timestamp("s")), "image": [b"\x00\xff", None]}
    columns["who"] = [{"b": 1, "a": [1, None]}, None]
    parquet(tmp_path / "t.parquet", **columns)
    first, second = rows([tmp_path / "t.parquet"], RowOptions(id_column="id"))
    assert (first.id, first.line, first.source) == ("7", 1, str(tmp_path / "t.parquet"))
    assert first.payload == (
        b'{"Z":0.1,"cell_type":"T","image":"AP8=","when":"1970-01-01T00:00:00",'
        b'"who":{"a":[1,null],"b":1}}'
    )
    assert second.payload == (b'{"Z":NaN,"cell_type":null,"image":null,"when":null,"who":null}')


def test_cells_of_text_files_stay_as_they_are_written(tmp_path):
    path = write(tmp_path / "t.csv", 'id,a,b\nNA,001,"x, ""y"""\n\nP1,,3.50\n')
    assert [(r.id, r.line, r.payload) for r in rows([path])] == [
        ("NA", 2, b'{"a":"001","b":"x, \\"y\\""}'),
        ("P1", 4, b'{"a":"","b":"3.50"}'),
    ]
    assert [record.payload for record in rows([path], Chosen())][1] == b'{"b":"3.50"}'
    assert columns_taken(path, Chosen()) == "id from column 'id', values from 'b'"


@pytest.mark.parametrize("word", ["NA", "n/a", "NULL", "None"])
def test_a_word_for_a_missing_value_in_a_column_with_a_type_is_null(tmp_path, word):
    cells = ",".join([word] * 5)
    path = write(tmp_path / "t.csv", f"id,age,count,text,is_old,trace\nnone,{cells}\n")
    (record,) = rows([path], Typed())
    nothing = dict.fromkeys(("age", "count", "is_old", "trace"))
    assert json.loads(record.payload) == nothing | {"text": word} and not record.reason
    assert record.note == "the id is a word for a missing value: none"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("P1,old,1,x,true,[]", "'old' in column 'age' is no float"),
        ("P1,1_0,1,x,true,[]", "'1_0' in column 'age' is no float"),
        ("P1,1,1.5,x,true,[]", "'1.5' in column 'count' is no int"),
        ("P1,1,inf,x,true,[]", "'inf' in column 'count' is no int"),
        ("P1,1,1,x,perhaps,[]", "'perhaps' in column 'is_old' is no bool"),
        ('P1,1,1,x,true,"{}"', "'{}' in column 'trace' is no list"),
        ('P1,1,1,x,true,"[1"', "'[1' in column 'trace' is no list"),
    ],
)
def test_a_cell_of_another_type_is_refused(row, reason, tmp_path):
    path = write(
        tmp_path / "t.csv", f"id,age,count,text,is_old,trace\n{row}\nP2,1,2.0,,0,\n,,,x,,\n"
    )
    refused, good, nameless = rows([path], Typed())
    assert refused.reason == f"not of its column's type: {reason}" and not refused.payload
    assert good.payload == b'{"age":1.0,"count":2,"is_old":false,"text":"","trace":null}'
    assert (nameless.reason, nameless.payload) == ("no id", b"")


def test_a_type_that_there_is_not_is_its_authors_error(tmp_path):
    class Wrong(RowOptions):
        def payload_columns(self):
            return {"a": set}

    with pytest.raises(TypeError, match="column 'a' can have one of the types str, int, float, bo"):
        list(rows([write(tmp_path / "t.csv", "id,a\nP1,1\n")], Wrong()))


# Files of the wrong kind

PROTEINS = f">sp|P0CG48|UBC_HUMAN Polyubiquitin-C\n{UBIQUITIN}\n"
TABLE = "id,age,count,text\nP1,1,2,x\n"


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


AS_NUCLEOTIDES = {
    "proteins as nucleotides": (
        "in.fa",
        PROTEINS,
        ":1: record 'sp|P0CG48|UBC_HUMAN' is a protein ('Q' at base 2), but nucleotides are read "
        "here; give DNA or RNA, or choose a workload for proteins.",
    ),
    "proteins as nucleotides, compressed": (
        "in.fa.gz",
        gzip.compress(PROTEINS.encode()),
        ":1: record 'sp|P0CG48|UBC_HUMAN' is a protein",
    ),
    "a table of proteins as nucleotides": (
        "in.csv",
        f"id,sequence\nP1,{UBIQUITIN}\n",
        ":2: record 'P1' is a protein ('Q' at base 2), but nucleotides are read here",
    ),
    "SAM as nucleotides": ("in.fq", "@HD\tVN:1.6\n", ":1: this is a SAM file"),
    "a table as FASTA": (
        "in.txt",
        TABLE,
        ":1: a record starts with '>', but here is 'id,age,count,text'; nucleotides are read from "
        "FASTA, FASTQ, tables",
    ),
    "FASTQ without qualities": (
        "in.fq",
        "@r1\nACGT\n+\nIIII\n@r2\nACGT\n",
        ":5: this FASTQ record is broken (End of file without quality information); fix it",
    ),
    "FASTQ, cut in its qualities": (
        "in.fq",
        "@r1\nACGT\n+\nIIII\n@r2\nACGT\n+\nII",
        ":5: this FASTQ record is broken (Lengths of sequence and quality values differs for r2",
    ),
    "FASTQ, then FASTA": (
        "in.fq",
        "@r1\nACGT\n+\nIIII\n>r2\nACGT\n",
        ":1: this FASTQ record is broken (Lengths of sequence and quality values differs for r1",
    ),
    "FASTQ with NUL bytes": (
        "in.fq",
        f"@r1\nACGT\n+\nII{chr(0)}I\n",
        ":4: there are NUL bytes here",
    ),
    "FASTQ, cut and compressed": (
        "in.fq.gz",
        gzip.compress(FASTQ.encode())[:-12],
        ": this file is cut short at about record 1; download or copy it again.",
    ),
    "FASTQ, empty": ("in.fq", "\n\n", ": there is no record in this file; give a file"),
}
AS_PROTEINS = {
    "FASTQ as proteins": (
        "in.fq",
        FASTQ,
        ":1: this looks like FASTQ, which holds nucleotide reads; featuremill reads FASTA, tables",
    )
}
AS_ROWS = {
    "FASTA as a table of rows": (
        "in.fa",
        PROTEINS,
        ": this is FASTA (it begins with '>sp|P0CG48|UBC_HUMAN Polyubiquitin-C'), but rows of "
        "tables are read here; give a .csv, .tsv or .parquet.",
    ),
    "FASTA named csv as rows": ("in.csv", PROTEINS, ": this is FASTA (it begins with '>sp|P0"),
    "FASTQ as rows": ("in.fq.gz", gzip.compress(FASTQ.encode()), ": this is FASTQ (it begins"),
    "GenBank as rows": ("in.gb", "LOCUS  ", ": this is GenBank, but rows of tables are read"),
    "a nameless table as rows": ("in", TABLE, ": this has no suffix of a table, but rows"),
    "a header without rows": (
        "in.csv",
        "id,a\n",
        ": there is no record in this file; give a file with rows.",
    ),
    "ids alone": ("in.csv", "id\nP1\n", ": there is no column but 'id'; give a table with"),
    "two columns of one name": ("in.csv", "id,a,a\nP,1,2\n", ": two columns are called 'a'"),
    "no ids": ("in.csv", "a,b\n1,2\n", ": no column of ids is found (columns: 'a', 'b'); set id"),
}
READ = ((nucleotides, AS_NUCLEOTIDES), (proteins, AS_PROTEINS), (rows, AS_ROWS))
WRONG = {name: (read, *case) for read, cases in READ for name, case in cases.items()}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_of_another_kind_is_refused_in_one_sentence(name, tmp_path):
    read, file, content, sentence = WRONG[name]
    path = write(tmp_path / file, content)
    with pytest.raises(UserError) as caught:
        list(read([path]))
    said = str(caught.value)
    assert said.startswith(f"{path}{sentence}")
    assert said.endswith(".") and ";" in said and said.isprintable()


def test_a_table_without_the_workloads_column_is_refused(tmp_path):
    path = parquet(tmp_path / "in.parquet", id=["P1"], age=[1.0], text=["x"])
    with pytest.raises(UserError) as caught:
        list(rows([path], Typed()))
    assert str(caught.value) == (
        f"{path}: there is no column 'count', which this workload reads; it has 'id', 'age', "
        "'text', so add it or rename one."
    )
    with pytest.raises(UserError, match="this Parquet file cannot be read"):
        list(rows([write(tmp_path / "broken.parquet", "PAR1, no")], Typed()))
    wrong = parquet(tmp_path / "p.parquet", id=["P1"], seq=[UBIQUITIN])
    with pytest.raises(UserError, match=":1: record 'P1' is a protein"):
        list(nucleotides([wrong]))


def test_a_genpept_file_holds_no_nucleotides(tmp_path):
    entry = SeqRecord(Seq(UBIQUITIN), id="NP_1.1", name="NP_1", description="polyubiquitin-C")
    entry.annotations["molecule_type"] = "protein"
    with (tmp_path / "p.gp").open("w") as text:
        SeqIO.write([entry], text, "genbank")
    with pytest.raises(UserError, match=r":1: record 'NP_1\.1' is a protein"):
        list(nucleotides([tmp_path / "p.gp"]))


def test_the_docs_name_the_columns_of_nucleotides_that_are_found():
    description = NucleotideOptions.descriptions()["sequence_column"]
    found = (*columns.NUCLEOTIDES, *columns.DESCRIPTIONS)
    assert re.findall(r"`(\w+)`", description) == [name for rank in found for name in rank]
