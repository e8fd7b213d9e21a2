"""What a run is made of is known: where its paths are seen from, and whether it is what the config
and the files ask for now."""

import json
import os
import re
import shutil
from base64 import urlsafe_b64decode
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from programs import Desk, Verbs, fasta, random_records
from test_contigs import contigs

from featuremill import config
from featuremill.base.errors import UserError
from featuremill.config import project
from featuremill.status import view
from featuremill.status.project import ProjectReader
from featuremill.status.reader import RunReader
from featuremill.steps.groups import Groups
from featuremill.steps.heads import Head
from featuremill.steps.transfer import Transfer
from featuremill.store import run_lock, state
from featuremill.store.results import Results, RunFile
from featuremill.store.state import came_at


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


TYPED = {
    "status": "status RUN",
    "top": "top --once RUN",
    "retry": "retry --dry-run RUN",
    "clean": "clean RUN",
    "verify": "verify RUN --seed 1 --recompute 1",
    "search": "search RUN --query IN --vectors composition",
    "export": "export RUN --to tsv --output OUT",
}


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory, environment):
    """Return a folder with results, and one with another file of the same name as each input."""
    own, other = (tmp_path_factory.mktemp(name) for name in ("own", "other"))
    (own / "in.fa").write_text(fasta(random_records(9)))
    (other / "in.fa").write_text(fasta([("OTHER", "MKKKKK")]))
    written_run(own)
    verbs, run = Verbs(own, environment), "results/test"
    verbs("plan", run)
    verbs("extract", run, json.loads((own / run / "plan.json").read_text())["shards"][0]["shard"])
    verbs("merge", run)
    return own, other


@pytest.mark.parametrize("verb", TYPED)
def test_a_command_gives_the_same_answer_in_any_folder(verb, two_folders, environment, tmp_path):
    own, _ = two_folders
    answers = []
    for number, folder in enumerate(two_folders):
        above = os.path.relpath(own, folder)
        names = {
            "RUN": os.path.normpath(f"{above}/results/test"),
            "IN": str(own / "in.fa"),
            "OUT": str(tmp_path / str(number)),
        }
        words = [names.get(word, word) for word in TYPED[verb].split()]
        said = Verbs(folder, environment).type("featuremill", *words, status=None)
        text = said.text.replace(f"{above}/", "").replace(f"{own}/", "")
        answers.append((said.status, text.replace(names["OUT"], "OUT")))
    assert answers[0] == answers[1] and answers[0][0] in (0, 1)


def test_a_config_that_is_named_by_its_run_is_read_where_it_was_typed(two_folders, monkeypatch):
    own, other = two_folders
    (own / "my.yaml").write_text("run: test\ninputs: in.fa\nworkload: composition\n")
    run = own / "results" / "test"
    with run_lock.claim(run) as file:
        run_lock.sign(file, "featuremill run my.yaml", folder=".", config="my.yaml")
    monkeypatch.chdir(own)
    assert run_lock.config_of(run) == Path("my.yaml")
    monkeypatch.chdir(other)
    with pytest.raises(UserError, match=rf"seen from {own}; type: cd .* with results/test\."):
        run_lock.config_of(run)


# ---- every key of a config, and every file that a step reads ----

RECORDS = random_records(40)
VECTORS = {"vectors": "composition"}
CONFIG = {
    "run": "my",
    "inputs": "in.fa",
    "workload": "composition",
    "outputs": "parquet",
    "labels": {"file": "labels.csv", "column": "kind"},
    "groups": {"g": {"table": "groups.csv", "column": "kind", **VECTORS}},
    "transfer": {"t": {"labels": "labels.csv", "column": "kind", **VECTORS}},
    "heads": {"h": {"labels": "labels.csv", "column": "kind", **VECTORS}},
}
LATER = {"heads": CONFIG["heads"] | {"k": {"folder": "H", **VECTORS}}}
LONG_AGO = 1_500_000_000


def table(path, kinds):
    rows = "".join(f"{id},{kinds[n % len(kinds)]},{n % 7}\n" for n, (id, _) in enumerate(RECORDS))
    path.write_text(f"id,kind,other\n{rows}")


