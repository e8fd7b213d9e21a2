"""Contigs of several elements for gLM2: text and GenBank become tokens, and each element has
vectors, against the published arithmetic and an own account of the authors' preprocessing."""

import functools
import hashlib
import itertools
import random
import re
from pathlib import Path

import encoder_models
import numpy as np
import pandas as pd
import published_arithmetic as published
import pytest
import torch
import yaml
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqFeature import CompoundLocation, SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord
from encoder_models import KINDS, rows_of
from esm2_models import relative_l2
from programs import Desk
from safetensors.torch import load_file

from featuremill.base.errors import UserError
from featuremill.inputs import letters as payloads_of
from featuremill.workload import batches
from featuremill.workloads import encoder

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
FP32_L2 = 1e-5
WORDS = {letter: 4 + n for n, letter in enumerate("LAGVSERTIDPKQNFYMHWCXBUZOatcg")}
WORDS |= {"<+>": 33, "<->": 34}
RESIDUES, BASES = "ACDEFGHIKLMNPQRSTVWYXBUZO", "acgt"
CARD = (
    "<+>MALTKVEKRNRIKRRVRGKISGTQASPRLSVYKSNK<+>aatttaaggaa"
    "<->MLGIDNIERVKPGGLELVDRLVAVNRVTKVTKGGRAFGFSAIVVVGNED"
)
"""The example of the model card."""


@pytest.fixture(scope="module")
def glm2(tmp_path_factory):
    return published.write(tmp_path_factory.mktemp("contigs") / "glm2", "glm2")


options_of = functools.partial(encoder_models.asked, alphabet="contigs")
loaded = functools.partial(encoder_models.loaded, alphabet="contigs")


def fasta(path, contigs, width=60):
    """Write contigs as Biopython does: in lines of 60, wherever these end."""
    records = [SeqRecord(Seq(text), id, description="") for id, text in contigs.items()]
    with path.open("w") as file:
        SeqIO.FastaIO.FastaWriter(file, wrap=width).write_file(records)
    return path


@pytest.fixture
def read(glm2, tmp_path):
    """Return a function that reads contigs, or a file of them."""

    def read(contigs, width=60, **options):
        is_file = isinstance(contigs, Path)
        path = contigs if is_file else fasta(tmp_path / "in.fa", contigs, width)
        return list(encoder.records([path], options_of(glm2, **options)[0]))

    return read


def drawn(seed, count=6):
    """Return random contigs: elements of one letter to dozens, in any order and on any strand."""
    random_numbers = random.Random(seed)
    contigs = {"card": CARD, "one": "<->M", "small": "<+>a", "odd": "<+>MKUZOBX<+>acgnryt<->W"}
    for number in range(count):
        text = ""
        for _ in range(random_numbers.randint(1, 9)):
            letters = random_numbers.choice((RESIDUES, BASES))
            length = random_numbers.choice((1, 2, random_numbers.randint(3, 40)))
            text += random_numbers.choice(("<+>", "<->"))
            text += "".join(random_numbers.choices(letters, k=length))
        contigs[f"c{number}"] = text
    return contigs


def tokens_of(text):
    return re.findall("<[+-]>|.", text)


def expected_of(tensors, contigs):
    """Yield the id of each record, its hidden states, and which tokens are its own, and all that
    are its own with those in front of them."""
    for id, text in contigs.items():
        tokens = tokens_of(text)
        states = published.hidden_states("glm2", tensors, [WORDS.get(each, 3) for each in tokens])
        states = [state.float() for state in states]
        is_strand = np.array([len(token) > 1 for token in tokens])
        yield id, states, ~is_strand, np.ones(len(tokens), bool)
        for number in range(1, is_strand.sum() + 1):
            is_element = is_strand.cumsum() == number
            yield f"{id}/{number}", states, is_element & ~is_strand, is_element


