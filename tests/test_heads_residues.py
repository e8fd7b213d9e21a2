"""head train --task per_residue: a letter for each residue, judged by records of groups that the
head did not see, or one sentence."""

import numpy as np
import pandas as pd
import pytest
from conftest import PLUGINS
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Desk, Verbs, fasta
from safetensors.numpy import load_file
from test_heads import bytes_of, card_of, forward, head, refusal, table_of, write_labels

from featuremill.step import Project
from featuremill.steps.heads import Head, classes_of, problems_of_records, residues
from featuremill.steps.heads.card import Card
from featuremill.steps.heads.examples import Examples
from featuremill.steps.heads.fitting import Logistic
from featuremill.steps.heads.labels import UNLABELLED, numbers_of, read

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(PLUGINS))
    from featuremill_residues import vectors_of
STATES = {**dict.fromkeys("ACDEFG", "H"), **dict.fromkeys("HIKLMN", "E")}
WORDS = ["--task", "per_residue", "--vectors", "residues"]


@pytest.fixture(autouse=True)
def quick(few_draws, monkeypatch):
    monkeypatch.setattr(Logistic, "settings", (1e-2, 1e-4))


def proteins(count, seed=0):
    rng, letters = np.random.default_rng(seed), list("ACDEFGHIKLMNPQRSTVY")
    drawn = ("".join(rng.choice(letters, rng.integers(5, 40))) for _ in range(count))
    return [(f"p{seed}.{n}", sequence) for n, sequence in enumerate(drawn)]


def states(sequence):
    return "".join(STATES.get(letter, "C") for letter in sequence)


TWIN = ("twin", proteins(1)[0][1])
RECORDS = [*proteins(24), TWIN, ("fails", "MKWL"), ("bad", "MK1"), *proteins(8, seed=1)]
LABELLED = [*proteins(24), TWIN]


@pytest.fixture(scope="module")
def verbs(tmp_path_factory, environment):
    """Return the verbs of a finished run of several parts; one record failed, one was refused."""
    verbs = Verbs(tmp_path_factory.mktemp("run"), environment)
    verbs.merged(RECORDS, "residues", cost=200)
    return verbs


@pytest.fixture(scope="module")
def run(verbs):
    return verbs.run_folder.root


def fasta_of(path, rows):
    path.write_text(fasta(rows))
    return path


def trained(run, folder, labels, *more, name="h"):
    head("train", run, *WORDS, "--labels", labels, *more, "--output", folder / name)
    return folder / name


def scores_of(tensors, vectors, prefix=""):
    """Return the forward pass, computed in another way."""
    names = ("mean", "scale", "weight", "bias")
    return forward({name: tensors[prefix + name] for name in names}, vectors)


