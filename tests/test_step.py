"""The contract of steps, over those that come along and one outside the tree."""

import json
import os
import re
import shlex
from types import MappingProxyType, SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import PLUGINS
from programs import Desk, fasta, random_records

from featuremill.__main__ import _parser
from featuremill.contract import StepContract
from featuremill.flow import internals
from featuremill.status import view
from featuremill.status.project import ProjectState
from featuremill.step import Product, finding
from featuremill.step.finding import commands

FEATURES = {
    "letters": {"workload": "composition", "outputs": "parquet"},
    "others": {"workload": "composition", "outputs": "npy"},
}


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory, environment):
    """Let the contract's own processes find the plug-ins, and few records."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "few.fa").write_text(fasta(random_records(40)))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(PLUGINS))
        patch.chdir(folder)
        yield


class ForkedSteps(StepContract):
    def _run(self, folder, *words, status=0):
        return Desk(folder, dict(os.environ)).type("featuremill", *words, status=status).text


def soil(**more):
    return MappingProxyType({"run": "soil", "inputs": "few.fa", **more})


OF = {"of": "letters", "vectors": "composition"}
KINDS = "".join(f"p0.{n},{'ab'[n % 2]}\n" for n in range(9))
SMALL = {"features": 16, "k": 2, "batch": 16, "steps": 20, "held_out": 0.3, "device": "cpu"}
GENES = {"column": "gene", "vectors": "composition"}


class TestAutoencoders(ForkedSteps):
    step = "autoencoders"
    config = soil(features=FEATURES, autoencoders={"small": {**OF, **SMALL, "encode": ["others"]}})

    @pytest.mark.slow
    def test_products_are_made_once_shown_by_status_and_removed(self, tmp_path):
        super().test_products_are_made_once_shown_by_status_and_removed(tmp_path)

    def test_what_its_rules_type_is_understood(self, tmp_path, environment):
        (tmp_path / "my.yaml").write_text(yaml.safe_dump(self._absolute_config))
        words = ("featuremill", "run", "my.yaml", "--cores", "2", "-n", "-p")
        said = Desk(tmp_path, environment).type(*words).text
        typed = re.findall(r"exec featuremill (sae .*)$", said, re.MULTILINE)
        parser = _parser("sae", commands())
        asked = [parser.parse_args(shlex.split(command)) for command in typed]
        assert {one.act for one in asked} == {"train", "encode", "report"}


class TestTransfer(ForkedSteps):
    step = "transfer"
    files = MappingProxyType({"kinds.csv": f"id,kind\n{KINDS}"})
    kinds = MappingProxyType({**OF, "labels": "kinds.csv", "column": "kind", "k": 3})
    config = soil(features=FEATURES, transfer={"kinds": {**kinds}})


class TestGroups(ForkedSteps):
    step = "groups"
    files = MappingProxyType({"genes.csv": f"id,gene\n{KINDS}"})
    genes = MappingProxyType({**GENES, "table": "genes.csv", "pool": ["mean", "max"]})
    config = soil(workload="composition", groups={"genes": {**genes}})


class TestOutsideTheTree(ForkedSteps):
    step = "tally"
    config = soil(workload="composition", tally={"word": "of them"})


class TestOfTheKitAlone(ForkedSteps):
    step = "trained"
    files = TestGroups.files
    config = soil(workload="composition", trained={"genes": {**GENES, "labels": "genes.csv"}})


@pytest.fixture
def beside(tmp_path, environment):
    """Return a desk with a project of our steps beside a stranger's that is called `trained`."""
    desk = Desk(tmp_path, environment)
    (tmp_path / "few.fa").write_text(fasta(random_records(40)))
    (tmp_path / "genes.csv").write_text(TestGroups.files["genes.csv"])
    labels, table = ({**OF, key: "genes.csv", "column": "gene"} for key in ("labels", "table"))
    config = {**soil(features=FEATURES, trained={"genes": labels}, groups={"genes": table})}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    config["autoencoders"] = {"genes": {**OF, "encode": ["others"]}}
    config["heads"] = {"genes": {**labels}}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump(config))
    return desk


def test_a_step_of_the_kit_alone_does_what_ours_does(beside):
    beside.type("featuremill", "run", "my.yaml", "--cores", "2")
    theirs, ours = (
        pq.read_table(beside.folder / "results" / "soil" / key / "genes.parquet")
        for key in ("trained", "groups")
    )
    assert theirs["group"].to_pylist() == ["a", "b"]
    for name in theirs.column_names:
        assert theirs[name].combine_chunks().equals(ours[name].combine_chunks())


def test_a_step_may_be_called_as_our_rules_might_name_something(beside):
    said = beside.type("featuremill", "run", "all.yaml", "--cores", "2", "-n", "-p").text
    typed = set(re.findall(r"exec featuremill (\w+ ?\w*)", said))
    assert {"sae train", "sae encode", "head train", "trained results", "groups results"} <= typed


def test_names_that_a_rule_file_shares_are_found(tmp_path):
    rules = tmp_path / "rules.smk"
    rules.write_text(
        "import os.path\nfrom json import loads as read\n"
        "if config:\n    first, last = [x for x in 'ab']\n"
        "    rule one:\n        output: 'a'\n        run:\n            inside = 1\n"
        "def of(wildcards):\n    within = wildcards\n    return within\n"
        "checkpoint two:\n    output: 'b'\nuse rule one as three with:\n    output: 'c'\n"
    )
    shared = {"os", "read", "first", "last", "one", "of", "two", "three"}
    assert internals.names_in(rules) == shared


