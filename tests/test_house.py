"""The house rules that a tool can check: the declared is used, what is said twice agrees."""

import ast
import functools
import json
import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import house
import mutants
import pytest
import yaml
from house import PACKAGE, ROOMS, modules, room_of, targets_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import ran

import featuremill
from featuremill.base import environment

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]


def is_for_here(requirement):
    return requirement.marker is None or requirement.marker.evaluate()


EXTRAS = {
    extra.replace("-", "_"): [needed for needed in map(Requirement, texts) if is_for_here(needed)]
    for extra, texts in PROJECT["optional-dependencies"].items()
}
WITH_TORCH = ("encoder", "esm2", "geneformer", "llm_json", "maps", "pac", "sae")
"""Extras that compute, each with a conda environment of its name."""
COMPUTING = [*CORE, *(needed for extra in (*WITH_TORCH, "remote") for needed in EXTRAS[extra])]
IN_TESTS = [*EXTRAS["test"], *EXTRAS["test_clusters"]]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)
CONDA_NAMES = {"mne-base": "mne", "opentsne": "openTSNE", "python-xxhash": "xxhash"}
CONDA_NAMES |= {"pytorch": "torch", "snakemake-minimal": "snakemake"}
NOT_IN_FAST_TESTS = {canonicalize_name(needed.name) for needed in EXTRAS["test_clusters"]}
FOR_ONE_GPU = re.compile(r"(nvidia|cuda)\b")
WITH_TORCH_ON_CUDA = {"triton"}
packages_distributions = functools.cache(metadata.packages_distributions)


@functools.cache
def imports_of(*folders):
    """Return the top-level modules that the Python files and rules in `folders` import."""
    found = set()
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


@functools.cache
def modules_of(distribution):
    """Return the top-level modules that a distribution provides; its own name where the fast tests'
    environment lacks it."""
    name = canonicalize_name(distribution)
    if name in NOT_IN_FAST_TESTS:
        return {name.replace("-", "_")}
    owners_of = packages_distributions().items()
    return {module for module, owners in owners_of if name in map(canonicalize_name, owners)}


def files():
    """Yield the project's files: what git has, or where there is no git, what it would take."""
    if (ROOT / ".git").exists():
        listed = ran("git", "ls-files", "-z", cwd=ROOT, check=True).stdout
        paths = (ROOT / name for name in listed.split("\0")[:-1])
        yield from (path for path in paths if path.is_file())
        return
    lines = (ROOT / ".gitignore").read_text().split()
    ignored = {line.strip("/") for line in lines if not line.startswith("/")} | {".git"}
    ignored_at_the_root = {line.strip("/") for line in lines} | ignored
    for folder, folders, names in os.walk(ROOT):
        here = ignored_at_the_root if Path(folder) == ROOT else ignored
        folders[:] = [n for n in folders if n not in here and not n.endswith(".egg-info")]
        yield from (Path(folder, name) for name in names if name != ".git")  # in a worktree, a file


def requirements_below(requirements):
    """Return the names of everything that `requirements` need here, themselves included."""
    found = {}
    waiting = [(requirement.name, requirement.extras) for requirement in requirements]
    while waiting:
        name, extras = waiting.pop()
        key = canonicalize_name(name)
        if extras <= found.get(key, {None}):
            continue
        found.setdefault(key, {None}).update(extras)
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            contexts = [{"extra": extra} for extra in ("", *extras)]
            if not needed.marker or any(map(needed.marker.evaluate, contexts)):
                waiting.append((needed.name, needed.extras))
    return set(found)


def test_each_dependency_is_imported():
    names = [requirement.name for requirement in COMPUTING]
    assert [name for name in names if not modules_of(name) & imports_of("src")] == []


def is_used(name):
    """Say whether the tests use a package: import it, or have it do something for them."""
    makefile = (ROOT / "Makefile").read_text()
    stubs_of = name.removeprefix("types-").removesuffix("-stubs").lower()
    return (
        modules_of(name) & imports_of("tests")
        or f"$(BIN)/{name} " in makefile
        or (name != stubs_of and stubs_of in {core.name for core in CORE})
        or (name == "pytest-timeout" and "\ntimeout = " in (ROOT / "pyproject.toml").read_text())
        or (name == "pytest-xdist" and " --dist " in makefile)
    )


def test_each_test_dependency_is_used():
    assert [needed.name for needed in IN_TESTS if not is_used(needed.name)] == []
    assert not is_used("nonesuch")


