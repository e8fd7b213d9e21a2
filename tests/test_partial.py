"""merge --partial: what there is by now, in a folder of its own, never in the way of the whole."""

import json
import shutil

import h5py
import pyarrow.parquet as pq
import pytest
import yaml
from programs import Verbs, Workflow, flip, jobs_listed, random_records, rows_of

from featuremill import __main__
from featuremill.base.errors import UserError
from featuremill.merge.command import merge, merge_partial
from featuremill.store.results import Results

OUTPUTS = ["parquet", "parquet_dataset", "per_protein_h5", "npy"]
WHOLE = {"manifest.json", "failed.tsv", "failed.fa", "embeddings.parquet", "embeddings"}
RECORDS = [
    ("refused", "MK*LA"),
    ("bad", "RAISEA"),
    *((f"r{n}", "DEFG" * (n + 1)) for n in range(30)),
    ("again", "DEFG"),
    ("r3", "DEFG" * 4),
]


@pytest.fixture(scope="module")
def half_done(tmp_path_factory, environment):
    """Return the verbs of a run of which every second shard is extracted."""
    verbs = Verbs(tmp_path_factory.mktemp("partial"), environment)
    plan = verbs.plan(RECORDS, "poison", cost=8)
    assert len(plan["shards"]) > 3
    verbs.extract(plan | {"shards": plan["shards"][::2]})
    return verbs


@pytest.fixture
def run(half_done, tmp_path):
    """Return a copy of that run's folder."""
    shutil.copytree(half_done.run_folder.root, tmp_path / "run")
    return Results(tmp_path / "run")


def partial_files(run):
    return {path.name for path in run.root.glob("partial/[!.]*")}


def listed(run):
    return {row["id"]: row for row in rows_of(run.root / "partial" / "failed.tsv")}


def plan_of(run):
    return json.loads(run.plan.read_text())


def test_every_file_says_that_it_is_partial_and_everything_adds_up(run):
    result = merge_partial(run, OUTPUTS, 2)
    counts = result.counts.as_json()
    assert result.partial is True
    assert json.loads((run.root / "partial" / "manifest.json").read_text()) == result.as_json()
    assert counts["input"] == 34 == sum(n for name, n in counts.items() if name != "input")
    assert counts["pending"] > 5 and counts["ok"] > 5
    assert not WHOLE & {path.name for path in run.root.iterdir()}
    assert partial_files(run) == {
        *(f"embeddings{ending}" for ending in ("", ".parquet", ".npy", ".npy.json")),
        "per-protein.h5",
        "failed.tsv",
        "failed.fa",
        "manifest.json",
    }
    table = pq.read_table(run.root / "partial" / "embeddings.parquet")
    for id, letters in zip(table["id"].to_pylist(), table["letters"].to_pylist(), strict=True):
        assert letters == [len(dict(RECORDS)[id])]
    for schema in (table.schema, pq.read_table(run.root / "partial" / "embeddings").schema):
        assert json.loads(schema.metadata[b"featuremill"])["partial"] == "true"
    with h5py.File(run.root / "partial" / "per-protein.h5") as file:
        assert file.attrs["partial"] == "true" and set(file) == set(table["id"].to_pylist())
    rows = listed(run)
    pending = {id for id, row in rows.items() if row["status"] == "pending"}
    assert len(pending) == counts["pending"]
    assert {rows[id]["reason"] for id in pending} == {"not computed yet"}
    assert not pending & set(table["id"].to_pylist())
    assert pending | {*table["id"].to_pylist(), "refused", "bad"} == {id for id, _ in RECORDS}


def test_a_kept_receipt_counts_and_a_damaged_part_is_pending(run):
    before = merge_partial(run, ["parquet"]).counts
    shutil.rmtree(run.root / "receipts")
    assert merge_partial(run, ["parquet"]).counts == before
    plan = plan_of(run)
    part = run.part(plan["recipe"], plan["shards"][0]["shard"])
    flip(part)
    content = part.read_bytes()
    assert merge_partial(run, ["parquet"]).counts.pending > before.pending
    assert part.read_bytes() == content, "who only looks moves nothing: a job may be at it"


def test_nothing_computed_yet_is_all_pending(run):
    shutil.rmtree(run.store / "parts")
    counts = merge_partial(run, OUTPUTS).counts
    assert (counts.ok, counts.pending) == (0, 32)
    assert partial_files(run) == {"failed.tsv", "failed.fa", "manifest.json"}
    report(run)
    assert "32 records of 34 not computed yet" in (run.root / "partial" / "report.html").read_text()


def report(run):
    assert __main__.main(["report", str(run.root), "--partial"]) == 0


