"""transfer: labels of the nearest labelled records, as a plain script has them; every record."""

import csv
import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import yaml
from programs import Desk, Verbs, fasta

from featuremill import features
from featuremill.base.errors import UserError
from featuremill.features import nearest, records
from featuremill.step import Ahead, Project
from featuremill.steps import transfer
from featuremill.steps.transfer import command
from featuremill.store import failed

DRAWN = random.Random(7)


def drawn(count, name):
    """Return records of which each can be computed."""
    letters = "ACDEFGHIKLMNPQRSTVY"
    return [(f"{name}{n}", "".join(DRAWN.choices(letters, k=20))) for n in range(count)]


PROTEINS = drawn(60, "p")
RECORDS = [
    ("fails", "MKWL"),
    *PROTEINS[:30],
    ("twin", PROTEINS[3][1]),
    ("bad", "MK1"),
    *PROTEINS[30:],
]
OTHERS = [*drawn(10, "q"), PROTEINS[0], (PROTEINS[3][0], "MKVLAT"), ("copy", PROTEINS[6][1])]
LABELLED = [id for number, (id, _) in enumerate(PROTEINS) if number % 3 == 0] + ["twin"]
LABELS = {id: ("a", DRAWN.choice("xyz"), f"g{number % 4}") for number, id in enumerate(LABELLED)}


def table(rows, folder):
    path = folder / "kinds.csv"
    text = "".join(f"{id},{kind},{genus}\n" for id, (_, kind, genus) in rows.items())
    path.write_text(f"id,kind,genus\n{text}")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory, environment):
    """Return two finished runs: vectors of residues, so that some records fail."""
    found = []
    for name, entries in (("of", RECORDS), ("others", OTHERS)):
        verbs = Verbs(tmp_path_factory.mktemp(name), environment)
        entries = [one for one in entries if name == "of" or one[0] != "fails"]
        verbs.extract(verbs.plan(entries, "residues", {"last": False}, cost=400))
        verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "--max-failed", "2")
        found.append(verbs.run_folder.root)
    return SimpleNamespace(of=found[0], others=found[1])


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    monkeypatch.setattr(nearest, "MANY_PAIRS", 100)
    monkeypatch.setattr(nearest, "MOST_QUERIES", 10)
    monkeypatch.setattr(records, "BLOCK_BYTES", 300)


def done(folder, of, reference=None, rows=LABELS, group=None, k=5, metric="cosine"):
    output = folder / "kinds.tsv"
    given = {"labels": str(table(rows, folder)), "column": "kind", "group": group}
    section = transfer.Transfer.model_construct(**given, k=k, metric=metric)
    command.transfer(of, reference, section, output)
    found, missing = (
        list(csv.DictReader(path.read_text("utf-8").splitlines(), delimiter="\t"))
        for path in (output, folder / "kinds.missing.tsv")
    )
    return found, missing, json.loads((folder / "kinds.json").read_text())


def score(one, other, metric):
    if metric == "euclidean":
        return np.sqrt(((one - other) ** 2).sum())
    norms = np.sqrt((one**2).sum()) * np.sqrt((other**2).sum())
    return np.clip((one * other).sum() / norms, -1, 1) if norms else 0.0


def distance(one, other, metric):
    found = score(one, other, metric)
    return found if metric == "euclidean" else 1 - found


def vectors_in(run):
    opened = features.open(run)
    return {
        id: vector.astype(np.float64)
        for ids, vectors in opened.blocks()
        for id, vector in zip(ids, vectors, strict=True)
    }


