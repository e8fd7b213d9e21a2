"""Steps after the features take samples: an id is one record in each of them."""

import json
import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from programs import Verbs, random_records, rows_of, write_samples

import featuremill
from featuremill import __main__, features
from featuremill.base.errors import UserError
from featuremill.base.id_columns import KEYS, IdColumns
from featuremill.config import project
from featuremill.steps.groups import Groups, command
from featuremill.steps.transfer import Transfer
from featuremill.steps.transfer import command as transfer
from featuremill.store.results import Results

SEQUENCES = [sequence.replace("W", "V") for _, sequence in random_records(12)]
SAMPLES = {
    "a": [(f"p{n}", one) for n, one in enumerate(SEQUENCES[:8])] + [("fails", "MKWL")],
    "b": [(f"p{n}", one) for n, one in enumerate(SEQUENCES[4:])] + [("bad", "MK1")],
    "c": [("p0", SEQUENCES[0])],
}
"""Samples with the same ids, of which p0 of a and of c alone are the same sequence."""
OF_SAMPLES = IdColumns(KEYS)
SITES = {"a": "lake", "b": "sea", "c": "lake"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, environment):
    """Return a finished run of samples, in which records failed and were refused."""
    verbs = Verbs(tmp_path_factory.mktemp("samples"), environment)
    asked = write_samples(verbs.folder, SAMPLES, site=SITES)
    asked |= {"workload": "residues", "options": {"last": False}}
    verbs.finish([], "parquet", max_failed=2, **asked)
    return verbs.run_folder.root


@pytest.fixture(scope="module")
def vectors(run):
    """Return the vector of each record, by sample and id."""
    return {
        (*OF_SAMPLES.cells(id),): vector.astype(np.float64)
        for ids, block in features.open(run).blocks()
        for id, vector in zip(ids, block, strict=True)
    }


def table_of(folder, rows, head):
    path = folder / "table.tsv"
    path.write_text("\n".join("\t".join(row) for row in [head, *rows]))
    return path


def grouped(folder, run, table=None, column=None):
    output = folder / "groups.parquet"
    command.pool(run, Groups(table=table and str(table), column=column, pool="sum"), output)
    members = rows_of(folder / "groups.members.tsv")
    told = json.loads((folder / "groups.json").read_text())
    return SimpleNamespace(rows=pq.read_table(output).to_pylist(), members=members, told=told)


@pytest.mark.parametrize("column", [None, "site"])
def test_groups_are_samples_or_what_their_sheet_says(run, tmp_path, vectors, column):
    name_of = SITES.get if column else str
    found = grouped(tmp_path, run, column=column)
    sums = {}
    for (sample, _), vector in vectors.items():
        sums[name_of(sample)] = sums.get(name_of(sample), 0) + vector
    assert [row["group"] for row in found.rows] == list(sums)
    for row in found.rows:
        assert np.array_equal(np.array(row["sum"]), sums[row["group"]].astype(np.float32))
        assert row["missing"] == (row["group"] != "c")
    assert {(row["sample"], row["id"]) for row in found.members} == {
        (sample, id) for sample, records in SAMPLES.items() for id, _ in records
    }
    assert all(row["group"] == name_of(row["sample"]) for row in found.members)
    assert found.told["column"] == (column or "sample") and found.told["table"] is None


def test_the_sheet_of_a_newer_plan_groups_nothing(run, tmp_path):
    folder = Results(tmp_path / "run")
    shutil.copytree(run, folder.root)
    folder.read_plan().model_copy(update={"run": "another"}).write(folder.plan)
    with pytest.raises(UserError, match="its sheet of samples was planned anew after these"):
        grouped(tmp_path, folder.root)
    folder.plan.unlink()
    folder.records.unlink()
    with pytest.raises(UserError, match="which has the sheet of samples of these results"):
        grouped(tmp_path, folder.root)


def test_groups_of_a_table_are_within_a_sample(run, tmp_path, vectors):
    genes = [("a", "p0", "g"), ("a", "p1", "g"), ("b", "p0", "g"), ("c", "p9", "g")]
    found = grouped(tmp_path, run, table_of(tmp_path, genes, ("sample", "id", "gene")), "gene")
    rows = {(row["sample"], row["group"]): row for row in found.rows}
    own = {"a": vectors["a", "p0"] + vectors["a", "p1"], "b": vectors["b", "p0"]}
    assert rows.keys() == {(sample, "g") for sample in own}
    for sample, vector in own.items():
        assert np.array_equal(np.array(rows[sample, "g"]["sum"]), vector.astype(np.float32))
    status = {(row["sample"], row["id"]): row["status"] for row in found.members}
    assert status["c", "p0"] == "no group" and status["c", "p9"] == "no record of this id"
    bare = table_of(tmp_path, [("p0", "g")], ("id", "gene"))
    with pytest.raises(UserError, match="no column 'sample'; add it"):
        grouped(tmp_path, run, bare, "gene")


