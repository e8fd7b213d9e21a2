"""docs/troubleshooting.md: each symptom really happens, and what is said then is on the page, or
explains itself."""

import ast
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from broken_stores import damage_of
from conftest import NOT_IMPORTED, ROOT
from leases import Leases
from mounts import mounted
from nvml_node import Gpu
from programs import Desk, Workflow, fasta, random_records, wait_for, written

from featuremill.__main__ import main
from featuremill.config import validate
from featuremill.store import lock_holder, run_lock

PAGE = ROOT / "docs" / "troubleshooting.md"
GOOD = [(f"good{n}", "MKV" + "L" * n) for n in range(8)]
declared = {}


@functools.cache
def page():
    """Return the messages in the page's boxes by their heading."""
    found, heading, is_box = {}, "", False
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("```"):
            is_box = line == "```see"
        elif is_box:
            found.setdefault(heading, []).append(line)
    return found


def pattern(message):
    words = " ".join(message.split())
    return re.compile(".*?".join(re.escape(part) for part in words.split("…")))


def shows(heading, *words):
    """Declare that a test makes the messages below `heading` appear: all, or those with `words`."""
    mine = [said for said in page()[heading] if any(word in said for word in words or [""])]
    assert mine
    declared.setdefault(heading, set()).update(mine)
    return explains(*mine, name=heading)


def explains(*messages, name="not on the page"):
    """Give a test a function that looks for `messages` in what was said."""

    def see(said):
        said = " ".join(said.split())
        missing = [message for message in messages if not pattern(message).search(said)]
        assert not missing, said

    return pytest.mark.parametrize("see", [see], ids=[name])


def config_of(verbs, records):
    """Return a config for these records, which are in a file of their own."""
    (verbs.folder / "in.fa").write_text(fasta(records))
    return written({"inputs": ["in.fa"], "workload": "composition", "device": "cpu"})


def stdout_of(verbs, *words, status=0):
    return verbs.type("featuremill", *words, status=status).out


def until(process, words, then):
    """Call `then` when the process has said `words`; return all that it says to its end."""
    said = []

    def listen():
        for line in process.stderr:
            said.append(line)

    listener = threading.Thread(target=listen)
    listener.start()
    wait_for(lambda: words in "".join(said) or process.poll() is not None)
    then()
    assert process.wait(60) == 0, said
    listener.join()
    process.stderr.close()
    return "".join(said)


@shows("A job failed under Snakemake", "failed", "log:", "status")
def test_the_last_screen_of_a_bad_run(see, tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(90), broken_load=True)
    process = workflow.start()  # with one screen for both of its streams
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    see(said)
    for noise in ("RuleException", "Error in rule", "CalledProcessError", "Look above"):
        assert noise not in said
    end = said[said.index(" jobs failed:") :]
    assert len(end.splitlines()) < 15
    told = "): load raised KeyError: 'no such layer'; this is for its author to fix; the log"
    assert told in " ".join(end.split())
    (log,) = re.findall(r"log: (\S+)", end)
    assert "KeyError: 'no such layer'" in (tmp_path / log).read_text()
    assert "--configfile config.yaml --cores 2" in end


@pytest.fixture
def held(tmp_path, environment):
    """Return a workflow that computes while the file hold exists, its process and a job's lock."""
    workflow = Workflow(tmp_path, environment, random_records(30), hold="hold")
    (tmp_path / "hold").touch()
    process = workflow.start()
    locks = functools.partial(workflow.run_folder.store.glob, "journals/*/*.lock")
    return workflow, process, wait_for(lambda: workflow.computed.exists() and next(locks(), None))


@shows("A job failed under Snakemake", "stopped:", "The same command continues")
def test_a_run_that_is_stopped_with_ctrl_c_is_no_fault(see, held):
    _, process, _ = held
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    see(said)
    assert "fixed" not in said and "without a word" not in said
    assert "│ failed" not in said and "job failed" not in said


