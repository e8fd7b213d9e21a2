"""gpu-local beside Snakemake's local executor: the same files, statuses and ways to stop. And what
it gives to other users, to conda, to containers, and to featuremill's own rules."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from gpu_local import PACKAGE, Machine, processes_in
from leases import NOBODY, kill
from programs import PATIENCE_SECONDS, wait_for
from test_containers import stand_in_for_conda
from test_gpu_local import LONG
from test_gpu_workflow import GpuWorkflow, finish_held

from featuremill.lease import slots

pytestmark = pytest.mark.slow


@pytest.fixture
def machine_of(request, gpu_node, environment, tmp_path):
    """Return a function that makes folders for workflows, all on one node."""
    nodes = []

    def make(name, *gpus, parent=tmp_path, **more):
        (parent / name).mkdir()
        nodes[:] = nodes or [gpu_node(*gpus)]
        machine = Machine(parent / name, *nodes, environment, **more)
        request.addfinalizer(machine.end_all)
        return machine

    return make


PARITY = """
    rule all:
        input: "joined", "shadowed", "kept", "late", "picked"

    rule flaky:
        output: "flaky"
        log: "flaky.log"
        retries: 1
        resources: gpu=lambda wildcards, attempt: attempt
        shell:
            "echo {resources.gpu} >> attempts; cp attempts {log};"
            "[ $(wc -l < attempts) = 2 ]; touch {output}"

    rule fails:
        output: "failed"
        resources: gpu=1
        shell:
            "echo once more >> failures; echo half > {output};"
            "test -e is_mended; echo whole > {output}"

    rule late:
        input: "failed"
        output: "late"
        resources: gpu=1
        shell: "cp {input} {output}"

    rule first:
        output: temp("first")
        group: "pair"
        resources: gpu=1
        shell: "echo first > {output}"

    rule second:
        input: "first", "flaky"
        output: protected("joined")
        group: "pair"
        resources: gpu=2
        shell: "cat {input} > {output}; echo second >> {output}"

    rule shadowed:
        output: "shadowed"
        shadow: "minimal"
        resources: gpu=1
        shell: "touch litter; pwd | grep -c shadow > {output}"

    rule kept:
        output: directory("kept")
        benchmark: "times/kept.tsv"
        resources: gpu=1
        run:
            Path(output[0]).mkdir()
            Path(output[0], "file").write_text("of a run")

    checkpoint picks:
        output: directory("picks")
        resources: gpu=1
        shell: "mkdir {output}; touch {output}/a {output}/b"

    rule copy:
        output: "copies/{name}"
        resources: gpu=1
        shell: "echo {wildcards.name} > {output}"

    rule picked:
        input:
            lambda wildcards: [
                f"copies/{path.name}" for path in Path(checkpoints.picks.get().output[0]).glob("?")
            ]
        output: "picked"
        shell: "sort {input} > {output}"
