"""Several sets of features in one config: one workflow, screen and status, each set by itself."""

import json
import os
import shutil
import signal
import subprocess

import numpy as np
import pandas as pd
import pytest
import yaml
from esm2_models import fair_esm, save_hugging_face
from programs import ROOT, Desk, Workflow, fasta, random_records, wait_for

from featuremill.store import formats, ours
from featuremill.store.files import read_json, sha256_of
from featuremill.store.results import Results

RECORDS = random_records(12)
POISON = {"workload": "poison", "device": "cpu", "outputs": "parquet", "shards": {"cost": 50}}
LETTERS = {"workload": "composition", "outputs": ["npy", "parquet"]}
SNAKEFILE = ("--snakefile", ROOT / "Snakefile")
WHOLE = ("snakemake", *SNAKEFILE, "--configfile", "config.yaml", "--cores", "2")
PROFILE = ("--workflow-profile", ROOT / "profiles" / "default")


def write(folder, config, name="config.yaml"):
    (folder / name).write_text(yaml.safe_dump(config, sort_keys=False))


def project(folder, records=RECORDS, **options):
    """Write a config of two sets into `folder`; what `soil/faulty` computes stands in a file."""
    (folder / "in.fa").write_text(fasta(records))
    faulty = POISON | {"options": {"computed": "computed.txt", "batch_records": 4, **options}}
    config = {"run": "soil", "inputs": "in.fa", "features": {"faulty": faulty, "letters": LETTERS}}
    write(folder, config)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """Return a folder with a computed project, and what was said; no test changes it."""
    folder = tmp_path_factory.mktemp("project")
    project(folder)
    desk = Desk(folder, {**environment, "FEATUREMILL_QUIET": ""})
    return desk, desk.type(*WHOLE, *PROFILE).text


@pytest.fixture
def desk(finished, tmp_path):
    shutil.copytree(finished[0].folder, tmp_path, dirs_exist_ok=True)
    return Desk(tmp_path, finished[0].environment)


def test_each_set_has_the_values_of_a_run_by_itself(finished, tmp_path, environment):
    done, said = finished
    workflow = Workflow(tmp_path, environment, RECORDS)
    (tmp_path / "in.fa").write_text(fasta(RECORDS))
    write(tmp_path, {"run": "test", "inputs": "in.fa", **LETTERS})
    workflow()
    for file in ("embeddings.npy", "embeddings.parquet", "failed.tsv"):
        alone = workflow.run_folder.root / file
        assert (done.folder / "results/soil/letters" / file).read_bytes() == alone.read_bytes()
    assert said.count("12 of 12 records have features:") == 2
    for name in ("faulty", "letters"):
        assert f"plan │ {name}: 12 records, " in said and f"extract │ {name}: shard " in said
    assert "results/soil/letters/report.html" in said and "Select jobs" not in said
    for name in ("faulty", "letters"):
        run = Results(done.folder / "results" / "soil" / name)
        assert run.find_plan().run == f"soil/{name}" and (run.root / "report.html").exists()
        logs = {"extract", "merge.log", "plan.log", "report.log"}
        assert {path.name for path in run.logs.iterdir()} == logs
    there = {path.name for path in done.folder.iterdir()}
    assert there == {".snakemake", "computed.txt", "config.yaml", "in.fa", "results"}


def test_until_merge_computes_and_merges_each_set(tmp_path, environment):
    """The sets have different outputs, so two rules merge them."""
    (tmp_path / "in.fa").write_text(fasta(RECORDS))
    sets = {"letters": LETTERS, "others": LETTERS | {"outputs": "parquet"}}
    write(tmp_path, {"run": "soil", "inputs": "in.fa", "features": sets})
    Desk(tmp_path, environment).type(*WHOLE, "--until", "merge")
    for name in sets:
        run = Results(tmp_path / "results" / "soil" / name)
        assert run.find_delivery() and not (run.root / "report.html").exists()


