"""The workflow on a simulated GPU node: who computes where, and what a failing device does.

The workload sleeps in place of computing, and notes from inside the worker which devices it sees
and when: that is the observer. Nothing here has touched a GPU.
"""

import csv
import datetime
import heapq
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from geneformer_models import cells_of, ensembl, some_counts, write_cells, write_genes, write_model
from nvml_node import Gpu, Slice
from programs import NO_REPORT, Desk, Workflow, fasta, random_records, wait_for
from recordings import noise, write_npz
from test_lease_stress import most_at_once

from featuremill.flow import internals, jobs
from featuremill.flow.screen import RefusedError

DOCS = ROOT / "docs" / "lease.md"
EXAMPLES = ROOT / "config" / "examples"


class GpuWorkflow(Workflow):
    """A run with shards of ten records on the GPUs of a node; its batches sleep."""

    def __init__(self, folder, environment, node, num_shards, **options):
        environment = {**environment, **node.environment}
        spans = str(folder / "spans.txt")
        records = random_records(10 * num_shards, seed=num_shards)
        super().__init__(folder, environment, records, spans=spans, **options)
        self.spans_file = Path(spans)

    def configure(self, **options):
        super().configure(**options)
        self.ask(device="cuda", shards={"cost": 10})

    def spans(self):
        """Return, for each device, when batches ran on it."""
        found, begun = defaultdict(list), {}
        for line in self.spans_file.read_text().splitlines() if self.spans_file.exists() else ():
            at, pid, device, what = line.split()
            if what == "begin":
                begun[pid] = float(at)
            else:
                found[device].append((begun[pid], float(at)))
        return dict(found)

    def at_work(self):
        """Return the devices on which a batch has begun and not ended, once for each batch."""
        text = self.spans_file.read_text() if self.spans_file.exists() else ""
        lines = [words for line in text.splitlines() if len(words := line.split()) == 4]
        begun = Counter(words[2] for words in lines if words[3] == "begin")
        begun.subtract(words[2] for words in lines if words[3] == "end")
        return sorted(device for devices in begun.elements() for device in devices.split(","))

    def receipts(self):
        return [json.loads(path.read_text()) for path in self.planned_receipts()]

    def planned_receipts(self):
        plan = json.loads(self.run_folder.plan.read_text())
        return [self.run_folder.receipt(plan["recipe"], s["shard"]) for s in plan["shards"]]


def check_spans(spans, uuids, at_once, slots=1):
    """Every device was used, by one at a time (or by `slots`), and several were at work at once.

    How many of the `at_once` met in fact is left to the load of the machine that tests; with
    `finish_together` it is all of them.
    """
    assert sorted(spans) == sorted(uuids)
    assert max(map(most_at_once, spans.values())) <= slots
    assert 2 <= most_at_once([span for mine in spans.values() for span in mine]) <= at_once


def check_receipts(receipts, uuids):
    """Each of the devices is named by who held it; no job imported torch."""
    devices = [device for receipt in receipts for device in receipt["devices"]]
    assert {device["uuid"] for device in devices} == set(uuids)
    assert {device["kind"] for device in devices} == {"cuda"}
    assert not any("torch" in receipt["versions"] for receipt in receipts)


def finish_held(hold, is_met, *processes, meanwhile=lambda: None):
    """Let jobs go on, which wait while `hold` is there, once `is_met()`; return what was said."""
    try:
        wait_for(lambda: is_met() or any(process.poll() is not None for process in processes))
        meanwhile()
        hold.unlink()
        said = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), said
    return "".join(map(str, said))


def most_of_all(spans):
    return most_at_once([span for mine in spans.values() for span in mine])


@pytest.fixture
def hold(tmp_path):
    """Return a file: while it is there, no batch ends."""
    path = tmp_path / "hold"
    path.touch()
    return path


OF_SBATCH = dict.fromkeys(("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"), "0,1,2,3")
ALLOCATIONS = {"workstation": {}, "one sbatch of four GPUs": {"SLURM_JOB_ID": "7", **OF_SBATCH}}


