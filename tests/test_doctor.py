"""doctor: what it finds on simulated nodes, what it says and recommends.

NVML is real nvidia-ml-py over the simulated library; torch is real, but for GPUs a pretend one.
"""

import argparse
import dataclasses
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jsonschema
import pytest
import torch
from conftest import ROOT
from decoder_models import write as write_decoder
from documents import section
from encoder_models import write
from encoder_models import write as write_encoder
from nvml_node import Gpu, Slice
from programs import Desk, Said, python, wait_for
from safetensors.torch import save_file

from featuremill.__main__ import main
from featuremill.base.devices import Device
from featuremill.base.errors import UserError
from featuremill.doctor import checks, findings, trial
from featuremill.doctor.findings import Findings, Subject
from featuremill.doctor.gpus import Node
from featuremill.workloads import geneformer
from featuremill.workloads.esm2 import estimates, layout, sources
from featuremill.workloads.esm2.architecture import ESM2, Sizes
from featuremill.workloads.esm2.encoder import DTYPES

NO_LIBRARY = {"init_error": 12}
NO_CUDA = {"cuda": None}
DOCUMENTED = set(re.findall(r"`[a-z0-9-]+`", section(ROOT / "docs" / "json.md", "Doctor")))
PRETEND = ROOT / "tests" / "pretend_torch"


def some(*types):
    return {"type": [*types, "null"]}


def thing(**properties):
    only = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **only}


def several(items):
    return {"type": "array", "items": items}


def maybe(schema):
    return {"oneOf": [{"type": "null"}, schema]}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
SENTENCE = {"type": "string", "pattern": r"\.$"}
NEED = thing(device=TEXT, memory_mb=NUMBER, dtype=TEXT, batch_tokens=NUMBER)
SCHEMA = thing(
    version={"const": 5},
    ready=FLAG,
    ready_for=some("string"),
    gpu_ready=FLAG,
    gpus=several(
        thing(
            id={"type": "integer"},
            **dict.fromkeys(["name", "label"], TEXT),
            **dict.fromkeys(["uuid", "capability", "busy_by"], some("string")),
            **dict.fromkeys(["memory_gb", "free_gb"], some("number")),
            **dict.fromkeys(["bf16", "visible", "accessible"], FLAG),
            state={"enum": ["free", "leased", "busy", "sick", "lost", "hidden", "not usable"]},
        )
    ),
    issues=several(
        thing(
            severity={"enum": ["error", "warning", "note"]},
            code={"type": "string", "pattern": "^[a-z0-9-]+$"},
            **dict.fromkeys(["what", "remedy"], SENTENCE),
            gpu=some("string"),
        )
    ),
    recommended=thing(resources=some("string"), command=TEXT),
    memory=maybe(thing(model=some("string"), needs=several(NEED), fits=several(TEXT))),
    workload=TEXT,
    ways=several(
        {
            "type": "object",
            "properties": {"device": TEXT, "why": several(TEXT), "error": some("string")},
            "required": ["device", "why", "error"],
            "additionalProperties": TEXT,
        }
    ),
    driver=thing(version=some("string"), cuda=some("integer")),
    torch=maybe(thing(torch=some("string"), cuda=some("string"), arch_list=several(TEXT))),
    cpu=thing(name=TEXT, processors={"type": "integer"}, free_gb=NUMBER, bf16=FLAG),
    versions={"type": "object", "additionalProperties": TEXT},
)


class Doctor(Desk):
    """`featuremill doctor` on a simulated node."""

    def __init__(self, node, folder, real_torch=False, **world):
        variables = {"PYTHONPATH": str(ROOT / "src"), "PRETEND_TORCH": json.dumps(world)}
        super().__init__(folder, node.environment | variables)
        self.program = "featuremill" if real_torch else "pretend_torch"

    def __call__(self, *arguments, status=0):
        return self.told(self.type(self.program, "doctor", *arguments, status=status), arguments)

    def told(self, said, arguments):
        if "--json" not in arguments:
            return said.text
        answer = json.loads(said.out)
        jsonschema.validate(answer, SCHEMA)
        assert answer["ready"] == (said.status == 0)
        assert {f"`{issue['code']}`" for issue in answer["issues"]} <= DOCUMENTED
        return answer


@pytest.fixture
def doctor(gpu_node, tmp_path):
    """Return a function that makes a doctor for a node of the given GPUs."""

    def make(*gpus, system=None, **world):
        node = gpu_node(*gpus)
        node.system |= system or {}
        node.write()
        return Doctor(node, tmp_path, **world)

    return make


def codes(answer):
    return {issue["code"] for issue in answer["issues"]} - {"files"}


def uuids(number):
    return [f"GPU-{index}" for index in range(number)]


