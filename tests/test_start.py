"""What is said and put right before a run begins: missing packages, weights that are lost."""

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import NOT_IMPORTED, ROOT
from plans import plan_json
from programs import Desk

from featuremill import config, step
from featuremill.__main__ import main
from featuremill.config import project
from featuremill.flow import refusals, reruns
from featuremill.flow.screen import RefusedError
from featuremill.status.reader import RunReader
from featuremill.store.results import Results
from featuremill.workloads.esm2 import sources

INSTALL = "torch is not installed in this Python ({}), and nothing can be computed without it; "
INSTALL += "pip install 'featuremill[esm2]'"
EXTRA = ("torch", "functorch", "triton", "safetensors", "esm", "fair_esm", "nvidia")
RECORDS = "".join(f">p{n}\n{'MKVLAAGIVGL' * n}\n" for n in range(1, 5))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return a Python that has all packages of this one but those of the extra esm2."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (there,) = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith((*EXTRA, "__pycache__")):
            (there / path.name).symlink_to(path)
    return folder / "bin" / "python"


class Folder(Desk):
    """A folder with an input and a config for esm2, and processes in it."""

    def __init__(self, path, environment):
        super().__init__(path, {**environment, "FEATUREMILL_CACHE": "cache"})
        self.results = Results(path / "results" / "my")
        (path / "my.fa").write_text(RECORDS)
        self.config = {"run": "my", "inputs": "my.fa", "device": "cpu", "shards": {"cost": 60}}
        (path / "my.yaml").write_text(yaml.safe_dump(self.config))

    def __call__(self, *words, python=None, status=0):
        if python is None:
            return self.type(*words, status=status).err
        done = subprocess.run(
            [python, "-m", *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr

    def snakemake(self, *words, **more):
        return self(
            *("snakemake", "--snakefile", ROOT / "Snakefile", "--configfile", "my.yaml"),
            *("--workflow-profile", ROOT / "profiles" / "default", "--cores", "2", *words),
            **more,
        )


@pytest.fixture
def folder(tmp_path, environment):
    return Folder(tmp_path, environment)


def test_without_the_extra_a_run_is_refused_before_it_plans(folder, bare):
    sentence = INSTALL.format(bare)
    said = folder.snakemake(python=bare, status=1)
    hint = "(or have Snakemake make environments for the jobs: --sdm conda)"
    assert f"\nerror: {sentence} {hint}.\n" in said
    assert "Error" not in said and not folder.results.root.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["weights", "mill_t6_8M", "--output", "weights/mill_t6_8M.json"],
        ["weights", "esm2_t6_8M_UR50D", "--output", "weights/esm2_t6_8M_UR50D.json"],
        ["audit", "my.fa"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_without_the_extra_a_verb_says_what_to_install(folder, bare, words):
    said = folder("featuremill", *words, python=bare, status=2)
    assert f"error: {INSTALL.format(bare)}\n" in said and "Traceback" not in said
    assert {path.name for path in folder.folder.iterdir()} <= {"my.fa", "my.yaml", "cache"}


def test_without_the_extra_embed_says_what_to_install(folder, bare):
    code = "import featuremill; featuremill.embed(['MKV'])"
    done = subprocess.run(
        [bare, "-c", code], env=folder.environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.endswith(f".UserError: {INSTALL.format(bare)}\n")


def test_without_the_extra_of_a_step_a_run_is_refused_before_its_first_job(tmp_path, monkeypatch):
    """Its job would end after all features are computed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("featuremill.workload.find_spec", lambda module: None)
    monkeypatch.setattr("sys.argv", ["snakemake", "--configfile", "my.yaml"])
    asked = {"inputs": "my.fa", "run": "my", "workload": "composition"}

    def check(nodes=None, methods=(), dryrun=False, **steps):
        workflow = SimpleNamespace(
            is_main_process=True,
            nodes=nodes,
            deployment_settings=SimpleNamespace(deployment_method=methods),
            output_settings=SimpleNamespace(dryrun=dryrun),
            modifier=NOT_IMPORTED,
        )
        found = project.validate({**asked, **steps}, "my.yaml", {("maps",): "my.yaml:4"})
        refusals.refuse_steps_without_packages(workflow, found)

    said = "my.yaml:4: maps: openTSNE is not installed .*pip install 'featuremill\\[maps\\]'"
    with pytest.raises(RefusedError, match=said):
        check(maps={})
    with pytest.raises(RefusedError, match="autoencoders: safetensors is not installed"):
        check(autoencoders={"few": {}})
    check(maps={}, methods={"conda"})
    check(maps={}, nodes=4)
    check(maps={}, dryrun=True)
    check(groups={})
    monkeypatch.setattr(step.Product, "stands", lambda self: "yes")
    check(maps={})


def test_without_the_extra_what_is_left_can_still_be_done(tmp_path, monkeypatch):
    """A plan for nodes elsewhere, or to look at what is finished."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("featuremill.workload.find_spec", lambda module: None)
    monkeypatch.setattr("sys.argv", ["snakemake", "--configfile", "my.yaml"])
    run = config.validate({"inputs": "my.fa", "run": "my"})
    run = run.model_copy(update={"weights_json": "weights/w.json"})

    def check(nodes=None, methods=()):
        workflow = SimpleNamespace(
            nodes=nodes,
            deployment_settings=SimpleNamespace(deployment_method=methods),
            modifier=NOT_IMPORTED,
        )
        refusals.refuse_without_packages(workflow, run)

    for refused in ({}, {"nodes": 4}):
        with pytest.raises(RefusedError, match="torch is not installed"):
            check(**refused)
    check(methods={"conda"})
    Path("weights").mkdir()
    Path("weights/w.json").touch()
    with pytest.raises(RefusedError, match="torch is not installed"):
        check()
    check(nodes=4)
    monkeypatch.setattr("sys.argv", ["snakemake", "plan"])
    check()
    monkeypatch.setattr("sys.argv", ["snakemake"])
    Path("results/my").mkdir(parents=True)
    Path("results/my/plan.json").write_text(json.dumps(plan_json([{"shard": "s"}])))
    with pytest.raises(RefusedError, match="torch is not installed"):
        check()
    Path("results/my/receipts/r").mkdir(parents=True)
    Path("results/my/receipts/r/s.json").touch()
    check()


def test_weights_that_are_lost_are_converted_again_and_nothing_is_computed_again(
    folder, monkeypatch
):
    monkeypatch.chdir(folder.folder)
    monkeypatch.setenv("FEATUREMILL_CACHE", "cache")
    json_path = Path("weights/mill_t6_8M.json")
    assert main(["weights", "mill_t6_8M", "--output", str(json_path)]) == 0
    options = ["--config", "my.yaml", "--weights", str(json_path)]
    assert main(["plan", str(folder.results.root), *options]) == 0
    planned = folder.results.plan.read_bytes()
    plan = json.loads(planned)
    first, _ = (shard["shard"] for shard in plan["shards"])
    folder("featuremill", "extract", folder.results.root, first)
    part, receipt = (
        get(plan["recipe"], first) for get in (folder.results.part, folder.results.receipt)
    )
    made = part.stat().st_mtime_ns, part.read_bytes(), receipt.read_bytes()
    (file,) = Path("cache").rglob("*.safetensors")
    content, said_of_it = file.read_bytes(), json_path.read_bytes()
    file.unlink()
    said = folder.snakemake("results/my/manifest.json")
    assert file.read_bytes() == content and f"converting {sources.BUNDLED}" in said
    assert folder.results.plan.read_bytes() == planned
    assert (part.stat().st_mtime_ns, part.read_bytes(), receipt.read_bytes()) == made
    assert "the part is there already" in said and len(list(receipt.parent.iterdir())) == 2

    # Where all is computed nothing needs them.
    file.unlink()
    said = folder.snakemake("results/my/manifest.json")
    assert "Nothing to be done" in said and not file.exists()
    assert (part.stat().st_mtime_ns, part.read_bytes(), receipt.read_bytes()) == made

    run = config.validate(folder.config).model_copy(update={"weights_json": str(json_path)})

    def is_kept(methods=()):
        json_path.touch()
        settings = SimpleNamespace(deployment_method=methods)
        reruns.convert_other_weights(SimpleNamespace(deployment_settings=settings), run)
        return json_path.exists()

    json_path.write_bytes(said_of_it)
    assert is_kept({"conda"}) and not is_kept()
    json_path.write_bytes(said_of_it)
    file.write_bytes(content)
    assert is_kept(), "they are there"
    file.write_bytes(content[:-1])
    assert not is_kept(), "they are not whole"
    json_path.write_bytes(said_of_it)
    file.write_bytes(bytes([*content[:-1], 1]))
    assert not is_kept(), "they were changed"


def test_an_older_checkpoint_and_older_weights_are_converted_and_planned_again(folder, monkeypatch):
    """Snakemake sees a file of another content only where its time is newer."""
    monkeypatch.chdir(folder.folder)
    monkeypatch.setenv("FEATUREMILL_CACHE", "cache")
    path, root, model = Path("weights/my.json"), folder.results.root, Path("my.safetensors")
    shutil.copyfile(sources.BUNDLED / "mill_t6_8M.safetensors", model)
    Path("my.yaml").write_text(json.dumps(folder.config | {"options": {"model": str(model)}}))
    run = config.read(Path("my.yaml"))
    workflow = SimpleNamespace(deployment_settings=SimpleNamespace(deployment_method=()))

    def convert():
        assert main(["weights", str(model), "--output", str(path)]) == 0
        return plan()

    def plan():
        return main(["plan", str(root), "--weights", str(path), "--config", "my.yaml"])

    def problems():
        codes = {each.code: each.is_in_the_way for each in RunReader(root).inspect().problems}
        reruns.convert_other_weights(workflow, run)
        return codes, path.exists()

    assert convert() == 0 and problems() == ({}, True)
    before = path.read_bytes()
    with model.open("r+b") as file:
        file.seek(model.stat().st_size // 2)
        file.write(b"\1")
    os.utime(model, (1, 1))
    assert plan() == 2, "by hand"
    assert problems() == ({"weights_changed": True}, False)
    assert convert() == 0 and problems() == ({}, True)
    path.write_bytes(before)
    assert plan() == 2
    assert problems() == ({"weights_changed": True}, False), "while there is work"


WITHOUT_FEATUREMILL = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "featuremill" else find(name, *more)
from snakemake.cli import main
main(sys.argv[1:])
"""


def test_where_the_package_is_missing_lint_can_read_the_rules_and_a_run_says_what_to_install(
    environment,
):
    desk = Desk(ROOT, environment)
    desk.type("-c", WITHOUT_FEATUREMILL, "--lint")
    said = desk.type("-c", WITHOUT_FEATUREMILL, "-n", "--cores", "1", status=1).text
    assert "featuremill is not installed in the Python of this Snakemake" in said
