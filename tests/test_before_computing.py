"""What would end a late job is refused before records are computed: what files tell before the
first job, what ids tell once they are planned."""

import csv
import re
import shutil
from pathlib import Path

import pytest
import yaml
from programs import Desk, fasta, random_records
from test_contigs import begun, contigs

from featuremill.config import project
from featuremill.flow import refusals
from featuremill.flow.screen import RefusedError
from featuremill.status import outdated
from featuremill.store import shared

RECORDS = random_records(24)
IDS = [id for id, _ in RECORDS]
RUN = {"workload": "composition", "device": "cpu", "outputs": "parquet"}
HEAD = {"labels": "kinds.csv", "column": "kind", "vectors": "composition"}
TRANSFER = {**HEAD, "k": 1}
GROUPS = {"table": "kinds.csv", "column": "kind", "vectors": "composition"}


class Labelled(Desk):
    """A folder with records, a table of labels and a config."""

    def configure(self, **sections):
        config = {"run": "my", "inputs": "in.fa", **sections}
        if "features" not in config:
            config |= RUN
        (self.folder / "my.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    def label(self, rows, name="kinds.csv", head=("id", "kind")):
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows])

    def __call__(self, *words, status=0):
        """Return what a run said, on one line."""
        return " ".join(
            self.type("featuremill", "run", "my.yaml", *words, status=status).text.split()
        )

    @property
    def receipts(self):
        return list(self.folder.rglob("receipts/*/*.json"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory, environment):
    """Return a folder with a run that is planned."""
    desk = Labelled(tmp_path_factory.mktemp("planned"), environment)
    (desk.folder / "in.fa").write_text(fasta(RECORDS))
    desk.configure()
    desk("plan")
    return desk.folder


@pytest.fixture
def desk(planned, tmp_path, environment):
    shutil.copytree(planned, tmp_path, dirs_exist_ok=True)
    found = Labelled(tmp_path, environment)
    found.label((id, "ab"[n % 2]) for n, id in enumerate(IDS))
    return found


@pytest.mark.parametrize(
    "section", [{"heads": {"x": HEAD}}, {"transfer": {"x": TRANSFER}}, {"groups": {"x": GROUPS}}]
)
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [(IDS[0], "a"), (IDS[1], "b"), (IDS[0], "b")],
            r"kinds.csv:4: 'p0.0' has a label in line 2",
        ),
        ([(id, "") for id in IDS], "kinds.csv: no row has a label in 'kind'; fill it in."),
        ([(IDS[0], "a"), (IDS[1], "b", "c")], "kinds.csv:3: this row has 3 cells"),
        ([("", "a")], "kinds.csv:2: this row has no id of a record"),
    ],
)
def test_rows_that_a_job_would_refuse_are_refused_before_the_first(
    tmp_path, environment, monkeypatch, section, rows, sentence
):
    desk = Labelled(tmp_path, environment)
    (tmp_path / "in.fa").write_text(fasta(RECORDS))
    desk.label(rows)
    desk.configure(**section)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError) as error:
        begun(Path("my.yaml"))
    assert error.value.status == 2
    (key,) = section
    assert re.match(rf"my.yaml:\d+: {key}.x.\w+: {re.escape(sentence)}", str(error.value))


def test_a_preferred_class_that_no_label_is_is_refused_before_any_record_is_computed(
    tmp_path, environment
):
    desk = Labelled(tmp_path, environment)
    (tmp_path / "in.fa").write_text(fasta(contigs(12).items()))
    desk.label((f"c{n}", "ab"[n % 2]) for n in range(12))
    head = {**HEAD, "vectors": "composition"}
    desk.configure(
        translate={"by": "chunks", "window": 90},
        features={"proteins": RUN},
        heads={"x": head},
        verdicts={"prefer": "virsu"},
    )
    said = desk(status=2)
    sentence = r"my.yaml:\d+: verdicts.prefer: prefer: virsu: kinds.csv, column kind, has a and b; "
    assert re.search(sentence, said), said
    assert not desk.receipts


