"""gpu-local: Snakemake's own processes, real jobs and locks, on a simulated node."""

import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gpu_local import PACKAGE, Machine, gpu_lease, processes_in
from leases import end, kill
from mounts import mounted
from nvml_node import Gpu, Slice
from programs import PATIENCE_SECONDS, is_running, wait_for

import featuremill


@pytest.fixture
def machine_of(request, gpu_node, environment, tmp_path):
    """Return a function that makes a node with a workflow's folder on it."""

    def make(*gpus, text=""):
        machine = Machine(tmp_path, gpu_node(*gpus), environment)
        machine.write(text)
        request.addfinalizer(machine.end_all)
        return machine

    return make


FOREIGN = """
    SAMPLES = ["a", "b", "c", "d"]

    rule all:
        input: "report.txt"

    rule fold:
        output: "folded/{sample}.txt"
        log: "logs/fold_{sample}.txt"
        threads: 2
        resources: gpu=1
        shell:
            "echo $CUDA_VISIBLE_DEVICES > {output}; echo folded {wildcards.sample} > {log};"
            "touch {wildcards.sample}.runs; test -e all.run ||"
            "  while [ $(ls *.runs | wc -l) -lt 4 ]; do sleep 0.02; done; touch all.run"

    rule train:
        input: expand("folded/{sample}.txt", sample=SAMPLES)
        output: "model.txt"
        benchmark: "train.tsv"
        resources: gpu=2
        shell:
            "echo $CUDA_VISIBLE_DEVICES > {output};"
            "featuremill lease --gpus 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES' >> {output};"
            "featuremill lease --gpus 1 -- sh -c 'echo $CUDA_VISIBLE_DEVICES' >> {output}"

    rule report:
        input: "model.txt"
        output: "report.txt"
        shell: "echo [${{CUDA_VISIBLE_DEVICES-not set}}] > {output}"
"""


def test_a_foreign_workflow_gets_its_gpus_unchanged(machine_of):
    """Four jobs at once on a GPU each, then one on two; what leases inside finds that it has them;
    the last sees none."""
    machine = machine_of(4, text=FOREIGN)
    said = machine("--resources", "gpu=4")
    folded = sorted(machine.text(f"folded/{sample}.txt").strip() for sample in "abcd")
    assert folded == machine.node.uuids, "all four ran at the same time"
    assert machine.text("logs/fold_a.txt") == "folded a\n"
    both, inside, part = machine.text("model.txt").splitlines()
    assert len(set(both.split(",")) & set(machine.node.uuids)) == 2
    assert inside == both and part in both.split(",")
    assert machine.text("report.txt") == "[]\n"
    assert machine.has("train.tsv")
    assert said.count(" has GPU ") == 5 and "rule train, jobid " in said
    assert machine.leases.num_held() == 0
    assert not list((machine.folder / "tmp").iterdir())


WITHOUT = """
    rule one:
        output: "out"
        retries: 2
        resources: gpu=lambda wildcards, attempt: attempt % 2
        shell:
            "echo [$CUDA_VISIBLE_DEVICES] >> seen;"
            "test $(wc -l < seen) = 3;"
            "touch {output}"
"""


def test_a_later_attempt_without_gpus_sees_none(machine_of):
    """With a GPU, then without, then with one again."""
    machine = machine_of(1, text=WITHOUT)
    machine("--resources", "gpu=1")
    (uuid,) = machine.node.uuids
    assert machine.text("seen").split() == [f"[{uuid}]", "[]", f"[{uuid}]"]


LOST = """
    rule all:
        input: "both", "one"

    rule both:
        output: "both"
        resources: gpu=2
        shell: "touch {output}"

    rule late:
        output: "late"
        shell: "while test ! -e go; do sleep 0.02; done; touch {output}"

    rule one:
        input: "late"
        output: "one"
        resources: gpu=1
        shell: "echo $CUDA_VISIBLE_DEVICES > {output}"
"""


def test_a_job_that_fails_as_a_gpu_is_lost_gives_the_others_back(machine_of):
    """Its Snakemake goes on, with other jobs."""
    machine = machine_of(Gpu(), Gpu(used_mb=5000), text=LOST)
    process = machine.start("--keep-going")
    machine.wait_for_line(process, "waiting for 2")
    machine.node.change(1, lost=True)
    machine.wait_for_line(process, "GPU 1 .*: GPU is lost")
    (machine.folder / "go").touch()
    assert process.wait(PATIENCE_SECONDS) == 1
    assert machine.text("one").strip() == machine.node.uuids[0]


