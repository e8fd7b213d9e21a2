"""featuremill.compute on several devices: processes on the CPU, and GPUs of a simulated node."""

import json
import signal
import subprocess
import sys
import tempfile

import forks
import numpy as np
import psutil
import pytest
from conftest import PLUGINS, ROOT
from nvml_node import uuid
from programs import random_records, wait_for
from test_api import assert_same

import featuremill
from featuremill import api

SEQUENCES = dict(random_records(30))
PRINTED = """
import json, sys
import featuremill

words = json.loads(sys.argv[1])
frame = featuremill.compute(words.pop("inputs"), "poison", words.pop("options"), **words)
print(json.dumps([frame.attrs["jobs"], [*frame.index]]))
"""
"""A call, and what it printed of its jobs."""


@pytest.fixture
def plugins(environment, monkeypatch, forked):
    """Let this process and those that it starts find the workloads of the tests."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])


@pytest.fixture
def call(environment, gpu_node):
    """Return a function that starts a process with a call on a node of 3 GPUs."""
    variables = {**environment, **gpu_node(3).environment, "PYTHONPATH": environment["PYTHONPATH"]}

    def started(options=None, inputs=SEQUENCES, **more):
        words = {"inputs": inputs, "options": options or {}, **more}
        command = [sys.executable, "-c", PRINTED, json.dumps(words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return forks.ForkedText(command, env=variables, **pipes)

    return started


def ended(process):
    """Return the devices and the ids of each job of a call."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    jobs, index = json.loads(out)
    assert sorted(id for job in jobs for id in job["ids"]) == sorted(index) == sorted(SEQUENCES)
    return {job["device"]: job["ids"] for job in jobs}, err


