"""Structures for SaProt out of Foldseek's files, and pLDDT, of the workloads encoder and scores."""

import gzip
import json
from functools import partial

import numpy as np
import pytest
from bench.elders import saprot as save_saprot
from Bio.PDB import MMCIFIO, PDBIO
from Bio.PDB.StructureBuilder import StructureBuilder
from Bio.SeqUtils import seq3

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload import weights
from featuremill.workloads import encoder, scores
from featuremill.workloads.encoder import structure_files
from featuremill.workloads.scores import variants

RESIDUES = "MKTAYIAKQR"
LETTERS = "DPVQACDPVQ"
PLDDT = [95.0, 69.99, 70.0, 30.0, 88.0, 91.0, 12.5, 99.0, 70.01, 50.0]
MASKED = b"d#v#ac#pv#"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saprot") / "saprot"
    folder.mkdir()
    save_saprot(folder)
    return str(folder)


def descriptor(path, rows):
    """Write what Foldseek does: name, residues, letters and ten numbers a residue."""
    with path.open("w") as file:
        for name, residues, letters in rows:
            numbers = ",".join(f"{n / 10:.1f}" for n in range(10 * len(residues)))
            file.write(f"{name}\t{residues}\t{letters}\t{numbers}\n")
    return path


def fasta(path, records):
    path.write_text("".join(f">{id}\n{letters}\n" for id, letters in records.items()))
    return path


def structure(path, chains, title="", residues=RESIDUES):
    """Write a structure's file with Biopython; each chain has the B-factors of its residues, which
    are spread over two atoms."""
    builder = StructureBuilder()
    builder.init_structure("s")
    builder.init_model(0)
    for chain, numbers in chains.items():
        builder.init_chain(chain)
        builder.init_seg(" ")
        for place, (residue, number) in enumerate(zip(residues, numbers, strict=True), 1):
            builder.init_residue(seq3(residue).upper(), " ", place, " ")
            for atom, off in (("N", -5), ("CA", 5)):
                at = np.array([place, off, 0.0], "f")
                builder.init_atom(atom, at, number + off, 1.0, " ", f" {atom} ", element=atom[0])
    writer = MMCIFIO() if path.suffix == ".cif" else PDBIO()
    writer.set_structure(builder.get_structure())
    writer.save(str(path))
    head = f"# {title}\n" if path.suffix == ".cif" else f"TITLE     {title}\n"
    path.write_text(path.read_text().replace("data_", f"{head}data_", 1)
                    if path.suffix == ".cif" else head + path.read_text())  # fmt: skip
    return path


def of_encoder(model, inputs, **options):
    given = encoder.Options(model=model, alphabet="proteins", **options)
    for record in encoder.records([inputs], given):
        yield record.payload.partition(b"\n")[2], record


def of_scores(model, inputs, **options):
    given = scores.Options(model=model, **options)
    for record in scores.records([inputs], given):
        assert record.reason or record.length == len(variants.parts_of(record.payload)[0])
        yield variants.structure_of(record.payload), record


@pytest.fixture(params=["encoder", "scores"])
def read(request, model):
    """Return what yields the structure of each record, and the record, by either workload."""
    return partial({"encoder": of_encoder, "scores": of_scores}[request.param], model)


def test_a_descriptor_is_matched_by_file_by_chain_and_by_accession(read, tmp_path):
    rows = [
        ("AF-P12345-F1-model_v4.cif", RESIDUES, LETTERS),
        ("8ac8.cif_A some title", RESIDUES, LETTERS[::-1]),
        ("8ac8.cif_B", "MKTAY", "DDDDD"),
        ("1abc_A", RESIDUES, "V" * 10),
        ("own.pdb.gz_A", "MK", "DD"),
    ]
    path = descriptor(tmp_path / "d.tsv", rows)
    ids = {
        "sp|P12345|X_HUMAN": RESIDUES, "8ac8_A": RESIDUES, "8ac8.cif_B": "MKTAY",
        "8ac8": RESIDUES, "1abc": RESIDUES, "own": "MK",
    }  # fmt: skip
    found = list(read(fasta(tmp_path / "in.fa", ids), structures=str(path)))
    expected = [LETTERS, LETTERS[::-1], "DDDDD", "", "V" * 10, "DD"]
    assert [letters.decode().upper() for letters, _ in found] == expected
    assert found[3][1].note == "no structure of this record, # for each residue"
    assert not any(record.reason for _, record in found)


