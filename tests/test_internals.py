"""Snakemake, held loosely: whatever its insides are, and on the oldest and the newest version that
pyproject.toml admits, a run computes the same."""

import ast
import logging
import os
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from programs import NO_REPORT, Workflow, random_records

from featuremill.flow import internals

NAMES = sorted(internals.INTERNAL_CALLS)
NOTHING = {
    **dict.fromkeys(("below_prefix", "is_made"), (object(), "a/path")),
    **dict.fromkeys(("rule_name", "taken_rule"), (object(), "plan")),
    **dict.fromkeys(("locks_on", "filter_screen"), (None,)),
    "prefer_rule": (object(), "one", "other"),
    "cap_of": (object(), "gpu"),
    "set_cap": (object(), "gpu", 1),
    "rule_resources": (object(), "extract"),
    "replace_executor": ("none", None),
    "answer_sigterm": (),
    "guard_outputs": (object(), None, None, None),
    "compare_times_of": ([None],),
    "compute_until": (object(), []),
}
"""What each is called with in which it finds nothing; the others are given an object."""
QUIET = {"filter_screen", "locks_on", "answer_sigterm", "job_error"}
"""Those that find what they need elsewhere, or nothing to do."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory, environment):
    """Return what a run delivers with all of them."""
    workflow = Workflow(tmp_path_factory.mktemp("whole"), environment, random_records(20))
    workflow(NO_REPORT)
    return workflow.data()


def computed_without(names, folder, environment):
    """Return what a run delivers where these find nothing, and what it said."""
    workflow = Workflow(folder, environment, random_records(20))
    said = workflow.type("without_internals", names, *workflow.words(NO_REPORT)[1:])
    return workflow.data(), said.err


@pytest.mark.parametrize("name", NAMES)
def test_a_reach_that_finds_nothing_gives_way_and_says_so_once(name, monkeypatch):
    found = internals.INTERNAL_CALLS[name]
    said = []
    monkeypatch.setattr(internals.log, "debug", said.append)
    monkeypatch.setattr(found, "has_failed", False)
    for _ in range(2):
        found(*NOTHING.get(name, (object(),)))
    assert len([text for text in said if f" {name}: " in text]) == (name not in QUIET)


def test_no_result_hangs_on_any_of_them(tmp_path, environment, expected):
    data, said = computed_without(",".join(NAMES), tmp_path, environment)
    assert data == expected
    assert "rule merge:" in said, "the screen is Snakemake's own"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_computes_the_same_without(name, tmp_path, environment, expected):
    data, _ = computed_without(name, tmp_path, environment)
    assert data == expected


def test_what_cannot_be_judged_stays_on_the_screen(monkeypatch):
    filters = []
    handler = SimpleNamespace(name=internals.SCREEN, addFilter=filters.append)
    monkeypatch.setattr(internals, "log", SimpleNamespace(handlers=[handler]))
    internals.filter_screen(lambda record: record.nonesuch)
    assert filters[0](logging.LogRecord("snakemake", logging.INFO, "", 0, "text", (), None))


@pytest.mark.parametrize(
    ("words", "looks"),
    [
        (["--cores", "2", "all"], False),
        (["--report", "r.html"], True),
        (["--reporter", "html"], True),
        (["--summary"], True),
        (["--report-after-run", "--report", "r.html"], False),
        (["--report=r.html", "--report-after-run"], False),
        (["--report-after-run", "--report", "r.html", "--unlock"], True),
    ],
)
def test_a_report_is_no_look_where_it_follows_a_run(words, looks, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["snakemake", *words])
    assert internals.only_looks() == looks


def test_snakemakes_insides_are_reached_for_in_one_file():
    """The others of the room have its Workflow only to hand it on."""
    for path in (ROOT / "src/featuremill/flow").glob("*.py"):
        if path.name in ("internals.py", "start_snakemake.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom | ast.Import):
                module = getattr(node, "module", None) or node.names[0].name
                assert not module.startswith("snakemake"), f"{path.name}: {module}"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "workflow":
                is_public = node.attr == "executor_settings"  # executors are given them
                assert is_public, f"{path.name}:{node.lineno}: {node.attr}"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = map(Requirement, PROJECT["dependencies"])
(ADMITTED,) = (needed.specifier for needed in DEPENDENCIES if needed.name == "snakemake")
(OLDEST,) = (bound.version for bound in ADMITTED if bound.operator == ">=")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", [f"=={OLDEST}", str(ADMITTED)], ids=["oldest", "newest"])
def test_a_run_computes_the_same_on_the_oldest_and_the_newest(
    version, tmp_path, environment, expected
):
    """As pip installs them, with what they depend on; featuremill's own packages are borrowed."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-input", "--target", str(site)]
    subprocess.run([*pip, f"snakemake{version}"], check=True, timeout=900)
    paths = os.pathsep.join([str(site), environment["PYTHONPATH"]])
    environment = {**environment, "PYTHONPATH": paths}
    (tmp_path / "run").mkdir()
    workflow = Workflow(tmp_path / "run", environment, random_records(20))
    begun = workflow.start(NO_REPORT)
    said, _ = begun.communicate(timeout=240)
    assert begun.returncode == 0, said
    assert workflow.data() == expected
