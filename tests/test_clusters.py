"""LSF and PBS: their profiles under the real Snakemake, with stand-ins for the commands."""

import json
import os
import re
import signal
import subprocess
import sys

import batch_commands
import pytest
import snakemake_executor_plugin_cluster_generic  # noqa: F401  (the profiles need it)
import snakemake_storage_plugin_fs  # noqa: F401  (stands for S3)
from conftest import ROOT
from programs import Workflow, random_records, wait_for
from test_gpu_workflow import GpuWorkflow
from test_lease_stress import most_at_once

PROPERTIES = {
    "type": "single",
    "rule": "extract",
    "jobid": 7,
    "threads": 4,
    "resources": {"mem_mb": 8000, "runtime": 90, "gpu": 1, "lsf_queue": "g", "pbs_project": "p"},
}


class Batch:
    """A batch system's commands, and calls of our own."""

    def __init__(self, folder, environment, system):
        self.commands = folder / "batch"
        self.environment = {**environment, **batch_commands.install(self.commands, ["GPU-0"])}
        self.folder, self.system = folder, system

    def __call__(self, verb, subject, status=0, **variables):
        done = subprocess.run(
            [sys.executable, "-m", "featuremill.flow.batch", self.system, verb, str(subject)],
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout.strip() if status == 0 else done.stderr

    def submit(self, command, **changes):
        script = self.folder / "snakejob.sh"
        script.write_text(
            f"#!/bin/sh\n# properties = {json.dumps(PROPERTIES | changes)}\n{command}\n"
        )
        number = self("submit", script)
        return number, batch_commands.jobs(self.commands)[-1]


@pytest.fixture(params=["lsf", "pbs"])
def batch(request, tmp_path, environment):
    return Batch(tmp_path, environment, request.param)


OPTIONS = {
    "lsf": [
        *("-J", "fm-extract-7", "-n", "4"),
        *("-R", "span[hosts=1] rusage[mem=8000MB/host]", "-M", "8000MB", "-W", "90"),
        *("-o", "fm-extract-7.%J.log", "-gpu", "num=1:j_exclusive=yes", "-q", "g"),
    ],
    "pbs": [
        *("-V", "-N", "fm-extract-7", "-l", "select=1:ncpus=4:mem=8000mb:ngpus=1"),
        *("-l", "walltime=1:30:00", "-j", "oe", "-o", "", "-P", "p"),
    ],
}


def test_a_job_says_itself_how_it_ended(batch):
    may_end = batch.folder / "may_end"
    waits = f"until test -e {may_end}; do sleep 0.1; done"
    number, job = batch.submit(f'{waits}; test "$CUDA_VISIBLE_DEVICES" = GPU-0')
    folder = f"{batch.folder}/.snakemake/featuremill.jobs/"
    options = (job / "options").read_text().split("\n")
    assert [option.removeprefix(folder) for option in options] == OPTIONS[batch.system]
    assert batch("status", number) == "running"
    (batch.commands / "silent").write_text("1")
    assert batch("status", number) == "running", "no answer says nothing about the job"
    (batch.commands / "forgets").touch()
    may_end.touch()
    wait_for(lambda: (job / "state").read_text() == "DONE")
    assert batch("status", number) == "success", "whatever the scheduler has forgotten"
    number, job = batch.submit("exit 3")
    wait_for(lambda: (job / "state").read_text() == "EXIT")
    assert batch("status", number) == "failed"


def test_a_lost_job_has_failed_after_a_while(batch):
    number, job = batch.submit("exec sleep 60", jobid=1)
    wait_for(lambda: (job / "state").read_text() == "RUN")
    os.killpg(int((job / "group").read_text()), signal.SIGKILL)
    wait_for(lambda: (job / "state").read_text() == "EXIT")
    for _ in range(2):
        assert batch("status", number) == "running", "a shared file system may be late"
    assert batch("status", number, FEATUREMILL_GONE_SECONDS="0") == "failed"
    assert batch("status", "9999") == "running"
    assert batch("status", "9999", FEATUREMILL_GONE_SECONDS="0") == "failed"


def test_what_cannot_be_submitted_is_one_sentence(batch):
    script = batch.folder / "script.sh"
    script.write_text("#!/bin/sh\n")
    assert "no job script of Snakemake's" in batch("submit", script, status=2)
    properties = PROPERTIES | {"resources": {"mem_mb": 5}}
    script.write_text(f"# properties = {json.dumps(properties)}\n")
    assert "script.sh: the job has no runtime" in batch("submit", script, status=2)
    command = {"lsf": "bsub", "pbs": "qsub"}[batch.system]
    script.write_text(f"# properties = {json.dumps(PROPERTIES)}\n")
    (batch.commands / "bin" / command).write_text("#!/bin/sh\necho no such queue >&2; exit 1\n")
    assert "the scheduler took no job: no such queue" in batch("submit", script, status=2)
    (batch.commands / "bin" / command).unlink()
    assert f"{command}: there is no such command here" in batch("submit", script, status=2)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["lsf", "pbs"])