@pytest.mark.parametrize(
    ("folder", "declared"),
    [("src", COMPUTING), ("tests", [*COMPUTING, *IN_TESTS])],
)
def test_an_import_is_declared(folder, declared):
    ours = {"featuremill", "bench", "conftest"}
    folders = [ROOT / part for part in ("tests", "tests/plugins", "training")]
    ours |= {path.stem for folder in folders for path in folder.glob("*.py")}
    provided = set().union(*(modules_of(requirement.name) for requirement in declared))
    provided |= WITH_TORCH_ON_CUDA
    assert imports_of(folder) <= set(sys.stdlib_module_names) | ours | provided


def test_nothing_of_the_benchmark_is_found_in_tests():
    assert "tests" not in imports_of("bench") and "numpy" in imports_of("bench")


def test_constraints_pin_everything_that_is_installed_and_nothing_for_one_kind_of_gpu():
    everything = requirements_below([*COMPUTING, *EXTRAS["test"]])
    pinned = set(map(canonicalize_name, PINS))
    general = {name for name in everything if name == "nvidia-ml-py" or not FOR_ONE_GPU.match(name)}
    assert general - pinned == set(), "run make constraints"
    assert {name for name in pinned if FOR_ONE_GPU.match(name)} == {"nvidia-ml-py"}
    assert not [pin for pin in PINS.values() if "+" in pin]
    lines = [f"{name}=={pin}" for name, pin in PINS.items()]
    assert lines == sorted(lines, key=str.upper)


def test_pins_lie_within_the_declared_bounds():
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    declared = [*CORE, *(needed for extra in EXTRAS.values() for needed in extra)]
    outside = [n for n in declared if pins[canonicalize_name(n.name)] not in n.specifier]
    assert outside == []


def yaml_of(place):
    return yaml.safe_load((ROOT / place).read_text("utf-8"))


def conda_bounds(lines):
    """Return the bounds of conda's packages by the names that pip has for them."""
    bounds = dict(line.partition(" ")[::2] for line in lines)
    return {CONDA_NAMES.get(package, package): bound for package, bound in bounds.items()}


def pip_bounds(requirements):
    return {needed.name: str(needed.specifier) for needed in requirements}


@pytest.mark.parametrize(
    ("name", "extra"),
    [("base", []), *((name, EXTRAS[name]) for name in WITH_TORCH)],
)
def test_conda_environments_have_the_bounds_of_pyproject(name, extra):
    found = conda_bounds(yaml_of(f"envs/{name}.yaml")["dependencies"])
    assert found.pop("python") == PROJECT["requires-python"]
    assert found.pop("pip") == ""
    assert found == pip_bounds([*CORE, *extra])


