"""What several test files use: verbs as real processes, and runs made of them."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from nvml_node import gpu_node, nvml_library  # noqa: F401  (fixtures)
from slurm_cluster import slurm_cluster  # noqa: F401  (a fixture)

from featuremill.store import RunFolder

ROOT = Path(__file__).parent.parent
PLUGINS = ROOT / "tests" / "plugins"

# As in the supervisor: threads that spin at barriers make tests on a busy machine 10 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


OF_TESTS = ("FEATUREMILL_CHAOS_", "FEATUREMILL_ESM")
"""Beginnings of variables that are meant for the tests; others are what a user set for runs."""


def pytest_configure():
    for name in list(os.environ):
        if name.startswith(("FEATUREMILL_", "SNAKEMAKE_")) and not name.startswith(OF_TESTS):
            del os.environ[name]


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
    *("test_workflow", "test_gpu_workflow", "test_esm2", "test_chaos", "test_extract"),
    *("test_documents", "test_next_commands"),
)
"""Files of tests that take minutes: side by side with others, they had better begin first."""


def pytest_collection_modifyitems(items):
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONGEST)))


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


@pytest.fixture(scope="session")
def environment(nothing_of_the_users):
    """Return an environment in which child processes find featuremill and the test plug-ins.

    Whoever wants another one makes a copy.
    """
    path = os.pathsep.join([str(ROOT / "src"), str(PLUGINS)])
    return MappingProxyType({**os.environ, "PYTHONPATH": path})


class Verbs:
    """Runs `featuremill` verbs in `folder` as processes of their own."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = environment
        self.run_folder = RunFolder(folder / "results" / "test")

    def start(self, *arguments, **more):
        return subprocess.Popen(
            [sys.executable, "-m", "featuremill", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def __call__(self, *arguments, status=0):
        process = self.start(*arguments)
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == status, stderr
        assert "Traceback" not in stderr or status not in (0, 2), stderr
        return stderr

    def plan(self, records, workload="composition", options=None, cost=1000, more=(), **config):
        fasta = self.folder / "in.fa"
        fasta.write_text("".join(f">{id}\n{sequence}\n" for id, sequence in records))
        config = {
            "run": "test",
            "inputs": ["in.fa"],
            "workload": workload,
            "options": options or {},
            "shards": {"cost": cost},
            "device": "cpu",
            **config,
        }
        self("plan", self.run_folder.root, "--config-json", json.dumps(config), *more)
        return json.loads(self.run_folder.plan.read_text())

    def extract(self, plan, status=0, *more):
        said = ""
        for shard in plan["shards"]:
            said += self("extract", self.run_folder.root, shard["shard"], *more, status=status)
        return said

    def receipts(self, plan):
        paths = [self.run_folder.receipt(plan["recipe"], s["shard"]) for s in plan["shards"]]
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def verbs(tmp_path, environment):
    """Return a runner of verbs in an empty folder."""
    return Verbs(tmp_path, environment)