def test_residues_get_the_letters_of_the_forward_pass_or_held_out_ones(run, tmp_path, verbs):
    labels = fasta_of(tmp_path / "l.fasta", [(id, states(text)) for id, text in LABELLED])
    folder = trained(run, tmp_path, labels)
    about, told = card_of(folder), pd.read_parquet(folder / "held_out.parquet")
    assert (about["task"], about["classes"]) == ("per_residue", ["C", "E", "H"])
    assert told["sha256"].is_monotonic_increasing
    told = told.set_index("id", drop=False).loc[[id for id, _ in LABELLED]]
    assert told["label"].tolist() == [states(text) for _, text in LABELLED]
    tensors = load_file(folder / "head.safetensors")
    words = ["--probabilities", tmp_path / "q.parquet", "--output", tmp_path / "p.tsv"]
    head("predict", folder, run, *words)
    text_of, fold_of = dict(RECORDS), dict(zip(told["id"], told["fold"], strict=True))
    assert fold_of["twin"] != fold_of["p0.0"] or about["counts"]["groups"] == len(LABELLED)
    rows = table_of(tmp_path / "p.tsv")
    assert [id for id, _, _ in rows] == [id for id, _ in RECORDS if id not in ("fails", "bad")]
    scores = pd.read_parquet(tmp_path / "q.parquet").set_index("id")
    for id, found, seen in rows:
        if id in ("twin", "p0.0"):  # of copies, the head of either fold, which saw neither
            continue
        prefix = f"fold_{fold_of[id]}." if id in fold_of else ""
        wanted = scores_of(tensors, vectors_of(text_of[id].encode()), prefix)
        assert found == "".join("CEH"[number] for number in wanted.argmax(1)), id
        assert seen == ("yes" if id in fold_of else "no")
        for letter, column in zip("CEH", wanted.T, strict=True):
            np.testing.assert_allclose(scores.loc[id, f"score_{letter}"], column, atol=1e-6)
        if id in fold_of:
            assert found == told.set_index("id").loc[id, "predicted"]
    assert {id for id, *_ in table_of(tmp_path / "p.missing.tsv")} == {"fails", "bad"}
    true, predicted = "".join(told["label"]), "".join(told["predicted"])
    right = np.mean([a == b for a, b in zip(true, predicted, strict=True)])
    value, low, high = about["scores"]["accuracy"]
    assert value == pytest.approx(right) and 0.6 < low < value < high <= 1
    assert about["guesses"]["accuracy"] < low and about["scores"]["mcc"][1] > 0.4
    assert sum(map(sum, about["confusion"])) == about["counts"]["residues"] == len(true)
    assert "Each class" in (folder / "head.html").read_text()
    before = bytes_of(folder)
    trained(run, tmp_path, labels)
    assert bytes_of(folder) == before
    # A file of new and old records: the letters of the run.
    some = [*proteins(8, seed=1), *proteins(24)[5:9], ("bad", "MK1")]
    fasta_of(tmp_path / "new.fasta", some)
    output, scores = tmp_path / "f.tsv", tmp_path / "f.parquet"
    paths = [folder, tmp_path / "new.fasta", "--output", output, "--probabilities", scores]
    verbs("head", "predict", *paths)
    by_run = {id: (id, found, seen) for id, found, seen in rows}
    assert table_of(output) == [by_run[id] for id, _ in some[:-1]]
    missing = {id: reason for id, _, reason in table_of(tmp_path / "f.missing.tsv")}
    assert missing.keys() == {"bad"} and missing["bad"].startswith("refused: ")
    lengths = pd.read_parquet(scores)["score_H"].map(len).tolist()
    assert lengths == [len(text) for _, text in some[:-1]]


def test_a_column_groups_and_a_mask(run, tmp_path):
    rows = [(id, "?" + states(text)[1:], n // 4) for n, (id, text) in enumerate(LABELLED)]
    labels = write_labels(tmp_path / "l.csv", [*rows, ("fails", "CCCC", 0)], "id,ss,family")
    words = ["--column", "ss", "--group", "family", "--mask", "?"]
    about = card_of(trained(run, tmp_path, labels, *words))
    assert about["counts"]["residues_masked"] == len(LABELLED)
    assert about["classes"] == ["C", "E", "H"]
    assert about["counts"]["groups"] == 7 and about["counts"]["missing"] == 1
    told = pd.read_parquet(tmp_path / "h" / "held_out.parquet")
    assert (told.groupby("group")["fold"].nunique() == 1).all() and told["fold"].nunique() == 5
    (missing,) = table_of(tmp_path / "h" / "missing.tsv")
    assert missing[0] == "fails"


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(len(LABELLED))), most=st.sampled_from([150, 10**6]))
def test_no_record_gets_anothers_letters(run, tmp_path_factory, order, most):
    """Whatever the order of the labels, and whichever residues are drawn."""
    folder = tmp_path_factory.mktemp("any")
    labels = fasta_of(folder / "l.fasta", [(LABELLED[n][0], states(LABELLED[n][1])) for n in order])
    parts = residues.open_residues(run, "residues")
    planned = residues.features.Planned(run)
    found = read(planned, Head(labels=str(labels), task="per_residue"), None)
    of = Examples.in_order(found.of_id, dict(planned.digests()), found.of_id)
    assert of.sha256s == sorted(of.sha256s)
    assert of.ids == sorted(dict(LABELLED), key=lambda one: (of.sha256s[of.ids.index(one)], one))
    row_of = {id: row for ids, rows in parts.records() for id, row in zip(ids, rows, strict=True)}
    numbers = [numbers_of(label.name, "CEH") for label in of.labels]
    every = residues.Residues(parts, np.array([row_of[id] for id in of.ids]), numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residues, "MOST_LEARNT", most)
        learnt, record_N = residues.drawn(every, of, 3, 0)
    text_of = dict(LABELLED)
    assert len(learnt.y_N) == min(most, sum(map(len, text_of.values())))
    own = {id: vectors_of(text.encode()).astype(np.float32) for id, text in LABELLED}
    for vector, number, record in zip(learnt.x_NF, learnt.y_N, record_N, strict=True):
        id = of.ids[record]
        (places,) = np.nonzero((own[id] == vector).all(1))
        assert {states(text_of[id])[place] for place in places} == {"CEH"[number]}