def test_the_contract_refuses_a_name_that_another_step_may_have(monkeypatch, tmp_path):
    rules = tmp_path / "rules.smk"
    rules.write_text("trained_too = 1\ntrainedness = 2\n")
    monkeypatch.setattr(finding.step_of("trained"), "RULES", rules)
    with pytest.raises(AssertionError, match=r"share their names; let these begin with trained_"):
        TestOfTheKitAlone().test_names_in_its_rules_begin_with_its_key()


AT_ONCE = [
    (
        "autoencoders: {a: {of: lettrs}}",
        "autoencoders.a.of: there are no features 'lettrs'; there are letters and others, or",
    ),
    ("autoencoders: {a: {}}", "autoencoders.a.of: name the features, one of letters and others."),
    (
        "autoencoders: {a: {of: letters, gpus: 9}}",
        "autoencoders.a.gpus: --gpus 9: a batch is computed in 8 equal slices",
    ),
    ("autoencoders: {a: {of: letters, k: 5000}}", "autoencoders.a.features: --k 5000: of 4,096"),
    ("autoencoders: {a: {k: many}}", "autoencoders.a.k: give a whole number of at least 1"),
    ("autoencoders: {a: {kk: 1}}", "autoencoders.a.kk: there is no such key here"),
    ("autoencoders: many", "autoencoders: give a mapping of names to values, not 'many'."),
    ("autoencoders: {a/b: {}}", "autoencoders.a/b: use letters, digits, '.', '_' and '-' only"),
    ("tally: {wrod: a}", "tally.wrod: there is no such key here; did you mean 'word'?"),
    ("tallly: {}", "tallly: there is no such key here; did you mean 'tally'?"),
]
LATER = [
    (
        "heads: {a: {labels: kinds.csv, column: kind, of: letters, vectors: lettrs}}",
        "heads.a.vectors: letters: there is no column 'lettrs' with one vector a record; it",
    ),
    (
        "autoencoders: {a: {of: letters, vectors: residues}}",
        "autoencoders.a.vectors: letters: there is no column 'residues' of vectors; it has",
    ),
]
REFUSED = [
    *((("status", "my.yaml"), *row) for row in AT_ONCE),
    *((("run", "my.yaml", "-n"), *row) for row in LATER),
]


@pytest.mark.parametrize(("words", "section", "sentence"), REFUSED)
def test_what_is_wrong_is_refused_before_any_job(tmp_path, environment, words, section, sentence):
    text = yaml.safe_dump({**soil(features=FEATURES)}, sort_keys=False)
    (tmp_path / "few.fa").write_text(">p\nMKV\n")
    (tmp_path / "kinds.csv").write_text("id,kind\np,a\n")
    (tmp_path / "my.yaml").write_text(text + section + "\n")
    line = text.count("\n") + 1
    said = Desk(tmp_path, environment).type("featuremill", *words, status=2).err
    assert f"my.yaml:{line}: {sentence}" in " ".join(said.split())


def test_what_a_step_has_not_made_is_not_done():
    states = {"letters": SimpleNamespace(exit_status=0)}
    found = [ProjectState(None, states, [made]).exit_status for made in ("yes", "older", "no")]
    assert found == [0, 1, 1]


def test_status_names_the_page_and_not_the_card():
    made = Product("head.h", ("head.html", "head.json"), [], [], [])
    runs = SimpleNamespace(steps=[made], num_before=1)
    state = SimpleNamespace(states={}, runs=runs, steps=["no"], figures=[{}])
    [(label, text)] = view._rows_of_project(state)
    assert (label, text.partition(":")[0]) == ("head.h", "head.html")


def test_a_run_elsewhere_has_to_be_there(tmp_path, environment):
    config = {"inputs": "few.fa", "workload": "composition", "tally": {"of": "results/known"}}
    (tmp_path / "few.fa").write_text(">p\nMKV\n")
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    said = Desk(tmp_path, environment).type("featuremill", "run", "my.yaml", "-n", status=None).text
    assert "tally: results/known/manifest.json: there is no such file" in said


def test_its_command_is_typed_as_any_other(tmp_path, environment):
    desk = Desk(tmp_path, environment)
    said = desk.type("featuremill", "--help").out
    assert "count the records of a finished run" in said and "sparse autoencoder" in said
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "manifest.json").write_text(json.dumps({"counts": {"ok": 3}}))
    desk.type("featuremill", "tally", "results", "--output", "plan")
    assert (tmp_path / "plan").read_text() == "3 records\n"
    said = desk.type("featuremill", "taly", status=2).err
    assert "there is no command 'taly'; did you mean tally?" in said


def test_a_package_may_bring_a_command_of_no_step(tmp_path, environment):
    desk = Desk(tmp_path, environment)
    said = desk.type("featuremill", "--help").out
    assert "write a greeting" in said and "measure how far bf16 and fp16 are" in said
    assert "lost" not in said, "its module is not there"
    desk.type("featuremill", "greet", "--output", "hello.txt")
    assert (tmp_path / "hello.txt").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        (("head.html", "missing.tsv", "head.json"), "head.html"),
        (("t.json", "t.members.tsv", "t.parquet"), "t.parquet"),
        (("page.html", "verdicts.tsv"), "verdicts.tsv"),
        (("card.json",), "card.json"),
    ],
)
def test_the_end_of_a_run_names_the_page_and_not_the_card(files, shown):
    assert Product("x", files, [], [], []).shown == shown