def test_a_machine_without_gpus_is_ready_for_the_cpu(doctor):
    check = doctor(system=NO_LIBRARY, real_torch=True)
    answer = check("--json", "--model", "mill_t6_8M")
    assert (answer["ready_for"], answer["gpu_ready"], answer["gpus"]) == ("the CPU", False, [])
    assert answer["recommended"]["resources"] is None
    assert answer["memory"]["fits"] == ["cpu"]
    assert answer["torch"]["torch"] == torch.__version__
    assert codes(answer) == set()
    page = doctor(system=NO_LIBRARY)()
    assert re.match(r"Ready, on the CPU \(.*\): this machine has no NVIDIA GPU\.", page)


def test_a_run_on_so_many_gpus_is_ready_or_not(doctor):
    check = doctor(Gpu(), Gpu())
    answer = check("--json", "--gpus", "2")
    assert (answer["ready_for"], answer["gpu_ready"]) == ("2 GPUs", True)
    answer = check("--json", "--gpus", "3", status=1)
    assert (answer["ready_for"], answer["gpu_ready"]) == (None, False)
    assert "take 2 of the GPUs here now, and --gpus wants 3" in answer["issues"][0]["what"]
    answer = check("--json", "--gpus", "1,")
    assert [gpu["id"] for gpu in answer["gpus"]] == [1] and answer["ready_for"] == "1 GPU"
    assert "--gpus 0: this is the number of GPUs" in check("--gpus", "0", status=2)


def test_any_workload_that_tells_its_memory_is_asked_where_a_model_fits(tmp_path, monkeypatch):
    """By the config of a run, whose batches count."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bert", "protbert")
    (tmp_path / "in.fa").write_text(">p\nMKV\n")
    options = {"model": "bert", "alphabet": "proteins"}
    config = {"inputs": "in.fa", "workload": "encoder", "options": options}
    gpu = Device("cuda", "GPU-0", "a GPU", has_bf16=True, memory_mb=80_000, num_multiprocessors=132)

    def need(model=None, **options):
        told = json.dumps({**config, "options": {**config["options"], **options}})
        (tmp_path / "my.yaml").write_text(told)
        path = None if model else Path("my.yaml")
        asked = argparse.Namespace(config=path, set=None, model=model, workload=None)
        asked.results = Path("results")
        subject = findings.subject_of(asked)
        return subject.need(subject.weights(), gpu)

    usual = need()
    assert (usual.dtype, usual.batch_tokens) == ("bf16", 16_896)
    large = need(batch_tokens=50_000)
    assert large.batch_tokens == 50_000 and large.memory_mb > usual.memory_mb
    with pytest.raises(UserError, match=r"nowhere\.pt: this file does not exist"):
        need(model="nowhere.pt")


def test_a_model_of_any_workload_is_named_by_its_folder_alone(doctor):
    check = doctor(system=NO_LIBRARY)
    write_decoder(check.folder / "smol", "llama")
    write_encoder(check.folder / "bert", "protbert")
    asked = [("smol", "llm_json"), ("smol", "encoder"), ("bert", "encoder"), ("bert", "geneformer")]
    for model, workload in asked:
        page = " ".join(check("--model", model, "--workload", workload).split())
        assert f"{model} fits the CPU; it needs about" in page, workload


def test_the_first_line_says_for_which_of_the_gpus_a_model_is(doctor):
    page = " ".join(doctor(*MIXED)("--model", "esm2_t48_15B_UR50D").split())
    assert "should use 1 of 4 GPUs. esm2_t48_15B_UR50D fits GPU 0 (0); it needs" in page


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--model", "smol"), "an ESM-2 has 'esm'.*another workload's, add --workload NAME"),
        (("--model", "smol", "--workload", "composition"), "does not report the memory"),
        (("--model", "smol", "--workload", "gone"), "gone"),
        (("--config", "my.yaml", "--workload", "encoder"), "--workload is of --model"),
    ],
)
def test_a_model_that_cannot_be_asked_about_is_refused_in_a_sentence(doctor, asked, words):
    check = doctor(system=NO_LIBRARY)
    write_decoder(check.folder / "smol", "llama")
    assert re.search(words, " ".join(check(*asked, status=2).split()))


def test_a_workload_that_needs_more_than_a_model_says_so(doctor, monkeypatch):
    check = doctor(system=NO_LIBRARY)
    write_encoder(check.folder / "bert", "protbert")
    monkeypatch.chdir(check.folder)
    monkeypatch.delattr(geneformer, "options_of_model")
    asked = argparse.Namespace(config=None, set=None, model="bert", workload="geneformer")
    with pytest.raises(UserError) as refused:
        findings.subject_of(asked)
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    for name, line in zip(("vocabulary", "medians"), lines, strict=True):
        assert line.startswith(f"--model without --config: options.{name}: this is missing; give ")


MIXED = (
    Gpu("GPU-0", "NVIDIA A100-SXM4-80GB", 81_920, more={"reserved": "600M"}),
    Gpu("GPU-1", "NVIDIA L4", 23_034, capability="8.9", busy=7),
    Gpu("GPU-2", "Tesla T4", 15_360, capability="7.5"),
    Gpu("GPU-3", "NVIDIA GeForce RTX 3050", 8_192, capability="8.6", more={"display": 1}),
)


def test_a_mixed_node_in_full(doctor):
    answer = doctor(*MIXED)("--json", "--model", "esm2_t36_3B_UR50D")
    expected = {"id": 0, "uuid": "GPU-0", "name": "NVIDIA A100-SXM4-80GB", "busy_by": None}
    expected |= {"memory_gb": 80.0, "free_gb": 79.4, "capability": "8.0", "bf16": True}
    expected |= {"visible": True, "accessible": True, "label": "GPU 0 (0)", "state": "free"}
    assert answer["gpus"][0] == expected
    assert [gpu["bf16"] for gpu in answer["gpus"]] == [True, True, False, True]
    needs = {need["device"]: need for need in answer["memory"]["needs"]}
    assert (needs["GPU-0"]["dtype"], needs["GPU-2"]["dtype"]) == ("bf16", "fp16")
    assert needs["GPU-0"]["batch_tokens"] == 12_800  # 100 multiprocessors
    assert 6_000 < needs["GPU-0"]["memory_mb"] < 9_000
    assert answer["recommended"]["resources"] == "gpu=2"  # 3B does not fit 8 GB


def test_cards_too_small_or_too_old_are_not_counted_and_it_says_why(doctor):
    answer = doctor(*MIXED)("--json")
    command = "FEATUREMILL_DEVICES=0,1,3 featuremill run YOUR.yaml --resources gpu=3"
    assert answer["recommended"] == {"resources": "gpu=3", "command": command}
    (left,) = (one for one in answer["issues"] if one["gpu"] == "GPU-2")
    assert left["code"] == "no-bf16" and "has no bf16" in left["what"]
    answer = doctor(*MIXED)("--json", "--model", "esm2_t48_15B_UR50D")
    assert answer["memory"]["fits"] == ["GPU-0"]
    why = {one["gpu"]: one["what"] for one in answer["issues"] if one["code"] == "memory"}
    needs = r" has 22 GB free of 22 GB, and esm2_t48_15B_UR50D needs about \d\d GB"
    assert re.search(needs, why["GPU-1"])
    assert answer["recommended"]["resources"] == "gpu=1"


def test_what_was_left_out_is_left_out_of_the_command_too(doctor):
    """--devices is the doctor's own: a run that is typed as it says must not take the others."""
    check = doctor(*MIXED)
    one = check("--json", "--devices", "1")["recommended"]["command"]
    assert one == "FEATUREMILL_DEVICES=1 featuremill run YOUR.yaml --resources gpu=1"
    named_all = check("--json", "--devices", "GPU-0,1,2,3")
    assert named_all["recommended"]["command"].startswith("FEATUREMILL_DEVICES=0,1,3 ")
    two = doctor(*MIXED[:2])("--json", "--devices", "0,1")["recommended"]["command"]
    assert two == "featuremill run YOUR.yaml --resources gpu=2", "nothing was left out"


