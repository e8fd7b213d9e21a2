"""bench: real command lines on a CPU, what a GPU machine is told and given, and the gate that
silences wrong engines."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import conftest
import numpy as np
import pytest
import torch
from bench import (
    agenda,
    bars,
    beside,
    conductor,
    fp8,
    gpu_tests,
    hard_run,
    needs,
    processes,
    start_up,
    table,
    worker,
)
from bench.clock import Clock
from bench.place import Place
from bench.record import torch_tried
from bench.run import MINUTES, PARTS
from bench.sample import Sample
from bench.shapes import SHAPES
from bench.stage import ROOM, Ground, Stage
from esm2_models import fair_esm, relative_l2, save_fair_esm
from forks import Forked
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import Desk, fasta, is_running, python, ran, random_records, wait_for

from featuremill.base.devices import cpu
from featuremill.workload import weights
from featuremill.workloads.esm2 import matmul

ROOT = Path(__file__).parents[1]
PEERS = {"fair-esm fp32", "fair-esm autocast bf16"}
PEERS |= {"transformers sdpa fp32", "transformers sdpa bf16"}
FASTA = str(ROOT / "bench" / "ecoli.fasta.gz")
TF32 = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
"""As in NVIDIA's containers."""

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
needs_bf16 = pytest.mark.skipif(not cpu().has_bf16, reason="this CPU has no bf16 instructions")


def bench(environment, out, *arguments, way="--quick"):
    """Run `python -m bench.run …` as people do, from the root of the project."""
    words = ["bench.run", way, "--out", str(out), *arguments, "--scratch", str(out.parent)]
    return python("-m", *words, cwd=ROOT, env=environment)


def of_root(environment, *words):
    """Return what a module says, run from the root of the project."""
    return python("-m", *words, cwd=ROOT, env=environment, check=True).stdout.splitlines()


@pytest.mark.slow
def test_a_quick_run_judges_times_and_records_every_engine(environment, tmp_path):
    done = bench({**environment, **TF32, "HOME": str(tmp_path)}, tmp_path / "quick.json")
    assert done.returncode == 0, done.stderr
    # Where OpenVINO would keep whom it tells its makers of.
    assert not (tmp_path / "intel").exists()
    found = json.loads((tmp_path / "quick.json").read_text())
    assert found["complete"] and not found["left_out"]
    assert found["data"]["proteins"] == 400 and found["data"]["file"] == "ecoli.fasta.gz"
    assert {"machine", "code", "versions", "command", "started"} <= found.keys()

    stage = found["stages"]["tiny"]
    judged = {verdict["engine"] for verdict in stage["gate"]}
    assert {"featuremill fp32", *PEERS} <= judged
    assert not any(verdict["failures"] for verdict in stage["gate"])
    *others, last = (missing["name"] for missing in stage["missing"])
    assert last == "FAESM" and ("OpenVINO" in others) != ("OpenVINO fp32" in judged)
    assert "openvino" in found["versions"] or "OpenVINO" in others
    assert set(stage["load_seconds"]) == judged
    assert stage["float32_matmul_precision"] == "highest", "the reference would be TF32 on a GPU"

    measured = {"compare tiny mean", "compare tiny per_residue", "same_bits tiny"}
    assert set(found["measured"]) == measured
    for output in ("mean", "per_residue"):
        rows = found["measured"][f"compare tiny {output}"]["rows"]
        assert {row["name"] for row in rows} >= judged | {"GEMMs alone fp32"}
        for row in rows:
            assert len(row["seconds"]) == 1 and row["range"][0] <= row["tokens_per_second"]
            assert row["lengths"]["proteins"] and row["gflops_per_token"]
        for name in judged:
            assert name in done.stdout
        same = {json.dumps(row["lengths"]) for row in rows if bars.is_rival(row["name"])}
        assert len(same) == 1, "ours and OpenVINO compute the same proteins"
        (ours,) = [row for row in rows if row["name"] == "featuremill fp32"]
        (seconds,), (plan,) = ours["seconds"], ours["plan_seconds"]
        rate = ours["tokens"] / (seconds - plan)
        assert ours["tokens_per_second_of_extract"] == pytest.approx(rate, rel=0.01)


def test_a_wrong_engine_fails_the_gate_and_no_speed_is_shown(environment, tmp_path, forked):
    out = tmp_path / "spoiled.json"
    done = bench(environment, out, "--spoil", "--engines", "featuremill fp32")
    assert done.returncode == 1
    assert "the gate failed, so no speed is shown. tiny featuremill fp32" in done.stderr
    assert "outside" in done.stdout and "tokens/s" not in done.stdout
    found = json.loads(out.read_text())
    assert found["measured"] == {} and "gate_failed" in found and not found["complete"]
    gate = found["stages"]["tiny"]["gate"]
    assert "seconds" not in json.dumps(gate)
    assert [verdict["engine"] for verdict in gate] == ["fair-esm fp32", "featuremill fp32"]


@pytest.mark.usefixtures("forked")
def test_a_search_of_made_up_results_is_measured(environment):
    made_up = ("--records", "300", "--width", "8", "--queries", "2", "--outputs", "npy", "parquet")
    (line,) = of_root(environment, "bench.search", *made_up)
    assert line.startswith("300 x 8 float32, cosine, 2 queries: first ")


