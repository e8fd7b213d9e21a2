"""head train --threshold: unseen records reach what is asked for, or there is one sentence."""

import json

import numpy as np
import pandas as pd
import pytest
from programs import Desk, fasta
from test_heads import COLUMN, card_of, computed, head, proteins, refusal, write_labels

from featuremill.base.errors import UserError
from featuremill.steps.heads import page, threshold, train
from featuremill.steps.heads.card import Card
from featuremill.steps.heads.fitting import (
    Logistic,
    Rows,
    chosen_and_fitted,
    fitted_folds,
    out_of_fold,
)
from featuremill.steps.heads.section import Wanted
from featuremill.steps.heads.threshold import choose, decided

pytestmark = pytest.mark.usefixtures("few_draws")


def plain(score, is_it, of, level):
    """Choose by trying each score, in another way."""
    found = []
    for cut in sorted(set(score)):
        called = [flag for value, flag in zip(score, is_it, strict=True) if value >= cut]
        if len(called) >= threshold.FEWEST:
            reached = {"precision": sum(called) / len(called), "recall": sum(called) / sum(is_it)}
            found += [cut] if reached[of] >= level else []
    return (min(found) if of == "precision" else max(found)) if found else np.inf


@pytest.mark.parametrize("of", ["precision", "recall"])
@pytest.mark.parametrize("level", [0.3, 0.8, 0.95, 1])
def test_a_threshold_is_the_one_with_most_records_or_fewest(of, level):
    rng = np.random.default_rng(0)
    for seed in range(20):
        score = np.round(rng.random(40), 1 + seed % 2)  # ties
        is_it = rng.random(40) < score**2
        is_it[0] = True
        assert choose(score, is_it, Wanted("x", of, level)) == plain(score, is_it, of, level)