def test_the_command_names_the_config_as_a_shell_reads_it(doctor):
    check = doctor(MIXED[3])
    (check.folder / "Snakefile").touch()
    config = '{"inputs": "in.fa", "options": {"model": "esm2_t6_8M_UR50D"}}'
    (check.folder / "my run.yaml").write_text(config)
    answer = check("--json", "--config", "my run.yaml")
    assert answer["recommended"]["command"] == "featuremill run 'my run.yaml' --resources gpu=1"


def test_a_model_that_fits_nowhere_is_said_before_anything_starts(doctor):
    answer = doctor(*MIXED[1:])("--json", "--model", "esm2_t48_15B_UR50D", status=1)
    (issue,) = (one for one in answer["issues"] if one["severity"] == "error")
    assert issue["code"] == "memory" and "esm2_t48_15B_UR50D needs about" in issue["what"]
    assert answer["memory"]["fits"] == []


def test_a_model_over_two_gpus_is_asked_for_half_of_its_memory_on_each(doctor):
    check = doctor(MIXED[1], dataclasses.replace(MIXED[1], uuid="GPU-9"))
    config = {"inputs": "in.fa", "options": {"model": "esm2_t48_15B_UR50D"}}
    for gpus, status, fits in ((1, 1, []), (2, 0, ["GPU-1", "GPU-9"])):
        (check.folder / "my.yaml").write_text(json.dumps({**config, "gpus_per_job": gpus}))
        answer = check("--json", "--config", "my.yaml", status=status)
        assert answer["memory"]["fits"] == fits
    check = doctor(MIXED[3])
    answer = check("--json", "--config", "my.yaml", status=1)
    (issue,) = (one for one in answer["issues"] if one["severity"] == "error")
    whole = r"needs about \d\d GB of each of 2 GPUs; 8.0 GB is what the largest"
    assert re.search(whole, issue["what"])


