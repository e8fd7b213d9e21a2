"""What a run is made of is known: where its paths are seen from, and whether it is what the config
and the files ask for now."""

import json
import os
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from programs import Desk, Verbs, fasta, random_records

from featuremill import config
from featuremill.base.change import told
from featuremill.config import runs
from featuremill.status import view
from featuremill.status.project import ProjectReader
from featuremill.step import Made
from featuremill.steps import maps, verdicts, virnucpro
from featuremill.steps import translate as translate_step
from featuremill.steps.autoencoders import Autoencoder
from featuremill.steps.groups import Groups
from featuremill.steps.heads import Head
from featuremill.steps.transfer import Transfer
from featuremill.steps.translate.command import translate
from featuremill.store.results import Results
from featuremill.store.run_file import RunFile


def written_run(folder, is_early=False, **keys):
    """Write what Snakemake leaves in a run's folder before its first job."""
    asked = config.validate({"run": "test", "inputs": "in.fa", "workload": "composition", **keys})
    path = Results(folder / "results" / "test").run
    path.parent.mkdir(parents=True)
    more = {} if is_early else {"folder": "../.."}
    RunFile(config=asked.model_dump(mode="json"), **more).write(path)


@pytest.mark.parametrize("is_early", [True, False])
def test_commands_typed_elsewhere_read_the_files_of_the_run(tmp_path, environment, is_early):
    own, other = tmp_path / "project", tmp_path / "other"
    for folder, record in ((own, ("a", "MKTAYI")), (other, ("OTHER", "MKKKKK"))):
        folder.mkdir()
        (folder / "in.fa").write_text(fasta([record]))
    written_run(own, is_early)
    verbs, run = Verbs(other, environment), "../project/results/test"
    verbs("plan", run)
    plan = json.loads((own / "results/test/plan.json").read_text())
    assert [entry["path"] for entry in plan["inputs"]] == ["in.fa"]
    if is_early:
        return
    verbs("extract", run, plan["shards"][0]["shard"], "--log-file", "mine.log")
    verbs("merge", run)
    assert pq.read_table(own / "results/test/embeddings.parquet")["id"].to_pylist() == ["a"]
    assert [path.name for path in sorted(other.iterdir())] == ["in.fa", "mine.log"]
    (own / "in.fa").unlink()
    said = verbs.type("featuremill", "status", run).out
    assert "in.fa: this input is gone" in said, "the other file of this name is none of the run's"


# ---- every key of a config, and every file that a step reads ----

RECORDS = random_records(40)
VECTORS = {"vectors": "composition"}
COMPOSITION = {"workload": "composition", "outputs": "parquet"}
ONE_COLUMN = {**COMPOSITION, "options": {"hydropathy": False}}
LABELS = {"labels": "labels.csv", "column": "kind"}
FAR = "results/far"
TINY = {"of": "proteins", "features": 8, "batch": 8, "steps": 4, "device": "cpu"}
CUT = {"by": "chunks", "window": 90}
CONFIGS = {
    "records": {
        "run": "my",
        "inputs": "in.fa",
        **COMPOSITION,
        "labels": {"file": "labels.csv", "column": "kind"},
        "groups": {"g": {"table": "groups.csv", "column": "kind", **VECTORS}},
        "transfer": {"t": {**LABELS, **VECTORS}},
        "heads": {"h": {**LABELS, **VECTORS}, "k": {"folder": "H", **VECTORS}},
    },
    "contigs": {
        "run": "my",
        "inputs": ["in.fa", "more.fa"],
        "translate": CUT,
        "features": {"proteins": ONE_COLUMN, "other": {"of": "proteins", **ONE_COLUMN}},
        "groups": {"g": {"table": "fragments.csv", "column": "kind", "of": "proteins"}},
        "transfer": {
            "t": {"labels": "far.csv", "column": "kind", "of": "proteins", "reference": FAR}
        },
        "heads": {
            "h": {**LABELS, "of": "proteins"},
            "both": {**LABELS, "of": ["proteins", "other"]},
            "k": {"folder": "H", "of": "proteins", "predict": {"far": FAR}},
        },
        "verdicts": {"head": "h"},
        "virnucpro": {"head": "h"},
        "autoencoders": {
            "top": {**TINY, "k": 2, "encode": FAR},
            "jump": {**TINY, "kind": "jumprelu"},
        },
        "maps": {"perplexity": 5},
    },
}
LONG_AGO = 1_500_000_000
OF_CONTIGS = [pytest.mark.slow, pytest.mark.timeout(1200)]
"""Marks of tests with all other steps, which compute for a minute first."""