@pytest.mark.parametrize(
    ("key", "asked", "rows", "sentence"),
    [
        (
            "heads",
            HEAD,
            [(f"q{n}", "ab"[n % 2]) for n in range(24)],
            "kinds.csv: none of its 24 ids is a record of results/my, whose first is 'p0.0'; ",
        ),
        (
            "heads",
            HEAD,
            [(id, "b" if n < 2 else "a") for n, id in enumerate(IDS)],
            "kinds.csv: 'kind': the class 'b' has 2 records, and a head needs 3 records of each ",
        ),
        (
            "heads",
            HEAD,
            [(id, "a") for id in IDS] + [("q1", "b")],
            "kinds.csv: 'kind' is 'a' in all 24 records that have features; ",
        ),
        (
            "heads",
            {**HEAD, "group": "genus"},
            [(id, "ab"[n % 2], n % 4) for n, id in enumerate(IDS)],
            "kinds.csv: 'kind': the class 'a' has its 12 records in '0' and '2' of genus, and ",
        ),
        (
            "transfer",
            TRANSFER,
            [("q1", "a"), ("q2", "b"), (IDS[0], "b")],
            "kinds.csv: only 1 of its 3 ids is a record of results/my, whose first is ",
        ),
        (
            "groups",
            GROUPS,
            [("q1", "a"), ("q2", "b")],
            "kinds.csv: none of its 2 ids is a record of results/my, whose first is ",
        ),
    ],
)
def test_what_the_ids_tell_is_refused_before_any_record_is_computed(
    desk, key, asked, rows, sentence
):
    head = ("id", "kind", "genus")[: len(rows[0])]
    desk.label(rows, head=head)
    desk.configure(**{key: {"x": asked}})
    said = desk(status=2)
    assert re.search(rf"my.yaml:\d+: {key}.x.\w+: {re.escape(sentence)}", said), said
    assert not desk.receipts
    assert "extract" not in said and "Terminating" not in said


def test_labels_of_some_other_records_are_a_warning_and_the_same_call_goes_on(desk):
    desk.label([*((id, "ab"[n % 2]) for n, id in enumerate(IDS)), ("q1", "c"), ("q2", "a")])
    steps = {"transfer": {"x": TRANSFER}, "groups": {"x": GROUPS}}
    desk.configure(**steps)
    said = desk()
    assert "warning: kinds.csv: 2 of its 26 ids are no record of results/my" in said
    made = desk.folder / "results" / "my"
    assert (made / "transfer" / "x.tsv").exists() and (made / "groups" / "x.parquet").exists()
    desk.label([(f"q{n}", "ab"[n % 2]) for n in range(9)])
    assert "none of its 9 ids" in desk(status=2), "by the job itself: nothing is left to compute"


def test_no_set_is_computed_before_all_are_planned_and_checked(tmp_path, environment):
    desk = Labelled(tmp_path, environment)
    (tmp_path / "in.fa").write_text(fasta(RECORDS))
    desk.label((f"q{n}", "ab"[n % 2]) for n in range(24))
    desk.configure(
        features={"one": RUN, "two": RUN, "three": RUN},
        heads={"x": {**HEAD, "of": ["one", "three"]}},
    )
    said = desk("--cores", "1", status=2)
    whose = "is a record of results/my/one and results/my/three, whose first is 'p0.0'; "
    assert f"heads.x.labels: kinds.csv: none of its 24 ids {whose}" in said
    plans = [tmp_path / "results" / "my" / name / "plan.json" for name in ("one", "two", "three")]
    assert all(plan.exists() for plan in plans) and not desk.receipts
    assert "Nothing computed is lost" in said and "Terminating" not in said
    desk.label((id, "ab"[n % 2]) for n, id in enumerate(IDS))
    assert "receipts" not in desk("-n")


def test_labels_of_contigs_are_none_of_their_fragments(tmp_path, environment):
    desk = Labelled(tmp_path, environment)
    (tmp_path / "in.fa").write_text(fasta(contigs(9).items()))
    desk.label((f"c{n}", "ab"[n % 2]) for n in range(9))
    sets = {"proteins": RUN}
    desk.configure(
        translate={"by": "chunks", "window": 90}, features=sets, transfer={"x": TRANSFER}
    )
    said = desk(status=2)
    assert (
        "transfer.x.labels: kinds.csv: none of its 9 ids is a record of results/my/proteins" in said
    )
    assert not desk.receipts


def test_labels_of_samples_are_held_against_the_sheet(tmp_path, environment):
    desk = Labelled(tmp_path, environment)
    for name in "abcd":
        (tmp_path / f"{name}.fa").write_text(fasta(RECORDS[:6]))
    rows = [(name, f"{name}.fa", "sick" if name == "a" else "well") for name in "abcd"]
    desk.label(rows, "sheet.csv", ("sample", "file", "state"))
    config = {"run": "my", "samples": "sheet.csv", **RUN}
    config |= {"heads": {"x": {"column": "state", "vectors": "composition"}}}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    said = desk(status=2)
    assert (
        "heads.x.column: sheet.csv: 'state': the class 'sick' has its 6 records in 'a' of " in said
    )
    assert not desk.receipts