def test_random_letters_give_no_skill(run, tmp_path, capfd):
    rng = np.random.default_rng(4)
    rows = [(id, "".join(rng.choice(list("HEC"), len(text)))) for id, text in LABELLED]
    capfd.readouterr()
    folder = trained(run, tmp_path, fasta_of(tmp_path / "l.fasta", rows))
    assert "No better than guessing the same class" in capfd.readouterr().err
    card = Card.read(folder / "head.json")
    value, low, high = card.scores["mcc"]
    assert low < 0 < high and abs(value) < 0.1 and card.permutation_p > 0.01


@given(st.text("HEC?", max_size=30))
def test_letters_have_the_numbers_of_their_classes(label):
    numbers = numbers_of(label, ["C", "E", "H"])
    wanted = ["CEH".index(letter) if letter in "CEH" else UNLABELLED for letter in label]
    assert numbers.tolist() == wanted


def test_memory_does_not_grow_with_the_residues(run, tmp_path, monkeypatch):
    """Ten residues at a time: no matrix is of more than those of one record, or of those drawn."""
    labels = fasta_of(tmp_path / "l.fasta", [(id, states(text)) for id, text in LABELLED])
    whole = trained(run, tmp_path, labels, name="whole")
    monkeypatch.setattr(residues, "AT_ONCE", 10)
    monkeypatch.setattr(residues, "MOST_LEARNT", 200)
    sizes, take = [], residues.Parts.take

    def taken(self, rows, within, *more):
        sizes.append(len(rows))
        return take(self, rows, within, *more)

    monkeypatch.setattr(residues.Parts, "take", taken)
    about = card_of(trained(run, tmp_path, labels, name="few"))
    assert about["counts"]["residues_learnt"] == 200 == sizes[0]
    assert max(sizes[1:]) <= 40 and sum(sizes[1:]) == about["counts"]["residues"]
    assert about["counts"]["residues"] == card_of(whole)["counts"]["residues"]


LETTERS = [(id, states(text)) for id, text in LABELLED]


