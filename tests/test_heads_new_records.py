"""head predict of a file of records: what a run and predict give, or one sentence."""

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import read_sealed, write_sealed
from programs import Desk, Verbs, fasta
from test_heads import COLUMN, computed, head, proteins, refusal, table_of, write_labels

from featuremill.steps.heads import computed as computed_of
from featuremill.store.files import read_json

pytestmark = pytest.mark.usefixtures("few_draws")
TWICE = [("twice", "ACDEFGHIKL"), ("twice", "ACDEFGHIKL"), ("two", "MKVL"), ("two", "MKVLA")]
ODD = [("bad", "MK*LA"), ("empty", ""), ("x|a b", "MKTAYJAKQRQ"), ("lower", "mktayiakqrq")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, environment):
    """Return the folder of two heads on composition: of one column, and of two side by side."""
    folder = tmp_path_factory.mktemp("trained")
    run = computed(folder, environment, proteins(60))
    labels = write_labels(folder / "l.csv", [(f"p{n}", "xy"[n % 2], n // 2) for n in range(60)])
    words = ["--labels", labels, "--column", "kind"]
    head("train", run, *COLUMN, *words, "--output", folder / "one")
    both = ["--vectors", "composition", "--vectors", "hydropathy"]
    head("train", run, run, *both, *words, "--output", folder / "both")
    return folder


def predicted(folder, name, *words, suffix=".tsv"):
    output = folder / f"{name}{suffix}"
    head("predict", *words, "--output", output)
    missing = [(id, reason) for id, _, reason in table_of(folder / f"{name}.missing.tsv")]
    return output.read_bytes(), missing


@pytest.mark.parametrize("name", ["one", "both"])
def test_a_file_is_predicted_as_a_run_of_it_and_each_record_is_accounted_for(
    trained, tmp_path, environment, name, capfd
):
    given = [*proteins(9, seed=3), *TWICE, *ODD, *proteins(13)[9:]]  # it was trained on the last
    path = tmp_path / "new.fasta"
    path.write_text(fasta(given))
    run = computed(tmp_path, environment, given)
    by_run, without = predicted(tmp_path, "run", trained / name, *[run] * (1 + (name == "both")))
    capfd.readouterr()
    by_file, others = predicted(tmp_path, "file", trained / name, path)
    said = capfd.readouterr().err
    assert by_file == by_run
    inputs = read_json(run / "manifest.json")["inputs"]
    assert str(others) == str(without).replace(inputs[0]["path"], str(path)) and others
    rows = [*csv.DictReader(by_file.decode().splitlines(), delimiter="\t")]
    assert len(rows) + len(others) + 1 == len(given), "one is there twice"
    assert sum(row["seen_in_training"] == "yes" for row in rows) == 4
    assert "1 record is there again" in said and "1 record: J read as X" in said
    assert predicted(tmp_path, "p", trained / name, path, suffix=".parquet")[1] == others
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert found["id"].tolist() == [row["id"] for row in rows]


@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_no_record_of_a_file_gets_anothers_vector(trained, tmp_path, data):
    """Whatever repeats, fails or is refused, in whatever order."""
    names = st.sampled_from([f"r{n}" for n in range(6)])
    texts = st.sampled_from(["ACDE", "FGHI", "KLMN", "A", "", "M*K", "ACDEFGHIKLMNPQ"])
    given = data.draw(st.lists(st.tuples(names, texts), min_size=1, max_size=12))
    of_id = {}
    for id, text in given:
        of_id.setdefault(id, []).append(text)
    good = {id: t[0] for id, t in of_id.items() if len({*filter(str.isalpha, t)}) == 1}
    good = {id: next(x for x in of_id[id] if x.isalpha()) for id in good}
    path = tmp_path / "some.fasta"
    path.write_text(fasta(given))
    card = json.loads((trained / "one" / "head.json").read_text())
    part = computed_of.Part.model_validate(card["features"][0])
    if not good:
        return
    (found,) = computed_of.open_computed(trained / "one", path, [part], computed_of.Choices())
    ((ids, vectors),) = found.blocks()
    assert ids == [*dict.fromkeys(id for id, text in given if text.isalpha() and id in good)]
    letters = "ACDEFGHIKLMNPQRSTVWY"
    for id, vector in zip(ids, vectors, strict=True):
        wanted = [good[id].count(letter) / len(good[id]) for letter in letters]
        np.testing.assert_array_equal(vector, np.float32(wanted))
    refused = [failure.id for failure in found.failures()]
    num_equal = sum(sum(map(str.isalpha, of_id[id])) - 1 for id in good)
    assert len(ids) + len(refused) + num_equal == len(given)


@pytest.fixture(scope="module")
def esm2(tmp_path_factory, environment):
    """Return verbs with a head on the bundled model, and its weights beside results/."""
    folder = tmp_path_factory.mktemp("esm2")
    verbs = Verbs(folder, environment | {"FEATUREMILL_CACHE": str(folder / "cache")})
    verbs("weights", "mill_t6_8M", "--output", "weights/mill_t6_8M.json")
    more = ["--weights", "weights/mill_t6_8M.json"]
    options = {"long": "chunk", "max_residues": 40, "chunk_overlap": 8}
    verbs.merged(proteins(24), "esm2", options, 100_000, more)
    rows = [(f"p{n}", "xy"[n % 2], n) for n in range(24)]
    labels = write_labels(folder / "labels.csv", rows)
    words = ["--labels", labels, "--column", "kind", "--output", folder / "h"]
    head("train", verbs.run_folder.root, *words)
    return verbs, options


def test_a_model_gives_the_bits_of_a_run_and_no_other_one_is_taken(esm2, tmp_path, capfd):
    verbs, options = esm2
    given = proteins(11, seed=5)
    path = tmp_path / "new.fasta"
    path.write_text(fasta(given))
    (tmp_path / "run").mkdir()
    other = Verbs(tmp_path / "run", verbs.environment)
    weights = verbs.folder / "weights" / "mill_t6_8M.json"
    run = other.merged(given, "esm2", options, 100_000, ["--weights", weights])
    by_run, _ = predicted(tmp_path, "run", verbs.folder / "h", run)
    by_file, _ = predicted(tmp_path, "file", verbs.folder / "h", path)
    assert by_file == by_run
    # The head alone, elsewhere: weights are named; others are refused.
    shutil.copytree(verbs.folder / "h", tmp_path / "h")
    card = tmp_path / "h" / "head.json"
    about = read_sealed(card)
    settings_of = about["features"][0]["settings"]
    sha256 = settings_of["weights_sha256"]
    about["features"][0]["run"] = "gone"
    write_sealed(card, about)
    words = ["predict", tmp_path / "h", path, "--output", tmp_path / "p.tsv"]
    said = refusal(capfd, *words)
    assert f"the weights that {tmp_path / 'h'} was computed with are not here" in said
    assert "featuremill weights mill_t6_8M --workload esm2 --output weights/mill_t6_8M.json" in said
    assert not (tmp_path / "p.tsv").exists()
    head(*words, "--weights", weights)
    assert (tmp_path / "p.tsv").read_bytes() == by_run
    settings_of["weights_sha256"] = "1" * 64
    write_sealed(card, about)
    assert "these are other weights than those of" in refusal(capfd, *words, "--weights", weights)
    settings_of |= {"version": "0", "weights_sha256": sha256}
    write_sealed(card, about)
    said = refusal(capfd, *words, "--weights", weights)
    assert "of workload esm2 and not version 0, which computed it" in said


def test_what_cannot_be_computed_is_one_sentence(trained, tmp_path, capfd):
    words = ["--output", tmp_path / "p.tsv"]
    (tmp_path / "none.fasta").write_text(">a\nM*K\n>b\n\n")
    said = refusal(capfd, "predict", trained / "one", tmp_path / "none.fasta", *words)
    assert "none.fasta: none of its 2 records has features; the first is 'a' (refused: " in said
    (tmp_path / "no.fasta").write_text("")
    assert "no.fasta: " in refusal(capfd, "predict", trained / "one", tmp_path / "no.fasta", *words)
    said = refusal(capfd, "predict", trained / "one", *[tmp_path / "none.fasta"] * 2, *words)
    assert "this head takes 20 numbers (composition), and 2 are given" in said
    assert not (tmp_path / "p.tsv").exists()


def test_new_proteins_are_classified_by_what_is_installed(trained, tmp_path, environment):
    """From an empty folder: only the head and the file."""
    (tmp_path / "new.fasta").write_text(fasta(proteins(3, seed=1)))
    words = ("head", "predict", trained / "one", "new.fasta", "--output", "p.tsv")
    Desk(tmp_path, environment).type("featuremill", *words)
    assert [row[0] for row in table_of(tmp_path / "p.tsv")] == ["p0", "p1", "p2"]