# GPU 1's state, the outcome of using it, its code, and words of the sentence and of the remedy.
BROKEN = (
    ({"lost": True}, {}, "gpu-fails", "lost", "nvidia-smi --gpu-reset -i 1"),
    ({"error": 999}, {}, "gpu-fails", "Unknown Error", "nvidia-smi -q -i 1"),
    ({"compute_mode": 2}, {}, "gpu-fails", "is Prohibited", "-c DEFAULT"),
    ({"more": {"mig": 1}}, {}, "gpu-fails", "MIG mode without slices", "-mig 0"),
    ({"capability": "6.1"}, {"fails": "no kernel"}, "gpu-fails", "no kernel", "get_arch_list()"),
    ({}, {"fails": "driver is too old"}, "gpu-fails", "is too old", "fits the driver"),
    ({}, {"crashes": True}, "gpu-fails", "killed by SIGSEGV", "Xid"),
    ({}, {"check": "rotary is wrong"}, "gpu-fails", "torch works, but a test of esm2", "Xid"),
    ({"compute_mode": 3, "used_mb": 1900}, {"fails": "is busy"}, "busy", "is busy", "ask its user"),
    ({"used_mb": 79_990}, {"fails": "CUDA out of memory"}, "busy", "out of memory", "ask its user"),
)


def broken(numbers):
    """Return GPUs of those rows, and what the pretend torch does on each."""
    gpus, world = [], {"fails": {}, "crashes": {}, "check": {}}
    for number, row in enumerate(numbers):
        state, outcome, *_ = BROKEN[row]
        gpus.append(Gpu(f"GPU-{number}", **state))
        for kind, value in outcome.items():
            world[kind][f"GPU-{number}"] = value
    return gpus, world | {"crashes": [*world["crashes"]]}


def test_broken_gpus_are_passed_over_with_a_remedy_each(doctor):
    gpus, world = broken(range(len(BROKEN)))
    answer = doctor(*gpus, Gpu("GPU-fine"), **world)("--json")
    for number, (*_, code, what, remedy) in enumerate(BROKEN):
        of_it = [each for each in answer["issues"] if re.match(rf"GPU {number}\b", each["what"])]
        issue = next(each for each in of_it if each["code"] == code)
        assert issue["severity"] == "warning" and what in issue["what"]
        assert remedy.replace("-i 1", f"-i {number}") in issue["remedy"]
    accessible = [gpu["accessible"] for gpu in answer["gpus"]]
    assert accessible == [False] * len(BROKEN) + [True]
    states = [gpu["state"] for gpu in answer["gpus"]]
    assert states == ["lost", *["not usable"] * 7, "busy", "busy", "free"]
    assert answer["recommended"]["command"] == "featuremill run YOUR.yaml --resources gpu=1"


@pytest.mark.parametrize(("row", "status"), [(0, 1), (4, 1), (7, 1), (9, 0)])
def test_a_broken_gpu_alone_prevents_a_run_and_a_full_one_lets_it_wait(doctor, row, status):
    gpus, world = broken([row])
    answer = doctor(*gpus, **world)("--json", status=status)
    severities = {each["severity"] for each in answer["issues"] if each["code"] == BROKEN[row][2]}
    assert severities == {"error" if status else "warning"}