TWO = """
    rule all:
        input: "a", "b"

    rule either:
        output: "{name}"
        resources: gpu=1
        shell: "touch {output}"
"""


def test_a_full_disk_of_the_locks_fails_each_job_by_its_name(gpu_node, environment, tmp_path):
    locks = mounted(tmp_path / "locks", "64k")
    node = gpu_node(1)
    node.environment["FEATUREMILL_LEASE_FOLDER"] = str(locks.folder)
    machine = Machine(tmp_path, node, environment, prefix=locks.command("env", "-C", str(tmp_path)))
    machine.write(TWO)
    fill = f"chmod 1777 {locks.folder}; head -c 1M /dev/zero > {locks.folder}/filled"
    subprocess.run(locks.command("sh", "-c", fill), capture_output=True, check=False)
    try:
        said = machine("--keep-going", status=1)
        assert said.count("locks/turnstile: No space left on device") == 2
    finally:
        machine.end_all()
        locks.close()


MISTAKES = """
    rule all:
        input: "too_many", "text", "late", "fine"

    rule too_many:
        output: "too_many"
        resources: gpu=9
        shell: "touch {output}"

    rule text:
        output: "text"
        resources: nvidia_gpu="two"
        shell: "touch {output}"

    rule late:
        output: "late"
        resources: gpu=2, gpu_wait=0
        shell: "touch {output}"

    rule fine:
        output: "fine"
        resources: gpus=1, gpu_slots=2
        retries: 1
        shell: "echo $CUDA_VISIBLE_DEVICES >> attempts; [ $(wc -l < attempts) = 2 ]; touch {output}"
"""


def test_what_cannot_be_is_one_sentence_and_the_other_jobs_go_on(machine_of):
    machine = machine_of(2, text=MISTAKES)
    holder = machine.leases.hold("--devices", "1")
    dry = machine("--gpu-local-dry", status=1)
    assert "rule too_many, jobid 1: 9 GPUs are wanted and there are 2; ask for fewer." in dry
    assert "rule fine, jobid 4: GPU 0 (0000)" in dry
    assert "--gpu-local-dry: no job was run; leave it out to run them." in dry
    said = machine("--keep-going", status=1)
    assert "9 GPUs are wanted and there are 2; ask for fewer." in said
    assert "the resource nvidia_gpu is 'two' and must be a number of GPUs." in said
    who = f"GPU 1 (1100): held by process {holder.pid} ("
    assert "2 GPUs did not become free in 0 s: " in said and who in said
    assert machine.text("attempts").splitlines() == [machine.node.uuids[0]] * 2
    assert machine.has("attempts") and (machine.folder / "fine").exists()
    assert not {"too_many", "text", "late"} & {path.name for path in machine.folder.iterdir()}
    end(holder)


WAITS = """
    rule all:
        input: "held", "free"

    rule held:
        output: "held"
        resources: gpu=1
        shell: "echo $CUDA_VISIBLE_DEVICES > {output}"

    rule free:
        output: "free"
        shell: "touch {output}"
"""


def test_a_job_that_waits_says_for_whom_and_holds_no_other_job_up(machine_of):
    machine = machine_of(1, text=WAITS)
    holder = machine.leases.hold()
    process = machine.start("--resources", "gpu=1")
    wait_for((machine.folder / "free").exists)
    machine.wait_for_line(
        process,
        rf"rule held, jobid 1: waiting for 1 GPU \(GPU 0 \(0000\): held by process {holder.pid} \(",
    )
    assert not (machine.folder / "held").exists()
    end(holder)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert machine.text("held").strip() == machine.node.uuids[0]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_stopped_it_does_not_wait_any_longer(machine_of, number):
    machine = machine_of(1, text=WAITS)
    holder = machine.leases.hold()
    process = machine.start()
    machine.wait_for_line(process, "waiting for 1 GPU")
    process.send_signal(number)
    assert process.wait(PATIENCE_SECONDS) == 1
    assert not (machine.folder / "held").exists()
    end(holder)
    machine()
    assert machine.text("held").strip() == machine.node.uuids[0]


PIPE = """
    rule take:
        input: "pipe"
        output: "piped"
        resources: gpu=1
        shell: "(cat {input}; echo $CUDA_VISIBLE_DEVICES) > {output}"

    rule make:
        output: pipe("pipe")
        resources: gpu=1
        shell: "echo $CUDA_VISIBLE_DEVICES > {output}"
"""


def test_jobs_of_a_pipe_have_a_gpu_each(machine_of):
    machine = machine_of(2, text=PIPE)
    machine()
    assert sorted(machine.text("piped").split()) == machine.node.uuids


