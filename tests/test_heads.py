"""head: fitted as the bundled model was judged, applied to the right vectors, or one sentence."""

import csv
import hashlib
import json
import os
import re
import shutil
import sys
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import vl_convert
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Desk, Verbs, fasta, sentence_of
from safetensors.numpy import load_file
from safetensors.torch import save_file
from scipy.stats import t
from sklearn import metrics
from torch import nn

import featuremill
from featuremill import __main__
from featuremill.base import devices
from featuremill.base.errors import UserError
from featuremill.features import index
from featuremill.features import records as feature_records
from featuremill.features.records import Features
from featuremill.features.table import Column, Stored, Table
from featuremill.inputs.labels import Label
from featuremill.merge.command import merge
from featuremill.steps.heads import Head, card, charts, figures, fitting, page, predict, train
from featuremill.steps.heads import network as network_of
from featuremill.steps.heads.card import Card
from featuremill.steps.heads.examples import Examples, refuse_unfit
from featuremill.steps.heads.fitting import (
    Logistic,
    Ridge,
    Rows,
    chosen_and_fitted,
    fitted_folds,
    out_of_fold,
)
from featuremill.steps.heads.joined import Joined
from featuremill.steps.heads.predict import refuse_other_features
from featuremill.store.results import Results

pytestmark = pytest.mark.usefixtures("few_draws")
COLUMN = ["--vectors", "composition"]


def proteins(count, seed=0):
    """Return records of two kinds that composition tells apart more often than not."""
    rng = np.random.default_rng(seed)
    kinds = [list(2 * letters) for letters in ("DEFGHIKLMN", "FGHIKLMNPQ")]
    of = [kinds[(n + (n % 7 == 0)) % 2] for n in range(count)]
    return [(f"p{n}", "".join(rng.choice(of[n], rng.integers(20, 60)))) for n in range(count)]


def computed(folder, environment, records, outputs=("parquet",), **options):
    """Compute a run of these records in `folder`; return where its results are."""
    verbs = Verbs(folder, environment)
    return verbs.merged(records, cost=100_000, options=options, outputs=outputs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, environment):
    """Return two finished runs: the second lacks some records of the first, has others, and another
    recipe; one record fails to be taken by either."""
    folder = tmp_path_factory.mktemp("runs")
    records = [*proteins(120), ("bad", "MK*LA")]
    others = [*records[:5:-1], ("only_here", "ACDEFG"), ("p3", "MK1")]
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    one = computed(folder / "one", environment, records)
    return one, computed(folder / "two", environment, others, ("parquet", "npy"), hydropathy=False)


