"""What a run is made of is known: where its paths are seen from, and whether it is what the config
and the files ask for now."""

import json

import pyarrow.parquet as pq
import pytest
from programs import Verbs, fasta

from featuremill import config
from featuremill.store.results import Results
from featuremill.store.run_file import RunFile


def written_run(folder, is_early=False, **keys):
    """Write what Snakemake leaves in a run's folder before its first job."""
    asked = config.validate({"run": "test", "inputs": "in.fa", "workload": "composition", **keys})
    path = Results(folder / "results" / "test").run
    path.parent.mkdir(parents=True)
    more = {} if is_early else {"folder": "../.."}
    RunFile(config=asked.model_dump(mode="json"), **more).write(path)


@pytest.mark.parametrize("is_early", [True, False])
def test_commands_typed_elsewhere_read_the_files_of_the_run(tmp_path, environment, is_early):
    own, other = tmp_path / "project", tmp_path / "other"
    for folder, record in ((own, ("a", "MKTAYI")), (other, ("OTHER", "MKKKKK"))):
        folder.mkdir()
        (folder / "in.fa").write_text(fasta([record]))
    written_run(own, is_early)
    verbs, run = Verbs(other, environment), "../project/results/test"
    verbs("plan", run)
    plan = json.loads((own / "results/test/plan.json").read_text())
    assert [entry["path"] for entry in plan["inputs"]] == ["in.fa"]
    if is_early:
        return
    verbs("extract", run, plan["shards"][0]["shard"], "--log-file", "mine.log")
    verbs("merge", run)
    assert pq.read_table(own / "results/test/embeddings.parquet")["id"].to_pylist() == ["a"]
    assert [path.name for path in sorted(other.iterdir())] == ["in.fa", "mine.log"]
    (own / "in.fa").unlink()
    said = verbs.type("featuremill", "status", run).out
    assert "in.fa: this input is gone" in said, "the other file of this name is none of the run's"
