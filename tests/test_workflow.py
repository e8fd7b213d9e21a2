"""The workflow under the real Snakemake: what is computed again, what a kill leaves, who is
refused."""

import contextlib
import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from plans import delivery_json
from programs import LETTERS, NO_REPORT, ROOT, Desk, Workflow, random_records, wait_for
from report_runs import Page, points_of

import featuremill
from featuremill.config import validate
from featuremill.flow.preflight import write_run
from featuremill.flow.refusals import refuse_another_config
from featuremill.flow.screen import Failures, RefusedError
from featuremill.flow.summary import closing_words
from featuremill.status.reader import RunReader
from featuremill.store import run_lock

RECORDS = random_records(100)
HOLDS = {"hold": "hold"}
"""Options that do something only while there is a file of this name."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """Return a run of two shards that was computed, for who makes a copy of it; and what it said.

    No test changes it.
    """
    workflow = Workflow(tmp_path_factory.mktemp("finished"), environment, RECORDS, **HOLDS)
    said = workflow()
    assert sorted(workflow.news()) == sorted(sequence for _, sequence in RECORDS)
    return workflow, said


@pytest.fixture
def workflow(finished, tmp_path):
    """Return a copy of the computed run."""
    return finished[0].copy(tmp_path)


def test_only_what_is_new_is_computed(workflow, finished):
    records = RECORDS.copy()
    assert "100 of 100 records have features" in finished[1] and "Select jobs" not in finished[1]
    before = workflow.data()
    assert "Nothing to be done" in workflow()
    os.utime(workflow.folder / "in.fa")
    workflow(NO_REPORT, "--forceall", "--resources", "gpu=4")
    assert workflow.news() == [], "a touched input, everything forced, another number of GPUs"
    assert workflow.data() == before

    records[50] = (records[50][0], "MKVLLWY")
    records += random_records(2, seed=1)
    workflow.write([(f"new_{id}", sequence) for id, sequence in reversed(records)])
    workflow(NO_REPORT, "--cores", "1")
    edited = sorted(["MKVLLWY", *(sequence for _, sequence in records[-2:])])
    told = "one record edited, 2 % appended, all reordered and renamed"
    assert sorted(workflow.news()) == edited, told
    assert workflow.counts() == {"input": 102, "ok": 102, "failed": 0, "refused": 0, "duplicate": 0}


def test_what_is_gone_is_made_again(workflow):
    """Snakemake itself sees nothing to do while the results stand; the run's plain command, which
    status says, is enough."""
    root, before = workflow.run_folder.root, workflow.data()
    workflow.run_folder.plan.unlink()
    workflow("plan")
    assert "100 of 100 records have features" in workflow(NO_REPORT)
    assert workflow.news() == [] and workflow.data() == before
    shutil.rmtree(workflow.run_folder.store)
    (typed,) = RunReader(root).inspect().next
    assert not {"plan", "--rerun-incomplete", "--forcerun"} & set(typed.split())
    workflow(NO_REPORT)
    assert len(workflow.news()) == 100 and workflow.data() == before

    part = next((workflow.run_folder.store / "parts").rglob("*.arrows"))
    part.unlink()
    (root / "per-protein.h5").write_bytes(b"cut")
    assert RunReader(root).inspect().next == [typed]
    said = workflow()
    assert "a part is gone, although there is a receipt" in said
    assert 0 < len(workflow.news()) < 100 and workflow.data() == before
    assert RunReader(root).inspect().next == []


def test_a_failed_record_stops_no_shard_and_one_that_is_mended_before_a_retry_is_read(
    tmp_path, environment
):
    records = random_records(60)
    workflow = Workflow(tmp_path, environment, [*records, ("odd", "RAISEK")])
    said = workflow(status=1)
    assert "1 of 61 records failed and max_failed is 0" in said
    assert set(workflow.news()) == {"RAISEK", *(sequence for _, sequence in records)}
    said = workflow(NO_REPORT, "--config", "max_failed=1")
    assert "60 of 61 records have features, 1 failed" in said
    assert workflow.news() == []
    workflow.write([*records, ("odd", "MKV")])
    workflow.verb("retry", "results/test")
    workflow(NO_REPORT)
    assert workflow.news() == ["MKV"]
    assert workflow.counts()["ok"] == 61


def test_an_option_changed_and_changed_back_costs_one_computation(workflow):
    before = workflow.data()
    workflow.configure(batch_records=7)
    workflow(NO_REPORT)
    assert len(workflow.news()) == 100
    workflow.configure()
    parts = workflow.run_folder.store / "parts"
    assert len(list(parts.iterdir())) == 2
    assert "keep: parts: removed" in workflow("--config", "keep=parts")
    assert workflow.news() == [] and len(list(parts.iterdir())) == 1
    assert workflow.data() == before


def test_a_large_touched_input_and_an_edited_rule_compute_nothing(tmp_path, environment):
    """Above 1 MB Snakemake compares no checksums, so plan runs again; it must change nothing."""
    rng = random.Random(5)
    sequences = ("".join(rng.choices(LETTERS, k=50_000)) for _ in range(50))
    workflow = Workflow(tmp_path, environment, [(f"p{n}", s) for n, s in enumerate(sequences)])
    assert (tmp_path / "in.fa").stat().st_size > 2_000_000
    workflow(NO_REPORT)
    assert len(workflow.news()) == 50
    os.utime(tmp_path / "in.fa")
    assert "distinct records to compute" in workflow(NO_REPORT), "plan ran"
    assert workflow.news() == []

    for part in ("Snakefile", "workflow", "envs"):
        subprocess.run(["cp", "-r", ROOT / part, tmp_path], check=True)
    rule = tmp_path / "workflow" / "rules" / "extract.smk"
    edited = rule.read_text().replace("exec featuremill extract", "true; exec featuremill extract")
    assert edited != rule.read_text()
    rule.write_text(edited)
    assert "the part is there already" in workflow(NO_REPORT, snakefile=tmp_path / "Snakefile")
    assert workflow.news() == []


HOOK = """
import os, sys, time

