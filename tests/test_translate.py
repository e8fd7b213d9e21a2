"""translate: contigs become the fragments that are made by hand; nothing is lost or mixed up."""

import csv
import functools
import gzip
import hashlib
import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
from itertools import groupby, pairwise, product
from pathlib import Path

import debian
import numpy as np
import pandas as pd
import pytest
from Bio import SeqIO
from Bio.Data.CodonTable import unambiguous_dna_by_id
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord
from conftest import ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from programs import SHEBANG, Desk, python, wait_for

from featuremill.__main__ import main
from featuremill.base.errors import UserError, WorkloadError
from featuremill.base.reasons import is_missing_sequence
from featuremill.inputs import fasta, kinds, nucleotides
from featuremill.steps.translate import chunks, contigs, folder, orfs
from featuremill.steps.translate.command import translate
from featuremill.steps.translate.genetic_code import COMPLEMENT, genetic_code, reverse_complement
from featuremill.store.formats import RECORD
from featuremill.workload import Record

SAME_FOLDER = settings(suppress_health_check=[*HealthCheck], deadline=None, max_examples=60)
IUPAC = dict(zip("ACGT", "ACGT", strict=True))
IUPAC |= {"R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC"}
IUPAC |= {"B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT"}
"""What each letter stands for."""
BASE_PAIR = dict(zip("ACGT", "TGCA", strict=True))
ALL_FILES = {*folder.FILES, folder.SUMMARY}
STOPS = "ATGGCCTAAGCCGCCATGTAAGCCGCCTAA"
PARTED = "GCC" * 9 + "N" * 11 + "GCC" * 9
ODD = ["ATGGCC" * 9 + "A", "CCNGGCRAC" * 4]
ANY_ORF = ("orfs", {"min_residues": 1})
GENE = "ATGGCTGAAACCTTCGGTCAGAAAGTTCTGGCTAATTAA"


# By hand: what the fragments are, letter by letter


@functools.cache
def residue_of(codon, code):
    """Return a residue, * for a stop, or X, from Biopython's table of plain codons."""
    table = unambiguous_dna_by_id[code]
    plain = map("".join, product(*map(IUPAC.get, codon)))
    found = {table.forward_table.get(one, "*") for one in plain}
    pairs = {frozenset("DN"): "B", frozenset("EQ"): "Z", frozenset("IL"): "J"}
    return found.pop() if len(found) == 1 else pairs.get(frozenset(found), "X")


BY_BASES = {frozenset(bases): letter for letter, bases in IUPAC.items()}
PAIRS = {letter: BY_BASES[frozenset(map(BASE_PAIR.get, bases))] for letter, bases in IUPAC.items()}


def other_strand(sequence):
    return "".join(map(PAIRS.get, reversed(sequence)))


def in_frames(chunk, other):
    """Yield (strand, name, letters, frame, codons) of a chunk and its other strand."""
    for strand, name, letters in (("+", "F", chunk), ("-", "R", other)):
        for frame in range(3):
            yield strand, name, letters, frame, codons_of(letters, frame)


def codons_of(letters, frame):
    return [letters[at : at + 3] for at in range(frame, len(letters) - 2, 3)]


def is_plain(codon):
    return set(codon) <= set("ACGT")