def test_residues_that_differ_are_refused_with_both(read, tmp_path):
    rows = [("a.pdb", "MKTAYIAKQX", LETTERS), ("b.pdb", "MRTAYIAKQR", LETTERS)]
    path = descriptor(tmp_path / "d.tsv", [*rows, ("c.pdb", "MKT", "DDD")])
    ids = dict.fromkeys("abc", RESIDUES)
    one, other, short = read(fasta(tmp_path / "in.fa", ids), structures=str(path))
    assert one[0].decode().upper() == LETTERS  # X is any residue
    assert other[1].reason == (
        "its structure has other residues: residue 2 is K in the inputs and R in the structure"
    )
    assert other[1].payload == b""
    assert short[1].reason == "its structure has another length: 3 letters for 10 residues"


def test_fasta_of_foldseek_is_read_by_the_names_of_its_files(read, tmp_path):
    text = {"AF-P12345-F1-model_v4.cif": LETTERS, "8ac8.cif_A": LETTERS[::-1]}
    path = fasta(tmp_path / "ss.fa", text)
    inputs = fasta(tmp_path / "in.fa", {"P12345": RESIDUES, "8ac8_A": RESIDUES})
    found = [letters.decode().upper() for letters, _ in read(inputs, structures=str(path))]
    assert found == [LETTERS, LETTERS[::-1]]


@pytest.mark.parametrize("suffix", [".pdb", ".cif", ".pdb.gz"])
@pytest.mark.parametrize("kind", ["descriptor", "fasta"])
def test_where_plddt_is_low_the_structure_is_not_used(read, tmp_path, suffix, kind):
    folder = tmp_path / "files"
    folder.mkdir()
    bare = suffix.removesuffix(".gz")
    for name, title in (("AF-P12345-F1-model_v4", "AlphaFold Monomer v2"), ("2xyz", "X-ray")):
        chains = {"A": PLDDT, "B": [10.0] * 10} if name == "2xyz" else {"A": PLDDT}
        made = structure(folder / f"{name}{bare}", chains, title)
        if suffix != bare:
            with gzip.open(folder / f"{name}{suffix}", "wb") as file:
                file.write(made.read_bytes())
            made.unlink()
    names = (f"AF-P12345-F1-model_v4{suffix}_A", f"2xyz{suffix}_A", f"2xyz{suffix}_B")
    if kind == "descriptor":
        path = descriptor(tmp_path / "d.tsv", [(name, RESIDUES, LETTERS) for name in names])
    else:
        path = fasta(tmp_path / "ss.fa", dict.fromkeys(names, LETTERS))
    inputs = fasta(tmp_path / "in.fa", dict.fromkeys(("P12345", "2xyz_A", "2xyz_B"), RESIDUES))
    given = {"structures": str(path), "plddt_folder": str(folder)}

    def letters(**more):
        return [each for each, _ in read(inputs, **given, **more)]

    plain = LETTERS.lower().encode()
    assert letters() == [MASKED, plain, plain]  # as the authors' auto
    assert letters(plddt_mask="always") == [MASKED, MASKED, b"#" * 10]
    assert letters(plddt_mask="never") == [plain] * 3
    assert letters(plddt_threshold=0) == [plain] * 3