@pytest.mark.usefixtures("forked")
def test_each_step_of_writing_is_measured(environment, tmp_path):
    arguments = ["--folder", str(tmp_path), "--width", "32", "--batches", "2", "--passes", "2"]
    said = of_root(environment, "bench.journal", *arguments)
    rows = [line.split(" | ") for line in said if line.startswith("| ")]
    steps = [name.removeprefix("| ") for name, _, _ in rows]
    each = ["write alone", "commit", "all in turn"]
    assert [step for step in steps if step in each] == 2 * each
    assert "per residue, 1.08 MB a batch" in steps and "pooled, 0.01 MB a batch" in steps
    speeds = [float(told.rstrip(" |")) for _, *both in rows if "GB/s" not in both for told in both]
    assert len(speeds) == 2 * 2 * 8 and min(speeds) >= 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_step_that_a_cpu_has(environment, tmp_path):
    kinds = "compare,same_bits,start_up,peak_memory"
    done = bench(environment, tmp_path / "all.json", "--steps", kinds)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "all.json").read_text())["measured"]
    assert 0 < measured["start_up tiny"]["start_up_seconds"] < 60
    engines = {row["name"]: row["peak_rss_mb"] for row in measured["peak_memory tiny"]["rows"]}
    assert engines.keys() >= PEERS and min(engines.values()) > 50


def test_without_time_the_last_steps_are_left_out(environment, tmp_path):
    done = bench(environment, tmp_path / "late.json", "--minutes", "0")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "late.json").read_text())
    assert found["left_out"] == ["compare tiny mean", "compare tiny per_residue", "same_bits tiny"]
    assert "left out for lack of time: compare tiny mean" in done.stdout


@pytest.fixture
def random_weights(tmp_path):
    path = save_fair_esm(fair_esm(2, 64, 4), tmp_path / "random.pt")
    return weights.weights_of(weights.convert(str(path), tmp_path))


def test_products_in_fp8_are_rounded_row_by_row():
    torch.manual_seed(0)
    rows = torch.randn(51, 640) * torch.logspace(-8, 8, 51)[:, None]
    rows[7] = 0
    found, largest = fp8.rounded(rows), rows.abs().amax(1, keepdim=True)
    assert torch.equal(found[7], rows[7])
    # Half a unit in the last of three places; below 2⁻⁶ of e4m3 these are all 2⁻⁹ apart.
    most = torch.maximum(rows.abs() * 2**-4, largest / fp8.LARGEST * 2**-10)
    assert ((found - rows).abs() <= 1.001 * most).all()
    exact = matmul.Plain(torch.randn(320, 640), torch.randn(320))
    narrow, usual = fp8.Rounded(exact), rows[25:26]
    assert 2e-2 < relative_l2(narrow(usual), exact(usual)) < 5e-2
    expected = torch.nn.functional.gelu(exact(usual))
    assert 2e-2 < relative_l2(narrow.gelu(usual), expected) < 8e-2


@needs_bf16
def test_what_fp8_costs_is_told_by_product(random_weights):
    proteins = Sample().take(3_000)
    head, _, *lines, bound = fp8.against_fp32(random_weights, proteins).splitlines()
    assert "residues' L2" in head and bound.startswith("bound")
    l2 = {line[:20].strip(): float(line[20:].split()[0]) for line in lines}
    assert list(l2) == list(fp8.VARIANTS)
    assert l2["bf16"] < min(l2[name] for name in fp8.VARIANTS if name != "bf16")
    assert l2["fp8: qkv, up, down"] > max(l2["fp8: qkv"], l2["fp8: up"], l2["fp8: down"])
    assert lines[-1].endswith("pooled_cosine_min") and lines[0].endswith("none")


