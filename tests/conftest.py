"""What all test files share: an environment that is nobody's, and the fixtures."""

import gc
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import forks
import pytest
from nvml_node import CUDA_VARIABLES, gpu_node, nvml_library  # noqa: F401  (two are fixtures)
from programs import Verbs
from slurm_cluster import slurm_cluster  # noqa: F401  (a fixture)

from featuremill.base import this_process

pytest_plugins = ["skips", "ending"]

ROOT = Path(__file__).parent.parent
PLUGINS = ROOT / "tests" / "plugins"

# As in the supervisor: threads that spin at barriers make tests on a busy machine 10 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Or numpy starts threads in each process: a third of what its import takes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

THREADS_BESIDE_A_GPU = 4
"""Of each process of tests, for the twins on the CPU."""

OF_TESTS = ("FEATUREMILL_CHAOS_", "FEATUREMILL_ESM")
"""Beginnings of variables that are meant for the tests; others are what a user set for runs."""


def pytest_configure(config):
    for name in list(os.environ):
        if name.startswith(("FEATUREMILL_", "SNAKEMAKE_")) and not name.startswith(OF_TESTS):
            del os.environ[name]
    _answer_what_is_ignored()
    if not hasattr(config, "workerinput"):
        forks.set_up()
    if path := os.environ.get("PYTHONPATH"):  # what is relative there is meant from here
        absolute = (str(Path(part).resolve()) for part in path.split(os.pathsep))
        os.environ["PYTHONPATH"] = os.pathsep.join(absolute)
    # As in an active environment: then commands that are shown have no path before them.
    programs = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    if config.option.markexpr == "gpu":  # pytest itself is on the GPU then, beside its jobs
        os.environ["FEATUREMILL_POLICY"] = "memory"
        # Processes side by side, each with a thread a core, take fifty times as long.
        os.environ.setdefault("OMP_NUM_THREADS", str(THREADS_BESIDE_A_GPU))
    if "not gpu" in config.option.markexpr:  # which of this machine's GPUs is meant means none then
        for name in CUDA_VARIABLES:
            os.environ.pop(name, None)


def _answer_what_is_ignored():
    """Have the processes that tests start answer signals, where we were told to ignore them: nohup
    ignores the end of a terminal, and a shell's `&` Ctrl-C. A handler, unlike that, is not theirs.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


@pytest.fixture(scope="session", autouse=True)
def nothing_of_the_users(tmp_path_factory):
    """Have tests work in an empty folder and with a cache of their own: a checkout holds what its
    user left there, and their cache is theirs."""
    folder = tmp_path_factory.mktemp("elsewhere")
    before = Path.cwd()
    os.environ["FEATUREMILL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.chdir(folder)
    yield
    os.chdir(before)


LONGEST = (
    *("test_workflow", "test_heads", "test_extract", "test_doctor", "test_esm2", "test_fallbacks"),
    *("test_troubleshooting", "test_contract", "test_telemetry", "test_gpu_workflow", "test_api"),
    *("test_faults", "test_kernels", "test_lease", "test_bench", "test_llm_json", "test_scores"),
    *("test_workloads", "test_security", "test_module", "test_start", "test_plan", "test_demo"),
)
"""Files of tests that take longest: side by side with others, they had better begin first."""


def pytest_collection_modifyitems(items):
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Never look for garbage in what is collected, which stays to the end: that was 3 CPU s of the
    collection and half of what the tests themselves took."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Nor in what a file of tests has imported."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def pytest_unconfigure():
    gc.unfreeze()  # libraries complain of what is left at the end


def pytest_terminal_summary(terminalreporter):
    """Say how much of the documents was typed, and what kept the rest from it."""
    counts = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            counts.update(value if name == "documents as typed" else {})
    if counts:
        lacks = "".join(f", {n} lack {what}" for what, n in sorted(counts.items()) if what)
        terminalreporter.write_line(f"documents: {counts['']} commands typed{lacks}")


NOT_IMPORTED = SimpleNamespace(is_main_snakefile=lambda: True)
"""The `modifier` of a pretended Snakemake whose workflow is no module of another one."""


@pytest.fixture(autouse=True)
def no_variable_is_left_behind():
    """Take back what a test, or a workflow that it began in this process, set for its jobs."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        if name.startswith("FEATUREMILL_"):
            del os.environ[name]
    os.environ.update(
        {name: text for name, text in before.items() if name != "PYTEST_CURRENT_TEST"}
    )


def in_tests():
    """Return an environment in which child processes find featuremill and the test plug-ins.

    Whoever wants another one makes a copy.
    """
    # What was on the path stays behind: packages may have been unpacked beside an interpreter.
    paths = [str(ROOT / "src"), str(PLUGINS), os.environ.get("PYTHONPATH", "")]
    return MappingProxyType({**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))})


@pytest.fixture(scope="session")
def environment(nothing_of_the_users):
    return in_tests()


@pytest.fixture
def forked(monkeypatch):
    """Have what this process starts of featuremill and Snakemake be forked, too."""
    monkeypatch.setattr(subprocess, "Popen", forks.Forked)
    monkeypatch.setattr(this_process, "name_of_process", str)  # the server is the parent


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return a folder for the converted weights of a file of tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a file in a folder, where the test works."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return the folder where fair-esm's downloads lie."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    folder = tmp_path / "torch/hub/checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def no_handlers(monkeypatch):
    """Let no test log to the screen of one before it."""
    monkeypatch.setattr(logging.getLogger("featuremill"), "handlers", [])


@pytest.fixture
def few_draws(no_handlers, monkeypatch):
    """Draw fewer groups for intervals of heads, which most of the time would go into."""
    import torch

    from featuremill.steps.heads import figures

    monkeypatch.setattr(figures, "RESAMPLES", 100)
    torch.set_num_threads(1)


@pytest.fixture
def verbs(tmp_path, environment):
    """Return a runner of verbs in an empty folder."""
    return Verbs(tmp_path, environment)