def table(path, ids):
    rows = "".join(f"{id},{'xy'[n % 2]},{n % 7}\n" for n, id in enumerate(ids))
    path.write_text(f"id,kind,other\n{rows}")


def write(folder, project, **changes):
    """Write the config of a project with other sections."""
    (folder / "my.yaml").write_text(yaml.safe_dump(CONFIGS[project] | changes))


def computed(folder, project, environment):
    """Compute a project, one of whose heads is from elsewhere."""
    desk = Desk(folder, environment)
    heads = {name: head for name, head in CONFIGS[project]["heads"].items() if name != "k"}
    write(folder, project, heads=heads)
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    shutil.copytree(folder / "results" / "my" / "heads" / "h", folder / "H")
    write(folder, project)
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory, environment):
    """Return the folder of a finished run of proteins."""
    folder = tmp_path_factory.mktemp("records")
    (folder / "in.fa").write_text(fasta(RECORDS))
    for name in ("labels.csv", "groups.csv"):
        table(folder / name, dict(RECORDS))
    return computed(folder, "records", environment)


@pytest.fixture(scope="module")
def contigs(tmp_path_factory, environment):
    """Return the folder of a finished run of contigs, beside one of proteins."""
    folder, rng = tmp_path_factory.mktemp("contigs"), random.Random(3)
    found = [(f"c{n}", "".join(rng.choices("AACCGT", k=300))) for n in range(16)]
    for name, some in {"in.fa": found[:9], "more.fa": found[9:], "far.fa": RECORDS}.items():
        (folder / name).write_text(fasta(some))
    translate([folder / "in.fa", folder / "more.fa"], folder / "cut", **CUT)
    fragments = pq.read_table(folder / "cut" / "fragments.parquet")["id"].to_pylist()
    tables = {"labels.csv": dict(found), "far.csv": dict(RECORDS), "fragments.csv": fragments}
    for name, ids in tables.items():
        table(folder / name, ids)
    far = {"run": "far", "inputs": "far.fa", **ONE_COLUMN}
    (folder / "far.yaml").write_text(yaml.safe_dump(far))
    Desk(folder, environment).type("featuremill", "run", "far.yaml", "-c", "2")
    return computed(folder, "contigs", environment)


@pytest.fixture(params=["records", pytest.param("contigs", marks=OF_CONTIGS)])
def project(request):
    return request.param


@pytest.fixture
def desk(project, request, tmp_path, environment, monkeypatch):
    """Return a desk in a copy of a finished project, whose files have their times."""
    folder = tmp_path / "desk"
    shutil.copytree(request.getfixturevalue(project), folder)
    monkeypatch.chdir(folder)
    return Desk(folder, environment)


def look():
    """Return the exit status of `featuremill status my.yaml`, and its page."""
    state = ProjectReader(runs.named(Path("my.yaml"))).look_closely()
    return state.exit_status, " ".join("\n".join(view.lines(state)).split())


def of_step(project, key, name, **changes):
    """Return a section with other keys of what has this name in it."""
    section = CONFIGS[project][key]
    return {key: {**section, name: {**section[name], **changes}}}


