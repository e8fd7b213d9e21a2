"""groups: the vectors of a group's records become one, as a plain script has them; every member."""

import csv
import json
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from programs import Desk, Verbs, fasta

from featuremill import features
from featuremill.base.errors import UserError
from featuremill.features import records
from featuremill.step import Ahead, Project
from featuremill.steps import groups
from featuremill.steps.groups import command

DRAWN = random.Random(7)
PROTEINS = [(f"p{n}", "".join(DRAWN.choices("ACDEFGHIKLMNPQRSTVY", k=20))) for n in range(40)]
RECORDS = [("fails", "MKWL"), *PROTEINS, ("twin", PROTEINS[3][1]), ("bad", "MK1")]
GENES = {id: f"g{n % 7}" for n, (id, _) in enumerate(PROTEINS[:30])}
GENES |= {"twin": "g3", "fails": "g0", "bad": "alone", "absent": "g1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, environment):
    """Return a finished run: vectors of residues, so that some records fail."""
    verbs = Verbs(tmp_path_factory.mktemp("run"), environment)
    verbs.extract(verbs.plan(RECORDS, "residues", {"last": False}, cost=400))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "--max-failed", "2")
    return verbs.run_folder.root


def table(folder, rows=GENES):
    path = folder / "genes.csv"
    path.write_text("id,gene\n" + "".join(f"{id},{gene}\n" for id, gene in rows.items()))
    return path


def done(folder, run, rows=GENES, pool=("mean", "max", "sum")):
    output = folder / "genes.parquet"
    section = groups.Groups(table=str(table(folder, rows)), column="gene", pool=pool)
    command.pool(run, section, output)
    with (folder / "genes.members.tsv").open(newline="") as file:
        members = list(csv.DictReader(file, delimiter="\t"))
    told = json.loads((folder / "genes.json").read_text())
    return SimpleNamespace(table=pq.read_table(output), members=members, told=told)


def vectors_of(run):
    found = {}
    for ids, block in features.open(run).blocks():
        found |= zip(ids, block, strict=True)
    return found


