"""gpu-local under stress, and what it costs. The observer (nvml/witness.c) runs inside the jobs."""

import itertools
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections import defaultdict

import pytest
from gpu_local import PACKAGE, Machine, processes_in
from leases import kill
from nvml_node import SOURCES
from programs import wait_for
from test_gpu_local import FOREIGN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

JOBS = """
    rule all:
        input: expand("{{n}}", n=range({count}))

    rule job:
        output: "{{n}}"
        resources: gpu=1
        shell: "{command} && touch {{output}}"
"""


@pytest.fixture
def machine_of(request, gpu_node, environment, tmp_path_factory):
    nodes = []

    def make(num_gpus):
        nodes[:] = nodes or [gpu_node(num_gpus)]
        machine = Machine(tmp_path_factory.mktemp("machine"), *nodes, environment)
        request.addfinalizer(machine.end_all)
        return machine

    return make


@pytest.fixture
def witness(tmp_path):
    """Return the observer's command for jobs of so many milliseconds, and its log."""
    program, log = tmp_path / "witness", tmp_path / "witness.log"
    compiler = [shutil.which("cc"), "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*compiler, "-o", program, SOURCES / "witness.c"], check=True)
    log.touch()
    run = uuid.uuid4()
    return lambda milliseconds: f"{program} {run} 1 {log} {milliseconds}", log


def spans_on_each_gpu(log):
    """Return the sorted (start, end) in seconds of the jobs of each GPU; a killed one has none."""
    got, spans = {}, defaultdict(list)
    for at, pid, what, gpu, _ in map(str.split, log.read_text().splitlines()):
        assert what != "TOO_MANY", "two jobs had one GPU"
        if what == "got":
            got[pid] = int(at) / 1e6
        else:
            spans[gpu].append((got[pid], int(at) / 1e6))
    return {gpu: sorted(pairs) for gpu, pairs in spans.items()}


def gaps(spans):
    return [after - end for (_, end), (after, _) in itertools.pairwise(spans)]


def test_two_snakemakes_side_by_side(machine_of, witness):
    command, log = witness
    machines = [machine_of(4), machine_of(4)]
    for machine in machines:
        machine.write(JOBS.format(count=40, command=command(200)))
    processes = [machine.start() for machine in machines]
    for process in processes:
        assert process.wait(1500) == 0, process.log.read_text()
    spans = spans_on_each_gpu(log)
    assert sorted(spans) == machines[0].node.uuids
    assert sum(map(len, spans.values())) == 80
    assert all(gap > 0 for of_gpu in spans.values() for gap in gaps(of_gpu)), "one at a time"
    between = sorted(gap for of_gpu in spans.values() for gap in gaps(of_gpu))
    print(f"seconds between two jobs of a GPU: median {statistics.median(between):.2f}")
    counts = [len(of_gpu) for of_gpu in spans.values()]
    assert max(counts) <= 2 * min(counts), "no GPU was idle while jobs waited"


def test_a_thousand_jobs_on_eight_gpus(machine_of, witness):
    command, log = witness
    machine = machine_of(8)
    machine.write(JOBS.format(count=1000, command=command(10)))
    start = time.monotonic()
    process = machine.start("--quiet", "rules", "progress")
    assert process.wait(1500) == 0, process.log.read_text()
    spans = spans_on_each_gpu(log)
    assert sum(map(len, spans.values())) == 1000
    assert sorted(spans) == machine.node.uuids
    assert all(gap > 0 for of_gpu in spans.values() for gap in gaps(of_gpu))
    print(f"1,000 jobs in {time.monotonic() - start:.0f} s")


def test_fifty_kills(machine_of, witness):
    """Whenever Snakemake is killed, its jobs end, all GPUs are free, and the next one goes on."""
    command, log = witness
    rng = random.Random(1)
    machine = machine_of(3)
    machine.write(JOBS.format(count=400, command=command(300)))
    killed_with_jobs = 0
    for _ in range(50):
        done = len(log.read_text().splitlines())
        process = machine.start("--rerun-incomplete", "--nolock")
        if rng.random() < 0.8:  # while jobs start, run and end
            more = rng.randint(1, 12)
            wait_for(lambda: len(log.read_text().splitlines()) >= done + more)  # noqa: B023
        time.sleep(rng.uniform(0, 0.5))
        killed_with_jobs += machine.leases.num_held() > 0
        kill(process)
        wait_for(lambda: machine.leases.num_held() == 0)
        wait_for(lambda: not processes_in(machine.folder))
    spans = spans_on_each_gpu(log)
    assert all(gap > 0 for of_gpu in spans.values() for gap in gaps(of_gpu))
    assert killed_with_jobs > 25
    machine.write(JOBS.format(count=4, command="true"))
    machine("--rerun-incomplete", "--nolock")
    assert [row.split()[3] for row in machine.leases.list()[1:]] == ["free"] * 3


def seconds_of(machine, words):
    """Return elapsed seconds, and CPU seconds of Snakemake and its jobs."""
    shutil.rmtree(machine.folder / ".snakemake", ignore_errors=True)
    log = machine.folder / "log"
    start = time.monotonic()
    command = [sys.executable, "-m", "snakemake", *words, "--nocolor"]
    about = {"cwd": machine.folder, "env": machine.leases.environment}
    with log.open("w") as file:
        process = subprocess.Popen(command, **about, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, log.read_text()
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime


def test_what_a_job_costs(machine_of):
    """Jobs of `true`: 200 of either executor in five runs, one after the other, and 8 with a
    process each. A run with one job is taken off."""
    machine = machine_of(4)
    ways = {
        "local": (40, ["--executor", "local"]),
        "gpu-local": (40, ["--executor", "gpu-local"]),
        "gpu-local --gpu-local-spawn": (8, ["--executor", "gpu-local", "--gpu-local-spawn"]),
    }
    costs = defaultdict(list)
    for number in range(5):
        for name, (count, words) in ways.items():
            if number and "spawn" in name:
                continue
            words = [*words, "--cores", "4", "--forceall"]
            machine.write(JOBS.format(count=1, command="true"))
            alone = seconds_of(machine, words)
            machine.write(JOBS.format(count=count + 1, command="true"))
            pairs = zip(seconds_of(machine, words), alone, strict=True)
            costs[name].append([(many - one) / count for many, one in pairs])
    for name, pairs in costs.items():
        wall, cpu = map(statistics.median, zip(*pairs, strict=True))
        print(f"{name}: {wall * 1000:.0f} ms and {cpu * 1000:.0f} ms of CPU a job")
    pairs = zip(costs["gpu-local"], costs["local"], strict=True)
    over = [ours - theirs for (_, ours), (_, theirs) in pairs]
    print(f"more than local: {statistics.median(over) * 1000:.0f} ms of CPU a job (paired)")
    assert statistics.median(over) < 0.25


def size(folder):
    """Return the bytes of the files in a folder but for bytecode."""
    files = (path for path in folder.rglob("*") if path.suffix != ".pyc" and not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.is_file())


@pytest.mark.parametrize("requirement", ["snakemake==9.11.*", "snakemake"])
def test_in_a_fresh_environment(gpu_node, environment, tmp_path, requirement):
    """With Snakemake alone: the oldest one that is supported, and the newest."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-qq", "--no-input"]
    if subprocess.run([*pip, requirement], check=False).returncode:
        pytest.skip("pip could not install Snakemake")
    freeze = [python, "-m", "pip", "freeze"]
    before = set(subprocess.check_output(freeze, text=True).splitlines())
    bytes_before = size(folder)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PACKAGE, check=True, capture_output=True)
    subprocess.run([*pip, next(tmp_path.glob("*.whl"))], check=True)
    after = set(subprocess.check_output(freeze, text=True).splitlines())
    added = {line.partition("==")[0].partition(" @")[0] for line in after - before}
    assert added == {"nvidia-ml-py", "snakemake-executor-plugin-gpu-local"}
    more = (size(folder) - bytes_before) / 1e6
    print(f"{requirement}: {len(before)} packages before, {len(added)} more, {more:.1f} MB")
    machine = Machine(tmp_path, gpu_node(4), environment, str(python))
    machine.leases.environment.pop("PYTHONPATH")
    machine.leases.environment["PATH"] = f"{python.parent}:{machine.leases.environment['PATH']}"
    machine.write(FOREIGN.replace("featuremill lease", "gpu-lease exec"))
    said = machine("--resources", "gpu=4")
    both, inside, part = machine.text("model.txt").splitlines()
    assert inside == both and part in both.split(",")
    assert machine.text("report.txt") == "[]\n" and said.count(" has GPU ") == 5