@pytest.mark.slow
@shows("A job failed under Snakemake", "SIGKILL")
def test_a_job_that_is_killed_from_outside(see, held):
    workflow, process, lock = held
    os.kill(lock_holder.read(lock)["pid"], signal.SIGKILL)
    (workflow.folder / "hold").unlink()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    see(said)
    workflow()


@shows("Out of memory")
def test_out_of_memory(see, verbs):
    plan = verbs.plan([*GOOD, ("big", "EATA"), ("huge", "GREEDA")], "poison")
    said = verbs.extract(plan)
    assert re.search(r"did not fit; continuing with \d+ in a batch", " ".join(said.split()))
    verbs("merge", verbs.run_folder.root, status=2)
    said += (verbs.run_folder.store / "failed.tsv").read_text()
    plan = verbs.plan([*GOOD, ("one", "MK")], "poison", {"greedy_load": True})
    see(said + verbs("extract", verbs.run_folder.root, plan["shards"][0]["shard"], status=3))


FORKED = "Cannot re-initialize CUDA in forked subprocess"


@pytest.mark.parametrize("where", ["prepare", pytest.param("load", marks=pytest.mark.slow)])
@shows(FORKED)
def test_a_plug_in_that_forks(see, verbs, gpu_node, where):
    """With torch's own check, on a simulated GPU (so that no torch needs one)."""
    verbs.environment = verbs.environment | gpu_node(1).environment
    check_forking(see, verbs, where)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["load", "prepare"])
@shows(FORKED)
def test_a_plug_in_that_forks_on_a_real_gpu(see, verbs, where):
    # On an H200 neither ended within a minute: the log of the job says where it was. Of one record,
    # or it would hang for each of them.
    verbs.environment = {**verbs.environment, "FEATUREMILL_STALL_SECONDS": "10"}
    check_forking(see, verbs, where, GOOD[:1])


def check_forking(see, verbs, where, records=GOOD):
    plan = verbs.plan(records, "forking", {"where": where}, device="cuda")
    said = verbs.extract(plan, 1, "--log-file", "job.log")
    see(said)
    assert "starting another" not in said, "it is nobody's fault but the plug-in's"


def test_nothing_that_may_use_cuda_forks():
    """A lease may: it knows nothing of torch, and another test says so."""
    for path in (ROOT / "src").rglob("*.py"):
        if path.parent.name == "lease":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and "multiprocessing" in ast.unparse(node.func):
                assert ast.unparse(node) == "multiprocessing.get_context('spawn')", path
            assert not (isinstance(node, ast.Attribute) and node.attr == "fork"), path
            assert not (isinstance(node, ast.Name) and node.id == "ProcessPoolExecutor"), path


NOT_SEEN = "A GPU is not seen"


