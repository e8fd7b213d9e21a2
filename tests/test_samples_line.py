"""Samples along the whole line: two samples with the same ids are never one, from contigs to
verdicts."""

import csv
import json
import logging

import numpy as np
import pandas as pd
import pytest
import torch
from programs import Verbs, fasta

from featuremill import __main__, features
from featuremill.base.errors import UserError
from featuremill.steps.heads import card, intervals
from featuremill.steps.heads import network as network_of
from featuremill.steps.heads.labels import read

SAMPLES = "abcdef"
PATIENT = {"a": "one", "b": "one"}
"""Of two samples; each other one is of its own."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(logging.getLogger("featuremill"), "handlers", [])
    monkeypatch.setattr(intervals, "RESAMPLES", 50)
    torch.set_num_threads(1)


def kind_of(sample, n):
    """Return the class of record p<n> of a sample: that of the next sample is the other one."""
    return "xy"[(n + SAMPLES.index(sample)) % 2]


def proteins(sample, rng):
    """Return records p0 to p7, whose residues tell their class."""
    letters = {"x": "DEFGHIK", "y": "LMNPQRS"}
    return [(f"p{n}", "".join(rng.choice(list(letters[kind_of(sample, n)]), 30))) for n in range(8)]


def write_sheet(folder, of_sample, **others):
    """Write a file a sample, and a sheet that names them."""
    rows = ["\t".join(["sample", "file", *others])]
    for sample, records in of_sample.items():
        (folder / f"{sample}.fa").write_text(fasta(records))
        rows.append("\t".join([sample, f"{sample}.fa", *(of[sample] for of in others.values())]))
    (folder / "samples.tsv").write_text("\n".join(rows) + "\n")


def computed(folder, environment, of_sample, sheet, **options):
    """Compute a run of these samples in `folder`; return where its results are."""
    folder.mkdir()
    verbs = Verbs(folder, environment)
    write_sheet(folder, of_sample, **sheet)
    told = {"samples": "samples.tsv", "inputs": [], "options": options}
    verbs.extract(verbs.plan([], more=("--threads", "1"), **told))
    asked = json.dumps({"workload": "composition", "outputs": ["parquet"], **told})
    verbs("merge", verbs.run_folder.root, "--config-json", asked)
    return verbs.run_folder.root


@pytest.fixture(scope="module")
def runs(tmp_path_factory, environment):
    """Return two finished runs of six samples that have the same ids and other sequences; the
    second has no record p3 of b."""
    folder = tmp_path_factory.mktemp("line")
    rng = np.random.default_rng(0)
    of_sample = {sample: proteins(sample, rng) for sample in SAMPLES}
    sheet = {
        "patient": {s: PATIENT.get(s, s) for s in SAMPLES},
        "site": {s: ["lake", "sea", ""][SAMPLES.index(s) % 3] for s in SAMPLES},
    }
    one = computed(folder / "one", environment, of_sample, sheet)
    less = of_sample | {"b": [(id, s) for id, s in of_sample["b"] if id != "p3"]}
    return one, computed(folder / "two", environment, less, sheet, hydropathy=False)


@pytest.fixture
def labels(tmp_path):
    """Return a table of labels of some records of each sample, in another order."""
    rows = [f"{s},p{n},{kind_of(s, n)}" for n in range(6) for s in reversed(SAMPLES)]
    (tmp_path / "labels.csv").write_text("\n".join(["sample,id,kind", *rows]) + "\n")
    return tmp_path / "labels.csv"


def head(*words, status=0):
    assert __main__.main(["head", *map(str, words)]) == status


def test_a_head_knows_whose_record_an_id_is(runs, labels, tmp_path):
    """Labels, vectors, held-out scores and what lacks are joined by sample and id: each join by the
    id alone would take another sample's, whose class is the other one."""
    words = ("--labels", labels, "--column", "kind", "--output", tmp_path / "h")
    head("train", *runs, "--vectors", "composition", *words)
    held_out = pd.read_parquet(tmp_path / "h/held_out.parquet")
    assert len(held_out) == 35
    assert (held_out["group"] == held_out["sample"]).all()
    kinds = [
        kind_of(s, int(id[1:])) for s, id in zip(held_out["sample"], held_out["id"], strict=True)
    ]
    assert held_out["label"].tolist() == kinds
    assert card.Card.read(tmp_path / "h/head.json").scores["accuracy"][0] == 1
    page = (tmp_path / "h/head.html").read_text()
    assert '<td class="text"><bdi>b</bdi></td><td class="number">5</td>' in page
    (lacks,) = rows_of(tmp_path / "h/missing.tsv")
    assert lacks == {
        "sample": "b",
        "id": "p3",
        "run": str(runs[1]),
        "reason": "it has no such record",
    }
    for name in ("p.tsv", "p.parquet"):
        head("predict", tmp_path / "h", *runs, "--output", tmp_path / name)
    rows = rows_of(tmp_path / "p.tsv")
    assert [row["class"] for row in rows] == [kind_of(r["sample"], int(r["id"][1:])) for r in rows]
    assert [row["seen_in_training"] for row in rows] == [
        "yes" if int(row["id"][1:]) < 6 else "no" for row in rows
    ]
    assert rows_of(tmp_path / "p.missing.tsv") == [lacks]
    # Each row has the scores of its own record's vectors, or of the head that did not see it.
    one, two = (features.open(run, "composition") for run in runs)
    scored = pd.read_parquet(tmp_path / "p.parquet")
    ids = (scored["sample"] + "/" + scored["id"]).tolist()
    x = [of.take(np.array([of.rows_of(ids)[id] for id in ids])) for of in (one, two)]
    _, tensors = card.read(tmp_path / "h")
    expected = pd.DataFrame(network_of.softmax(network_of.logits(tensors, np.hstack(x))), ids)
    expected.loc[(held_out["sample"] + "/" + held_out["id"]).tolist()] = held_out[
        ["score_x", "score_y"]
    ].to_numpy()
    np.testing.assert_array_equal(scored[["score_x", "score_y"]], expected)


