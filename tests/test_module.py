"""Other workflows: one that imports this one, from a checkout and from the wheel, and one that only
leases."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import venv
import zipfile
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest
import yaml
from conftest import ROOT
from hatchling.build import build_sdist, build_wheel
from hatchling.builders.sdist import SdistBuilder
from programs import Desk, jobs_listed
from test_gpu_workflow import check_spans, finish_held

from featuremill.store.files import read_json

EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
PATH = os.pathsep.join([str(BIN), os.environ["PATH"]])


def finish(folder, environment, *command, status=0, path=PATH):
    """Run `command` in `folder`; return what it said."""
    process = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**environment, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert process.returncode == status, process.stdout
    assert "Traceback" not in process.stdout
    return process.stdout


def snakemake(folder, environment, *arguments, status=0):
    """Let Snakemake work on the workflow in `folder`; return what it said."""
    words = ("snakemake", "--cores", "2", *arguments)
    return Desk(folder, {**environment, "PATH": PATH}).type(*words, status=status).text


def without_model(folder):
    """Copy the example to `folder` and have it computed without a model, which takes seconds."""
    shutil.copytree(EXAMPLES / "downstream", folder, dirs_exist_ok=True)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["column"] = "composition"
    for run in ("reference", "query"):
        config[run] = {**config[run], "workload": "composition", "options": {}, "device": "cpu"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return config


def test_a_workflow_uses_two_runs_side_by_side(tmp_path, environment):
    without_model(tmp_path)
    said = snakemake(tmp_path, environment, "results/families.tsv")
    table = pd.read_csv(tmp_path / "results" / "families.tsv", sep="\t")
    query = pd.read_parquet(tmp_path / "results" / "query" / "embeddings.parquet")
    assert table["id"].tolist() == query["id"].tolist() and len(table) == 8
    assert table.set_index("id").loc["sp|A6YR24|COC1D_CONCL", "family"] == "toxin"
    # The screen is the importing workflow's own.
    for words in ("rule families:", "rule reference_merge:", "checkpoint query_plan:"):
        assert words in said
    assert "have features:\n" not in said
    assert not (tmp_path / "results" / "reference" / "report.html").exists(), "nobody asked for it"
    assert "Nothing to be done" in snakemake(tmp_path, environment, "results/families.tsv")
    status = finish(tmp_path, environment, "featuremill", "status", "results/reference")
    assert status.endswith("Type next\n  featuremill report results/reference\n")


HOST = """
from featuremill import SNAKEFILE

module here:
    snakefile: SNAKEFILE
    config: config["here"]

use rule * from here as here_*

use rule extract from here as here_extract with:
    resources:
        mem_mb=1234,

module below:
    snakefile: SNAKEFILE
    prefix: "below"
    config: config["below"]

use rule * from below as below_*
"""
OWN = """
rule mine:
    input: "results/a/embeddings.npy", "below/results/a/embeddings.parquet"
    output: touch("mine")
    shell: "echo 'I cannot do it'; exit 1"

onsuccess:
    here.onsuccess()

onerror:
    print("mine went wrong")
"""


def host(folder, order, **config):
    """Write a workflow into `folder` that imports two runs with one record each."""
    (folder / "Snakefile").write_text('configfile: "config.yaml"\n' + "".join(order))
    common = {"run": "a", "inputs": "in.fa", "workload": "composition", "device": "cpu"}
    here = {**common, "outputs": ["npy"], **config}
    (folder / "config.yaml").write_text(yaml.safe_dump({"here": here, "below": common}))
    (folder / "in.fa").write_text(">p1\nMKVLAAGIVGL\n")
    (folder / "below").mkdir()
    (folder / "below" / "in.fa").write_text(">p2\nMKVLAAGIVGLCDEFGH\n")


def test_what_is_the_importing_workflows_stays_its_own(tmp_path, environment):
    """Its target, words, failures and handlers; and a prefix holds for every path."""
    host(tmp_path, [OWN, HOST])
    said = snakemake(tmp_path, environment, "here_merge")
    assert "mem_mb=1234" in said
    assert "1 of 1 record has features:\n  results/a/embeddings.npy" in said
    said = snakemake(tmp_path, environment, status=1)
    assert "I cannot do it" in said and "mine went wrong" in said
    assert "Error in rule mine" in said and "Nothing computed is lost" not in said
    for results, id in (("results/a", "p1"), ("below/results/a", "p2")):
        assert read_json(tmp_path / results / "manifest.json")["counts"]["ok"] == 1
        planned = pd.read_parquet(tmp_path / results / "records.parquet")
        assert planned["id"].tolist() == [id]
    shard = json.loads((tmp_path / "below/results/a/plan.json").read_text())["shards"][0]["shard"]
    (part,) = (tmp_path / "below/results/a/store/parts").rglob(f"{shard}.arrows")
    part.unlink()
    desk = Desk(tmp_path, environment)
    said = desk.type("featuremill", "status", "below/results/a", status=1).text
    again = "snakemake --cores 2 --rerun-incomplete --forcerun below_extract"
    assert said.splitlines()[-1].strip() == again, said
    snakemake(tmp_path, environment, *again.split()[3:], status=1)
    assert part.exists()
    cut = tmp_path / "results" / "a" / "embeddings.npy"
    whole = cut.read_bytes()
    os.truncate(cut, 50)
    assert "again" in snakemake(tmp_path, environment, "results/a/embeddings.npy")
    assert cut.read_bytes() == whole


TWO = """
from featuremill import SNAKEFILE