def chunks_by_hand(id, sequence, window):
    """Yield (id, start, end, strand, frame, protein, nucleotides) as VirNucPro describes them."""
    length = len(sequence)
    number = max(1, -(-length // window))
    starts = [0]
    for border in range(number - 1):
        surplus = number * window - length
        shared = surplus // (number - 1) + (border < surplus % (number - 1))
        starts.append(starts[-1] + window - shared)
    assert starts[-1] == max(0, length - window)
    for k, start in enumerate(starts, 1):
        chunk = sequence[start : start + window]
        for strand, name, _, frame, codons in in_frames(chunk, other_strand(chunk)):
            protein = "".join(residue_of(codon, 1) for codon in codons if is_plain(codon))
            if not protein or "*" in protein:
                continue
            low, high = frame, frame + 3 * len(codons)
            if strand == "-":
                low, high = len(chunk) - high, len(chunk) - low
            place = (start + low, start + high, strand, frame + 1)
            yield (f"{id}_chunk_{k}{name}{frame + 1}", *place, protein, "".join(codons))


def windows_by_hand(length, window):
    """Yield (number, start, end) as VirNucPro's program has them."""
    number = -(-length // window)
    surplus = number * window - length
    small = surplus // number
    overlaps = [small + 1] * (surplus - small * (number - 1)) + [small] * number
    start = 0
    for k, overlap in zip(range(1, number + 1), overlaps, strict=False):
        yield k, start, min(start + window, length)
        start += window - overlap


def virnucpro_by_hand(id, sequence, window):
    """Yield the same as VirNucPro's program does, but for fragments without a residue."""
    for k, start, end in windows_by_hand(len(sequence), window):
        chunk = sequence[start:end]
        other = "".join(BASE_PAIR.get(letter, letter) for letter in chunk[::-1])
        for strand, name, letters, frame, codons in in_frames(chunk, other):
            residues = [residue_of(codon, 1) for codon in codons if is_plain(codon)]
            if not residues or "*" in residues:
                continue
            coding = letters[frame : frame + 3 * len(residues) + 1]
            low = frame if strand == "+" else len(chunk) - frame - len(coding)
            place = (start + low, start + low + len(coding), strand, frame + 1)
            yield (f"{id}_chunk_{k}{name}{frame + 1}", *place, "".join(residues), coding)


def orfs_by_hand(id, sequence, code, min_residues, from_start):
    """Yield the open reading frames, codon by codon; ten N in a row part a contig."""
    starts = unambiguous_dna_by_id[code].start_codons
    number = 0
    for strand, letters in (("+", sequence), ("-", other_strand(sequence))):
        runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
        is_gap = [letter == "N" and size > 9 for letter, size in runs for _ in range(size)]
        for frame in range(3):
            begin, protein, opened = frame, "", frame
            for place in range(frame, len(letters) + 3, 3):
                codon = letters[place : place + 3]
                residue = residue_of(codon, code) if len(codon) == 3 else "*"
                if any(is_gap[place : place + 3]):
                    residue, opened = "*", place + 3
                if residue != "*":
                    is_begun = protein or not from_start or begin == opened or codon in starts
                    if is_begun and not protein:
                        begin = place
                    protein += residue if is_begun else ""
                    continue
                if len(protein) >= min_residues:
                    number += 1
                    low, high = begin, begin + 3 * len(protein)
                    coding = letters[low:high]
                    if strand == "-":
                        low, high = len(letters) - high, len(letters) - low
                    yield f"{id}_orf_{number}", low, high, strand, frame + 1, protein, coding
                begin, protein = place + 3, ""


def by_hand(id, sequence, by, options):
    if by == "chunks":
        return list(chunks_by_hand(id, sequence, options["window"]))
    if by == "virnucpro":
        return list(virnucpro_by_hand(id, sequence, options["window"]))
    told = {"code": 1, "min_residues": 30, "orf": "from-start", **options}
    is_from_start = told["orf"] == "from-start"
    return list(orfs_by_hand(id, sequence, told["code"], told["min_residues"], is_from_start))


# What was written


def records_of(path):
    """Return the records of a gzip FASTA file with a line a sequence."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert all(line.startswith(">") for line in lines[::2])
    return [(head[1:], letters) for head, letters in zip(lines[::2], lines[1::2], strict=True)]


def written(place):
    """Return the rows (id, contig, start, …, protein, nucleotides); their files must agree."""
    assert {path.name for path in place.glob("[!.]*")} == ALL_FILES
    proteins = records_of(place / "proteins.faa.gz")
    coding = records_of(place / "nucleotides.fna.gz")
    table = pd.read_parquet(place / "fragments.parquet")
    assert list(table) == ["id", "contig", "start", "end", "strand", "frame"]
    ids = table["id"].tolist()
    assert [id for id, _ in proteins] == [id for id, _ in coding] == ids
    assert len(set(ids)) == len(ids)
    rows = table.itertuples(index=False, name=None)
    return [(*row, p, n) for row, (_, p), (_, n) in zip(rows, proteins, coding, strict=True)]


def listed(place):
    with (place / "untranslated.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def write(path, records, width=60):
    """Write FASTA; return the path."""
    lines = []
    for id, sequence in records:
        lines += [f">{id}", *(sequence[at : at + width] for at in range(0, len(sequence), width))]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def check(contigs_of, place, by, options):
    """Compare all that stands in `place` with what comes out by hand for {id: sequence}."""
    expected = []
    for id, sequence in contigs_of.items():
        expected += [(row[0], id, *row[1:]) for row in by_hand(id, sequence, by, options)]
    assert written(place) == expected
    summary = json.loads((place / "translate.json").read_text())
    with_any = {row[1] for row in expected}
    told = summary["contigs"]
    assert told["read"] == len(contigs_of) == len(with_any) + told["without_fragments"]
    assert told["with_fragments"] == len(with_any) and told["refused"] == 0
    without = [(row["contig"], row["status"]) for row in listed(place)]
    assert without == [(id, "without") for id in contigs_of if id not in with_any]
    assert summary["fragments"] == len(expected)
    assert summary["residues"] == sum(len(row[6]) for row in expected)
    assert summary["nucleotides"] == sum(map(len, contigs_of.values()))


GAPPED = st.sampled_from(["ATG", "GCC", "TAA", "N" * 9, "N" * 10, "N" * 13, "A"])
LONG_FRAMES = st.sampled_from(["ATG", "GCC", "TTG", "TAA", "TTA", "CAT", "A"])
"""Few stops, and starts, on either strand."""
dna = st.one_of(
    st.lists(GAPPED, max_size=30).map("".join),
    st.text("ACGT", max_size=120),
    st.text("ACGTNRYSWKMBDHV", max_size=60),
    st.lists(LONG_FRAMES, min_size=9, max_size=40).map("".join),
).filter(lambda letters: not is_missing_sequence(letters))  # such as NA, which is refused
WINDOWS = st.builds(lambda window: {"window": window}, st.integers(3, 40))
CHUNKS = st.tuples(st.sampled_from(["chunks", "virnucpro"]), WINDOWS)
ORFS = st.builds(
    lambda code, least, orf: ("orfs", {"code": code, "min_residues": least, "orf": orf}),
    st.sampled_from(sorted(unambiguous_dna_by_id)),
    st.integers(1, 12),
    st.sampled_from(["from-start", "between-stops"]),
)


@SAME_FOLDER
@given(
    sequences=st.lists(dna, min_size=1, max_size=6).filter(lambda found: max(map(len, found)) > 2),
    way=st.one_of(CHUNKS, ORFS),
    batch=st.sampled_from([1, 30, 2**20]),
    block=st.sampled_from([1, 100, 2**24]),
)
@example(sequences=["ATG" * 30, "CAT" * 30 + "A"], way=ANY_ORF, batch=1, block=1)
@example(sequences=["AA", "AAA"], way=ANY_ORF, batch=1, block=1)
@example(sequences=[STOPS], way=ANY_ORF, batch=1, block=1)
@example(sequences=["N" * 30], way=ANY_ORF, batch=1, block=1)
@example(sequences=[PARTED], way=("orfs", {"min_residues": 2}), batch=9, block=1)
@example(sequences=["N" * 30, "ACGNNN" * 5], way=("chunks", {"window": 9}), batch=30, block=1)
@example(sequences=ODD, way=("virnucpro", {"window": 20}), batch=30, block=1)
def test_fragments_are_those_made_by_hand(sequences, way, batch, block, tmp_path, monkeypatch):
    """Wherever batches, pieces of a long contig and blocks of the files end."""
    by, options = way
    monkeypatch.setattr(chunks, "BATCH_LETTERS", batch)
    monkeypatch.setattr(orfs, "BATCH_LETTERS", batch)
    monkeypatch.setattr(orfs, "LONG", batch)
    monkeypatch.setattr(folder, "BLOCK_LETTERS", block)
    given_contigs = {f"c{n}": sequence for n, sequence in enumerate(sequences) if sequence}
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    path = write(tmp_path / "in.fna", given_contigs.items())
    translate([path], tmp_path / "out", by, **options)
    check(given_contigs, tmp_path / "out", by, options)
    for _, contig, start, end, strand, _, protein, coding in written(tmp_path / "out"):
        letters = Seq(given_contigs[contig][start:end])
        letters = letters if strand == "+" else letters.reverse_complement()
        assert coding == str(letters) or (by == "virnucpro" and not is_plain(coding))
        if is_plain(coding) and by != "virnucpro":
            code = unambiguous_dna_by_id[options.get("code", 1)]
            assert protein == "".join(map(code.forward_table.get, codons_of(coding, 0)))


@pytest.mark.parametrize("window", [300, 500])
def test_virnucpros_windows_are_its_own_at_every_length(window):
    """As its program has them: published results join the same ids with the same features."""
    for length in range(1, 20_001):
        expected = list(windows_by_hand(length, window))
        assert list(chunks.windows(length, window, True)) == expected, length
    last_of_501 = list(chunks.windows(501, 500, True))[-1]
    assert last_of_501 == (2, 250, 501), "shorter than the window"


OF_ITS_PROGRAM = {
    300: (31_325, "23de04ac1bf363261c9ebf0fe23c4769760323d3848e5f845f5f7b528874beca"),
    500: (16_948, "cb8c9e0a655045190a90e34c671193897b288f6c09bf10556cb9f761e51d45e2"),
}
"""By window: fragments, and the sha256 of their ids, nucleotides and proteins. They are those of
split_fasta_chunk and identify_seq in units.py of github.com/Li-Jing-1997/VirNucPro, in the order in
which its prediction.py writes them, for the contigs of the test below."""


@pytest.mark.slow
@pytest.mark.parametrize("window", [300, 500])
def test_virnucpros_fragments_are_its_own_at_many_lengths(window, tmp_path):
    rng = random.Random(window)
    letters = "".join(rng.choices("ACGT", (1, 6, 6, 1), k=20_000))  # few stops
    letters = letters[:9_000] + "N" + letters[9_001:12_000] + "RYK" + letters[12_003:]
    lengths = [*range(3, 1_600), *range(1_601, 20_001, 211)]
    number, digest = 0, hashlib.sha256()
    for first in range(0, len(lengths), 200):
        given_contigs = {f"c{n}": letters[-n:] for n in lengths[first : first + 200]}
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        path = write(tmp_path / "in.fna", given_contigs.items())
        translate([path], tmp_path / "out", "virnucpro", window=window)
        check(given_contigs, tmp_path / "out", "virnucpro", {"window": window})
        for id, *_, protein, coding in written(tmp_path / "out"):
            digest.update(f">{id}\n{coding}\n{protein}\n".encode())
            number += 1
    assert (number, digest.hexdigest()) == OF_ITS_PROGRAM[window]


@pytest.mark.parametrize("length", range(1, 41))
def test_windows_are_whole_and_their_overlaps_are_shared_out(length):
    found = list(chunks.windows(length, 7))
    assert [number for number, _, _ in found] == list(range(1, max(1, -(-length // 7)) + 1))
    assert found[0][1] == 0 and found[-1][2] == length
    assert {end - start for _, start, end in found} == {min(7, length)}
    overlaps = [one[2] - two[1] for one, two in pairwise(found)]
    assert overlaps == sorted(overlaps, reverse=True)
    assert not overlaps or overlaps[0] - overlaps[-1] <= 1


@pytest.mark.parametrize("number", sorted(unambiguous_dna_by_id))
def test_codons_are_those_of_biopython_in_every_code(number):
    code = genetic_code(number)
    plain = ["".join(codon) for codon in product("ACGT", repeat=3)]
    table = unambiguous_dna_by_id[number]
    residues = code.translated("".join(plain).encode()).decode()
    assert residues == "".join(table.forward_table.get(codon, "*") for codon in plain)
    every = ["".join(codon) for codon in product(IUPAC, repeat=3)]
    letters = "".join(every).encode()
    assert code.translated(letters).decode() == "".join(residue_of(c, number) for c in every)
    skipped = code.skipping().translated(letters).decode()
    assert [r == "-" for r in skipped] == [not is_plain(codon) for codon in every]
    from featuremill.steps.translate.genetic_code import codons

    starts = {codon for codon in every if code.is_start[codons(codon.encode())[0]]}
    assert starts == set(table.start_codons)
    assert set(code.ambiguous_stops) == set(table.stop_codons) & set(table.forward_table)


def test_the_other_strand_pairs_every_letter():
    assert reverse_complement("".join(IUPAC).encode()).decode() == other_strand("".join(IUPAC))
    assert len(COMPLEMENT) == 256


# Reading


ODD_LINES = ["", " ", ";note", "# note", "ACG T", "\ufeff>c bom", ">é", ">", "AC-GT", "ACGX"]
line_of_fasta = st.one_of(
    st.text("ACGTNacgu", max_size=30),
    st.sampled_from([*ODD_LINES, "  AC "]),
    st.builds(">{} {}".format, st.sampled_from("abc"), st.text("xyz ", max_size=20)),
)
lines_of_fasta = st.lists(line_of_fasta, max_size=12).map(lambda lines: [">first", *lines])


@SAME_FOLDER
@given(
    lines=lines_of_fasta,
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    piece=st.sampled_from([7, 16, 2**20]),
)
@example(lines=[">first", "ACGTACG", "", ">b"], end="\n", piece=7)
@example(lines=[">first", "ACGTACGTA", "ACGUXCG"], end="\n", piece=7)
@example(lines=[">first", "AAAAAAA", "NaN"], end="\n", piece=7)
def test_fasta_read_in_pieces_is_the_same(lines, end, piece, tmp_path, monkeypatch):
    """As the reader of proteins reads it."""
    path = tmp_path / "in.fna"
    path.write_bytes(end.join(lines).encode())
    pieces = fasta.pieces(path, kinds.NUCLEOTIDES)
    expected = [record for each in pieces for record in fasta.records_of(each, kinds.NUCLEOTIDES)]
    monkeypatch.setattr(contigs, "PIECE_LETTERS", piece)
    found = list(contigs.read(path, kinds.NUCLEOTIDES))
    for one, other in zip(found, expected, strict=True):
        assert one == (other._replace(note=one.note) if other.reason else other)


def test_a_chromosome_on_one_line_takes_its_own_size_in_memory(tmp_path, environment):
    """40 MB of letters, with 100 MB beyond what importing takes."""
    path = tmp_path / "in.fna"
    path.write_text(">c\n" + "ACGT" * 10_000_000 + "\n>d\nACGTN\n")
    program = """
import resource, sys
from pathlib import Path
from featuremill.steps.translate.contigs import contigs_in
list(contigs_in([Path(sys.argv[2])]))
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 65_000_000,) * 2)
print([(record.id, len(record.payload)) for record in contigs_in([Path(sys.argv[1])])])
"""
    few = write(tmp_path / "few.fna", [("c", "ACGT")])
    done = python("-c", program, path, few, env=environment)
    assert done.stdout == "[('c', 40000000), ('d', 5)]\n", done.stderr


@pytest.mark.parametrize("suffix", [".fna", ".fna.gz", ".fq", ".gbk", ".csv"])
def test_every_format_gives_the_same_fragments(suffix, tmp_path):
    given_contigs = {"c1": GENE * 9, "c2": GENE[:20], "c3": "NNNNN"}
    path = tmp_path / f"in{suffix}"
    if suffix == ".gbk":
        kind = {"molecule_type": "DNA"}
        of = given_contigs.items()
        entries = [SeqRecord(Seq(s), id, id, "x", annotations=kind) for id, s in of]
        SeqIO.write(entries, path, "genbank")
    elif suffix == ".fq":
        reads = (f"@{id} x\n{s}\n+\n{'I' * len(s)}\n" for id, s in given_contigs.items())
        path.write_text("".join(reads))
    elif suffix == ".csv":
        pd.DataFrame({"id": given_contigs.keys(), "dna": given_contigs.values()}).to_csv(path)
    else:
        write(path, given_contigs.items())
        if suffix.endswith("gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    translate([path], tmp_path / "out", "chunks", window=50)
    check(given_contigs, tmp_path / "out", "chunks", {"window": 50})
    (none,) = listed(tmp_path / "out")
    assert none["file"] == str(path)
    assert none["reason"].startswith("a stop codon, or no codon of A, C, G and T")


def test_contigs_without_fragments_are_listed_with_file_line_and_reason(tmp_path):
    path = tmp_path / "in.fna"
    path.write_text(f">good\n{GENE}\n>short\nAC\n>broken\nAC-GT\n>\nACGT\n>empty\n>stops\nTAATTA\n")
    done = translate([path], tmp_path / "out", "orfs", min_residues=12)
    rows = [(r["contig"], r["line"], r["status"], r["reason"]) for r in listed(tmp_path / "out")]
    assert rows == [
        ("short", "3", "without", "shorter than a codon"),
        ("broken", "5", "refused", "not a nucleotide: '-' at base 3"),
        ("", "7", "refused", "no id"),
        ("empty", "9", "refused", "empty sequence"),
        ("stops", "10", "without", "no open reading frame of 12 residues"),
    ]
    told = done.contigs
    assert (told.read, told.with_fragments, told.without_fragments, told.refused) == (6, 1, 2, 3)
    assert done.nucleotides == len(GENE) + 2 + 6


# What is refused


def refused(tmp_path, files, by="chunks", out="out", **options):
    paths = []
    for name, text in files.items():
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
    with pytest.raises(UserError) as caught:
        translate(paths, tmp_path / out, by, **options)
    assert not (tmp_path / out / "translate.json").exists()
    return str(caught.value).replace(f"{tmp_path}/", "")


TWICE = "and ids of fragments begin with it; rename one or, if these are the two reads of a pair, "
TWICE += "give their files as a sheet of samples (samples:)."


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"p.faa": ">p\nMKVLLAGGEFILPQ\n"}, "p.faa:1: record 'p' is a protein ('L' at base 4), "
         "but nucleotides are read here; give DNA or RNA, or choose a workload for proteins."),
        ({"a.fna": ">a\nACGT\n>b\nACGT\n>a\nAAAA\n"},
         f"a.fna:5: the id 'a' is also that of a.fna:1, {TWICE}"),
        ({"a.fna": ">a\nACGT\n>b\nACGT\n", "b.fna": ">c\nACGT\n>b\nACGT\n"},
         f"b.fna:3: the id 'b' is also that of a.fna:3, {TWICE}"),
        ({"a.fna": ">a\nAC\n>b\nA\n"}, "a.fna: no contig is as long as a codon (3 nucleotides); "
         "check the step that made this file."),
        ({"a.fna": ">a\nAC-GT\n>b\n"}, "a.fna:1: every contig is refused, this first one as not a "
         "nucleotide: '-' at base 3; give DNA or RNA."),
        ({"a.csv": "id,dna\nmy contig,ACGT\n"}, "a.csv:2: there is white space in the id 'my "
         "contig', and in FASTA an id ends there; give it one without."),
        ({"a.fna": ""}, "a.fna: this file is empty; check the step that made it."),
    ],
)  # fmt: skip
def test_bad_inputs_are_refused_in_one_sentence(files, said, tmp_path):
    assert refused(tmp_path, files) == said
    assert not (tmp_path / "out").exists()


def test_the_first_repeat_among_thousands_is_named(tmp_path):
    records = [(f"c{n}", "ACGT") for n in range(3000)]
    records[1700] = records[2900] = ("c11", "ACGT")
    path = write(tmp_path / "in.fna", records)
    with pytest.raises(UserError, match=r"in\.fna:3401: the id 'c11' is also that of .*:23,"):
        list(contigs.Ids().checked(nucleotides([path])))
    many = (Record(f"c{n % 900}", "", b"A", "x", n) for n in range(10**6))
    with pytest.raises(UserError):
        list(contigs.Ids().checked(many))


@pytest.mark.parametrize(
    ("by", "options", "said"),
    [
        ("orfs", {"code": 7}, "--code 7: NCBI has no such genetic code; its codes are 1, 2, 3, 4, "
         "5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32 and "
         "33 (1 is the standard code, 11 that of bacteria, archaea and their viruses)."),
        ("chunks", {"code": 11},
         "--code has no effect with --by chunks; leave it out, or take --by orfs."),
        ("orfs", {"window": 300}, "--window has no effect with --by orfs; leave it out, or take "
         "--by chunks or virnucpro."),
        ("genes", {"code": 11},
         "--code has no effect with --by genes; leave it out, or take --procedure single."),
        ("chunks", {"window": 2}, "--window 2: this must be at least 3."),
        ("orfs", {"min_residues": 0}, "--min-residues 0: this must be at least 1."),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_before_anything_is_read(by, options, said, tmp_path):
    assert refused(tmp_path, {"a.fna": f">a\n{GENE}\n"}, by, **options) == said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("code", ["", "standard"])
def test_a_code_that_is_no_number_is_refused(code, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["translate", "a.fna", "--output", "out", "--by", "orfs", "--code", code])
    assert ended.value.code == 2
    assert f"argument --code: invalid int value: {code!r}" in capsys.readouterr().err


def test_stops_that_may_be_residues_are_said(tmp_path, caplog):
    path = write(tmp_path / "a.fna", [("a", "ATGTGAGCC" * 5)])
    done = translate([path], tmp_path / "out", "orfs", code=27, min_residues=15)
    assert "in genetic code 27, TGA may be a stop or a residue" in caplog.text
    assert ("MWA" * 5) in [row[6] for row in written(tmp_path / "out")] and done.fragments


# The folder


@pytest.mark.parametrize("name", ["notes.txt", "proteins.faa.gz", ".hidden"])
def test_a_folder_that_holds_something_else_is_left_alone(name, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    said = refused(tmp_path, {"a.fna": f">a\n{GENE}\n"})
    theirs = f"out: there is '{name}', which is of no translation"
    assert said == f"{theirs}; name a new folder, or an empty one."
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_an_output_that_is_a_file_or_holds_the_input_is_refused(tmp_path):
    said = refused(tmp_path, {"a.fna": f">a\n{GENE}\n", "out": ">b\nACGT\n"})
    assert said == "out: this is a file; name a new folder with --output."
    said = refused(tmp_path, {"a.fna": f">a\n{GENE}\n"}, out=".")
    assert said == "a.fna: this input stands in the output folder; name another folder."


def states(place):
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
        for path in [place, *place.iterdir()]
        if path.is_file() and path.name != RECORD
    }


def test_what_is_done_is_left_as_it_is_and_anything_else_is_made_anew(tmp_path):
    path, place = write(tmp_path / "a.fna", [("a", GENE * 9)]), tmp_path / "out"
    translate([path], place, "chunks", window=300)
    before, time = states(place), place.stat().st_mtime_ns
    translate([path], place, "chunks", window=300)
    assert states(place) == before and place.stat().st_mtime_ns == time
    translate([path], place, "chunks")
    assert json.loads((place / "translate.json").read_text())["options"] == {"window": 500}
    translate([path], place, "chunks", window=300)

    def contents(found):
        return {name: content for name, (_, _, content) in found.items()}

    assert contents(states(place)) == contents(before), "the same bytes"
    (place / "proteins.faa.gz").write_bytes(b"damaged")
    translate([path], place, "chunks", window=300)
    (place / "translate.json").write_text("{")
    translate([path], place, "chunks", window=300)
    changed = {"proteins.yours-1.faa.gz": b"damaged", "translate.yours-1.json": b"{"}
    assert contents(states(place)) == contents(before) | changed
    for name in changed:
        (place / name).unlink()
    write(path, [("a", GENE * 8)])
    translate([path], place, "chunks", window=300)
    check({"a": GENE * 8}, place, "chunks", {"window": 300})


def test_no_frame_is_open_through_a_gap(tmp_path):
    """Frames that end at a gap have its letters on no side; fewer N are residues X."""
    one, other = "GCC" * 40, "GAA" * 40
    contigs = {"gap": one + "N" * 900 + other, "few": one + "N" * 9 + other, "all": "N" * 3000}
    path = write(tmp_path / "a.fna", contigs.items())
    translate([path], tmp_path / "out", "orfs")
    rows = written(tmp_path / "out")
    forward = [row for row in rows if row[4:6] == ("+", 1)]
    assert [(*row[1:4], row[6]) for row in forward] == [
        ("gap", 0, 120, "A" * 40),
        ("gap", 1020, 1140, "E" * 40),
        ("few", 0, 249, "A" * 40 + "XXX" + "E" * 40),
    ]
    assert all(row[2:4] in ((0, 120), (1, 118), (2, 119), (1020, 1140), (1021, 1138), (1022, 1139))
               for row in rows if row[1] == "gap")  # fmt: skip
    assert [row["contig"] for row in listed(tmp_path / "out")] == ["all"]


def test_what_an_earlier_way_cut_is_cut_again(tmp_path):
    path, place = write(tmp_path / "a.fna", [("a", GENE * 9)]), tmp_path / "out"
    for by, is_again in (("orfs", True), ("chunks", False)):
        translate([path], place, by)
        summary = place / "translate.json"
        told = json.loads(summary.read_text())
        del told["method"], told["seal"]
        summary.write_text(json.dumps(told))
        translate([path], place, by)
        assert ("method" in json.loads(summary.read_text())) == is_again


def test_after_a_kill_the_same_command_starts_anew(tmp_path, environment):
    path = write(tmp_path / "a.fna", [(f"c{n}", GENE * 40) for n in range(2000)])
    words = ("featuremill", "translate", "a.fna", "--output", "out", "--by", "orfs")
    desk, place = Desk(tmp_path, environment), tmp_path / "out"
    with desk.start(*words, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: list(place.glob(".fragments.parquet.*")))
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert {path.name for path in place.iterdir()} & ALL_FILES == set()
    assert (place / ".translate.lock").exists()
    (place / ".genes.left").mkdir()  # what such a process may leave as well
    said = desk.type(*words)
    assert "fragments of 2,000 contigs" in said.err
    translate([path], tmp_path / "other", "orfs")
    for name in folder.FILES:
        assert (place / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert {path.name for path in place.glob("[!.]*")} == ALL_FILES


def test_who_is_stopped_between_the_names_and_the_summary_starts_anew(tmp_path, monkeypatch):
    path, place = write(tmp_path / "a.fna", [("a", GENE)]), tmp_path / "out"

    def stop(self, path, is_synced):
        raise SystemExit(130)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(folder.Translation, "write", stop)
        translate([path], place, "chunks")
    assert {path.name for path in place.iterdir()} == {*folder.FILES, folder.LOCK, RECORD}
    translate([path], place, "chunks", window=9)
    check({"a": GENE}, place, "chunks", {"window": 9})


def test_two_at_one_folder_are_one_too_many(tmp_path):
    path, place = write(tmp_path / "a.fna", [("a", GENE)]), tmp_path / "out"
    said = rf"^{place}: another featuremill is translating into it; wait for it\.$"
    with folder.locked(place), pytest.raises(UserError, match=said):
        translate([path], place, "chunks")


# Genes


PRODIGAL = f"""\
{SHEBANG}
import sys
if sys.argv[1] == "-v":
    sys.exit("Prodigal V0: pretended")
told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
lines = open(told["-i"]).read().split()
names = [line[1:] for line in lines[::2]]
words = [told["-p"], told.get("-g", ""), sys.argv[-1], *names]
open("told.txt", "a").write(" ".join(words) + "\\n")
if "9" in names:
    sys.exit("no memory")
with open(told["-a"], "w") as out:
    for name, letters in zip(names, lines[1::2]):
        if not letters.startswith("CCCATGGCTTAACC"):
            continue
        out.write(f">{{name}}_1 # 4 # 12 # 1 # ID=1_1;partial=00\\nMA\\n*\\n")
        out.write(f">{{name}}_2 # 2 # 10 # -1 # ID=1_2;partial=10\\nSAL\\n")
        out.write(f">{{name}}_3 # 1 # 9 # -1 # ID=1_3;partial=00\\nSH*\\n")
"""


@pytest.fixture
def pretended_prodigal(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "prodigal"
    program.parent.mkdir()
    program.write_text(PRODIGAL)
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent))


def test_genes_are_those_of_the_program(pretended_prodigal, tmp_path, monkeypatch):
    monkeypatch.setattr("featuremill.steps.translate.genes.BATCH_LETTERS", 220)
    sequences = {"a|x_1": "CCCATGGCTTAACC", "b": "CCCATGGCATGACCC", "c": "CCC", "d": "ACGT"}
    done = translate([write(tmp_path / "a.fna", sequences.items())], tmp_path / "out", "genes")
    assert written(tmp_path / "out") == [
        ("a|x_1_gene_1", "a|x_1", 3, 9, "+", 1, "MA", "ATGGCT"),
        ("a|x_1_gene_2", "a|x_1", 1, 10, "-", 2, "SAL", "AAGCCATGG"),
        ("a|x_1_gene_3", "a|x_1", 3, 9, "-", 3, "SH", "AGCCAT"),
    ]
    assert Path("told.txt").read_text() == "meta  -m 0 1\nmeta  -m 0 1\n"
    assert [row["reason"] for row in listed(tmp_path / "out")] == ["no gene found"] * 3
    assert done.program == "Prodigal V0: pretended"
    assert done.options == {"procedure": "meta"}


def test_a_genome_too_small_to_learn_from_is_refused(pretended_prodigal, tmp_path):
    said = refused(tmp_path, {"a.fna": f">a\n{GENE}\n"}, "genes", procedure="single")
    assert said == (
        "a.fna: with --procedure single, prodigal learns a genome from 20,000 nucleotides and "
        "more, and here are 39; take --procedure meta."
    )
    sequences = {"a": "CCCATGGCTTAACC" * 2000, "b": "CCCC"}
    path = write(tmp_path / "b.fna", sequences.items())
    done = translate([path], tmp_path / "out", "genes", procedure="single", code=4)
    assert Path("told.txt").read_text() == "single 4 -m 0 1\n"
    assert done.options == {"procedure": "single", "code": 4} and done.fragments == 3


def test_a_program_that_fails_or_is_not_there_is_told(pretended_prodigal, tmp_path, monkeypatch):
    path = write(tmp_path / "a.fna", [(f"c{n}", GENE) for n in range(10)])
    with pytest.raises(WorkloadError, match=r"bin/prodigal ended with status 1: no memory"):
        translate([path], tmp_path / "out", "genes")
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused(tmp_path, {"a.fna": f">a\n{GENE}\n"}, "genes")
    assert said.startswith("--by genes: neither prodigal nor pyrodigal is on the PATH")
    assert "pip install pyrodigal" in said


# As a rule


SNAKEFILE = f"""\
configfile: "config.yaml"


module soil:
    snakefile:
        "{ROOT}/Snakefile"
    config:
        config


use rule * from soil as soil_*


rule count:
    default_target: True
    input:
        rules.soil_translate.output.proteins,
    output:
        "count.txt",
    shell:
        "gzip -dc {{input}} | grep -c '>' > {{output}}"
"""


def test_the_rule_runs_in_a_workflow_that_imports_it(tmp_path, environment):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    sequences = {f"c{n}": GENE * (n + 1) for n in range(20)}
    write(tmp_path / "my contigs.fna", sequences.items())
    config = {"run": "my", "inputs": ["my contigs.fna"], "workload": "composition"}
    config |= {"translate": {"by": "chunks", "window": 60}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    ours = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
    desk = Desk(tmp_path, {**environment, "PATH": ours})
    desk.type("snakemake", "--cores", "1")
    folder = tmp_path / "results/my/translate"
    check(sequences, folder, "chunks", {"window": 60})
    num = len(written(folder))
    assert not (tmp_path / "results/my/plan.json").exists()
    assert (tmp_path / "count.txt").read_text() == f"{num}\n"
    assert "Nothing to be done" in desk.type("snakemake", "--cores", "1").text


# Real genomes


KLEBORATE = "usr/share/doc/kleborate/examples/data"
BOWTIE2 = "usr/share/doc/bowtie2/examples"


def sequences_in(text):
    found = {}
    for entry in text.split(">")[1:]:
        head, *lines = entry.splitlines()
        found[head.split()[0]] = "".join(lines).upper()
    return found


@pytest.fixture(scope="module")
def phage(tmp_path_factory):
    """Return the files of the phage λ and of 10,000 reads of it, with their sequences."""
    place = debian.unpacked("bowtie2-examples", tmp_path_factory.mktemp("λ")) / BOWTIE2
    genome, reads = place / "reference/lambda_virus.fa.gz", place / "reads/reads_1.fq.gz"
    lines = gzip.decompress(reads.read_bytes()).decode().splitlines()
    of_reads = {h[1:].split()[0]: s for h, s in zip(lines[::4], lines[1::4], strict=True)}
    assert len(of_reads) == 10_000
    of_genome = sequences_in(gzip.decompress(genome.read_bytes()).decode())
    return [(genome, of_genome), (reads, of_reads)]


@pytest.fixture(scope="module")
def klebsiella(tmp_path_factory):
    """Return the files of four genomes, and all sequences in them."""
    place = debian.unpacked("kleborate-examples", tmp_path_factory.mktemp("k")) / KLEBORATE
    files = sorted(place.glob("*.fna.xz"))
    assert len(files) == 4
    found = {}
    for file in files:
        found |= sequences_in(lzma.decompress(file.read_bytes()).decode())
    return files, found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("by", "options"),
    [
        ("chunks", {"window": 500}),
        ("chunks", {"window": 300}),
        ("orfs", {}),
        ("orfs", {"code": 11, "min_residues": 60, "orf": "between-stops"}),
    ],
)
def test_real_genomes_and_reads_give_the_fragments_made_by_hand(
    by, options, phage, klebsiella, tmp_path
):
    for number, (path, sequences) in enumerate(phage):
        translate([path], tmp_path / str(number), by, **options)
        check(sequences, tmp_path / str(number), by, options)
    files, sequences = klebsiella
    translate(files, tmp_path / "k", by, **options)
    check(sequences, tmp_path / "k", by, options)


@pytest.mark.slow
def test_the_genes_of_a_phage_are_those_that_prodigal_writes(phage, tmp_path):
    """Its own coordinates, proteins and nucleotides, both ways; the stop codon is left out here."""
    debian.install("prodigal")
    ((_, sequences), _) = phage
    (sequence,) = sequences.values()
    pieces = {"whole": sequence, "cut": sequence[20_000:23_500], "none": "ACGT" * 9}
    path = write(tmp_path / "in.fna", pieces.items())
    for procedure in ("meta", "single"):
        out = tmp_path / procedure
        command = ["prodigal", "-q", "-m", "-i", path, "-p", procedure]
        for kind in "ado":
            command += [f"-{kind}", tmp_path / f"{procedure}.{kind}"]
        subprocess.run(command, check=True)
        proteins = sequences_in((tmp_path / f"{procedure}.a").read_text())
        coding = sequences_in((tmp_path / f"{procedure}.d").read_text())
        translate([path], out, "genes", procedure=procedure)
        rows = written(out)
        assert [row[0] for row in rows] == [n.replace("_", "_gene_") for n in proteins]
        assert [row[6] for row in rows] == [p.rstrip("*") for p in proteins.values()]
        for row, letters in zip(rows, coding.values(), strict=True):
            assert row[7] == letters[: 3 * len(row[6])]
        for _, contig, start, end, strand, frame, _, letters in rows:
            forward = Seq(pieces[contig][start:end])
            assert letters == str(forward if strand == "+" else forward.reverse_complement())
            left = start if strand == "+" else len(pieces[contig]) - end
            assert frame == left % 3 + 1
        assert {row[1] for row in rows} == {"whole", "cut"} and len(rows) > 50


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("by", ["chunks", "orfs"])
def test_memory_does_not_grow_with_the_contigs(by, tmp_path, environment):
    """A contig of 250 Mb among others, in 500 MB."""
    program = """
import sys
from pathlib import Path
from featuremill.__main__ import main
status = main(sys.argv[1:])
about = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(about["VmHWM"].split()[0]) // 1000)
sys.exit(status)
"""
    path, draw = tmp_path / "in.fna", np.random.default_rng(0)
    with path.open("wb") as out:
        for number, size in enumerate([1000, 250_000_000, 300, 20_000_000]):
            out.write(b">c%d\n" % number)
            for begin in range(0, size, 6_000_000):
                num_letters = min(6_000_000, size - begin)
                letters = np.frombuffer(b"ACGT", np.uint8)[draw.integers(0, 4, num_letters)]
                lines = (letters[at : at + 80].tobytes() for at in range(0, num_letters, 80))
                out.writelines(line + b"\n" for line in lines)
    words = ["translate", path, "--output", tmp_path / "out", "--by", by]
    done = python("-c", program, *words, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 500
