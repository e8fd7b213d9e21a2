"""VirNucPro's files are read back by their format alone; its command computes the whole line."""

import argparse
import csv
import json
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import subprocess
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
from programs import Desk, ran
from safetensors.numpy import load_file, save_file

from featuremill.__main__ import main
from featuremill.base.errors import IntegrityError, UserError
from featuremill.steps.heads.card import CARD, Card, Part
from featuremill.steps.heads.computed import Vectors
from featuremill.steps.translate.command import translate
from featuremill.steps.virnucpro import command, files
from featuremill.store import ours, run_lock
from featuremill.store.files import temporary_file
from featuremill.store.formats import RECORD

WIDTHS = {"nucleotides": 3, "proteins": 5}
PER_FILE = 7


def contigs(count, seed=0, letters="ACGT", longest=700):
    rng = random.Random(seed)
    lengths = [rng.randint(60, longest) for _ in range(count)]
    return {f"c{n}": "".join(rng.choices(letters, k=k)) for n, k in enumerate(lengths)}


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
        monkeypatch.setattr(files.features, "open", self.open)
        predicted, head = self.folder / "scores.tsv", self.folder / "head"
        rows = [["id", "class", *(f"score_{name}" for name in self.classes)]]
        for id, virus in self.scores.items():
            of = [virus if name == "virus" else 1 - virus for name in self.classes]
            rows.append([id, "any", *of])
        lacking = [("id", "run", "reason"), *self.lacking]
        for path, table in ((predicted, rows), (self.folder / "scores.missing.tsv", lacking)):
            with path.open("w", newline="") as file:
                csv.writer(file, delimiter="\t", lineterminator="\n").writerows(table)
        head.mkdir(exist_ok=True)
        parts = [Part(width=WIDTHS[kind]) for kind in self.runs]
        about = {"kind": "mlp", "classes": list(self.classes), "features": parts, "sha256": ""}
        Card(version=Card.NEWEST, **about).write(head / CARD)
        out = self.folder / "out"
        return files.write(self.translated, predicted, head, self.runs, out, "my", keeps_features)

    def open(self, root, column, choosing):
        (kind,) = (kind for kind, run in self.runs.items() if run == root)
        vectors = self.vectors[kind]
        rows = np.stack([*vectors.values()]) if vectors else np.empty((0, WIDTHS[kind]), np.float32)
        return Vectors(str(root), "DNABERT_S", [*vectors], rows)


def in_parts(ids):
    return [ids[start : start + PER_FILE] for start in range(0, len(ids), PER_FILE)]


def check(made, found, letters):
    """`found` is what the files say of `made`, and nothing else."""
    parts = in_parts(made.ids)
    of = (("nucleotides", "nucleotide", "dnabert"), ("proteins", "protein", "esm"))
    for kind, name, vectors in of:
        if kind not in made.runs:
            assert found[name] == found[vectors] == []
            continue
        assert [[*file] for file in found[name]] == parts
        for file in found[name]:
            assert all(letters[kind][id] == text for id, text in file.items())
        there = made.vectors[kind]
        ids = [[id for id in part if id in there] for part in parts]
        assert [[*file] for file in found[vectors]] == ids
        for file in found[vectors]:
            assert all(np.array_equal(row, there[id]) for id, row in file.items())
    ids = [[id for id in part if id in made.scores] for part in parts]
    assert [[*file] for file in found["merged"]] == ids
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
    both = {window: [*map(max, zip(*scores, strict=True))] for window, scores in windows.items()}
    highest = {window: (virus >= others, others, virus) for window, (others, virus) in both.items()}
    assert found["highest"] == highest
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
        text = ran("gzip", "-dc", translated / name).stdout
        found[kind] = dict(re.findall(r"^>(.*)\n(.*)$", text, re.MULTILINE))
    return found


@settings(max_examples=8, deadline=None, suppress_health_check=[*HealthCheck])
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
        for id, (label, *scores) in found["results"].items():
            found["results"][id] = (label.replace("cellular", "others"), *scores)
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
        if path.is_file() and path.name != RECORD
    }