@pytest.mark.slow
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_the_literal_command_on_four_gpus(tmp_path, environment, gpu_node, hold, allocation):
    node = gpu_node(4)
    node.environment |= ALLOCATIONS[allocation]
    workflow = GpuWorkflow(tmp_path, environment, node, 5, hold=str(hold))
    process = workflow.start(NO_REPORT, "--cores", "32", "--resources", "gpu=4")
    finish_held(hold, lambda: workflow.at_work() == node.uuids, process)
    check_spans(workflow.spans(), node.uuids, 4)
    assert most_of_all(workflow.spans()) == 4
    check_receipts(workflow.receipts(), node.uuids)


def by_device(spans):
    """Return the spans of each device from those of the sets that jobs held together."""
    found = defaultdict(list)
    for devices, each in spans.items():
        for device in devices.split(","):
            found[device] += each
    return found


@pytest.mark.parametrize(("cap", "gpus", "had"), [(1, 2, 1), (None, 5, 4)])
def test_a_job_that_needs_more_devices_than_there_are_is_refused(monkeypatch, cap, gpus, had):
    """Whether there are no more, or the user allows no more."""
    told = {"is_main": True, "runs_elsewhere": False, "only_looks": False, "cap_of": cap}
    for name, value in {**told, "set_cap": None}.items():
        monkeypatch.setattr(internals, name, lambda *_, value=value: value)
    monkeypatch.setattr(jobs, "count_slots", lambda request: 4)
    monkeypatch.setattr(jobs, "_caps", set())
    monkeypatch.setenv("FEATUREMILL_GPUS", "")
    sentence = f"gpus_per_job: one job needs {gpus}, but {had} are available; lower it"
    with pytest.raises(RefusedError, match=sentence):
        jobs.cap_gpus(None, "cuda", gpus)
    jobs.cap_gpus(None, "cuda", had)


def test_slices_for_one_job_are_refused_before_the_first_job(tmp_path, environment, gpu_node):
    slices = [Slice("MIG-a"), Slice("MIG-b", gpu_instance=2)]
    workflow = GpuWorkflow(tmp_path, environment, gpu_node(Gpu(), Gpu(slices=slices)), 1)
    words = ("--cores", "4", "--dry-run", "--config")
    said = workflow(*words, "gpus_per_job=2", status=1)
    assert "gpus_per_job: a process can use one MIG slice only" in said
    workflow(*words, "gpus_per_job=1")


def test_a_job_holds_two_of_four_devices(tmp_path, environment, gpu_node, hold):
    node = gpu_node(4)
    workflow = GpuWorkflow(tmp_path, environment, node, 2, hold=str(hold))
    spread = ("--cores", "32", "--config", "gpus=2")
    finish_held(hold, lambda: workflow.at_work() == node.uuids, workflow.start(*spread))
    spans = workflow.spans()
    assert all(len(set(devices.split(","))) == 2 for devices in spans)
    check_spans(by_device(spans), node.uuids, 4)
    assert most_of_all(spans) == 2
    for receipt in workflow.receipts():
        held = ",".join(device["uuid"] for device in receipt["devices"])
        assert held in spans and receipt["retries"] == 0
    assert "2 × Simulated GPU" in (workflow.run_folder.root / "report.html").read_text()
    workflow.news()
    workflow(NO_REPORT, "--cores", "32")
    assert workflow.news() == [], "how many hold a model says nothing about values"


@pytest.mark.slow
def test_a_device_lost_from_a_pair_costs_no_record(tmp_path, environment, gpu_node):
    node = gpu_node(3)
    lost = tmp_path / "lost"
    options = {"batch_seconds": 1, "batch_records": 5, "lost_file": str(lost)}
    workflow = GpuWorkflow(tmp_path, environment, node, 2, **options)
    process = workflow.start("--cores", "32", "--config", "gpus=2")
    wait_for(workflow.spans)
    (pair,) = workflow.spans()
    node.change(node.uuids.index(pair.split(",")[1]), lost=True)
    lost.write_text(pair.split(",")[1])
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "gave up its device" in said
    assert workflow.counts()["ok"] == 20