"""


def tree(folder):
    """Return the files of a workflow and what they have; of a benchmark, that it is there."""
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    others = {".snakemake", ".snakemake_timestamp"}
    names = [name for name in names if name.parts[0] != "tmp" and not {*name.parts} & others]
    names = [name for name in names if not name.name.startswith("log")]
    return {str(n): "" if n.suffix == ".tsv" else (folder / n).read_text() for n in names}


def test_it_runs_a_workflow_as_the_local_executor_does(machine_of):
    """Dry runs, --keep-going, retries, groups, shadow, temp and protected files, directories,
    benchmarks, checkpoints."""
    ours, theirs = machine_of("gpu-local", 4), machine_of("local")
    for machine in (ours, theirs):
        machine.write(PARITY)
    for words, status in ((["-n"], 0), (["--keep-going", "--retries", "2"], 1), ([], 0)):
        if status == 0 and not words:
            for machine in (ours, theirs):
                (machine.folder / "is_mended").touch()
        said = ours(*words, status=status)
        theirs(*words, "--executor", "local", status=status)
        mine, other = tree(ours.folder), tree(theirs.folder)
        assert not {name for name in mine | other if mine.get(name) != other.get(name)}
        assert ours.leases.num_held() == 0
        assert ("has GPU" in said) == ("-n" not in words)
    del mine["Snakefile"]
    expected = {"failures": "once more\n" * 4, "joined": "first\nsecond\n", "shadowed": "1\n"}
    expected |= {"kept/file": "of a run", "copies/a": "a\n", "copies/b": "b\n", "picked": "a\nb\n"}
    expected |= dict.fromkeys(("attempts", "flaky.log"), "1\n2\n")
    expected |= dict.fromkeys(("failed", "late"), "whole\n")
    empty = ("flaky", "is_mended", "times/kept.tsv", "picks/a", "picks/b")
    assert mine == expected | dict.fromkeys(empty, "")
    assert not (ours.folder / "joined").stat().st_mode & 0o222, "it is protected"


def test_ctrl_c_ends_jobs_and_frees_their_gpus(machine_of):
    """As a terminal sends it, to all processes of the group. What files stay is as in `local`."""
    left = []
    for name, words in (("gpu-local", ()), ("local", ("--executor", "local"))):
        machine = machine_of(name, 3)
        machine.write(LONG)
        machine.write("import time; open(snakemake.output[0], 'w'); time.sleep(1000)", "script.py")
        process = machine.start(*words)
        for output in ("0", "1", "script"):
            wait_for((machine.folder / output).exists)
        assert machine.leases.num_held() == (0 if words else 3)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 1
        assert machine.leases.num_held() == 0
        wait_for(lambda: not processes_in(machine.folder))  # noqa: B023
        assert not list(machine.folder.glob("tmp/gpu-local-*"))
        left.append(tree(machine.folder))
    assert left[0] == left[1]


def test_what_was_incomplete_after_a_kill_is_run_again(machine_of):
    machine = machine_of("killed", 2)
    machine.write(LONG)
    process = machine.start("0", "1")
    for name in ("0", "1"):
        wait_for((machine.folder / name).exists)
    kill(process)
    wait_for(lambda: machine.leases.num_held() == 0)
    machine("--unlock")
    machine.write(LONG.replace("sleep 1000 > {output}; ", ""))
    said = machine.start("0", "1")
    assert said.wait(PATIENCE_SECONDS) == 1
    assert "IncompleteFilesException" in said.log.read_text()
    machine("0", "1", "--rerun-incomplete")
    assert machine.text("0") == machine.text("1") == "went on\n"


SHARED = """
    rule all:
        input: expand("{n}", n=range(int(config["jobs"])))

    rule held:
        output: "{n}"
        resources: gpu=1
        shell: "echo $CUDA_VISIBLE_DEVICES > {output}.gpu; cat goes_on; id -u > {output}"
"""


@pytest.fixture
def open_folder():
    with tempfile.TemporaryDirectory(prefix="featuremill-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_two_users_respect_each_other(machine_of, open_folder):
    """The other user may read an interpreter and a checkout in the folder of root, no more."""
    caps = "+dac_read_search"  # for an interpreter and a checkout in the folder of root
    ids = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    as_nobody = ["setpriv", *ids, "--inh-caps", caps, "--ambient-caps", caps]
    if not shutil.which("setpriv") or subprocess.run([*as_nobody, "true"], check=False).returncode:
        pytest.skip("needs two users, and setpriv cannot start another one here")
    mine = machine_of("mine", 2, parent=open_folder)
    other = machine_of("other", parent=open_folder, prefix=as_nobody)
    for machine in (mine, other):
        machine.write(SHARED)
        os.mkfifo(machine.folder / "goes_on")
        subprocess.run(["chmod", "a+rwX", "-R", machine.folder], check=True)
    home = {"HOME": str(other.folder)}
    process = mine.start("--config", "jobs=1")
    wait_for(lambda: mine.has("0.gpu"))
    theirs = other.start("--config", "jobs=2", variables=home)
    started = wait_for(lambda: [n for n in "01" if other.has(f"{n}.gpu")])
    (waiting,) = {*"01"} - {*started}
    held = sorted([mine.text("0.gpu").strip(), other.text(f"{started[0]}.gpu").strip()])
    assert held == mine.node.uuids
    other.wait_for_line(theirs, r"waiting for 1 GPU \(.*\(root: rule held, jobid 1\)")
    other.wait_for_line(theirs, r"waiting for 1 GPU \(.*\(nobody: rule held, jobid \d\)")
    shown = [re.search(r" (root|nobody) ", row)[1] for row in mine.leases.list()[1:]]
    assert sorted(shown) == ["nobody", "root"]
    for machine, name in ((mine, "0"), (other, started[0]), (other, waiting)):
        wait_for(lambda: machine.has(f"{name}.gpu"))  # noqa: B023
        (machine.folder / "goes_on").write_text("")
    assert process.wait(PATIENCE_SECONDS) == theirs.wait(PATIENCE_SECONDS) == 0
    assert mine.text("0").split() == ["0"]
    assert other.text("0").split() == other.text("1").split() == [str(NOBODY)]
    assert mine.leases.num_held() == 0


IN_ENVIRONMENTS = """
    SEES = "echo $CUDA_VISIBLE_DEVICES ${{CONTAINER-none}} $(basename $CONDA_PREFIX) > {output}"

    rule all:
        input: "conda", "conda_script", "contained"

    rule conda:
        output: "conda"
        conda: "env.yaml"
        resources: gpu=1
        shell: SEES

    rule conda_script:
        output: "conda_script"
        conda: "env.yaml"
        resources: gpu=1
        script: "script.py"

    rule contained:
        output: "contained"
        container: "image.sif"
        resources: gpu=2
        shell: SEES