def test_plddt_comes_from_a_column(read, tmp_path):
    table = tmp_path / "s.csv"
    rows = [f'a,{LETTERS},"{" ".join(map(str, PLDDT))}"', f'b,{LETTERS},"{json.dumps(PLDDT)}"']
    rows += [f'c,{LETTERS},"1,2"', f"d,{LETTERS},high"]
    table.write_text("\n".join(["id,three_di,plddt", *rows, ""]))
    options = {"structure_column": "three_di", "plddt_column": "plddt", "structures": str(table)}
    inputs = fasta(tmp_path / "in.fa", dict.fromkeys("abcd", RESIDUES))
    one, two, short, words = read(inputs, **options)
    assert one[0] == two[0] == MASKED
    assert short[1].reason == "its pLDDT cannot be used: 2 numbers for 10 letters of structure"
    assert words[1].reason == "its pLDDT cannot be used: 'high' are no numbers"


def test_plddt_that_would_mask_nothing_or_everything_by_mistake_is_refused(read, tmp_path):
    table = tmp_path / "s.csv"
    missing, small = ["90"] * 9 + ["nan"], ["0.9"] * 10
    rows = [f"{id},{LETTERS},{' '.join(x)}" for id, x in (("a", missing), ("b", small))]
    table.write_text("\n".join(["id,three_di,plddt", *rows, ""]))
    options = {"structure_column": "three_di", "plddt_column": "plddt", "structures": str(table)}
    inputs = fasta(tmp_path / "in.fa", dict.fromkeys("ab", RESIDUES))
    told = [record.reason.partition(": ")[2] for _, record in read(inputs, **options)]
    assert told == [
        "some of its numbers are missing or infinite",
        "its numbers are up to 1, not up to 100",
    ]
    of_one = list(read(inputs, plddt_threshold=0.7, **options))[1]
    assert of_one[0].decode().upper() == LETTERS
    table.write_text("\n".join(["id,three_di,plddt", rows[0], rows[0].replace("90", "80"), ""]))
    with pytest.raises(UserError, match=r"s.csv:3: 'a' has two pLDDT; drop one row"):
        list(read(inputs, **options))


def test_a_line_of_a_descriptor_with_two_lengths_is_refused(read, tmp_path):
    path = descriptor(tmp_path / "d.tsv", [("a.pdb", RESIDUES, LETTERS)])
    with path.open("a") as file:
        file.write(f"b.pdb\t{RESIDUES}A\t{LETTERS}\n")
    inputs = fasta(tmp_path / "in.fa", dict.fromkeys("ab", RESIDUES))
    with pytest.raises(
        UserError, match=r"d.tsv:2: 'b.pdb' has 11 residues and 10 letters of struct"
    ):
        list(read(inputs, structures=str(path)))


def test_why_plddt_of_a_file_cannot_be_used(read, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    structure(folder / "a.pdb", {"A": PLDDT, "B": PLDDT}, "AlphaFold")
    structure(folder / "b.pdb", {"A": PLDDT[:9]}, "AlphaFold", RESIDUES[:9])
    names = ["a.pdb", "a.pdb_C", "b.pdb_A", "c.pdb_A"]
    path = descriptor(tmp_path / "d.tsv", [(name, RESIDUES, LETTERS) for name in names])
    ids = dict.fromkeys(["a.pdb", "a_C", "b", "c"], RESIDUES)
    given = {"structures": str(path), "plddt_folder": str(folder)}
    found = [record.reason for _, record in read(fasta(tmp_path / "in.fa", ids), **given)]
    assert found == [
        "its pLDDT cannot be used: a.pdb has the chains A, B, and not one alone",
        "its pLDDT cannot be used: a.pdb has the chains A, B, and not C",
        "its pLDDT cannot be used: 9 numbers for 10 letters of structure",
        f"its pLDDT cannot be used: there is no c.pdb in {folder}",
    ]


def test_a_table_with_names_of_columns_is_no_descriptor(tmp_path):
    for text in ("id\tsequence\tstructure\n", "ID\tAA\tSS\nx\tMK\tDD\n", "a\tMKT\tDDDD\n", "\n"):
        (tmp_path / "t.tsv").write_text(text)
        assert not structure_files.is_descriptor(tmp_path / "t.tsv")
    coordinates = ",".join(["1.5"] * 12)
    for text in (f"a\t{RESIDUES}\t{LETTERS}\n", f"a\tMKTA\tDDDD\t{coordinates}\n"):
        (tmp_path / "t.tsv").write_text(text)  # the first as cut -f 1-3 leaves it
        assert structure_files.is_descriptor(tmp_path / "t.tsv")
    with gzip.open(tmp_path / "t.tsv.gz", "wt") as file:
        file.write(text)
    assert structure_files.is_descriptor(tmp_path / "t.tsv.gz")
    descriptor(tmp_path / "t.tsv", [("a.pdb", "MKTA", "DDDD")])
    assert structure_files.is_descriptor(tmp_path / "t.tsv")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("8ac8.cif_A", ("8ac8", ".cif", "A")),
        ("8ac8-assembly1.cif.gz_A-2", ("8ac8-assembly1", ".cif.gz", "A-2")),
        ("AF-P12345-F1-model_v4.pdb", ("AF-P12345-F1-model_v4", ".pdb", "")),
        ("my_model_B", ("my_model", "", "B")),
        ("P12345", ("P12345", "", "")),
    ],
)
def test_a_name_of_foldseek_is_taken_apart(name, parts):
    assert structure_files.named(name) == parts


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"plddt_folder": "x"}, "plddt_folder has no effect with no structures"),
        ({"structures": "x", "plddt_mask": "never"}, "plddt_mask has no effect with no plddt_"),
        (
            {"structures": "x", "plddt_folder": "x", "plddt_column": "y"},
            "give plddt_folder or plddt_column, not both",
        ),
    ],
)
def test_options_of_plddt_without_effect_are_refused(options, part):
    for workload in (partial(encoder.Options, model="m", alphabet="proteins"), scores.Options):
        with pytest.raises(ValueError, match=part):
            workload(**options)