def of_records(key, **changes):
    name = "k" if {*changes} & {"folder", "any_recipe"} else key[0]
    return of_step("records", key, name, **changes)


def of_contigs(key, **changes):
    section = CONFIGS["contigs"][key]
    if key in ("verdicts", "virnucpro", "maps", "translate"):
        return {key: {**section, **changes}}
    name = next(iter(section))
    if key == "heads":
        name = "k" if "predict" in changes else "both"
    if {*changes} & {"sparsity", "bandwidth"}:
        name = "jump"
    return of_step("contigs", key, name, **changes)


EDITS = {
    "records": {
        "inputs": {"inputs": ["in.fa", "one_more.fa"]},
        "workload": {"workload": "esm2"},
        "options": {"options": {"hydropathy": False}},
        "shards": {"shards": {"cost": 77}},
        "device": {"device": "cpu"},
        "gpus": {"gpus": 2},
        "store": {"store": "shared"},
        "outputs": {"outputs": ["parquet", "npy"]},
        "order": {"order": "input"},
        "max_failed": {"max_failed": 3},
        "labels": {"labels": {"file": "labels.csv", "column": "other"}},
        "groups.column": of_records("groups", column="other"),
        "groups.id_column": of_records("groups", id_column="id"),
        "groups.pool": of_records("groups", pool="max"),
        "groups.vectors": of_records("groups", vectors=None),
        "groups.table": of_records("groups", table="labels.csv"),
        "transfer.labels": of_records("transfer", labels="groups.csv"),
        "transfer.column": of_records("transfer", column="other"),
        "transfer.id_column": of_records("transfer", id_column="id"),
        "transfer.group": of_records("transfer", group="other"),
        "transfer.vectors": of_records("transfer", vectors=None),
        "transfer.k": of_records("transfer", k=3),
        "transfer.metric": of_records("transfer", metric="euclidean"),
        "heads.labels": of_records("heads", labels="groups.csv"),
        "heads.column": of_records("heads", column="other"),
        "heads.id_column": of_records("heads", id_column="id"),
        "heads.group": of_records("heads", group="other"),
        "heads.kind": of_records("heads", kind="mlp"),
        "heads.threshold": of_records("heads", threshold={"class": "x", "recall": 0.5}),
        "heads.task": of_records("heads", task="regression", column="other"),
        "heads.folder": of_records("heads", folder="results/my/heads/h"),
        "heads.any_recipe": of_records("heads", any_recipe=True),
        "heads.vectors": of_records("heads", vectors=()),
    },
    "contigs": {
        "inputs, in another order": {"inputs": ["more.fa", "in.fa"]},
        "groups.of": of_contigs("groups", of="other"),
        "transfer.of": of_contigs("transfer", of="other"),
        "transfer.reference": of_contigs("transfer", reference="other"),
        "transfer, the other way": of_contigs("transfer", of=FAR, reference="proteins"),
        "heads.of": of_contigs("heads", of="proteins"),
        "heads.of, in another order": of_contigs("heads", of=["other", "proteins"]),
        "heads.predict": of_contigs("heads", predict={"far": "results/my/proteins"}),
        "verdicts.head": of_contigs("verdicts", head="both"),
        "verdicts.by": of_contigs("verdicts", by="mean"),
        "verdicts.prefer": of_contigs("verdicts", prefer="x"),
        "virnucpro.head": of_contigs("virnucpro", head="both"),
        "virnucpro.files": of_contigs("virnucpro", files="all"),
        "virnucpro.nucleotides": of_contigs("virnucpro", nucleotides="other"),
        "virnucpro.proteins": of_contigs("virnucpro", proteins="other"),
        "virnucpro.folder": of_contigs("virnucpro", folder="elsewhere"),
        "autoencoders.of": of_contigs("autoencoders", of="other"),
        "autoencoders.vectors": of_contigs("autoencoders", vectors="composition"),
        "autoencoders.features": of_contigs("autoencoders", features=16),
        "autoencoders.kind": of_contigs("autoencoders", kind="relu", k=None),
        "autoencoders.k": of_contigs("autoencoders", k=3),
        "autoencoders.sparsity": of_contigs("autoencoders", sparsity=2.0),
        "autoencoders.bandwidth": of_contigs("autoencoders", bandwidth=0.5),
        "autoencoders.batch": of_contigs("autoencoders", batch=16),
        "autoencoders.steps": of_contigs("autoencoders", steps=5),
        "autoencoders.seed": of_contigs("autoencoders", seed=1),
        "autoencoders.learning_rate": of_contigs("autoencoders", learning_rate=0.01),
        "autoencoders.dead_after": of_contigs("autoencoders", dead_after=3),
        "autoencoders.held_out": of_contigs("autoencoders", held_out=0.3),
        "autoencoders.dtype": of_contigs("autoencoders", dtype="bf16"),
        "autoencoders.gpus": of_contigs("autoencoders", gpus=2),
        "autoencoders.device": of_contigs("autoencoders", device="auto"),
        "autoencoders.threads": of_contigs("autoencoders", threads=2),
        "autoencoders.checkpoint_minutes": of_contigs("autoencoders", checkpoint_minutes=5.0),
        "autoencoders.encode": of_contigs("autoencoders", encode=[FAR, "proteins"]),
        "maps.seed": of_contigs("maps", seed=1),
        "maps.perplexity": of_contigs("maps", perplexity=6),
        "translate.by": {"translate": {"by": "virnucpro", "window": 90}},
        "translate.window": of_contigs("translate", window=60),
        "translate.min_residues": {"translate": {"by": "orfs", "min_residues": 9}},
    },
}
"""By project and by key, a config in which it is another one."""
ELSEWHERE = {
    *("run", "results", "samples"),  # other folders, or in place of `inputs`
    "keep",  # what goes at the end of a run, and no product
    "heads.mask",  # of residues
    *("translate.code", "translate.orf", "translate.procedure"),  # the next test but one
}
READ = {
    "records": ("in.fa", "labels.csv", "groups.csv", "H/head.json", "H/head.safetensors"),
    "contigs": (
        *("in.fa", "more.fa", "labels.csv", "far.csv", "fragments.csv"),
        *("H/head.json", "H/head.safetensors", f"{FAR}/manifest.json"),
    ),
}
"""Every file that the run and its steps read, and that is not of the run."""
OF_RUN = {
    "records": ("embeddings.parquet", "failed.tsv", "report.html"),
    "contigs": ("proteins/embeddings.parquet", "other/failed.tsv"),
}


