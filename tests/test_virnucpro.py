"""VirNucPro's files are read back by their format alone, and its command computes the whole line."""

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import virnucpro_files
import yaml
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Desk, wait_for

from featuremill.__main__ import main
from featuremill.base.errors import IntegrityError, UserError
from featuremill.head.card import CARD, Card, Part
from featuremill.head.virnucpro import LAYOUTS, FileFeatures
from featuremill.translate.command import translate
from featuremill.virnucpro import command, files

WIDTHS = {"nucleotides": 3, "proteins": 5}
PER_FILE = 7


def contigs(count, seed=0, letters="ACGT"):
    rng = random.Random(seed)
    return {f"c{n}": "".join(rng.choices(letters, k=rng.randint(60, 700))) for n in range(count)}


def write_fasta(path, told):
    path.write_text("".join(f">{id}\n{letters}\n" for id, letters in told.items()))


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("virnucpro")
    write_fasta(folder / "contigs.fa", {**contigs(8), "stops": "TAGC" * 50})
    translate([folder / "contigs.fa"], folder / "my", "chunks", window=90)
    return folder / "my"


@pytest.fixture(scope="module")
def fragments(translated):
    return pq.read_table(translated / "fragments.parquet")["id"].to_pylist()


class Pretended:
    """Runs, a head and its predictions of a translation, made up; any fragments may have failed."""

    def __init__(self, folder, translated, ids, classes=("others", "virus")):
        self.folder, self.translated, self.ids, self.classes = folder, translated, ids, classes
        self.vectors = {}
        self.scores = {}
        self.lacking = []
        self.runs = {kind: Path(f"results/my-{kind}") for kind in WIDTHS}

    def make(self, rng, failed, kinds=tuple(WIDTHS)):
        numbers = np.random.default_rng(rng.randrange(2**32))
        self.runs = {kind: self.runs[kind] for kind in kinds}
        for kind in kinds:
            there = [id for id in self.ids if rng.random() >= failed]
            rng.shuffle(there)  # whatever the order in a run is
            rows = numbers.normal(size=(len(there), WIDTHS[kind])).astype(np.float32)
            self.vectors[kind] = dict(zip(there, rows, strict=True))
            gone = set(self.ids) - set(there)
            self.lacking += [(id, str(self.runs[kind]), f"nan: of {kind}") for id in gone]
        whole = [id for id in self.ids if all(id in self.vectors[kind] for kind in kinds)]
        self.scores = {id: rng.choice([0.5, rng.random()]) for id in whole}

    def write(self, monkeypatch, keeps_features=True):
        monkeypatch.setattr(files, "FRAGMENTS_A_FILE", PER_FILE)
        monkeypatch.setattr(files, "open_run", self.open)
        predicted, head = self.folder / "scores.tsv", self.folder / "head"
        with predicted.open("w", newline="") as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            table.writerow(["id", "class", *(f"score_{name}" for name in self.classes)])
            for id, virus in self.scores.items():
                told = {"virus": virus, **dict.fromkeys(set(self.classes) - {"virus"}, 1 - virus)}
                table.writerow([id, "any", *(told[name] for name in self.classes)])
        with (self.folder / "scores.missing.tsv").open("w", newline="") as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            table.writerows([("id", "run", "reason"), *self.lacking])
        head.mkdir(exist_ok=True)
        parts = [Part(width=WIDTHS[kind]) for kind in self.runs]
        about = {"kind": "mlp", "classes": list(self.classes), "features": parts, "sha256": ""}
        Card(version=Card.NEWEST, **about).write(head / CARD)
        out = self.folder / "out"
        return files.write(self.translated, predicted, head, self.runs, out, keeps_features)

    def open(self, root, column):
        (kind,) = (kind for kind, run in self.runs.items() if run == root)
        vectors = self.vectors[kind]
        rows = np.stack([*vectors.values()]) if vectors else np.empty((0, WIDTHS[kind]), np.float32)
        return FileFeatures([root], [*vectors], LAYOUTS[0], rows)


def in_parts(ids):
    return [ids[start : start + PER_FILE] for start in range(0, len(ids), PER_FILE)]


def check(made, found, letters):
    """`found` is what the files say of `made`, and nothing else."""
    parts = in_parts(made.ids)
    for kind, name, vectors in (
        ("nucleotides", "nucleotide", "dnabert"),
        ("proteins", "protein", "esm"),
    ):
        if kind not in made.runs:
            assert found[name] == found[vectors] == []
            continue
        assert [[*file] for file in found[name]] == parts
        for file in found[name]:
            assert all(letters[kind][id] == text for id, text in file.items())
        there = made.vectors[kind]
        assert [[*file] for file in found[vectors]] == [
            [id for id in part if id in there] for part in parts
        ]
        for file in found[vectors]:
            assert all(np.array_equal(row, there[id]) for id, row in file.items())
    assert [[*file] for file in found["merged"]] == [
        [id for id in part if id in made.scores] for part in parts
    ]
    for file in found["merged"]:
        for id, row in file.items():  # DNA first
            sides = [made.vectors[kind][id] for kind in made.runs]
            assert np.array_equal(row, np.concatenate(sides))
    assert [*found["results"]] == [id for id in made.ids if id in made.scores]
    windows = {}
    for id, (label, others, virus) in found["results"].items():
        assert (others, virus) == pytest.approx((1 - made.scores[id], made.scores[id]), rel=1e-8)
        if virus != others:
            assert label == ("virus" if virus > others else "others")
        windows.setdefault(id[:-2], []).append((others, virus))
    assert found["highest"] == {
        window: max(v for _, v in scores) >= max(o for o, _ in scores)
        for window, scores in windows.items()
    }
    assert [*found["highest"]] == [*windows]
    stages = {"nucleotides": ("nucleotide", "DNABERT-S"), "proteins": ("protein", "ESM-2")}
    number = {id: place + 1 for place, part in enumerate(parts) for id in part}
    expected = set()
    for id, run, reason in made.lacking:
        folder, stage = stages[run.rpartition("-")[2]]
        path = made.folder / "out" / f"my_{folder}" / f"output_{number[id]}.fa"
        expected.add((str(path), stage, f"{id}: {reason}"))
    assert set(found["failed"]) == expected and len(found["failed"]) == len(expected)


