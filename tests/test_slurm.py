"""The workflow on a real Slurm: one allocation in which Snakemake runs, and a job for each shard.

The GPUs are pretended: device nodes for Slurm, a simulated NVML for the jobs, and a workload that
sleeps and notes which devices it sees, and when. What is in the tests' way are the plugin's polls.
"""

import datetime
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from conftest import ROOT
from nvml_node import Gpu
from test_demo import DATA
from test_gpu_workflow import GpuWorkflow, check_spans
from test_lease_stress import most_at_once

from featuremill.store.row_order import LEAST_JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROFILE = ROOT / "profiles" / "slurm"
ALLOCATION = PROFILE / "allocation.sbatch"
SNAKEFILE = ["--snakefile", ROOT / "Snakefile", "--configfile", "config.yaml"]
QUICK = ["--slurm-init-seconds-before-status-checks=2", "--slurm-status-command=squeue"]
"""Looks at the jobs every few seconds; there is no accounting."""


OTHERS = ("plan", "merge", "report")
ENDED = ("TIMEOUT", "COMPLETED", "FAILED", "CANCELLED")


class SlurmRun(GpuWorkflow):
    """A run whose Snakemake processes are inside a cluster, or here."""

    def __init__(self, folder, environment, node, cluster, num_shards, **options):
        folder.mkdir(exist_ok=True)
        super().__init__(folder, environment, node, num_shards, **options)
        self.configure(spans="spans.txt")  # in the folder: an option's value is part of the recipe
        bin = str(Path(sys.executable).parent)
        self.environment["PATH"] = os.pathsep.join([bin, os.environ["PATH"]])
        self.cluster = cluster

    def inside(self, *command):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return self.cluster.popen(*command, cwd=self.folder, env=self.environment, **pipes)

    def submit(self, *options):
        """Submit the script of profiles/slurm; return the job's id."""
        words = ["sbatch", "--parsable", "--mem=8G", *options, ALLOCATION, *SNAKEFILE]
        said, _ = self.inside(*words).communicate(timeout=60)
        return said.strip()

    def plugin(self, *arguments):
        """Start a Snakemake that submits a job for each of its own."""
        words = ["snakemake", *SNAKEFILE, "--workflow-profile", PROFILE, *QUICK, *arguments]
        return self.inside(*words)

    def receipt_paths(self):
        """Return where the receipts will be, once there is a plan."""
        self("plan")
        return [path.relative_to(self.folder) for path in self.planned_receipts()]

    def extracts(self):
        """Return the ids of the jobs of shards that run, by shard."""
        said = self.cluster.run("squeue", "-h", "-t", "running", "-o", "%A %k").splitlines()
        jobs = (line.split() for line in said if " rule_extract_" in line)
        return {comment.rpartition("_")[2]: job for job, comment in jobs}


def ends_well(process, seconds=400):
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said
    return said


def seconds_of(receipts):
    """Return the seconds from the first start of a shard to the last end."""
    keys = ("started", "finished")
    times = [datetime.datetime.fromisoformat(one[key]) for one in receipts for key in keys]
    return (max(times) - min(times)).total_seconds()


def test_one_allocation_of_four_gpus(tmp_path, environment, gpu_node, slurm_cluster):
    """64 shards; each device is used by one at a time, and all four at once."""
    cluster, node = slurm_cluster(), gpu_node(4)
    run = SlurmRun(tmp_path / "run", environment, node, cluster, 64, batch_seconds=1)
    job = run.submit("--gpus=4", "--cpus-per-task=32")
    cluster.wait_until(lambda: cluster.jobs()[job][0] == "COMPLETED", 500)
    check_spans(run.spans(), node.uuids, 4)
    receipts = run.receipts()
    used = {device["uuid"] for receipt in receipts for device in receipt["devices"]}
    assert used == {*node.uuids}
    assert run.counts()["ok"] == 640
    took = seconds_of(receipts)
    print(f"64 shards of 1 s on 4 GPUs: {took:.0f} s, {4 * took / 64 - 1:.2f} s more a shard")


def test_an_allocation_goes_on_when_its_time_is_over(
    tmp_path, environment, gpu_node, slurm_cluster
):
    """The signal is sent by hand; Slurm's own comes up to a minute early."""
    cluster, node = slurm_cluster(), gpu_node(4)
    options = {"batch_seconds": 1, "batch_records": 1, "computed": "computed.txt"}
    run = SlurmRun(tmp_path / "run", environment, node, cluster, 5, **options)
    job = run.submit("--gpus=4", "--cpus-per-task=32")
    cluster.wait_until(lambda: sum(map(len, run.spans().values())) >= 8)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    cluster.wait_until(lambda: cluster.jobs()[job][0] == "PENDING")
    cluster.hurry(job)
    cluster.wait_until(lambda: cluster.jobs()[job][0] == "COMPLETED", 200)
    assert run.counts()["ok"] == 50
    assert len(run.news()) <= 50 + 4 * 2, "two batches a device may be in flight"
    said = (run.folder / f"featuremill-{job}.log").read_text()
    assert "The time is nearly over" in said and "resumed from before a stop" in said
    check_spans(run.spans(), node.uuids, 4)