LONG = """
    rule all:
        input: expand("{n}", n=range(2)), "script"

    rule long:
        output: "{n}"
        resources: gpu=1
        shell: "cd . && sleep 1000 > {output}; echo went on >> {output}"

    rule script:
        output: "script"
        resources: gpu=1
        script: "script.py"
"""


def test_jobs_end_with_a_snakemake_that_is_killed(machine_of):
    """Their GPUs are free then, and nothing of theirs writes beside the next Snakemake."""
    machine = machine_of(3, text=LONG)
    machine.write("import time; open(snakemake.output[0], 'w'); time.sleep(1000)", "script.py")
    process = machine.start()
    for name in ("0", "1", "script"):
        wait_for((machine.folder / name).exists)
    rows = machine.leases.list()[1:]
    assert {row.split("  ")[-1].partition(",")[0] for row in rows} == {"rule long", "rule script"}
    holders = [int(row.split()[6]) for row in rows]
    assert all(map(is_running, holders)) and process.pid not in holders
    kill(process)
    wait_for(lambda: machine.leases.num_held() == 0)
    wait_for(lambda: not processes_in(machine.folder))
    assert machine.text("0") == machine.text("1") == ""
    assert list(machine.folder.glob("tmp/gpu-local-*")), "of the killed one"
    for name in ("0", "1"):
        (machine.folder / name).unlink()
    machine.write(LONG.replace("sleep 1000 > {output}; ", ""))
    said = machine("--rerun-incomplete", "--nolock", "0", "1")
    assert machine.text("0") == "went on\n" and said.count(" has GPU ") == 2
    assert not list(machine.folder.glob("tmp/gpu-local-*"))


OWNS = """
import sys
from pathlib import Path
from snakemake_executor_plugin_gpu_local.shells import Shells
shells = Shells("/bin/sh", Path("other"))
paths = [Path(shells.path(f"job-{number}")) for number in range(2)]
assert len({path.resolve() for path in paths}) == 1, "no program is written while jobs start"
print(paths[0].parents[1], flush=True)
sys.stdin.read()
shells.close()
"""


def test_what_a_killed_snakemake_left_is_removed_by_the_next(machine_of, tmp_path):
    """And nothing else: not what another one uses, nor what a person called so."""
    machine = machine_of(1)
    temporary = machine.folder / "tmp"
    notes = temporary / "gpu-local-notes" / "owner.txt"
    notes.parent.mkdir()
    notes.touch()

    def start():
        pipe = {"stdin": subprocess.PIPE, "cwd": tmp_path}
        process = machine.leases.python(OWNS, **pipe)
        return process, Path(process.stdout.readline().strip())

    (killed, left), (living, used) = start(), start()
    kill(killed)
    assert {*temporary.iterdir()} == {notes.parent, left, used}
    last, own = start()
    assert {*temporary.iterdir()} == {notes.parent, used, own}
    for process in (living, last):
        process.communicate("")
    assert [*temporary.rglob("*")] == [notes.parent, notes]


KINDS = """
    import os

    SEES = 'echo "$CUDA_VISIBLE_DEVICES $FEATUREMILL_LEASED" > {output}'
    shell.executable("/bin/sh")

    rule all:
        input: "script", "run", "shadow", "cpu_run", "long", "own_shell", "half1", "half2"

    rule script:
        output: "script"
        resources: gpu=1
        script: "script.py"

    rule run:
        output: "run"
        resources: gpu=1
        run: shell(SEES)

    rule cpu_run:
        output: "cpu_run"
        run:
            with open(output[0], "w") as file:
                print(repr(os.environ.get("CUDA_VISIBLE_DEVICES")), file=file)

    rule shadow:
        output: "shadow"
        shadow: "minimal"
        resources: gpu=1
        shell: SEES

    rule own_shell:
        output: "own_shell"
        resources: gpu=1, shell_exec="bash"
        shell: SEES + "; [[ -n $BASH_VERSION ]]"

    rule long:
        output: "long"
        resources: gpu=1
        params: x="x" * 70000
        shell: SEES + "; test -n '{params.x}'"

    rule half:
        output: "half{n}"
        resources: gpu=1, gpu_slots=2, gpu_devices="MIG-"
        shell: SEES
"""