@pytest.mark.parametrize("width", [60, 7])
def test_the_whole_and_each_element_are_those_of_the_published_arithmetic(glm2, tmp_path, width):
    contigs = drawn(width)
    layers = range(published.LAYERS + 1)
    more = {"pool": ["mean", "mean_all", "max", "std"], "per_residue": True}
    more |= {"layers": list(layers), "output_dtype": "float32"}
    model = loaded(glm2, parts=True, **more)
    records = list(encoder.records([fasta(tmp_path / "in.fa", contigs, width)], model.options))
    payloads = [record.payload for record in records]
    together = rows_of(model, payloads, 256)
    tensors, worst = load_file(glm2 / "model.safetensors"), 0.0
    expected = list(expected_of(tensors, contigs))
    assert [record.id for record in records] == [id for id, *_ in expected]
    assert len(set(payloads)) == len(payloads)
    for record, row, (_, states, is_own, is_all) in zip(records, together, expected, strict=True):
        assert not record.reason
        assert encoder.num_vectors(record.payload, model.options) == is_own.sum()
        (alone,) = rows_of(model, [record.payload], 256)
        for layer in layers:
            state, all = states[layer][is_own], states[layer][is_all]
            vectors = {"mean": state.mean(0), "mean_all": all.mean(0), "max": state.amax(0)}
            vectors |= {"std": state.std(0, correction=0), "residues": state}
            for name, vector in vectors.items():
                for found in (row, alone):
                    ours = torch.tensor(found[f"{name}_layer_{layer}"])
                    if not vector.any():  # the deviation of one letter, or of equal ones
                        assert float(ours.norm()) <= FP32_L2
                    elif name == "std":  # small where letters are nearly alike
                        assert relative_l2(ours, vector) <= 10 * FP32_L2
                    else:
                        worst = max(worst, float(relative_l2(ours, vector)))
    print(f"largest relative L2 {worst:.1e}")
    assert worst <= FP32_L2


@pytest.mark.parametrize(
    ("letters", "strand", "alphabet"),
    [
        ("MKTAYIAKQR", "<+>", "proteins"),
        ("MKTA", "<->", "proteins"),
        ("ACGT", "<+>", "nucleotides"),
    ],
)
def test_a_contig_of_one_element_has_the_numbers_of_the_element(
    glm2, tmp_path, letters, strand, alphabet
):
    pools = {"pool": ["mean", "mean_all", "max"], "per_residue": True}
    text = letters if alphabet == "proteins" else letters.lower()
    found = []
    for more, written in (
        ({"alphabet": "contigs"}, strand + text),
        ({"alphabet": alphabet, "prefix": strand}, letters),
    ):
        model = loaded(glm2, **pools, **more)
        path = fasta(tmp_path / "in.fa", {"one": written})
        (record,) = encoder.records([path], model.options)
        found += rows_of(model, [record.payload], 64)
    assert found[0] == found[1]


def test_a_sequence_of_parts_is_computed_once_in_a_batch(glm2, tmp_path, monkeypatch):
    model = loaded(glm2, parts=True)
    records = list(encoder.records([fasta(tmp_path / "in.fa", {"card": CARD})], model.options))
    num_tokens = len(tokens_of(CARD))
    batch = encoder.prepare(model, [record.payload for record in records], 512)
    assert [group.tokens_BT.shape for group in batch.groups] == [(1, num_tokens)]
    costs = [encoder.cost(record.payload, model.options) for record in records]
    assert len(records) == 4 and num_tokens <= sum(costs) < num_tokens + 2 * len(costs)