def test_the_report_says_it_first_and_a_whole_merge_removes_all(half_done, tmp_path):
    verbs = Verbs(tmp_path, half_done.environment)
    shutil.copytree(half_done.folder, tmp_path, dirs_exist_ok=True)
    run, plan = verbs.run_folder, plan_of(verbs.run_folder)
    said = verbs("merge", run.root, "--partial", "--max-failed", "0", "--outputs", *OUTPUTS)
    assert "not computed yet" in said
    report(run)
    page = (run.root / "partial" / "report.html").read_text()
    assert "<title>featuremill: test (partial)</title>" in page
    assert '<p class="lead">Partial results' in page
    assert "Partial: " in page and "not computed yet" in page
    verbs.extract(plan)
    partial = partial_files(run)
    said = verbs("merge", run.root, status=2)
    assert "featuremill retry" in said
    assert partial_files(run) == partial, "they are the best there is"
    merge(run, ["parquet"], 1)
    assert not partial_files(run)
    assert "the results in" in verbs("merge", run.root, "--partial")
    report(run)
    assert not partial_files(run), "a whole result is there"


def test_while_a_run_plans_it_says_so(run):
    run.records.write_bytes(b"the next plan's")
    with pytest.raises(UserError, match="try again when it has planned"):
        merge_partial(run, OUTPUTS)
    assert not partial_files(run)


def test_a_report_of_nothing_names_the_command(run, capsys):
    assert __main__.main(["report", str(run.root), "--partial"]) == 2
    assert f"make them first (featuremill merge {run.root} --partial)" in capsys.readouterr().err


def test_by_hand_before_any_merge_it_says_which_outputs_it_takes(run, capsys):
    assert __main__.main(["merge", str(run.root), "--partial"]) == 0
    said = capsys.readouterr().err
    assert "writing parquet, as there was no merge before; --outputs names other formats" in said
    assert __main__.main(["merge", str(run.root), "--partial", "--outputs", "npy"]) == 0
    assert "there was no merge" not in capsys.readouterr().err
    assert "embeddings.npy" in partial_files(run)


def test_the_real_results_are_not_touched(run):
    """An edited input: the last results stay until the next whole merge."""
    (run.root / "manifest.json").write_text('{"recipe": "another"}')
    (run.root / "embeddings.parquet").write_bytes(b"of the last plan")
    merge_partial(run, OUTPUTS)
    assert (run.root / "manifest.json").read_text() == '{"recipe": "another"}'
    assert (run.root / "embeddings.parquet").read_bytes() == b"of the last plan"


def test_snakemake_partial_plans_and_computes_nothing(workflow):
    assert "20 are not computed yet" in workflow("partial")
    assert (workflow.run_folder.root / "partial" / "report.html").exists()
    assert "rule partial:" in workflow("partial", "-n"), "it always runs"
    assert workflow.news() == []


# ---- the target `extracted`: compute now, merge later ----

TWENTY = random_records(20)


@pytest.fixture
def workflow(tmp_path, environment):
    return Workflow(tmp_path, environment, TWENTY)


def test_all_is_computed_and_a_later_run_merges_without_computing(workflow):
    said = workflow("extracted")
    assert sorted(workflow.news()) == sorted({sequence for _, sequence in TWENTY})
    assert "results/test: all is computed. This merges it: snakemake " in said
    assert "extracted" not in said.rpartition("This merges it: ")[2]
    assert not workflow.run_folder.delivery.exists()
    assert not (workflow.run_folder.root / "embeddings.parquet").exists()
    jobs = jobs_listed(workflow("--dry-run"))
    assert {"merge", "report"} <= jobs and not {"plan", "extract"} & jobs
    workflow()
    assert workflow.news() == [] and workflow.counts()["ok"] == len(TWENTY)
    workflow.write([*TWENTY, ("new", "MKVLAAGIVGL")])
    before = workflow.run_folder.delivery.read_bytes()
    workflow("extracted")
    assert workflow.news() == ["MKVLAAGIVGL"]
    assert workflow.run_folder.delivery.read_bytes() == before, "older results stay until then"
    workflow()
    assert workflow.news() == [] and workflow.counts()["ok"] == len(TWENTY) + 1
    assert "This merges it" not in workflow("extracted")


def test_of_all_sets_of_features(workflow):
    path = workflow.folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    one = {key: config.pop(key) for key in ("workload", "options", "shards", "device")}
    path.write_text(yaml.safe_dump({**config, "features": {"a": one, "b": one}}))
    workflow("extracted")
    assert len(workflow.news()) == 2 * len({sequence for _, sequence in TWENTY})
    said = workflow()
    assert workflow.news() == [] and said.count("20 of 20 records have features") >= 2