@pytest.mark.parametrize("block_bytes", [300, 100_000])
def test_each_group_has_the_vector_of_a_plain_script(run, tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(records, "BLOCK_BYTES", block_bytes)
    found = done(tmp_path, run)
    vectors = vectors_of(run)
    expected = {}
    for id, vector in vectors.items():
        if id in GENES:
            expected.setdefault(GENES[id], []).append(vector.astype(np.float64))
    rows = {row["group"]: row for row in found.table.to_pylist()}
    assert rows.keys() == expected.keys() and "alone" not in rows
    for gene, members in expected.items():
        total = np.zeros_like(members[0])
        for member in members:
            total += member
        own = {"sum": total, "mean": total / len(members), "max": np.max(members, 0)}
        for pool, vector in own.items():
            assert np.array_equal(np.array(rows[gene][pool], np.float32), vector.astype(np.float32))
        assert rows[gene]["members"] == len(members)
    missing = {gene: row["missing"] for gene, row in rows.items() if row["missing"]}
    assert missing == {"g0": 1, "g1": 1}


def test_every_member_and_every_record_is_accounted_for(run, tmp_path):
    found = done(tmp_path, run)
    of = {row["id"]: row for row in found.members}
    assert len(of) == len(found.members) and of.keys() == {*dict(RECORDS), "absent"}
    assert of["p0"] == {"id": "p0", "group": "g0", "status": "pooled"}
    assert of["p35"] == {"id": "p35", "group": "", "status": "no group"}
    assert of["fails"]["group"] == "g0" and of["fails"]["status"].startswith("failed: ")
    assert of["bad"]["status"].startswith("refused: ") and of["bad"]["group"] == "alone"
    assert of["absent"]["status"] == "no record of this id"
    counts = {"pooled": 31, "missing": 3, "without_group": 10, "groups": 7}
    counts |= {"groups_without_vector": 1, "incomplete_groups": 2, "rows_without_group": 0}
    assert found.told["counts"] == counts
    assert sum(row["members"] for row in found.table.to_pylist()) == 31


def test_a_table_of_other_ids_is_refused(run, tmp_path):
    sentence = r"none of its 1 ids is a record of .*; the first that is none is 'x' "
    with pytest.raises(UserError, match=sentence):
        done(tmp_path, run, {"x": "g"})
    assert not (tmp_path / "genes.parquet").exists()


def test_a_vector_that_is_not_finite_is_refused(run, tmp_path, monkeypatch):
    blocks = [(["p0"], np.full((1, 3), np.nan))]
    monkeypatch.setattr(records.Features, "blocks", lambda self: blocks)
    with pytest.raises(UserError, match=r"vector of record 'p0' in .* not finite"):
        done(tmp_path, run)


CONFIG = {"run": "soil", "inputs": "in.fa", "workload": "composition", "outputs": "npy"}
SECTION = {"table": "genes.csv", "column": "gene", "vectors": "composition", "pool": ["mean"]}


@pytest.mark.parametrize(
    ("change", "key", "sentence"),
    [
        ({"colunm": "gene"}, "colunm", "there is no such key here; did you mean 'column'?"),
        ({"column": "gen"}, "column", "genes.csv: there is no column 'gen'; it has"),
        ({"of": "lettrs"}, "of", "there are no features 'lettrs'"),
        ({"vectors": "hydro"}, "vectors", "there is no column 'hydro' with one vector a record"),
        ({"pool": "meen"}, "pool", "or one of `mean`, `max`, `sum`, not 'meen'"),
        ({"table": "none.csv"}, "", "none.csv: there is no such file; name what is there."),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path, environment, change, key, sentence):
    table(tmp_path)
    (tmp_path / "in.fa").write_text(fasta(PROTEINS[:3]))
    told = {**SECTION, **change}
    text = yaml.safe_dump({**CONFIG, "groups": {"genes": told}}, sort_keys=False)
    (tmp_path / "my.yaml").write_text(text)
    said = Desk(tmp_path, environment).type("featuremill", "run", "my.yaml", "-n", status=None).text
    mark = f"    {key}:" if key else "  genes:"
    line = 1 + next(n for n, one in enumerate(text.splitlines()) if one.startswith(mark))
    where = f"my.yaml:{line}: groups.genes{key and '.'}{key}"
    assert where in said and sentence in " ".join(said[said.index(where) :].split())
    assert not (tmp_path / "results").exists()


def test_a_touched_table_is_not_another_one(run, tmp_path):
    done(tmp_path, run)
    path = tmp_path / "genes.csv"
    project = Project("one", [], {"one": str(run)}, {}, {"one": None}.get)
    asked = {"genes": groups.Groups(table=str(path), column="gene")}
    (made,) = groups.products(asked, project)
    card = tmp_path / "genes.json"
    made = made._replace(files=groups.TABLE.files(f"{tmp_path}/genes{groups.TABLE.suffix}"))
    made = made._replace(card=partial(made.card.func, card))
    path.touch()
    assert not made.differences().others
    path.write_text(path.read_text() + "more,g9\n")
    assert made.differences().others == [str(path)]
    figures = made.figures.func(card, groups.TABLE.figures)
    assert figures == {"groups": 7, "pooled": 31, "missing": 3}


def test_a_job_asks_for_memory_that_machines_have():
    _, _, after = groups.RULES.read_text().partition("mem_mb=")
    asked = eval(after.partition(",\n    params:")[0])
    of = {size: asked(None, SimpleNamespace(size_mb=size), 1) for size in (0, 10, 100, 10_000)}
    assert of == {0: 2_000, 10: 5_600, 100: 32_000, 10_000: 32_000}
    assert asked(None, SimpleNamespace(size_mb=100), 2) == 64_000


def test_vectors_that_will_not_be_there_are_known_beforehand(tmp_path):
    schema = pa.schema({"mean": pa.list_(pa.float32(), 12)})
    project = Project("one", [], {"one": "results/one"}, {}, {"one": Ahead(schema, {})}.get)
    for vectors, problems in ((None, 0), ("mean", 0), ("bos", 1)):
        asked = groups.Groups(table="none.csv", column="gene", vectors=vectors)
        assert len(list(groups.problems_of_files({"genes": asked}, project))) == problems