@shows(NOT_SEEN, "device: cuda was", "names no GPU")
def test_a_gpu_that_is_hidden_or_not_there(see, verbs, gpu_node):
    plan = verbs.plan(GOOD, "poison", device="cuda")
    outside, said = verbs.environment, ""
    for node, mask in ((gpu_node(), None), (gpu_node(1), ""), (gpu_node(1), "7")):
        verbs.environment = {k: v for k, v in outside.items() if k != "CUDA_VISIBLE_DEVICES"}
        verbs.environment |= node.environment
        verbs.environment |= {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
        said += verbs.extract(plan, 2)
    see(said)


@explains(
    "Torch not compiled with CUDA enabled (this torch is a build for CPUs and the job has a GPU; "
    "install a build for CUDA, or set device: cpu)"
)
def test_a_torch_for_cpus_beside_a_gpu(see, verbs, gpu_node):
    torch = pytest.importorskip("torch")
    if torch.version.cuda:
        pytest.skip("this torch is a build for CUDA")
    verbs.environment = verbs.environment | gpu_node(1).environment
    plan = verbs.plan(GOOD, "forking", {"where": "load", "harm": "cuda"}, device="cuda")
    said = verbs.extract(plan, 1)
    see(said)
    assert "starting another" not in said


@shows(NOT_SEEN, "every device failed")
def test_gpus_that_answer_with_errors(see, verbs, gpu_node):
    verbs.environment = verbs.environment | gpu_node(1).environment
    see(verbs.extract(verbs.plan(GOOD, "poison", {"greedy_load": True}, device="cuda"), 3))


def test_without_a_gpu_a_run_on_this_machine_is_refused_before_it_plans(
    tmp_path, environment, gpu_node, monkeypatch
):
    # Here and below: they import Snakemake, which a machine lacks that is there for GPU tests.
    from featuremill.flow.refusals import refuse_without_gpu
    from featuremill.flow.screen import RefusedError

    workflow = Workflow(tmp_path, {**environment, **gpu_node().environment}, random_records(30))
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "device": "cuda"}))
    said = workflow(status=1)
    assert "device: cuda was asked for, but no NVIDIA GPU is visible here" in said
    assert "WorkflowError" not in said and "common.smk" not in said
    assert not workflow.run_folder.root.exists()
    workflow("--until", "plan")  # as on a login node
    plan = json.loads(workflow.run_folder.plan.read_text())
    here = SimpleNamespace(nodes=None, modifier=NOT_IMPORTED)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = validate({"device": "cuda", "inputs": "in.fa"})
    run = run.model_copy(update={"folder": str(workflow.run_folder.root)})
    check = functools.partial(refuse_without_gpu, run=run)
    with pytest.raises(RefusedError, match="no NVIDIA GPU"):
        check(here)
    monkeypatch.setattr("sys.argv", ["snakemake", "--configfile", "plants.yaml"])
    with pytest.raises(RefusedError, match="no NVIDIA GPU"):
        check(here)
    plan_json = f"{workflow.run_folder.root}/plan.json"
    for words in (["plan"], ["--until=weights"], [plan_json], ["weights/model.json"]):
        monkeypatch.setattr("sys.argv", ["snakemake", *words])
        check(here)
    monkeypatch.setattr("sys.argv", ["snakemake"])
    check(SimpleNamespace(nodes=4, modifier=NOT_IMPORTED))
    for shard in plan["shards"]:  # as a node with GPUs would leave it
        receipt = workflow.run_folder.receipt(plan["recipe"], shard["shard"])
        receipt.parent.mkdir(parents=True, exist_ok=True)
        receipt.write_text("{}")
    check(here)


@shows("It hangs", "was ended", "Timeout")
def test_a_hang(see, verbs):
    plan = verbs.plan([*GOOD, ("bad", "HANGA")], "poison")
    see(verbs.extract(plan, 0, "--stall-seconds", "1"))


@shows("It hangs", "waiting")
def test_what_only_waits_says_for_what(see, verbs, gpu_node):
    node = gpu_node(1)
    leases = Leases(node, verbs.environment)
    verbs.environment = verbs.environment | node.environment
    plan = verbs.plan(GOOD, "poison", device="cuda")
    (shard,) = (shard["shard"] for shard in plan["shards"])
    words = ("extract", verbs.run_folder.root, shard)
    lock = verbs.run_folder.journal(plan["recipe"], shard).with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = until(verbs.start(*words), "another job computes it", file.close)
    verbs.run_folder.part(plan["recipe"], shard).unlink()
    holder = leases.hold()
    said += until(verbs.start(*words), "waiting for", lambda: holder.communicate(""))
    see(said)


@explains(
    "… MB in use without a lease; if that is a display, FEATUREMILL_POLICY=memory uses the GPU "
    "anyway"
)
def test_a_gpu_that_nobody_known_uses(see, gpu_node, environment):
    leases = Leases(gpu_node(Gpu(used_mb=1_300)), environment)
    see(leases("--wait", 0, status=3)[1])