def expected(of, reference, labels, sequences, group, k, metric):
    """Return what a plain script finds: one record after the other, all distances, sorted."""
    vectors, known = vectors_in(of), vectors_in(reference)
    labelled = [id for id in known if id in labels]
    found = {}
    for id, vector in vectors.items():
        theirs = sequences[1].get(id) == sequences[0][id] and id in labelled
        far = [
            (distance(known[other], vector, metric), other)
            for other in labelled
            if not theirs
            or not (
                sequences[1][other] == sequences[0][id]
                or (group and labels[other][2] == labels[id][2])
            )
        ]
        nearest = sorted(far, key=lambda pair: pair[0])[:k]
        votes = Counter(labels[other][1] for _, other in nearest)
        if votes:
            most = max(votes.values())
            best = next(pair for pair in nearest if votes[labels[pair[1]][1]] == most)
            label = labels[best[1]][1]
            own = labels[id][1] if theirs else ""
            found[id] = (label, votes[label], len(nearest), best[1], best[0], own)
    return found


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(
    ("elsewhere", "group", "k"),
    [
        (False, None, 5),
        (False, "genus", 3),
        (False, "genus", 1),
        (False, None, 1),
        (False, None, 500),
        (True, None, 4),
    ],
)
def test_it_finds_what_a_plain_script_finds(runs, tmp_path, metric, elsewhere, group, k):
    """With k beyond the labelled records, a twin, records that failed, and another run."""
    of = runs.others if elsewhere else runs.of
    sequences = (dict(OTHERS if elsewhere else RECORDS), dict(RECORDS))
    found, missing, told = done(tmp_path, of, runs.of, group=group, k=k, metric=metric)
    wanted = expected(of, runs.of, LABELS, sequences, group, k, metric)
    assert [row["id"] for row in found] == list(wanted)
    for row in found:
        *exact, distance, own = wanted[row["id"]]
        assert [row["label"], int(row["agree"]), int(row["neighbours"]), row["nearest"]] == exact
        assert float(row["distance"]) == pytest.approx(distance, rel=1e-8, abs=1e-9)
        assert row["known"] == own
    judged = told["leave_one_out"]
    if not elsewhere:
        right = [row["known"] == row["label"] for row in found if row["known"]]
        assert judged["accuracy"] == pytest.approx(np.mean(right)) and judged["records"] == 21
        assert {row["id"] for row in missing} == {"bad", "fails"}
    assert told["counts"]["transferred"] + told["counts"]["without"] == len(found) + len(missing)
    assert judged["interval"][0] < judged["accuracy"] < judged["interval"][1]


def test_every_record_is_in_one_of_the_tables_with_a_reason(runs, tmp_path):
    """All labelled ones are of one group: these have no neighbour, the others have."""
    rows = {id: (a, kind, "same") for id, (a, kind, _) in LABELS.items()}
    found, missing, told = done(tmp_path, runs.of, rows=rows, group="genus")
    there = [*vectors_in(runs.of)]
    lost = {one.id: f"{one.status}: {one.reason}" for one in failed.read(runs.of / "failed.tsv")}
    assert lost
    reasons = {row["id"]: row["reason"] for row in missing}
    assert len(reasons) == len(missing) and {id: reasons[id] for id in lost} == lost
    assert reasons.keys() == lost.keys() | LABELS.keys()
    assert [row["id"] for row in found] == [id for id in there if id not in LABELS]
    assert told["leave_one_out"]["accuracy"] is None
    assert told["counts"]["without"] == len(missing)


def test_a_labelled_record_has_no_vote_for_itself(runs, tmp_path):
    """Each has a label of its own, so none can be right; a twin has none either."""
    rows = {id: ("", f"only-{id}", "") for id in LABELS}
    found, _, told = done(tmp_path, runs.of, rows=rows, k=1)
    assert told["leave_one_out"]["accuracy"] == 0
    nearest = {row["id"]: row["nearest"] for row in found}
    twins = {"twin", PROTEINS[3][0]}
    assert all(nearest[id] != id for id in LABELS)
    assert all(nearest[id] not in twins for id in twins)
    found, *_ = done(tmp_path, runs.others, runs.of, rows, k=1)
    others = {row["id"]: row["nearest"] for row in found}
    assert others[PROTEINS[0][0]] != PROTEINS[0][0], "the same record, in another run"
    assert others["copy"] == PROTEINS[6][0], "an equal sequence of another name has a vote"


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("seed", range(20))
def test_ties_and_rounding_change_nothing(metric, seed):
    """Few values, many equal vectors, zeros, and vectors that differ in the last digits."""
    random = np.random.default_rng(seed)
    rows = random.integers(-1, 2, (30, 3)).astype(np.float64) * 10.0 ** random.integers(-3, 4)
    rows[::4] *= 1 + 1e-15
    rows = np.concatenate([rows, rows])[random.permutation(60)]
    queries = np.concatenate([rows[:7], random.integers(-1, 2, (9, 3))])
    excluded = random.random((16, 60)) < 0.3
    excluded[5] = True
    for k in (1, 4, 100):
        found = list(
            nearest.nearest_in_memory(
                rows, queries, k, metric, lambda some, block: excluded[some, block]
            )
        )
        for query, out, (places, scores) in zip(queries, excluded, found, strict=True):
            left = np.flatnonzero(~out)
            expected = np.array([score(rows[place], query, metric) for place in left])
            order = np.argsort(expected if metric == "euclidean" else -expected, kind="stable")[:k]
            assert places.tolist() == left[order].tolist()
            np.testing.assert_array_equal(scores, expected[order])