@pytest.mark.parametrize(("budget", "most"), [(16896, 2.0), (4096, 5.0)])
def test_contigs_of_a_shard_are_computed_about_twice_in_batches_of_a_gpu(budget, most):
    """And not once for each of their elements, whose payloads stand in the order of digests."""
    random_numbers = random.Random(1)
    more = {"parts": True, "max_residues": 4096, "letters_per_token": 1}
    options = encoder.Options(model="m", alphabet="contigs", **more)
    payloads, num_tokens = [], 0
    for _ in range(300):
        letters = b""
        while True:
            kind, shortest, longest = random_numbers.choice(((RESIDUES, 80, 600), (BASES, 1, 150)))
            length = random_numbers.randint(shortest, longest)
            if len(letters) + length >= 4096:
                break
            letters += b"+" + "".join(random_numbers.choices(kind, k=length)).encode()
        ends = [*(at for at, letter in enumerate(letters) if letter == ord("+")), len(letters)]
        regions = [(1, len(letters)), *((a + 2, b) for a, b in itertools.pairwise(ends))]
        payloads += [payloads_of.Parts(letters, region=region).payload for region in regions]
        num_tokens += len(letters)
    payloads.sort(key=lambda payload: hashlib.sha256(payload).digest())
    costs = [encoder.cost(payload, options) for payload in payloads]
    num_computed = sum(
        sum(map(len, {payloads[place].split(b"\n")[0] for place in batch}))
        for batch in batches.make_batches(costs, budget)
    )
    print(f"batches of {budget:,}: {num_computed / num_tokens:.1f} times")
    assert num_computed <= most * num_tokens < sum(len(each) for each in payloads)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MALTK<+>acgt", "an element without its strand: 'M' at letter 1"),
        ("", "no element of a contig"),
        ("<+>MALTK<-><+>acgt", "an empty element: element 2"),
        ("<+>MALTK<->", "an empty element: element 2"),
        ("<+dnaA>**<+>acgt", "an empty element: element 1 dnaA"),
        ("<+>MALTK<+>acgtMK", "not an element of a contig: 'a' at letter 1 of element 2"),
        ("<+>MAltk", "not an element of a contig: 'l' at letter 3 of element 1"),
        ("<+>maltk", "not an element of a contig: 'l' at letter 3 of element 1"),
        ("<+>MALTK<+>acg-t", "not an element of a contig: '-' at letter 4 of element 2"),
        ("<+>MA+TK", "not an element of a contig: '+' at letter 3 of element 1"),
        ("<+>MA<mask>TK", "not an element of a contig: '<mask>' at letter 3 of element 1"),
    ],
)
def test_what_is_no_contig_is_refused_with_its_place(write, read, text, reason):
    contigs = {"good": CARD, "bad": text, "last": "<+>MK"}
    rows = {"id": "sequence", **contigs}.items()
    table = write("in.csv", "".join(f"{id},{each}\n" for id, each in rows))
    ids = ["good", "good/1", "good/2", "good/3", "bad", "last", "last/1"]
    found = read(table, parts=True)
    assert [record.id for record in found] == ids
    assert [record.reason for record in found] == [""] * 4 + [reason, "", ""]
    if text:  # the same of FASTA
        assert read(contigs)[1].reason == reason


def test_records_that_run_into_one_another_end_the_command(write, read):
    with pytest.raises(UserError, match="two records have run into one"):
        read(write("in.fa", ">one\n<+>MALTK>two\n<->MKK\n"))


@pytest.mark.parametrize("second", ["two a contig", "MKWLONGERTHANTHELINE", "b_1"])
def test_a_record_that_ends_in_half_a_strand_takes_no_other_with_it(write, read, second):
    found = read(write("in.fa", f">one\n<+>MALTK<+\n>{second}\n<->MKK\n"))
    assert [record.id for record in found] == ["one", second.split()[0]]
    assert found[0].reason == "not an element of a contig: '<' at letter 6 of element 1"
    assert found[1].payload == b"-MKK"


def test_what_was_read_otherwise_is_noted(read):
    notes = {
        "<+>MAL*TJ*<+>acgu": "* dropped; J read as X; U read as T",
        "<->acgt<+>M": "bases on <->, which the training had on <+> alone",
        "<+>acnngt": "letters that are not in the model's vocabulary",
        "<+>" + "ACGT" * 10: "looks like nucleotides",
    }
    found = read({f"c{number}": text for number, text in enumerate(notes)})
    assert [record.note for record in found] == [*notes.values()]
    assert (found[0].payload, found[0].length) == (b"+MALTX+acgt", 11)


def test_elements_have_the_names_that_the_text_gives_them(read):
    text = "<+dnaA>MKT<+>acgt<-gyr|B>MLG<+2>M<+twice>MK<-twice>ML"
    found = read({"chr": text}, width=4, parts=True)
    names = ["dnaA", "2", "gyr|B", "4", "5", "6"]
    assert [record.id for record in found] == ["chr", *(f"chr/{name}" for name in names)]
    assert [record.length for record in found] == [21, 3, 4, 3, 1, 2, 2]
    assert found[0].payload.startswith(b"+MKT+acgt-MLG+M+MK-ML\n")


def test_names_of_elements_that_are_no_utf_8_are_read_as_latin_1(read, tmp_path):
    path = tmp_path / "in.fa"
    path.write_bytes(">chr\n<+gène>MKT\n<+2>acgt\n".encode("latin-1"))
    whole, first, _ = read(path, parts=True)
    assert (first.id, whole.note) == ("chr/gène", "header read as Latin-1")


