"""featuremill.run, the command for programs, and the exit statuses of the command."""

import hashlib
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from conftest import PLUGINS
from programs import Desk, fasta, random_records, wait_for

import featuremill
from featuremill.base.errors import WorkloadError
from featuremill.store import command_line

pytestmark = pytest.mark.usefixtures("forked")
RECORDS = random_records(12)
CONFIG = {"run": "my", "inputs": "my.fa", "outputs": ["parquet", "npy"], "shards": {"cost": 60}}


@pytest.fixture
def folder(tmp_path, environment, monkeypatch):
    """Work in a folder with my.fa, in which commands find the workloads of the tests."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "my.fa").write_text(fasta(RECORDS))
    return tmp_path / "here"


def digests(run):
    names = ("embeddings.parquet", "embeddings.npy", "records.parquet", "ids.txt")
    there = [name for name in names if (run / name).exists()]
    return {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in there}


def test_a_call_gives_the_bytes_of_the_command(folder, environment):
    seen = []
    config = {**CONFIG, "workload": "composition", "outputs": ["parquet", "npy"]}
    config["options"] = {"hydropathy": False}
    run = featuremill.run(config, cores=2, progress=lambda *told: seen.append(told))
    assert str(run) == "results/my" and len(featuremill.load(run)) == len(RECORDS)
    assert seen == sorted(seen) and seen[-1] == (12, 12)
    assert command_line.again(run) == "featuremill run my.yaml --cores 2"
    other = folder.parent / "there"
    other.mkdir()
    for name in ("my.fa", "my.yaml"):
        (other / name).write_bytes((folder / name).read_bytes())
    Desk(other, environment).type("featuremill", "run", "my.yaml", "--cores", "2")
    ours = digests(run)
    assert len(ours) > 2 and ours == digests(other / "results" / "my")
    made = (run / "embeddings.parquet").stat().st_mtime_ns
    assert featuremill.run("my.yaml") == run
    with pytest.raises(ZeroDivisionError):
        featuremill.run("my.yaml", progress=lambda *_: 1 / 0)
    assert (run / "embeddings.parquet").stat().st_mtime_ns == made, "nothing was left to do"
    (folder / "my.yaml").write_text("inputs: mine.fa\n")
    with pytest.raises(ValueError, match=r"my.yaml: this file is not one that featuremill.run wr"):
        featuremill.run(config)
    assert (folder / "my.yaml").read_text() == "inputs: mine.fa\n"


def test_the_sentence_of_what_went_wrong_is_raised(folder):
    with pytest.raises(featuremill.UserError, match="no such key here; did you mean 'inputs'"):
        featuremill.run({"input": "my.fa", "run": "a"})
    with pytest.raises(featuremill.UserError, match=r"none.fa: this file does not exist"):
        featuremill.run({"inputs": "none.fa", "run": "b", "workload": "composition"})
    config = {**CONFIG, "run": "c", "workload": "poison", "options": {"broken_load": True}}
    with pytest.raises(WorkloadError, match="KeyError: 'no such layer'") as raised:
        featuremill.run({**config, "outputs": ["parquet"], "device": "cpu"}, cores=1)
    assert "\n" not in str(raised.value)
    assert "featuremill status results/c" in raised.value.__notes__[0]


CALLED = """
import json, sys, featuremill
featuremill.run(json.loads(sys.argv[1]), cores=2)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_run_and_the_call_goes_on(folder):
    hold, moments = folder / "hold", folder / "moments"
    hold.touch()
    options = {"hold": str(hold), "moments": str(moments)}
    config = {**CONFIG, "workload": "poison", "options": options, "device": "cpu"}
    config["outputs"] = ["parquet"]
    words = [sys.executable, "-c", CALLED, json.dumps(config)]
    more = {"cwd": folder, "env": os.environ, "text": True}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, **more)
    wait_for(lambda: moments.exists() or process.poll() is not None)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert "KeyboardInterrupt" in err and len(below) > 2
    wait_for(lambda: not [each for each in below if each.is_running()])
    hold.unlink()
    assert len(featuremill.load(featuremill.run(config, cores=2))) == len(RECORDS)


def test_strict_ends_with_a_status_of_its_own_where_a_record_has_no_values(folder, environment):
    (folder / "my.fa").write_text(fasta([*RECORDS, ("bad", "MK1")]))
    (folder / "my.yaml").write_text(json.dumps({**CONFIG, "workload": "composition"}))
    desk = Desk(folder, environment)
    words = ["featuremill", "run", "my.yaml", "--cores", "1"]
    assert desk.type(*words).status == 0
    for typed in ([*words, "--strict"], ["featuremill", "run", "--strict", *words[2:]]):
        said = desk.type(*typed, status=6)
        sentence = "--strict: 1 record without values; results/my/failed.tsv has the reasons."
        assert sentence in said.err
    assert command_line.again(folder / "results" / "my").endswith("my.yaml --strict --cores 1")
    (folder / "my.fa").write_text(fasta(RECORDS))
    assert desk.type(*words, "--strict").status == 0
