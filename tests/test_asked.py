"""What is shown as done is what the config asks for: run, status, a dry run and a module give the
same answer to a config, or a file, that is another one than what was planned."""

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from plans import delivery_json, read_sealed, write_sealed
from programs import Desk, Verbs, random_records

from featuremill.__main__ import main
from featuremill.config import project
from featuremill.config.products import counted as counted_of
from featuremill.flow import context, internals
from featuremill.flow.screen import Failures
from featuremill.flow.summary import closing_words
from featuremill.status import outdated, view
from featuremill.status.project import ProjectReader
from featuremill.step import Product, stated
from featuremill.steps import autoencoders
from featuremill.store import run_lock
from featuremill.store import state as digests
from featuremill.store.files import read_json, sha256_of
from featuremill.store.results import Results
from featuremill.workloads import composition

RECORDS = random_records(30)
LONG_AGO = 1_500_000_000
VECTORS = {"vectors": "composition"}
CONFIG = {
    "run": "my",
    "inputs": "in.fa",
    "workload": "composition",
    "options": {"hydropathy": True},
    "outputs": "parquet",
    "labels": {"file": "labels.csv", "column": "kind"},
    "groups": {"g": {"table": "groups.csv", "column": "kind", **VECTORS}},
    "transfer": {"t": {"labels": "labels.csv", "column": "kind", **VECTORS}},
}


def table(path, kinds):
    """Write a table whose rows are of these kinds in turn."""
    kind = [kinds[n % len(kinds)] for n in range(len(RECORDS))]
    pd.DataFrame({"id": [id for id, _ in RECORDS], "kind": kind}).to_csv(path, index=False)