def test_a_model_too_large_for_a_gpu_is_one_sentence_with_the_remedy(verbs, gpu_node):
    verbs.environment = verbs.environment | gpu_node(1).environment
    options = {"greedy_load": True}
    plan = verbs.plan([("a", "MKV")], "poison", options, device="cuda")
    said = verbs.extract(plan, status=3).splitlines()[-1]
    assert "every device failed 2 times" in said
    assert "memory ran out while the model was loaded (" in said
    told = (
        "take a GPU with more memory, `gpus_per_job: 2` (a model spread over several) or a smaller"
    )
    assert told in said
    plan = verbs.plan([("a", "MKV")], "poison", options, device="cuda", gpus=2)
    assert "2 GPUs are wanted and there are 1; ask for fewer." in verbs.extract(plan, status=2)


@pytest.mark.slow
def test_two_runs_at_once_never_meet_on_a_device(tmp_path, environment, gpu_node, hold):
    node = gpu_node(2)
    runs = []
    for name in ("capped", "uncapped"):
        (tmp_path / name).mkdir()
        runs.append(GpuWorkflow(tmp_path / name, environment, node, 2, hold=str(hold)))
    processes = [runs[0].start(NO_REPORT, "--cores", "32", "--resources", "gpu=2")]
    processes += [runs[1].start(NO_REPORT, "--cores", "32")]

    def are_all_there():
        """Two jobs of either run, of which two are at work."""
        jobs = [len(list(run.folder.glob("results/test/logs/extract/*/*.log"))) for run in runs]
        return jobs == [2, 2] and sorted(runs[0].at_work() + runs[1].at_work()) == node.uuids

    finish_held(hold, are_all_there, *processes)
    both = defaultdict(list)
    for run in runs:
        assert run.counts()["ok"] == 20
        for device, spans in run.spans().items():
            both[device] += spans
    check_spans(both, node.uuids, 2)
    assert most_of_all(both) == 2
    check_receipts([receipt for run in runs for receipt in run.receipts()], node.uuids)


@pytest.mark.slow
def test_a_profile_says_how_jobs_get_their_gpus(tmp_path, environment, gpu_node, hold):
    node = gpu_node(3)
    workflow = GpuWorkflow(tmp_path, environment, node, 5, hold=str(hold))
    profile = tmp_path / "profile"
    profile.mkdir()
    settings = {"gpu_slots": 2, "gpu_devices": "'2,0'", "gpu_policy": "sequential"}
    (profile / "config.yaml").write_text(yaml.safe_dump({"default-resources": settings}))
    allowed = [node.uuids[0], node.uuids[2]]
    process = workflow.start(NO_REPORT, "--cores", "32", "--profile", str(profile))
    finish_held(hold, lambda: workflow.at_work() == sorted(2 * allowed), process)
    check_spans(workflow.spans(), allowed, 4, slots=2)
    assert most_of_all(workflow.spans()) == 4
    workflow.environment["FEATUREMILL_DEVICES"] = "7"
    assert "GPU 7 does not exist; this machine has 0–2." in workflow("-n", status=1)


def test_a_device_that_gets_lost_costs_no_record(tmp_path, environment, gpu_node, hold):
    node = gpu_node(3)
    lost = tmp_path / "lost"
    options = {"hold": str(hold), "batch_records": 5, "lost_file": str(lost)}
    workflow = GpuWorkflow(tmp_path, environment, node, 4, **options)

    def lose():
        node.change(1, lost=True)
        lost.write_text(node.uuids[1])

    process = workflow.start(NO_REPORT, "--cores", "32", "--resources", "gpu=3")
    said = finish_held(hold, lambda: workflow.at_work() == node.uuids, process, meanwhile=lose)
    assert "gave up its device" in said
    assert workflow.counts()["ok"] == 40
    spans = workflow.spans()
    assert {receipt["retries"] for receipt in workflow.receipts()} == {0, 1}
    check_spans(spans, [node.uuids[0], node.uuids[2]], 2)
    assert "device not ready" in (node.locks / f"{node.uuids[1]}.failures").read_text()