def made(project):
    """Return every file of the run, and of its steps."""
    steps = [Path(file) for each in runs.named(Path("my.yaml")).steps for file in each.files]
    return [*(Path("results/my", name) for name in OF_RUN[project]), *steps]


def test_each_key_is_among_the_edits():
    steps = {"groups": Groups, "transfer": Transfer, "heads": Head, "autoencoders": Autoencoder}
    steps |= {step.KEY: step.SECTION for step in (translate_step, verdicts, virnucpro, maps)}
    keys = {*config.Config.model_fields}
    keys |= {f"{name}.{key}" for name, model in steps.items() for key in model.model_fields}
    edited = {key.partition(",")[0] for edits in EDITS.values() for key in edits}
    assert keys == edited - {"transfer"} | ELSEWHERE


def test_status_is_done_until_a_key_is_another_one(project, desk):
    assert look()[0] == 0
    shutil.copy("in.fa", "one_more.fa")
    wrong = []
    for key, changes in EDITS[project].items():
        write(desk.folder, project, **changes)
        status, said = look()
        if status != 1 or "Nothing to do" in said:
            wrong.append(key)
    assert not wrong
    write(desk.folder, project)
    assert look()[0] == 0


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"by": "orfs"}, {"code": 11}),
        ({"by": "orfs"}, {"orf": "between-stops"}),
        ({"by": "genes"}, {"procedure": "single"}),
        ({"by": "genes", "procedure": "single"}, {"code": 4}),
    ],
)
@pytest.mark.parametrize("project", [pytest.param("contigs", marks=OF_CONTIGS)])
def test_each_option_of_a_way_to_cut_is_asked_for(desk, project, before, now):
    asked = []
    for options in (before, before | now):
        write(desk.folder, project, translate=options)
        asked.append(runs.named(Path("my.yaml")).steps[0].asked)
    assert {*asked[1].items()} - {*asked[0].items()} == {*now.items()} - {*before.items()}


