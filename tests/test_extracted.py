"""The target `extracted`: compute now, merge later."""

import pytest
import yaml
from programs import Workflow, jobs_listed, random_records

RECORDS = random_records(20)


@pytest.fixture
def workflow(tmp_path, environment):
    return Workflow(tmp_path, environment, RECORDS)


def test_all_is_computed_and_a_later_run_merges_without_computing(workflow):
    said = workflow("extracted")
    assert sorted(workflow.news()) == sorted({sequence for _, sequence in RECORDS})
    assert "results/test: all is computed. This merges it: snakemake " in said
    assert "extracted" not in said.rpartition("This merges it: ")[2]
    assert not workflow.run_folder.delivery.exists()
    assert not (workflow.run_folder.root / "embeddings.parquet").exists()
    jobs = jobs_listed(workflow("--dry-run"))
    assert {"merge", "report"} <= jobs and not {"plan", "extract"} & jobs
    workflow()
    assert workflow.news() == [] and workflow.counts()["ok"] == len(RECORDS)
    workflow.write([*RECORDS, ("new", "MKVLAAGIVGL")])
    before = workflow.run_folder.delivery.read_bytes()
    workflow("extracted")
    assert workflow.news() == ["MKVLAAGIVGL"]
    assert workflow.run_folder.delivery.read_bytes() == before, "older results stay until then"
    workflow()
    assert workflow.news() == [] and workflow.counts()["ok"] == len(RECORDS) + 1
    assert "This merges it" not in workflow("extracted")


def test_of_all_sets_of_features(workflow):
    path = workflow.folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    one = {key: config.pop(key) for key in ("workload", "options", "shards", "device")}
    path.write_text(yaml.safe_dump({**config, "features": {"a": one, "b": one}}))
    workflow("extracted")
    assert len(workflow.news()) == 2 * len({sequence for _, sequence in RECORDS})
    said = workflow()
    assert workflow.news() == [] and said.count("20 of 20 records have features") >= 2