def test_the_rule_of_the_docs_leases_gpus_for_a_foreign_tool(tmp_path, environment, gpu_node, hold):
    """The rule stands in docs/lease.md; its tool is a script here, and no cap is given."""
    node = gpu_node(3)
    snakefile = DOCS.read_text("utf-8").partition("```snakemake\n")[2].partition("```")[0]
    assert "rule fold" in snakefile
    names = [f"p{n}" for n in range(5)]
    (tmp_path / "sequences").mkdir()
    for name in names:
        (tmp_path / "sequences" / f"{name}.fa").write_text(">x\nMKV\n")
    (tmp_path / "Snakefile").write_text(snakefile)
    desk = Desk(tmp_path, {**environment, **node.environment})
    desk.environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    tool = tmp_path / "fold"
    span = "echo $CUDA_VISIBLE_DEVICES"
    waiting = "while test -e hold; do sleep 0.01; done"
    tool.write_text(f"#!/bin/sh\n{span} begin >> spans\n{waiting}\n{span} end >> spans\ncp $1 $2\n")
    tool.chmod(0o755)
    featuremill = tmp_path / "featuremill"
    featuremill.write_text(f'#!/bin/sh\nexec {sys.executable} -m featuremill "$@"\n')
    featuremill.chmod(0o755)
    noted = tmp_path / "spans"
    process = desk.start("snakemake", "--cores", "8", stdout=subprocess.DEVNULL)
    begun = lambda: sorted(noted.read_text().split()[::2]) if noted.exists() else []  # noqa: E731
    finish_held(hold, lambda: begun() == node.uuids, process)
    found, since = defaultdict(list), {}
    for at, line in enumerate(noted.read_text().splitlines()):
        device, what = line.split()
        if what == "begin":
            assert device not in since, "two at once"
            since[device] = at
        else:
            found[device].append((since.pop(device), at))
    assert sum(map(len, found.values())) == 5
    check_spans(found, node.uuids, 3)
    assert most_of_all(found) == 3


SECONDS_OF_SHARDS = {10: 120, "auto": 105}
"""By `shards.cost`; two of the latter end before a program in tests is given up."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cost", SECONDS_OF_SHARDS)
@pytest.mark.parametrize(("num_gpus", "at_least"), [(2, 1.9), (4, 3.8), (8, 7.5)])
def test_speed_grows_with_the_devices(tmp_path, environment, gpu_node, num_gpus, at_least, cost):
    """Work of fixed time, from the first job's start to the last receipt: a shard a device, or as
    a first run cuts it of any workload whose speed is not known, two a device.

    The start of each job (Python, imports, lease) counts; Snakemake's own start, plan, merge and
    report do not. One device is taken to need exactly the fixed time, without any start.
    """
    node = gpu_node(num_gpus)
    shards_a_gpu = 1 if cost == 10 else 2
    num_shards = shards_a_gpu * num_gpus
    options = {"batch_seconds": SECONDS_OF_SHARDS[cost]}
    workflow = GpuWorkflow(tmp_path, environment, node, num_shards, **options)
    workflow.ask(shards={"cost": cost})
    workflow("--cores", "32", "--resources", f"gpu={num_gpus}")
    assert len(sorted(tmp_path.glob("results/test/logs/extract/*/*.log"))) == num_shards
    clock = [one[key] for one in workflow.receipts() for key in ("started", "finished")]
    times = sorted(map(datetime.datetime.fromisoformat, clock))
    took = (times[-1] - times[0]).total_seconds()
    speed_up = num_shards * SECONDS_OF_SHARDS[cost] / took
    print(f"{num_gpus} devices: {took:.1f} s, {speed_up:.2f} times the speed of one")
    assert speed_up >= at_least


NUM_RECORDS = 1000
STARTUP_SECONDS = 3
COMPUTING_SECONDS = 2 * SECONDS_OF_SHARDS["auto"]
"""A device, when all of them compute."""


def of_encoder(folder):
    runpy.run_path(str(EXAMPLES / "random_encoder.py"))["main"](folder / "model")
    (folder / "in.fa").write_text(fasta(random_records(NUM_RECORDS)))
    return "in.fa", {"model": "model", "alphabet": "proteins"}, "parquet"


def of_geneformer(folder):
    """Cells of which each gene is deleted."""
    genes = [ensembl(number) for number in range(1, 41)]
    write_cells(folder / "in.h5ad", cells_of(some_counts(NUM_RECORDS, len(genes)), genes))
    write_model(folder / "model", len(genes) + 4)
    options = {**write_genes(folder, genes), "model": "model", "perturb": "delete"}
    return "in.h5ad", options, "perturbations"


def of_llm_json(folder):
    runpy.run_path(str(EXAMPLES / "llm_json.py"))["main"](folder)
    rng = random.Random(0)
    with (folder / "in.csv").open("w") as file:
        rows = [(n, f"patient {n} coughs. " * rng.randint(1, 9)) for n in range(NUM_RECORDS)]
        csv.writer(file).writerows([("id", "note"), *rows])
    options = {"model": "model", "prompt": "prompt.jinja", "json_schema": "schema.json"}
    return "in.csv", {**options, "max_tokens": 64}, "rows_jsonl"


def of_pac(folder):
    write_npz(folder / "in.npz", noise(2, seconds=60), channels=("A", "B"))
    bands = {"phase_bands": [[30, 50]], "amplitude_bands": [[90, 120]]}
    return "in.npz", {**bands, "segment_seconds": 0.12, "permutations": 1000}, "parquet"


MADE = {"encoder": of_encoder, "geneformer": of_geneformer, "llm_json": of_llm_json, "pac": of_pac}
"""What 1,000 records of each workload are made of: its input, its options, an output."""


class SleepingWorkflow(GpuWorkflow):
    """A first run of a workload on the GPUs of a node, as anybody configures it; it sleeps."""

    def __init__(self, folder, environment, workload):
        Desk.__init__(self, folder, {**environment, "FEATUREMILL_QUIET": ""})
        self.spans_file = folder / "spans.txt"
        inputs, options, outputs = MADE[workload](folder)
        config = {"run": "test", "inputs": inputs, "workload": f"slept_{workload}"}
        config |= {"options": options, "outputs": outputs, "device": "cuda"}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))

    def planned(self, slots):
        """Plan a first run for so many slots; return the shards' costs."""
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        self.type(*self.words("plan", "--resources", f"gpu={slots}"))
        return [shard["cost"] for shard in json.loads(self.run_folder.plan.read_text())["shards"]]