# Longer than the network sees


LONG = "<+>MKTA<+>acg<->MLG<+>acgtacgtacgtacgtacgt<+>MK"
"""Of 5 + 4 + 4 + 21 + 3 tokens."""


def test_a_long_contig_is_cut_between_elements_and_the_rest_is_refused(read):
    more = {"max_residues": 12, "parts": True}
    whole, *parts = read({"chr": LONG}, **more)
    assert whole.payload.split(b"\n")[0] == b"+MKTA+acg" and whole.length == 9
    assert whole.note == "longer than 12 tokens, elements behind them left out"
    assert [part.id for part in parts] == [f"chr/{number}" for number in range(1, 6)]
    reason = "too long: an element behind the first 12 tokens"
    assert [part.reason for part in parts] == ["", "", reason, reason, reason]
    for most, payload in ((12, b"+MKTA+acg"), (13, b"+MKTA+acg-MLG")):
        (alone,) = read({"chr": LONG}, max_residues=most)
        assert alone.payload == payload


def test_split_makes_windows_of_whole_elements(glm2, read):
    more = {"max_residues": 13, "long": "split", "parts": True}
    found = read({"chr": LONG, "short": "<+>MK"}, **more)
    told = {record.id: (record.payload.split(b"\n")[0], record.note) for record in found}
    cut = "longer than 13 tokens, cut between elements"
    long = f"{cut}; an element longer than 13 tokens, truncated"
    assert told == {
        "chr/window1": (b"+MKTA+acg-MLG", cut),
        "chr/1": (b"+MKTA+acg-MLG", cut),
        "chr/2": (b"+MKTA+acg-MLG", cut),
        "chr/3": (b"+MKTA+acg-MLG", cut),
        "chr/window2": (b"+acgtacgtacgt", long),
        "chr/4": (b"+acgtacgtacgt", long),
        "chr/window3": (b"+MK", cut),
        "chr/5": (b"+MK", cut),
        "short": (b"+MK", ""),
        "short/1": (b"+MK", ""),
    }
    model = loaded(glm2, **more)
    assert len(rows_of(model, [record.payload for record in found], 512)) == len(found)
    (one,) = read({"chr": "<+>" + "M" * 99}, **more | {"parts": False})
    assert (one.id, len(one.payload)) == ("chr", 13)


def test_as_many_tokens_as_in_the_training_are_taken_and_refuse_refuses(glm2, read):
    assert options_of(glm2)[0].max_residues == 4096
    (record,) = read({"chr": LONG}, max_residues=12, long="refuse")
    assert record.reason == "too long: 37 residues, at most 12" and not record.payload
    (whole,) = read({"chr": LONG}, long="full")
    assert whole.length == 37


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"alphabet": "proteins", "long": "split"}, "long: split is of contigs"),
        ({"alphabet": "proteins", "parts": True}, "parts has no effect with records of one part"),
        ({"prefix": "<+>"}, "prefix has no effect with alphabet: contigs"),
        ({"regions": "r.tsv"}, "regions are of single sequences"),
        ({"max_residues": 1, "parts": True}, "an element of a contig has 2 tokens or more"),
        ({"parts": True, "pool": ["cls"]}, "cls is of whole sequences"),
        ({"pool": ["cls"]}, "has no special token at the beginning"),
        ({"paired": True}, "paired: true is of chains"),
    ],
)
def test_options_that_do_not_go_together_are_refused(glm2, given, part):
    with pytest.raises((ValueError, UserError), match=part):
        options_of(glm2, **given)


def test_other_networks_read_no_contigs(tmp_path):
    folder = encoder_models.write(tmp_path / "protbert", "protbert")
    assert KINDS["protbert"].model == "Bert"
    with pytest.raises(UserError, match="reads no contigs; give a gLM2"):
        options_of(folder)


# GenBank


def cds(location, translation, **names):
    named = {key: [value] for key, value in names.items()}
    more = {"translation": [translation]} if translation else {"pseudo": [""]}
    return SeqFeature(location, type="CDS", qualifiers=named | more)


def entry_of(id, bases, features, topology="linear"):
    more = {"annotations": {"molecule_type": "DNA", "topology": topology}, "features": features}
    return SeqRecord(Seq(bases), id, id[:10], "a contig", **more)


