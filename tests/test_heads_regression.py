"""head train --task regression: what scikit-learn's Ridge gives, judged by groups that it did not
see, or one sentence."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Desk, fasta
from scipy.stats import spearmanr
from sklearn import linear_model
from test_heads import COLUMN, bytes_of, card_of, computed, head, proteins, refusal, write_labels

import featuremill
from featuremill.steps.heads import figures
from featuremill.steps.heads.card import Card
from featuremill.steps.heads.fitting import Ridge, Rows, fitted_folds, out_of_fold
from featuremill.steps.heads.network import logits
from featuremill.steps.heads.train import of_numbers

pytestmark = pytest.mark.usefixtures("few_draws")
NUM = 90


@pytest.fixture(scope="module")
def run(tmp_path_factory, environment):
    return computed(tmp_path_factory.mktemp("run"), environment, proteins(NUM))


def numbers_of(run):
    """Return a number a record that composition determines, but for noise."""
    ids, vectors = featuremill.load_matrix(run, "composition")
    noise = np.random.default_rng(0).normal(size=len(ids)) * 0.02
    return dict(zip(ids, vectors[:, 2] * 3 - vectors[:, 9] + noise, strict=True))


def labels_of(folder, values, name="l.csv"):
    rows = [(id, f"{value:.6f}", n // 3) for n, (id, value) in enumerate(values.items())]
    return write_labels(folder / name, rows, head="id,tm,family")


def rows_of(x, y, groups=None):
    each = np.arange(len(y))
    return Rows(x, y, each if groups is None else groups, each)


@pytest.mark.parametrize(("num", "width"), [(60, 8), (12, 30)])
def test_a_fit_is_that_of_scikit_learn(num, width):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(num, width)), rng.normal(size=num) - 2
    x = (x * 10.0 ** (np.arange(width) % 4) + 3).astype(np.float32)
    z = (x - x.mean(0, dtype=np.float64)) / (x.std(0, dtype=np.float64) + 1e-8)
    heads = Ridge().heads(rows_of(x, y), Ridge.settings)
    for penalty, tensors in zip(Ridge.settings, heads, strict=True):
        theirs = linear_model.Ridge(alpha=num * penalty).fit(z, y)
        np.testing.assert_allclose(tensors["weight"][0], theirs.coef_, rtol=1e-6, atol=1e-10)
        assert tensors["bias"][0] == pytest.approx(theirs.intercept_)
        np.testing.assert_allclose(logits(tensors, x)[:, 0], theirs.predict(z), rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_the_correlation_is_spearmans_within_a_fold(pairs):
    one, other = np.array(pairs, float).T
    found = figures.spearman(one, other, np.zeros(len(pairs), np.int64))(np.ones(len(pairs)))
    if len({*other}) == 1:
        assert np.isnan(found)
    elif len({*one}) == 1:
        assert found == 0
    else:
        assert found == pytest.approx(spearmanr(one, other).statistic, abs=1e-9)


def test_a_regression_is_judged_by_families_that_it_did_not_see(run, tmp_path):
    values = numbers_of(run)
    labels = labels_of(tmp_path, {id: values[id] for id in [*values][:80]})
    words = [run, *COLUMN, "--labels", labels, "--column", "tm", "--task", "regression"]
    head("train", *words, "--group", "family", "--output", tmp_path / "h")
    about, told = card_of(tmp_path / "h"), pd.read_parquet(tmp_path / "h" / "held_out.parquet")
    assert (about["task"], about["kind"], about["classes"]) == ("regression", "ridge", [])
    assert told["sha256"].is_monotonic_increasing
    told = told.set_index("id", drop=False).loc[[*values][:80]]
    np.testing.assert_allclose(told["label"], [values[id] for id in told["id"]], atol=1e-6)
    off = told["value"] - told["label"]
    spread = np.square(told["label"] - told["label"].mean()).sum()
    assert about["scores"]["r2"][0] == pytest.approx(1 - np.square(off).sum() / spread)
    assert about["scores"]["rmse"][0] == pytest.approx(np.sqrt(np.square(off).mean()))
    for name, (value, low, high) in about["scores"].items():
        assert low < value < high, name
    assert about["scores"]["r2"][1] > 0.5 and about["scores"]["spearman"][1] > 0.5
    assert -0.1 < about["guesses"]["r2"] < 0 == about["guesses"]["spearman"]
    assert about["guesses"]["rmse"] > about["scores"]["rmse"][2]
    for suffix in (".tsv", ".parquet"):
        output = tmp_path / f"p{suffix}"
        head("predict", tmp_path / "h", run, "--output", output)
        found = pd.read_csv(output, sep="\t") if suffix == ".tsv" else pd.read_parquet(output)
        assert found.columns.tolist() == ["id", "value", "seen_in_training"]
        assert found["seen_in_training"].tolist() == ["yes"] * 80 + ["no"] * 10
        np.testing.assert_allclose(found["value"][:80], told["value"], rtol=1e-7)
        new = [values[id] for id in found["id"][80:]]
        assert np.corrcoef(found["value"][80:], new)[0, 1] > 0.8
    page = (tmp_path / "h" / "head.html").read_text()
    assert "Predicted and true numbers" in page and "guessing 0.000" in page
    before = bytes_of(tmp_path / "h")
    head("train", *words, "--group", "family", "--output", tmp_path / "h")
    assert bytes_of(tmp_path / "h") == before


@settings(max_examples=8, deadline=None)
@given(st.permutations([f"p{n}" for n in range(40)]))
def test_a_record_keeps_its_number_whatever_the_order_of_the_labels(run, ids):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        labels = labels_of(folder, {id: float(id[1:]) for id in ids})
        words = [run, *COLUMN, "--labels", labels, "--column", "tm", "--task", "regression"]
        head("train", *words, "--output", folder / "h")
        told = pd.read_parquet(folder / "h" / "held_out.parquet")
        assert told["label"].tolist() == [float(id[1:]) for id in told["id"]]
        assert sorted(told["id"]) == sorted(ids) and told["sha256"].is_monotonic_increasing


def test_random_numbers_give_no_skill():
    """Neither do values of other folds seem to order them, one way or the other."""
    r2, correlation = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(60, 10)).astype(np.float32), rng.normal(size=60)
        groups = (np.arange(60) // 3).astype(str)
        rows = rows_of(x, y, groups)
        folds = [*fitted_folds(Ridge(), rows)]
        found = of_numbers(rows, out_of_fold(rows, folds), folds)
        r2.append(found.scores["r2"].value)
        correlation.append(found.scores["spearman"].value)
        assert found.guesses["r2"] < 0.02
    assert np.mean(r2) < 0.02 and abs(np.mean(correlation)) < 0.12


def test_a_head_that_guesses_is_called_so(run, tmp_path, capfd):
    rng = np.random.default_rng(3)
    labels = labels_of(tmp_path, {f"p{n}": rng.normal() for n in range(NUM)})
    words = [run, *COLUMN, "--labels", labels, "--column", "tm", "--task", "regression"]
    capfd.readouterr()
    head("train", *words, "--output", tmp_path / "h")
    assert "warning: No better than guessing the mean" in capfd.readouterr().err
    card = Card.read(tmp_path / "h" / "head.json")
    assert "No better" in card.warnings[0] and card.permutation_p > 0.01
    assert f"permutation p {card.permutation_p:.3g}" in card.warnings[0]


@pytest.mark.parametrize(
    ("cells", "more", "sentence"),
    [
        (["1", "NA"], ["--task", "regression"], "l.csv:3: 'NA', the label of 'p1' in 'tm', is no"),
        (["1", "inf"], ["--task", "regression"], "l.csv:3: 'inf', the label of 'p1'"),
        (["2.0", "2"], ["--task", "regression"], "'tm' is 2 in all 40 records that have features"),
        (["1", "2"], ["--task", "regression", "--kind", "mlp"], "kind and threshold are of c"),
        (None, [], "'tm' has 40 different numbers, and a classifier takes each for the name"),
        (None, ["--task", "classification"], "the class '0.5' has 1 record"),
        (None, ["--task", "regression", "--group", "one"], "1 different values of one are too few"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used_are_one_sentence(run, tmp_path, capfd, cells, more, sentence):
    rows = [(f"p{n}", cells[n % 2] if cells else n + 0.5, "a") for n in range(40)]
    labels = write_labels(tmp_path / "l.csv", rows, head="id,tm,one")
    words = [run, *COLUMN, "--labels", labels, "--column", "tm", *more]
    assert sentence in refusal(capfd, "train", *words, "--output", tmp_path / "h")
    assert not (tmp_path / "h").exists()


def test_a_config_has_a_regression(run, tmp_path, environment):
    labels_of(tmp_path, numbers_of(run))
    (tmp_path / "few.fa").write_text(fasta(proteins(12)))
    trained = {"labels": "l.csv", "column": "tm", "group": "family", "of": str(run)}
    config = {"run": "my", "inputs": "few.fa", "workload": "composition"}
    desk = Desk(tmp_path, environment)

    def typed(status=0, **more):
        heads = {"tm": {**trained, "vectors": "composition", **more}}
        return desk.compute({**config, "heads": heads}, status=status)

    assert "a classifier takes each for the name of a class" in typed(2)
    assert not (tmp_path / "results/my/manifest.json").exists()
    assert "kind and threshold are of classes" in typed(2, task="regression", kind="mlp")
    typed(task="regression")
    found = pd.read_csv(tmp_path / "results/my/predictions/tm.tsv", sep="\t")
    assert found["value"].notna().all() and len(found) == NUM
    assert "Nothing to be done" in typed(task="regression")