def write(folder, **changes):
    (folder / "my.yaml").write_text(yaml.safe_dump(CONFIG | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """Return the folder of a finished run, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "in.fa").write_text("".join(f">{id}\n{letters}\n" for id, letters in RECORDS))
    for name in ("labels.csv", "groups.csv"):
        table(folder / name, "xy")
    write(folder)
    Desk(folder, environment).type("featuremill", "run", "my.yaml", "-c", "2")
    return folder


@pytest.fixture
def desk(finished, tmp_path, environment, monkeypatch):
    """Return a desk in a copy of it, whose files have their times."""
    folder = tmp_path / "desk"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return Desk(folder, {**environment, "PATH": f"{Path(sys.executable).parent}:{os.defpath}"})


def run(desk, *words, status=0):
    return desk.type("featuremill", "run", "my.yaml", "-c", "2", *words, status=status).text


def look():
    """Return how my.yaml stands, and the page that says it."""
    state = ProjectReader(project.runs_of(Path("my.yaml"))).inspect()
    return state, " ".join("\n".join(view.lines(state)).split())


def kinds(path):
    return set(pd.read_csv(path, sep="\t").iloc[:, 1])


def test_an_input_may_be_put_away_while_the_config_asks_for_what_was_planned(desk):
    (desk.folder / "in.fa").unlink()
    assert "Nothing to be done" in run(desk)
    before = Path("results/my/manifest.json").read_bytes()
    write(desk.folder, options={"hydropathy": False})
    said = run(desk, status=2).splitlines()[-1]
    assert said == (
        "error: my.yaml:6: inputs: in.fa is gone, and results/my has to be made anew of it "
        "(hydropathy: true → false); put it back, or undo that change."
    )
    assert said in run(desk, "-n", status=2)
    assert Path("results/my/manifest.json").read_bytes() == before
    Path("labels.csv").rename("away.csv")
    write(
        desk.folder, transfer={"t": {"labels": "labels.csv", "column": "kind", "k": 3, **VECTORS}}
    )
    assert "transfer.t: labels.csv is gone, and " in run(desk, status=2)
    write(desk.folder, labels={"file": "labels.csv", "column": "id"}, transfer={})
    assert "labels: labels.csv: " in run(desk, status=2), "the report is not of that column"


def test_contigs_may_be_put_away_while_they_are_cut_as_they_were(tmp_path, environment):
    desk = Desk(tmp_path, environment)
    (tmp_path / "c.fa").write_text(">c\n" + "ACGGAT" * 200 + "\n")
    config = {**CONFIG, "inputs": "c.fa", "translate": {"by": "chunks", "window": 300}}
    for key in ("labels", "groups", "transfer"):
        del config[key]
    folder = tmp_path / "results" / "my" / "translate"
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    desk.type("featuremill", "translate", "c.fa", "--by=chunks", "--window=300", "--output", folder)
    (tmp_path / "c.fa").unlink()
    assert "translate" not in run(desk, "-n").partition("Job stats")[2].partition("total")[0]
    config["translate"]["window"] = 500
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    assert "has to be made anew of it (window: 300 → 500)" in run(desk, "-n", status=2)


def test_tables_that_older_ones_took_the_place_of_are_read_again(desk):
    """Snakemake goes by times of writing, which a copy keeps."""
    for name in ("labels.csv", "groups.csv"):
        old = desk.folder / f"old_{name}"
        table(old, "pq")
        os.utime(old, (LONG_AGO, LONG_AGO))
        shutil.copy2(old, desk.folder / name)
    state, _ = look()
    assert state.exit_status == 1 and state.steps == ["older", "older"]
    assert state.states["my"].delivery.reported == "older"
    said = run(desk, "-n")
    assert "groups.g: groups.csv changed since this was made. A run makes it again" in said
    said = run(desk)
    for label in ("groups.g", "transfer.t", "results/my/report.html"):
        assert f"{label}: " in said
    assert kinds("results/my/groups/g.members.tsv") == kinds("results/my/transfer/t.tsv") == {*"pq"}
    assert look()[0].exit_status == 0 and look()[0].states["my"].delivery.reported == "yes"
    assert "extract │" not in said and "plan │" not in said


def test_an_edit_counts_where_snakemake_has_no_record_of_what_it_ran(desk):
    """As after commands that were typed by hand, or in a copy without .snakemake."""
    changes = {"outputs": "parquet_dataset", "groups": {}, "transfer": {}, "labels": {}}
    for more in ({"options": {"hydropathy": False}, "order": "input"}, {"order": "shard"}):
        shutil.rmtree(".snakemake/metadata")
        changes |= more
        write(desk.folder, **changes)
        run(desk, "merge")
        manifest = read_sealed(Path("results/my/manifest.json"))
        assert manifest["settings"]["options"]["hydropathy"] is False
        assert manifest.get("row_order", "input") == changes["order"]


def test_a_large_input_that_an_older_one_took_the_place_of_is_read_once(desk, monkeypatch):
    monkeypatch.setattr(digests, "LARGE", 10)
    monkeypatch.setattr(digests, "YOUNG_SECONDS", 0)
    monkeypatch.setattr(outdated, "LARGE", 10)
    read, sha256_of = [], digests.sha256_of
    monkeypatch.setattr(digests, "sha256_of", lambda path: read.append(path) or sha256_of(path))
    text = Path("in.fa").read_text()

    def replace(text):
        """Put another file there, with an old time, as `cp -p` and `rsync -t` do."""
        Path("new.fa").write_text(text)
        os.utime("new.fa", (LONG_AGO, LONG_AGO))
        Path("new.fa").replace("in.fa")

    replace(text)
    for _ in range(2):
        assert look()[0].exit_status == 0
    assert read.count(Path("in.fa").absolute()) == 1, "once: nothing was written to it since"
    replace(text[:-2] + ("W" if text[-2] != "W" else "Y") + text[-1])
    for _ in range(2):
        state, _ = look()
        assert [one.code for one in state.states["my"].problems] == ["input_changed"]
    assert read.count(Path("in.fa").absolute()) == 2
    said = run(desk)
    assert "in.fa: this input has changed since it was planned. This is made again." in said
    assert look()[0].exit_status == 0 and not Path("results/my/.known_digests.json").exists()


def test_status_of_a_config_that_was_edited_is_not_done(desk):
    assert look()[0].exit_status == 0
    write(desk.folder, options={"hydropathy": False})
    state, said = look()
    assert state.exit_status == 1 and "Nothing to do" not in said
    assert "results/my is not of what my.yaml asks for (hydropathy: true → false)." in said
    assert said.endswith("Type next featuremill run my.yaml -c 2")
    write(desk.folder, inputs=["in.fa", "more.fa"])
    assert "(inputs: in.fa → in.fa, more.fa)" in look()[1]
    write(
        desk.folder,
        groups={"g": {"table": "groups.csv", "column": "kind", "pool": "max", **VECTORS}},
    )
    state, said = look()
    assert state.exit_status == 1 and "(pool: mean → max)" in said
    write(desk.folder)
    assert look()[0].exit_status == 0
    # The start of a run that failed asked for something else.
    last = run_lock.read(Path("results/my"))
    with run_lock.claim(Path("results/my")) as file:
        run_lock.sign(file, last.command, config=last.config)
    path, asked = Path("results/my/run.json"), asked_in()
    asked["options"]["hydropathy"] = False
    write_sealed(path, read_sealed(path) | {"config": asked})
    state = ProjectReader(project.runs_of(Path("results/my"))).inspect()
    assert state.exit_status == 1
    said = " ".join("\n".join(view.lines(state)).split())
    assert "is not of what the last start (featuremill run my.yaml -c 2) asks for (hydro" in said


@pytest.mark.parametrize("option", ["--config ", "--config=", "-C"])
def test_after_a_start_with_config_an_edit_of_another_key_is_noticed(desk, option):
    last, as_before = run_lock.read(Path("results/my")), f"{option}device={asked_in()['device']}"
    with run_lock.claim(Path("results/my")) as file:
        run_lock.sign(file, f"{last.command} {as_before}", config=last.config)
    write(desk.folder, device="cuda")
    assert look()[0].exit_status == 0, "that key is as it was typed"
    write(desk.folder, device="cuda", options={"hydropathy": False})
    state, said = look()
    assert state.exit_status == 1
    assert "asks for (hydropathy: true → false)" in said


def test_the_model_is_named(desk):
    path = Path("results/my/plan.json")
    plan = read_sealed(path)
    options = {"model": "mill_t6_8M", "dtype": "fp32"}
    plan["settings"] |= {"workload": "esm2", "options": options}
    write_sealed(path, plan | {"workload": "esm2"})
    state = ProjectReader(project.runs_of(Path("results/my"))).inspect()
    assert "(esm2 mill_t6_8M, recipe " in " ".join(view.lines(state))
    assert state.as_json()["model"] == "mill_t6_8M"


def test_after_a_model_that_failed_the_results_before_are_not_done(desk):
    (desk.folder / "broken.pt").write_bytes(b"no checkpoint")
    steps = {"groups": {}, "transfer": {}}
    write(desk.folder, workload="esm2", options={"model": "./broken.pt"}, **steps)
    run(desk, status=2)
    for named, who in (("my.yaml", "my.yaml"), ("results/my", "the last start (")):
        said = desk.type("featuremill", "status", named, status=1).text
        said = " ".join(said.split())
        assert f"is not of what {who}" in said and "(workload: composition → esm2)" in said
        assert "making the weights failed: broken.pt: " in said
        assert said.endswith("Type next featuremill run my.yaml -c 2")


MODULE = """
from featuremill import SNAKEFILE

module lab:
    snakefile: SNAKEFILE
    config: config["lab"]

use rule * from lab as lab_*

rule made:
    output: "made.fa"
    shell: "echo '>a' > {output}"
"""


def test_a_module_refuses_what_a_run_refuses(desk):
    """But for what a rule makes: that is known once all rules are read."""
    (desk.folder / "Snakefile").write_text(MODULE)
    own = {key: CONFIG[key] for key in ("run", "inputs", "workload", "options", "outputs")}

    def typed(*words, status=0, **changes):
        (desk.folder / "lab.yaml").write_text(yaml.safe_dump({"lab": own | changes}))
        command = ("snakemake", "-n", "-c", "1", "--configfile", "lab.yaml", *words)
        return desk.type(*command, status=status).text

    said = typed(inputs="nope.fa", status=2)
    assert "config of module lab: inputs: nope.fa: this file does not exist; check the path" in said
    assert "made" in typed(inputs="made.fa")
    edited = {"options": {"hydropathy": False}}
    triggers = ("--rerun-triggers", "mtime")
    said = typed(*triggers, **edited, status=2)
    assert "results/my was made of another config (hydropathy: true → false)" in said
    said = typed(*triggers, max_failed=3, status=2)
    assert "results/my was made of another config (max_failed: 0 → 3)" in said
    assert "lab_plan" in typed(*triggers, "--forcerun", "lab_plan", **edited)
    (desk.folder / "in.fa").unlink()
    assert "in.fa is gone, and results/my has to be made anew" in typed(**edited, status=2)


def test_words_of_snakemake_hide_nothing(desk):
    write(desk.folder, options={"hydropathy": False})
    said = run(desk, "-n", "--rerun-triggers", "mtime")
    assert "params and input count, too" in said and "plan " in said.partition("Job stats")[2]
    assert "(hydropathy: true → false): a run computes all 30 distinct records again" in said
    for words, sentence in {
        (
            "--until",
            "extract",
        ): "compute all now and merge later, name the target extracted in its place.",
        ("--omit-from", "merge"): "--omit-from merge: Snakemake would plan and compute nothing",
        ("--omit-from", "report"): "--omit-from report: Snakemake would plan and compute nothing",
    }.items():
        assert sentence in run(desk, "-n", *words, status=2)


def test_the_closing_words_list_what_was_made(tmp_path):
    manifest = tmp_path / "manifest.json"
    counts = {"input": 1, "ok": 1, "failed": 0, "refused": 0, "duplicate": 0}
    options = {"model": "mill_t6_8M"}
    told = delivery_json(run="my", counts=counts)
    told["settings"] |= {"workload": "esm2", "options": options}
    write_sealed(manifest, told)
    assert "report.html" not in closing_words(str(tmp_path)), "as after --until merge"
    report = tmp_path / "report.html"
    report.touch()
    os.utime(report, (LONG_AGO, LONG_AGO))
    assert "report.html" not in closing_words(str(tmp_path)), "it is of earlier results"
    report.touch()
    said = closing_words(str(tmp_path))
    assert f"\n  {report}\n" in said and "1 of 1 record has features (mill_t6_8M):" in said


def test_plan_says_what_is_computed_again(tmp_path, environment):
    verbs = Verbs(tmp_path, environment)
    plan = verbs.plan(RECORDS)
    config = {"run": "test", "inputs": ["in.fa"], "workload": "composition", "device": "cpu"}
    config["options"] = {"hydropathy": False}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(config))
    words = ("plan", verbs.run_folder.root, "--config", "other.yaml")
    assert "computed again" not in verbs(*words), "nothing was computed"
    verbs.plan(RECORDS)
    verbs.extract(plan)
    again = (
        "other values are asked for (hydropathy: true → false): 30 distinct records are computed"
    )
    assert again in verbs(*words)
    assert "computed again" not in verbs(*words), "as the plan before asked"


def test_a_file_of_a_step_that_is_gone_is_missed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = Product("one", ["a", "b"], [], [], [])
    Path("b").touch()
    assert (one.stands(), one.missing()) == ("no", ["a"])
    Path("a").touch()
    assert one.stands() == "yes"
    assert {"sae_weights.safetensors", "features.tsv"} <= {*autoencoders.DELIVERED}


def test_a_file_that_came_later_is_looked_at(tmp_path, monkeypatch):
    """By its digest: its time may be that of where it came from."""
    monkeypatch.chdir(tmp_path)
    Path("made").touch()
    os.utime("made", (LONG_AGO + 9, LONG_AGO + 9))
    Path("table").touch()
    os.utime("table", (LONG_AGO, LONG_AGO))
    digest = sha256_of(Path("table"))
    card = lambda: stated({}, {"table": digest})  # noqa: E731
    one = Product("one", ["made"], ["table"], [], [], card=card)
    assert one.stands() == "yes"
    digest = "0" * 64
    assert one.stands() == "older"
    digest = sha256_of(Path("table"))
    assert one._replace(inputs=["table", "made"]).stands() == "older", "one more is read"
    assert one._replace(inputs=[]).stands() == "older", "it is not read any more"
    noted = one._replace(state=".state/one.json")
    noted.note(is_new=False)
    digest = ""
    assert noted.noted() and noted.stands() == "yes", "what stood is noted, whenever it came there"
    Path("table").write_text("another one")
    os.utime("table", (LONG_AGO, LONG_AGO))
    assert noted.stands() == "older"
    Path("copy").write_text("a third one")
    os.utime("copy", (LONG_AGO, LONG_AGO))
    Path("copy").replace("table")
    noted.note(is_new=True)
    assert noted.stands() == "older", "it came there after the file was made"
    plain = Product("one", ["made"], ["table"], [], [])
    assert plain.stands() == "yes", "without a digest its time counts"
    os.utime("table", (LONG_AGO + 99, LONG_AGO + 99))
    assert plain.stands() == "older"


@pytest.mark.parametrize("name", ["notes.tsv", "failed.fa", "failed.tsv"])
def test_what_a_merge_writes_besides_is_missed(desk, name):
    Results(Path("results/my")).root.joinpath(name).unlink()
    state, said = look()
    assert state.exit_status == 1 and f"{name}: it is gone." in said


# ---- run.json, in which commands read what the config asks for ----


def asked_in(path=Path("results/my/run.json")):
    """Return what the file says, which is whole."""
    return read_sealed(path)["config"]


def test_commands_are_asked_for_what_the_config_says(desk):
    """The main process writes it; a look and a dry run write nothing."""
    path = Path("results/my/run.json")
    (expected,) = project.read(Path("my.yaml")).runs.values()
    assert asked_in() == expected.model_dump(mode="json")
    assert asked_in()["options"] == {"hydropathy": True, "id_column": "", "sequence_column": ""}
    before = path.stat()
    run(desk)
    assert path.stat() == before, "what says the same is left as it is"
    write(desk.folder, max_failed=3, outputs=["parquet", "npy"])
    run(desk, "--dry-run")
    run(desk, "--summary")
    desk.type("featuremill", "status", "my.yaml", status=1)
    assert path.stat() == before
    run(desk)
    assert (asked_in()["max_failed"], asked_in()["outputs"]) == (3, ["parquet", "npy"])


def test_a_merge_and_a_report_by_hand_are_those_of_the_config(desk):
    folder = Path("results/my")
    colours = read_json(folder / ".state" / "reported.json")["config"]
    of_labels = {"file": "labels.csv", "column": "kind", "id_column": ""}
    assert colours.pop("manifest.json") == sha256_of(folder / "manifest.json")
    assert colours == {f"labels.{key}": value for key, value in of_labels.items()}
    for path in (folder / "manifest.json", folder / "embeddings.parquet"):
        path.unlink()
    write(desk.folder, outputs=["npy"], max_failed=3)
    run(desk, "results/my/manifest.json")
    for path in (folder / "manifest.json", *folder.glob("embeddings.*")):
        path.unlink()
    said = desk.type("featuremill", "merge", folder).err
    assert "embeddings.npy" in said and not (folder / "embeddings.parquet").exists()
    desk.type("featuremill", "merge", folder, "--outputs", "parquet")
    assert (folder / "embeddings.parquet").exists()
    desk.type("featuremill", "report", folder)
    noted = read_json(folder / ".state" / "reported.json")
    assert noted["config"].pop("manifest.json") == sha256_of(folder / "manifest.json")
    assert noted["config"] == colours and [*noted["inputs"]] == ["labels.csv"]


def test_a_plan_by_hand_is_that_of_the_config(desk):
    folder = Path("results/my")
    planned = (folder / "plan.json").read_bytes()
    desk.type("featuremill", "plan", folder)
    assert (folder / "plan.json").read_bytes() == planned
    (folder / "run.json").unlink()
    said = desk.type("featuremill", "plan", folder, status=2).err
    assert "results/my/run.json: what the config asks for is not there yet; type" in said
    assert (folder / "plan.json").read_bytes() == planned
    run(desk)
    assert asked_in()["run"] == "my", "a run from before there was this file gets it"


def test_a_damaged_run_json_is_refused_and_written_anew(desk):
    path = Path("results/my/run.json")
    text = path.read_text()
    path.write_text(text.replace('"max_failed": 0', '"max_failed": 9'))
    said = desk.type("featuremill", "merge", "results/my", status=4).err
    assert "results/my/run.json: its content is not what was written" in said
    run(desk)
    assert path.read_text() == text
    assert list(path.parent.glob("run.yours-*.json")), "a file that a person changed is kept"


def test_options_are_validated_once_in_each_command(desk, monkeypatch):
    calls = []
    validate = composition.Options.model_validate.__func__

    def counted(model, *given, **more):
        calls.append(model)
        return validate(model, *given, **more)

    monkeypatch.setattr(composition.Options, "model_validate", classmethod(counted))
    for verb in ("plan", "merge", "report"):
        assert main([verb, "results/my"]) == 0
        assert len(calls) == 1, verb
        calls.clear()
    workflow = SimpleNamespace(modifier=SimpleNamespace(parent_modifier=None))
    monkeypatch.setattr(internals, "is_imported", lambda workflow: False)
    monkeypatch.setattr(internals, "is_main", internals.or_return(True)(lambda workflow: True))
    monkeypatch.setattr(sys, "argv", ["snakemake"])
    monkeypatch.setattr(run_lock, "CLAIMED", {})
    begun = context.begin(workflow, CONFIG, Failures())
    assert counted_of(begun.runs["my"].here, "plan") and len(calls) == 1