def test_an_edit_of_one_set_computes_that_one_alone(desk):
    (desk.folder / "computed.txt").unlink()
    before = (desk.folder / "results/soil/faulty/embeddings.parquet").stat().st_mtime_ns
    config = yaml.safe_load((desk.folder / "config.yaml").read_text())
    config["features"]["letters"]["outputs"] = ["npy"]
    write(desk.folder, config)
    said = desk.type(*WHOLE, *PROFILE).text
    assert "results/soil/letters" in said and "results/soil/faulty" not in said
    assert not (desk.folder / "computed.txt").exists()
    assert (desk.folder / "results/soil/faulty/embeddings.parquet").stat().st_mtime_ns == before


def test_the_verbs_that_take_a_run_take_the_project(desk):
    for given in ("config.yaml", "results/soil"):
        said = status(desk, given)
        assert said.startswith(f"{given}: done.") and "results/soil/letters: done" in said
    told = json.loads(status(desk, "config.yaml", "--json"))
    assert told["state"] == "done" and told["runs"].keys() == {"faulty", "letters"}
    assert "soil/letters: done" in desk.type("featuremill", "top", "config.yaml", "--once").out
    said = desk.type("featuremill", "estimate", "config.yaml", "--cpu-slots", "1").out
    assert "soil/faulty:" in said and "In all, with 1 slot:" in said

    matrix = desk.folder / "results/soil/letters/embeddings.npy"
    before = matrix.read_bytes()
    matrix.write_bytes(b"cut")
    said = status(desk, "config.yaml", status=1)
    assert "Problems of results/soil/letters" in said
    desk.type(*said.splitlines()[-1].split())
    assert matrix.read_bytes() == before
    # What only hashing finds is forced by a file, as the rule is that of both.
    table = desk.folder / "results/soil/letters/embeddings.parquet"
    whole = table.read_bytes()
    line = {"name": table.name, "sha256": sha256_of(table)}
    table.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with (table.parent / formats.RECORD).open("a") as record:
        record.write(json.dumps({**line, "seen": ours.looks(table)}) + "\n")
    last = status(desk, "config.yaml", "--verify", status=1).splitlines()[-1]
    assert "--forcerun results/soil/letters/manifest.json" in last
    desk.type(*last.split())
    assert table.read_bytes() == whole

    desk.type("featuremill", "clean", "config.yaml", "--keep", "nothing", "--yes")
    left = [path for path in (desk.folder / "results").rglob("*") if path.is_file()]
    assert {path.name: path.read_bytes() for path in left} == {"embeddings.yours-1.npy": b"cut"}
    shutil.rmtree(desk.folder / "results" / "soil")
    said = desk.type("featuremill", "status", "config.yaml", status=2).err
    assert "this run has not started yet" in said


def test_one_more_format_of_one_set_is_a_file_that_is_asked_for(desk):
    """And one that the config has is the merge's."""
    (desk.folder / "computed.txt").unlink()
    wanted = "results/soil/faulty/embeddings.npy"
    desk.type(*WHOLE, *PROFILE, wanted)
    table = pd.read_parquet(desk.folder / "results/soil/faulty/embeddings.parquet")
    assert len(np.load(desk.folder / wanted)) == len(table) == 12
    assert not (desk.folder / "computed.txt").exists()
    said = desk.type(*WHOLE, *PROFILE, wanted, "results/soil/letters/embeddings.npy").text
    assert "Nothing to be done" in said
    assert "Exported" in status(desk, "results/soil/faulty")