def test_a_gpu_that_hangs_is_given_up_after_the_timeout(doctor, tmp_path, monkeypatch, capsys):
    """It hangs for the doctor as soon as it says so here; the other has all the time it takes."""
    hung, limits = tmp_path / "hung", {}
    hung.mkdir()

    class Child(subprocess.Popen):
        def communicate(self, *given, timeout=None):
            place = hung / str(self.pid)
            wait_for(lambda: place.exists() or has_ended(self.pid))
            if has_ended(self.pid) or self.pid in limits:
                return super().communicate(*given, timeout=timeout)
            limits[self.pid] = timeout
            raise subprocess.TimeoutExpired(self.args, timeout)

    check = doctor(Gpu("GPU-0"), Gpu("GPU-1"), hangs=["GPU-1"], hung=str(hung))
    check.environment["PYTHONPATH"] = f"{PRETEND}{os.pathsep}{check.environment['PYTHONPATH']}"
    for name, value in check.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(subprocess, "Popen", Child)
    arguments = ("doctor", "--json", "--timeout", "6")
    status = main([*arguments])
    answer = check.told(Said(status, capsys.readouterr().out, ""), arguments)
    (issue,) = answer["issues"]
    assert (issue["code"], issue["gpu"]) == ("gpu-fails", "GPU-1")
    assert "no answer within 6 s" in issue["what"]
    ((pid, limit),) = limits.items()
    assert limit == 6 and [place.name for place in hung.iterdir()] == [str(pid)]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def has_ended(pid):
    """Tell whether a child of ours is there no more, and leave its status to who reaps it."""
    try:
        return bool(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    except ChildProcessError:
        return True


def test_a_driver_that_hangs_is_an_issue_and_no_hang(doctor):
    check = doctor(Gpu(), system={"delay_ms": 60_000})
    answer = check("--json", "--timeout", 1, status=1)
    assert "driver" in codes(answer)


def test_gpus_that_others_use(doctor):
    answer = doctor(
        Gpu("GPU-0", processes={os.getpid(): 7000}),
        Gpu("GPU-1", used_mb=3000),
        Gpu("GPU-2", total_mb=3000, used_mb=2500, processes={}),
        Gpu("GPU-3", used_mb=200),
    )("--json")
    by = [gpu["busy_by"] for gpu in answer["gpus"]]
    assert re.fullmatch(rf"used by process {os.getpid()} \(.+\), which has no lease", by[0])
    in_use = [f"{number} MB in use without a lease" for number in (3000, 2500)]
    assert [(text or "").split(";")[0] for text in by[1:]] == [*in_use, ""]
    assert codes(answer) == {"busy", "memory"}
    assert answer["recommended"]["resources"] == "gpu=1"


def test_leased_gpus_count_and_those_that_cool_down_are_said(doctor):
    check = doctor(Gpu("GPU-0", total_mb=3000, used_mb=2500), Gpu("GPU-1"), Gpu("GPU-2"))
    words = ("lease", "--gpus", "1", "--devices", "1", "--", "sh", "-c", "echo held; exec sleep 60")
    holder = check.start("featuremill", *words, stdout=subprocess.PIPE, stderr=None)
    assert holder.stdout.readline() == "held\n"
    path = Path(check.environment["FEATUREMILL_LEASE_FOLDER"]) / "GPU-2.failures"
    path.write_text(json.dumps([[time.time(), "exit 3"]] * 3))
    try:
        answer = check("--json")
    finally:
        holder.kill()
        holder.communicate()
    by = [gpu["busy_by"] for gpu in answer["gpus"]]
    assert by[0].startswith("2500 MB in use without a lease")
    assert re.fullmatch(rf"leased by \S+ \(pid {holder.pid}\)", by[1])
    issues = {(issue["code"], issue["gpu"]) for issue in answer["issues"]}
    assert {("sick", "GPU-2"), ("busy", "GPU-0")} <= issues
    assert answer["recommended"]["resources"] == "gpu=2"


@pytest.mark.parametrize(
    ("mask", "arguments", "status", "severity", "visible"),
    [
        ("0", (), 0, "note", [True, False]),
        ("", (), 0, "warning", [False, False]),
        ("-1", (), 0, "warning", [False, False]),
        ("GPU-1", ("--devices", "0"), 1, "error", [False]),
    ],
)
def test_gpus_hidden_by_the_environment(doctor, mask, arguments, status, severity, visible):
    check = doctor(Gpu("GPU-0"), Gpu("GPU-1"))
    check.environment["CUDA_VISIBLE_DEVICES"] = mask
    answer = check("--json", *arguments, status=status)
    (issue,) = (one for one in answer["issues"] if one["code"] == "hidden")
    assert issue["severity"] == severity
    assert f"CUDA_VISIBLE_DEVICES={mask}" in issue["what"] or mask == ""
    assert [gpu["visible"] for gpu in answer["gpus"]] == visible


def test_mig_slices_are_devices_of_their_own(doctor):
    slices = [Slice("MIG-a", 10_000), Slice("MIG-b", 20_000, 2_000, 2)]
    answer = doctor(Gpu("GPU-0", slices=slices), Gpu("GPU-1"))("--json")
    ids = [(gpu["id"], gpu["uuid"]) for gpu in answer["gpus"]]
    assert ids == [(0, "MIG-a"), (0, "MIG-b"), (1, "GPU-1")]
    assert answer["recommended"]["resources"] == "gpu=2"


@pytest.mark.parametrize(
    ("system", "world", "code", "severity", "remedy"),
    [
        ({"init_error": 18}, {}, "driver", "warning", "Reboot"),
        ({"init_error": 999}, {}, "driver", "warning", "--gpus all"),
        ({}, NO_CUDA, "torch", "error", "device: cpu"),
        ({}, {"missing": True}, "torch", "error", "featuremill[esm2]"),
        (NO_LIBRARY, {"missing": True}, "torch", "error", "featuremill[esm2]"),
    ],
)
def test_driver_and_torch_that_do_not_go_together(doctor, system, world, code, severity, remedy):
    status = 1 if severity == "error" else 0
    answer = doctor(Gpu("GPU-0"), system=system, **world)("--json", status=status)
    (issue,) = (one for one in answer["issues"] if one["code"] == code)
    assert issue["severity"] == severity
    assert remedy in issue["remedy"]
    assert codes(answer) == {code}


def test_a_torch_without_cuda_hides_nobody_who_uses_a_gpu(doctor):
    gpus = Gpu("GPU-0", processes={os.getpid(): 7000}), Gpu("GPU-1"), Gpu("GPU-2", lost=True)
    answer = doctor(*gpus, **NO_CUDA)("--json", status=1)
    assert codes(answer) == {"torch", "busy", "gpu-fails"}
    assert [gpu["state"] for gpu in answer["gpus"]] == ["busy", "not usable", "lost"]


def test_an_older_minor_version_of_cuda_is_no_trouble_while_the_gpu_works(doctor):
    assert codes(doctor(Gpu("GPU-0"), system={"cuda": 12040}, cuda="12.8")("--json")) == set()


def test_devices_are_chosen_by_number_or_uuid_and_checked(doctor):
    check = doctor(*(Gpu(uuid) for uuid in uuids(4)))
    assert "GPU 7 does not exist; this machine has 0–3." in check("--devices", "7", status=2)
    for token in ("GPU-x", "GPU-"):
        said = check("--devices", f"0,{token}", status=2)
        assert f"'{token}' is not the start of one device's UUID; this machine has GPU-0, " in said
    answer = check("--json", "--devices", "2,GPU-0")
    assert [gpu["id"] for gpu in answer["gpus"]] == [2, 0]
    assert answer["recommended"]["resources"] == "gpu=2"
    nowhere = doctor(system=NO_LIBRARY)("--devices", "0", status=2)
    assert "GPU 0 does not exist; this machine has no GPU" in nowhere


def test_the_page_for_people_fits_80_columns(doctor):
    slices = [Slice("MIG-11111111-2222-3333-4444-555555555555", 10_000)]
    gpus = [
        *MIXED,
        Gpu("GPU-4", "NVIDIA RTX 6000 Ada Generation Max-Q", lost=True),
        Gpu("GPU-5", compute_mode=3, processes={os.getpid(): 7000}),
        Gpu("GPU-6", slices=slices),
    ]
    page = doctor(*gpus)("--model", "esm2_t33_650M_UR50D")
    assert "Ready: a run should use 4 of 7 GPUs." in page
    assert max(map(len, page.splitlines())) <= 80
    page = doctor(Gpu("GPU-0"), **NO_CUDA)(status=1)
    assert page.startswith("Not ready: 1 problem prevents a run.")
    assert "To run" not in page
    assert max(map(len, page.splitlines())) <= 80


def test_an_unusable_lock_folder_is_an_issue(doctor, tmp_path):
    check = doctor(Gpu("GPU-0"))
    (tmp_path / "file").touch()
    check.environment["FEATUREMILL_LEASE_FOLDER"] = str(tmp_path / "file")
    answer = check("--json", status=1)
    (issue,) = (each for each in answer["issues"] if each["severity"] == "error")
    assert issue["code"] == "files" and "FEATUREMILL_LEASE_FOLDER" in issue["remedy"]


@pytest.mark.parametrize(
    ("free_gb", "is_writable", "severity"),
    [(50, True, None), (3, True, "warning"), (0.1, True, "error"), (50, False, "error")],
)
def test_a_full_disk_and_a_read_only_folder(
    tmp_path, monkeypatch, gpu_node, free_gb, is_writable, severity
):
    for name, value in gpu_node().environment.items():
        monkeypatch.setenv(name, value)
    usage = shutil.disk_usage(tmp_path)._replace(free=int(free_gb * 1e9))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(os, "access", lambda *_: is_writable)
    issues = checks.issues_of(facts_of(tmp_path / "results"))
    assert [(each.code, each.severity) for each in issues] == [("files", severity)] * bool(severity)


def facts_of(folder):
    """Return what is found on a machine without a GPU."""
    cpu = Device("cpu", "cpu", "", False, 0, 8_000)
    return Findings(Node(error=12), (), False, {}, cpu, folder, Subject(), "", "", {})


def test_a_card_on_the_bus_without_a_driver_is_missed(tmp_path, monkeypatch):
    facts = facts_of(tmp_path)
    monkeypatch.setattr(checks, "PCI_DEVICES", tmp_path)
    assert "driver" not in {each.code for each in checks.issues_of(facts)}
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "vendor").write_text("0x10de\n")
    assert "driver" in {each.code for each in checks.issues_of(facts)}