def speed_up_of(costs, slots):
    """Return how much faster so many slots are than one that never starts up, where each one that
    is free takes the next shard."""
    total = slots * COMPUTING_SECONDS
    busy_until = [0.0] * slots
    for cost in costs:
        seconds = STARTUP_SECONDS + total * cost / sum(costs)
        heapq.heapreplace(busy_until, busy_until[0] + seconds)
    return total / max(busy_until)


@pytest.mark.slow
@pytest.mark.parametrize("workload", MADE)
def test_a_first_run_of_each_workload_has_work_for_every_slot(
    tmp_path, environment, gpu_node, hold, workload
):
    """By the shards that Snakemake plans, and by four GPUs that all are at work; no clock."""
    workflow = SleepingWorkflow(tmp_path, environment, workload)
    for slots, at_least in ((2, 1.9), (8, 7.5), (4, 3.8)):
        costs = workflow.planned(slots)
        assert len(costs) == 2 * slots
        speed_up = speed_up_of(costs, slots)
        print(f"{workload}, {slots} slots: {len(costs)} shards, {speed_up:.2f} times")
        assert speed_up >= at_least
    node = gpu_node(4)
    workflow.environment |= {k: node.environment[k] for k in node.environment.keys() - {"PATH"}}
    process = workflow.start(NO_REPORT, "--cores", "32", "--resources", "gpu=4")
    finish_held(hold, lambda: workflow.at_work() == node.uuids, process)
    check_spans(workflow.spans(), node.uuids, 4)
    assert most_of_all(workflow.spans()) == 4
    assert len(workflow.receipts()) == 8 and workflow.counts()["ok"] == NUM_RECORDS


def test_what_is_computed_needs_no_gpu_any_more(tmp_path, environment, gpu_node):
    """Not even where `keep: results` has removed the receipts: as on a login node, later."""
    node = gpu_node(1)
    workflow = GpuWorkflow(tmp_path, environment, node, 1)
    workflow.ask(keep="results")
    workflow()
    assert not (workflow.run_folder.root / "receipts").exists()
    node.gpus.clear()
    node.write()
    report = workflow.run_folder.root / "report.html"
    report.unlink()
    assert "have features:\n" in workflow(), "though nothing was merged"
    assert report.exists()