def genbank(path, *entries):
    SeqIO.write(entries, path, "genbank")
    return path


def by_the_authors(bases, genes):
    """Return the text that the authors' scripts make of genes (strand, first and last base from 1,
    protein): intergenic bases are those from the first gene to the last that are in none."""
    covered = {place for _, first, last, _ in genes for place in range(first, last + 1)}
    elements = [(first, f"<{strand}>{protein}") for strand, first, last, protein in genes]
    place, end = min(covered), max(covered)
    while place <= end:
        if place in covered:
            place += 1
            continue
        start = place
        while place not in covered:
            place += 1
        elements.append((start, f"<+>{bases[start - 1 : place - 1].lower()}"))
    return "".join(text for _, text in sorted(elements, key=lambda element: element[0]))


def test_an_entry_becomes_what_the_authors_scripts_make_of_it(read, tmp_path):
    random_numbers = random.Random(4)
    entries, texts = [], []
    for number in range(12):
        bases = "".join(random_numbers.choices("ACGT", k=900))
        genes, features, place = [], [], random_numbers.randint(1, 60)
        while place < 700:
            strand, length = random_numbers.choice("+-"), random_numbers.randint(1, 60)
            protein = "M" + "".join(random_numbers.choices("ACDEFGHIKLMNPQRSTVWY", k=length - 1))
            first, last = place, place + 3 * length + 2
            location = SimpleLocation(first - 1, last, strand=1 if strand == "+" else -1)
            tag = f"B{number}_{len(genes):03}"
            genes.append((strand, first, last, protein))
            features.append(SeqFeature(location, type="gene", qualifiers={"locus_tag": [tag]}))
            features.append(cds(location, protein, locus_tag=tag, protein_id=f"{tag}.1"))
            # Genes overlap, touch, or lie apart.
            place = last + 1 + random_numbers.choice((-4, 0, 0, 1, random_numbers.randint(2, 90)))
        rna = SimpleLocation(5, 890, strand=1)
        features.append(SeqFeature(rna, type="tRNA", qualifiers={"product": ["tRNA"]}))
        features.append(cds(rna, "", locus_tag=f"B{number}_pseudo"))
        entries.append(entry_of(f"C{number}", bases, features))
        texts.append(by_the_authors(bases, genes))
    found = read(genbank(tmp_path / "all.gb", *entries))
    assert [record.id for record in found] == [entry.id for entry in entries]
    expected = [text.replace("<+>", "+").replace("<->", "-").encode() for text in texts]
    assert [record.payload for record in found] == expected
    assert {record.note for record in found} == {""} and found[0].description == "a contig"


def test_elements_of_an_entry_are_called_by_their_tags_or_places(read, tmp_path):
    exons = CompoundLocation([SimpleLocation(60, 70, strand=-1), SimpleLocation(40, 50, strand=-1)])
    features = [
        cds(SimpleLocation(3, 12, strand=1), "MKT", locus_tag="b1", protein_id="WP_1.1"),
        cds(SimpleLocation(20, 29, strand=-1), "MLG", locus_tag="b2", protein_id="WP_2.1"),
        cds(SimpleLocation(20, 32, strand=-1), "MLGA", locus_tag="b2", protein_id="WP_3.1"),
        cds(exons, "MWWWWW", protein_id="WP_1.1"),
        cds(SimpleLocation(80, 89, strand=1), "MKTA*", protein_id="WP 4<.1"),
    ]
    path = genbank(tmp_path / "one.gb", entry_of("NC_1.1", "ACGTA" * 20, features))
    whole, *parts = read(path, parts=True)
    told = {}
    for part in parts:
        letters, _, region = part.payload.split(b"\n")
        first, last = map(int, region.split(b"-"))
        told[part.id] = letters[first - 2 : last].decode()
    assert whole.id == "NC_1.1" and whole.note == "* dropped"
    assert told == {
        "NC_1.1/b1": "+MKT",
        "NC_1.1/13-20": "+gtaacgta",
        "NC_1.1/WP_2.1": "-MLG",
        "NC_1.1/WP_3.1": "-MLGA",
        "NC_1.1/33-40": "+gtaacgta",
        "NC_1.1/41-70": "-MWWWWW",
        "NC_1.1/71-80": "+acgtaacgta",
        "NC_1.1/WP4.1": "+MKTA",
    }