def test_a_group_is_the_sample_unless_a_column_says_otherwise(runs, labels):
    """A column of the labels comes first, then one of the sheet: two samples of one patient."""
    of = features.open(runs[0], "composition")
    default = read(of, labels, "kind", None)
    assert {id: one.group for id, one in default.of_id.items()} == {
        f"{s}/p{n}": s for s in SAMPLES for n in range(6)
    }
    assert default.used.group == "sample"
    patients = read(of, labels, "kind", "patient")
    assert {patients.of_id[id].group for id in ("a/p1", "b/p2")} == {"one"}
    assert patients.of_id["c/p1"].group == "c"
    own = read(of, labels, "kind", "id")
    assert own.of_id["c/p1"].group == "p1"
    with pytest.raises(UserError, match=r"sample '[cf]' has no site in the sheet"):
        read(of, labels, "kind", "site")


def test_labels_may_be_of_samples(runs, tmp_path):
    of = features.open(runs[0], "composition")
    found = read(of, None, "site", None)
    assert {id: one[:2] for id, one in found.of_id.items()} == {
        f"{s}/p{n}": (["lake", "sea"][SAMPLES.index(s) % 3], s) for s in "abde" for n in range(8)
    }
    assert (found.num_empty, found.used.file, found.used.column) == (2, "samples.tsv", "site")
    assert {one.group for one in read(of, None, "site", "patient").of_id.values()} == {
        "one",
        "d",
        "e",
    }
    for column, group, problem in [
        ("kind", None, "no column 'kind'; it has sample, patient and site"),
        ("site", "genus", "no column 'genus'"),
    ]:
        with pytest.raises(UserError, match=problem):
            read(of, None, column, group)


def test_features_of_samples_are_not_joined_with_others(runs, labels, tmp_path, environment, capfd):
    (tmp_path / "none").mkdir()
    verbs = Verbs(tmp_path / "none", environment)
    verbs.extract(verbs.plan([("a/p1", "MKV")]))
    verbs(
        "merge",
        verbs.run_folder.root,
        "--config-json",
        json.dumps({"workload": "composition", "inputs": ["input.fa"], "outputs": ["parquet"]}),
    )
    words = ("--labels", labels, "--column", "kind", "--output", tmp_path / "h")
    both = (runs[0], verbs.run_folder.root)
    head("train", *both, "--vectors", "composition", *words, status=2)
    assert "its records are of samples, and those of" in capfd.readouterr().err
    alone = ("--column", "kind", "--output", tmp_path / "h", "--vectors", "composition")
    head("train", both[1], *alone, status=2)
    assert "it is a run without samples" in capfd.readouterr().err


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))