def test_scores_take_structures_in_turns_and_beside_a_table_of_variants(model, tmp_path):
    combined = "".join(a + b for a, b in zip(RESIDUES, LETTERS.lower(), strict=True))
    inputs = fasta(tmp_path / "in.fa", {"one": combined, "two": RESIDUES})
    table = tmp_path / "v.csv"
    table.write_text("id,variant\none,K2A\ntwo,K2A\ntwo,M1V:R10A\n")
    options = scores.Options(model=model, variants="listed", variants_file=str(table))
    one, two = scores.records([inputs], options)
    assert one.payload == f"{RESIDUES}\t{LETTERS.lower()}\nK2A".encode() and one.length == 10
    assert two.payload == f"{RESIDUES}\nK2A M1V:R10A".encode()
    assert two.note == "no structure of this record, # for each residue"
    long = tmp_path / "long.csv"
    long.write_text(f"id,sequence,variant\none,{combined},K2A\none,{combined},M1V\nx,MKT,K2A\n")
    path = fasta(tmp_path / "3di.fa", {"x": "dpv", "one": LETTERS})
    options = scores.Options(model=model, variants="listed", structures=str(path))
    one, x = scores.records([long], options)
    assert one.payload == f"{RESIDUES}\t{LETTERS.lower()}\nK2A M1V".encode()
    assert x.payload == b"MKT\tdpv\nK2A"


def test_settled_options_read_structures_as_those_of_the_config_do(model, tmp_path):
    path = descriptor(tmp_path / "d.tsv", [("one.pdb", RESIDUES, LETTERS)])
    inputs = fasta(tmp_path / "in.fa", {"one": RESIDUES})
    options = scores.Options(model=model, structures=str(path))
    found = weights.weights_of(weights.convert(model, tmp_path / "cache", "scores"))
    settled = scores.resolve(options, cpu(), found)
    assert settled.model == found.name != model
    assert list(scores.records([inputs], settled)) == list(scores.records([inputs], options))


def test_structures_of_a_network_that_reads_none_are_refused(tmp_path):
    path = fasta(tmp_path / "3di.fa", {"one": "dpv"})
    inputs = fasta(tmp_path / "in.fa", {"one": "MKV"})
    with pytest.raises(UserError, match=r"options.structures: this network reads no letters of st"):
        list(scores.records([inputs], scores.Options(structures=str(path))))