@shows("It is slower than it should be")
def test_what_makes_it_slower(see, gpu_node, environment, tmp_path, monkeypatch, caplog):
    """On a GPU where an operation of Triton is wrong."""
    torch = pytest.importorskip("torch")
    from featuremill.workloads.esm2 import fallbacks, kernels

    ours = kernels.TORCH
    monkeypatch.setattr(kernels, "ways", lambda *_: [ours._replace(name="triton 3"), ours])
    tried = fallbacks.Fallbacks(torch.device("cpu"), torch.float32, 4, 16)
    tried.step_down(fallbacks.Fault("rotary", "relative error 0.1, at most 1e-05"))
    pretend = {"why": {"GPU-0": [caplog.messages[0]]}}
    variables = {"PRETEND_TORCH": json.dumps(pretend)}
    desk = Desk(tmp_path, environment | gpu_node(Gpu("GPU-0")).environment | variables)
    see(desk.type("pretend_torch", "doctor").text)


@explains(
    "… for … GPU slots: … no work. …",
    "… shards for … GPU slots: some wait while others finish. …",
)
def test_too_few_shards_for_the_gpus(see, verbs):
    verbs.environment = {**verbs.environment, "FEATUREMILL_GPUS": "4"}
    (verbs.folder / "in.fa").write_text("")
    verbs.run_folder = type(verbs.run_folder)(Path("results/test"))
    words = ("plan", verbs.run_folder.root, "--config", "my.yaml")

    def plan(cost):
        config = {"inputs": "in.fa", "workload": "poison", "device": "cuda"}
        config["shards"] = {"cost": cost}
        (verbs.folder / "my.yaml").write_text(yaml.safe_dump(config))
        (verbs.folder / "in.fa").write_text(fasta(random_records(48)))
        return verbs(*words)

    said = plan(16)
    assert "3 shards for 4 GPU slots: 1 of them gets no work. Set `shards: {cost: auto}` in" in said
    found = verbs.type("featuremill", "status", verbs.run_folder.root, status=1).text
    assert "3 shards for 4 GPU slots: 1 of them gets no work." in found
    assert "GPU slots" not in plan("auto"), "what it advises, and the same command again"
    planned = json.loads((verbs.folder / verbs.run_folder.plan).read_text())
    assert len(planned["shards"]) == 8, "two a slot"
    shutil.rmtree(verbs.folder / verbs.run_folder.root)
    see(said + plan(10))


@shows("Failed records")
def test_failed_records(see, verbs):
    plan = verbs.plan([*GOOD, ("a", "CRASHA"), ("b", "RAISEA"), ("c", "NANA")], "poison")
    (shard,) = (shard["shard"] for shard in plan["shards"])
    root = verbs.run_folder.root
    logs = verbs.run_folder.logs / "extract" / plan["recipe"]  # as the workflow names them
    verbs("extract", root, shard, "--log-file", logs / f"{shard}.log")
    said = verbs("merge", root, status=2)
    see(said + (verbs.run_folder.store / "failed.tsv").read_text())
    told = stdout_of(verbs, "status", "results/test", status=1)
    (command,) = set(re.findall("→ (grep .*)", told))
    assert told.count(command) == 2, "of the crash and the error, not of what is not finite"
    found = subprocess.check_output(command, shell=True, cwd=verbs.folder, text=True)
    assert found == f"results/test/logs/extract/{plan['recipe']}/{shard}.log\n"
    kept = (logs / f"{shard}.log").read_text()
    assert "Fatal Python error: Aborted" in kept and "ValueError: I don't like RAISEA" in kept


@shows("No report, no dashboard")
def test_a_report_that_is_not_there(see, verbs):
    plan = verbs.plan(GOOD, "poison")
    said = verbs("report", verbs.run_folder.root, status=2)
    verbs.extract(plan)
    see(said + stdout_of(verbs, "status", verbs.run_folder.root, status=1))


@shows("The disk is full", "this log has gaps")
def test_a_log_on_a_full_disk_is_no_end_of_work(see, verbs):
    plan = verbs.plan(GOOD, "poison")
    shard = plan["shards"][0]["shard"]
    see(verbs("extract", verbs.run_folder.root, shard, "--log-file", "/dev/full"))
    assert verbs.receipts(plan)[0]["ok"] == len(GOOD)


