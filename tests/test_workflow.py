"""The workflow under the real Snakemake: what is computed again, what a kill leaves, who is
refused."""

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from programs import LETTERS, ROOT, Workflow, random_records, wait_for

from featuremill import owner
from featuremill.calm import RefusedError
from featuremill.config import validate
from featuremill.status.visit import look
from featuremill.workflow_failures import Failures
from featuremill.workflow_refusals import asked_by, refuse_another_config
from featuremill.workflow_support import closing_words


@pytest.fixture
def workflow(tmp_path, environment):
    return Workflow(tmp_path, environment, random_records(200))


def test_only_what_is_new_is_computed(workflow):
    records = random_records(200)
    said = workflow()
    assert "200 of 200 records ok" in said and "Select jobs" not in said
    assert sorted(workflow.news()) == sorted(sequence for _, sequence in records)
    before = workflow.data()

    os.utime(workflow.folder / "in.fa")
    workflow()
    assert workflow.news() == [], "a touched input"
    workflow("--forceall", "--resources", "gpu=4")
    assert workflow.news() == [], "everything forced, another number of GPUs"
    assert workflow.data() == before

    records[100] = (records[100][0], "MKVLLWY")
    workflow.write(records)
    workflow()
    assert workflow.news() == ["MKVLLWY"], "one record edited"

    records += random_records(2, seed=1)
    workflow.write(records)
    workflow("--cores", "1")
    assert sorted(workflow.news()) == sorted(s for _, s in records[-2:]), "1 % appended"

    workflow.write([(f"new_{id}", sequence) for id, sequence in reversed(records)])
    workflow()
    assert workflow.news() == [], "reordered and renamed"
    assert workflow.counts() == {"input": 202, "ok": 202, "failed": 0, "refused": 0, "duplicate": 0}


def test_what_is_gone_is_made_again(workflow):
    """Snakemake itself sees nothing to do while the results stand; the run's plain command, which
    status says, is enough."""
    root = workflow.run_folder.root
    workflow("plan")
    (typed,) = look(root).next
    assert not {"plan", "--rerun-incomplete", "--forcerun"} & set(typed.split())
    workflow()
    assert len(workflow.news()) == 200
    before = workflow.data()
    workflow.run_folder.plan.unlink()
    assert "200 of 200 records ok" in workflow()
    assert workflow.news() == [] and workflow.data() == before
    shutil.rmtree(workflow.run_folder.store)
    assert look(root).next == [typed]
    workflow()
    assert len(workflow.news()) == 200 and workflow.data() == before

    part = next((workflow.run_folder.store / "parts").rglob("*.arrows"))
    part.unlink()
    (root / "per-protein.h5").write_bytes(b"cut")
    assert look(root).next == [typed]
    said = workflow()
    assert "a part is gone, although there is a receipt" in said
    assert 0 < len(workflow.news()) < 200 and workflow.data() == before
    assert look(root).next == []


def test_an_input_that_is_mended_before_a_retry_is_read(tmp_path, environment):
    records = random_records(30)
    workflow = Workflow(tmp_path, environment, [*records, ("bad", "RAISEK")])
    workflow(status=1)
    workflow.news()
    workflow.write([*records, ("bad", "MKV")])
    retry = [sys.executable, "-m", "featuremill", "retry", "results/test"]
    subprocess.run(retry, cwd=tmp_path, env=environment, check=True, capture_output=True)
    workflow()
    assert workflow.news() == ["MKV"]
    assert workflow.counts()["ok"] == 31


def test_an_option_changed_and_changed_back_costs_one_computation(workflow):
    workflow()
    workflow.news()
    before = workflow.data()
    workflow.configure(batch_records=7)
    workflow()
    assert len(workflow.news()) == 200
    workflow.configure()
    workflow()
    assert workflow.news() == []
    assert workflow.data() == before


def test_a_large_touched_input_and_an_edited_rule_compute_nothing(tmp_path, environment):
    """Above 1 MB Snakemake compares no checksums, so plan runs again; it must change nothing."""
    rng = random.Random(5)
    sequences = ("".join(rng.choices(LETTERS, k=50_000)) for _ in range(100))
    workflow = Workflow(tmp_path, environment, [(f"p{n}", s) for n, s in enumerate(sequences)])
    assert (tmp_path / "in.fa").stat().st_size > 5_000_000
    workflow()
    assert len(workflow.news()) == 100
    os.utime(tmp_path / "in.fa")
    assert "distinct records to compute" in workflow(), "plan ran"
    assert workflow.news() == []

    for part in ("Snakefile", "workflow", "envs"):
        subprocess.run(["cp", "-r", ROOT / part, tmp_path], check=True)
    rule = tmp_path / "workflow" / "rules" / "extract.smk"
    edited = rule.read_text().replace("exec featuremill extract", "true; exec featuremill extract")
    assert edited != rule.read_text()
    rule.write_text(edited)
    assert "the part is there already" in workflow(snakefile=tmp_path / "Snakefile")
    assert workflow.news() == []