def test_the_conda_recipe_has_the_bounds_of_pyproject():
    core, esm2 = yaml_of("packaging/conda/recipe.yaml")["outputs"]
    host, needed = (conda_bounds(core["requirements"][part]) for part in ("host", "run"))
    assert host.pop("python") == needed.pop("python") == PROJECT["requires-python"]
    assert needed == pip_bounds(CORE)
    builds = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert host == {"pip": "", **pip_bounds(map(Requirement, builds))}
    ours, *others = esm2["requirements"]["run"]
    assert "featuremill" in ours and conda_bounds(others) == pip_bounds(EXTRAS["esm2"])
    scripts = [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert core["build"]["python"]["entry_points"] == scripts


OF_THE_SPECIFICATION = {
    "https://w3id.org/ro/crate/1.1",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
    "https://doi.org/10.1093/bioinformatics/bts480",
    "https://snakemake.readthedocs.io",
}
"""What a crate names without describing it: profiles, and pages about Snakemake."""


def test_what_describes_the_project_says_what_pyproject_says():
    headings = re.findall(r"^## \[?(\d[^\]\s]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert PROJECT["version"] == featuremill.__version__ == headings[0]
    citation = yaml_of("CITATION.cff")
    recipe = yaml_of("packaging/conda/recipe.yaml")
    assert citation["version"] == recipe["context"]["version"] == PROJECT["version"]
    assert citation["license"] == recipe["about"]["license"] == PROJECT["license"]
    assert citation["abstract"] == recipe["about"]["summary"] == PROJECT["description"]
    assert citation["title"] == recipe["recipe"]["name"] == PROJECT["name"]
    assert citation["keywords"] == PROJECT["keywords"]
    crate = json.loads((ROOT / "ro-crate-metadata.json").read_text())["@graph"]
    about = {one["@id"]: one for one in crate}
    workflow = about[about["./"]["mainEntity"]["@id"]]
    assert workflow["version"] == PROJECT["version"] and workflow["name"] == PROJECT["name"]
    assert about["./"]["license"] == workflow["license"]
    assert about["./"]["license"]["@id"].endswith(f"/{PROJECT['license']}")
    assert about["./"]["description"] == workflow["description"] == PROJECT["description"]
    assert workflow["keywords"] == PROJECT["keywords"]
    named = re.findall(r'{"@id": "([^"]+)"}', json.dumps(crate))
    assert set(named) <= {*about, *OF_THE_SPECIFICATION}, "these are described nowhere"
    parts = [one["@id"] for one in about["./"]["hasPart"]]
    assert all((ROOT / part).exists() and part in about for part in parts)


def test_the_public_forge_runs_what_make_runs_on_the_oldest_python():
    job = yaml_of(".github/workflows/test.yml")["jobs"]["test"]
    assert job["steps"][-1]["run"].startswith("make test ")
    oldest = job["strategy"]["matrix"]["python"][0]
    assert f">={oldest}" == PROJECT["requires-python"]


def test_a_commit_is_looked_at_by_the_tools_of_make_lint():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    (local,) = yaml_of(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]

    tool = r"\b(ruff \w+|snakefmt|mypy|featuremill [\w-]+|bash -n|snakemake --lint)"

    def tools(lines):
        return [found[1] for line in lines if (found := re.search(tool, line))]

    assert tools(entries) == tools(recipe.splitlines()) and len(tools(entries)) == len(entries)


def licence_of(name):
    about = metadata.metadata(name)
    classifiers = about.get_all("Classifier") or ()
    # scipy's has the texts of its wheel's libraries below its own, such as that of GCC's runtime.
    licence = [about["License-Expression"] or (about["License"] or "").partition("\n")[0]]
    return " ".join([*licence, *(text for text in classifiers if text.startswith("License"))])


def test_no_dependency_is_under_the_gpl():
    names = [requirement.name for requirement in COMPUTING]
    licences = {name: licence_of(name) for name in names}
    assert {name for name, licence in licences.items() if not licence.strip()} == set(), "unknown"
    is_gpl = re.compile(r"\bA?GPL|General Public").search
    assert {name: licence for name, licence in licences.items() if is_gpl(licence)} == {}


def test_no_file_names_a_registry_or_a_folder_of_one_machine():
    host = re.compile(r"\b(pypi\.org|pythonhosted\.org|npmjs\.(org|com)|anaconda\.org|debian\.org)")
    folder = re.compile(r"(?<![\w.>}~-])/(root|home|work|opt|Users|tmp/\w+)/\w")
    for path in files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a binary file
        found = host.search(text) or folder.search(text)
        assert not found, f"{path.relative_to(ROOT)}: {found[0]}"


OF_THE_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
TABLES = [f"src/featuremill/{room}/environment.py" for room in ("base", "lease")]
"""The second is the only module that reads the environment."""
OF_TESTS = {"FEATUREMILL_CHAOS_KILLS", "FEATUREMILL_CHAOS_SEED"}


def names_the_environment(text):
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os":
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names |= {alias.name for alias in node.names}
    return bool(names & OF_THE_ENVIRONMENT)


def test_one_module_reads_the_environment():
    package = (ROOT / "src").rglob("*.py")
    found = [path for path in package if names_the_environment(path.read_text("utf-8"))]
    assert found == [ROOT / TABLES[1]], "have it from featuremill.base.environment"
    assert names_the_environment("import os\n\nos.getenv('A')")
    assert names_the_environment("from os import environ as everything")
    assert not names_the_environment("import os\n\nos.getpid()")


def test_the_table_of_the_environment_has_what_is_named_and_nothing_else():
    texts = {}
    for path in files():
        place = path.relative_to(ROOT)
        if place.parts[0] not in ("tests", ".git") and str(place) not in TABLES:
            texts[place] = path.read_text("utf-8", "ignore")
    everything = "\n".join(texts.values())
    ours = {setting.name for setting in environment.SETTINGS}
    assert set(re.findall(r"\bFEATUREMILL_[A-Z0-9_]+", everything)) <= ours | OF_TESTS
    in_code = "\n".join(text for place, text in texts.items() if place.parts[0] == "src")
    listed = {*environment.SETTINGS, *environment.OF_OTHERS}
    for name, variable in vars(environment).items():
        if isinstance(variable, environment.Variable):
            assert variable in listed and variable.name.removeprefix("FEATUREMILL_") == name
            assert re.search(rf"\b{name}\b", in_code), f"{name}: nobody reads it"


SPINE = {"plan", "extract", "merge"}
"""These never import one another: they meet in the files of a run."""
FOR_PLUGINS = {
    "steps": {"step", "features", "inputs", "kit"},
    "workloads": {"workload", "inputs", "kit"},
    "outputs": {"workload", "kit"},
    "commands": {"step", "config", "workload", "kit"},
}
"""What those who write plug-ins may rely on, and ours as they do."""
EXCEPTIONS: dict[tuple[str, str], str] = {}
"""(module, what it imports against the order) and why. It may only shrink."""


def may_import(module, target):
    ours, theirs = room_of(module), room_of(target)
    if target == "snakemake":
        return ours == "flow"
    if ours in ("root", theirs) or target == "":
        return True
    if theirs in ("root", "flow") or {ours, theirs} <= SPINE:
        return False
    if ours in FOR_PLUGINS:
        return theirs in FOR_PLUGINS[ours]
    return theirs != "kit" and ROOMS.index(theirs) < ROOMS.index(ours)


def test_the_rooms_are_the_folders_that_there_are():
    files_in = {path.relative_to(PACKAGE).parts for path in PACKAGE.rglob("*.py")}
    folders = {first for first, *rest in files_in if rest}
    assert folders == set(ROOMS)
    names = {name.partition(".")[0] for name in modules()} - {""}
    assert len(names) <= 24, sorted(names)


def test_each_workload_and_output_is_registered_and_what_is_installed_knows_it():
    folder = PACKAGE / "workloads"
    workloads = {path.stem for path in folder.iterdir() if path.stem[0] not in "._"}
    outputs = {name for name, text in modules().items() if re.search(r"^FORMAT = ", text, re.M)}
    there = {"workloads": {f"workloads.{name}" for name in workloads}, "outputs": outputs}
    for kind, names in there.items():
        registered = PROJECT["entry-points"][f"featuremill.{kind}"]
        assert {f"featuremill.{name}" for name in names} == set(registered.values())
        assert all(place.endswith(f".{name}") for name, place in registered.items())
        points = metadata.distribution("featuremill").entry_points
        installed = {each.name: each.value for each in points.select(group=f"featuremill.{kind}")}
        assert installed == registered, "type: pip install --no-deps -e ."


def test_the_core_names_the_default_workload_once():
    found = {name: text.count("esm2") for name, text in modules().items() if "esm2" in text}
    core = [name for name in found if name.partition(".")[0] not in ("workloads", "steps")]
    assert {name: found[name] for name in core} == {"workload": 1}


def test_rooms_import_only_what_they_may():
    known = modules()
    found = {(name, target) for name, text in known.items() for target in targets_of(text, known)}
    wrong = {pair for pair in found if not may_import(*pair)}
    assert wrong - EXCEPTIONS.keys() == set(), "these imports run against the order of the rooms"
    assert EXCEPTIONS.keys() - wrong == set(), "these are no longer needed: take them off"


def test_modules_never_import_each_other_in_a_circle():
    assert house.circles() == []


def test_a_step_or_workload_takes_of_another_one_what_that_declares():
    assert list(house.undeclared()) == [], "declare it in __all__ of the module, or do without"


@pytest.mark.parametrize("what", ["lines", "arrows"])
def test_each_unit_keeps_its_limit(what):
    now = {unit: size[what] for unit, size in house.sizes().items()}
    limits = {unit: limit[what] for unit, limit in house.limits().items()}
    assert now.keys() == limits.keys()
    above = {unit: (size, limits[unit]) for unit, size in now.items() if size > limits[unit]}
    assert above == {}, "make it smaller, or raise the limit in tests/house.json and say why"
    low = {unit for unit, size in now.items() if size <= (1 - house.SLACK) * limits[unit] - 1}
    assert low == set(), "type: make format"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_each_commit_that_raises_a_limit_says_why():
    found = list(house.unexplained_raises())
    assert found == [], "add a line `raises: <unit> <why>` to its message"


@pytest.mark.parametrize(
    ("module", "text", "allowed"),
    [
        ("plan.needs", "from featuremill.base.errors import UserError", True),
        ("plan.needs", "from featuremill.merge import gather", False),
        ("merge.gather", "from featuremill.outputs import parquet", False),
        ("outputs.npy", "from featuremill.merge import gather", False),
        ("outputs.npy", "from featuremill.base import arrays", False),
        ("commands.audit.report", "from featuremill.kit.text import counted", True),
        ("commands.audit.report", "from featuremill.base.words import counted", False),
        ("steps.heads", "from featuremill.kit.files import remove", True),
        ("steps.heads", "from featuremill.store.files import remove", False),
        ("steps.heads", "from featuremill.workload import Record", False),
        ("merge.gather", "from featuremill.kit.files import remove", False),
        ("kit.runs", "from featuremill.store.results import Results", True),
        ("merge.gather", "import featuremill.plan", False),
        ("base.log", "from featuremill import __version__", True),
        ("base.log", "from featuremill import status", False),
        ("base.text", "from featuremill.lease import text", True),
        ("lease.offer", "from featuremill.base import text", False),
        ("workloads.esm2", "from featuremill.workload import Weights", True),
        ("workloads.esm2", "def f():\n    from featuremill.store import files", False),
        ("flow.command", "from featuremill.workloads import composition", False),
        ("kit.runs", "from featuremill.flow import internals", False),
        ("api", "from featuremill.workloads import composition", True),
        ("report.page", "from featuremill.api import compute", False),
        ("flow.command", "from snakemake.io import touch", True),
        ("config", "import snakemake", False),
    ],
)
def test_imports_against_the_order_are_found(module, text, allowed):
    (target,) = targets_of(text, modules())
    assert may_import(module, target) == allowed


CLOCK = {"sleep", "time", "monotonic", "perf_counter"}
MAY_LOOK = {
    "forks.py::_run": "a fork starts now, and not with its server",
    "programs.py::wait_for": "the one that waits for a condition",
    "batch_commands.py::_run": "plays a queue whose jobs wait until GPUs are free",
    "browser.py::Tab": "waits for a browser, which only slow tests have",
    "mutants.py::Tree": "no test: gives files times that lie ahead",
    "mutants.py::main": "no test: says how long each mutant took",
    "slurm_cluster.py::Cluster": "waits for a real Slurm, which only slow tests have",
    "slurm_cluster.py::child_of": "waits for a real Slurm, which only slow tests have",
    "running_runs.py::RunningRun": "writes files as of so long ago; others read the real clock",
    "running_runs.py::RunningJob": "writes files as of so long ago; others read the real clock",
    "test_chaos.py::Chain": "kills at random moments, and waits for the ends",
    "test_doctor.py::test_leased_gpus_count_and_those_that_cool_down_are_said": "failures of now",
    "test_extract.py::test_who_kills_a_worker_may_be_about_to_kill_its_job": "patches a sleep",
    "test_faults.py::test_a_clock_that_runs_hours_behind_changes_nothing": "sets a clock back",
    "test_status.py::test_a_touched_or_archived_input_changes_nothing": "touches a file",
    "test_telemetry.py::test_a_file_of_a_long_shard_stays_small_and_its_end_says_all": "fakes one",
}
"""Who may look at a clock or sleep, and why."""


SLOW = ("pytest.mark.slow", "pytest.mark.gpu")


def clocks_in(path):
    """Yield the top-level function or class of each use of a clock, but for those of slow tests."""
    body = ast.parse(path.read_text("utf-8")).body
    marks = "".join(text for text in map(ast.unparse, body) if text.startswith("pytestmark ="))
    if any(mark in marks for mark in SLOW):
        return
    for node in body:
        if any(ast.unparse(mark) in SLOW for mark in getattr(node, "decorator_list", ())):
            continue
        for part in ast.walk(node):
            is_of_time = isinstance(part, ast.Attribute) and ast.unparse(part.value) == "time"
            is_import = isinstance(part, ast.ImportFrom) and part.module == "time"
            names = {alias.name for alias in part.names} if is_import else set()
            if names & CLOCK or (is_of_time and part.attr in CLOCK):
                yield f"{path.name}::{getattr(node, 'name', '')}"


def test_no_fast_test_sleeps_or_looks_at_a_clock():
    """What waits for a time fails on a busy machine, and costs the time on a quiet one: wait for a
    condition (`wait_for`), or let the test own the clock."""
    found = {name for path in (ROOT / "tests").glob("*.py") for name in clocks_in(path)}
    assert found - MAY_LOOK.keys() == set(), "these sleep, or look at a clock"
    assert MAY_LOOK.keys() - found == set(), "these no longer do: take them off"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import time\n\ndef test(): time.sleep(1)", ["x.py::test"]),
        ("import time\n\nclass A:\n    def wait(self): return time.monotonic()", ["x.py::A"]),
        ("from time import sleep", ["x.py::"]),
        ("import time\n\nnow = time.time", ["x.py::"]),
        ("import time\n\n@pytest.mark.slow\ndef test(): time.sleep(1)", []),
        ("import time\n\n@parametrize(n=[pytest.param(1, marks=pytest.mark.slow)])\ndef test(n): "
         "time.sleep(n)", ["x.py::test"]),
        ("import time\n\npytestmark = [pytest.mark.gpu]\n\ndef test(): time.sleep(1)", []),
        ("import time\n\ndef test(): return time.strftime('%Y', time.gmtime(0))", []),
    ],
)  # fmt: skip
def test_clocks_are_found(text, found, tmp_path):
    (tmp_path / "x.py").write_text(text)
    assert list(clocks_in(tmp_path / "x.py")) == found