def wait(event, arguments):
    if event != "os.rename":
        return
    old, new = map(os.fsdecode, arguments[:2])
    is_last = not os.path.basename(new).startswith(".")  # not of a temporary file
    while is_last and os.path.exists("names") and open("names").read() in old:
        time.sleep(0.01)

sys.addaudithook(wait)
"""
"""A sitecustomize.py: while there is a file `names`, no file whose path has what it says gets its
name."""
MOMENTS = {
    "plan": (
        ("names", "/store/shards/."),
        lambda run: any(run.store.glob(".spool.*/**/rows*")) and any(run.store.glob("shards/.*")),
    ),
    "extract": (
        ("hold", "3"),  # the third batch of a worker
        lambda run: (
            [log.read_text().count("commit") for log in run.store.glob("journals/*/*.log")] == [2]
        ),
    ),
    "merge": (("names", "/.per-protein.h5."), lambda run: any(run.root.glob(".per-protein*"))),
}
"""The file that holds a job, and what is there when it is held: no clock decides what a kill
meets."""


def test_sigkill_of_snakemake_needs_no_unlock_and_changes_no_byte(tmp_path, environment, finished):
    """While it plans, while it computes and while it merges, one after another."""
    whole, killed = finished[0], Workflow(tmp_path, environment, RECORDS, **HOLDS)
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    killed.environment["PYTHONPATH"] = path
    said = [kill(killed, moment) for moment in MOMENTS]
    assert "batches resumed" in said[-1]
    killed(NO_REPORT)
    assert killed.data() == whole.data()
    assert killed.counts()["ok"] == 100
    again = killed.news()
    assert len(set(again)) == 100
    assert len(again) == 110, "the batch in flight twice, else nothing"


def _is_held(run, moment):
    with contextlib.suppress(FileNotFoundError):  # a folder that leaves while it is read
        return MOMENTS[moment][1](run)


def kill(workflow, moment):
    """Kill Snakemake while a job is held, and see the job leave; return what they said."""
    name, text = MOMENTS[moment][0]
    (workflow.folder / name).write_text(text)
    process = workflow.start(NO_REPORT)
    try:
        wait_for(lambda: process.poll() is not None or _is_held(workflow.run_folder, moment))
    finally:
        process.kill()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said
    assert list((workflow.folder / ".snakemake" / "locks").iterdir()), "the lock was left behind"
    assert not (workflow.run_folder.root / "manifest.json").exists()
    assert workflow.run_folder.plan.exists() == (moment != "plan")
    wait_for(lambda: not orphans(workflow.folder))  # the kernel tells them
    (workflow.folder / name).unlink()
    return said


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
    workflow = Workflow(tmp_path, environment, random_records(10), hold="hold")
    (tmp_path / "hold").touch()
    (tmp_path / "two.fa").write_text(">a\nMKV\n>b\nMKL\n")
    first = workflow.start(NO_REPORT)
    wait_for(lambda: workflow.computed.exists() or first.poll() is not None)
    # A run of another name may go on beside it, and its end opens no door: Snakemake removes the
    # whole folder of locks then, those of others too.
    workflow("-n")
    workflow(NO_REPORT, "--config", "run=other", "inputs=two.fa", "options={hold: ''}")
    assert first.poll() is None
    assert "another snakemake is computing this run" in workflow(status=1)
    (tmp_path / "hold").unlink()
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert len(workflow.news()) == 12


def configured(name, **config):
    config = {"run": "my", "inputs": "in.fa", "workload": "composition", "device": "cpu"} | config
    Path(name).write_text(yaml.safe_dump(config))
    return validate(config, name)


def test_another_configs_results_are_not_replaced(workflow):
    """Nor are those that a changed `outputs` removes, without a word."""
    folder, root = workflow.folder, workflow.run_folder.root
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "other.fa").write_text(">p1\nMKVLAAGIVGL\n")

    def computed_with(name, status=0, **changes):
        (folder / name).write_text(yaml.safe_dump(config | changes))
        words = [name if word == "config.yaml" else word for word in workflow.words(NO_REPORT)]
        return workflow.type(*words, status=status).text

    before = (root / "manifest.json").read_bytes()
    said = computed_with("other.yaml", inputs="other.fa", status=1)
    assert said.splitlines()[-1] == (
        "error: other.yaml: run: test is the name of another config's run: config.yaml made "
        "results/test with inputs: in.fa. Give one of them another `run:`, or, to have this one "
        "take its place, delete results/test/plan.json: what is computed stays."
    )
    assert (root / "manifest.json").read_bytes() == before
    (folder / "config.yaml").unlink()
    said = computed_with("renamed.yaml", outputs=["npy", "parquet"])
    assert "removed results/test/per-protein.h5" in said and "removed results/test/emb" not in said
    assert not (root / "per-protein.h5").exists()


def test_what_another_config_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = configured("my.yaml")
    root = Path("results/my")
    root.mkdir(parents=True)

    def refuse(config, **changes):
        refuse_another_config(configured(config, **changes), config)

    def started(command, config, run):
        with run_lock.claim(root) as file:
            run_lock.sign(file, command, config=config)
        write_run(run)

    started("featuremill run my.yaml", "my.yaml", first)
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
    started("featuremill run my.yaml", "my.yaml", configured("my.yaml", **mine))
    refuse("other.yaml", **mine | {"options": options | {"batch_tokens": 900}})
    heavy = mine | {"options": options | {"sequence_column": "heavy"}}
    with pytest.raises(RefusedError, match="made results/my with sequence_column: "):
        refuse("other.yaml", **heavy)
    Path("link.yaml").symlink_to("my.yaml")
    refuse_another_config(configured("my.yaml", inputs="edited.fa"), "link.yaml")
    with pytest.raises(RefusedError, match=r"made results/my with layers: -1, 3\. Give"):
        refuse("other.yaml", **mine | {"options": {"layers": [3]}})
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("results", ".snakemake"):
        (tmp_path / name).rename(moved / name)
    monkeypatch.chdir(moved)
    refuse("my.yaml", inputs="elsewhere.fa")
    far = {"inputs": "/data/in.fa"}
    started("featuremill run c.yaml", "../c.yaml", configured("my.yaml", **far))
    deeper = tmp_path / "far" / "deeper"
    deeper.parent.mkdir()
    moved.rename(deeper)
    monkeypatch.chdir(deeper)
    refuse("my.yaml", **far)
    with run_lock.claim(root) as file:  # by a version that did not say it
        run_lock.sign(file, "featuremill run my.yaml")
    refuse("other.yaml", inputs="other.fa")


def test_inputs_beside_a_config_that_was_named_from_elsewhere(tmp_path, environment):
    folder = tmp_path / "other place"
    folder.mkdir()
    (folder / "in.fa").write_text(">p1\nMKVLAAGIVGL\n")
    (folder / "my.yaml").write_text("inputs: in.fa\nworkload: composition\ndevice: cpu\nrun: my\n")
    words = ("featuremill", "run", "other place/my.yaml", "-c", "1")
    said = Desk(tmp_path, environment).type(*words, status=2).text
    again = "cd 'other place' && featuremill run my.yaml"
    assert said.splitlines()[-1] == (
        "error: other place/my.yaml:1: inputs: in.fa: this file does not exist; check the path "
        f"(seen from where the command is started: {tmp_path}). It is there seen from other place; "
        f"so type: {again}"
    )
    assert not (tmp_path / "results").exists()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    typed = {"shell": True, "cwd": tmp_path, "env": {**environment, "PATH": path}}
    subprocess.run(f"{again} -c 1 plan", check=True, capture_output=True, **typed)
    assert (folder / "results" / "my" / "plan.json").exists()


def test_weights_that_failed_are_what_status_tells(tmp_path, environment):
    (tmp_path / "in.fa").write_text(">p1\nMKVLAAGIVGL\n")
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    (tmp_path / "my.yaml").write_text(
        "inputs: in.fa\nrun: my\ndevice: cpu\noptions: {model: ./broken.pt}\n"
    )
    desk = Desk(tmp_path, environment)
    desk.type("featuremill", "run", "my.yaml", "-c", "1", status=2)
    said = desk.type("featuremill", "status", "results/my", status=1).text
    assert "there is no plan: the model's weights could not be made." in said
    assert "making the weights failed: broken.pt: " in " ".join(said.split())
    assert "The log: weights/broken.log" in " ".join(said.split())
    assert said.splitlines()[-1] == "  featuremill run my.yaml -c 1"


def test_labels_draw_the_report_anew_and_nothing_else(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(200))
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
    page = Page(workflow.run_folder.root / "report.html")
    assert "Coloured by family of labels.tsv." in page.text
    found = {point["id"]: point["family"] for point in points_of(page)}
    assert found == {f"p0.{n}": f"family {n % 3}" for n in range(200)}
    (workflow.folder / "labels.tsv").unlink()
    said = workflow("--config", labels, "--forcerun", "report", status=1)
    assert "labels.tsv" in said
    assert workflow.data() == made[1]


def test_the_closing_words_name_what_has_no_features(tmp_path):
    counts = {"input": 1072, "ok": 1067, "failed": 0, "refused": 0, "duplicate": 5}
    manifest = delivery_json(run="my", counts=counts)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    said = closing_words(str(tmp_path))
    assert said.startswith("\n1,067 of 1,072 records have features, 5 are duplicates:\n")
    assert "failed.tsv" not in said, "it does not list them"
    counts |= {"ok": 67, "failed": 1000, "refused": 0}
    path.write_text(json.dumps(manifest))
    said = closing_words(str(tmp_path))
    assert "1,000 failed, 5 are duplicates:" in said
    assert f"\n  {tmp_path}/failed.tsv: the records without features\n" in said
    counts |= {"input": 1, "ok": 1, "failed": 0, "duplicate": 0}
    path.write_text(json.dumps(manifest))
    said = closing_words(str(tmp_path))
    assert said.startswith("\n1 of 1 record has features:\n")
    assert "failed.tsv" not in said and "duplicate" not in said and "notes.tsv" not in said
    manifest["notes"] = {"longer than 1023 residues, truncated": 2, "J read as X": 1}
    path.write_text(json.dumps(manifest))
    said = closing_words(str(tmp_path))
    assert f"{tmp_path}/notes.tsv: 2 records: longer than 1023 residues, truncated\n" in said
    assert f"{tmp_path}/notes.tsv: 1 record: J read as X\n" in said


def test_the_closing_words_name_a_table_only_where_there_is_one(tmp_path):
    for name, outputs in {"a": "embeddings.npy", "b": "embeddings.parquet"}.items():
        (tmp_path / name).mkdir()
        manifest = delivery_json(run=name, outputs={outputs: {"bytes": 1, "sha256": ""}})
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    runs = [str(tmp_path / name) for name in "ab"]
    assert f"Look at {runs[1]}: " in closing_words(*runs)
    assert "Look at them: " in closing_words(runs[1])
    assert "Look at" not in closing_words(runs[0])


def test_snakemakes_tidying_behind_our_own_failures_is_not_told():
    failures = Failures()
    text = "Removing output files of failed job plan since they might be corrupted:\nx"
    tidying = logging.LogRecord("snakemake", logging.INFO, "", 0, text, (), None)
    assert not failures.take(tidying)
    record = logging.LogRecord("snakemake", logging.ERROR, "", 0, "failed", (), None)
    about = {"rule_name": "plan", "shellcmd": "exec featuremill plan results/my"}
    record.__dict__.update(about, log=[], output=[], event="job_error")
    failures.take(record)
    assert failures.take(tidying) is True


def test_a_wrong_config_is_one_sentence(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, RECORDS)
    wrong = "inputs: in.fa\nworkload: poison\nshard: {cost: 3}\n"
    (workflow.folder / "config.yaml").write_text(wrong)
    said = workflow(status=1)
    assert "shard" in said and "did you mean" in said and "Traceback" not in said


def test_typed_keys_change_the_config_of_a_checkout_unless_they_name_records(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, RECORDS)
    (workflow.folder / "config").mkdir()
    (workflow.folder / "config.yaml").rename(workflow.folder / "config" / "config.yaml")
    words = [word for word in workflow.words() if word not in ("--configfile", "config.yaml")]
    workflow.type(*words, "--config", "run=other")
    assert len(featuremill.load(workflow.folder / "results" / "other")) == len(RECORDS)
    alone = ("run=alone", "inputs=in.fa", "workload=composition")  # without the options of poison
    said = workflow.type(*words, "-n", "--config", *alone).text
    assert "results/alone/plan.json" in said and "results/other" not in said


def test_a_dry_run_reads_no_input_and_writes_nothing(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, RECORDS)
    said = workflow("-n")
    assert "rule plan" in said or "checkpoint plan" in said
    assert not (workflow.folder / "results").exists()


CAP = """
from featuremill.flow.jobs import cap_gpus
cap_gpus(workflow, "auto")
rule all:
    input: expand("{n}.done", n=range(4))
rule one:
    output: "{n}.done"
    resources: gpu=1
    shell:
        "echo begin >>events; until test $(grep -c begin events) -ge $MOST; do sleep 0.01; done;"
        " sleep 0.3; echo end >>events; touch {output}"
"""
"""Jobs that wait until as many have begun as may be at work at once; one more would begin while
they linger."""


@pytest.mark.parametrize(("arguments", "most"), [((), 1), (("--resources", "gpu=2"), 2)])
def test_the_gpu_resource_is_capped_when_the_user_gives_none(
    tmp_path, environment, arguments, most
):
    """No GPU is visible here, so the cap is 1; what the user gives stands."""
    (tmp_path / "Snakefile").write_text(CAP)
    desk = Desk(tmp_path, {**environment, "CUDA_VISIBLE_DEVICES": "", "MOST": str(most)})
    desk.type("snakemake", "--cores", "4", *arguments)
    steps = [{"begin": 1, "end": -1}[line] for line in (tmp_path / "events").read_text().split()]
    assert len(steps) == 8 and max(itertools.accumulate(steps)) == most