MOMENTS = {
    "plan": lambda run: any((run.store / "spool").rglob("rows*")),
    "extract": lambda run: any(
        "commit" in log.read_text() for log in run.store.glob("journals/*/*.log")
    ),
    "merge": lambda run: any(run.root.glob(".per-protein*")),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigkill_of_snakemake_needs_no_unlock_and_changes_no_byte(tmp_path, environment, moment):
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    options = {"cost_seconds": 0.003, "batch_seconds": 0.05}  # while they are spooled
    records = random_records(400)
    whole = Workflow(tmp_path / "whole", environment, records, **options)
    whole()
    killed = Workflow(tmp_path / "killed", environment, records, **options)
    process = killed.start()
    wait_for(lambda: MOMENTS[moment](killed.run_folder))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert list((killed.folder / ".snakemake" / "locks").iterdir()), "the lock was left behind"
    assert not (killed.run_folder.root / "manifest.json").exists()
    assert killed.run_folder.plan.exists() == (moment != "plan")
    time.sleep(0.5)  # jobs get SIGTERM from the kernel and leave
    assert not orphans(killed.folder)
    said = killed()
    assert killed.data() == whole.data()
    assert killed.counts()["ok"] == 400
    again = killed.news()
    if moment == "extract":
        assert "batches resumed" in said
        assert len(again) - len(set(again)) <= 10, "at most the batch in flight twice"
    else:
        assert len(again) == len(set(again)) == 400


def orphans(folder):
    """Return the command lines of processes that work in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_a_second_run_is_refused_while_the_first_lives(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(100), hold="hold")
    (tmp_path / "hold").touch()
    (tmp_path / "two.fa").write_text(">a\nMKV\n>b\nMKL\n")
    first = workflow.start()
    wait_for(lambda: workflow.computed.exists())
    assert "another snakemake is computing this run" in workflow(status=1)
    # A run of another name may go on beside it, and its end opens no door: Snakemake removes the
    # whole folder of locks then, those of others too.
    workflow("-n")
    workflow("--config", "run=other", "inputs=two.fa", "options={hold: ''}")
    assert first.poll() is None
    assert "another snakemake is computing this run" in workflow(status=1)
    (tmp_path / "hold").unlink()
    first.communicate(timeout=120)
    assert first.returncode == 0
    assert len(workflow.news()) == 102


def test_a_failed_shard_stops_no_other_and_the_rest_is_kept(tmp_path, environment):
    records = [*random_records(100), ("odd", "RAISEK")]
    workflow = Workflow(tmp_path, environment, records)
    said = workflow(status=1)
    assert "1 of 101 records failed and max_failed is 0" in said
    assert len(workflow.news()) >= 101
    said = workflow("--config", "max_failed=1")
    assert "100 of 101 records ok, 1 failed: all accounted for" in said
    assert workflow.news() == []


def configured(name, **config):
    config = {"run": "my", "inputs": "in.fa", "workload": "composition", "device": "cpu"} | config
    Path(name).write_text(yaml.safe_dump(config))
    return validate(config, name)


def typed_in_a_shell(folder, environment, command, status=0):
    environment = environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_another_configs_results_are_not_replaced(tmp_path, environment, monkeypatch):
    """Nor are those that a changed `outputs` removes, without a word."""
    monkeypatch.chdir(tmp_path)
    for name in ("in.fa", "other.fa"):
        Path(name).write_text(f">{name}\nMKVLAAGIVGL\n")
    configured("my.yaml")
    configured("other.yaml", inputs="other.fa")
    typed_in_a_shell(tmp_path, environment, "featuremill run my.yaml -c 2")
    before = Path("results/my/manifest.json").read_bytes()
    said = typed_in_a_shell(tmp_path, environment, "featuremill run other.yaml -c 2", status=1)
    assert said.splitlines()[-1] == (
        "other.yaml: run: my is the name of another config's run: my.yaml made results/my with "
        "inputs: in.fa. Give one of them another `run:`, or, to have this one take its place, "
        "delete results/my/plan.json: what is computed stays."
    )
    assert Path("results/my/manifest.json").read_bytes() == before
    Path("my.yaml").unlink()
    configured("renamed.yaml", outputs=["npy", "parquet"])
    said = typed_in_a_shell(tmp_path, environment, "featuremill run renamed.yaml -c 2")
    beforehand = "results/my/per-protein.h5: this result is not among `outputs` any more"
    done = "removed results/my/per-protein.h5"
    assert said.index(beforehand) < said.index(done)
    assert "embeddings.parquet: this result" not in said and "removed results/my/emb" not in said
    assert not Path("results/my/per-protein.h5").exists()


def test_what_another_config_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = configured("my.yaml")
    root = Path("results/my")
    root.mkdir(parents=True)

    def refuse(config, **changes):
        refuse_another_config(configured(config, **changes), "results/my", config)

    with owner.claim(root) as file:
        asked = asked_by(first, "results/my")
        owner.sign(file, "featuremill run my.yaml", config="my.yaml", asked=asked)
    refuse("other.yaml", inputs="other.fa")  # nothing is planned, so nothing would be lost
    (root / "plan.json").write_text("{}")
    refuse("my.yaml", inputs="other.fa", workload="esm2")
    refuse("other.yaml", max_failed=3, outputs=["npy"], shards={"cost": 7})
    refuse("other.yaml", inputs=str(tmp_path / "in.fa"))
    for change, named in (
        ({"inputs": ["in.fa", "more.fa"]}, "inputs: in.fa"),
        ({"workload": "esm2"}, "workload: composition"),
    ):
        with pytest.raises(RefusedError, match=f"my.yaml made results/my with {named}\\. Give"):
            refuse("other.yaml", **change)
    options = {"layers": [-1, 3], "batch_tokens": 500}
    mine = {"workload": "esm2", "options": options}
    with owner.claim(root) as file:
        asked = asked_by(configured("my.yaml", **mine), "results/my")
        owner.sign(file, "featuremill run my.yaml", config="my.yaml", asked=asked)
    refuse("other.yaml", **mine | {"options": options | {"batch_tokens": 900}})
    heavy = mine | {"options": options | {"sequence_column": "heavy"}}
    with pytest.raises(RefusedError, match="made results/my with sequence_column: "):
        refuse("other.yaml", **heavy)
    Path("link.yaml").symlink_to("my.yaml")
    refuse_another_config(configured("my.yaml", inputs="edited.fa"), "results/my", "link.yaml")
    with pytest.raises(RefusedError, match=r"made results/my with layers: -1, 3\. Give"):
        refuse("other.yaml", **mine | {"options": {"layers": [3]}})
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("results", ".snakemake"):
        (tmp_path / name).rename(moved / name)
    monkeypatch.chdir(moved)
    refuse("my.yaml", inputs="elsewhere.fa")
    far = {"inputs": "/data/in.fa"}
    with owner.claim(root) as file:
        asked = asked_by(configured("my.yaml", **far), "results/my")
        owner.sign(file, "featuremill run c.yaml", config="../c.yaml", asked=asked)
    deeper = tmp_path / "far" / "deeper"
    deeper.parent.mkdir()
    moved.rename(deeper)
    monkeypatch.chdir(deeper)
    refuse("my.yaml", **far)
    with owner.claim(root) as file:  # by a version that did not say it
        owner.sign(file, "featuremill run my.yaml")
    refuse("other.yaml", inputs="other.fa")


def test_inputs_beside_a_config_that_was_named_from_elsewhere(tmp_path, environment):
    folder = tmp_path / "other place"
    folder.mkdir()
    (folder / "in.fa").write_text(">p1\nMKVLAAGIVGL\n")
    (folder / "my.yaml").write_text("inputs: in.fa\nworkload: composition\ndevice: cpu\nrun: my\n")
    command = "featuremill run 'other place/my.yaml' -c 1"
    said = typed_in_a_shell(tmp_path, environment, command, status=1)
    again = "cd 'other place' && featuremill run my.yaml"
    assert said.splitlines()[-1] == (
        "other place/my.yaml:1: inputs: in.fa: this file does not exist; check the path (seen from "
        f"where the command is started: {tmp_path}). It is there seen from other place; so type: "
        f"{again}"
    )
    assert not (tmp_path / "results").exists()
    typed_in_a_shell(tmp_path, environment, f"{again} -c 1 plan")
    assert (folder / "results" / "my" / "plan.json").exists()


def test_weights_that_failed_are_what_status_tells(tmp_path, environment):
    (tmp_path / "in.fa").write_text(">p1\nMKVLAAGIVGL\n")
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    (tmp_path / "my.yaml").write_text(
        "inputs: in.fa\nrun: my\ndevice: cpu\noptions: {model: ./broken.pt}\n"
    )
    typed_in_a_shell(tmp_path, environment, "featuremill run my.yaml -c 1", status=1)
    said = typed_in_a_shell(tmp_path, environment, "featuremill status results/my", status=1)
    assert "there is no plan: the model's weights could not be made." in said
    assert "making the weights failed: broken.pt: " in " ".join(said.split())
    assert "The log: logs/weights/broken.log" in " ".join(said.split())
    assert said.splitlines()[-1] == "  featuremill run my.yaml -c 1"


def test_labels_draw_the_report_anew_and_nothing_else(workflow):
    config = {"inputs": "in.fa", "run": "test", "workload": "composition", "device": "cpu"}
    (workflow.folder / "config.yaml").write_text(yaml.safe_dump(config))
    workflow()
    made = workflow.run_folder.plan.stat().st_mtime_ns, workflow.data()
    table = ["id\tfamily"] + [f"p0.{n}\tfamily {n % 3}" for n in range(200)]
    (workflow.folder / "labels.tsv").write_text("\n".join(table))
    labels = "labels={file: labels.tsv, column: family}"
    said = workflow("--config", labels)
    assert "report │" in said and "extract │" not in said and "merge │" not in said
    assert (workflow.run_folder.plan.stat().st_mtime_ns, workflow.data()) == made
    report = (workflow.run_folder.root / "report.html").read_text()
    assert "Coloured by family of labels.tsv." in report and "family 2" in report
    (workflow.folder / "labels.tsv").unlink()
    said = workflow("--config", labels, "--forcerun", "report", status=1)
    assert "labels.tsv" in said
    assert workflow.data() == made[1]


def test_the_closing_words_name_what_has_no_features(tmp_path):
    counts = {"input": 1072, "ok": 1067, "failed": 0, "refused": 0, "duplicate": 5}
    manifest = {"run": "my", "counts": counts, "outputs": {}}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    said = closing_words(str(tmp_path))
    twice = "\n5 duplicates: the same id and sequence as a record before\n"
    assert twice in said and "1,067 of 1,072 records have their features" in said
    assert "failed.tsv" not in said, "it does not list them"
    counts |= {"ok": 67, "failed": 1000, "refused": 0}
    path.write_text(json.dumps(manifest))
    without = f"\nWithout features: 1,000 failed: see {tmp_path}/failed.tsv"
    assert without + twice in closing_words(str(tmp_path))
    counts |= {"input": 1, "ok": 1, "failed": 0, "duplicate": 0}
    path.write_text(json.dumps(manifest))
    said = closing_words(str(tmp_path))
    assert said.startswith("\n1 of 1 record has its features:\n")
    assert "Without" not in said and "duplicate" not in said


def test_snakemakes_tidying_behind_our_own_failures_is_not_told():
    failures = Failures()
    for rule, command in (("plan", "exec featuremill plan results/my"), ("theirs", "cp a b")):
        about = {"rule_name": rule, "shellcmd": command, "log": [], "output": []}
        record = logging.LogRecord("snakemake", logging.ERROR, "", 0, "failed", (), None)
        record.__dict__.update(about, event="job_error")
        failures.hear(record)
    text = "Removing output files of failed job {} since they might be corrupted:\nx"
    said = [text.format(rule) for rule in ("plan", "theirs")]
    records = [logging.LogRecord("snakemake", logging.INFO, "", 0, one, (), None) for one in said]
    assert [failures.hear(record) for record in records] == [True, False]


def test_a_wrong_config_is_one_sentence(workflow):
    wrong = "inputs: in.fa\nworkload: poison\nshard: {cost: 3}\n"
    (workflow.folder / "config.yaml").write_text(wrong)
    said = workflow(status=1)
    assert "shard" in said and "did you mean" in said and "Traceback" not in said


def test_a_dry_run_reads_no_input_and_writes_nothing(workflow):
    said = workflow("-n")
    assert "rule plan" in said or "checkpoint plan" in said
    assert not (workflow.folder / "results").exists()


CAP = """
from featuremill.workflow_support import cap_gpus
cap_gpus(workflow, "auto")
rule all:
    input: expand("{n}.done", n=range(4))
rule one:
    output: "{n}.done"
    resources: gpu=1
    shell: "date +%s.%N > {output}; sleep 0.6; date +%s.%N >> {output}"
"""


@pytest.mark.parametrize(("arguments", "most"), [((), 1), (("--resources", "gpu=2"), 2)])
def test_the_gpu_resource_is_capped_when_the_user_gives_none(tmp_path, arguments, most):
    """No GPU is visible here, so the cap is 1; what the user gives stands."""
    (tmp_path / "Snakefile").write_text(CAP)
    subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "4", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        capture_output=True,
    )
    spans = [[float(x) for x in (tmp_path / f"{n}.done").read_text().split()] for n in range(4)]
    together = max(sum(a <= start < b for a, b in spans) for start, _ in spans)
    assert together == most