def test_each_mutant_still_has_its_text_and_its_tests():
    for mutant in mutants.read_list():
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text("utf-8"), test


def make(folder, *arguments, **environment):
    """Run the Makefile's copy in `folder`, as nobody's child: no flags from a make above us."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    ours = ("MAKE", "MFLAGS", "PIP_", "PYTHON")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return ran("make", *arguments, cwd=folder, env=clean | environment)


def program(path, *lines):
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_make_lists_every_command(tmp_path):
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = [line.split()[1] for line in make(tmp_path).stdout.splitlines()]
    assert listed == phony


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (['[ "$1" = --version ] && echo Python 3.10.2', 'case "$2" in *_info*) exit 1; esac'],
         "featuremill needs Python 3.11 or newer, but './python --version' says: Python 3.10.2. "
         "Install one and name it, as in: make run PYTHON=python3.12"),
        (['case "$2" in *ensurepip*) exit 1; esac'], "./python comes without its venv module; "
         "install it (Debian, Ubuntu: apt install python3-venv) or uv."),
    ],
)  # fmt: skip
def test_make_says_in_a_sentence_what_python_lacks(tmp_path, lines, sentence):
    program(tmp_path / "python", *lines)
    tried = make(tmp_path, "run", "PYTHON=./python", PATH="/usr/bin:/bin")
    assert tried.returncode == 2
    assert tried.stderr.splitlines()[0] == f"make: {sentence}"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("environment", "installer"), [({}, "uv"), ({"PIP_FIND_LINKS": "wheels"}, "python")]
)
def test_make_takes_uv_unless_pip_has_settings_of_its_own(tmp_path, environment, installer):
    program(tmp_path / "uv")
    path = f"{tmp_path}:{os.environ['PATH']}"
    plan = make(tmp_path, "-n", "run", PATH=path, **environment).stdout
    (install,) = (line for line in plan.splitlines() if "-e '.[esm2]'" in line)
    assert Path(install.split()[0]).name == installer


def test_an_install_is_made_once_and_again_when_the_pins_change(tmp_path):
    """With a pretended interpreter: what counts here is when make calls it."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    program(tmp_path / ".venv/bin/python", 'case "$*" in *install*) echo "$@" >> calls;; esac')
    for target in ("run", ".venv/.test", "run"):
        made = make(tmp_path, "-o", "pyproject.toml", "-o", "constraints.txt", target)
        assert made.returncode == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[-1] for call in calls] == [".[esm2]", ".[esm2,remote,test]"]
    later = (tmp_path / ".venv/.test").stat().st_mtime + 5
    os.utime(tmp_path / "constraints.txt", (later, later))
    make_again = make(tmp_path, "-n", "-W", "constraints.txt", "run")
    assert "Installing into .venv" in make_again.stdout


def test_every_extra_that_people_are_told_to_install_is_spelled_as_pip_wants_it():
    """pip before 23.3 knows no other spelling, and then installs nothing with status 0."""
    extras = set(PROJECT["optional-dependencies"])
    assert {canonicalize_name(extra) for extra in extras} == extras
    texts = [page.read_text("utf-8") for page in files() if page.suffix in (".md", ".py")]
    found = re.findall(r"featuremill\[([\w,-]+)\]", "\n".join(texts))
    asked = {extra for extras in found for extra in extras.split(",")}
    assert asked and asked <= extras