COMMON = {"inputs": "short.fa", "device": "cpu", "outputs": "parquet"}

rule both:
    input: "results/letters/embeddings.parquet", "results/numbers/embeddings.parquet"

rule short:
    input: "in.fa"
    output: "short.fa"
    shell: "head -n 2 {input} > {output}"

module letters:
    snakefile: SNAKEFILE
    config: {"run": "letters", "workload": "composition", **COMMON}

use rule * from letters as letters_*

module numbers:
    snakefile: SNAKEFILE
    config:
        {"run": "numbers", "workload": "numbered", "options": {"number": "number.txt"}, **COMMON}

use rule * from numbers as numbers_*
"""


@pytest.mark.slow
def test_two_workloads_read_what_a_rule_makes(tmp_path, environment):
    (tmp_path / "Snakefile").write_text(TWO)
    (tmp_path / "in.fa").write_text(">p1\nMKVLAAGIVG\n>p2\nMKV\n")
    (tmp_path / "number.txt").write_text("4")
    snakemake(tmp_path, environment)
    letters, numbers = (
        pd.read_parquet(tmp_path / "results" / run / "embeddings.parquet")
        for run in ("letters", "numbers")
    )
    assert letters["id"].tolist() == numbers["id"].tolist() == ["p1"]
    assert round(10 * letters["composition"][0][0]) == "MKVLAAGIVG".count("A")
    assert numbers["number"][0].tolist() == [4, 0]
    assert "Nothing to be done" in snakemake(tmp_path, environment)


MADE = """
configfile: "config.yaml"

rule all:
    input: expand("below/results/{run}/manifest.json", run=["numbers", "weighs"])

rule number:
    output: "below/number.txt"
    shell: "echo 4 > {output}"

rule network:
    output: "below/net.txt"
    shell: "echo 5 > {output}"
"""
BELOW = """
module {name}:
    snakefile: "{root}/Snakefile"
    prefix: "below"
    config: config["{name}"]

