"""The same things the same way: what each command takes, and what is said before any is typed."""

import json
import re
from itertools import chain

import pandas as pd
import pytest
from programs import Desk

from featuremill.__main__ import VERBS

RECORDS = "".join(f">p{n} {n}\n{'MKVLAA' + 'DEFGHI'[n % 6] * (n + 1)}\n" for n in range(24))
TABLE = ("--labels", "labels.csv", "--id-column", "who", "--column", "class")


@pytest.fixture(scope="module")
def desk(tmp_path_factory, environment):
    """Return a folder in which results/my and results/two are computed."""
    desk = Desk(tmp_path_factory.mktemp("ways"), environment)
    (desk.folder / "my.fa").write_text(RECORDS)
    one = {"workload": "composition", "options": {"hydropathy": False}, "device": "cpu"}
    records = {"inputs": "my.fa"}
    (desk.folder / "my.yaml").write_text(json.dumps({"run": "my", **records, **one}))
    sets = {"features": {"a": one, "b": one | {"outputs": "npy"}}}
    (desk.folder / "two.yaml").write_text(json.dumps({"run": "two", **records, **sets}))
    for name in ("my.yaml", "two.yaml"):
        desk.type("featuremill", "run", name, "--cores", "1")
    table = {"who": [f"p{n}" for n in range(24)], "class": ["x", "y"] * 12}
    pd.DataFrame(table).to_csv(desk.folder / "labels.csv", index=False)
    desk.type("featuremill", "head", "train", "results/my", *TABLE, "--output", "heads/mine")
    return desk


@pytest.mark.parametrize(
    "words",
    [
        ("status", "RUN"),
        ("top", "RUN", "--once"),
        ("run", "RUN", "-n"),
        ("retry", "RUN"),
        ("clean", "RUN"),
        ("estimate", "RUN"),
        ("doctor", "--config", "RUN"),
        ("merge", "RUN"),
        ("report", "RUN", "--label-file", "labels.csv", "--label", "class", "--id-column", "who"),
        ("export", "RUN", "--to", "tsv"),
        ("search", "RUN", "--query", "p1"),
        ("head", "train", "RUN", *TABLE, "--output", "heads/x"),
        ("head", "predict", "heads/mine", "RUN", "--output", "predicted.tsv"),
        ("transfer", "RUN", *TABLE, "--output", "transferred.tsv"),
        ("groups", "RUN", "--table", *TABLE[1:], "--output", "groups.parquet"),
    ],
    ids=lambda words: "-".join(words[:2]).replace("-RUN", ""),
)
def test_a_command_takes_a_config_or_a_folder(desk, words):
    status = 2 if words[0] == "doctor" else 0  # this workload has no model
    said = []
    for given in ("my.yaml", "results/my"):
        typed = [given if word == "RUN" else word for word in words]
        answer = desk.type("featuremill", *typed, status=status).text.splitlines()[-1]
        said.append(answer.replace(given, "RUN").replace("results/my", "RUN"))
    assert said[0] == said[1]


def test_the_folder_of_several_sets_stands_for_its_config(desk, tmp_path):
    said = [
        desk.type("featuremill", "estimate", given).text for given in ("two.yaml", "results/two")
    ]
    assert said[0] == said[1].replace("results/two:", "two.yaml:")
    assert "Nothing to be done" in desk.type("featuremill", "run", "results/two", "-n").text
    (tmp_path / "empty").mkdir()
    said = desk.type("featuremill", "run", tmp_path / "empty", status=2).text
    assert "this is a folder; name the config of the run, as in my.yaml." in said


def test_status_without_a_run_lists_the_runs_here(desk, tmp_path):
    said = desk.type("featuremill", "status").out
    assert said == "results/my: done.\nresults/two: done.\n"
    told = json.loads(desk.type("featuremill", "status", "--json").out)
    assert [one["state"] for one in told] == ["done", "done"]
    said = Desk(tmp_path, desk.environment).type("featuremill", "status", status=2).err
    assert "there is no run in results/ of this folder; featuremill init YOUR.fasta writes" in said


def test_help_begins_with_how_to_start_and_what_people_type_every_day(desk):
    said = desk.type("featuremill", "--help").out
    start, *groups = re.split(r"\n\n(?=[\w' ]+:\n  [a-z])", said.partition("\noptions:")[0])
    assert re.findall(r"^  featuremill (\w+)", start, re.MULTILINE) == ["init", "run", "status"]
    listed = [re.findall(r"^  ([a-z][\w-]*) ", group, re.MULTILINE) for group in groups]
    assert listed[0] == ["init", "run", "status", "top", "retry", "export"]
    assert {"head", "search", "virnucpro", "audit"} < {*listed[1]} and "lease" in listed[2]
    assert listed[3][0] == "weights"
    known = [*chain(*listed)]
    assert len(known) == len({*known}) and {*VERBS} < {*known}


@pytest.mark.parametrize("words", [("run", "csv.yaml"), ("export", "results/my", "--to", "csv")])
def test_csv_is_answered_with_tsv(desk, words):
    config = {"run": "csv", "inputs": "my.fa", "workload": "composition", "outputs": "csv"}
    (desk.folder / "csv.yaml").write_text(json.dumps(config))
    said = desk.type("featuremill", *words, status=2).text
    assert said.splitlines()[-1].endswith("not 'csv'; you may mean `tsv`.")
