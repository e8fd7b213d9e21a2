"""The way of the bundled model from public packages to its card: real tools, little data."""

import argparse
import gzip
import json
import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import debian
import pytest
from esm2_models import demo_proteins
from programs import ran

ROOT = Path(__file__).parents[1]
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"


@pytest.fixture
def prepare(monkeypatch):
    """training/prepare.py, which imports its neighbours as scripts do."""
    monkeypatch.syspath_prepend(str(ROOT / "training"))
    import prepare

    return prepare


def relative(sequence, identity, draw):
    """Return a protein that shares about so many of the residues."""
    return "".join(a if draw.random() < identity else draw.choice(AMINO_ACIDS) for a in sequence)


def sources(folder, families, strangers):
    """Write what prepare.py reads: a BLAST database for each ontology, examples and a taxonomy."""
    for number, ontology in enumerate(("BPO", "CCO", "MFO")):
        database = folder / "metastudent" / ontology / "goasp.fasta"
        database.parent.mkdir(parents=True)
        members = [family[number % len(family)] for family in families] + families[0]
        records = enumerate(dict.fromkeys(members))
        fasta = "".join(f">{ontology[0]}{n:05}|GO:0006200,GO:0005524\n{s}\n" for n, s in records)
        (database.parent / "in.fasta").write_text(fasta)
        command = ["makeblastdb", "-dbtype", "prot", "-in", "in.fasta", "-out", database.name]
        subprocess.run(command, check=True, capture_output=True, cwd=database.parent)
    organisms = ("Escherichia coli", "Homo sapiens", "Mosaic virus")
    with gzip.open(folder / "examples.fasta.gz", "wt") as file:
        for number, sequence in enumerate(strangers):
            name = organisms[number % 3]
            file.write(f">tr|X{number:04}|X_Y A protein OS={name} PE=4 SV=1\n{sequence}\n")
    taxonomy = folder / "taxonomy"
    taxonomy.mkdir()
    names = {1: "root", 2: "Bacteria", 2759: "Eukaryota", 10239: "Viruses"}
    names |= {10: "Escherichia", 11: organisms[0], 20: organisms[1], 30: organisms[2]}
    parents = {1: 1, 2: 1, 2759: 1, 10239: 1, 10: 2, 11: 10, 20: 2759, 30: 10239}
    rows = [f"{n}\t|\t{name}\t|\t\t|\tscientific name\t|\n" for n, name in names.items()]
    (taxonomy / "names.dmp").write_text("".join(rows))
    ranks = {10: "genus"}
    rows = [f"{n}\t|\t{p}\t|\t{ranks.get(n, 'no rank')}\t|\t\n" for n, p in parents.items()]
    (taxonomy / "nodes.dmp").write_text("".join(rows))


@pytest.mark.slow
def test_no_relative_of_a_held_out_protein_is_trained_on(prepare, tmp_path):
    debian.install("mmseqs2", "ncbi-blast+")
    draw = random.Random(0)
    founders = [s for s in demo_proteins(560, longest=400) if set(s) <= set(AMINO_ACIDS)]
    families = [[s, relative(s, 0.75, draw), relative(s, 0.6, draw)] for s in founders]
    strangers = ["".join(draw.sample(s, len(s))) for s in founders[:90]]
    sources(tmp_path, families, [relative(s, 0.8, draw) for s in founders[:30]] + strangers)
    work = tmp_path / "work"
    command = [sys.executable, ROOT / "training/prepare.py", work, "--threads", "2"]
    command += ["--swiss-prot", tmp_path / "metastudent", "--taxonomy", tmp_path / "taxonomy"]
    command += ["--examples", tmp_path / "examples.fasta.gz", "--megabytes", "0.15"]
    subprocess.run(command, check=True)

    split_of, labels = {}, {}
    for split in ("train", "valid", "test", "probe"):
        lines = (work / f"{split}.fasta").read_text().splitlines()
        for header, sequence in zip(lines[::2], lines[1::2], strict=True):
            split_of[sequence], labels[sequence] = split, header.split()[2:]
    counts = json.loads((work / "split.json").read_text())
    everything = {s for family in families for s in family} | set(strangers)
    assert set(split_of.values()) == {"train", "valid", "test", "probe"}
    unwanted = counts["removed_from_train"] + counts["dropped_from_heldout"]
    assert len(split_of) + unwanted == len(everything) + 30
    pairs = [pair for family in families for pair in combinations(family, 2)]
    related = [
        {split_of.get(one, "none"), split_of.get(other, "none")}
        for one, other in pairs
        if sum(a == b for a, b in zip(one, other, strict=True)) >= 0.55 * len(one)
    ]
    heldout = {"valid", "test", "probe"}
    assert sum(bool(splits & heldout) for splits in related) > 10
    assert not [splits for splits in related if "train" in splits and splits & heldout]
    assert counts["removed_from_train"] > 0  # clusters alone would have left some
    of_strangers = [labels[s] for s in strangers if s in labels]
    assert ["Bacteria", "10"] in of_strangers and ["Viruses", "30"] in of_strangers
    assert sum(p.stat().st_size for p in (work / "shards").iterdir()) <= 0.15 * 2**20
    assert counts["train_shard_proteins"] < counts["train_proteins"]