def test_the_class_is_taken_where_its_score_reaches_and_else_the_best_of_the_others():
    scores = np.array([[0.3, 0.6, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])
    assert decided(scores, 0, 0.2).tolist() == [0, 0, 2]
    assert decided(scores, 1, 0.55).tolist() == [1, 2, 2]
    assert decided(scores, 1, np.array([1.0, 0.0, 0.0])).tolist() == [0, 1, 1]


def rows_of(x, y):
    return Rows(x, y, np.arange(len(y)).astype(str), np.arange(len(y)), 2)


def measured(rows, asked):
    """Return the threshold of a head for the second class, with what its folds reach."""
    score_N = chosen_and_fitted(Logistic(), rows).held_out_NC[:, 1]
    cut = threshold.of_class(score_N, rows.y_N == 1, asked, "here")
    folds = [*fitted_folds(Logistic(), rows)]
    scores_NC = out_of_fold(rows, folds)
    return train.of_classes(rows, ["a", "b"], scores_NC, folds, asked, cut).on_card["threshold"]


def test_what_is_asked_for_is_reached_by_unseen_records_of_a_rare_class():
    """Over several draws, the precision and the recall of the folds are those asked for."""
    reached = {"precision": [], "recall": []}
    for seed in range(2):
        rng = np.random.default_rng(seed)
        y = (rng.random(400) < 0.15).astype(np.int64)
        x = rng.normal(size=(400, 4)) + y[:, None] * 0.9
        for of, level in (("precision", 0.8), ("recall", 0.9)):
            about = measured(rows_of(x, y), Wanted("b", of, level))
            value, low, high = getattr(about, of)
            assert low <= value <= high and about.share == y.mean()
            reached[of].append(value)
    assert abs(np.mean(reached["precision"]) - 0.8) < 0.1, reached
    assert abs(np.mean(reached["recall"]) - 0.9) < 0.08, reached


def test_no_threshold_is_chosen_by_the_records_that_measure_it():
    """Were it chosen by the scores that it is measured by, no threshold would miss its recall."""
    misses = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        y = (rng.random(100) < 0.3).astype(np.int64)
        x = rng.normal(size=(100, 3)) + y[:, None] * 0.6
        misses += measured(rows_of(x, y), Wanted("b", "recall", 0.8)).recall[0] < 0.8
    assert 0 < misses < 4


def test_random_labels_reach_no_precision():
    rng = np.random.default_rng(1)
    y = (rng.random(300) < 0.1).astype(np.int64)
    rows = rows_of(rng.normal(size=(300, 8)), y)
    with pytest.raises(UserError, match=r"here: no threshold has a precision of 0.95 for 'b': on"):
        measured(rows, Wanted("b", "precision", 0.95))


@pytest.fixture(scope="module")
def run(tmp_path_factory, environment):
    return computed(tmp_path_factory.mktemp("run"), environment, proteins(120))


def labelled(path):
    return write_labels(path, [(f"p{n}", ("x", "y")[n % 2], n // 2) for n in range(100)])


def test_the_threshold_is_in_the_card_and_decides_predictions(run, tmp_path):
    words = ["train", run, *COLUMN, "--labels", labelled(tmp_path / "l.csv"), "--column", "kind"]
    more = ["--threshold", "y", "--recall", "0.95"]
    head(*words, "--group", "family", *more, "--output", tmp_path / "h")
    about = card_of(tmp_path / "h")["threshold"]
    assert (about["class_name"], about["of"], about["level"]) == ("y", "recall", 0.95)
    output = tmp_path / "p.parquet"
    head("predict", tmp_path / "h", run, "--output", output)
    found = pd.read_parquet(output)
    wanted = np.where(found["score_y"] >= about["score"], "y", "x")
    assert found["class"].tolist() == wanted.tolist()
    assert (found["class"] != np.where(found["score_y"] > 0.5, "y", "x")).any()
    card = Card.read(tmp_path / "h" / "head.json")
    confusion = np.array(card.confusion)
    assert confusion[1, 1] / confusion[1].sum() == pytest.approx(about["recall"][0])
    assert confusion[1, 1] / confusion[:, 1].sum() == pytest.approx(about["precision"][0])
    assert [*page.warnings_of(card)] == card.warnings
    assert not card.warnings or "No better than guessing" in card.warnings[0]
    text = (tmp_path / "h" / "head.html").read_text()
    assert "is called &#39;y&#39; if its score is at least" in text.replace("'", "&#39;")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--threshold", "y"], "head train: threshold has a class, and a precision or a recall "),
        (["--threshold", "y", "--recall", "1.2"], "a recall above 0, at most 1, as in {class: vir"),
        (["--threshold", "y", "--recall", "nan"], "(--threshold virus --precision 0.95)."),
        (["--recall", "0.9"], "threshold has a class, and a precision or a recall above 0"),
        (["--threshold", "z", "--recall", "0.9"], "no record with features has the label 'z'"),
        (["--threshold", "y", "--precision", "1"], "no threshold has a precision of 1 for 'y'"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(run, tmp_path, capfd, words, sentence):
    rng, labels = np.random.default_rng(0), tmp_path / "l.csv"
    write_labels(labels, [(f"p{n}", rng.choice(["x", "y"]), n) for n in range(100)])
    words = [run, *COLUMN, "--labels", labels, "--column", "kind", *words]
    assert sentence in refusal(capfd, "train", *words, "--output", tmp_path / "h")
    assert not (tmp_path / "h").exists()


def test_a_config_has_a_threshold_and_another_one_trains_anew(run, tmp_path, environment):
    labelled(tmp_path / "l.csv")
    (tmp_path / "few.fa").write_text(fasta(proteins(10)))
    trained = {"labels": "l.csv", "column": "kind", "of": str(run), "vectors": "composition"}
    config = {"run": "my", "inputs": "few.fa", "workload": "composition"}
    desk = Desk(tmp_path, environment)

    def typed(cut, status=0):
        heads = {"k": {**trained, "threshold": cut}}
        return desk.compute({**config, "heads": heads}, status=status)

    typed({"class": "y", "recall": 0.9})
    card = tmp_path / "results/my/heads/k/head.json"
    first = json.loads(card.read_text())["threshold"]
    assert (first["of"], first["level"]) == ("recall", 0.9)
    assert "Nothing to be done" in typed({"class": "y", "recall": 0.9})
    typed({"class": "x", "recall": 0.5})
    assert json.loads(card.read_text())["threshold"]["class_name"] == "x"
    said = typed({"class": "z", "recall": 0.5}, 2)
    assert "no record with features has the label 'z', which the threshold is for" in said
    assert "above 0, at most 1" in typed({"class": "y"}, 2)
    assert "threshold" in typed({"class": "y", "recall": 0.5, "precision": 0.5}, 2)
