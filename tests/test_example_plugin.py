"""The package of somebody else's in examples/plugin, built and used beside featuremill's wheel."""

import contextlib
import csv
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from hatchling.build import build_wheel
from programs import Desk
from test_containers import stand_in_for_conda, verbs_and_environments

import featuremill
from featuremill.store.results import Results

EXAMPLE = ROOT / "examples" / "plugin"


def wheels(place, *packages):
    """Return a folder with what the wheels of `packages` hold, as pip lays it out."""
    for package in packages:
        with contextlib.chdir(package):
            name = build_wheel(str(place))
        zipfile.ZipFile(place / name).extractall(place / "site")
    return place / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return wheels(tmp_path_factory.mktemp("wheels"), ROOT, EXAMPLE)


class Terms(Desk):
    """The example's folder, without its code."""

    @property
    def run_folder(self):
        return Results(self.folder / "results" / "terms")

    def __call__(self, *words, status=0):
        return self.type("featuremill", *words, status=status).text

    def compute(self):
        """Run; return the names of the parts that were computed for it."""
        before = self.parts()
        self("run", "config.yaml", "--", "merge")
        return self.parts() - before

    def parts(self):
        return set(self.run_folder.store.rglob("*.arrows"))


def terms_in(folder, environment, site):
    mine = {**environment, "PYTHONPATH": str(site), "FEATUREMILL_CACHE": str(folder / "cache")}
    code = shutil.ignore_patterns("featuremill_terms", "pyproject.toml", "__pycache__")
    shutil.copytree(EXAMPLE, folder / "mine", ignore=code)
    return Terms(folder / "mine", mine)


@pytest.fixture
def terms(site, tmp_path, environment):
    return terms_in(tmp_path, environment, site)


def expected():
    """Return each good text's vector, and all lines of terms.tsv, word by word and by hand."""
    glossary = dict(
        line.split("\t") for line in (EXAMPLE / "glossary.tsv").read_text().splitlines()
    )
    lines = (EXAMPLE / "vectors" / "vectors.tsv").read_text().splitlines()
    rows = (line.split("\t") for line in lines)
    vectors = {word: np.array(numbers, float) for word, *numbers in rows}
    means, lines = {}, []
    with (EXAMPLE / "texts.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            words = "".join(c if c.isalnum() or c == "-" else " " for c in row["text"].lower())
            known = [vectors[word] for word in words.split() if word in vectors]
            if known:
                means[row["id"]] = np.mean(known, axis=0)
            found = {}
            for term, category in sorted(glossary.items(), key=lambda item: -len(item[0])):
                start = f" {words} ".find(f" {term.lower()} ")
                while start >= 0:
                    found[start] = [row["id"], term.lower(), category, str(start)]
                    start = f" {words} ".find(f" {term.lower()} ", start + 1)
            lines += [found[start] for start in sorted(found)]
    return means, lines


@pytest.mark.slow
def test_it_runs_from_two_wheels_with_its_own_output_and_reasons(terms, site):
    said = terms("run", "config.yaml")
    assert "22 of 24 records have features" in said and "Traceback" not in said
    means, lines = expected()
    root = terms.run_folder.root
    table = featuremill.load(root)
    assert list(table.index) == list(means) and len(means) == 22
    np.testing.assert_allclose(np.stack(table["embedding"]), list(means.values()), atol=1e-6)
    written = [line.split("\t") for line in (root / "terms.tsv").read_text().splitlines()]
    assert written == [["id", "term", "category", "start"], *lines] and len(lines) > 25
    assert table.loc["t02", "densest"] == {
        "sentence": "Like most, the protease needs water; it is a hydrolase.",
        "start": 33,
        "terms": 2,
    }
    assert np.load(root / "embeddings.npy").shape == (22, 8)

    status = json.loads(terms("status", "results/terms", "--json", status=2))
    (failure,) = status["reasons"]
    assert failure["kind"] == "unknown_words" and failure["number"] == 2
    (receipt,) = (root / "receipts").rglob("*.json")
    assert json.loads(receipt.read_text())["versions"]["numpy"] == np.__version__
    assert "Nothing to be done" in terms("run", "config.yaml", "-n")
    assert "characters" in terms("estimate", "config.yaml")


@pytest.mark.slow
def test_a_byte_of_the_glossary_computes_all_anew_and_a_move_nothing(terms):
    assert len(terms.compute()) == 1
    (terms.folder / "elsewhere").mkdir()
    for name in ("glossary.tsv", "vectors"):
        shutil.move(terms.folder / name, terms.folder / "elsewhere" / name)
    config = (terms.folder / "config.yaml").read_text()
    config = config.replace("glossary: ", "glossary: elsewhere/")
    (terms.folder / "config.yaml").write_text(config.replace("vectors: ", "vectors: elsewhere/"))
    os.utime(terms.folder / "elsewhere" / "glossary.tsv")
    assert terms.compute() == set()
    glossary = terms.folder / "elsewhere" / "glossary.tsv"
    glossary.write_text(glossary.read_text().replace("toxin\tdefence", "toxin\tdefense"))
    assert len(terms.compute()) == 1
    assert "toxin\tdefense" in (terms.run_folder.root / "terms.tsv").read_text()
    found = pq.read_table(terms.run_folder.root / "embeddings.parquet")["terms"].to_pylist()
    assert {term["category"] for row in found for term in row} >= {"defense", "enzyme"}


def test_its_mistakes_are_one_sentence_each(tmp_path, environment):
    """Beside this checkout's featuremill, of which a process can be forked."""
    terms = terms_in(tmp_path, environment, wheels(tmp_path, EXAMPLE))
    glossary = terms.folder / "glossary.tsv"
    glossary.write_text("kinase\tenzyme\nprotease\n")
    said = terms("run", "config.yaml", status=2)
    assert "glossary.tsv:2: a term, a tab and its category are meant" in said
    assert "Traceback" not in said and "please report" not in said


@pytest.mark.slow
def test_featuremills_test_of_any_workload_passes(terms):
    said = terms.type("pytest", "-q", "-p", "no:cacheprovider", "test_terms.py").out
    assert re.search(r"^\d+ passed in", said, re.MULTILINE)


@pytest.mark.slow
def test_its_jobs_run_in_the_environment_that_it_brings(terms, site, tmp_path):
    """With a stand-in for conda, which has what pip would bring."""
    terms.environment |= stand_in_for_conda(tmp_path / "base", terms.environment)
    (tmp_path / "base" / "pip").symlink_to(site)
    terms("run", "config.yaml", "--sdm", "conda")
    verbs = verbs_and_environments(tmp_path / "base")
    assert set(verbs) == {"weights", "plan", "extract", "merge", "report"}
    (environment,) = set(verbs.values())
    made_from = Path(f"{environment}.yaml").read_bytes()
    assert made_from == (site / "featuremill_terms" / "environment.yaml").read_bytes()