@pytest.mark.parametrize(
    ("samples", "section", "problem"),
    [
        (True, {"column": "side"}, "s.tsv: there is no column 'side'; it has"),
        (True, {"table": "t.tsv", "column": "gene"}, "no column 'sample'; add it"),
        (True, {"table": "t.tsv"}, "groups.g.table: name its column of groups"),
        (False, {}, "groups.g: name a table with groups"),
        (True, {"of": "results/known"}, "groups.g: results/known is a run without samples"),
    ],
)
def test_groups_that_cannot_be_are_refused_before(tmp_path, monkeypatch, samples, section, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.tsv").write_text("sample\tfile\tsite\na\ta.fa\tx\n")
    (tmp_path / "t.tsv").write_text("id\tgene\np0\tg\n")
    (tmp_path / "results/known").mkdir(parents=True)
    (tmp_path / "results/known/manifest.json").touch()
    asked = {"samples": "s.tsv"} if samples else {"inputs": "a.fa"}
    with pytest.raises(UserError, match=problem):
        told = project.validate({**asked, "workload": "composition", "groups": {"g": section}})
        raise UserError("\n".join(project.problems_of_files(told)))


# ---- transfer ----

LABELS = [("a", f"p{n}", f"l{n % 3}") for n in range(8)] + [("b", "p7", "l9"), ("c", "p5", "l9")]


def transferred(folder, run, labels, reference=None, group=None):
    output = folder / "kinds.tsv"
    asked = {"labels": str(labels), "column": "kind", "group": group, "k": 1}
    transfer.transfer(run, reference, Transfer(**asked, metric="euclidean"), output)
    told = json.loads((folder / "kinds.json").read_text())
    missing = rows_of(folder / "kinds.missing.tsv")
    return SimpleNamespace(rows=rows_of(output), missing=missing, told=told)


def nearest(vectors, of, labelled):
    """Return the nearest labelled record that is neither this one nor has its sequence."""
    sequence = dict(SAMPLES[of[0]])[of[1]]
    others = [
        one for one in labelled if of not in labelled or dict(SAMPLES[one[0]])[one[1]] != sequence
    ]
    return min(others, key=lambda one: np.sqrt(((vectors[one] - vectors[of]) ** 2).sum()))


def test_labels_are_transferred_by_sample_and_id(run, tmp_path, vectors):
    found = transferred(tmp_path, run, table_of(tmp_path, LABELS, ("sample", "id", "kind")))
    label_of = {(s, id): kind for s, id, kind in LABELS if (s, id) in vectors}
    assert [(row["sample"], row["id"]) for row in found.rows] == list(vectors)
    for row in found.rows:
        record = row["sample"], row["id"]
        assert row["known"] == label_of.get(record, "")
        assert row["nearest"] == "/".join(nearest(vectors, record, label_of))
        assert row["label"] == label_of[(*OF_SAMPLES.cells(row["nearest"]),)]
    assert [(row["sample"], row["id"]) for row in found.missing] == [("a", "fails"), ("b", "bad")]
    assert found.told["counts"]["labels_without_vector"] == 1
    with pytest.raises(UserError, match="no column 'sample'; add it"):
        transferred(tmp_path, run, table_of(tmp_path, [("p0", "l")], ("id", "kind")))


def test_no_record_gets_its_label_from_its_own_sample_where_that_is_asked(run, tmp_path):
    labels = table_of(tmp_path, LABELS, ("sample", "id", "kind"))
    found = transferred(tmp_path, run, labels, group="sample")
    judged = [row for row in found.rows if row["known"]]
    assert judged and all(OF_SAMPLES.owner(row["nearest"]) != row["sample"] for row in judged)


# ---- search ----


def test_a_search_takes_and_gives_sample_and_id(run, vectors, tmp_path):
    def ask(queries, **how):
        how = {"column": "mean", "metric": "l2", **how}
        return featuremill.search(run, queries, 3, **how)["id"].tolist()

    near = sorted(vectors, key=lambda one: ((vectors[one] - vectors["b", "p1"]) ** 2).sum())
    assert ask("b/p1") == ["/".join(one) for one in near[:3]]
    others = [one for one in near if one != ("b", "p1")]
    assert ask("b/p1", exclude_self=True) == ["/".join(one) for one in others[:3]]
    with pytest.raises(UserError, match="'p1' is the accession of several records, such as a/p1"):
        ask("p1")
    with pytest.raises(UserError, match="'a/fails' has no vector: it failed"):
        ask("a/fails")
    (tmp_path / "p1.fa").write_text(">p1\nMKV\n")
    with pytest.raises(UserError, match=r"p1\.fa: a file does not name the sample of a sequence"):
        ask(["b/p1", tmp_path / "p1.fa"], exclude_self=True)


# ---- autoencoders ----


def test_an_autoencoder_sees_the_residues_of_all_samples_and_names_whose_a_record_is(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("featuremill"), "handlers", [])
    sae = tmp_path / "small"
    asked = ("--features", 24, "--k", 4, "--steps", 10, "--batch", 32, "--held-out", 0.3)
    for words in (
        ("train", run, "--vectors", "residues", *asked, "--device", "cpu", "--output", sae),
        ("encode", run, "--sae", sae, "--output", tmp_path / "active.parquet"),
        ("report", run, "--sae", sae),
    ):
        assert __main__.main(["sae", *map(str, words)]) == 0
    distinct = {text for records in SAMPLES.values() for _, text in records} - {"MKWL", "MK1"}
    assert features.open_parts(run, "residues").num_of_row.sum() == sum(map(len, distinct))
    table = pq.read_table(tmp_path / "active.parquet")
    assert table.column_names == ["sample", "id", "features"]
    active = {
        (row["sample"], row["id"]): {one["feature"]: one["value"] for one in row["features"]}
        for row in table.to_pylist()
    }
    ids = [(sample, id) for sample, records in SAMPLES.items() for id, _ in records]
    assert list(active) == [one for one in ids if one[1] not in ("fails", "bad")]
    rows = rows_of(sae / "features.tsv")
    for row in rows:
        value = active[row["sample"], row["id"]][int(row["feature"])]
        assert float(row["value"]) == pytest.approx(value, rel=1e-5)
    assert {row["sample"] for row in rows} == set(SAMPLES)
    text = (sae / "report.html").read_text()
    assert all(f"{row['sample']}/{row['id']}" in text for row in rows)
