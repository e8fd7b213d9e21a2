"""bench: real command lines on a CPU, what a GPU machine is told and given, and the gate that
silences wrong engines."""

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest
from bench import agenda, bars, conductor, gpu_tests, needs, processes, table
from bench.clock import Clock
from bench.place import Place
from bench.record import torch_tried
from bench.sample import Sample
from bench.shapes import SHAPES
from bench.stage import ROOM, Stage
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import fasta, is_running, random_records, wait_for

ROOT = Path(__file__).parents[1]
PEERS = {
    "fair-esm fp32",
    "fair-esm autocast bf16",
    "transformers sdpa fp32",
    "transformers sdpa bf16",
}
TF32 = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
"""As in NVIDIA's containers."""


def bench(environment, out, *arguments, way="--quick"):
    """Run `python -m bench.run …` as people do, from the root of the project."""
    words = ["bench.run", way, "--out", str(out), *arguments, "--scratch", str(out.parent)]
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


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

    assert set(found["measured"]) == {
        "compare tiny mean",
        "compare tiny per_residue",
        "same_bits tiny",
    }
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


def test_a_wrong_engine_fails_the_gate_and_no_speed_is_shown(environment, tmp_path):
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


def test_a_search_of_made_up_results_is_measured(environment):
    made_up = ("--records", "300", "--width", "8", "--queries", "2", "--outputs", "npy", "parquet")
    done = subprocess.run(
        [sys.executable, "-m", "bench.search", *made_up],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("300 x 8 float32, cosine, 2 queries: first ")


def test_each_step_of_writing_is_measured(environment, tmp_path):
    arguments = ["--folder", str(tmp_path), "--width", "32", "--batches", "2", "--passes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.journal", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
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


# The steps for a GPU.


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_parts_for_a_gpu_run_to_their_end_in_a_rehearsal(environment, tmp_path, gpu_node):
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
    by_part = {"a": [], "b": []}
    for name, step in found["measured"].items():
        assert "error" not in step, (name, step)
        by_part[step["part"]].append(name)
        assert table.measured(name, step) in done.stdout
    expected = {
        part: [agenda.rehearsed(step).name for step in of_part]
        for part, of_part in agenda.GPU_PARTS.items()
    }
    assert by_part == expected
    assert found["measured"]["gpu_tests"]["passed"] > 5
    assert found["measured"]["start_up tiny"]["device"] == "Simulated GPU"
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
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "in.fa"), str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
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
    words = ["--rehearse", "--part", "a", "--steps", table.TESTS, "--scratch", tmp_path / "scratch"]
    command = [sys.executable, "-m", "bench.run", *words, "--out", tmp_path / "record.json"]
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


def test_a_step_that_hangs_is_noted_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    given = SimpleNamespace(place="rehearsal", fasta="", engines=[], spoil=False)
    record = SimpleNamespace(content={"stages": {}, "measured": {}, "left_out": []}, saved=[])
    record.save = lambda: record.saved.append(json.dumps(record.content))
    run = conductor.Run(given, agenda.REHEARSAL, record, tmp_path)
    answers = [
        "import time; time.sleep(600)",
        "import json; input(); print(json.dumps({'found': {'tokens': 7}}))",
    ]
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
    measured = record.content["measured"]
    assert "so it was killed" in measured["kernels tiny"]["error"]
    assert measured["long_protein tiny"]["tokens"] == 7 and not answers
    assert "so it was killed" in record.saved[0] and "long_protein" not in record.saved[0]
    shown = capsys.readouterr().out
    assert shown.index("kernels tiny: error") < shown.index("long_protein tiny: tokens 7")


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
        monkeypatch.setattr(
            engine, "load", lambda name=engine.name, size=size: card.put(name, size)
        )
        monkeypatch.setattr(engine, "unload", lambda name=engine.name: card.taken.pop(name))
    for _ in range(2):
        for engine in stage.engines:
            stage.load(engine)
            assert engine.name in card.taken
    assert len(stage.engines) == 8
    assert card.most <= at_most * card.total
    assert ROOM == 0.3


def test_what_the_bar_for_a_gpu_is_about_leaves_plan_out():
    rows = [
        {"name": "fair-esm fp32", "tokens_per_second": 10.0},
        {
            "name": "featuremill fp16",
            "tokens_per_second": 80.0,
            "tokens_per_second_of_extract": 96.0,
        },
        {"name": "featuremill fp16, GPU only", "tokens_per_second": 100.0},
    ]
    found = {"shape": "150M", "output": "mean", "dtype": "fp16", "matmul_tflops": [], "rows": rows}
    first, *_, over = bars.of_comparison(found)
    assert first == bars.Bar("fp16 extract without plan, share of GPU only", 0.96, 0.95, True)
    assert over.what == "fp16 over fair-esm fp32 (×)" and over.value == 8  # a peer reads its input


@pytest.mark.parametrize(("version", "is_tried"), [("2.13.0+cu130", True), ("2.99.1", False)])
def test_a_torch_that_nobody_tried_is_named(version, is_tried, monkeypatch):
    monkeypatch.setattr("torch.__version__", version)
    told = torch_tried()
    assert told["version"] == version.partition("+")[0] and told["is_tried"] == is_tried
    record = json.loads(next((ROOT / "bench/results").glob("*-cpu.json")).read_text())
    said = table.head(record | {"torch": told})
    assert (f"torch 2.99.1 is none of those that were tried ({told['tried']})" in said) != is_tried


# What a machine without a network is given, and told.


def test_nothing_of_the_benchmark_is_found_in_tests():
    for path in (ROOT / "bench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            assert (module or "").partition(".")[0] != "tests", path


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
    files = [str(ROOT / name) for name in gpu_tests.files()]
    assert len(files) >= 7
    done = subprocess.run(
        [sys.executable, "-c", ONLY, ",".join(refused), modules, *files],
        cwd=ROOT,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Each is asked for by name, so that a sentence can say which is missing.
    assert not needs.lacking(needs.THERE | needs.BROUGHT)


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
    done = subprocess.run(
        [sys.executable, "-S", "-m", "bench.run", "--gpu"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "lacks numpy, pyarrow" in line and "an image that has torch with CUDA." in line
    said = needs.sentence({"esm": "fair-esm"}, {"pyarrow": "pyarrow"})
    assert "lacks pyarrow, fair-esm; " in said and '`make bench-wheels WHEELS="pyarrow"`' in said
    assert needs.lacking({"no.such": "no-such", "json": "json"}) == {"no.such": "no-such"}


SEEN = """
import pytest

def test_right(): pass
def test_wrong(): assert 1 == 2, "one is not two"
def test_left_out(): pytest.skip("needs 40 GB")
"""


def test_each_test_is_noted_as_it_ends(tmp_path, environment):
    (tmp_path / "test_it.py").write_text(SEEN)
    seen = tmp_path / "seen.jsonl"
    words = ("-m", "pytest", "-q", "-p", "bench.gpu_tests", "-p", "no:cacheprovider", "test_it.py")
    path = os.pathsep.join([str(ROOT), environment["PYTHONPATH"]])
    subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": path, gpu_tests.FILE: str(seen)},
        capture_output=True,
    )
    found = {each["test"].partition("::")[2]: each for each in gpu_tests._read(seen)}
    assert {name: each["outcome"] for name, each in found.items()} == {
        "test_right": "passed",
        "test_wrong": "failed",
        "test_left_out": "skipped",
    }
    assert "one is not two" in found["test_wrong"]["says"]
    assert "needs 40 GB" in found["test_left_out"]["says"]
    shown = table.measured("gpu_tests", {"failed": 1, "rows": [found["test_wrong"]], "error": "x"})
    assert "failed: test_it.py::test_wrong: AssertionError: one is not two" in shown
    seen.write_text(seen.read_text() + '{"test": "cut')
    assert len(gpu_tests._read(seen)) == 3