SPOILED = """
    import sys
    if "featuremill.doctor.trial" in sys.orig_argv:
        import torch
        from featuremill.workloads.esm2 import attention, kernels, matmul
        from featuremill.workloads.esm2.kernels import TORCH
        (*_, good), (*_, plain) = (
            f(torch.device("cpu"), torch.float32, *more)
            for f, more in ((attention.backends, (4, 64)), (matmul.forms, ()))
        )
        def fail(*_):
            raise RuntimeError("this kernel was not built")
        class Bad(matmul.Plain):
            name = "bad products"
            def gelu(self, rows):
                return super().gelu(rows) + 1
        def bad_norm(*given):
            return TORCH.add_norm(*given) * float("nan")
        attention.backends = lambda *_: [attention.Backend("bad attention", fail), good]
        matmul.forms = lambda *_: [Bad, plain]
        bad = TORCH._replace(name="bad kernels", add_norm=bad_norm)
        kernels.ways = lambda *_: [bad, TORCH]
"""


def test_the_rung_below_is_named_with_its_reason(doctor, tmp_path):
    """Every kind of operation is spoiled in the child, which loads a layer as a worker would."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(SPOILED))
    check = doctor(system=NO_LIBRARY, real_torch=True)
    check.environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{check.environment['PYTHONPATH']}"
    answer = check("--json", "--model", "esm2_t48_15B_UR50D", status=None)
    (ways,) = answer["ways"]
    assert ways["device"] == "cpu" and ways["error"] is None
    assert (ways["products"], ways["kernels"]) != ("bad products", "bad kernels")
    assert "per sequence" in ways["attention"]
    reasons = [issue["what"] for issue in answer["issues"] if issue["code"] == "steps-down"]
    assert reasons == ways["why"] and len(reasons) == 3
    for bad, why in (
        ("bad attention", "(RuntimeError: this kernel was not built)"),
        ("bad kernels", "(relative error nan, at most"),
        ("bad products", "(relative error"),
    ):
        (reason,) = (reason for reason in reasons if bad in reason)
        assert why in reason and "instead" in reason


def test_each_gpus_ways_are_said_and_a_check_that_dies_is_a_finding(doctor):
    why = "attention of FA2 fails its check (num_splits), so SDPA computes it instead: slower."
    lacks = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    slices = [Slice("MIG-a", 5_000)]
    check = doctor(
        *(Gpu(uuid) for uuid in uuids(4)),
        Gpu("GPU-4", slices=slices),
        check={"GPU-1": "crashes", "GPU-2": "rotary is wrong", "MIG-a": lacks},
        why={"GPU-0": [why], "GPU-3": [why]},
    )
    answer = check("--json", "--model", "esm2_t48_15B_UR50D", status=None)
    ways = {one["device"]: one for one in answer["ways"]}
    assert ways["GPU-0"]["attention"] == "heads of 128" and ways["GPU-0"]["why"] == [why]
    assert "dtype" not in ways["GPU-1"] and "SIGSEGV" in ways["GPU-1"]["error"]
    found = {(issue["code"], issue["gpu"]): issue for issue in answer["issues"]}
    assert found["steps-down", None]["what"] == f"GPU 0 (0), GPU 3 (3): {why}"
    assert "torch works, but a test" in found["gpu-fails", "GPU-1"]["what"]
    assert "RuntimeError: rotary is wrong" in found["gpu-fails", "GPU-2"]["what"]
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in found["gpu-fails", "MIG-a"]["what"]
    assert [gpu["accessible"] for gpu in answer["gpus"]] == [True, False, False, True, False]
    page = check("--devices", "0,1")
    assert "\n  GPU 0 (0)  bf16: attention heads of 64; products torch; kernels triton 3\n" in page
    assert "GPU 1 (1)  bf16" not in page
    assert max(map(len, page.splitlines())) <= 80


def test_a_display_leaves_its_gpu_ready(doctor):
    me = os.getpid()
    answer = doctor(
        Gpu("GPU-0", total_mb=8_000, used_mb=1_300, more={"display": 1}),
        Gpu("GPU-1", graphics={me: 1_300, 1: 800}, processes={me: 1_300}),
        Gpu("GPU-2", total_mb=8_000, graphics={1: 300}),
    )("--json")
    by = [gpu["busy_by"] for gpu in answer["gpus"]]
    assert by[0] is by[2] is None and f"used by process {me} (" in by[1]
    found = {(issue["code"], issue["gpu"]): issue for issue in answer["issues"]}
    assert set(found) - {("files", None)} == {("busy", "GPU-1")}
    assert answer["recommended"]["resources"] == "gpu=2"


@pytest.mark.gpu
def test_a_real_gpu_is_found_and_used(environment, tmp_path):
    words = ("featuremill", "doctor", "--json")
    answer = json.loads(Desk(tmp_path, environment).type(*words).out)
    jsonschema.validate(answer, SCHEMA)
    assert answer["gpus"] and answer["torch"]["arch_list"]
    assert {gpu["accessible"] for gpu in answer["gpus"] if gpu["visible"]} == {True}


def test_the_architectures_of_published_models_are_known_without_torch():
    weights = estimates.weights_ahead("esm2_t33_650M_UR50D")
    assert weights.metadata["attention_heads"] == "20"
    model = estimates.model_of(weights)
    assert (model.sizes.num_layers, model.sizes.width, model.file_dtype) == (33, 1280, "fp32")
    assert model.num_matrix_numbers + model.num_other_numbers == pytest.approx(650e6, rel=0.01)
    assert estimates.model_of(estimates.weights_ahead("esm2_t36_3B_UR50D")).file_dtype == "fp16"
    for name, published in sources.PUBLISHED.items():
        model = estimates.model_of(estimates.weights_ahead(name))
        # A checkpoint weighs what its numbers do, and a head of the language model as well.
        assert 0.9 < published.gigabytes * 1e9 / model.file_bytes < 1.2
    weights = estimates.weights_ahead("mill_t6_8M")
    model = estimates.model_of(weights)
    assert (model.sizes.num_layers, model.sizes.width, model.file_dtype) == (6, 320, "bf16")
    assert weights.metadata["attention_heads"] == "20"


PEAK = """
    import sys
    from pathlib import Path
    import numpy as np, pyarrow, torch
    from featuremill.base import this_process
    from featuremill.workloads.esm2.encoder import DTYPES, Encoder
    from featuremill.workloads.esm2.packing import pack
    torch.set_num_threads(1)
    path, layers, width, kind, dtype, tokens = sys.argv[1:]
    metadata = {"num_layers": layers, "embed_dim": width, "attention_heads": "20"}
    device = torch.device(kind)
    encoder = Encoder(Path(path), metadata, [device], DTYPES[dtype])
    batch = pack([np.full(512, 5)] * (int(tokens) // 512), int(tokens), device)
    for _, hidden_TD in encoder.representations(batch, [int(layers)]):
        hidden_TD.sum()
    if kind == "cuda":
        print(torch.cuda.max_memory_reserved() >> 20)
    else:
        print(this_process.peak_of_process_mb())
"""


@pytest.fixture(scope="module")
def weights_of(tmp_path_factory):
    """Return a function that returns a file with weights of a model's shape."""
    folder = tmp_path_factory.mktemp("shapes")

    def file(model):
        path = folder / f"{model.sizes.num_layers}-{model.file_dtype}.safetensors"
        if not path.exists():
            tensors = {
                entry.name: torch.full(entry.shape, 0.01, dtype=DTYPES[model.file_dtype])
                for entry in layout.entries(layout.FAIR_ESM, model.sizes)
            }
            save_file(tensors | {layout.FREQUENCIES: torch.ones(32)}, path)
        return path

    yield file
    shutil.rmtree(folder)  # hundreds of MB


def model_of(num_layers, file_dtype):
    return estimates.Model(Sizes(ESM2, num_layers, 20, 1280, 5120), file_dtype)


def measured_peak_mb(path, environment, model, kind, dtype, batch_tokens):
    """Return the peak of running a model of that shape."""
    sizes = (model.sizes.num_layers, model.sizes.width)
    words = ("-c", textwrap.dedent(PEAK), path, *sizes, kind, dtype, batch_tokens)
    done = python(*words, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(
    ("num_layers", "file_dtype", "dtype", "batch_tokens"),
    [
        (4, "fp32", "fp32", 512),  # mostly weights
        pytest.param(1, "fp32", "fp32", 8192, marks=pytest.mark.slow),  # mostly activations
        pytest.param(4, "fp16", "bf16", 4096, marks=pytest.mark.slow),
        pytest.param(4, "fp32", "bf16", 4096, marks=pytest.mark.slow),
    ],
)
def test_the_estimate_is_within_30_per_cent_of_the_measured_peak(
    weights_of, environment, num_layers, file_dtype, dtype, batch_tokens
):
    model = model_of(num_layers, file_dtype)
    measured = measured_peak_mb(weights_of(model), environment, model, "cpu", dtype, batch_tokens)
    estimated = estimates.estimate_mb(model, "cpu", dtype, batch_tokens)
    assert estimated == pytest.approx(measured, rel=0.3)
    # The part that is the model's own, without what any process takes.
    own = measured - estimates.CPU_PROCESS_MB
    assert estimated - estimates.CPU_PROCESS_MB == pytest.approx(own, rel=0.3)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_layers", "batch_tokens"), [(24, 2048), (4, 32768)])
def test_the_estimate_for_a_gpu_is_within_30_per_cent_of_the_measured_peak(
    weights_of, environment, num_layers, batch_tokens
):
    model = model_of(num_layers, "fp32")
    measured = measured_peak_mb(weights_of(model), environment, model, "cuda", "bf16", batch_tokens)
    estimated = estimates.estimate_mb(model, "cuda", "bf16", batch_tokens)
    assert estimated - estimates.CUDA_PROCESS_MB == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_on_a_terminal_it_says_what_it_waits_for(monkeypatch, caplog, is_terminal):
    monkeypatch.setattr(trial, "ask", lambda *_, **__: ([], "no answer"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with caplog.at_level(logging.INFO, "featuremill.doctor"):
        assert trial.try_devices(["cpu"], "esm2", None, 9.0)["cpu"].error == "no answer"
    assert ("torch computes a little on the CPU" in caplog.text) == is_terminal