def test_the_same_gives_the_same_bytes_and_fewer_files_leave_none_behind(made, monkeypatch):
    made.write(monkeypatch)
    before = contents(made.folder / "out")
    left = temporary_file(made.folder / "out" / "my_merged" / "output_1_merged.pt")
    left.write_text("half")  # of one that was killed
    more, mine = (made.folder / f"out/my_protein/output_{n}_ESM.pt" for n in (99, 98))
    more.write_text("of more fragments")
    ours.note(more)
    mine.write_text("somebody's")
    made.write(monkeypatch)
    assert mine.read_text() == "somebody's"
    mine.unlink()
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
    with pytest.raises(UserError, match="this head has the classes a, b and virus"):
        made.write(monkeypatch)
    made.classes = ("others", "virus")
    one, made.runs = made.runs, {"proteins": made.runs["proteins"]}
    made.lacking = []
    with pytest.raises(UserError, match=r"has no prediction, and no \.missing\.tsv has a reason"):
        made.write(monkeypatch)
    made.runs = one
    made.lacking = [("c1_chunk_1F1", "results/other", "x")]
    with pytest.raises(UserError, match="it names the run results/other, which is not given"):
        made.write(monkeypatch)
    translate([translated.parent / "contigs.fa"], tmp_path / "orfs", "orfs")
    made.translated = tmp_path / "orfs"
    with pytest.raises(UserError, match="cut --by orfs"):
        made.write(monkeypatch)