@pytest.mark.parametrize(
    ("right", "groups", "low", "high"),
    [
        ([True] * 9 + [False], [*"abcdefghij"], 0.5958, 0.9821),  # Wilson (1927), 9 of 10
        ([True] * 18 + [False] * 2, [*"abcdefghij"] * 2, 0.5958, 0.9821),  # pairs count once
        ([True] * 4, [*"aaaa"], 0.2065, 1.0),
    ],
)
def test_the_interval_counts_groups(right, groups, low, high):
    assert command.interval(right, groups) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": {"nobody": ("", "x", "g")}}, "none of its 1 ids is a record of"),
        ({"k": 0}, "--k 0: give 1 or more"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_the_table_as_it_was(runs, tmp_path, change, sentence):
    (tmp_path / "kinds.tsv").write_text("before")
    with pytest.raises(UserError, match=sentence):
        done(tmp_path, runs.of, **change)
    assert (tmp_path / "kinds.tsv").read_text() == "before"


def test_features_of_another_recipe_are_refused(runs, tmp_path, environment):
    verbs = Verbs(tmp_path, environment)
    verbs.extract(verbs.plan(PROTEINS[:3], "residues", {"last": True}))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet")
    labels = table(LABELS, tmp_path)
    words = (verbs.run_folder.root, "--labels", labels, "--column", "kind", "--vectors", "mean")
    said = verbs("transfer", runs.of, *words, "--output", "o.tsv", status=2)
    assert "distances between them mean nothing" in said


# ---- in a config ----

CONFIG = {
    "run": "soil",
    "inputs": "in.fa",
    "features": {"letters": {"workload": "composition"}, "others": {"workload": "composition"}},
}
SECTION = {"labels": "kinds.csv", "column": "kind", "of": "letters", "vectors": "composition"}


@pytest.mark.parametrize(
    ("change", "key", "sentence"),
    [
        ({"colunm": "kind"}, "colunm", "there is no such key here; did you mean 'column'?"),
        ({"column": "kin"}, "column", "kinds.csv: there is no column 'kin'; it has"),
        ({"group": "genera"}, "group", "kinds.csv: there is no column 'genera'; it has"),
        ({"group": "kind"}, "", "group and column are the same"),
        ({"of": "lettrs"}, "of", "there are no features 'lettrs'"),
        ({"of": None}, "of", "name the features, one of letters and others."),
        ({"reference": "know"}, "reference", "there are no features 'know'"),
        ({"reference": "results/known"}, "", "results/known/manifest.json: there is no such file"),
        ({"labels": "none.csv"}, "", "none.csv: there is no such file; name what is there."),
        (
            {"vectors": None},
            "vectors",
            "several columns; choose one of composition, hydropathy",
        ),
        ({"vectors": "hydro"}, "vectors", "there is no column 'hydro' with one vector a record"),
        ({"k": 0}, "k", "give a whole number of at least 1, not 0."),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path, environment, change, key, sentence):
    table(LABELS, tmp_path)
    (tmp_path / "in.fa").write_text(fasta(PROTEINS[:3]))
    told = {name: one for name, one in {**SECTION, **change}.items() if one}
    if change == {"k": 0}:
        told |= change
    text = yaml.safe_dump({**CONFIG, "transfer": {"kinds": told}}, sort_keys=False)
    (tmp_path / "my.yaml").write_text(text)
    said = Desk(tmp_path, environment).type("featuremill", "run", "my.yaml", "-n", status=None).text
    lines = text.splitlines()
    mark = f"    {key}:" if key in told else "  kinds:"
    line = 1 + next(number for number, one in enumerate(lines) if one.startswith(mark))
    where = f"my.yaml:{line}: transfer.kinds{key and '.'}{key}: "
    assert where in said and sentence in " ".join(said[said.index(where) :].split())
    assert not (tmp_path / "results").exists()


def test_a_reference_of_another_recipe_is_known_beforehand(runs):
    asked = transfer.Transfer(labels="k.csv", column="kind", reference=f"{runs.of}")
    settings = features.open(runs.of).settings.as_json()
    for version, problems in ((settings["version"], 0), ("another", 1)):
        schema = pa.schema({"mean": pa.list_(pa.float32(), 12)})
        known = {"one": Ahead(schema, {"version": version})}
        project = Project("one", [], {"one": "results/one"}, {}, known.get)
        assert len(list(transfer.problems_of_files({"kinds": asked}, project))) == problems


def test_a_group_that_is_the_record_needs_no_column(tmp_path):
    (tmp_path / "k.csv").write_text("accession,kind\np1,x\n")
    project = Project("one", [], {"one": "results/one"}, {}, lambda name: None)
    for group, problems in (("id", 0), ("genus", 1)):
        asked = transfer.Transfer(labels=f"{tmp_path}/k.csv", column="kind", group=group)
        assert len(list(transfer.problems_of_files({"kinds": asked}, project))) == problems


def test_a_touched_table_is_not_another_one(runs, tmp_path):
    done(tmp_path, runs.of)
    labels = tmp_path / "kinds.csv"
    (made,) = transfer.products(
        {"kinds": transfer.Transfer(labels=str(labels), column="kind")},
        Project("one", [], {"one": str(runs.of)}, {}),
    )
    made = made._replace(files=transfer.TABLE.files(f"{tmp_path}/kinds{transfer.TABLE.suffix}"))
    made = made._replace(card=partial(made.card.func, tmp_path / "kinds.json"))
    labels.touch()
    assert not made.differences().others
    other = made._replace(inputs=[str(tmp_path / "others.csv"), *made.inputs[1:]])
    assert other.differences().others == [str(labels)], "another table is named"
    labels.write_text(labels.read_text() + "more,x,g\n")
    assert made.differences().others == [str(labels)]


def test_it_has_its_place_below_a_prefix(tmp_path, environment):
    """Imported by another workflow, whose prefix holds for its labels and features, too."""
    below = tmp_path / "below"
    below.mkdir()
    (below / "in.fa").write_text(fasta(PROTEINS))
    table(LABELS, below)
    section = {name: one for name, one in SECTION.items() if name != "of"}
    config = {"run": "soil", "inputs": "in.fa", "workload": "composition", "outputs": "npy"}
    (tmp_path / "Snakefile").write_text(
        "from featuremill import SNAKEFILE\n\n\n"
        "module soil:\n    snakefile:\n        SNAKEFILE\n    config:\n"
        f"        { ({**config, 'transfer': {'kinds': section}})!r}\n    prefix:\n"
        '        "below"\n\n\nuse rule * from soil as soil_*\n'
    )
    target = "below/results/soil/transfer/kinds.tsv"
    Desk(tmp_path, environment).type("snakemake", "--cores", "2", target)
    assert len((tmp_path / target).read_text().splitlines()) == len(PROTEINS) + 1


def test_config_docs_have_the_steps_that_are_installed_if_asked(tmp_path, environment):
    desk = Desk(tmp_path, environment)
    for words, is_there in (((), False), (("--installed",), True)):
        folders = ("--folder", "c", "--docs", "d", "--schemas", "s")
        desk.type("featuremill", "config-docs", *folders, *words)
        schema = json.loads(Path(tmp_path, "s/config.schema.json").read_text())
        page = Path(tmp_path, "c/README.md").read_text()
        assert ("tally" in schema["properties"]) == ("### `tally`" in page) == is_there
        assert "transfer" in schema["properties"]


def test_numbers_whose_squares_overflow_have_no_distance(runs, tmp_path, monkeypatch):
    take = records.Features.take
    monkeypatch.setattr(
        records.Features, "take", lambda self, rows: take(self, rows).astype(np.float64) * 1e200
    )
    with pytest.raises(UserError, match="some vectors have numbers too large to compute distances"):
        done(tmp_path, runs.of)
    assert not (tmp_path / "kinds.tsv").exists()