def test_a_job_for_each_shard(tmp_path, environment, gpu_node, slurm_cluster):
    cluster, node = slurm_cluster(), gpu_node(4)
    options = {"batch_seconds": 2}
    local = SlurmRun(tmp_path / "local", environment, node, cluster, 8, **options)
    local("--cores", "32")
    run = SlurmRun(tmp_path / "run", environment, node, cluster, 8, **options)
    ends_well(run.plugin())
    assert run.data() == local.data()
    spans = run.spans()
    assert set(spans) <= {"0", "1", "2", "3"} and len(spans) > 1, "one number of Slurm's each"
    assert max(map(most_at_once, spans.values())) == 1
    used = {device["uuid"] for receipt in run.receipts() for device in receipt["devices"]}
    assert used == {node.uuids[int(number)] for number in spans}
    asked = cluster.run("squeue", "-h", "--states=all", "-O", "tres-per-job,comment").splitlines()
    assert sorted(map(str.split, asked))[:3] == [["N/A", f"rule_{x}"] for x in sorted(OTHERS)]
    assert [line.startswith("gres:gpu:1 ") for line in asked].count(True) == 8
    took = seconds_of(run.receipts())
    print(f"8 shards of 2 s on 4 GPUs, a job each: {took:.0f} s")


def test_jobs_that_deliver(tmp_path, environment, gpu_node, slurm_cluster):
    """Results shard by shard: a job for each share of the shards, none of which asks for a GPU."""
    cluster, node = slurm_cluster(), gpu_node(4)
    run = SlurmRun(tmp_path / "run", environment, node, cluster, 6, batch_seconds=1)
    run.ask(order="shard", outputs="parquet_dataset")
    ends_well(run.plugin())
    jobs = cluster.run("squeue", "-h", "--states=all", "-O", "tres-per-job,comment").splitlines()
    delivering = [line for line in jobs if " rule_deliver_" in line]
    assert len(delivering) == LEAST_JOBS
    assert all(line.startswith("N/A ") for line in delivering)
    lines = (run.run_folder.root / "run.log").read_text().splitlines()
    assert sum(" deliver " in line for line in lines) == LEAST_JOBS
    assert any(line.split()[1] == "merge" and " 60 of 60 records" in line for line in lines)
    table = ds.dataset(run.run_folder.root / "embeddings").to_table()
    assert table.num_rows == 60 and len(table["id"].unique()) == 60


def test_groups_of_shards_in_one_job(tmp_path, environment, gpu_node, slurm_cluster):
    cluster, node = slurm_cluster(), gpu_node(4)
    run = SlurmRun(tmp_path / "run", environment, node, cluster, 6, batch_seconds=1)
    paths = run.receipt_paths()
    groups = ["--groups", "extract=shards", "--group-components", "shards=3"]
    scope = ["--resources", "gpu=1", "--set-resource-scopes", "gpu=local"]
    ends_well(run.plugin(*groups, *scope, "--", *paths))
    asked = cluster.run("squeue", "-h", "--states=all", "-O", "tres-per-job").split()
    assert asked == ["gres:gpu:1"] * 2
    spans = run.spans()
    assert len(spans) <= 2 and sum(map(len, spans.values())) == 6
    assert max(map(most_at_once, spans.values())) == 1
    run("--cores", "32")
    assert run.counts()["ok"] == 60


def test_the_demo_on_both_roads(tmp_path, environment, slurm_cluster):
    cluster, data = slurm_cluster(), {}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**environment, "PATH": path}
    command = ["snakemake", "--snakefile", ROOT / "Snakefile"]
    by_script = ["sbatch", "--wait", "--mem=8G", "--cpus-per-task=2", ALLOCATION]
    roads = {
        "local": [*command, "--cores", "2"],
        "allocation": [*by_script, *command[1:]],
        "jobs": [*command, "--workflow-profile", PROFILE, *QUICK, "--set-threads", "extract=2"],
    }
    for road, words in roads.items():
        shutil.copytree(ROOT / "config", tmp_path / road / "config")
        cluster.run(*words, cwd=tmp_path / road, env=environment, timeout=400)
        results = tmp_path / road / "results" / "demo"
        data[road] = [(results / name).read_bytes() for name in DATA]
    assert data["allocation"] == data["local"] and data["jobs"] == data["local"]