def test_files_that_a_step_reads_have_an_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c", "out"):
        Path(name).write_text(name)
    made = Made("x", ["out"], ["a", "b"], [], [], state=".state/x.json")
    made.note(is_by_config=True)
    assert made.stands() == "yes" and not made.changes()
    for names, now in ((["b", "a"], "b, a"), (["a", "c"], "a, c"), (["a", "a", "b"], "a, a, b")):
        other = made._replace(made_of=names)
        assert told(other.changes()) == f"made of: a, b → {now}"
        assert other.stands() == "older" and not other.others()


def edited(path, way):
    """Let another file take the place of the one at `path`, or change it."""
    before, content = path.stat(), path.read_bytes()
    if way == "away":
        path.unlink()
        return
    if way == "cut":
        content = content[:-8]
    else:
        place = content.rindex(b"x") if b"x" in content else len(content) // 2
        content = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    path.unlink()
    path.write_bytes(content + b"\n" * (way == "newer"))
    times = {"older": LONG_AGO, "same": before.st_mtime}.get(way)
    if times:
        os.utime(path, (times, times))


@pytest.mark.parametrize("way", ["newer", "older", "same"])
def test_status_is_not_done_once_a_file_that_was_read_is_another_one(project, desk, way):
    wrong = []
    for name in READ[project]:
        path = desk.folder / name
        shutil.copy2(path, desk.folder / "kept")
        edited(path, way)
        status, said = look()
        if status != 1 or "Nothing to do" in said:
            wrong.append(name)
        path.unlink()
        (desk.folder / "kept").rename(path)
    assert not wrong
    assert look()[0] == 0, "with other times, and the same content"


@pytest.mark.parametrize("way", ["cut", "older", "away"])
def test_status_is_not_done_once_a_file_that_was_made_is_not_whole(project, desk, way):
    wrong, every = [], made(project)
    for path in every:
        is_found_by_verify = way == "older" and path in every[: len(OF_RUN[project])]  # by its size
        if is_found_by_verify or not path.stat().st_size:
            continue
        shutil.copy2(path, desk.folder / "kept")
        edited(path, way)
        status, _ = look()
        if status != 1 and path.name != "report.html":
            wrong.append(path)
        path.unlink(missing_ok=True)
        (desk.folder / "kept").rename(path)
    assert not wrong
    assert look()[0] == 0


