"""Steps after the features take samples: an id is one record in each of them."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from programs import Verbs, fasta, random_records

from featuremill import features
from featuremill.base.errors import UserError
from featuremill.config import project
from featuremill.features import split_id
from featuremill.steps.groups import write

SEQUENCES = [sequence.replace("W", "V") for _, sequence in random_records(12)]
SAMPLES = {
    "a": [(f"p{n}", one) for n, one in enumerate(SEQUENCES[:8])] + [("fails", "MKWL")],
    "b": [(f"p{n}", one) for n, one in enumerate(SEQUENCES[4:])] + [("bad", "MK1")],
    "c": [("p0", SEQUENCES[0])],
}
"""Samples with the same ids, of which p0 of a and of c alone are the same sequence."""
SITES = {"a": "lake", "b": "sea", "c": "lake"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, environment):
    """Return a finished run of samples, in which records failed and were refused."""
    verbs = Verbs(tmp_path_factory.mktemp("samples"), environment)
    lines = ["sample\tfile\tsite"]
    for name, records in SAMPLES.items():
        (verbs.folder / f"{name}.fa").write_text(fasta(records))
        lines.append(f"{name}\t{name}.fa\t{SITES[name]}")
    (verbs.folder / "samples.tsv").write_text("\n".join(lines))
    asked = {"samples": "samples.tsv", "inputs": []}
    verbs.extract(verbs.plan([], "residues", {"last": False}, more=("--threads", "1"), **asked))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "--max-failed", "2")
    return verbs.run_folder.root


@pytest.fixture(scope="module")
def vectors(run):
    """Return the vector of each record, by sample and id."""
    return {
        split_id(id): vector.astype(np.float64)
        for ids, block in features.open(run).blocks()
        for id, vector in zip(ids, block, strict=True)
    }


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def table_of(folder, rows, head):
    path = folder / "table.tsv"
    path.write_text("\n".join("\t".join(row) for row in [head, *rows]))
    return path


def grouped(folder, run, table=None, column=None):
    output = folder / "groups.parquet"
    write.pool(write.Chosen(run, table, column, None, ["sum"], output))
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
    ],
)
def test_groups_that_cannot_be_are_refused_before(tmp_path, monkeypatch, samples, section, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.tsv").write_text("sample\tfile\tsite\na\ta.fa\tx\n")
    (tmp_path / "t.tsv").write_text("id\tgene\np0\tg\n")
    asked = {"samples": "s.tsv"} if samples else {"inputs": "a.fa"}
    with pytest.raises(UserError, match=problem):
        told = project.validate({**asked, "workload": "composition", "groups": {"g": section}})
        raise UserError("\n".join(project.problems_of_files(told)))