def write(folder, **changes):
    (folder / "my.yaml").write_text(yaml.safe_dump(CONFIG | LATER | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """Return the folder of a finished run, one of whose heads is from elsewhere."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "in.fa").write_text(fasta(RECORDS))
    for name in ("labels.csv", "groups.csv"):
        table(folder / name, "xy")
    (folder / "my.yaml").write_text(yaml.safe_dump(CONFIG))
    desk = Desk(folder, environment)
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    shutil.copytree(folder / "results" / "my" / "heads" / "h", folder / "H")
    write(folder)
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    return folder


def copied(finished, folder, environment, monkeypatch):
    """Return a desk in a copy of the `finished` project, whose files have their times."""
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return Desk(folder, environment)


@pytest.fixture
def desk(finished, tmp_path, environment, monkeypatch):
    return copied(finished, tmp_path / "desk", environment, monkeypatch)


def look():
    """Return the exit status of `featuremill status my.yaml`, and its page."""
    state = ProjectReader(project.runs_of(Path("my.yaml"))).inspect()
    return state.exit_status, " ".join("\n".join(view.lines(state)).split())


def of_step(key, name, **changes):
    return {key: {**(CONFIG | LATER)[key], name: {**(CONFIG | LATER)[key][name], **changes}}}


EDITS = {
    "inputs": {"inputs": ["in.fa", "more.fa"]},
    "workload": {"workload": "esm2"},
    "options": {"options": {"hydropathy": False}},
    "shards": {"shards": {"cost": 77}},
    "device": {"device": "cpu"},
    "gpus": {"gpus": 2},
    "store": {"store": "shared"},
    "outputs": {"outputs": ["parquet", "npy"]},
    "order": {"order": "input"},
    "max_failed": {"max_failed": 3},
    "labels.file": {"labels": {"file": "groups.csv", "column": "kind"}},
    "labels.column": {"labels": {"file": "labels.csv", "column": "other"}},
    "labels.id_column": {"labels": {"file": "labels.csv", "column": "kind", "id_column": "id"}},
    "groups.column": of_step("groups", "g", column="other"),
    "groups.id_column": of_step("groups", "g", id_column="id"),
    "groups.pool": of_step("groups", "g", pool="max"),
    "groups.vectors": of_step("groups", "g", vectors=None),
    "groups.table": of_step("groups", "g", table="labels.csv"),
    "transfer.labels": of_step("transfer", "t", labels="groups.csv"),
    "transfer.column": of_step("transfer", "t", column="other"),
    "transfer.id_column": of_step("transfer", "t", id_column="id"),
    "transfer.group": of_step("transfer", "t", group="other"),
    "transfer.vectors": of_step("transfer", "t", vectors=None),
    "transfer.k": of_step("transfer", "t", k=3),
    "transfer.metric": of_step("transfer", "t", metric="euclidean"),
    "heads.labels": of_step("heads", "h", labels="groups.csv"),
    "heads.column": of_step("heads", "h", column="other"),
    "heads.id_column": of_step("heads", "h", id_column="id"),
    "heads.group": of_step("heads", "h", group="other"),
    "heads.kind": of_step("heads", "h", kind="mlp"),
    "heads.threshold": of_step("heads", "h", threshold={"class": "x", "recall": 0.5}),
    "heads.task": of_step("heads", "h", task="regression", column="other"),
    "heads.folder": of_step("heads", "k", folder="results/my/heads/h"),
    "heads.any_recipe": of_step("heads", "k", any_recipe=True),
    "heads.vectors": of_step("heads", "k", vectors=()),
}
"""By key, a config in which it is another one."""
ELSEWHERE = {
    *("run", "results", "samples"),  # other folders, or in place of `inputs`
    "keep",  # what goes at the end of a run, and no product
    "labels",  # by its own keys
    *("groups.of", "transfer.of", "transfer.reference", "heads.of", "heads.predict"),  # other sets
    "heads.mask",  # of residues
}
READ = ("in.fa", "labels.csv", "groups.csv", "H/head.json", "H/head.safetensors")
"""Every file that the run and its steps read, and that is not of the run."""
MADE = (
    *("embeddings.parquet", "failed.tsv", "report.html", "groups/g.parquet", "groups/g.json"),
    *("groups/g.members.tsv", "transfer/t.tsv", "transfer/t.missing.tsv", "transfer/t.json"),
    *("heads/h/head.safetensors", "heads/h/head.json", "heads/h/held_out.parquet"),
    *("predictions/h.tsv", "predictions/k.tsv", "predictions/k.missing.tsv"),
)


def test_each_key_is_among_the_edits():
    sections = keys_of(labels=config.Labels, groups=Groups, transfer=Transfer, heads=Head)
    assert {*config.Config.model_fields, *sections} == {*EDITS} | ELSEWHERE


def keys_of(**sections):
    return {f"{name}.{key}" for name, model in sections.items() for key in model.model_fields}


def test_status_is_done_until_a_key_is_another_one(desk):
    assert look()[0] == 0
    shutil.copy("in.fa", "more.fa")
    wrong = []
    for key, changes in EDITS.items():
        write(desk.folder, **changes)
        status, said = look()
        if status != 1 or "Nothing to do" in said:
            wrong.append(key)
    assert not wrong
    write(desk.folder)
    assert look()[0] == 0


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


def unnoticed(names, way):
    """Return with which of the files edited status still says that all is done."""
    wrong = []
    for name in map(Path, names):
        kept = Path("kept") / name
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, kept)
        edited(name, way)
        status, said = look()
        if status != 1 or "Nothing to do" in said:
            wrong.append(str(name))
        name.unlink(missing_ok=True)
        kept.rename(name)
    return wrong


def files_made(names, way):
    """Return the files that status looks into, in whichever way they are damaged."""
    unseen = {
        "older": ("embeddings.parquet", "failed.tsv", "report.html"),  # but for `--verify`
        "away": ("report.html",),  # which is none of the results
    }
    paths = [Path("results/my") / name for name in names]
    return [
        path
        for path, name in zip(paths, names, strict=True)
        if path.stat().st_size and name not in unseen.get(way, ())
    ]


@pytest.mark.parametrize("way", ["newer", "older", "same"])
def test_status_is_not_done_once_a_file_that_was_read_is_another_one(desk, way):
    assert unnoticed(READ, way) == []
    assert look()[0] == 0, "with other times, and the same content"


def test_an_edit_is_seen_where_all_files_of_the_run_are_newer(desk):
    """As in a copy of the project by `cp -r`, whose files all have the time of the copy."""
    edited(Path("in.fa"), "same")
    later = came_at(Path("in.fa")) + 9
    for path in Path("results").rglob("*"):
        os.utime(path, (later, later))
    status, said = look()
    assert status == 1 and "in.fa: this input has changed" in said


def test_a_file_behind_a_link_is_the_one_that_is_looked_at(tmp_path):
    link, file = tmp_path / "labels.csv", tmp_path / "data.csv"
    file.write_text("a")
    link.symlink_to(file)
    seen = state.Seen.at(link, tmp_path)
    edited(file, "same")
    assert not seen.is_at(link, tmp_path)


def test_a_dry_run_names_what_only_the_start_of_a_run_sees(desk):
    """Snakemake itself would see nothing to do: times are as before."""
    run = Path("results/my")
    edited(Path("in.fa"), "same")
    (run / "notes.tsv").unlink()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    dry = ("featuremill", "run", "my.yaml", "-c", "2", "-n")
    said = desk.type(*dry).text
    for what in ("in.fa: this input has changed", "notes.tsv: it is gone"):
        assert re.search(f"results/my: .*{what}.* A run makes it again", said), said
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    (run / "plan.json").unlink()
    assert "results/my: plan.json is gone. A run makes it again." in desk.type(*dry).text


@pytest.mark.parametrize("way", ["cut", "older", "away"])
def test_status_is_not_done_once_a_file_that_was_made_is_not_whole(desk, way):
    assert unnoticed(files_made(MADE, way), way) == []
    assert look()[0] == 0
    Path("results/my/report.html").unlink()
    status, said = look()
    assert status == 0 and "Type next featuremill run my.yaml" in said


def test_the_order_of_what_was_read_counts(tmp_path):
    folder, made, one, two = (tmp_path / name for name in (".state", "made", "one", "two"))
    for path in (one, two, made):
        path.write_text(path.name)
    state.note(folder / "it.json", [made], [str(one), str(two)], {})
    noted = state.State.find(folder / "it.json")
    assert noted.others([str(one), str(two)], folder) == []
    assert noted.others([str(two), str(one)], folder) == [str(two), str(one)]
    two.unlink()
    assert noted.others([str(one), str(two)], folder) == [], "what is gone is left out"


def test_a_head_from_elsewhere_whose_tensors_change_is_no_head_any_more(desk):
    """Its card, by which it is named, is as before: a run that did nothing would keep silent."""
    path = desk.folder / "H" / "head.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])  # a number's last bit
    said = desk.type("featuremill", "run", "my.yaml", "-c", "2", "-n").text
    assert "predictions.k: H/head.safetensors changed since this was made. A run makes it" in said
    said = desk.type("featuremill", "run", "my.yaml", "-c", "2", status=None).text
    assert "H/head.safetensors: it is gone, or its digest is not that in head.json" in said
    assert look()[0] == 1


@pytest.mark.parametrize("key", ["options", "inputs", "translate", "target"])
def test_an_older_copy_of_results_is_not_what_snakemake_has_recorded(tmp_path, environment, key):
    """The checksums that it recorded are those of the results that the copy replaced: the input
    has them, and plan.json once it is written."""
    desk, root = Desk(tmp_path, environment), tmp_path / "results" / "my"
    config = {name: CONFIG[name] for name in ("run", "inputs", "workload")}
    records = RECORDS
    if key == "translate":
        config["translate"] = {"by": "chunks", "window": 90}
        records = [*contigs(5).items()]
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "in.fa").write_text(fasta(records[:3]))
    run = ("featuremill", "run", "my.yaml", "-c", "2")
    desk.type(*run, "merge")
    shutil.copytree(root, tmp_path / "copy")
    if key in ("options", "target"):
        other = config | {"options": {"hydropathy": False}}
        (tmp_path / "my.yaml").write_text(yaml.safe_dump(other))
    else:
        (tmp_path / "in.fa").write_text(fasta(records[:5]))
    desk.type(*run, "merge")
    newest = Results(root).find_delivery()
    shutil.rmtree(root)
    (tmp_path / "copy").rename(root)
    assert "Nothing to be done" not in desk.type(*run, "-n").text
    desk.type(*run, "results/my/embeddings.parquet" if key == "target" else "merge")
    again = Results(root).find_delivery()
    assert again.is_of(Results(root).read_plan())
    assert (again.recipe, again.counts) == (newest.recipe, newest.counts)


def test_run_makes_again_what_snakemake_has_no_record_of(desk):
    """As after commands that were typed by hand. Of predictions it has one, and their inputs are as
    before: what was damaged is made again nevertheless."""
    for path in Path(".snakemake/metadata").iterdir():
        if not urlsafe_b64decode(path.name).startswith(b"results/my/predictions/"):
            path.unlink()
    changes = {"outputs": "parquet_dataset", "order": "shard", **of_step("groups", "g", pool="max")}
    write(desk.folder, **changes)
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
    assert "--allowed-rules without " in said and "type --until merge" in said


def test_a_report_is_of_the_results_that_it_was_made_of(desk):
    """Whatever its time is: a copy of a run has other times, and so has a report put back."""
    run, copy = Path("results/my"), Path("results/copy")
    shutil.copytree(run, copy, copy_function=shutil.copy)
    os.utime(copy / "report.html", (1, 1))
    assert RunReader(copy).inspect().delivery.reported == "yes"
    words = ("featuremill", "run", "my.yaml", "-c", "2")
    write(desk.folder, outputs=["parquet", "tsv"])
    report = run / "report.html"
    before = report.read_bytes()
    desk.type(*words, "--until", "merge")
    report.touch()
    assert RunReader(run).inspect().delivery.reported == "older"
    said = "report.html: it is of other results."
    assert said in desk.type(*words, "-n").text and report.read_bytes() == before
    assert said in desk.type(*words).text
    assert RunReader(run).inspect().delivery.reported == "yes" and report.read_bytes() != before