def test_sequences_of_another_translation_are_refused(made, translated, tmp_path, monkeypatch):
    made.translated = shutil.copytree(translated, tmp_path / "my")
    write_fasta(tmp_path / "other.fa", contigs(8, seed=9))
    translate([tmp_path / "other.fa"], tmp_path / "other", "chunks", window=90)
    name = "proteins.faa.gz"
    (made.translated / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(IntegrityError, match=r"has other sequences than fragments\.parquet"):
        made.write(monkeypatch)


# ---- the command ----

NAN_LETTER = "N"
OPEN = "ACG"
"""Letters of which no codon is a stop, on either strand."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a folder with dna/, for which a letter N is no number, and random heads."""
    folder = tmp_path_factory.mktemp("models")
    example = runpy.run_path(str(ROOT / "config" / "examples" / "contigs.py"))
    example["write_encoder"](folder / "dna")
    tensors = load_file(folder / "dna" / "model.safetensors")
    place = example["BASES"].index(NAN_LETTER)
    tensors["embeddings.word_embeddings.weight"][place] = np.nan
    save_file(tensors, folder / "dna" / "model.safetensors", {"format": "pt"})
    for name, widths in (("both", (64, 320)), ("proteins", (320,))):
        state = head_of(sum(widths))
        torch.save(state, folder / f"{name}.pth")
        dims = ",".join(map(str, widths))
        about = ["--classes", "others,virus", "--dims", dims, "--output", str(folder / name)]
        assert main(["head", "import", str(folder / f"{name}.pth"), *about]) == 0
    return folder


def head_of(width):
    chosen = torch.Generator().manual_seed(1)

    def numbers(*shape):
        return torch.randn(*shape, generator=chosen) / 20

    state = {"hidden_layer.weight": numbers(512, width), "hidden_layer.bias": numbers(512)}
    state |= {f"bn1.{name}": torch.ones(512) for name in ("weight", "running_var")}
    state |= {f"bn1.{name}": torch.zeros(512) for name in ("bias", "running_mean")}
    return state | {"output_layer.weight": numbers(2, 512), "output_layer.bias": numbers(2)}


class Command(Desk):
    """A folder in which `featuremill virnucpro` is typed."""

    def __init__(self, folder, environment, models):
        super().__init__(folder, {**environment, "FEATUREMILL_QUIET": ""})
        self.models = models

    def words(self, *more, head="both"):
        given = ["featuremill", "virnucpro", "predict", "my.fa", "--output-dir", "out", "-m", "300"]
        dna = ["--dna", self.models / "dna"] if head == "both" else []
        return [*given, *dna, "--head", self.models / head, "--esm", "mill_t6_8M", *more]

    def __call__(self, *more, status=0, head="both", **variables):
        return self.type(*self.words(*more, head=head), status=status, **variables).text

    @property
    def out(self):
        return self.folder / "out"

    def delivered(self):
        """Return the bytes of what was asked for, without the page, which has seconds, and the
        record of files, which has times."""
        found = [self.out / "failed_files.txt", *self.out.glob("my_*/[!.]*")]
        found += self.out.glob("results/my/*.tsv")
        return {str(path.relative_to(self.out)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, environment, models):
    """Return a folder in which the command was typed on contigs of which one is poison, and what it
    said."""
    desk = Command(tmp_path_factory.mktemp("whole"), environment, models)
    told = {**contigs(5, seed=4, letters=OPEN), "stops": "TAGC" * 50}
    told["bad"] = "AAC" * 20 + NAN_LETTER + "CAG" * 20
    write_fasta(desk.folder / "my.fa", told)
    said = desk("--keep-intermediate", "--resume", "--esm-batch-size", "2048", status=2)
    return SimpleNamespace(desk=desk, said=said, contigs=told)


@pytest.mark.slow
def test_one_poison_fragment_is_told_of_and_the_rest_is_delivered(whole):
    out = whole.desk.out
    found = virnucpro_files.read(out, "my")
    fragments = pq.read_table(out / "results/my/translate/fragments.parquet").to_pylist()
    bad = [row["id"] for row in fragments if row["contig"] == "bad"]
    rest = [row["id"] for row in fragments if row["contig"] != "bad"]
    assert bad and [*found["results"]] == rest == [*found["merged"][0]]
    assert {line[1] for line in found["failed"]} == {"DNABERT-S"}
    assert [line[2].partition(": ")[0] for line in found["failed"]] == bad
    assert [*found["nucleotide"][0]] == [*found["protein"][0]] == [*found["esm"][0]]
    assert [*found["esm"][0]] == [row["id"] for row in fragments]
    with (out / "results/my/verdicts.tsv").open() as file:
        verdicts = {row["contig"]: row for row in csv.DictReader(file, delimiter="\t")}
    assert set(verdicts) == set(whole.contigs) and verdicts["bad"]["status"] == "failed"
    assert f"lists what failed: {len(bad)} line" in whole.said
    for sentence in ("--resume: no effect, as", "--esm-batch-size: no effect, as batches"):
        assert sentence in whole.said


@pytest.mark.slow
def test_its_numbers_are_those_of_the_runs_and_the_head(whole):
    """By torch and pandas, and VirNucPro's own network."""
    out = whole.desk.out
    found = virnucpro_files.read(out, "my")
    sides = []
    for kind, column in (("nucleotides", "mean_all_layer_2"), ("proteins", "mean_layer_6")):
        rows = pd.read_parquet(out / "results/my" / kind / "embeddings.parquet")
        sides.append(dict(zip(rows["id"], map(np.array, rows[column]), strict=True)))
    for dna, protein in zip(found["dnabert"], found["esm"], strict=True):
        assert all(np.array_equal(row, sides[0][id]) for id, row in dna.items())
        assert all(np.array_equal(row, sides[1][id]) for id, row in protein.items())
    state = head_of(64 + 320)
    for id, row in found["merged"][0].items():
        assert np.array_equal(row, np.concatenate([sides[0][id], sides[1][id]]))
        hidden = torch.from_numpy(row) @ state["hidden_layer.weight"].T + state["hidden_layer.bias"]
        hidden = torch.relu(hidden / (1 + 1e-5) ** 0.5)
        logits = hidden @ state["output_layer.weight"].T + state["output_layer.bias"]
        scores = torch.softmax(logits, 0).tolist()
        assert found["results"][id][1:] == pytest.approx(scores, abs=1e-5)


@pytest.mark.slow
def test_again_it_computes_nothing_and_what_it_prints_can_be_typed(whole):
    before = whole.desk.delivered()
    locks = whole.desk.out / ".snakemake" / "locks"  # left by one that was killed at the last files
    locks.mkdir(exist_ok=True)
    (locks / "0.input.lock").write_text("results/my/proteins/manifest.json\n")
    (locks / "0.output.lock").write_text("results/my/verdicts.tsv\n")
    said = whole.desk("--keep-intermediate", status=2)
    assert "Nothing to be done" in said
    line = re.search(r"│ (featuremill run .*)", said)[1]
    inside = Desk(whole.desk.out, whole.desk.environment)
    for desk in (whole.desk, inside):
        assert "Nothing to be done" in desk.type(*shlex.split(line), "-n").text
    looks = re.findall(r"│ cd (\S+) && (featuremill .*)", said)
    assert [verb.split()[1] for _, verb in looks] == ["top", "status"]
    for folder, verb in looks:
        assert (whole.desk.folder / folder).samefile(whole.desk.out)
        more = ["--once"] if " top " in verb else []
        assert "virnucpro.yaml: done, and" in inside.type(*verb.split(), *more, status=2).text
    config = yaml.safe_load((whole.desk.out / "virnucpro.yaml").read_text())
    assert config["inputs"] == str(whole.desk.folder / "my.fa")
    assert whole.desk.delivered() == before


@pytest.mark.slow
def test_another_one_in_the_same_folder_is_refused(whole):
    with run_lock.alone(whole.desk.out / "results/my/proteins"):
        said = whole.desk("-e", "200", status=1)
    assert "a snakemake is computing this run" in said
    assert "window: 300" in (whole.desk.out / "virnucpro.yaml").read_text()


OF_PROTEINS = "my.fa --head proteins"
TYPED = f"{OF_PROTEINS} --esm mill_t6_8M"
MISTAKES = {
    "": "sequences: none given",
    "my.fa --input b.fa": "my.fa and b.fa given; name one",
    "gone.fa": "gone.fa: there is no such file",
    "my.bam": "samtools fasta my.bam > my.fa",
    "my.fa -m 300": "featuremill head import 300_model.pth",
    "my.fa -p own.pth": "import own.pth --classes others,virus",
    "my.fa --head both": "name the DNA encoder's folder with --dna, or get it with hf download",
    f"{OF_PROTEINS} --esm esm2_t33_650M_UR50D": "proteins: this head takes 320 numbers, and the "
    "features given have 1,280 (proteins, mean_layer_33)",
    f"{OF_PROTEINS} --esm esm2_t33_650M_UR50": "there is no model 'esm2_t33_650M_UR50'; did you "
    "mean 'esm2_t33_650M_UR50D'?",
    ".": ".: this is a folder; name one file of contigs",
    "/dev/null": "/dev/null: it can be read only once; write it to",
    f"{OF_PROTEINS} -c theirs.yaml": "--config theirs.yaml: VirNucPro's config is not read here",
    f"{OF_PROTEINS} --dna dna": "leave --dna out",
    "my.fa --head both --dna .": "no config.json here",
    f"{OF_PROTEINS} --gpus a": "--gpus a: give",
    f"{OF_PROTEINS} -d tpu": "--device tpu: give",
    f"{OF_PROTEINS} -d cpu --gpus 0,1": "--gpus and --devices ask for GPUs",
    f"{OF_PROTEINS} --gpus 0": "for the GPU of number 0, give --devices 0",
    "my.fa -m custom -e -5": "--expected-length -5: give 3",
    "my.fa -t -3": "--threads -3: give 1 or more",
    "my.fa -m custom": "head import 500_model.pth --classes",
    "my.fa -m 500 -e 300": "import 500_model.pth --classes",
    "my.fa -p gone.pth": "import gone.pth --classes others,virus",
    f"{TYPED} -o theirs": "my_merged in it was",
    f"{TYPED} -o my.fa": "this is a file; name",
    "my.fa --nonesuch": "--nonesuch",
    "my.fa -m 400": "invalid choice",
}


@pytest.mark.parametrize(("words", "sentence"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_with_status_1(
    models, tmp_path, words, sentence, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for path in ("both", "proteins", "dna"):
        (tmp_path / path).symlink_to(models / path)
    write_fasta(tmp_path / "my.fa", contigs(2))
    (tmp_path / "my.bam").write_text("BAM")
    (tmp_path / "own.pth").write_text("a pickle")
    (tmp_path / "theirs" / "my_merged").mkdir(parents=True)
    try:
        status = main(["virnucpro", *words.split()])
    except SystemExit as end:
        status = end.code
    said = " ".join(capsys.readouterr().err.split())
    assert status == 1 and sentence in said, said
    assert not list(tmp_path.rglob("virnucpro.yaml"))


def test_flags_become_the_config_and_the_command(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_fasta(tmp_path / "a b.fa", contigs(2))
    ended = []
    monkeypatch.setattr(command, "_status_of", lambda words, *_: ended.append(words) or 1)
    given = ["--gpus", "0,1", "-e", "400", "--threads", "3", "--force", "--dna", models / "dna"]
    given += ["--esm", "mill_t6_8M", "--dtype", "fp32"]
    words = ["virnucpro", "--verbose", "predict", "--head", models / "both", "a b.fa", *given]
    assert main([str(word) for word in words]) == 1
    said = capsys.readouterr().err
    assert "--devices 0,1" in said and "CUDA_VISIBLE_DEVICES" not in said
    (words,) = ended
    text = shlex.join(words)
    assert "--cores 3 --gpus 2 --devices 0,1 --forceall --printshellcmds" in text
    assert f"--directory {tmp_path / 'a_b_predictions'} " in text
    config = yaml.safe_load((tmp_path / "a_b_predictions" / "virnucpro.yaml").read_text())
    assert (config["run"], config["translate"]) == ("a_b", {"by": "virnucpro", "window": 400})
    assert config["virnucpro"]["files"] == "predictions"
    assert config["heads"]["virnucpro"]["any_recipe"] is True
    dna, proteins = config["features"]["nucleotides"], config["features"]["proteins"]
    assert dna["device"] == proteins["device"] == "cuda"
    assert dna["options"]["pool"] == "mean_all" and dna["options"]["dtype"] == "fp32"
    assert proteins["options"] == {"model": "mill_t6_8M", "dtype": "fp32"}


def test_another_sample_harms_nothing_of_the_first(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_status_of", lambda *_: 1)
    monkeypatch.setattr(command, "_write_config", lambda *_: pytest.fail("it is written"))
    (tmp_path / "other").mkdir()
    for name in ("a.fa", "b.fa", "other/a.fa"):
        write_fasta(tmp_path / name, contigs(2))
    first = {"run": "a", "inputs": str(tmp_path / "a.fa")}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "virnucpro.yaml").write_text(f"{command.MARK}\n{yaml.safe_dump(first)}")

    of_models = ["--head", str(models / "proteins"), "--esm", "mill_t6_8M"]

    def said(*words):
        assert main(["virnucpro", *words, *of_models, "-o", "out"]) == 1
        return " ".join(capsys.readouterr().err.split())

    holds = f"out: it holds the results of {tmp_path / 'a.fa'}"
    alone = f"{holds}; give each sample a folder of its own with --output-dir"
    assert f"{alone}." in said("b.fa") == said("b.fa", "--force")
    assert f"{alone}, or replace those results with --force." in said("other/a.fa")
    replaced = []
    monkeypatch.setattr(command, "_write_config", lambda *_: replaced.append(1))
    said("other/a.fa", "--force")
    said("a.fa")
    assert len(replaced) == 2


def test_a_head_that_names_virus_first_is_preferred_for_it(models, tmp_path, monkeypatch):
    """VirNucPro's verdict is the virus where both scores are the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_status_of", lambda *_: 1)
    write_fasta(tmp_path / "a.fa", contigs(2))
    card = json.loads((models / "proteins" / CARD).read_text())
    preferred = {"prefer": "virus"}
    for classes, expected in ((["others", "virus"], {}), (["virus", "others"], preferred)):
        known = Card.model_validate(card | {"classes": classes})
        monkeypatch.setattr(command, "read", lambda _, known=known: (known, {}))
        main(["virnucpro", "a.fa", "--head", str(models / "proteins"), "--esm", "mill_t6_8M"])
        config = yaml.safe_load((tmp_path / "a_predictions" / "virnucpro.yaml").read_text())
        assert config["verdicts"] == expected


def test_the_page_names_every_flag():
    page = (ROOT / "docs" / "migrate.md").read_text()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    long = [flag for flag in flags if flag.startswith("--") and not flag.startswith("--no-")]
    assert [flag for flag in [*long, "--no-progress"] if f"`{flag}" not in page] == ["--help"]


# ---- minutes ----


@pytest.mark.slow
def test_proteins_alone_end_with_0_and_force_writes_the_same_anew(environment, models, tmp_path):
    desk = Command(tmp_path, environment, models)
    write_fasta(tmp_path / "my.fa", contigs(6, seed=2, letters=OPEN))
    log = tmp_path / "all.log"
    said = desk("--keep-intermediate", "--log-file", log, head="proteins")
    for sentence in ("results are in results/my/proteins", "steps done"):
        assert sentence in said and sentence in log.read_text()
    found = virnucpro_files.read(desk.out, "my")
    assert found["nucleotide"] == found["dnabert"] == found["failed"] == []
    assert [*found["results"]] == [*found["esm"][0]] == [*found["merged"][0]]
    before, last = desk.delivered(), desk.out / "my_merged" / files.HIGHEST
    stamp = last.stat().st_mtime_ns
    said = desk("--keep-intermediate", "--force", "--quiet", head="proteins")
    assert not said
    after = desk.delivered()
    assert after == before and last.stat().st_mtime_ns != stamp
    said = desk(head="proteins")
    assert not list(desk.out.glob("my_*/output_*")) and last.exists()
    assert "1 of 2 steps" in said


@pytest.mark.slow
def test_nothing_delivered_is_status_1(environment, models, tmp_path):
    desk = Command(tmp_path, environment, models)
    write_fasta(tmp_path / "my.fa", {"protein": "MKVLPEFQ" * 30})
    said = desk(status=1)
    assert "'protein' is a protein" in said  # again at the end where other jobs ended later
    assert "cd " in said and "&& featuremill status virnucpro.yaml" in said
    assert "virnucpro │ error: No predictions were written." in said
    write_fasta(tmp_path / "my.fa", {"bad": "AAC" * 20 + NAN_LETTER + "AAC" * 20})
    said = desk(status=1)
    assert "see failed.tsv there" in said and "No predictions were written" in said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_ten_moments_it_delivers_the_bytes_of_an_undisturbed_run(
    environment, models, tmp_path
):
    """The whole process group dies, and the same command continues; then there is nothing to do."""
    desks = {}
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        desks[name] = Command(tmp_path / name, environment, models)
        write_fasta(tmp_path / name / "my.fa", contigs(200, seed=6, longest=150))
    quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True}

    def started(desk):
        return desk.start(*desk.words("--keep-intermediate"), **quiet)

    began = time.monotonic()
    assert started(desks["undisturbed"]).wait() == 0
    seconds = time.monotonic() - began
    expected = desks["undisturbed"].delivered()
    rng, desk, num_killed = random.Random(20), desks["killed"], 0
    while num_killed < 10:
        process = started(desk)
        try:
            assert process.wait(rng.uniform(0.02, 0.5) * seconds) == 0
            assert desk.delivered() == expected
            shutil.rmtree(desk.out)  # and begin again
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            num_killed += 1
    assert started(desk).wait() == 0
    assert desk.delivered() == expected
    assert "Nothing to be done" in desk("--keep-intermediate")
    assert desk.delivered() == expected