def test_a_module_is_checked_as_well(desk):
    desk.label((f"q{n}", "ab"[n % 2]) for n in range(24))
    config = {"run": "my", "inputs": ["in.fa"], **RUN, "heads": {"x": HEAD}}
    (desk.folder / "Snakefile").write_text(
        "from featuremill import SNAKEFILE\n\n\n"
        f"module mill:\n    snakefile:\n        SNAKEFILE\n    config:\n        {config!r}\n\n\n"
        "use rule * from mill as mill_*\n"
    )
    target = "results/my/predictions/x.tsv"
    said = " ".join(desk.type("snakemake", "--cores", 2, target, status=None).text.split())
    assert (
        "config of module mill: heads.x.labels: kinds.csv: none of its 24 ids is a record" in said
    )
    assert not desk.receipts


def test_nothing_is_read_where_no_step_checks_or_all_is_computed(desk, monkeypatch):
    monkeypatch.chdir(desk.folder)
    desk.configure()
    config = yaml.safe_load((desk.folder / "my.yaml").read_text())
    assert not project.checks_records(project.validate(config))
    found = project.validate({**config, "heads": {"x": HEAD}})
    assert project.checks_records(found)
    asked = []
    monkeypatch.setattr(refusals, "problems_of_records", lambda named: asked.append(named) or [])
    monkeypatch.setattr(outdated, "is_computed", lambda _: True)
    refusals.refuse_records(found)
    assert not asked
    monkeypatch.setattr(outdated, "is_computed", lambda _: False)
    refusals.refuse_records(found)
    assert asked


@pytest.mark.parametrize(
    ("stores", "sentence"),
    [
        ("ftp:/host/x", "ftp:/host/x: an address begins with ftp://, and a folder of such a name"),
        (
            "nope://x",
            "nope://x: no address begins with nope://; known are file, http, https and s3",
        ),
        (["mine", "nope://x"], "nope://x: no address begins with nope://; known are file, http, "),
        ("https://host/x", "https://host/x: it is only read; name a folder of yours before it."),
    ],
)
def test_an_address_that_nothing_reads_is_refused_with_its_line(
    tmp_path, environment, monkeypatch, stores, sentence
):
    desk = Labelled(tmp_path, environment)
    (tmp_path / "in.fa").write_text(fasta(RECORDS))
    desk.configure(store=stores)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError) as error:
        begun(Path("my.yaml"))
    assert error.value.status == 2
    assert re.match(rf"my.yaml:3: store: {re.escape(sentence)}", str(error.value))
    desk.configure()
    monkeypatch.setenv("FEATUREMILL_STORE", stores if isinstance(stores, str) else ":".join(stores))
    with pytest.raises(RefusedError, match=f"^FEATUREMILL_STORE: {re.escape(sentence)}"):
        begun(Path("my.yaml"))
    if isinstance(stores, str):
        said = desk.type("featuremill", "store", "--store", stores, status=2).err
        assert f"store: {stores}: " in " ".join(said.split())
    assert {path.name for path in tmp_path.iterdir()} == {"in.fa", "my.yaml"}


@pytest.mark.parametrize(
    ("text", "stores"),
    [
        ("a:/b", ["a", "/b"]),
        ("a:https://host:80/x", ["a", "https://host:80/x"]),
        ("local:/institute:file:///x", ["local", "/institute", "file:///x"]),
    ],
)
def test_folders_of_the_environment_stay_folders(tmp_path, monkeypatch, text, stores):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEATUREMILL_STORE", text)
    whole = [one if one[0] == "/" or "://" in one else str(tmp_path / one) for one in stores]
    assert shared.layers([]) == whole


@pytest.mark.parametrize("workload", ["encoder", "llm_json"])
def test_a_chat_template_without_the_text_is_refused_before_the_first_job(
    tmp_path, monkeypatch, workload
):
    network = tmp_path / "network"
    network.mkdir()
    (network / "config.json").write_text('{"model_type": "llama"}')
    (network / "model.safetensors").write_bytes(b"")
    (network / "tokenizer_config.json").write_text("{}")
    (network / "chat_template.jinja").write_text("{{ messages[0]['role'] }}")
    (tmp_path / "in.csv").write_text("id,text\na,a note\n")
    (tmp_path / "p.jinja").write_text("{{ text }}")
    (tmp_path / "s.json").write_text('{"type": "object"}')
    options = {"model": "network", "chat": True}
    if workload == "encoder":
        options |= {"alphabet": "texts", "pool": "last"}
    else:
        options |= {"prompt": "p.jinja", "json_schema": "s.json"}
    config = {"run": "my", "inputs": "in.csv", "workload": workload, "options": options}
    config["outputs"] = "parquet"
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    (run,) = begun(Path("my.yaml")).runs.values()
    with pytest.raises(RefusedError, match=r"options\.model: network: the text of a message comes"):
        refusals.refuse_missing_here(run)