use rule * from {name} as {name}_*
"""


@pytest.mark.slow
def test_what_options_name_moves_with_the_prefix(tmp_path, environment):
    """Files and folders, made by rules or there, weights too; but no place that ~ stands for."""
    common = {"inputs": "in.fa", "device": "cpu", "outputs": ["parquet"]}
    numbers = {"workload": "numbered", "options": {"number": "number.txt", "more": "more"}}
    weighs = {"workload": "weighed", "options": {"network": "net.txt"}}
    runs = {"numbers": {**common, **numbers}, "weighs": {**common, **weighs}}
    modules = [BELOW.format(name=name, root=ROOT) for name in runs]
    (tmp_path / "Snakefile").write_text("".join([MADE, *modules]))
    below = tmp_path / "below"
    (below / "more").mkdir(parents=True)
    (below / "in.fa").write_text(">p1\nMKVLAAGIVGL\n")
    environment = {**environment, "HOME": str(tmp_path / "home")}

    def values(**changed):
        runs["weighs"] |= changed
        config = {name: {"run": name, **run} for name, run in runs.items()}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        snakemake(tmp_path, environment)
        assert "Nothing to be done" in snakemake(tmp_path, environment)
        for run in runs:
            Desk(tmp_path, environment).type("featuremill", "status", f"below/results/{run}")
        tables = [pd.read_parquet(below / "results" / run / "embeddings.parquet") for run in runs]
        return [table["number"][0].tolist() for table in tables]

    (below / "more" / "a.txt").write_text("8")
    assert values() == [[4, 8], [5]]
    (below / "more" / "a.txt").write_text("9")
    (tmp_path / "home" / "net").mkdir(parents=True)
    (tmp_path / "home" / "net" / "b.txt").write_text("6")
    assert values(options={"network": "~/net"}) == [[4, 9], [6]]


def test_without_a_rule_of_its_own_the_first_imported_run_is_the_target(tmp_path, environment):
    """Also where the module is called as the package is."""
    imported = HOST.replace("from featuremill import SNAKEFILE", "import featuremill")
    imported = imported.replace(" SNAKEFILE", " featuremill.SNAKEFILE")
    imported = imported.replace("module here", "module featuremill").replace(
        "from here", "from featuremill"
    )
    host(tmp_path, [imported])
    said = snakemake(tmp_path, environment, "-n")
    assert "rule here_default:" in said and "rule below_" not in said


@pytest.mark.parametrize(
    ("order", "change", "sentence"),
    [
        (
            [HOST],
            {"shard": 3},
            "config of module here: shard: there is no such key here; did you mean",
        ),
        (
            [HOST],
            {"inputs": "gone.fa"},
            "config of module here: inputs: gone.fa: this file does not exist; check the path",
        ),
        ([HOST.replace('    config: config["here"]\n', "")], {}, "config of module here: inputs"),
        (
            [HOST.replace('    prefix: "below"\n', "")],
            {},
            "modules here and below both compute results/a; give each config a `run` of its own.",
        ),
        (
            [HOST.replace("module here:\n", 'module here:\n    prefix: "x"\n')],
            {"inputs": [], "samples": "s.tsv"},
            "samples: a module with a prefix takes `inputs` only; leave one out.",
        ),
    ],
    ids=["an unknown key", "a missing input", "no config", "one run twice", "samples"],
)
def test_what_is_wrong_is_a_sentence(tmp_path, environment, order, change, sentence):
    host(tmp_path, order, **change)
    is_found_late = "gone.fa" in change.get("inputs", "")  # once all rules are read
    said = snakemake(tmp_path, environment, "-n", status=2 if is_found_late else 1)
    assert sentence in said


def test_runs_that_share_a_model_share_its_weights_and_the_docs_say_how(tmp_path, environment):
    """With what docs/module.md adds to the example."""
    shutil.copytree(EXAMPLES / "downstream", tmp_path, dirs_exist_ok=True)
    page = (ROOT / "docs" / "module.md").read_text("utf-8")
    blocks = re.findall(r"^ *```snakemake\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    core, changed, handler = map(textwrap.dedent, blocks)
    snakefile = tmp_path / "Snakefile"
    assert all(part.strip() in snakefile.read_text() for part in core.split("\n\n\n"))
    snakefile.write_text("\n\n".join([snakefile.read_text(), changed, handler]))
    said = snakemake(tmp_path, environment, "-n")
    assert said.count("output: weights/mill_t6_8M.json") == 1
    assert "rule reference_weights:" in said and "checkpoint query_plan:" in said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from the checkout; return its path."""
    folder = tmp_path_factory.mktemp("wheel")
    with contextlib.chdir(ROOT):
        return folder / build_wheel(str(folder))


PACKAGE_FILES = [*(ROOT / "src" / "featuremill").rglob("*.py")]


def test_the_wheel_holds_the_package_and_the_workflow(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    workflow = {name.removeprefix("featuremill/smk/") for name in names if "/smk/" in name}
    folders = ("workflow", "envs", "config", "profiles", "docs")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    there = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT).as_posix() for path in there}
    beside = workflow - {"Snakefile", "README.md", *expected}
    assert workflow - beside == {"Snakefile", "README.md", *expected}
    assert beside and all((ROOT / name).is_file() for name in beside), "what pages link to"
    package = {name.removeprefix("featuremill/") for name in names if name.endswith(".py")}
    modules = {path.relative_to(ROOT / "src/featuremill").as_posix() for path in PACKAGE_FILES}
    assert modules <= package


def test_the_sdist_has_every_module():
    files = SdistBuilder(str(ROOT)).recurse_included_files()
    names = {file.relative_path for file in files}
    assert {path.relative_to(ROOT).as_posix() for path in PACKAGE_FILES} <= names


@pytest.mark.slow
def test_the_wheel_is_the_same_when_it_is_built_from_the_sdist(wheel, tmp_path):
    names = zipfile.ZipFile(wheel).namelist()
    with contextlib.chdir(ROOT):
        sdist = tmp_path / build_sdist(str(tmp_path))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    with contextlib.chdir(tmp_path / sdist.name.removesuffix(".tar.gz")):
        again = tmp_path / build_wheel(str(tmp_path))
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(names)


