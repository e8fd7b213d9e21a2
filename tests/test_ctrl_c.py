"""Ctrl-C at any moment ends with one line or none, and never with a traceback."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

HOOK = """
import importlib.abc, os, signal, sys

class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        stop_at, _, who = os.environ.get("STOP_AT", "").partition("@")
        if name == stop_at and who in " ".join(sys.orig_argv):
            sys.meta_path.remove(self)
            alone = who.endswith("worker")  # or the others end it before it says anything
            os.kill(os.getpid(), signal.SIGINT) if alone else os.killpg(0, signal.SIGINT)

sys.meta_path.insert(0, Stop())
"""
"""A sitecustomize.py: stops all processes of the group when a module is imported, as a terminal
does. `STOP_AT=module@words` means only the process with these words on its command line."""


@pytest.fixture
def stopped_at(tmp_path, environment):
    """Return a function that runs words until they import a module; what they said comes back."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    (tmp_path / "my.fa").write_text(">p1\nMKVLAAGIVGL\n")
    config = {"inputs": "my.fa", "run": "my", "workload": "composition", "device": "cpu"}
    (tmp_path / "my.yaml").write_text(json.dumps(config))

    def run(module, *words):
        paths = os.pathsep.join([str(tmp_path / "hook"), environment["PYTHONPATH"]])
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": paths, "STOP_AT": module},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            start_new_session=True,
        )
        for noise in ("Traceback", "KeyboardInterrupt", "Fatal", "ignored in", "File "):
            assert noise not in done.stdout, done.stdout
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize(
    "module",
    ["featuremill.base.log", "featuremill.plan.command", "pyarrow", "featuremill.plan.reading"],
)
def test_a_verb_that_starts_ends_without_a_word(stopped_at, module):
    verb = ["featuremill", "plan", "results/my", "--config", "my.yaml"]
    assert stopped_at(module, *verb) == (-signal.SIGINT, "")


def test_a_worker_that_starts_ends_without_a_word(stopped_at, verbs):
    (entry,) = verbs.plan([("p1", "MKVLAAGIVGL")])["shards"]
    extract = ["featuremill", "extract", "results/test", entry["shard"]]
    status, said = stopped_at("featuremill.extract@featuremill.extract.worker", *extract)
    assert status == 128 + signal.SIGINT and "error" not in said, said


def test_a_verb_that_imports_while_it_works_ends_without_a_word(stopped_at):
    status, said = stopped_at(
        "featuremill.workloads.esm2", "featuremill", "init", "my.fa", "--force"
    )
    assert status == 128 + signal.SIGINT and said == ""


def test_a_verb_that_is_stopped_cleans_up_once_and_waits_for_no_thread(environment):
    """The kernel sends a signal for each thread of a parent that is killed."""
    script = """
import os, signal, sys, threading
sys.argv = ["-m", "status"]
from featuremill import __main__
from featuremill.status import command

def run(parsed):
    threading.Thread(target=threading.Event().wait).start()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("clean")

command.run = run
sys.exit(__main__.main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "clean\n", "")


@pytest.mark.parametrize("module", ["snakemake.cli", "snakemake.workflow"])
def test_a_run_that_starts_ends_without_a_word(stopped_at, module):
    assert stopped_at(module, "featuremill", "run", "my.yaml") == (-signal.SIGINT, "")


def test_a_run_that_is_stopped_before_its_jobs_says_how_to_go_on(stopped_at):
    words = ["run", "my.yaml", "--cores", "1"]
    status, said = stopped_at("featuremill.flow.preflight", "featuremill", *words)
    assert status == 128 + signal.SIGINT
    assert said == (
        "Stopped. Nothing computed is lost. The same command continues:\n"
        "    featuremill run my.yaml --cores 1\n"
    )


def test_a_run_whose_job_is_stopped_while_it_starts_says_how_to_go_on(stopped_at):
    words = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "my.yaml", "--cores", "1"]
    words += ["--workflow-profile", str(ROOT / "profiles" / "default")]
    status, said = stopped_at("featuremill.lease.devices@featuremill plan", "snakemake", *words)
    assert status == 1
    assert "plan: it was stopped." in said
    assert f"The same command continues:\n    snakemake {shlex.join(words)}\n" in said


def test_pressed_again_it_changes_nothing(environment):
    """While jobs end, which Snakemake waits for."""
    script = """
import os, signal, sys
from featuremill.flow.screen import Failures, _answer_ctrl_c

_answer_ctrl_c(Failures())
sys.argv = ["snakemake", "--cores", "2"]
for _ in range(2):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        print("waiting", flush=True)
    except SystemExit as error:
        print("jobs are ending", error.code, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout == "jobs are ending 130\nwaiting\n"
    assert done.stderr == (
        "Stopped. Nothing computed is lost. The same command continues:\n    snakemake --cores 2\n"
    )