def write_labels(path, rows, head="id,kind,family"):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.fixture
def labels(tmp_path):
    rows = [(f"p{n}", "xy"[n % 2], n // 4) for n in range(120)]
    return write_labels(tmp_path / "labels.csv", rows)


@pytest.fixture
def words(labels, tmp_path):
    """Return what names the labels of a head, and where it goes."""
    return ["--labels", labels, "--column", "kind", "--output", tmp_path / "h"]


def head(*words, status=0):
    assert __main__.main(["head", *map(str, words)]) == status


def refusal(capfd, *words, status=2):
    return sentence_of(capfd, "head", *words, status=status)


def card_of(folder):
    return json.loads((folder / "head.json").read_text())


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def table_of(path):
    """Return the rows of a TSV, each a tuple."""
    with path.open(newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t")
    return [tuple(row) for row in rows]


# ---- what a head says is what its tensors say ----


def forward(tensors, x):
    """Return the softmax scores, by plain NumPy in float64."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = x.astype(np.float64)
    if "mean" in tensors:
        x = (x - tensors["mean"]) / tensors["scale"]
    if "weight" in tensors:
        found = x @ tensors["weight"].T + tensors["bias"]
    else:
        found = x @ tensors["hidden_layer.weight"].T + tensors["hidden_layer.bias"]
        found = (found - tensors["bn1.running_mean"]) / np.sqrt(tensors["bn1.running_var"] + 1e-5)
        found = np.maximum(found * tensors["bn1.weight"] + tensors["bn1.bias"], 0)
        found = found @ tensors["output_layer.weight"].T + tensors["output_layer.bias"]
    powers = np.exp(found - found.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
def test_predictions_are_the_forward_pass_or_held_out_where_the_head_saw_the_record(
    runs, labels, words, tmp_path, kind
):
    labels.write_text("\n".join(labels.read_text().splitlines()[:101]) + "\n")
    words = [runs[0], *COLUMN, *words, "--group", "family", "--kind", kind]
    head("train", *words)
    outputs = [tmp_path / "p.tsv", tmp_path / "p.parquet"]
    for output in outputs:
        head("predict", tmp_path / "h", runs[0], "--output", output)
    ids, vectors = featuremill.load_matrix(runs[0], "composition")
    scores = forward(load_file(tmp_path / "h" / "head.safetensors"), vectors)
    told = pd.read_parquet(tmp_path / "h" / "held_out.parquet")
    assert told["sha256"].is_monotonic_increasing and len(told) == 100
    assert ids[:100] == [f"p{n}" for n in range(100)]
    told = told.set_index("id").loc[ids[:100]]
    assert told["label"].tolist() == ["xy"[n % 2] for n in range(100)]
    own = scores[:100].copy()
    scores[:100] = told[["score_x", "score_y"]]
    assert np.abs(own - scores[:100]).max() > 0.01
    for found in (pd.read_csv(outputs[0], sep="\t"), pd.read_parquet(outputs[1])):
        assert found["id"].tolist() == ids
        np.testing.assert_allclose(found[["score_x", "score_y"]], scores, atol=1e-6, rtol=0)
        assert found["class"].tolist() == ["xy"[number] for number in scores.argmax(1)]
        assert found["seen_in_training"].tolist() == ["yes"] * 100 + ["no"] * 20
    about = card_of(tmp_path / "h")
    assert about["features"][0]["recipe"] == Results(runs[0]).find_plan().recipe
    guesses = dict.fromkeys(["accuracy", "balanced_accuracy", "auc"], 0.5)
    assert about["guesses"] == {**guesses, "macro_f1": 1 / 3, "mcc": 0.0, "brier": 0.25}
    assert about["scores"].keys() == about["guesses"].keys()
    assert about["counts"]["groups"] == 25  # families
    value, low, high = about["scores"]["auc"]
    assert 0.5 < low < value < high <= 1
    assert sum(map(sum, about["confusion"])) == about["counts"]["records"] == 100
    right = (told["label"] == np.array(["x", "y"])[scores[:100].argmax(1)]).mean()
    assert np.isclose(about["scores"]["accuracy"][0], right)
    # Trained once more, over the first: the same bytes.
    before = bytes_of(tmp_path / "h")
    head("train", *words)
    assert bytes_of(tmp_path / "h") == before


class MLPClassifier(nn.Module):
    """A network of VirNucPro's shape, with names as there or with others."""

    def __init__(self, width, classes=2, names=("hidden_layer", "bn1", "output_layer")):
        super().__init__()
        layers = (nn.Linear(width, 512), nn.BatchNorm1d(512), nn.Linear(512, classes))
        for name, layer in zip(names, layers, strict=True):
            self.add_module(name, layer)
        self.dropout = nn.Dropout(0.5)
        self.order = names

    def forward(self, x):
        first, norm, last = (getattr(self, name) for name in self.order)
        return last(self.dropout(torch.relu(norm(first(x)))))


def network(width, **more):
    """Return one with weights and statistics of no special kind."""
    torch.manual_seed(0)
    made = MLPClassifier(width, **more)
    with torch.no_grad():
        for _ in range(3):
            made(torch.randn(64, width) * 2 + 1)
    return made.eval()


def pt_files(folder, count=30, dna=6, protein=9):
    """Write VirNucPro's files of `count` records, two of a kind, the proteins' in another order;
    return the ids and the vectors side by side."""
    rng = np.random.default_rng(2)
    ids = [f"s{n}F{n % 3 + 1}" for n in range(count)]
    left, right = (rng.normal(size=(count, n)).astype(np.float32) for n in (dna, protein))
    order = rng.permutation(count)
    for number, places in enumerate(np.array_split(np.arange(count), 2), 1):
        means = [{"label": ids[n], "mean_representation": left[n].tolist()} for n in places]
        told = {"nucleotide": [ids[n] for n in places], "data": means}
        torch.save(told, folder / f"output_{number}_DNABERT_S.pt")
        both = torch.from_numpy(np.hstack([left, right])[places])
        torch.save({"ids": [ids[n] for n in places], "data": both}, folder / f"{number}_merged.pt")
    for number, places in enumerate(np.array_split(order, 2), 1):
        told = {"proteins": [ids[n] for n in places], "version": "1", "status": "done"}
        told["data"] = [torch.from_numpy(right[n].copy()) for n in places]
        torch.save(told, folder / f"output_{number}_ESM.pt")
    return ids, np.hstack([left, right])


def import_words(path, output, dims="6,9"):
    return ("import", path, "--classes", "others,virus", "--dims", dims, "--output", output)


@pytest.fixture
def imported(tmp_path):
    """Return a head of VirNucPro's that was imported, in h, and its network."""
    model = network(15)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    head(*import_words(tmp_path / "model.pth", tmp_path / "h"))
    return model


def scores_of(model, x):
    """Return what the network itself gives, in float64."""
    with torch.no_grad():
        return model.double()(torch.from_numpy(x).double()).softmax(1).numpy()


def test_virnucpros_head_and_features_give_what_its_own_network_gives(imported, tmp_path, capfd):
    ids, both = pt_files(tmp_path)
    wanted = scores_of(imported, both)
    kinds = ("DNABERT_S", "ESM", "merged")
    dna, protein, merged = (sorted(tmp_path.glob(f"*_{kind}.pt")) for kind in kinds)
    output = tmp_path / "p.tsv"
    for given_files in ([*dna, *protein], merged):
        head("predict", tmp_path / "h", *given_files, "--any-recipe", "--output", output)
        found = pd.read_csv(output, sep="\t")
        assert found["id"].tolist() == ids
        scores = found[["score_others", "score_virus"]]
        np.testing.assert_allclose(scores, wanted, atol=1e-6, rtol=0)
        assert not table_of(tmp_path / "p.missing.tsv")
    # One file less: its ids are told of, and nobody gets zeros in their place.
    head("predict", tmp_path / "h", *dna, protein[0], "--any-recipe", "--output", output)
    lacking = {row[0] for row in table_of(tmp_path / "p.missing.tsv")}
    there = torch.load(protein[0])["proteins"]
    assert lacking == set(ids) - set(there) and len(lacking) == 15
    assert pd.read_csv(output, sep="\t")["id"].tolist() == [id for id in ids if id in set(there)]
    sentence = refusal(capfd, "predict", tmp_path / "h", *merged, "--output", tmp_path / "q.tsv")
    assert "the recipe of its features is an unknown one" in sentence
    # Again it takes the place of what was imported; what was trained here would be lost.
    head(*import_words(tmp_path / "model.pth", tmp_path / "h"))
    card = tmp_path / "h" / "head.json"
    Card.read(card).model_copy(update={"source": None}).write(card)
    before = card.read_bytes()
    sentence = refusal(capfd, *import_words(tmp_path / "model.pth", tmp_path / "h"))
    assert "h: this head was trained here, and importing would delete it; name" in sentence
    assert card.read_bytes() == before
    swapped = ("predict", tmp_path / "h", *protein, *dna, "--any-recipe", "--output", output)
    assert "this head takes 6 numbers and 9 numbers side by side" in refusal(capfd, *swapped)
    assert "have 9 (" in refusal(capfd, *swapped)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"ids": ["a", "b"], "data": torch.ones(3, 15)}, "ValueError: 2 ids and 3 vectors"),
        ({"names": ["a"]}, "ValueError: it holds names)"),
        ({}, "ValueError: it holds nothing)"),
        ({"ids": ["a", "b", "a"], "data": torch.ones(3, 15)}, "1 and 3 are both called 'a'"),
        ({"ids": ["a", "b"], "data": torch.tensor([[1.0] * 15, [torch.nan] * 15])}, "record 'b'"),
        (
            {"nucleotide": ["a"], "data": [{"label": "b", "mean_representation": [1.0] * 6}]},
            "record 1 is 'a' and 'b'",
        ),
        (SimpleNamespace(), "UnpicklingError"),
        (b"no zip", "it is not what VirNucPro keeps features in"),
        ({"ids": [], "data": []}, "it is not what VirNucPro keeps features in"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("imported")
def test_files_that_virnucpro_did_not_write_so_are_refused(tmp_path, capfd, told, sentence):
    path = tmp_path / "x_merged.pt"
    path.write_bytes(told) if isinstance(told, bytes) else torch.save(told, path)
    words = ("predict", tmp_path / "h", path, path, "--any-recipe", "--output", tmp_path / "p.tsv")
    if isinstance(told, dict) and "ids" in told:
        words = words[:3] + words[4:]
    assert sentence in refusal(capfd, *words)
    assert not (tmp_path / "p.tsv").exists() and not (tmp_path / "p.missing.tsv").exists()


@pytest.mark.usefixtures("imported")
def test_sequences_in_place_of_features_are_told_how_to_become_some(tmp_path, capfd):
    (tmp_path / "new.fasta").write_text(">a\nMKV\n")
    words = ("predict", tmp_path / "h", tmp_path / "new.fasta", "--output", tmp_path / "p.tsv")
    said = refusal(capfd, *words)
    assert "was imported and does not contain how its features are computed; compute" in said
    assert "then featuremill run new.yaml" in said and "VirNucPro" not in said


# ---- taking over ----


@pytest.mark.parametrize(
    ("names", "wrap", "suffix"),
    [
        (("hidden_layer", "bn1", "output_layer"), lambda state: state, ".safetensors"),
        (("a", "b", "c"), lambda state: {"epoch": 3, "model_state_dict": state}, ".pth"),
        (("fc2", "norm", "fc1"), lambda state: {f"module.{n}": t for n, t in state.items()}, ".pt"),
    ],
)
def test_a_state_dict_is_read_by_shape_whatever_its_names(tmp_path, names, wrap, suffix):
    model = network(15, names=names)
    path = tmp_path / f"model{suffix}"
    state = wrap(model.state_dict())
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    head(*import_words(path, tmp_path / "h"))
    x = np.random.default_rng(1).normal(size=(20, 15))
    found = forward(load_file(tmp_path / "h" / "head.safetensors"), x)
    np.testing.assert_allclose(found, scores_of(model, x), atol=1e-9)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert card_of(tmp_path / "h")["source"]["sha256"] == sha256


def pickle_of(path, monkeypatch, model):
    """Write a whole model as a script does: its class is one of `__main__`, which is not here."""
    monkeypatch.setattr(sys.modules["__main__"], "MLPClassifier", MLPClassifier, raising=False)
    monkeypatch.setattr(MLPClassifier, "__module__", "__main__")
    torch.save(model, path)
    return path


def test_a_whole_model_is_read_only_with_its_sha256(tmp_path, capfd, monkeypatch):
    model = network(15)
    path = pickle_of(tmp_path / "model.pth", monkeypatch, model)
    words = import_words(path, tmp_path / "h")
    sentence = refusal(capfd, *words)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"(sha256 {sha256})" in sentence and "any code that its maker put into it" in sentence
    assert sentence.endswith(f"--output {tmp_path / 'h'} --trust {sha256}")
    another = "0" * 64
    assert f"and --trust names {another}" in refusal(capfd, *words, "--trust", another)
    assert not (tmp_path / "h").exists()
    head(*sentence[sentence.index("head import") :].split()[1:])  # as it says
    x = np.random.default_rng(0).normal(size=(20, 15))
    found = forward(load_file(tmp_path / "h" / "head.safetensors"), x)
    np.testing.assert_allclose(found, scores_of(model, x), atol=1e-9)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch '{self.path}'; echo words",))


def test_code_in_a_pickle_runs_for_nobody_who_did_not_ask_for_it(tmp_path, capfd):
    path, mark = tmp_path / "model.pth", tmp_path / "mark"
    torch.save({"weight": Trap(mark)}, path)
    words = import_words(path, tmp_path / "h")
    sha256 = re.search(r"--trust (\w{64})", refusal(capfd, *words))[1]
    assert not mark.exists()
    assert "model.pth: it holds no tensor;" in refusal(capfd, *words, "--trust", sha256)
    assert mark.exists() and not (tmp_path / "h").exists()


@pytest.mark.parametrize(
    ("content", "more", "sentence"),
    [
        ({"a.weight": torch.ones(2, 3)}, (), "it holds a.weight (2, 3)"),
        (network(14), (), "--dims 6,9 with 2 --classes means (512, 15) and (2, 512)"),
        (network(15, classes=3), (), "(3, 512)"),
        ([1], (), "it is no state dict"),
        (b"rubbish", (), "it is neither safetensors nor a file of torch.save"),
        (b"PK\3\4rubbish", (), "torch cannot read it"),
        (network(15), ("--dims", "6,x"), "--dims: '6,x' are no whole numbers"),
        (network(15), ("--classes", "virus"), "--classes: virus are no two or more"),
        (None, (), "there is no such file"),
    ],
)  # fmt: skip
def test_what_is_no_head_is_refused(tmp_path, capfd, content, more, sentence):
    path = tmp_path / "model.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content.state_dict() if isinstance(content, nn.Module) else content, path)
    assert sentence in refusal(capfd, *import_words(path, tmp_path / "h"), *more)
    assert not (tmp_path / "h").exists()


# ---- no id meets another's vector ----


def features_at(path, rows, width, group_rows):
    """Return the features in a table of these (id, number): a vector is all that number."""
    ids = [id for id, _ in rows]
    values = np.repeat([float(number) for _, number in rows], width).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
    table = pa.table({"id": pa.array(ids, pa.string()), "v": column})
    pq.write_table(table, path, row_group_size=group_rows)
    opened, which = Table(path), Column("v", width, False, 0, width)
    run = Results(path.parent)
    delivery = SimpleNamespace(recipe="r", settings=None)
    return Features(run, run, delivery, which, opened, Stored(opened, which), lambda: None)


IDS = st.lists(st.text(min_size=1, max_size=3), unique=True, min_size=1, max_size=30)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_id_meets_anothers_vector(tmp_path, monkeypatch, data):
    """Against a join by dictionaries; with hashes that tell nothing apart, too."""
    if data.draw(st.booleans()):
        monkeypatch.setattr(index, "_hashes", lambda ids: np.zeros(len(ids), np.uint64))
    monkeypatch.setattr(feature_records, "BLOCK_BYTES", data.draw(st.sampled_from([1, 64, 2**20])))
    ids = data.draw(IDS)
    held = []
    for number in range(data.draw(st.integers(1, 3))):
        here = [id for id in data.draw(st.permutations(ids)) if data.draw(st.booleans())]
        here = here or ids[:1]
        held.append([(id, 100 * number + ids.index(id)) for id in here])
    wanted = data.draw(st.one_of(st.none(), st.sets(st.sampled_from(ids))))
    group_rows = data.draw(st.integers(1, 9))
    paths = [tmp_path / f"{number}.parquet" for number in range(len(held))]
    parts = [features_at(paths[n], rows, n + 1, group_rows) for n, rows in enumerate(held)]
    told = []
    joined = Joined(parts, wanted)
    blocks = list(joined.blocks(told.append))
    found = [pair for some, lot in blocks for pair in zip(some, lot.tolist(), strict=True)]

    known = [dict(rows) for rows in held]
    asked = [id for id, _ in held[0] if wanted is None or id in wanted]
    whole = [id for id in asked if all(id in of_one for of_one in known)]
    vectors = [[of_one[id] for n, of_one in enumerate(known) for _ in range(n + 1)] for id in whole]
    assert found == list(zip(whole, vectors, strict=True))
    lacking = {(id, n) for id in asked for n, of_one in enumerate(known) if id not in of_one}
    assert len(told) == len(lacking) and {one.id for one in told} == {id for id, _ in lacking}
    if wanted is None:
        late = [one.id for one in joined.others()]
        others = set().union(*(of_one.keys() for of_one in known)) - known[0].keys()
        assert sorted(late) == sorted(others)


def test_what_lacks_somewhere_is_counted_and_listed(runs, labels, words, tmp_path):
    rows = [row.split(",") for row in labels.read_text().splitlines()[1:]]
    write_labels(labels, [*rows, ("nobody", "x", 1), ("bad", "y", 1), ("p5", "", 1)][6:])
    head("train", *runs, *COLUMN, *words)
    one, two = map(str, runs)
    found = table_of(tmp_path / "h" / "missing.tsv")
    assert {row[:2] for row in found} == {("nobody", one), ("bad", one)}
    reasons = {id: reason for id, _, reason in found}
    assert reasons["nobody"] == f"it has no such record (labelled in {labels}:116)"
    assert reasons["bad"].startswith("refused: ")
    counts = {"records": 114, "groups": 114, "missing": 2, "unlabelled": 6, "rows_without_label": 1}
    assert card_of(tmp_path / "h")["counts"] == counts
    head("predict", tmp_path / "h", *runs, "--output", tmp_path / "p.tsv")
    ids = [row[0] for row in table_of(tmp_path / "p.tsv")]
    assert ids == [f"p{n}" for n in range(6, 120)]
    found = table_of(tmp_path / "p.missing.tsv")
    lacking = [("only_here", one), ("bad", one)]  # the latter in the other run, too: once
    lacking += [(f"p{n}", two) for n in range(6)]
    assert sorted(row[:2] for row in found) == sorted(lacking)
    (why,) = (reason for id, _, reason in found if id == "p3")
    assert why.startswith("refused: ")


# ---- the recipe ----


def test_features_of_another_recipe_are_refused(runs, words, tmp_path, capfd):
    head("train", runs[0], *COLUMN, *words)
    recipes = [Results(run).find_plan().recipe for run in runs]
    output = ("--output", tmp_path / "p.tsv")
    sentence = refusal(capfd, "predict", tmp_path / "h", runs[1], *output)
    assert all(f"{recipe} (composition)" in sentence for recipe in recipes)
    assert "(here hydropathy False and not True)" in sentence and "--any-recipe" in sentence
    head("predict", tmp_path / "h", runs[1], *output, "--any-recipe")
    assert len(table_of(tmp_path / "p.tsv")) == 115
    takes = "this head takes 20 numbers (composition), and"
    narrow, column = f"{takes} the features given have 1 ", ("--vectors", "hydropathy")
    for asked, sentence in (
        ([tmp_path / "h", runs[0], *column, *output], narrow),
        ([tmp_path / "h", runs[0], *column, *output, "--any-recipe"], narrow),
        ([tmp_path / "h", *runs, *output], f"{takes} 2 are given"),
        ([tmp_path / "h", tmp_path / "no", *output], "is no such folder"),
        ([tmp_path, runs[0], *output], "there is no head here"),
        ([tmp_path / "h", runs[0], "--output", "p.txt"], "are a .tsv or a .parquet"),
    ):
        assert sentence in refusal(capfd, "predict", *asked)
    (tmp_path / "h" / "head.safetensors").write_bytes(b"")
    said = refusal(capfd, "predict", tmp_path / "h", runs[0], *output, status=4)
    assert "not that in head.json" in said


def test_two_columns_of_one_run_stand_side_by_side(runs, labels, words, tmp_path):
    labels.write_text("\n".join(labels.read_text().splitlines()[:41]) + "\n")
    columns = [*COLUMN, "--vectors", "hydropathy"]
    head("train", runs[0], runs[0], *columns, *words)
    assert [part["width"] for part in card_of(tmp_path / "h")["features"]] == [20, 1]
    head("predict", tmp_path / "h", runs[0], runs[0], "--output", tmp_path / "p.parquet")
    x = np.hstack([featuremill.load_matrix(runs[0], name)[1] for name in columns[1::2]])
    scores = forward(load_file(tmp_path / "h" / "head.safetensors"), x)
    found = pd.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_allclose(found[["score_x", "score_y"]][40:], scores[40:], atol=1e-6, rtol=0)


def test_a_run_without_a_table_is_read_from_its_parts(runs, words, tmp_path):
    head("train", *runs, *COLUMN, *words)
    bare = [shutil.copytree(run, tmp_path / f"{n}" / "test") for n, run in enumerate(runs)]
    for run in bare:
        merge(Results(run), ["per_protein_h5"], 999)
        assert not (run / "embeddings.parquet").exists()
    for name, read in (("table", runs), ("parts", bare)):
        head("predict", tmp_path / "h", *read, "--output", tmp_path / f"{name}.tsv")
    assert (tmp_path / "parts.tsv").read_bytes() == (tmp_path / "table.tsv").read_bytes()
    missing = [table_of(tmp_path / f"{name}.missing.tsv") for name in ("table", "parts")]
    assert [(id, why) for id, _, why in missing[0]] == [(id, why) for id, _, why in missing[1]]
    assert missing[0]


def test_a_head_knows_records_by_their_sequence_and_not_by_their_id():
    """Contigs of every assembly have the same ids."""
    scores = np.array([[0.9, 0.1], [0.2, 0.8]])
    told = card.HeldOut(["a", "b"], ["1", "2"], ["x", "y"], ["a", "b"], scores)
    pairs = {"a": "7", "c": "2", "d": "9"}  # another a, and b under another name
    run = SimpleNamespace(recipe="r", digests=lambda: pairs.items())
    assert predict.training_rows(told, run) == {"c": 1}
    for unknown in ((None, run), (told, SimpleNamespace(recipe=None))):
        assert predict.training_rows(*unknown) is None


# ---- what is fitted, and how it is judged ----


def rare(num=400, share=0.09, strength=1.4):
    """Return features, classes of which the second is rare, and groups of two that look alike."""
    rng = np.random.default_rng(3)
    y = np.repeat((rng.random(num // 2) < share).astype(np.int64), 2)
    look = np.repeat(rng.normal(size=(num // 2, 30)), 2, axis=0)
    x = rng.normal(size=(num, 30)) + look + strength * (y[:, None] == 1) * (np.arange(30) < 8)
    return x.astype(np.float32), y, np.repeat(np.arange(num // 2), 2)


def test_folds_keep_groups_whole_and_classes_spread():
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 60, 400)
    y = np.where(groups % 12 == 0, 2, groups % 2)  # five groups of the third class
    folds = figures.folds_of(groups, y, 5, 0)
    for group in range(60):
        assert len(set(folds[groups == group])) == 1
    assert np.bincount(folds).min() > 60
    assert (folds == figures.folds_of(groups, y, 5, 0)).all()
    large = np.repeat(np.arange(10), [50] * 5 + [2] * 5)
    for of_whom, classes in ((groups, y), (large, large // 5)):
        folds = figures.folds_of(of_whom, classes, 5, 0)
        for number in set(classes):
            assert set(folds[classes == number]) == set(range(5))


def test_no_fit_lacks_a_class_that_has_three_groups():
    """Neither one that is judged nor one that chooses its setting, whatever groups are mixed of."""
    rng, num_tried = np.random.default_rng(0), 0
    for _ in range(400):
        groups = rng.integers(0, rng.integers(5, 40), rng.integers(40, 300))
        y = rng.choice(4, len(groups), p=rng.dirichlet(np.ones(4)))
        if set(y) != {0, 1, 2, 3} or min(len(set(groups[y == c])) for c in range(4)) < 3:
            continue
        num_tried += 1
        outer = figures.folds_of(groups, y, 5, 0)
        for seen in (outer != fold for fold in range(5)):
            assert set(y[seen]) == {0, 1, 2, 3}
            inner = figures.folds_of(groups[seen], y[seen], 5, 1)
            assert all(set(y[seen][inner != fold]) == {0, 1, 2, 3} for fold in range(5))
    assert num_tried > 100


def rows_of(x, y, groups, payloads=None):
    """Return rows of which each is no copy of another, unless `payloads` tell otherwise."""
    payloads = np.arange(len(y)) if payloads is None else payloads
    return Rows(x, y, groups, payloads, int(y.max()) + 1)


def held_out_scores(learner, rows):
    return out_of_fold(rows, fitted_folds(learner, rows))


def test_scores_of_a_rare_class_are_probabilities():
    x, y, groups = rare()
    rows = rows_of(x, y, groups)
    scores = held_out_scores(Logistic(), rows)
    assert abs(scores[:, 1].mean() - y.mean()) < 0.02  # though the fit counts classes alike
    brier = figures.brier(scores, y).mean()
    assert brier < figures.of_guesses(np.bincount(y))["brier"] - 0.008
    assert np.isclose(brier, np.mean((scores[:, 1] - y) ** 2))
    for one in figures.reliability(scores, y, "ab"):
        assert one.records < 30 or abs(one.share - one.mean_score) < 0.15
    fitted = chosen_and_fitted(Logistic(), rows)
    raw = network_of.logits(next(Logistic().heads(rows, [fitted.setting])), x)
    calibrated = fitted.calibration.logits(raw)
    np.testing.assert_allclose(network_of.logits(fitted.head, x), calibrated, atol=1e-9)


def test_calibration_finds_scale_and_shift_and_bounds_both():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 3)) * 2
    shift = np.array([1.0, 0.0, -1.0])
    scores = network_of.softmax(0.5 * logits + shift)
    y = (scores.cumsum(1) < rng.random((20_000, 1))).sum(1)
    found = network_of.calibration_of(logits, y)
    assert abs(found.scale - 0.5) < 0.02
    np.testing.assert_allclose(found.shift, shift, atol=0.05)
    apart = np.array([[9.0, 0], [8, 0], [0, 7], [0, 9]]) * 1e3
    found = network_of.calibration_of(apart, np.array([0, 0, 1, 1]))
    sure = network_of.softmax(found.logits(apart))
    assert np.isfinite(sure).all() and 0.6 < sure[0, 0] < 0.99
    turned = network_of.calibration_of(apart, np.array([1, 1, 0, 0]))  # worse than chance
    assert turned.scale == 0 and np.allclose(turned.shift, 0)


def test_a_fit_counts_classes_alike_and_takes_features_of_any_size():
    x, y, _ = rare(strength=0.0)
    odds = np.diff(network_of.logits(next(Logistic().heads(rows_of(x, y, y), [1.0])), x))
    assert abs(odds.mean()) < 0.2  # and not the log of 9 to 91
    standard = network_of.standardisation(x * [1e3] * 30 + 7)
    found = network_of.standardised(standard, x * [1e3] * 30 + 7)
    np.testing.assert_allclose([found.mean(0), found.std(0)], [[0] * 30, [1] * 30], atol=1e-5)


class Spy:
    """Heads of which each takes one column for the odds; it notes what it is fitted to."""

    setting, settings, patience = "column", (1, 2, 3), 3

    def __init__(self):
        self.groups = []

    def heads(self, rows, settings):
        for column in settings:
            self.groups.append(np.unique(rows.x_NF[:, 0], return_counts=True))
            weight = np.zeros((rows.num_classes, rows.x_NF.shape[1]))
            weight[1, column] = 1
            yield {"weight": weight, "bias": np.zeros(rows.num_classes)}


def test_no_fit_sees_half_a_group_and_the_best_setting_is_chosen():
    """Neither the fit that is judged nor those that choose its setting."""
    x, y, groups = rare(120, share=0.4)
    x[:, 0], x[:, 2] = groups, y + x[:, 2] / 9
    spy = Spy()
    held_out_scores(spy, rows_of(x, y, groups))
    assert len(spy.groups) == 5 * (5 * 3 + 1)
    assert all((counts == 2).all() for _, counts in spy.groups)
    assert 30 < min(len(numbers) for numbers, _ in spy.groups) < 45  # of 60
    assert chosen_and_fitted(spy, rows_of(x, y, groups)).setting == 2


def test_no_fit_sees_a_copy_of_what_it_is_judged_by():
    """Neither the fit that is judged nor those that choose its setting."""
    x, y, _ = rare(600, share=0.4)
    payloads, groups = np.arange(600), np.arange(600) // 5
    payloads[:60] = payloads[-60:]
    x[:, 0] = payloads
    spy = Spy()
    rows = rows_of(x, y, groups, payloads)
    held_out_scores(spy, rows)
    seen = iter(set(numbers) for numbers, _ in spy.groups)
    outer = rows.folds(0)
    for fold in range(5):
        held_out = outer == fold
        learnt = ~np.isin(payloads, payloads[held_out])
        assert learnt.sum() < (~held_out).sum()
        inner = rows.where(learnt).folds(1)
        for number in np.unique(inner):
            judged = {*payloads[learnt][inner == number]}
            for _ in range(3):
                assert next(seen) == {*payloads[learnt]} - judged
        assert next(seen) == {*payloads[learnt]}
    assert next(seen, None) is None


@pytest.mark.parametrize("group", [None, "sample"])
def test_a_class_of_which_each_fold_has_copies_is_refused(group):
    ids = [f"S{sample}/{number}" for sample in range(6) for number in range(20)]
    names = [id.partition("/")[2] for id in ids]
    pairs = zip(ids, names, strict=True)
    found = {id: Label("xy"[int(n) % 2], id[:2] if group else id, 0) for id, n in pairs}
    used = SimpleNamespace(file="t.tsv", column="kind", group=group)

    def refuse(sha256s):
        told = Examples.in_order(ids, dict(zip(ids, sha256s, strict=True)), found)
        assert (told.payload_R == np.unique(sorted(sha256s), return_inverse=True)[1]).all()
        rows, classes = told.rows(np.zeros((120, 2)), None)
        refuse_unfit(rows, np.arange(120), classes, used, Head(labels="t.tsv", column="kind"))

    refuse(ids)
    said = f"{'each sample with other classes, or ' if group else ''}its sequences"
    with pytest.raises(UserError, match=f"t.tsv: 'kind': the class 'x' shares {said} with"):
        refuse(names if group else [name[-1] for name in names])


def test_an_interval_is_of_groups_and_not_of_their_records():
    values = np.arange(40.0) / 40

    def width(groups):
        found = figures.estimates(lambda w: {"x": np.average(values, weights=w)}, groups)["x"]
        assert found.value == values.mean()
        return found.high - found.low

    assert width(np.zeros(40)) < 1e-12 < width(values) < width(np.arange(40) // 5)


def test_an_interval_is_students_of_groups_whose_heads_share_records():
    """Twice the variance of the mean of groups, and Student's quantile, not the normal one."""
    values = np.random.default_rng(0).random(30)
    found = figures.estimates(lambda w: {"x": np.average(values, weights=w)}, np.arange(30))["x"]
    wanted = t.ppf(0.975, 29) * np.sqrt(2) * values.std(ddof=1) / np.sqrt(30)
    assert found.high - found.value == pytest.approx(wanted, rel=0.2)
    for freedom in range(3, 60):
        assert figures._student(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [60, 20])
def test_intervals_hold_the_truth_on_noise(num_groups):
    """In 95 of 100 data sets; 60 of these here, in which 51 or fewer are less than 1 % likely."""
    held, small = 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(60, 16)).astype(np.float32), rng.normal(size=60)
        rows = Rows(x, y, rng.permutation(60) % num_groups, np.arange(60))
        folds = [*fitted_folds(Ridge(), rows)]
        _, low, high = train.of_numbers(rows, out_of_fold(rows, folds), folds).scores["spearman"]
        held += low <= 0 <= high
        small += fitting.shuffled_p(rows) <= 0.05
    assert held > 51 and small < 9


def test_a_permutation_p_is_small_only_where_features_tell_something():
    """Labels that all records of a group share tell nothing of records of other groups."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(24), 5)
        x = (rng.normal(size=(24, 6))[groups] + rng.normal(size=(120, 6)) / 9).astype(np.float32)
        y = rng.permutation(24)[groups] % 2
        found.append(fitting.shuffled_p(rows_of(x, y, groups)))
        x[:, 0] += 5 * y
        assert fitting.shuffled_p(rows_of(x, y, groups)) <= 0.01
        numbers = x[:, 0] * 10.0 ** np.random.default_rng(seed).integers(-300, 90)
        assert fitting.shuffled_p(Rows(x, numbers, groups, np.arange(120))) <= 0.01
    assert min(found) > 0.01 and 0.15 < np.mean(found) < 0.85, found


FEW = "with fewer than 20 they are rough"
GUESSES = "No better than guessing: the 95 % interval of the AUC, "


@pytest.mark.parametrize(
    ("auc", "gain", "accuracy", "num_groups", "sentence"),
    [
        ([0.95, 0.9, 1.0], [0.4, 0.3, 0.5], 0.9, 6, f"come from 6 groups (family), and {FEW}"),
        ([0.95, 0.9, 1.0], [0.4, 0.3, 0.5], 0.9, 19, f"come from 19 groups (family), and {FEW}"),
        ([0.95, 0.9, 1.0], [0.4, 0.3, 0.5], 0.9, 20, ""),
        ([0.55, 0.48, 0.61], [], 0.53, 40, f"{GUESSES}0.480–0.610, holds 0.5"),
        ([0.5, 0.4, 0.6], [], 0.6, 40, f"{GUESSES}0.400–0.600, holds 0.5"),
        ([0.35, 0.3, 0.4], [], 0.6, 40, f"{GUESSES}0.300–0.400, is below 0.5"),
        ([0.55, 0.51, 0.61], [-0.07, -0.15, 0.02], 0.53, 40,
         "no more often than always 'soil' (0.530 and 0.600), although"),
        ([0.55, 0.51, 0.61], [0.02, -0.04, 0.07], 0.62, 40,
         "not certainly right more often than always 'soil' (0.620 and 0.600, and the 95 % "
         "interval of the difference is -0.040 to 0.070)"),
        ([0.55, 0.51, 0.61], [0.02, 0.01, 0.07], 0.62, 40, ""),  # a draw is compared with itself
    ],
)  # fmt: skip
def test_what_a_head_is_worth_is_a_warning(auc, gain, accuracy, num_groups, sentence):
    about = {"kind": "logistic", "classes": ["soil", "sea"], "features": [], "sha256": ""}
    about |= {"scores": {"accuracy": [accuracy, 0.45, 0.69], "auc": auc}, "accuracy_gain": gain}
    about |= {"guesses": {"accuracy": 0.6, "auc": 0.5}, "confusion": [[55, 5], [20, 20]]}
    labels = card.TableUsed(file="l.csv", sha256="", column="kind", group="family")
    known = card.Card(**about, counts={"groups": num_groups}, labels=labels)
    said = " ".join(page.warnings_of(known))
    assert sentence in said and bool(said) == bool(sentence)


def noise_labels(kind, seed):
    """Return random classes of 120 records: 20 of six, or eight records of a rare one."""
    order = np.random.default_rng(seed).permutation(120)
    return order % 20 if kind == "20 classes" else (order < 8).astype(np.int64)


class Means:
    """A head of classes' means: it fits in no time."""

    setting, settings, patience = "none", (1.0,), 1

    def heads(self, rows, settings):
        found = network_of.standardisation(rows.x_NF)
        standard = network_of.standardised(found, rows.x_NF)
        means = [standard[rows.y_N == number].mean(0) for number in range(rows.num_classes)]
        yield found | {"weight": np.stack(means), "bias": np.zeros(rows.num_classes)}


@pytest.mark.parametrize("kind", ["20 classes", "8 of 120"])
def test_random_labels_have_an_auc_of_a_half(kind):
    """Scores of all folds together have less, since each fold's head has seen least of the classes
    that it is asked for."""
    within, pooled = [], []
    for seed in range(16):
        y, each = noise_labels(kind, seed), np.arange(120)
        x = np.random.default_rng(100 + seed).normal(size=(120, 8)).astype(np.float32)
        rows = rows_of(x, y, each)
        folds = [*fitted_folds(Means(), rows)]
        scores = out_of_fold(rows, folds)
        names = [str(number) for number in range(scores.shape[1])]
        told = train.of_classes(rows, names, scores, folds)
        value, low, high = told.scores["auc"]
        assert low <= value <= high
        within.append(value)
        pooled.append(figures.mean_auc(scores, y, np.zeros(120, np.int64))(np.ones(120)))
        most = np.bincount(y).max() / 120
        gain = told.on_card["accuracy_gain"][0]
        assert gain == pytest.approx(told.scores["accuracy"].value - most)
    noise = np.std(within) / np.sqrt(len(within))
    assert abs(np.mean(within) - 0.5) < 3 * noise < 0.15
    assert np.mean(pooled) < np.mean(within) - noise


def test_an_auc_within_folds_compares_records_of_one_fold():
    scores = np.array([3.0, 1.0, 2.0, 0.0, 9.0, 1.0, 1.0])
    is_positive = np.array([True, False, False, True, True, True, False])
    folds = np.array([0, 0, 0, 0, 1, 2, 2])
    above, same = np.greater.outer(scores, scores), np.equal.outer(scores, scores)
    compared = np.equal.outer(folds, folds) & np.outer(is_positive, ~is_positive)
    pairs = (above + same / 2)[compared]
    assert len(pairs) == 5
    once = np.ones(7)
    assert figures.auc(scores, is_positive, folds)(once) == pytest.approx(np.mean(pairs))
    assert np.isnan(figures.auc(scores, folds == 0, folds)(once))
    # A weight is how often a record counts.
    times = np.array([2, 0, 1, 3, 1, 2, 1])
    again = np.repeat(np.arange(7), times)
    weighted = figures.auc(scores, is_positive, folds)(times.astype(float))
    repeated = figures.auc(scores[again], is_positive[again], folds[again])
    assert weighted == pytest.approx(repeated(np.ones(len(again))))


def test_a_column_of_the_same_width_and_recipe_is_another():
    known = card.Part(width=4, column="mean_layer_6", recipe="r")
    head_card = card.Card(kind="logistic", classes=["x", "y"], features=[known], sha256="")
    part = card.Part(width=4, run="run", column="mean_layer_5", recipe="r")
    sentence = r"r \(mean_layer_5\), and h was made with r \(mean_layer_6\)"
    with pytest.raises(UserError, match=sentence):
        refuse_other_features([part], head_card, Path("h"), False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not devices.cpu().has_bf16, reason="this CPU has no bf16 instructions")
def test_a_head_says_the_same_of_features_in_bf16_and_in_fp32():
    """Of the demo's proteins, which a small model tells apart badly, so that many are near 0.5."""
    text = (ROOT / "config" / "demo.fasta").read_text()
    found = re.findall(r"^>\S+ .*? OS=(.+?) (?:GN|PE)=.*\n([^>]+)", text, re.MULTILINE)
    groups = np.array([organism for organism, _ in found])
    is_virus = np.array([bool(re.search("virus|phage", organism)) for organism in groups])
    sequences = ["".join(lines.split())[:1022] for _, lines in found]
    embed = partial(featuremill.embed, sequences, device="cpu")
    x = {dtype: embed(dtype=dtype) for dtype in ("bf16", "fp32")}
    found = chosen_and_fitted(Logistic(), rows_of(x["bf16"], is_virus.astype(int), groups))
    bf16, fp32 = (network_of.logits(found.head, vectors).argmax(1) for vectors in x.values())
    assert len(sequences) == 1000 and (bf16 == fp32).mean() >= 0.995


@pytest.mark.parametrize("width", [1, 20, 1280, 3328])
def test_the_scores_of_a_row_depend_on_no_other_row(width):
    """To the last bit, in any batch; a BLAS has other kernels for other shapes."""
    rng = np.random.default_rng(width)
    x = rng.normal(size=(40, width)) * 10.0 ** rng.integers(-9, 9, (40, 1))
    x[3], x[4, 0], x[5], x[6] = 0, 1e-310, 1e-310, 1e290
    hidden = rng.normal(size=(7, width)) * 10.0 ** rng.integers(-3, 3, (7, 1))
    found = network_of.product(x, hidden)
    wanted = x.astype(np.longdouble) @ hidden.astype(np.longdouble).T
    bound = width * np.abs(x).max(1)[:, None] * np.abs(hidden).max(1) * 2.0**-39 + 1e-300
    assert (np.abs(found - wanted) <= bound).all()
    tensors = {"weight": hidden, "bias": rng.normal(size=7)}
    scores = network_of.logits(tensors, x)
    for rows in (np.arange(39, -1, -1), np.arange(17), *np.arange(40)[:, None]):
        assert np.array_equal(network_of.logits(tensors, x[rows]), scores[rows])


def test_an_interval_counts_no_draw_without_a_figure():
    groups = np.array(["a", "a", "b", "c"])
    is_positive = np.array([True, False, False, False])
    scores = np.array([3.0, 1.0, 2.0, 0.0])
    one_fold = np.zeros(4, np.int64)
    auc_of = figures.auc(scores, is_positive, one_fold)
    found = figures.estimates(lambda weight: {"auc": auc_of(weight)}, groups)
    assert found["auc"] == (1.0, 1.0, 1.0)
    assert np.isnan(figures.auc(scores, np.zeros(4, bool), one_fold)(np.ones(4)))


# ---- the page ----


def test_the_page_opens_offline_and_its_figures_can_be_drawn(runs, labels, words, tmp_path):
    name = "<b>x"
    labels.write_text(labels.read_text().replace(",x,", f",{name},"))
    head("train", runs[0], *COLUMN, *words, "--group", "family")
    text = (tmp_path / "h" / "head.html").read_text("utf-8")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text) and name not in text
    charts = re.findall(r'id="data-[\w-]+">(.*?)</script>', text, re.DOTALL)
    assert len(charts) == 5
    for chart in charts:
        specification = json.loads(chart) | {"width": 600}
        assert "<svg" in vl_convert.vegalite_to_svg(json.dumps(specification))
    value, low, high = card_of(tmp_path / "h")["scores"]["accuracy"]
    assert f"accuracy {value:.3f} ({low:.3f}–{high:.3f}; guessing 0.500)" in text
    assert "The Brier score is" in text and "better than guessing" not in text


def of_scikit_learn(y, predicted, weight=None):
    given = {"y_true": y, "y_pred": predicted, "sample_weight": weight}
    return {
        "accuracy": metrics.accuracy_score(**given),
        "balanced_accuracy": metrics.balanced_accuracy_score(**given),
        "macro_f1": metrics.f1_score(**given, average="macro"),
        "mcc": metrics.matthews_corrcoef(**given),
    }


@pytest.mark.parametrize("kinds", ["xy", "xxxyz"], ids=["two classes", "three"])
def test_the_pages_figures_are_those_of_scikit_learn(runs, tmp_path, kinds):
    """Its figures of the held-out predictions that head.json and the page name."""
    rows = [(f"p{n}", kinds[n % len(kinds)], n // 4) for n in range(120)]
    where = write_labels(tmp_path / "labels.csv", rows), "--column", "kind", "--group", "family"
    head("train", runs[0], *COLUMN, "--labels", *where, "--output", tmp_path / "h")
    told = pd.read_parquet(tmp_path / "h" / "held_out.parquet")
    classes = sorted(set(kinds))
    scores = told[[f"score_{name}" for name in classes]].to_numpy()
    predicted = np.array(classes)[scores.argmax(1)]
    found = card_of(tmp_path / "h")["scores"]
    for key, figure in of_scikit_learn(told["label"], predicted).items():
        assert found[key][0] == pytest.approx(figure, abs=1e-12), key
    page = (tmp_path / "h" / "head.html").read_text("utf-8")
    for name in classes if len(classes) > 2 else "y":
        score, is_it = told[f"score_{name}"].to_numpy(), (told["label"] == name).to_numpy()
        area = metrics.roc_auc_score(is_it, score)
        precision = metrics.average_precision_score(is_it, score)
        one = charts.curve(name, score, is_it)
        assert (one.area, one.average_precision) == pytest.approx((area, precision), abs=1e-12)
        fpr, tpr, _ = metrics.roc_curve(is_it, score, drop_intermediate=False)
        np.testing.assert_allclose([one.false_T, one.recall_T], [fpr, tpr], atol=1e-12)
        assert f"{area:.3f} for {name}" in page and f"{precision:.3f} for {name}" in page
        points = json.loads(re.search(r'id="data-roc">(.*?)</script>', page, re.S)[1])
        drawn = [row for row in points["layer"][1]["data"]["values"] if row["class"] == name]
        assert drawn[0]["x"] == drawn[0]["y"] == 0 and drawn[-1]["x"] == drawn[-1]["y"] == 1
    wrong = told[told["label"] != predicted]
    assert f"{len(wrong)} predictions are wrong" in page
    margin = scores.max(1) - scores[np.arange(120), [classes.index(one) for one in told["label"]]]
    worst = told["id"][np.argsort(-margin, kind="stable")[: min(20, len(wrong))]].tolist()
    table = page.partition('id="errors"')[2].partition("</section>")[0]
    assert re.findall(r'"text reason"><bdi>(\w+)</bdi>', table) == worst


def test_a_curve_takes_equal_scores_together_as_scikit_learn_does():
    rng = np.random.default_rng(2)
    for _ in range(20):
        score, is_it = rng.integers(0, 6, 40) / 5, rng.random(40) < 0.4
        one = charts.curve("x", score, is_it)
        assert one.area == pytest.approx(metrics.roc_auc_score(is_it, score))
        assert one.average_precision == pytest.approx(metrics.average_precision_score(is_it, score))
        precision, recall, _ = metrics.precision_recall_curve(is_it, score)
        np.testing.assert_allclose([one.precision_T, one.recall_T], [precision[::-1], recall[::-1]])
        assert (one.records, one.share) == (is_it.sum(), is_it.mean())


def test_figures_of_a_draw_without_a_class_or_of_one_prediction_are_scikit_learns():
    """As in a draw of groups; and where every record is predicted as the same class."""
    rng = np.random.default_rng(5)
    for num_classes in (2, 3, 5):
        true, predicted = rng.integers(0, num_classes, (2, 60))
        weight = rng.integers(0, 4, 60)
        for y, said in ((true, predicted), (np.minimum(true, 1), predicted), (true, true * 0)):
            found = figures.of_counts(figures.confusion(said, y, num_classes, weight))
            of_classes = figures.of_classes(figures.confusion(said, y, num_classes, weight))
            there = [*range(num_classes)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of classes that are predicted and are not there
                wanted = of_scikit_learn(y, said, weight)
                given = {"labels": there, "sample_weight": weight}
                each = metrics.precision_recall_fscore_support(y, said, **given)
            assert found == pytest.approx(wanted)
            for name, values in zip(figures.OF_CLASSES, each, strict=False):
                known = ~np.isnan(of_classes[name])
                np.testing.assert_allclose(of_classes[name][known], values[known])
                assert not values[~known].any()


# ---- what is no good ----


def every(kind, count=40):
    return [(f"p{n}", kind(n), n // 2) for n in range(count)]


XY = every(lambda n: "xy"[n % 2])
KINDS, FAMILIES = "zzzyyyzzxxxzyzyx", "7004467142015645"
TORN = [(f"p{n}", kind, FAMILIES[n]) for n, kind in enumerate(KINDS)]


@pytest.mark.parametrize(
    ("rows", "more", "sentence"),
    [
        ([("q1", "x", 1)], (), "none of its 1 ids is a record of {run}, whose first is 'p0'; the "
         "first that is none is 'q1' (line 2); write the ids as the records have them, name the "
         "right column of ids, or take the rows of other records out."),
        (every(lambda n: "x"), (), "'kind' is 'x' in all 40 records that have features"),
        (every(lambda n: "xy"[n == 3]), (),
         "the class 'y' has 1 record, and a head needs 3 records of each class, so that"),
        (every(lambda n: "xy"[n < 4]), ("--group", "family"), "the class 'y' has its 4 records in "
         "'0' and '1' of family, and a head needs 3 values of family of each class"),
        (TORN, ("--group", "family"), "the class 'y' shares each family with other classes"),
        (every(lambda n: "xy"[n % 2], 8), ("--group", "family"),
         "4 different values of family are too few for 5 folds; label more, or name another column "
         "of groups, or the group id, which is each record."),
        ([*XY, ("p3", "x", 1)], (), "labels.csv:42: 'p3' has a label in line 5 already"),
        ([*XY, ("", "x", 1)], (), "labels.csv:42: this row has no id of a record"),
        ([*XY, ("p50", "x", "")], ("--group", "family"), "labels.csv:42: 'p50' has no family"),
        ([*XY, ("p50", "x", "na")], ("--group", "family"), "labels.csv:42: 'p50' has no family"),
        (every(lambda n: ""), (), "no row has a label in 'kind'"),
        (XY, ("--column", "color"), "there is no column 'color'; it has 'id', 'kind', 'family'"),
        (XY, ("--group", "genus"), "there is no column 'genus'"),
        (XY, ("--vectors", "residues"), "no column 'residues' with one vector a record; it has "
         "composition, hydropathy"),
        (XY, ("--vectors", "b"), "--vectors: composition and b are 2 columns for 1 run;"),
        (XY, ("--labels", "gone.csv"), "gone.csv"),
    ],
)  # fmt: skip
def test_bad_labels_are_one_sentence(runs, tmp_path, capfd, rows, more, sentence):
    labels = write_labels(tmp_path / "labels.csv", rows)
    words = ["--labels", labels, "--column", "kind", "--output", tmp_path / "h", *more]
    if "residues" not in more:
        words[4:4] = COLUMN
    assert sentence.format(run=runs[0]) in refusal(capfd, "train", runs[0], *words)
    assert not (tmp_path / "h").exists()


def test_a_run_that_is_not_fit_for_it_is_refused(runs, words, tmp_path, capfd):
    assert "with --vectors." in refusal(capfd, "train", runs[0], *words)
    run = tmp_path / "results" / "test"
    shutil.copytree(runs[0], run)
    (run / "partial").mkdir()
    delivery = json.loads((run / "manifest.json").read_text())
    delivery["partial"], delivery["counts"]["pending"] = True, 0
    (run / "partial" / "manifest.json").write_text(json.dumps(delivery))
    shutil.copy2(run / "embeddings.parquet", run / "partial")
    (run / "manifest.json").unlink()
    sentence = "there are no complete results of this run yet"
    assert sentence in refusal(capfd, "train", run, *COLUMN, *words)
    shutil.rmtree(run / "partial")
    assert sentence in refusal(capfd, "train", run, *COLUMN, *words)
    below = [*words[:-1], run / "plan.json" / "h"]
    assert "plan.json: this is a file; a head is" in refusal(capfd, "train", run, *below)
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "thesis.docx").touch()
    assert "holds 'thesis.docx'" in refusal(capfd, "train", runs[0], *COLUMN, *words)


def test_a_number_that_is_none_is_refused_with_its_record(runs, words, tmp_path, capfd):
    run = tmp_path / "results" / "test"
    shutil.copytree(runs[1], run)
    matrix = np.load(run / "embeddings.npy")
    matrix[7, 3] = np.inf
    np.save(run / "embeddings.npy", matrix)
    sentence = refusal(capfd, "train", run, *COLUMN, *words)
    (id,) = pd.read_parquet(run / "embeddings.parquet")["id"][7:8]
    assert f"the vector of record {id!r} in composition has a number that is not finite" in sentence


def test_without_torch_training_says_so(runs, words, capfd, monkeypatch):
    monkeypatch.setattr("featuremill.workload.find_spec", lambda name: None)
    said = refusal(capfd, "train", runs[0], *COLUMN, *words)
    assert "pip install 'featuremill[esm2]'" in said


@pytest.mark.parametrize("suffix", [".tsv.gz", ".parquet"])
def test_labels_may_be_of_any_kind_of_table(runs, tmp_path, suffix):
    of = range(60)
    frame = pd.DataFrame({"id": [f"p{n}" for n in of], "is_y": [n % 2 == 1 for n in of]})
    path = tmp_path / f"labels{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, sep="\t", index=False)
    words = ("--labels", path, "--column", "is_y", "--output", tmp_path / "h")
    head("train", runs[0], *COLUMN, *words)
    wanted = ["false", "true"] if suffix == ".parquet" else ["False", "True"]
    assert card_of(tmp_path / "h")["classes"] == wanted


def test_what_was_typed_before_the_act_stands(runs, words, capfd):
    for order in (("-q", "train"), ("train", "-q")):
        assert __main__.main(["head", *order, *map(str, [runs[0], *COLUMN, *words])]) == 0
        assert capfd.readouterr().err == ""


# ---- the rules ----


def test_the_rules_train_and_predict(runs, labels, tmp_path, environment):
    """Of the project's features and of finished runs, by a head of here and an imported one."""
    torch.save(network(20).state_dict(), tmp_path / "model.pth")
    head(*import_words(tmp_path / "model.pth", tmp_path / "theirs", "20"))
    (tmp_path / "few.fa").write_text(fasta(proteins(30)))
    one, two = map(str, runs)
    vectors = {"vectors": "composition"}
    trained = {"labels": str(labels), "column": "kind", "group": "family", "of": one, **vectors}
    known = {"folder": "theirs", "any_recipe": True, "predict": {"old": two}, **vectors}
    heads = {"kind": {**trained, "predict": {"again": one}}, "theirs": known}
    config = {"run": "my", "inputs": "few.fa", "workload": "composition", "heads": heads}
    desk = Desk(tmp_path, environment)
    desk.compute(config)
    made = tmp_path / "results/my"
    rows = {path.name: len(table_of(path)) for path in sorted(made.glob("predictions/*.tsv"))}
    missing = {name: rows.pop(name) for name in [*rows] if ".missing." in name}
    assert rows == {"kind.tsv": 120, "kind.again.tsv": 120, "theirs.tsv": 30, "theirs.old.tsv": 115}
    assert missing.keys() == {name.replace(".tsv", ".missing.tsv") for name in rows}
    assert card_of(made / "heads/kind")["labels"]["group"] == "family"
    assert "Nothing to be done" in desk.compute(config)