@pytest.mark.usefixtures("forked")
def test_processes_give_the_numbers_of_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    records = SEQUENCES | {"equal": SEQUENCES["p0.3"]}
    options, seen = {"per_residue": True, "pool": ["mean", "bos"]}, []
    one = featuremill.compute(records, "esm2", options, device="cpu")
    several = featuremill.compute(
        records, "esm2", options, workers=2, progress=lambda *told: seen.append(told)
    )
    assert_same(several, one)
    jobs = several.attrs.pop("jobs")
    assert len(jobs) == 2 and all(job["seconds"] > 0 and job["ids"] for job in jobs)
    assert sorted(id for job in jobs for id in job["ids"]) == sorted(records)
    (job,) = one.attrs.pop("jobs")
    assert job["ids"] == list(records) and several.attrs == one.attrs
    assert seen == sorted(seen) and seen[-1] == (30, 30)
    embedded = featuremill.embed([*records.values()], workers=2)
    assert embedded.tobytes() == np.stack(one["mean_layer_6"]).tobytes()
    # A process that is forked has imported all of torch, which makes a folder.
    left = [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")]
    assert left == [] and api._loaded == []


def test_a_record_that_kills_its_worker_fails_alone(plugins):
    records = {**SEQUENCES, "bad": "KILLME"}
    with pytest.warns(UserWarning, match="1 record left out"):
        frame = featuremill.compute(records, "poison", workers=2, max_failed=1)
    assert list(frame.index) == list(SEQUENCES)
    (failed,) = frame.attrs["failed"]
    assert failed["id"] == "bad" and failed["reason"].startswith("crashed the worker twice")
    with pytest.raises(ValueError, match="record 'bad' failed: crashed the worker twice"):
        featuremill.compute({"bad": "KILLME"}, "poison", workers=2)
    with pytest.warns(UserWarning, match="1 record left out"):
        frame = featuremill.compute({"bad": "REFVSE"}, "poison", workers=2, max_failed=1)
    assert len(frame) == 0 and list(frame.columns)[-1] == "letters"


def test_a_job_that_is_killed_goes_on(plugins, tmp_path):
    doom, computed = tmp_path / "doom", tmp_path / "computed"
    doom.write_text("run 2 supervisor")
    options = {"doom": str(doom), "computed": str(computed)}
    frame = featuremill.compute(SEQUENCES, "poison", options, workers=2)
    assert list(frame.index) == list(SEQUENCES) and not doom.exists()
    # What is in the journal is computed once: at most two batches of four were not.
    assert len(computed.read_text().split()) <= len(SEQUENCES) + 8


def test_an_error_of_a_job_is_that_of_the_call(plugins, tmp_path):
    with pytest.raises(Exception, match=r"KeyError: 'no such layer'") as raised:
        featuremill.compute(SEQUENCES, "poison", {"broken_load": True}, workers=2)
    assert "Traceback" in raised.value.__notes__[0]
    assert tempfile.gettempdir() not in str(raised.value)


def test_each_gpu_gets_a_process_and_a_share(call, tmp_path):
    hold, spans = tmp_path / "hold", tmp_path / "spans"
    hold.touch()
    process = call({"hold": str(hold), "spans": str(spans)}, gpus=2)
    wait_for(lambda: spans.exists() and len({*spans.read_text().split()[2::4]}) == 2)
    hold.unlink()
    jobs, _ = ended(process)
    assert len(jobs) == 2 and all("GPU" in device for device in jobs)


@pytest.mark.parametrize(("more", "number"), [({"gpus": [2]}, 2), ({"device": "cuda:1"}, 1)])
def test_a_gpu_that_is_named_computes(call, tmp_path, more, number):
    spans = tmp_path / "spans"
    ended(call({"spans": str(spans)}, **more))
    assert {*spans.read_text().split()[2::4]} == {uuid(number)}


def test_two_calls_do_not_meet_on_a_gpu(call, tmp_path):
    hold, spans, other = tmp_path / "hold", tmp_path / "spans", tmp_path / "other"
    hold.touch()
    first = call({"hold": str(hold), "moments": str(spans)})
    wait_for(spans.exists)
    jobs, _ = ended(call({"spans": str(other)}))
    assert {*other.read_text().split()[2::4]} <= {uuid(1), uuid(2)} and len(jobs) == 1
    unleased, _ = ended(call(lease=False))
    hold.unlink()
    assert ended(first)[0].keys() == unleased.keys(), "the first GPU, in the process of the call"


def test_ctrl_c_leaves_no_process(call, tmp_path):
    hold, moments = tmp_path / "hold", tmp_path / "moments"
    hold.touch()
    process = call({"hold": str(hold), "moments": str(moments)}, gpus="all")
    wait_for(lambda: moments.exists() and len({*moments.read_text().split()[::3]}) == 3)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 6, "three jobs, each with a worker"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in err
    assert not [each for each in below if each.is_running()]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"gpus": 2}, "gpus=2: no NVIDIA GPU can be used here; `featuremill doctor`"),
        ({"gpus": "two"}, "gpus='two': give a number of GPUs, \"all\", or a list"),
        ({"gpus": []}, r"gpus=\[\]: give a number"),
        ({"workers": 0}, "workers=0: give a number of processes of at least 1"),
        ({"workers": True}, "workers=True: give a number of processes of at least 1"),
        ({"workers": 2, "gpus": 1}, "gpus=1 and workers=2: both say where to compute"),
        ({"device": "cuda"}, "device='cuda': no NVIDIA GPU can be used here"),
        ({"device": "cuda:0"}, "device='cuda:0': this process sees 0 GPUs"),
        ({"workers": 2, "lease": False}, "lease=False is for a call in this process"),
    ],
)
def test_where_it_cannot_compute_is_a_sentence_about_the_argument(more, sentence):
    for function in (featuremill.compute, featuremill.embed):
        with pytest.raises(featuremill.UserError, match=sentence):
            function(["MKV"], **more)


def test_messages_of_embed_name_its_arguments():
    for more, sentence in (
        ({"dtype": "bf17"}, "^embed: dtype: give one of"),
        ({"layers": 9}, "^layers: there is no layer 9"),
    ):
        with pytest.raises(ValueError, match=sentence):
            featuremill.embed(["MKV"], device="cpu", **more)


TYPED = """
import featuremill
from featuremill import UserError

try:
    print(featuremill.embed(["MKV"]).shape, featuremill.embed(["MKV"], workers=2).dtype)
    print(featuremill.embed(["MKV"], pool="none", per_residue=True)[0].shape)
    reveal_type(featuremill.run({"inputs": "my.fa"}))
except UserError as error:
    print(error.args)
"""


@pytest.mark.slow
def test_what_a_program_does_with_vectors_passes_mypy(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(
        [*command, str(tmp_path / "typed.py")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