@pytest.mark.parametrize(
    ("rows", "more", "sentence"),
    [
        ([*LETTERS[:7], (LETTERS[7][0], LETTERS[7][1] + "H")], (), "l.fasta:15: 'p0.7' has "),
        ([("other", "HHH")], (), "l.fasta: none of its 1 ids is a record of "),
        ([*LETTERS, LETTERS[0]], (), "l.fasta:51: 'p0.0' has labels in line 1 already"),
        ([(id, "H" * len(text)) for id, text in LETTERS], (), "the label is 'H' in all 25 records"),
        ([*LETTERS[:-1], ("twin", "Z" * len(TWIN[1]))], (), "the class 'Z' has 1 record, and a"),
        (LETTERS[:4], (), "4 different records are too few for 5 folds"),
        ([(id, text[:1] + " " + text[2:]) for id, text in LETTERS], (), "have ' '; write a "),
        (LETTERS, ("--column", "ss"), "this is FASTA, which has no column 'ss' (--column)"),
        (LETTERS, ("--kind", "mlp"), "kind and threshold are of classes, and not of task per_r"),
        (LETTERS, ("--mask", "CEH"), "l.fasta: all labels of records with vectors are masked"),
        (LETTERS, ("--vectors", "mean"), "takes one column of one set of features; name one"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used_are_one_sentence(run, tmp_path, capfd, rows, more, sentence):
    labels = fasta_of(tmp_path / "l.fasta", rows)
    words = ["train", run, *WORDS, "--labels", labels, *more, "--output", tmp_path / "h"]
    assert sentence in refusal(capfd, *words)
    assert not (tmp_path / "h").exists()


def test_what_does_not_go_together_is_one_sentence(run, tmp_path, capfd):
    labels = fasta_of(tmp_path / "l.fasta", LETTERS)
    to = ["--output", tmp_path / "x"]
    words = ["train", run, "--task", "per_residue", "--labels", labels, "--vectors", "mean", *to]
    assert "mean has one vector a record, and a head for residues takes" in refusal(capfd, *words)
    words = ["train", run, "--labels", labels, "--vectors", "mean", *to]
    assert "head train: labels and column belong together: name a" in refusal(capfd, *words)
    assert "mask is of residues" in refusal(capfd, *words, "--column", "a", "--mask", "-")
    folder = trained(run, tmp_path, labels)
    said = refusal(capfd, "predict", folder, run, "--output", tmp_path / "p.parquet")
    assert "letters of residues go to a .tsv" in said
    words = ["predict", folder, run, run, "--output", tmp_path / "p.tsv"]
    assert "takes one column of one set of features" in refusal(capfd, *words)
    (folder / "held_out.parquet").write_bytes(b"")
    words = ["predict", folder, run, "--output", tmp_path / "p.tsv"]
    assert "train the head again" in refusal(capfd, *words, status=4)
    assert not (tmp_path / "p.tsv").exists()


def test_labels_of_residues_of_a_run_elsewhere_are_checked_ahead(run, tmp_path):
    labels = fasta_of(tmp_path / "l.fasta", LETTERS)
    project = Project("my", (), {"my": "results/my"}, {})
    section = Head(labels=str(labels), task="per_residue", vectors="residues", of=str(run))
    assert classes_of("ss", section, project) == ["C", "E", "H"]
    fasta_of(labels, LETTERS[:1])
    ((key, sentence),) = problems_of_records({"ss": section}, project)
    assert key == ("ss", "labels") and " has 1 record, and a head needs 3 " in sentence


def test_a_config_has_labels_of_residues(run, tmp_path, environment):
    fasta_of(tmp_path / "l.fasta", LETTERS)
    fasta_of(tmp_path / "in.fa", RECORDS)
    ss = {"labels": "l.fasta", "task": "per_residue", "vectors": "residues"}
    config = {"run": "my", "inputs": "in.fa", "workload": "residues", "max_failed": 2}
    desk = Desk(tmp_path, environment)

    def typed(status=0, **more):
        return desk.compute({**config, "heads": {"ss": {**ss, **more}}}, status=status)

    assert "mask is of residues" in typed(2, task="classification", column="a", mask="?")
    fasta_of(tmp_path / "l.fasta", [*LETTERS[:5], (LETTERS[5][0], "H" * 99)])
    assert "l.fasta:11: 'p0.5' has 99 labels, and " in typed(2)
    fasta_of(tmp_path / "l.fasta", LETTERS[:1])
    assert " has 1 record, and a head needs 3 " in typed(2)
    assert not (tmp_path / "results/my/receipts").exists(), "before any record is computed"
    fasta_of(tmp_path / "l.fasta", LETTERS)
    typed()
    rows = table_of(tmp_path / "results/my/predictions/ss.tsv")
    assert [id for id, *_ in rows] == [id for id, _ in RECORDS if id not in ("fails", "bad")]
    assert "Nothing to be done" in typed()
    desk.compute({**config, "heads": {"known": {"folder": "results/my/heads/ss"}}})
    assert table_of(tmp_path / "results/my/predictions/known.tsv") == rows