@pytest.mark.parametrize("project", ["records"])
def test_run_makes_again_what_snakemake_has_no_record_of(project, desk):
    """As after commands that were typed by hand."""
    shutil.rmtree(".snakemake/metadata")
    changes = {"outputs": "parquet_dataset", "order": "shard", **of_records("groups", pool="max")}
    write(desk.folder, project, **changes)
    root = Path("results/my")
    with (root / "predictions" / "h.tsv").open("a") as file:
        file.write("mine")
    head = Path("H/head.json")  # the same head, written otherwise
    head.write_text(json.dumps(json.loads(head.read_text())))
    os.utime(head, (LONG_AGO, LONG_AGO))
    before = {path: path.read_bytes() for path in desk.folder.rglob("*.json")}
    said = desk.type("featuremill", "run", "my.yaml", "-c", "2", "-n").text
    assert (
        "results/my/manifest.json: the config has changed (outputs: parquet → parquet_dataset"
        in said
    )
    assert "groups.g: the config has changed (pool: mean → max): a run makes it again" in said
    assert "predictions.h: results/my/predictions/h.tsv changed since" in said
    assert "predictions.k: H/head.json changed since this was made. A run makes it again" in said
    assert before == {path: path.read_bytes() for path in desk.folder.rglob("*.json")}
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    assert json.loads((root / "manifest.json").read_text())["row_order"] == "shard"
    assert json.loads((root / "groups" / "g.json").read_text())["pool"] == ["max"]
    assert (root / "predictions" / "h.yours-1.tsv").read_text().endswith("mine")
    assert (root / "embeddings.ids.npy").exists() and look()[0] == 0
    assert "Nothing to be done" in desk.type("featuremill", "run", "my.yaml", "-c", "2").text
    words = ("--allowed-rules", "merge", "report")
    said = desk.type("featuremill", "run", "my.yaml", "-c", "2", *words, status=None).text
    assert "--allowed-rules without " in said and "name a target" in said


@pytest.mark.parametrize("project", [pytest.param("contigs", marks=OF_CONTIGS)])
def test_run_makes_again_what_a_step_was_made_of_otherwise(project, desk):
    """Also where a rule does not name the file, or it is newer than what is not whole."""
    shutil.rmtree(".snakemake/metadata")
    keys = (
        *("groups.of", "transfer, the other way", "heads.of, in another order", "verdicts.by"),
        *("virnucpro.files", "autoencoders.k", "maps.perplexity"),
    )
    edits = [EDITS[project][key] for key in keys]
    write(desk.folder, project, **{key: section for edit in edits for key, section in edit.items()})
    root, far = Path("results/my"), Path("results/my/predictions/k.far.tsv")
    weights = [Path("H/head.safetensors"), root / "autoencoders/jump/sae.json"]
    for path in weights:
        shutil.copy2(path, "kept")
        path.unlink()
        shutil.copy("kept", path)
    edited(far.with_suffix(".missing.tsv"), "newer")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*.*") if path.is_file()}
    said = desk.type("featuremill", "run", "my.yaml", "-c", "2", "-n").text
    of = [f"fragments.csv, {root}/{name}/manifest.json" for name in ("proteins", "other")]
    told = f"groups.g: the config has changed (made of: {' → '.join(of)}): a run makes it again"
    assert told in said
    labels = ("transfer.t", "heads.both", "verdicts", "virnucpro", "autoencoders.top")
    for label in (*labels, "maps.proteins", "maps.other"):
        assert f"{label}: the config has changed (" in said
    assert "predictions.k.far: results/my/predictions/k.far.missing.tsv changed since" in said
    assert "jump" not in said, "its files are the same"
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    assert look()[0] == 0
    again = {path for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert {far, root / "verdicts.tsv", root / "other/map.parquet"} < again
    assert not any("jump" in path.parts for path in again)
    assert (root / "predictions/k.far.missing.yours-1.tsv").exists()
    assert "Nothing to be done" in desk.type("featuremill", "run", "my.yaml", "-c", "2").text


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_run_makes_what_each_key_asks_for(project, desk):
    shutil.copy("in.fa", "one_more.fa")
    wrong = []
    for key, changes in EDITS[project].items():
        if key in ("gpus", "device", "workload", "virnucpro.nucleotides", "heads.predict"):
            continue  # no such device here, hours, or features that do not fit
        write(desk.folder, project, **changes)
        shutil.rmtree(".snakemake/metadata", ignore_errors=True)
        said = desk.type("featuremill", "run", "my.yaml", "-c", "2", "-n").text
        desk.type("featuremill", "run", "my.yaml", "-c", "2")
        is_said = "changed" in said or "Nothing to be done" not in said
        if not (is_said and look()[0] == 0):
            wrong.append(key)
    assert not wrong
