"""How a run of the tests ends that something ends early."""

import signal
import subprocess
import sys

import pytest
from conftest import ROOT
from programs import wait_for

TESTS = """
import ctypes, os, signal, time
import pytest

def test_well():
    pass

def test_crash():
    ctypes.string_at(0)

def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.timeout(0.2, method="signal")
def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as a native loop keeps it out
    time.sleep(600)

def test_waits():
    open("waits", "w").close()
    time.sleep(600)
"""


@pytest.fixture
def suite(tmp_path, environment):
    """Return a function that starts pytest with two workers on one of the tests above."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text("def test_well():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 300\n")
    environment = {**environment, "PYTHONPATH": str(ROOT / "tests")}
    words = ["-p", "ending", "-p", "no:cacheprovider", "-q", "-n", "2", "--dist", "loadfile"]

    def start(test):
        command = [sys.executable, "-m", "pytest", *words, "-k", f"well or {test}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)

    return start


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("test_crash", "Fatal Python error: Segmentation fault"),
        pytest.param("test_killed", "Not properly terminated", marks=pytest.mark.slow),
        pytest.param("test_hangs", "Timeout (0:00:00.400000)!", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_dies_ends_the_run_and_names_its_test(test, said, suite):
    process = suite(test)
    out, _ = process.communicate(timeout=200)
    assert process.returncode not in (0, 5), out
    assert f"crashed while running 'test_it.py::{test}'" in out
    assert said.replace(".", "") in out.replace(".", ""), "a dot of another test may be between"
    assert "replacing" not in out


def test_sigterm_ends_the_run(suite, tmp_path):
    process = suite("test_waits")
    wait_for((tmp_path / "waits").exists, 100)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, out