def test_without_a_checkout_two_commands_are_enough(wheel, tmp_path, environment):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**environment, "PYTHONPATH": str(tmp_path / "site")}
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "my.fa").write_text(">p1\nMKVLAAGIVGL\n")
    featuremill = (sys.executable, "-m", "featuremill")
    said = finish(folder, environment, *featuremill, "--help")
    pages = Path(re.search(r"^Pages \(docs/…\) are in (.*)\.$", said, re.MULTILINE)[1])
    assert pages == tmp_path / "site" / "featuremill" / "smk"
    for source in (ROOT / "src").rglob("*.py"):  # what messages name is there
        for named in re.findall(r"docs/[a-z0-9-]+\.md", source.read_text("utf-8")):
            assert (pages / named).is_file(), (source, named)
    said = finish(folder, environment, *featuremill, "init", "my.fa", "--workload", "composition")
    named = said.splitlines()[-1].rpartition("next: featuremill ")[2].split()
    assert named == ["run", "my.yaml"]
    said = finish(folder, environment, *featuremill, *named, "-n", "-c1")
    assert {"plan", "merge"} <= jobs_listed(said)
    assert "profile" not in said
    smk = tmp_path / "site" / "featuremill" / "smk"
    plain = ("snakemake", "--snakefile", str(smk / "Snakefile"), "--configfile", "my.yaml")
    said = finish(folder, environment, sys.executable, "-m", *plain, "-n", "-c1")
    assert f"profile {smk}/profiles/default" in said


SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
WHERE = "import featuremill; print(featuremill.SNAKEFILE)"


@pytest.mark.slow
def test_the_example_runs_from_the_installed_wheel(wheel, tmp_path, environment):
    """In a fresh environment, which only borrows the packages of this one, and a folder that has
    nothing but the example."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    environment = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    environment["FEATUREMILL_CACHE"] = str(tmp_path / "cache")
    site = Path(finish(tmp_path, environment, python, "-c", SITE).strip())
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    finish(tmp_path, environment, python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLES / "downstream", folder)
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    workflow = (python, "-m", "snakemake")
    said = finish(folder, environment, *workflow, "--cores", "2", path=path)
    assert f"{site}/featuremill" in finish(folder, environment, python, "-c", WHERE)
    families = pd.read_csv(folder / "results" / "families.tsv", sep="\t").set_index("id")["family"]
    assert len(families) == 8 and "28 of 28 records have features" in said
    toxins = ["A6YR24|COC1D_CONCL", "B1P1B3|JZT52_CHIGU", "B3EWQ0|JURTX_AVIJU"]
    assert set(families[[f"sp|{name}" for name in toxins]]) == {"toxin"}
    assert list((tmp_path / "cache").rglob("mill_t6_8M*.safetensors"))
    finish(folder, environment, *workflow, "--report", "report.html", path=path)
    page = (folder / "report.html").read_text()
    assert "results/reference/report.html" in page and "which device did what" in page
    assert "good condition" in finish(folder, environment, *workflow, "--lint", path=path)


WAITS = """
Path(f"at-{os.environ['CUDA_VISIBLE_DEVICES']}").touch()
while Path("hold").exists():
    time.sleep(0.01)
"""


def test_a_tool_leases_its_gpu_and_never_meets_another(tmp_path, environment, gpu_node):
    """Without `--resources`: more jobs start than there are GPUs. The tool waits in place of its
    second of work, until there is one on each GPU."""
    node = gpu_node(2)
    shutil.copytree(EXAMPLES / "lease", tmp_path, dirs_exist_ok=True)
    tool, hold = tmp_path / "scripts" / "fold.py", tmp_path / "hold"
    head, work, tail = tool.read_text().partition("time.sleep(1)  # folding\n")
    assert work
    tool.write_text(head + WAITS + tail)
    hold.touch()
    desk = Desk(tmp_path, {**environment, **node.environment, "PATH": PATH})
    process = desk.start("snakemake", "--cores", "6", stdout=subprocess.DEVNULL)
    finish_held(hold, lambda: len(list(tmp_path.glob("at-*"))) == 2, process)
    spans = defaultdict(list)
    for path in (tmp_path / "structures").iterdir():
        found = json.loads(path.read_text())
        spans[found["device"]].append((found["begin"], found["end"]))
    assert sum(map(len, spans.values())) == 6
    check_spans(spans, node.uuids, 2)
