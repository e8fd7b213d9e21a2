"""LSF's profile and the recipe for PBS under the real Snakemake, with stand-ins for commands."""

import os
import re
import signal
import subprocess
import sys

import batch_commands
import debian
import pytest
import snakemake_executor_plugin_cluster_generic  # noqa: F401  (a recipe needs it)
import snakemake_storage_plugin_fs  # noqa: F401  (stands for S3)
from conftest import ROOT
from programs import Workflow, random_records, wait_for
from test_gpu_workflow import GpuWorkflow
from test_lease_stress import most_at_once

PAGE = (ROOT / "docs/clusters.md").read_text("utf-8")
RECIPE = dict(re.findall(r"`(profiles/pbs/\S+)`:\n\n```text\n(.*?)```", PAGE, re.DOTALL))
PROFILES = {"lsf": ROOT / "profiles" / "lsf", "pbs": "profiles/pbs"}


class ClusterRun(GpuWorkflow):
    """A run on a simulated node whose jobs a batch system starts; PBS as docs/clusters.md says."""

    def __init__(self, folder, environment, node, system, num_shards, **options):
        super().__init__(folder, environment, node, num_shards, **options)
        self.commands = folder / "batch"
        self.environment |= batch_commands.install(self.commands, node.uuids)
        (folder / "profiles/pbs").mkdir(parents=True)
        for name, text in RECIPE.items():
            (folder / name).write_text(text)
        profile = ("--workflow-profile", str(PROFILES[system]))
        self.by_jobs = (*profile, "--seconds-between-status-checks", "1")

    def jobs(self, rule=""):
        """Return the folders of the jobs of a rule, or of all."""
        found = batch_commands.jobs(self.commands)
        return [job for job in found if f"featuremill {rule}" in self.asked(job)]

    def asked(self, job):
        """Return what Snakemake wrote of its job into the script, or the verb that it runs."""
        path = job / "script"
        script = path.read_text() if path.exists() else ""  # it is being written
        (rule,) = set(re.findall(r"--allowed-rules'? '?(\w+)", script)) or {""}
        return f"featuremill {rule}"


def test_the_status_of_the_recipe(tmp_path, environment):
    """Each answer that PBS gives, and none."""
    commands = tmp_path / "batch"
    environment = {**environment, **batch_commands.install(commands)}

    def status(job):
        words = ["sh", "-c", RECIPE["profiles/pbs/status.sh"], "status.sh", job]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    job = commands / "job.1"
    job.mkdir()
    states = {"PEND": "running", "RUN": "running", "DONE": "success", "EXIT": "failed"}
    for state, expected in states.items():
        (job / "state").write_text(state)
        assert status("1.server") == expected
    assert status("2.server") == "failed", "PBS does not know it any more"
    (commands / "silent").write_text("1")
    assert status("1.server") == "running", "no answer says nothing about the job"


@pytest.mark.slow
@pytest.mark.parametrize("system", ["lsf", "pbs"])
def test_a_run_through_the_profile(tmp_path, environment, gpu_node, system):
    """A job that is killed costs nothing but time; on PBS nor does a query without an answer."""
    import snakemake_executor_plugin_lsf  # noqa: F401  (the profile needs it)

    node = gpu_node(2)
    workflow = ClusterRun(tmp_path, environment, node, system, 3, batch_seconds=2, batch_records=5)
    if system == "pbs":
        (workflow.commands / "silent").write_text("1")
    process = workflow.start(*workflow.by_jobs)
    wait_for(workflow.spans, 120)
    running = (job for job in workflow.jobs("extract") if (job / "state").read_text() == "RUN")
    os.killpg(int((next(running) / "group").read_text()), signal.SIGKILL)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert workflow.counts()["ok"] == 30
    rules = [workflow.asked(job).split()[1] for job in workflow.jobs()]
    assert sorted(rules) == sorted(["plan", *["extract"] * 4, "merge", "report"])
    asked = (workflow.jobs("extract")[0] / "options").read_text()
    assert ("-gpu\nnum=1:j_exclusive=yes" in asked) == (system == "lsf")
    assert (":ngpus=1" in asked) == (system == "pbs")
    spans = workflow.spans()
    assert set(spans) <= set(node.uuids) and max(map(most_at_once, spans.values())) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("system", "number"), [("lsf", signal.SIGKILL), ("pbs", signal.SIGINT)])
def test_a_run_goes_on_after_its_snakemake(tmp_path, environment, gpu_node, system, number):
    """Killed, its jobs go on and nothing is computed twice; stopped, it takes them along."""
    workflow = ClusterRun(tmp_path, environment, gpu_node(2), system, 2, batch_seconds=15)
    process = workflow.start(*workflow.by_jobs)
    wait_for(lambda: len(workflow.jobs("extract")) == 2, 200)
    wait_for(workflow.spans_file.exists, 200)
    states = [job / "state" for job in workflow.jobs("extract")]
    wait_for(lambda: {state.read_text() for state in states} == {"RUN"})
    process.send_signal(number)
    process.communicate(timeout=200)
    if number == signal.SIGINT:
        wait_for(lambda: {state.read_text() for state in states} == {"EXIT"})
    workflow(*workflow.by_jobs)
    assert workflow.counts()["ok"] == 20
    assert len(workflow.jobs()) == 7, "plan, each shard twice, merge, report"
    assert sum(map(len, workflow.spans().values())) == 2, "one batch a shard"


@pytest.mark.parametrize("name", ["kubernetes", "lsf"])
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
    debian.install("rsync")
    (snakefile,) = re.findall("```snakemake\n(storage archive.*?)```", PAGE, re.DOTALL)
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