def test_a_run_through_the_profile(tmp_path, environment, gpu_node, system):
    """A job that is killed and a scheduler that does not answer cost nothing but time."""
    node = gpu_node(2)
    commands = tmp_path / "batch"
    environment = {**environment, "FEATUREMILL_GONE_SECONDS": "1"}
    workflow = GpuWorkflow(tmp_path, environment, node, 3, batch_seconds=2, batch_records=5)
    workflow.environment |= batch_commands.install(commands, node.uuids)
    (commands / "silent").write_text("1")
    profile = ("--workflow-profile", str(ROOT / "profiles" / system))
    process = workflow.start(*profile, "--seconds-between-status-checks", "1")
    wait_for(workflow.spans, 120)
    killed = next(
        job
        for job in batch_commands.jobs(commands)
        if "fm-extract" in (job / "options").read_text() and (job / "state").read_text() == "RUN"
    )
    os.killpg(int((killed / "group").read_text()), signal.SIGKILL)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "the scheduler does not answer" in said and "it left no status" in said
    assert workflow.counts()["ok"] == 30
    names = [(job / "options").read_text().split() for job in batch_commands.jobs(commands)]
    rules = [next(word.split("-")[1] for word in words if "fm-" in word) for words in names]
    assert sorted(rules) == sorted(["plan", *["extract"] * 4, "merge", "report"])
    spans = workflow.spans()
    assert set(spans) <= set(node.uuids) and max(map(most_at_once, spans.values())) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("system", "number"), [("lsf", signal.SIGKILL), ("pbs", signal.SIGINT)])
def test_a_run_goes_on_after_its_snakemake(tmp_path, environment, gpu_node, system, number):
    """Killed, its jobs go on and nothing is computed twice; stopped, it takes them along."""
    node = gpu_node(2)
    commands = tmp_path / "batch"
    workflow = GpuWorkflow(tmp_path, environment, node, 2, batch_seconds=15)
    workflow.environment |= batch_commands.install(commands, node.uuids)
    profile = ("--workflow-profile", str(ROOT / "profiles" / system))
    command = (*profile, "--seconds-between-status-checks", "1")
    process = workflow.start(*command)
    wait_for(lambda: len(batch_commands.jobs(commands)) == 3, 200)
    wait_for(workflow.spans_file.exists, 200)
    process.send_signal(number)
    process.communicate(timeout=200)
    if number == signal.SIGINT:
        states = [job / "state" for job in batch_commands.jobs(commands)[1:]]
        wait_for(lambda: {state.read_text() for state in states} == {"EXIT"})
    workflow(*command)
    assert workflow.counts()["ok"] == 20
    assert len(batch_commands.jobs(commands)) == 7, "plan, each shard twice, merge, report"
    assert sum(map(len, workflow.spans().values())) == 2, "one batch a shard"


@pytest.mark.parametrize("name", ["kubernetes", "lsf", "pbs"])
def test_every_key_of_a_profile_says_why(name):
    text = (ROOT / "profiles" / name / "config.yaml").read_text()
    keys = re.findall(r"^ *(?:# )?[a-z_-]+:.*$", text, re.MULTILINE)
    above = text.splitlines()
    for line in keys:
        is_told = "# " in line.lstrip(" #") or above[above.index(line) - 1].startswith("# ")
        assert is_told, line


def test_a_default_storage_is_refused(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(3))
    storage = ("--default-storage-provider", "fs", "--default-storage-prefix", "bucket")
    assert "takes a run's files away from its store" in workflow(*storage, status=1)
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_the_workflow_of_the_docs_fetches_and_delivers(tmp_path, environment):
    """With the plugin for folders in place of the one for S3."""
    text = (ROOT / "docs/clusters.md").read_text("utf-8")
    (snakefile,) = re.findall("```snakemake\n(storage archive.*?)```", text, re.DOTALL)
    for old, new in (('"s3"', '"fs"'), ("s3://lab/", "lab/"), ("path/to/featuremill", str(ROOT))):
        assert old in snakefile
        snakefile = snakefile.replace(old, new)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/proteins.fasta").write_text(">a\nMKV\n>b\nMKVLA\n")
    (tmp_path / "Snakefile").write_text(snakefile)
    command = [sys.executable, "-m", "snakemake", "--cores", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("embeddings.parquet", "report.html"):
        delivered = (tmp_path / "lab/mine" / name).read_bytes()
        assert delivered == (tmp_path / "results/mine" / name).read_bytes()