def test_a_failure_is_told_and_a_retry_computes_it_alone(tmp_path, environment):
    project(tmp_path, [*RECORDS, ("odd", "RAISEK")], cure_file="cured")
    desk = Desk(tmp_path, {**environment, "FEATUREMILL_QUIET": ""})
    said = desk.type(*WHOLE, *PROFILE, status=None).text
    assert "1 of 13 records failed and max_failed is 0" in said and "Traceback" not in said
    assert "featuremill status config.yaml" in said
    assert (tmp_path / "results/soil/letters/report.html").exists(), "of one that did not fail"
    assert "Failed in results/soil/faulty" in status(desk, "config.yaml", status=1)
    (tmp_path / "cured").touch()
    (tmp_path / "computed.txt").unlink()
    desk.type("featuremill", "retry", "config.yaml")
    desk.type(*WHOLE, *PROFILE)
    assert (tmp_path / "computed.txt").read_text().split() == ["RAISEK"]
    assert read_json(tmp_path / "results/soil/faulty/manifest.json")["counts"]["ok"] == 13


def status(desk, *words, status=0):
    return desk.type("featuremill", "status", *words, status=status).out


@pytest.mark.slow
def test_after_a_kill_it_goes_on(tmp_path, environment):
    project(tmp_path, hold="hold")
    (tmp_path / "hold").touch()
    desk = Desk(tmp_path, environment)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = desk.start(*WHOLE, *PROFILE, start_new_session=True, **quiet)
    wait_for(lambda: (tmp_path / "results/soil/faulty/store/journals").is_dir())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (tmp_path / "hold").unlink()
    desk.type(*WHOLE, *PROFILE)
    for name in ("faulty", "letters"):
        assert len(pd.read_parquet(tmp_path / f"results/soil/{name}/embeddings.parquet")) == 12


def test_runs_and_sets_do_not_share_a_folder(desk):
    write(desk.folder, {"run": "soil", "inputs": "in.fa", **LETTERS}, "one.yaml")
    words = [*WHOLE[:4], "one.yaml", *WHOLE[5:], *PROFILE]
    said = desk.type(*words, status=None).text
    assert "run: soil: results/soil is the folder of a config with 'features:'" in said
    shutil.rmtree(desk.folder / "results")
    desk.type(*words, "plan")
    said = desk.type(*WHOLE, *PROFILE, status=None).text
    assert "run: soil: results/soil is the folder of a run without 'features:'" in said


MODULE = """
rule mine:
    input: "below/results/soil/letters/embeddings.npy"

module soil:
    snakefile: "{root}/Snakefile"
    prefix: "below"
    config: config

use rule * from soil as soil_*
"""


def test_two_sets_may_write_one_folder_of_weights_in_two_ways(tmp_path, environment):
    """And two folders that would be called alike are refused."""
    save_hugging_face(fair_esm(2, 16, 2), tmp_path / "net")
    shutil.copytree(tmp_path / "net", tmp_path / "other" / "net")
    (tmp_path / "in.fa").write_text(fasta(RECORDS))
    desk = Desk(tmp_path, environment)

    def dry(*models, status):
        sets = {n: {"options": {"model": model}} for n, model in zip("ab", models, strict=True)}
        write(tmp_path, {"run": "soil", "inputs": "in.fa", "features": sets})
        return desk.type(*WHOLE, *PROFILE, "--dry-run", status=status).text

    dry("./net", "net", status=0)
    said = dry("net", "other/net", status=1)
    assert "net and other/net would both become weights/net.json; rename one" in said


def test_another_workflow_imports_a_project(finished, tmp_path, environment):
    """And asks for what it needs: a table of one set."""
    (tmp_path / "below").mkdir()
    project(tmp_path / "below")
    config = yaml.safe_load((tmp_path / "below" / "config.yaml").read_text())
    (tmp_path / "Snakefile").write_text(f"config = {config!r}\n" + MODULE.format(root=ROOT))
    desk = Desk(tmp_path, environment)
    desk.type("snakemake", "--cores", "2")
    file = "results/soil/letters/embeddings.npy"
    expected = (finished[0].folder / file).read_bytes()
    assert (tmp_path / "below" / file).read_bytes() == expected
    assert not (tmp_path / "below/results/soil/faulty").exists()
    said = status(desk, "below/results/soil/letters")
    assert "Results    complete, and of this plan" in said, "and its report was not asked for"