@pytest.fixture(scope="module")
def letters(translated):
    """Sequences by kind and id, read by other eyes than ours."""
    found = {}
    for kind, name in (("nucleotides", "nucleotides.fna.gz"), ("proteins", "proteins.faa.gz")):
        text = subprocess.run(["gzip", "-dc", translated / name], capture_output=True, text=True)
        records = re.findall(r"^>(.*)\n(.*)$", text.stdout, re.MULTILINE)
        found[kind] = dict(records)
    return found


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    failed=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    classes=st.sampled_from([("others", "virus"), ("virus", "cellular")]),
    kinds=st.sampled_from([("nucleotides", "proteins"), ("proteins",)]),
)
def test_no_id_meets_anothers_vector_or_score(
    translated, fragments, letters, tmp_path_factory, monkeypatch, seed, failed, classes, kinds
):
    """Runs may be in any order, and fragments may have failed in one and not in the other."""
    made = Pretended(tmp_path_factory.mktemp("run"), translated, fragments, classes)
    made.make(random.Random(seed), failed, kinds)
    num_failed = made.write(monkeypatch)
    assert num_failed == len(fragments) - len(made.scores)
    found = virnucpro_files.read(made.folder / "out", "my", PER_FILE)
    if classes[0] == "virus":  # labels are the head's own
        found["results"] = {
            id: (label.replace("cellular", "others"), *scores)
            for id, (label, *scores) in found["results"].items()
        }
    check(made, found, letters)


@pytest.fixture
def made(translated, fragments, tmp_path):
    found = Pretended(tmp_path, translated, fragments)
    found.make(random.Random(3), 0.2)
    return found


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_gives_the_same_bytes_and_fewer_files_leave_none_behind(made, monkeypatch):
    made.write(monkeypatch)
    before = contents(made.folder / "out")
    left = made.folder / "out" / "my_merged" / ".output_1_merged.pt.abc"  # of one that was killed
    left.write_text("half")
    (made.folder / "out" / "my_protein" / "output_99_ESM.pt").write_text("of more fragments")
    made.write(monkeypatch)
    assert contents(made.folder / "out") == before
    own = made.folder / "out" / "my_protein" / "notes.txt"
    own.write_text("somebody's")
    made.write(monkeypatch, keeps_features=False)
    three = ("prediction_results.txt", "prediction_results_highestscore.csv")
    kept = {"failed_files.txt", "my_protein/notes.txt", *(f"my_merged/{name}" for name in three)}
    after = contents(made.folder / "out")
    assert set(after) == kept
    assert all(after[name] == before[name] for name in kept if name in before)


def test_the_last_file_is_there_only_with_all_others(made, monkeypatch):
    made.write(monkeypatch)
    monkeypatch.setattr(files, "_write_failed", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.write(monkeypatch)
    assert not (made.folder / "out" / "my_merged" / files.HIGHEST).exists()


def test_what_virnucpro_has_no_files_for_is_one_sentence(made, translated, tmp_path, monkeypatch):
    made.classes = ("a", "b", "virus")
    with pytest.raises(UserError, match="this head tells a, b and virus apart"):
        made.write(monkeypatch)
    made.classes = ("others", "virus")
    one, made.runs = made.runs, {"proteins": made.runs["proteins"]}
    made.lacking = []
    with pytest.raises(UserError, match="has no prediction, and no .missing.tsv says why"):
        made.write(monkeypatch)
    made.runs = one
    made.lacking = [("c1_chunk_1F1", "results/other", "x")]
    with pytest.raises(UserError, match="it tells of the run results/other, which is not given"):
        made.write(monkeypatch)
    translate([translated.parent / "contigs.fa"], tmp_path / "orfs", "orfs")
    made.translated = tmp_path / "orfs"
    with pytest.raises(UserError, match="cut --by orfs"):
        made.write(monkeypatch)


def test_sequences_of_another_translation_are_refused(made, translated, tmp_path, monkeypatch):
    made.translated = tmp_path / "my"
    made.translated.mkdir()
    for path in translated.iterdir():
        (made.translated / path.name).write_bytes(path.read_bytes())
    write_fasta(tmp_path / "other.fa", contigs(8, seed=9))
    translate([tmp_path / "other.fa"], tmp_path / "other", "chunks", window=90)
    name = "proteins.faa.gz"
    (made.translated / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(IntegrityError, match="has other sequences than fragments.parquet"):
        made.write(monkeypatch)
