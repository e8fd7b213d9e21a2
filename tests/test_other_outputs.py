"""Outputs that another package registers: every verb that looks at results knows them."""

import json
import os
import re

import numpy as np
import pytest
import yaml
from conftest import PLUGINS
from programs import NO_REPORT, Workflow, random_records

import featuremill
from featuremill.store.files import temporary_folder

RECORDS = random_records(12)


class Delivering(Workflow):
    """A run with outputs of another package."""

    def configure(self, *outputs, **_):
        config = {"run": "test", "inputs": "in.fa", "workload": "composition", "device": "cpu"}
        config["outputs"] = list(outputs or ("parquet", "letters", "ids"))
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def others(environment):
    paths = [environment["PYTHONPATH"], str(PLUGINS / "outputs")]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def done(tmp_path_factory, others):
    run = Delivering(tmp_path_factory.mktemp("others"), others, RECORDS)
    run(NO_REPORT)
    return run


@pytest.fixture
def run(done, tmp_path):
    return done.copy(tmp_path)


def status(run, *more, expected=0):
    said = run.verb("status", "results/test", "--json", *more, status=expected).out
    return {problem["code"] for problem in json.loads(said)["problems"]}


def test_the_results_are_told_read_and_searched(run):
    root = run.run_folder.root
    ids = [id for id, _ in RECORDS]
    assert (root / "ids.txt").read_text().split() == ids
    assert json.loads((root / "ids.txt.json").read_text())["workload"] == "composition"
    assert (root / "letters" / "p" / "ids.txt").read_text().split() == ids
    told = json.loads(run.run_folder.delivery.read_text())["outputs"]
    assert set(told) == {"embeddings.parquet", "letters", "ids.txt"}
    assert told["letters"]["bytes"] == told["ids.txt"]["bytes"] > 0
    assert status(run, "--verify") == set()
    assert "Nothing to be done" in run(NO_REPORT)
    assert featuremill.load(root).index.tolist() == ids
    words = ("search", "results/test", "--query", ids[0], "--vectors", "composition")
    assert ids[0] in run.verb(*words).out
    said = run.verb("merge", "results/test").err
    assert "letters" in said and "ids.txt" in said, "the last merge's outputs are the usual ones"


def test_an_edit_inside_a_folder_is_seen(run):
    path = run.run_folder.root / "letters" / "p" / "ids.txt"
    whole = path.read_text()
    path.write_text(whole[:-1] + "?")
    assert status(run, expected=1) == {"output_damaged"}
    path.write_text(whole)
    assert status(run) == set()
    path.write_text(whole + "more\n")
    assert status(run, expected=1) == {"output_damaged"}
    run(NO_REPORT)
    assert path.read_text() == whole and status(run) == set()


def test_export_writes_them_and_clean_removes_what_they_are_made_of(run):
    run.configure("npy")
    run(NO_REPORT)
    root = run.run_folder.root
    assert not (root / "letters").exists() and not (root / "ids.txt.json").exists()
    run.verb("export", "results/test", "--to", "letters", "ids")
    assert set(json.loads((root / "exports.json").read_text())) == {"letters", "ids.txt"}
    (root / "letters" / "p" / "ids.txt").unlink()
    assert status(run, expected=0) == {"export_damaged"}
    said = run.verb("status", "results/test", "--json").out
    run.verb(*re.search(r"featuremill (export \S+ --to letters) writes it again", said)[1].split())
    assert status(run) == set()
    half = temporary_folder(root / "letters") / "p"
    half.mkdir()
    (half / "ids.txt").write_text("p0.0\n")
    os.utime(half / "ids.txt", (10**9, 10**9))
    run.verb("clean", "results/test", "--keep", "results", "--yes")
    assert not half.parent.exists() and (root / "letters" / "p" / "ids.txt").exists()
    assert len(np.load(root / "embeddings.npy")) == len(RECORDS)
    said = run.verb("search", "results/test", "--query", "p0.0", status=2).err
    assert "this part of the run was removed, and vectors are read from parts" in said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "nowhere",
            "output nowhere of package featuremill-letters cannot be imported (ModuleNotFoundError:"
            " No module named 'featuremill_of_nobody'); that is for its author to fix.",
        ),
        (
            "greedy",
            "output greedy of package featuremill-letters cannot call its file 'manifest': it is "
            "another output's, the run's own, or no plain name; that is for its author to fix.",
        ),
    ],
)
def test_a_broken_one_is_told_by_its_package_and_is_in_nobodys_way(run, name, sentence):
    for verb, option in (("export", "--to"), ("merge", "--outputs")):
        said = run.verb(verb, "results/test", option, name, status=2).err
        assert sentence in " ".join(said.split())
    assert status(run) == set()
    run.configure(name)
    assert sentence.rpartition(";")[0] in " ".join(run(NO_REPORT, status=1).split())


def test_what_a_writer_does_wrong_is_told_by_its_package(run):
    run.environment["LETTERS_FAIL"] = "1"
    said = run.verb("export", "results/test", "--to", "letters", "--output", "there", status=1).err
    assert re.search(
        r"error: output letters of package featuremill-letters: write raised KeyError: 'letter'; "
        r"that is for its author to fix\.$",
        said.strip(),
    )
    assert not list((run.folder / "there").iterdir())