@pytest.mark.slow
def test_each_kind_of_job_gets_its_gpu(machine_of):
    slices = [Slice("MIG-a", gpu_instance=1)]
    machine = machine_of(Gpu(), Gpu(), Gpu(), Gpu(slices=slices), text=KINDS)
    machine.write(
        "import os\n"
        "with open(snakemake.output[0], 'w') as file:\n"
        "    print(*map(os.getenv, ('CUDA_VISIBLE_DEVICES', 'FEATUREMILL_LEASED')), file=file)",
        "script.py",
    )
    machine()
    for name in ("script", "run", "shadow", "long", "own_shell", "half1", "half2"):
        uuid, slot = machine.text(name).split()
        if name.startswith("half"):
            assert uuid == "MIG-a" and slot in (f"{uuid}@0of2", f"{uuid}@1of2")
        else:
            assert slot == f"{uuid}@0of1"
    assert machine.text("cpu_run") == "''\n"


@pytest.mark.slow
def test_options(machine_of):
    """Numbers for names, one card, a resource of another name, no hiding, a process each, the
    rest of a sick card."""
    machine = machine_of(3)
    machine.write(
        """
        rule all:
            input: expand("{n}", n=range(3)), "cpu"

        rule gpu:
            output: "{n}"
            resources: cards=1
            shell: "echo $CUDA_VISIBLE_DEVICES > {output}; test ! -e fails"

        rule cpu:
            output: "cpu"
            shell: "echo ${{CUDA_VISIBLE_DEVICES-not set}} > {output}"
        """
    )
    words = ["--gpu-local-resource", "gpu,cards", "--gpu-local-by-number", "--gpu-local-show-all"]
    machine(*words, "--gpu-local-devices", "2", "--gpu-local-spawn")
    assert [machine.text(f"{n}") for n in range(3)] == ["2\n"] * 3
    assert machine.text("cpu") == "not set\n"
    machine.folder.joinpath("fails").touch()
    policy = ["--gpu-local-watch", "--gpu-local-policy", "sequential", "--jobs", "1"]
    machine(*words, *policy, "--forceall", "--keep-going", status=1)
    machine.folder.joinpath("fails").unlink()
    machine(*words, *policy, "--forceall")
    assert [machine.text(f"{n}") for n in range(3)] == ["1\n"] * 3, "GPU 0 failed three times"
    said = machine("--gpu-local-policy", "best", status=1)
    assert "gpu-local: FEATUREMILL_POLICY: 'best' is not one of balanced, memory" in said


def test_given_gpus_are_dealt_out_one_job_each(machine_of):
    """Where a scheduler gave one, jobs of this Snakemake take turns on it."""
    machine = machine_of(2)
    machine.write(
        """
        rule all:
            input: expand("{n}", n=range(3))

        rule gpu:
            output: "{n}"
            resources: gpu=1
            shell: "mkdir alone; echo $CUDA_VISIBLE_DEVICES > {output}; rmdir alone"
        """
    )
    machine(variables={"CUDA_VISIBLE_DEVICES": "1"})
    assert {machine.text(f"{n}").strip() for n in range(3)} == {machine.node.uuids[1]}


def test_the_command_works_without_snakemake(machine_of):
    leases = machine_of(2).leases
    done = gpu_lease(leases, "exec", "--gpus", 2, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done.stdout.strip() == ",".join(leases.node.uuids)
    assert "gpu-lease: leased GPU 0 (0000), GPU 1 (1100)" in done.stderr
    holder = leases.hold("--devices", "1")
    listed = gpu_lease(leases, "list").stdout.splitlines()
    assert [row.split()[3] for row in listed[1:]] == ["free", "leased"]
    done = gpu_lease(leases, "exec", "--quiet", "--gpus", 2, "--wait", 0, "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert f"GPU 1 (1100): held by process {holder.pid}" in done.stderr
    end(holder)
    done = gpu_lease(leases, "exec", "train.py")
    assert done.stderr.endswith("as in: gpu-lease exec --gpus 1 -- train.py\n")
    assert gpu_lease(leases, "exec", "--", "sh", "-c", "exit 7").returncode == 7


def test_both_distributions_are_built_from_one_source(tmp_path):
    """What is built from the source distribution, too, has the lease as it is here."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist"], cwd=PACKAGE, check=True, capture_output=True)
    (source,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(source, tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    subprocess.run([*build, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        lease = [name for name in archive.namelist() if "/lease/" in name]
        built = {name.partition("/lease/")[2]: archive.read(name) for name in lease}
        (names,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        needs = re.findall(r"^Requires-Dist: ([\w-]+)", archive.read(names).decode(), re.M)
    here = Path(featuremill.__file__).parent / "lease"
    assert built == {path.name: path.read_bytes() for path in here.glob("*.py")}
    interfaces = ["snakemake-interface-common", "snakemake-interface-executor-plugins"]
    assert sorted(needs) == ["nvidia-ml-py", *interfaces], "Snakemake lacks the first alone"