"""
APPTAINER = """#!/bin/sh
[ "$1" != --version ] || { echo apptainer version 1.4.0; exit; }
until [ "${1##*.}" = sif ]; do shift; done
shift
CONTAINER=apptainer CONDA_PREFIX=none exec "$@"
"""


def test_jobs_of_conda_and_of_containers_get_their_gpus(machine_of, environment, tmp_path):
    """With stand-ins; nothing here has met a conda or an Apptainer."""
    machine = machine_of("environments", 4)
    base = tmp_path / "base"
    machine.leases.environment |= stand_in_for_conda(base, environment)
    (base / "bin" / "apptainer").write_text(APPTAINER)
    (base / "bin" / "apptainer").chmod(0o755)
    machine.write(IN_ENVIRONMENTS)
    machine.write("dependencies: []\n", "env.yaml")
    machine.write("", "image.sif")
    machine.write(
        "import os\n"
        "with open(snakemake.output[0], 'w') as file:\n"
        "    file.write(os.environ['CUDA_VISIBLE_DEVICES'] + ' none ')\n"
        "    file.write(os.path.basename(os.environ['CONDA_PREFIX']))",
        "script.py",
    )
    machine("--sdm", "conda", "apptainer", "--resources", "gpu=4")
    (name,) = (path.name for path in (machine.folder / ".snakemake/conda").glob("*_"))
    for kind in ("conda", "conda_script"):
        gpu, container, prefix = machine.text(kind).split()
        assert (gpu in machine.node.uuids, container, prefix) == (True, "none", name)
    gpus, container, _ = machine.text("contained").split()
    assert len({*gpus.split(",")} & {*machine.node.uuids}) == 2 and container == "apptainer"
    assert machine.leases.num_held() == 0


@pytest.fixture
def with_and_without(tmp_path, environment, gpu_node):
    """Return a function that calls another one with a folder, an environment and options of
    Snakemake: for the default executor, then for gpu-local. The folder has the same path."""
    folder = tmp_path / "run"

    def compute(num_gpus, run):
        results = []
        for words in ((), ("--executor", "gpu-local")):
            node = gpu_node(num_gpus)
            folder.mkdir()
            paths = [str(PACKAGE / "src"), environment["PYTHONPATH"]]
            variables = {**environment, "PYTHONPATH": os.pathsep.join(paths)}
            results.append(run(folder, variables, node, words))
            shutil.move(folder, tmp_path / f"done{len(results)}")
        return results

    return compute


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_featuremills_own_rules_compute_the_same(with_and_without, tmp_path, device):
    """Each job finds that it holds a lease and takes no second GPU; and plan, from which all GPUs
    are hidden, plans for those of the run."""
    hold = tmp_path / "hold"

    def run(folder, environment, node, words):
        workflow = GpuWorkflow(folder, environment, node, 4, hold=str(hold))
        workflow.ask(device=device)
        held = []
        hold.touch()
        said = finish_held(
            hold,
            lambda: workflow.at_work() == node.uuids,
            workflow.start("--cores", "12", *words),
            meanwhile=lambda: held.extend(slot.name for slot in slots.holders(node.locks)),
        )
        names = [f"{uuid}@0of1" for uuid in node.uuids]
        assert sorted(held) == sorted([*names, *(f"{name}@0of1" for name in names if words)])
        assert said.count(" has GPU ") == (4 if words else 0)
        return workflow.data(), json.loads(workflow.run_folder.plan.read_text())

    default, under_ours = with_and_without(3, run)
    assert default == under_ours