# The steps for a GPU.


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_parts_for_a_gpu_run_to_their_end_in_a_rehearsal(environment, tmp_path, gpu_node):
    """On a node with a GPU that somebody else is on: this process stands for whoever it is."""
    node = gpu_node(1)
    node.run_on(node.uuids[0], os.getpid())
    out = tmp_path / "rehearsal.json"
    engines = ("--engines", "featuremill,transformers sdpa fp32")
    done = bench({**environment, **node.environment}, out, *engines, way="--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["complete"] and not found["left_out"] and "gate_failed" not in found
    # It says that it is none, and names no GPU as what it measured.
    assert found["rehearsal"] and "gpu" not in found["machine"]
    assert "GPU only" not in done.stdout and ", CPU only" in done.stdout
    by_part = {part: [] for part in agenda.GPU_PARTS}
    for name, step in found["measured"].items():
        assert "error" not in step, (name, step)
        by_part[step["part"]].append(name)
        assert table.measured(name, step) in done.stdout
    for part, steps in agenda.GPU_PARTS.items():
        assert by_part.pop(part) == [agenda.rehearsed(step).name for step in steps]
    assert not by_part
    assert found["measured"]["gpu_tests"]["passed"] > 5
    start_up = found["measured"]["start_up tiny"]
    assert start_up["device"] == "Simulated GPU" and 0 < start_up["bare_load_seconds"] < 60
    assert "beyond a bare load" in start_up["bars"][0]["what"]
    for name, stage in found["stages"].items():
        judged = [verdict["engine"] for verdict in stage["gate"]]
        assert judged[0] == "fair-esm fp32" and "featuremill fp16" in judged, name
        assert "transformers sdpa bf16" not in judged
    for step in found["measured"].values():
        for bar in step.get("bars", []):
            assert "GPU only" not in bar["what"]
    compared = found["measured"]["compare tiny mean"]
    assert any("extract without plan" in bar["what"] for bar in compared["bars"])


def test_a_whole_extract_takes_the_gpu_that_the_benchmark_is_on(
    environment, tmp_path, gpu_node, monkeypatch
):
    """It would wait for ever for whoever started it."""
    node = gpu_node(2)
    node.run_on(node.uuids[0], os.getpid())
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    environment = {**environment, **node.environment}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = (
        "import json, sys; from pathlib import Path; "
        "from bench import start_up; from bench.clock import Clock; "
        "from bench.place import keep_to_one_gpu; keep_to_one_gpu(); "
        "asked = start_up.Asked('composition', 'cuda', None); "
        "found = start_up.timed(*map(Path, sys.argv[1:]), asked, Clock(1)); "
        "print(json.dumps(found))"
    )
    (tmp_path / "in.fa").write_text(fasta(random_records(20)))
    done = python("-c", code, tmp_path / "in.fa", tmp_path / "run", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["device"] == "Simulated GPU"
    (receipt,) = (tmp_path / "run" / "receipts").rglob("*.json")
    (device,) = json.loads(receipt.read_text())["devices"]
    assert device["uuid"] == node.uuids[0]


def test_jobs_of_tests_on_a_gpu_do_not_wait_for_pytest(monkeypatch):
    """pytest itself has a CUDA context by then, and no lease."""
    monkeypatch.setattr(os, "environ", {"PYTHONPATH": "src", "FEATUREMILL_WAIT": "1"})
    conftest.pytest_configure(SimpleNamespace(option=SimpleNamespace(markexpr="gpu")))
    assert os.environ["FEATUREMILL_POLICY"] == "memory" and "FEATUREMILL_WAIT" not in os.environ
    assert os.environ["OMP_NUM_THREADS"] == "4", "sixteen processes would wait for each other"
    assert Path(os.environ["PYTHONPATH"]).is_absolute(), "jobs run in other folders"


SLEEPS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_who_is_too_late_is_killed_with_all_that_it_started(tmp_path):
    child = processes.Child([sys.executable, "-c", SLEEPS])
    grandchild = int(child.answer(60))
    with pytest.raises(processes.ChildError, match="no answer within 0 s, so it was killed"):
        child.answer(0)
    child.close()
    wait_for(lambda: not is_running(grandchild))
    log = tmp_path / "log"
    with pytest.raises(processes.ChildError, match="not done within 0 s, so it was killed"):
        processes.run([sys.executable, "-c", SLEEPS], 0, log)
    child = processes.Child([sys.executable, "-c", "raise SystemExit('no memory')"], log)
    with pytest.raises(processes.ChildError, match="the process ended with 1: no memory"):
        child.answer(60)
    child.close()


def test_of_a_process_that_has_ended_nobody_is_looked_for(tmp_path, monkeypatch):
    """Its number may be a stranger's by then."""
    monkeypatch.setattr(processes, "descendants", pytest.fail)
    assert processes.run([sys.executable, "-c", ""], 60, tmp_path / "log") == 0


def test_who_ends_the_benchmark_ends_the_tests_that_it_runs(tmp_path):
    """As `timeout` does; before, pytest went on alone on the GPU."""
    words = ["--rehearse", "--part", "tests", "--steps", table.TESTS]
    words += ["--scratch", tmp_path / "scratch", "--out", tmp_path / "record.json"]
    command = [sys.executable, "-m", "bench.run", *words]
    found = []

    def has_tests():
        assert running.poll() is None
        found[:] = processes.descendants(running.pid)
        with contextlib.suppress(OSError):  # one of them has ended this moment
            return any(b"bench.gpu_tests" in Path(f"/proc/{n}/cmdline").read_bytes() for n in found)

    with subprocess.Popen(command, cwd=ROOT) as running:
        wait_for(has_tests)
        running.send_signal(signal.SIGTERM)
    assert running.returncode == 128 + signal.SIGTERM
    wait_for(lambda: not any(map(is_running, found)))


@pytest.fixture
def rehearsal(tmp_path):
    """Return a run, its record, and what that was each time it was written down."""
    given = SimpleNamespace(place="rehearsal", fasta="", engines=[], spoil=False)
    content, saved = {"stages": {}, "measured": {}, "left_out": []}, []
    record = SimpleNamespace(content=content, save=lambda: saved.append(json.dumps(content)))
    return conductor.Run(given, agenda.REHEARSAL, record, tmp_path), content["measured"], saved


def test_a_step_that_hangs_is_noted_and_the_next_one_runs(rehearsal, monkeypatch, capsys):
    run, measured, saved = rehearsal
    answers = ["import json; input(); print(json.dumps({'found': {'tokens': 7}}))"]
    answers.insert(0, "import time; time.sleep(600)")
    start = processes.Child

    def worker(_command):
        return start([sys.executable, "-c", answers.pop(0)])

    monkeypatch.setattr(conductor, "Child", worker)
    late, after = (
        agenda.Step("kernels", "tiny", needs_seconds=0, at_most_seconds=0.01),
        agenda.Step("long_protein", "tiny", needs_seconds=0, at_most_seconds=60),
    )
    run.part("a", [late, after], Clock(5))
    run.close()
    assert "so it was killed" in measured["kernels tiny"]["error"]
    assert measured["long_protein tiny"]["tokens"] == 7 and not answers
    assert "so it was killed" in saved[0] and "long_protein" not in saved[0]
    shown = capsys.readouterr().out
    assert shown.index("kernels tiny: error") < shown.index("long_protein tiny: tokens 7")


TELLS = """
import json, time
input()
for passes in (1, 2):
    rows = [{"budget": 8192, "tokens_per_second": 10.0 * passes}]
    print(json.dumps({"found": {"rows": rows}, "is_last": False}), flush=True)
time.sleep(600)
"""


def test_of_a_step_that_is_cut_off_the_last_pass_is_kept(rehearsal, monkeypatch, capsys):
    """And written down when it is known: who lends the machine may end this process as well."""
    run, measured, saved = rehearsal
    child = processes.Child([sys.executable, "-c", TELLS])
    monkeypatch.setattr(conductor, "Child", lambda _: child)
    answer = child.answer

    def late(seconds):
        """Wait for what it tells, and not for what it does not."""
        return answer(60 if len(saved) < 2 else 0)

    monkeypatch.setattr(child, "answer", late)
    run.part("a", [agenda.Step("budget_sweep", "tiny", needs_seconds=0)], Clock(5))
    run.close()
    found = measured["budget_sweep tiny"]
    assert found["rows"][0]["tokens_per_second"] == 20 and "so it was killed" in found["error"]
    assert found["part"] == "a" and "took_seconds" in found
    assert ["10.0" in each for each in saved] == [True, False, False]
    assert "error" not in saved[1]
    shown = capsys.readouterr().out
    assert shown.index("20.0") < shown.index("cut off, these are kept: no answer within")


def test_of_a_step_without_a_shape_that_fails_what_it_told_is_kept(tmp_path, monkeypatch):
    folders = []

    def step(ground, settings, clock):
        folders.append(ground.folder)
        assert ground.folder.is_dir() and clock.left() > 0 and settings.num_passes == 1
        ground.so_far({"rows": [1]})
        raise RuntimeError("the card\nis gone")

    monkeypatch.setitem(agenda.GROUND_KINDS, "training", step)
    setting = worker.Setting("rehearsal", FASTA, str(tmp_path), [], False)
    order = worker.Order(agenda.Step("training"), agenda.REHEARSAL, 60, None)
    told = []
    answer = worker.Worker(setting).carry_out(order, told.append)
    assert [each.found for each in told] == [{"rows": [1]}] and not told[0].is_last
    assert answer.error == "RuntimeError: the card is gone" and answer.is_last
    assert not folders[0].exists()


def test_of_ways_side_by_side_one_that_fails_ends_no_other(tmp_path, monkeypatch):
    calls = []

    def way(name, seconds):
        def compute():
            calls.append(name)
            if name == "broken" and calls.count(name) == 2:
                raise MemoryError("no room")
            now[0] += seconds
            return 100, np.array([1.0, len(calls)], np.float32)

        return compute

    now = [0.0]
    monkeypatch.setattr(beside, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    ways = {"first": way("first", 2), "broken": way("broken", 1), "slow": way("slow", 11)}
    monkeypatch.setitem(beside.CASES, "esmc", lambda *_: beside.Case("tokens", ways))
    ground = Ground(Place("rehearsal"), tmp_path, Path())
    told = []
    ground.so_far = lambda found: told.append(json.loads(json.dumps(found)))
    found = beside.measure("esmc", ground, 2, Clock(5))
    assert calls == ["first", "broken", "slow", "first", "broken", "first"]
    assert found["error"] == "failed: broken"
    first, broken, slow = found["rows"]
    assert (first["seconds"], first["per_second"], first["off"]) == ([2, 2], 50, 3.5)
    assert broken["error"] == "MemoryError: no room" and broken["seconds"] == [1]
    assert slow["seconds"] == [11] and slow["per_second"] == 9.1
    assert [len(each["rows"][0]["seconds"]) for each in told] == [1, 1, 2]
    shown = table.measured("esmc", found)
    assert "MemoryError: no room" in shown and "tokens/s" in shown
    record = {"started": "", "machine": {"gpu": "A card"}, "measured": {"esmc": found}}
    page = table.page([record])
    assert "| esmc | slow | 9 tokens | 0.2 |" in page and "GPU only" not in page


def test_speeds_of_a_rehearsal_are_put_into_no_page(tmp_path, capsys):
    record = tmp_path / "a.json"
    record.write_text(json.dumps({"rehearsal": "on a CPU"}))
    (tmp_path / "page.md").write_text(f"{table.START}kept\n{table.END}")
    done = python("-m", "bench.table", record, "--into", tmp_path / "page.md", cwd=ROOT)
    assert done.returncode == 2 and "a rehearsal mean nothing" in done.stderr
    assert "kept" in (tmp_path / "page.md").read_text()


def test_each_part_for_a_lent_gpu_fits_its_minutes():
    minutes = MINUTES["gpu"]
    assert minutes == 4 and tuple(agenda.GPU_PARTS) == PARTS
    kinds = {*agenda.KINDS, *agenda.GROUND_KINDS, table.TESTS, table.FORKING}
    for steps in agenda.GPU_PARTS.values():
        assert sum(step.needs_seconds for step in steps) <= 60 * minutes
        for step in steps:
            assert step.kind in kinds and step.needs_seconds <= step.at_most_seconds < 60 * minutes
            assert agenda.rehearsed(step).shape.startswith("tiny" if step.shape else "")


def test_the_worker_that_is_killed_is_one_that_computes():
    words = [sys.executable, "-c", "input()", hard_run.WORKER]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=pipe) as other,
        subprocess.Popen(words, stdin=pipe) as computing,
    ):
        wait_for(lambda: [*hard_run.workers(os.getpid())])
        assert [*hard_run.workers(os.getpid())] == [computing.pid] and other.poll() is None
        for process in (other, computing):
            process.communicate(b"\n")


def test_the_logs_of_a_test_that_hung_are_kept(tmp_path):
    (tmp_path / "a").mkdir()
    said = "Current thread 0x1 (most recent call first):\n  File x"
    (tmp_path / "a" / "job.log").write_text(said)
    (tmp_path / "b.txt").write_text("nothing")
    (text,) = gpu_tests.ends_of_logs(tmp_path)
    assert text.endswith("File x")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A worker that compares ours with the reference alone."""
    folder, engines = tmp_path_factory.mktemp("scratch"), ["featuremill bf16"]
    return worker.Worker(worker.Setting("rehearsal", FASTA, str(folder), engines, False))


def order(kind, **changes):
    settings = agenda.REHEARSAL._replace(**changes)
    return worker.Order(agenda.Step(kind, "tiny"), settings, 600, None)


@needs_bf16
def test_a_comparison_tells_its_judgement_and_each_pass(narrow):
    told = []
    last = narrow.carry_out(order("compare", num_passes=2), told.append)
    judged, first, second = told
    assert judged.found is None and len(judged.stage["gate"]) == 2 and judged.judged
    assert [each.found["passes"] for each in (first, second, last)] == [1, 2, 2]
    assert [each.is_last for each in (judged, first, second, last)] == [False] * 3 + [True]
    for number, each in ((1, first), (2, second)):
        assert {len(row["seconds"]) for row in each.found["rows"]} == {number}
        assert each.found["bars"] and json.dumps(each._asdict())


@needs_bf16
def test_each_form_of_products_is_measured_and_one_that_is_wrong_is_named(narrow, monkeypatch):
    class Wrong(matmul.Plain):
        name = "wrong"

        def __call__(self, rows):
            return super().__call__(rows) * 2

    usual = matmul.forms(torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(matmul, "forms", lambda *_: [*usual, Wrong])
    *right, wrong = narrow.carry_out(order("products"), lambda _: None).found["rows"]
    assert [row["products"] for row in right] == [form.name for form in usual]
    for row in right:
        assert row["tokens_per_second"] > 0 and row["rows"] >= 64
    assert wrong["products"] == "wrong" and "product on this CPU" in wrong["error"]
    assert "wrong" in table.measured("products tiny", {"rows": [*right, wrong]})


@needs_bf16
def test_the_memory_of_batches_stands_beside_its_estimate(narrow, monkeypatch):
    """A CPU counts no tensors: here each pass takes 3 MiB for each 8,192 tokens of its budget."""
    taken = iter([(5 + 3 * times) << 20 for _ in range(2) for times in (1, 2, 4, 8)])
    monkeypatch.setattr(Place, "allocated_bytes", lambda _: 5 << 20)
    monkeypatch.setattr(Place, "peak_bytes", lambda _: next(taken))
    monkeypatch.setattr(Place, "peak_reserved_bytes", lambda _: 64 << 20)
    told = []

    def tell(answer):
        told.append(len(answer.found["rows"]) if answer.found else 0)

    rows = narrow.carry_out(order("batch_memory"), tell).found["rows"]
    wanted = [*product(("mean", "per_residue"), (8_192, 16_896, 33_792, 67_584))]
    assert [(row["output"], row["budget"]) for row in rows] == wanted
    assert [row["allocated_mb"] for row in rows] == [3, 6, 12, 24] * 2
    assert {row["reserved_mb"] for row in rows} == {64}
    estimates = [row["estimated_mb"] for row in rows[:4]]
    assert estimates == sorted(estimates) and 0 < estimates[0] < rows[0]["with_weights_mb"]
    assert told == [0, 1, 2, 3, 4, 5, 6, 7, 8], "what is known is told at once"
    assert "estimated mb" in table.measured("batch_memory tiny", {"rows": rows})


def test_a_start_is_told_by_its_parts_with_kernels_to_compile_and_without(tmp_path, monkeypatch):
    receipts = [
        {"start_up_seconds": 9.0, "receipt_seconds": {"load": 8.0}, "load_seconds": {"torch": 2.0}},
        {"start_up_seconds": 5.0, "receipt_seconds": {"load": 4.0}, "load_seconds": {"new": 1.0}},
    ]
    folders = []

    def timed(_fasta, root, _asked, _clock, kernels):
        folders.append((root.name, kernels))
        return receipts[len(folders) - 1]

    monkeypatch.setattr(start_up, "timed", timed)
    monkeypatch.setattr(start_up, "_bare_load", lambda *_: (3.0, {"torch": 1.5}))
    monkeypatch.setattr(start_up.compileall, "compile_dir", lambda *_, **__: None)
    stage = Stage(SHAPES["tiny"], Place("rehearsal"), tmp_path, Sample())
    told = []
    stage.so_far = told.append
    found = start_up.start_up(stage, 1_000, Clock(1))
    assert [name for name, _ in folders] == ["cold", "warm"]
    assert folders[0][1] == folders[1][1], "the second one finds what the first one compiled"
    assert (found["start_up_seconds"], found["cold_start_up_seconds"]) == (5.0, 9.0)
    assert found["parts"] == [
        {"part": "load", "cold": 8.0, "warm": 4.0, "bare load": 0.0},
        {"part": "torch", "cold": 2.0, "warm": 0.0, "bare load": 1.5},
        {"part": "new", "cold": 0.0, "warm": 1.0, "bare load": 0.0},
    ]
    assert [each["start_up_seconds"] for each in told] == [9.0, 5.0]
    assert "torch   2.0   0.0        1.5" in table.measured("start_up tiny", found)


class Card:
    """Counts what stands in a GPU's memory, at its most."""

    def __init__(self, total):
        self.total, self.taken, self.most = total, {}, 0

    def put(self, name, size):
        self.taken[name] = size
        self.most = max(self.most, sum(self.taken.values()))
        assert self.most <= self.total, "out of memory"

    def free(self):
        return self.total - sum(self.taken.values()), self.total


@pytest.mark.parametrize(("gigabytes", "at_most"), [(80, 0.7), (40, 0.95)])
def test_engines_of_3b_leave_room_on_a_card(gigabytes, at_most, tmp_path, monkeypatch):
    card, shape = Card(gigabytes * 10**9), SHAPES["3B"]
    monkeypatch.setattr(Place, "free_memory", card.free)
    monkeypatch.setattr("gc.collect", int)  # among all that tests have imported it takes long
    stage = Stage(shape, Place("rehearsal"), tmp_path, Sample())
    card.put("reference", 4 * shape.num_weights())
    stage.subject.model = stage.subject.weights = True
    for engine in stage.engines:
        size = engine.bytes_a_weight * shape.num_weights()
        monkeypatch.setattr(engine, "load", partial(card.put, engine.name, size))
        monkeypatch.setattr(engine, "unload", partial(card.taken.pop, engine.name))
    for _ in range(2):
        for engine in stage.engines:
            stage.load(engine)
            assert engine.name in card.taken
    assert len(stage.engines) == 8 + cpu().has_bf16
    assert card.most <= at_most * card.total
    assert ROOM == 0.3


def row(name, rate, **more):
    return {"name": name, "tokens_per_second": rate, **more}


def test_what_the_bar_for_a_gpu_is_about_leaves_plan_out():
    rows = [
        row("fair-esm fp32", 10.0),
        row("featuremill fp16", 80.0, tokens_per_second_of_extract=96.0),
        row("featuremill fp16, GPU only", 100.0),
    ]
    found = {"shape": "150M", "output": "mean", "dtype": "fp16", "matmul_tflops": [], "rows": rows}
    first, *_, over = bars.of_comparison(found)
    assert first == bars.Bar("fp16 extract without plan, share of GPU only", 0.96, 0.95, True)
    assert over.what == "fp16 over fair-esm fp32 (×)" and over.value == 8  # a peer reads its input


@pytest.mark.parametrize(("gpu", "tokens", "share"), [
    (bars.H100, 337e3, 0.58),
    (bars.H200, 370e3, 0.65),
    ("NVIDIA H100 PCIe", None, None),
])  # fmt: skip
def test_each_gpu_has_bars_of_its_own(gpu, tokens, share):
    rows = [
        row("fair-esm fp32", 10e3),
        row("featuremill bf16", 330e3, tokens_per_second_of_extract=340e3),
        row("featuremill bf16, GPU only", 350e3, gflops_per_token=1.37),
    ]
    found = {"shape": "650M", "output": "mean", "gpu": gpu, "matmul_tflops": [798.0], "rows": rows}
    known = {bar.what: bar for bar in bars.of_comparison(found)}
    speed, mfu = (known.get(f"bf16 GPU only{what}") for what in (" (tokens/s)", ", MFU"))
    assert (speed and speed.bound, mfu and mfu.bound) == (tokens, share)
    assert not speed or speed.is_met == (gpu == bars.H100)


def test_a_start_up_is_held_against_what_was_measured_beside_it():
    found = {"start_up_seconds": 7.5, "bare_load_seconds": 4.0}
    (bar,) = bars.of_start_up("650M", found, on_gpu=True)
    assert bar == bars.Bar("start-up beyond a bare load (s, at most)", 3.5, 3.0, False)
    (bar,) = bars.of_start_up("8M", found, on_gpu=False)
    assert bar.value == 7.5 and bar.bound == 1.5
    assert bars.of_start_up("150M", found, on_gpu=False) == []


@pytest.mark.parametrize(("version", "is_tried"), [("2.13.0+cu130", True), ("2.99.1", False)])
def test_a_torch_that_nobody_tried_is_named(version, is_tried, monkeypatch):
    monkeypatch.setattr("torch.__version__", version)
    told = torch_tried()
    assert told["version"] == version.partition("+")[0] and told["is_tried"] == is_tried
    record = json.loads(next((ROOT / "bench/results").glob("*-cpu.json")).read_text())
    said = table.head(record | {"torch": told})
    assert (f"torch 2.99.1 is none of those that were tried ({told['tried']})" in said) != is_tried


# What a machine without a network is given, and told.


ONLY = """
import importlib.abc, sys
refused = set(sys.argv[1].split(","))
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in refused:
            raise ModuleNotFoundError(f"{name} is not brought", name=name)
sys.meta_path.insert(0, Refuse())
for name in sys.argv[2].split(","):
    __import__(name)
import pytest
sys.exit(pytest.main(["-q", "--collect-only", "-m", "gpu", "-p", "pytest_timeout",
                      "-p", "no:cacheprovider", *sys.argv[3:]]))
"""


def with_what_they_need(names):
    found, waiting = set(), list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            needed = map(Requirement, metadata.requires(name) or ())
            markers = [(each.name, each.marker) for each in needed]
            waiting += [n for n, marker in markers if not marker or marker.evaluate({"extra": ""})]
    return found


def test_benchmark_and_gpu_tests_import_what_is_brought_and_no_more(environment):
    there = with_what_they_need(needs.THERE.values())
    brought = set(map(canonicalize_name, needs.BROUGHT.values()))
    refused = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & (there | brought | {"featuremill"})
    }
    assert {"snakemake", "pandas", "h5py", "altair", "psutil"} <= refused
    modules = "bench.run,bench.conductor,bench.worker,bench.child,bench.engines.hugging_face"
    files = [str(ROOT / name) for name in gpu_tests.files(is_here=False)]
    assert len(files) >= 7
    only_here = {*gpu_tests.files(is_here=True)} - {*gpu_tests.files(is_here=False)}
    assert only_here == {*gpu_tests.MORE_NEEDS}, "a file has no test for a GPU any more"
    bare = {**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = python("-c", ONLY, ",".join(refused), modules, *files, cwd=ROOT, env=bare)
    assert done.returncode == 0, done.stdout + done.stderr
    # Each is asked for by name, so that a sentence can say which is missing.
    assert not needs.lacking(needs.THERE | needs.BROUGHT)


@needs_git
def test_what_travels_is_small():
    """Wheels are smaller than what they unpack."""
    unpacked = sum(
        Path(file.locate()).stat().st_size
        for name in needs.BROUGHT.values()
        for file in metadata.files(name)
        if file.suffix != ".pyc" and Path(file.locate()).is_file()
    )
    assert not {"pyarrow", "torch", "triton", "numpy"} & set(needs.BROUGHT.values())
    assert (needs.tracked_bytes() + unpacked) / 2**20 < needs.MOST_MIB
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "$$($(BIN)/python -m bench.needs) $(WHEELS)" in makefile


def test_what_is_missing_is_said_before_anything_runs():
    """With an interpreter that has nothing but itself."""
    done = python("-S", "-m", "bench.run", "--gpu", cwd=ROOT, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "lacks numpy, pyarrow" in line and "an image that has torch with CUDA." in line
    said = needs.sentence({"esm": "fair-esm"}, {"pyarrow": "pyarrow"})
    assert "lacks pyarrow, fair-esm; " in said and '`make bench-wheels WHEELS="pyarrow"`' in said
    assert needs.lacking({"no.such": "no-such", "json": "json"}) == {"no.such": "no-such"}


def bare_interpreter(folder):
    """Return a Python that has what an image for work with GPUs has, and nothing else."""
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for name in with_what_they_need([*needs.THERE.values(), "pip"]):
        found = metadata.distribution(name)
        for part in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (site / part).exists():
                (site / part).symlink_to(found.locate_file(part))
    return folder / "bin"


@needs_git
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_recipe_for_a_machine_without_a_network(tmp_path):
    """As the README has it, in another folder; on a CPU the benchmark says that it needs a GPU."""
    pytest.importorskip("pip")
    page = (ROOT / "bench/README.md").read_text("utf-8")
    recipe = page.partition("## A GPU machine without a network")[2]
    gather, typed, *_ = re.findall(r"```bash\n(.*?)```", recipe, re.DOTALL)
    assert gather.startswith("make bench-wheels ")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    project = tmp_path / "project"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, project / name)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    words = ["make", "bench-wheels", f"WHEELS_PYTHON={version}", f"PYTHON={sys.executable}"]
    made = ran(*words, cwd=project)
    if "No matching distribution" in made.stderr or "Connection" in made.stderr:
        pytest.skip("pip could not gather the wheels")
    assert made.returncode == 0 and "travel" in made.stdout, made.stderr
    shutil.rmtree(project / ".venv")
    path = f"{bare_interpreter(tmp_path / 'image')}{os.pathsep}{os.environ['PATH']}"
    install, settings, first, second, tests = typed.strip().splitlines()
    rehearsed = "--rehearse --part bits --steps same_bits --engines 'featuremill fp32'"
    script = [
        f"set -e\n{install}\n{settings}",
        f"set +e\n{first}; test $? = 2 || exit 1\n{second}; test $? = 2 || exit 1\nset -e",
        f"{tests.replace('-m gpu', '-m gpu --collect-only')} -q",
        first.replace("--gpu --part small,large", rehearsed),
    ]
    environment = {"PATH": path, "HOME": str(tmp_path)}
    done = ran("bash", "-c", "\n".join(script), cwd=project, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("is a build for CPUs; take one for CUDA.") == 2, done.stderr
    assert "tests/test_kernels.py::test_rotary_kernel" in done.stdout
    assert json.loads((project / "speed.json").read_text())["complete"]


def test_steps_on_a_machine_without_a_network_have_limits_and_logs(tmp_path):
    """What bench/unpack.sh says of them."""
    (tmp_path / "made" / "site" / "bin").mkdir(parents=True)
    (tmp_path / "made" / "site" / "brought.py").write_text("print('brought along')")
    (tmp_path / ".dev").mkdir()
    with tarfile.open(tmp_path / ".dev" / "site.tar.xz", "w:xz") as packed:
        packed.add(tmp_path / "made" / "site", "site")
    script = (
        f". {shlex.quote(str(ROOT))}/bench/unpack.sh; step right 60 python3 -m brought; "
        "step wrong 60 false; step late 0.01 sleep 600; step last 60 echo done"
    )
    given = {"OUT": str(tmp_path / "out"), "UNPACKED": str(tmp_path / "unpacked")}
    done = ran("bash", "-c", script, cwd=tmp_path, env={**os.environ, **given})
    said = re.sub(r" after \d+ s; at \d+ s", "", done.stdout)
    assert said.splitlines() == [
        *("== right: status 0", "brought along", "== wrong: status 1"),
        *("== late: status 124", "== last: status 0", "done"),
    ]
    assert (tmp_path / "out" / "right.log").read_text() == "brought along\n"


SEEN = """
import pytest

def test_right(record_property): record_property("l2", 2e-7)
def test_wrong(): assert 1 == 2, "one is not two"
def test_left_out(): pytest.skip("needs 40 GB")
"""


def test_a_program_that_is_cut_off_tells_what_it_had_said(tmp_path, environment, monkeypatch):
    wait = Forked.wait

    def cut_off(process, timeout=None):
        status = wait(process, timeout)
        if timeout is not None:
            raise KeyboardInterrupt
        return status

    monkeypatch.setattr(Forked, "wait", cut_off)
    with pytest.raises(KeyboardInterrupt) as stopped:
        Desk(tmp_path, environment).type("featuremill", "status", "results/nowhere")
    assert "results/nowhere" in stopped.value.__notes__[0]


def test_each_test_is_noted_as_it_ends(tmp_path, environment):
    (tmp_path / "test_it.py").write_text(SEEN)
    seen = tmp_path / "seen.jsonl"
    words = ("-m", "pytest", "-q", "-p", "bench.gpu_tests", "-p", "no:cacheprovider", "test_it.py")
    path = os.pathsep.join([str(ROOT), environment["PYTHONPATH"]])
    environment = {**environment, "PYTHONPATH": path, gpu_tests.FILE: str(seen)}
    python(*words, "-n", "2", cwd=tmp_path, env=environment)
    every = gpu_tests._read(seen)
    begun, ended = (each for each in every if each["test"].endswith("::test_right"))
    assert (begun["outcome"], ended["outcome"]) == (gpu_tests.BEGUN, "passed")
    assert 0 <= begun["began_seconds"] < 1000
    found = {each["test"].partition("::test_")[2]: each for each in every}
    outcomes = {"right": "passed", "wrong": "failed", "left_out": "skipped"}
    assert {name: each["outcome"] for name, each in found.items()} == outcomes
    assert len(every) == 6 and found["right"]["l2"] == 2e-7
    assert "one is not two" in found["wrong"]["says"]
    assert "test_it.py:5" in found["wrong"]["trace"]
    assert "needs 40 GB" in found["left_out"]["says"]
    shown = table.measured("gpu_tests", {"failed": 1, "rows": [found["wrong"]], "error": "x"})
    assert "failed: test_it.py::test_wrong: AssertionError: one is not two" in shown
    running = json.dumps({"test": "test_it.py::test_long", "outcome": gpu_tests.BEGUN})
    seen.write_text(seen.read_text() + running + '\n{"test": "cut')
    whole = gpu_tests._summary(seen)
    assert [whole[kind] for kind in gpu_tests.ENDS] == [1, 1, 1]
    assert "not ended: test_it.py::test_long" in table.measured("gpu_tests", whole)
    assert "test_it.py::test_right, seconds" in table.measured("gpu_tests", whole)