@pytest.mark.parametrize("strand", [1, -1])
def test_a_gene_over_the_end_of_a_circle_covers_both_ends_and_nothing_else(read, tmp_path, strand):
    pieces = [SimpleLocation(90, 100, strand=strand), SimpleLocation(0, 5, strand=strand)]
    features = [
        cds(CompoundLocation(pieces[::strand]), "MEND", locus_tag="round"),
        cds(SimpleLocation(20, 29, strand=1), "MKT", locus_tag="b1"),
    ]
    entry = entry_of("plasmid", "ACGTA" * 20, features, "circular")
    path = genbank(tmp_path / "circle.gb", entry)
    whole, *parts = read(path, parts=True)
    sign = "+" if strand == 1 else "-"
    bases = ("ACGTA" * 20).lower()
    text = f"+{bases[5:20]}+MKT+{bases[29:90]}{sign}MEND"
    assert whole.payload.split(b"\n")[0].decode() == text
    names = ("6-20", "b1", "30-90", "round")
    assert [part.id for part in parts] == [f"plasmid/{name}" for name in names]


def test_a_run_gives_contigs_and_elements_their_vectors_and_accounts_for_the_rest(
    glm2, tmp_path, environment
):
    desk = Desk(tmp_path, environment)
    bases = "ACGTA" * 20
    features = [
        cds(SimpleLocation(3, 12, strand=1), "MKT", locus_tag="b1"),
        cds(SimpleLocation(20, 32, strand=-1), "MLGA", locus_tag="b2"),
    ]
    genbank(tmp_path / "a.gb", *(entry_of(id, bases, features) for id in ("C1", "same")))
    fasta(tmp_path / "b.fa", {"card": CARD, "bad": "MKT", "one": "<->MW"})
    options = {"model": str(glm2), "alphabet": "contigs", "parts": True, "dtype": "fp32"}
    config = {"run": "my", "inputs": ["a.gb", "b.fa"], "workload": "encoder", "options": options}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    desk.type("featuremill", "run", "my.yaml", "-c", "1")
    found = pd.read_parquet(tmp_path / "results/my/embeddings.parquet").set_index("id")
    tensors = load_file(glm2 / "model.safetensors")
    contig = f"<+>MKT<+>{bases[12:20].lower()}<->MLGA"
    every = expected_of(tensors, {"C1": contig, "card": CARD, "one": "<->MW"})
    expected = {id: states[-1][is_own].mean(0) for id, states, is_own, _ in every}
    for number, name in enumerate(("b1", "13-20", "b2"), 1):
        expected[f"C1/{name}"] = expected.pop(f"C1/{number}")
    expected |= {f"same{id[2:]}": vector for id, vector in expected.items() if id[:2] == "C1"}
    assert set(found.index) == set(expected)
    for id, vector in expected.items():
        assert relative_l2(found.loc[id, "mean_layer_3"], vector) <= FP32_L2, id
    failed = pd.read_csv(tmp_path / "results/my/failed.tsv", sep="\t")
    assert failed["id"].tolist() == ["bad"]
    assert failed["reason"][0] == "an element without its strand: 'M' at letter 1"


def test_an_entry_without_a_protein_or_its_sequence_is_refused(read, tmp_path):
    bare = entry_of("bare", "ACGTA" * 20, [])
    good = entry_of("good", "ACGTA" * 20, [cds(SimpleLocation(3, 12, strand=1), "MKT")])
    path = genbank(tmp_path / "two.gb", bare, good)
    text = path.read_text()
    features, _, rest = text.rpartition("ORIGIN")
    unknown = re.sub("^(LOCUS|VERSION) ( +)good", r"\1 \2none", features, flags=re.MULTILINE)
    assert rest and unknown.count("LOCUS") == 2
    only = unknown[unknown.index("LOCUS       none") :] + "CONTIG      join(X:1..100)\n//\n"
    path.write_text(text + only)
    found, reason = read(path), "no element of a contig"
    told = [(record.id, record.reason, record.line) for record in found]
    assert told == [("bare", reason, 1), ("good", "", 2), ("none", reason, 3)]
    assert found[1].payload == b"+MKT"