@shows("The disk is full", "No space left on device; nothing")
def test_a_disk_that_is_full(see, verbs):
    mount = mounted(verbs.folder / "disk", "1m")
    subprocess.run(mount.command("sh", "-c", "cat /dev/zero >filler 2>/dev/null; true"), check=True)
    config = config_of(verbs, GOOD)
    see(verbs("plan", mount.seen(mount.folder) / "test", "--config", config, status=1))
    mount.close()


@shows("The disk is full", "it needs about")
def test_a_disk_that_is_too_small(see, verbs, monkeypatch, capsys):
    verbs.extract(verbs.plan(GOOD))
    small = shutil._ntuple_diskusage(10**6, 10**6 - 1, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: small)
    assert main(["merge", str(verbs.run_folder.root)]) == 2
    see(capsys.readouterr().err)


@shows("A file was damaged")
def test_a_part_that_was_damaged(see, verbs):
    plan = verbs.plan(GOOD)
    verbs.extract(plan)
    damage_of("part's rows").harm(verbs.run_folder)
    see(verbs("merge", verbs.run_folder.root, status=4))
    verbs.extract(plan)
    verbs("merge", verbs.run_folder.root)


@shows("A stale lock", "has no locks")
def test_a_disk_without_locks(see, verbs, monkeypatch, capsys):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.chdir(verbs.folder)
    monkeypatch.setattr(fcntl, "flock", flock)
    assert main(["plan", "results/test", "--config", config_of(verbs, GOOD)]) == 2
    see(capsys.readouterr().err)


@explains(
    "… is not installed in this Python (…), and nothing can be computed without it; pip install '…'"
)
def test_a_package_that_is_missing(see, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("FEATUREMILL_CACHE", str(tmp_path))  # in which nothing is converted yet
    assert main(["weights", "mill_t6_8M", "--output", str(tmp_path / "w.json")]) == 2
    see(capsys.readouterr().err)


@pytest.fixture(scope="module")
def planned(tmp_path_factory, environment):
    """Return the workflow of a run that Snakemake has planned."""
    workflow = Workflow(tmp_path_factory.mktemp("planned"), environment, GOOD)
    workflow("--until", "plan")
    return workflow


@explains("another snakemake is computing this run; wait for it, or stop it.")
def test_a_run_that_another_snakemake_computes(see, planned):
    with run_lock.claim(planned.run_folder.root):
        see(planned(status=1))


@shows("The config is refused", "is the name of another")
def test_a_run_of_another_configs_name(see, planned):
    config = yaml.safe_load((planned.folder / "config.yaml").read_text())
    (planned.folder / "other.yaml").write_text(yaml.safe_dump({**config, "inputs": "other.fa"}))
    (planned.folder / "other.fa").write_text(fasta(GOOD[:2]))
    see(planned("--configfile", "other.yaml", status=1))


@explains("… records refused: the id stands for two different sequences")
def test_one_id_of_two_sequences(see, verbs):
    config = config_of(verbs, [("a", "MKV"), ("a", "MKL"), ("b", "MK")])
    see(verbs("plan", verbs.run_folder.root, "--config", config))


@pytest.mark.slow
@shows("A stale lock", "LockException")
def test_a_lock_that_is_older_than_the_boot(see, held):
    workflow, process, _ = held
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (workflow.folder / "hold").unlink()
    (owner,) = (workflow.folder / ".snakemake").glob("*.owner")
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"boot": "another"}))
    see(workflow(status=1))
    workflow("--unlock")
    workflow()
    assert workflow.counts()["ok"] == 30


OUTER = f"""
module mill:
    snakefile: {str(ROOT / "Snakefile")!r}
    config: config
use rule * from mill
rule make:
    input: 'made.fa'
    output: 'in.fa', 'labels.tsv'
    shell: "cp made.fa in.fa; printf 'id\\tclan\\n' >labels.tsv"
"""