@pytest.mark.slow
def test_one_command_leads_from_the_split_to_the_card(prepare, tmp_path):
    work, kingdoms = tmp_path / "work", ("Archaea", "Bacteria", "Eukaryota", "Viruses")
    work.mkdir()
    sequence_of = {f"P{n}": s for n, s in enumerate(demo_proteins(160, longest=120))}
    members = {name: [] for name in ("train", "valid", "test", "probe")}
    for number, accession in enumerate(sequence_of):
        members[list(members)[number % 4]].append((accession, accession))
    for name, pairs in members.items():
        labels = [f"{a} {a} {kingdoms[int(a[1:]) // 4 % 4]} {int(a[1:]) // 4}" for a, _ in pairs]
        records = zip(labels, (sequence_of[a] for a, _ in pairs), strict=True)
        prepare.write_fasta(work / f"{name}.fasta", list(records))
    arguments = argparse.Namespace(work=work, megabytes=1)
    counts = prepare.write_splits(members, sequence_of, arguments)
    counts |= {"removed_from_train": 1234, "dropped_from_heldout": 5}
    (work / "split.json").write_text(json.dumps(counts))

    shape = "--shape 2 32 4 --batch-tokens 512 --lengths 64 --decay-from 6 --decay-steps 4"
    command = [sys.executable, "-m", "snakemake", "-s", ROOT / "training/Snakefile", "--cores", "1"]
    command += ["--config", f"work={work}", f"weights={tmp_path}", f"curve={tmp_path}"]
    command += ["device=cpu", f"train={shape}", "machine=one core"]
    command += [f"other=itself={work}/mill_t6_8M.safetensors"]
    subprocess.run(command, check=True, cwd=tmp_path)
    card = (tmp_path / "mill_t6_8M.md").read_text()
    figures = json.loads((work / "figures.json").read_text())
    assert "{{" not in card and figures["sha256"] in card
    assert "10 steps of 512 tokens, 5,120 in all" in card and "0 minutes of one core" in card
    assert "removed 1,234 of the latter" in card
    assert "| unseen: from clusters that are held out | 120 | 30 | 30 | 30 | 30 | 40 |" in card
    assert "| all: these, and others from clusters of the training split | 160 | 40 |" in card
    for of_set in figures["probes"].values():
        assert of_set.keys() == {"model", "random", "itself", "composition", "gain"}
        assert of_set["itself"] == of_set["model"] != of_set["random"]
    low, high = figures["perplexity"]["unigram"][1:]
    assert f"| {low:.3f}–{high:.3f} |" in card
    assert "<svg" in (tmp_path / "mill_t6_8M.curve.svg").read_text()
    command += ["minutes=9", "threads=2"]  # no reason to train again
    found = ran(*command, "-n", cwd=tmp_path)
    assert "Nothing to be done" in found.stdout + found.stderr