@pytest.fixture
def two_nodes(tmp_path, gpu_node, slurm_cluster):
    """Return a cluster of two nodes with two GPUs each, and the environment of its jobs."""
    names = ("gpu1", "gpu2")
    nodes = {name: gpu_node(*[Gpu(uuid=f"GPU-{name}-{n}") for n in range(2)]) for name in names}
    prolog = tmp_path / "prolog"
    lines = "".join(
        f"if [ $SLURMD_NODENAME = {name} ]; then\n"
        + "".join(
            f"echo export {key}={shlex.quote(node.environment[key])}\n"
            for key in ("SIMULATED_NVML_STATE", "SIMULATED_NVML_PROCESSES")
        )
        + "fi\n"
        for name, node in nodes.items()
    )
    prolog.write_text("#!/bin/sh\n" + lines)
    prolog.chmod(0o755)
    return slurm_cluster(nodes=2, gpus=2, more_conf=f"TaskProlog={prolog}\n"), nodes


def test_what_a_cluster_does_to_jobs_costs_nothing(tmp_path, environment, two_nodes):
    """scancel, a time limit, a preemption, a drained node and a killed slurmd, in one run."""
    cluster, nodes = two_nodes
    hold = tmp_path / "hold"
    options = {"batch_seconds": 1, "batch_records": 2, "hold": str(hold)}
    local = SlurmRun(tmp_path / "local", environment, nodes["gpu1"], cluster, 6, **options)
    local("--cores", "32")
    run = SlurmRun(tmp_path / "run", environment, nodes["gpu1"], cluster, 6, **options)
    process = run.plugin("--", *run.receipt_paths())
    jobs = cluster.wait_until(lambda: (found := run.extracts()) and len(found) == 4 and found)
    cluster.wait_until(run.spans)
    hold.touch()  # no batch ends before all of it has happened
    limited, cancelled, preempted, _ = jobs.values()
    cluster.run("scontrol", "update", f"JobId={limited}", "TimeLimit=1")
    cluster.run("scancel", cancelled)
    cluster.kill("gpu1")
    cluster.start("gpu1")
    cluster.wait_until(lambda: cluster.jobs()[limited][0] in ENDED, 150)
    where = cluster.jobs()[preempted][1]
    urgent = ["sbatch", "--parsable", "-p", "urgent", "-w", where, "--gpus=2", "--wrap", "sleep 1"]
    urgent = cluster.run(*urgent, cwd=run.folder).strip()
    cluster.wait_until(lambda: cluster.jobs()[urgent][0] == "COMPLETED")
    cluster.run("scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=test")
    ended = {job: cluster.jobs()[job][0] for job in jobs.values()}
    hold.unlink()
    cluster.wait_until(lambda: _hurried(cluster, process), 300)
    assert ended[limited] == "TIMEOUT" and ended[cancelled] == "CANCELLED"
    assert ended[preempted] != "COMPLETED"
    ends_well(process)
    run("--cores", "32")
    assert run.counts()["ok"] == 60
    assert run.data() == local.data()
    assert len(run.news()) <= 60 + 2 * 4 * 6, "what was in flight at each end"


def _hurried(cluster, process):
    """Let jobs that Slurm queued again start at once (it waits two minutes); tell whether all is
    over."""
    for job, (state, _) in cluster.jobs().items():
        if state == "PENDING":
            cluster.hurry(job)
    return process.poll() is not None


def test_a_second_snakemake_computes_nothing_twice(tmp_path, environment, gpu_node, slurm_cluster):
    """Its jobs give their GPUs back while the first one's are at it, and adopt the parts."""
    cluster, node = slurm_cluster(), gpu_node(4)
    hold = tmp_path / "hold"
    hold.touch()
    options = {"hold": str(hold), "computed": "computed.txt"}
    run = SlurmRun(tmp_path / "run", environment, node, cluster, 2, **options)
    paths = run.receipt_paths()
    first = run.plugin("--", *paths)
    jobs = cluster.wait_until(lambda: (found := run.extracts()) and len(found) == 2 and found)
    cluster.wait_until(lambda: run.computed.exists() and len(run.computed.read_text()) > 0)
    cluster.signal(first, signal.SIGKILL)
    first.communicate()
    second = run.plugin("--", *paths)

    def given_back():
        lines = cluster.run("squeue", "-h", "-O", "JobID,RestartCnt,State").splitlines()
        found = {job: (restarts, state) for job, restarts, state in map(str.split, lines)}
        assert all(found.pop(job) == ("0", "RUNNING") for job in jobs.values())
        return list(found.values()) == [("1", "PENDING")] * 2

    cluster.wait_until(given_back, 120)
    hold.unlink()
    cluster.wait_until(lambda: all(cluster.jobs()[job][0] == "COMPLETED" for job in jobs.values()))
    cluster.wait_until(lambda: _hurried(cluster, second), 200)
    ends_well(second)
    assert len(run.news()) == 20, "each record once"
    run("--cores", "32")
    assert run.counts()["ok"] == 20