@explains(
    "….yaml:…: inputs: …: this file does not exist; check the path (seen from where the command is "
    "started: …)."
)
def test_a_file_or_a_column_that_is_not_there_is_said_before_anything(see, tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(3))
    path = tmp_path / "config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**config, "inputs": "mi.fa"}))
    missing = workflow("-n", status=1)
    assert "Exception" not in missing and "common.smk" not in missing
    (tmp_path / "labels.tsv").write_text("id\tfamily\n")
    labels = {"file": "labels.tsv", "column": "clan"}
    path.write_text(yaml.safe_dump({**config, "labels": labels}))
    said = workflow(status=1)
    assert not workflow.run_folder.plan.exists() and "Exception" not in said
    see(missing)
    line = path.read_text().splitlines().index("  column: clan") + 1
    assert f"config.yaml:{line}: labels: labels.tsv: there is no column 'clan'; it has 'id'" in said
    # Another workflow may make both files: that it does not is Snakemake's to notice.
    (tmp_path / "in.fa").rename(tmp_path / "made.fa")
    (tmp_path / "outer.smk").write_text(OUTER)
    said = workflow("results/test/plan.json", snakefile=tmp_path / "outer.smk")
    assert workflow.run_folder.plan.exists() and "no column" not in said
    # Where there is a plan, Snakemake itself would find that there is nothing to do.
    path.write_text(yaml.safe_dump({**config, "inputs": "mi.fa"}))
    said = workflow("results/test/plan.json", status=1)
    assert "config.yaml:2: inputs: mi.fa: this file does not" in said
    path.write_text(yaml.safe_dump(config))
    workflow()
    (tmp_path / "in.fa").unlink()
    assert "Nothing to be done" in workflow(), "it may be put away after the run"


@shows("The config is refused", "valid JSON")
def test_a_config_that_is_wrong_names_its_line_under_snakemake_too(see, tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(3))
    path = tmp_path / "config.yaml"
    lines = [*path.read_text().splitlines(), "optons: {}"]
    path.write_text("\n".join(lines))
    said = workflow("-n", status=1)
    assert f"\nerror: config.yaml:{len(lines)}: optons: " in said and "common.smk" not in said
    path.write_text("inputs: in.fa\noptions:\n  model: esm2_t99\n")
    unknown = workflow("-n", status=1)
    assert "\nerror: config.yaml:3: options.model: there is no model" in unknown
    assert "UserError" not in unknown and "common.smk" not in unknown
    path.write_text("inputs: in.fa\noptions:\n\tmodel: mill_t6_8M\n")
    tab = workflow("-n", status=1)
    plan = workflow.verb("plan", "results/my", "--config", path.name, status=2)
    assert "there is no such key here; did you mean" in said and "did you mean" in unknown
    assert "config.yaml:3: this is not valid YAML (" in plan.err
    see(tab)


def test_a_key_that_stands_in_no_file_is_not_said_to(tmp_path, monkeypatch):
    from featuremill.flow.context import validated
    from featuremill.flow.screen import RefusedError

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.yaml"
    path.write_text("inputs: a.fa\ndevice: gpu\n")
    workflow = SimpleNamespace(configfiles=[path], modifier=NOT_IMPORTED)
    for config, place in (
        ({"inputs": "a.fa", "device": "gpu"}, "my.yaml:2: device: "),
        ({"inputs": "a.fa", "device": "tpu"}, "config: device: "),  # --config device=tpu
        ({"device": "gpu"}, "my.yaml:2: device: "),
        ({"inputs": "a.fa", "device": "cpu", "optons": {}}, "config: optons: "),
    ):
        with pytest.raises(RefusedError, match=f"(^|\n){re.escape(place)}"):
            validated(config, workflow)
    path.write_text("inputs: a.fa\nmax_failed: 1\nmax_failed: 2\n")
    with pytest.raises(RefusedError, match=r"my\.yaml:3: max_failed is set here and in line 2"):
        validated({"inputs": "a.fa", "max_failed": 2}, workflow)


def test_every_message_of_the_page_is_made_to_appear():
    told = {m for messages in page().values() for m in messages}
    assert told == set().union(*declared.values())
