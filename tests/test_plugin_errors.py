"""Mistakes of a workload's author are told as that: by its name and its package's, in one sentence.

And workloads on other inputs than proteins, from plan to merge.
"""

import json
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken_inputs import FASTQ, GENE, UBIQUITIN
from conftest import PLUGINS, ROOT
from programs import Verbs, written

from featuremill.__main__ import main
from featuremill.base.errors import WorkloadError
from featuremill.plan.command import RESERVED
from featuremill.plan.spool import chunks_of
from featuremill.workload import (
    Record,
    find_workload,
    optional,
)
from featuremill.workload.plugin_errors import costs_of, plugin_error, records_of, who

WHO = "(package featuremill-poison 1.0)"


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.syspath_prepend(PLUGINS)


def say(tmp_path, capsys, workload, options=(), verb="plan", content=None):
    """Return the status of a verb on two proteins, and its one sentence."""
    (tmp_path / "in.fa").write_text(content or f">a\n{UBIQUITIN}\n>b\nMKV\n")
    config = {"inputs": [str(tmp_path / "in.fa")], "workload": workload, "device": "cpu"}
    if verb == "plan":
        config["options"] = dict(options)
        words = ["plan", str(tmp_path / "run"), "--config", written(config)]
    else:
        words = ["init", str(tmp_path / "in.fa"), "--workload", workload]
        words += ["--output", str(tmp_path / "my.yaml")]
    status = main([*words, "--log-file", str(tmp_path / "log")])
    said = capsys.readouterr().err
    assert "Traceback" not in said and "report this" not in said
    (sentence,) = [line for line in said.splitlines() if "error:" in line]
    assert sentence.endswith(".") and ";" in sentence
    assert not (tmp_path / "run" / "plan.json").exists()
    return status, sentence.partition("error: ")[2]


NO_RECORD = "as number 2, which is no Record with the types of its fields"
COLUMNS_DUE = (
    "at least one is due, each name once, and none that is the core's (accession, description, id, "
    "length, reason, sample, sha256, status are)"
)
NO_INDEX = "object cannot be interpreted as an integer"
MISTAKES = {
    "payload is text": NO_RECORD,
    "payload is None": NO_RECORD,
    "id is a number": NO_RECORD,
    "description is None": NO_RECORD,
    "line is None": NO_RECORD,
    "note is None": NO_RECORD,
    "length is a float": NO_RECORD,
    "records raises": "records raised KeyError: 'info\\n of it' at record 2",
    "records is None": "records raised TypeError: 'NoneType' object is not iterable at record 1",
    "records gives tuples": f"records gave ('id', b'MKV') {NO_RECORD}",
    "cost is 0": "cost gave 0 for a record, and at least 1 is due",
    "cost is negative": "cost gave -3 for a record, and at least 1 is due",
    "cost is a float": f"cost raised TypeError: 'float' {NO_INDEX}",
    "cost is None": f"cost raised TypeError: 'NoneType' {NO_INDEX}",
    "cost raises": "cost raised ValueError: of no length",
    "resolve gives None": "resolve gave None where Options are due",
    "schema gives None": "schema raised AttributeError: 'NoneType' object has no attribute 'names'",
    "schema gives a list": "schema raised AttributeError: 'list' object has no attribute 'names'",
    "schema is empty": f"schema has the columns none; {COLUMNS_DUE}",
    "a column is reserved": "schema has the columns composition, hydropathy, sha256; "
    f"{COLUMNS_DUE}",
    "a column stands twice": "schema has the columns composition, hydropathy, composition; "
    f"{COLUMNS_DUE}",
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told_as_its_authors(what, tmp_path, capsys):
    status, said = say(tmp_path, capsys, "mistaken", {"mistake": what})
    assert status == WorkloadError.exit_status
    expected = MISTAKES[what].replace("\\\\n", "\\n")
    assert said.startswith(f"workload mistaken {WHO}: ")
    assert said.endswith(f"{expected}; this is for its author to fix.")


COLUMNS = [
    f"{name}: fixed_size_list<item: float>[{width}]"
    for name, width in {"composition": 20, "hydropathy": 1}.items()
]
COMPUTING = {
    "batch_cost is None": f"batch_cost raised TypeError: 'NoneType' {NO_INDEX}",
    "batch_cost is 0": "batch_cost gave 0, and at least 1 is due",
    "load raises": "load raised KeyError: 'info'",
    "collect gives None": "collect gave None where a pyarrow.RecordBatch is due",
    "collect gives too little": "collect gave 1 rows for 2 payloads",
    "collect gives other columns": f"collect gave the columns hydropathy{COLUMNS[0][11:]}, "
    f"composition{COLUMNS[1][10:]}, and schema has {', '.join(COLUMNS)}",
}


@pytest.mark.parametrize("what", COMPUTING)
def test_a_mistake_while_computing_is_told_as_its_authors(what, verbs):
    plan = verbs.plan([("a", UBIQUITIN), ("b", "MKV")], "mistaken", {"mistake": what})
    said = verbs.extract(plan, WorkloadError.exit_status)
    sentence = f"workload mistaken {WHO}: {COMPUTING[what]}; this is for its author to fix; what "
    assert sentence in " ".join(said.split()) and "report this" not in said
    if what == "load raises":
        assert "featuremill_mistaken.py" in said, "the author sees where"


OF_A_BATCH = dict.fromkeys(
    ("prepare raises", "run raises", "collect raises"),
    "prepare, run or collect raised KeyError: 'info'",
)
AT_HAND = {name: COMPUTING[name] for name in [*COMPUTING][:-1]} | OF_A_BATCH
READING = {name: MISTAKES[name] for name in ("payload is None", "records raises", "cost raises")}


def once(status, capsys, what):
    """Check the one sentence of a verb."""
    said = capsys.readouterr().err
    assert status == WorkloadError.exit_status and "report this" not in said, said
    (sentence,) = [line for line in said.splitlines() if "error:" in line]
    told = ({**MISTAKES, **AT_HAND}[what]).replace("\\\\n", "\\n")
    assert f"workload mistaken {WHO}: " in sentence
    assert sentence.endswith(f"{told}; this is for its author to fix.")


@pytest.mark.parametrize(
    "what", [*READING, *AT_HAND, "schema gives None", "resolve gives None", "audited raises"]
)
def test_audit_tells_a_mistake_as_its_authors(what, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(AT_HAND, "audited raises", "audited raised KeyError: 'info'")
    (tmp_path / "in.fa").write_text(f">a\n{UBIQUITIN}\n>b\nMKV\n")
    (tmp_path / "net").write_text("of no matter")
    options = {"mistake": what, "network": str(tmp_path / "net")}
    config = {"inputs": str(tmp_path / "in.fa"), "workload": "mistaken", "options": options}
    (tmp_path / "my.yaml").write_text(json.dumps(config))
    words = ["audit", "--config", str(tmp_path / "my.yaml"), "--device", "cpu", "--dtype", "bf16"]
    once(main(words), capsys, what)


@pytest.fixture(scope="module")
def searched(tmp_path_factory, environment):
    """Return the results of a run that went well."""
    verbs = Verbs(tmp_path_factory.mktemp("searched"), environment)
    verbs.extract(verbs.plan([("a", UBIQUITIN), ("b", "MKV")], "mistaken", outputs=["parquet"]))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet")
    return verbs.run_folder.root


@pytest.mark.parametrize("what", ["", *READING, *AT_HAND, "resolve gives None"])
def test_search_tells_a_mistake_as_its_authors(what, searched, tmp_path, capsys, monkeypatch):
    """Of a workload that was good when the run was computed."""
    workload = find_workload("mistaken")
    for name in ("records", "cost", "resolve", "batch_cost", "load"):
        good = getattr(workload, name)

        def mistaken(*arguments, good=good):
            place = next(n for n, one in enumerate(arguments) if isinstance(one, workload.Options))
            options = arguments[place].model_copy(update={"mistake": what})
            return good(*arguments[:place], options, *arguments[place + 1 :])

        monkeypatch.setattr(workload, name, mistaken)
    if what != "resolve gives None":  # what comes of it would be another recipe
        monkeypatch.setattr(workload, "resolve", lambda options, device, weights: options)
    (tmp_path / "new.fa").write_text(">q\nMKVL\n>r\nMKVI\n")
    words = ["search", str(searched), "--query", str(tmp_path / "new.fa"), "--device", "cpu"]
    words += ["--vectors", "composition"]
    status = main(words)
    if what:
        once(status, capsys, what)
    else:
        assert status == 0, capsys.readouterr().err


@pytest.mark.parametrize("raises", ["records raises", "cost raises"])
def test_the_log_has_the_stack_for_the_author(raises, tmp_path, capsys):
    say(tmp_path, capsys, "mistaken", {"mistake": raises})
    log = (tmp_path / "log").read_text()
    assert "Traceback" in log and "featuremill_mistaken.py" in log


@pytest.mark.parametrize("verb", ["plan", "init"])
@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        (
            "unimportable",
            "cannot be imported, as there is no module 'featuremill_engine_of_nobody' in this "
            "Python; install what the package needs.",
        ),
        ("gone", "cannot be imported (AttributeError: module 'featuremill_mistaken' has no attr"),
        (
            "lacking",
            "it lacks Options, records, cost, weights, resolve, schema, batch_cost, load, p",
        ),
        ("nameless", "Options is no subclass of WorkloadOptions; this is for its author to fix."),
        ("unversioned", "VERSION is None where a text is due; this is for its author to fix."),
    ],
)
def test_what_is_no_workload_is_told_by_its_package(workload, sentence, verb, tmp_path, capsys):
    status, said = say(tmp_path, capsys, workload, verb=verb)
    assert status == (1 if "for its author" in sentence else 2)
    assert f"workload {workload} {WHO}" in said and sentence in said


def test_a_workload_that_makes_no_mistake_passes(tmp_path, capsys):
    (tmp_path / "in.fa").write_text(f">a\n{UBIQUITIN}\n")
    config = {"inputs": [str(tmp_path / "in.fa")], "workload": "mistaken", "device": "cpu"}
    assert main(["plan", str(tmp_path / "run"), "--config", written(config)]) == 0


def test_numbers_of_numpy_are_numbers():
    number = np.int64(3)
    record = Record("a", "", b"MKV", "in.fa", number, length=number)
    workload = SimpleNamespace(
        records=lambda inputs, options: [record], cost=lambda payload, options: number
    )
    assert list(records_of("mistaken", workload, [], None)) == [record]
    assert costs_of("mistaken", workload, [b"MKV"], None) == [3]
    (chunk,) = chunks_of([record])
    assert [type(length) for length in chunk.lengths] == [int]  # as plan.json has it


def test_a_bug_of_a_built_in_workload_stays_what_it_is():
    def records(inputs, options):
        raise KeyError("info")

    with pytest.raises(KeyError):
        list(records_of("composition", SimpleNamespace(records=records), [], None))


def test_a_built_in_workload_is_of_no_other_package():
    assert who("esm2") == "workload esm2"
    assert str(plugin_error("esm2", "it fell")) == (
        "workload esm2: it fell; this is for its author to fix."
    )


def test_the_docs_have_the_names_that_are_reserved():
    page = (ROOT / "docs" / "inputs.md").read_text("utf-8")
    told = page.partition("cannot be called ")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", told)) == RESERVED


def test_what_a_workload_says_of_itself():
    files, cells, composition = map(find_workload, ("files", "cells", "composition"))
    assert optional(files, "TAKES_FILES") and not optional(cells, "TAKES_FILES")
    assert not optional(files, "NEEDS_GPU") and optional(composition, "NEEDS_GPU")
    units = [optional(each, "LENGTH_UNIT") for each in (files, cells, composition)]
    assert units == ["lines", "bytes", "residues"]


WRONG = {
    "bases": (f">a\n{UBIQUITIN}\n", ":1: record 'a' is a protein ('Q' at base 2), but nucleotides"),
    "cells": (f">a\n{UBIQUITIN}\n", ": this is FASTA (it begins with '>a'), but rows of tables"),
    "composition": (FASTQ, ":1: this looks like FASTQ, which holds nucleotide reads"),
}


@pytest.mark.parametrize("verb", ["plan", "init"])
@pytest.mark.parametrize("workload", WRONG)
def test_a_file_of_another_kind_ends_plan_and_init(workload, verb, tmp_path, capsys):
    content, sentence = WRONG[workload]
    status, said = say(tmp_path, capsys, workload, verb=verb, content=content)
    assert status == 2 and said.startswith(f"{tmp_path / 'in.fa'}{sentence}")


def whole_run(verbs, workload, path, options=()):
    """Return what merge delivered of a run on the file at `path`, and its manifest.json."""
    plan = verbs.plan([], workload, dict(options), inputs=[str(path)])
    verbs.extract(plan)
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet")
    root = verbs.run_folder.root
    rows = pq.read_table(root / "embeddings.parquet").to_pylist()
    return {row["id"]: row for row in rows}, json.loads((root / "manifest.json").read_text())


def test_reads_from_plan_to_merge(verbs, tmp_path):
    reads = {"r1": GENE, "r2": GENE.replace("T", "u"), "r3": "ACGTN", "bad": "ACGT-"}
    path = tmp_path / "reads.fastq"
    path.write_text("".join(f"@{id}\n{seq}\n+\n{'@' * len(seq)}\n" for id, seq in reads.items()))
    found, manifest = whole_run(verbs, "bases", path)
    assert {id: row["size"] for id, row in found.items()} == {
        "r1": [75],
        "r2": [75],
        "r3": [5],
    }
    assert found["r1"]["sha256"] == found["r2"]["sha256"]
    assert manifest["counts"]["refused"] == 1 and manifest["notes"] == {"U read as T": 1}
    (refused,) = (verbs.run_folder.root / "failed.tsv").read_text().splitlines()[1:]
    assert "not a nucleotide: '-' at base 5" in refused and "\t13\t" in refused


def test_rows_from_plan_to_merge_and_a_table_in_another_format_computes_nothing(verbs, tmp_path):
    table = pa.table(
        {"id": ["c1", "c2", "c3"], "age": [1.5, 2.0, 1.5], "count": [1, None, 1], "text": ["x"] * 3}
    )
    pq.write_table(table, tmp_path / "cells.parquet")
    table.to_pandas().to_csv(tmp_path / "cells.csv", index=False)
    found, manifest = whole_run(verbs, "cells", tmp_path / "cells.parquet")
    size = len(b'{"age":1.5,"count":1,"text":"x"}')
    assert found["c1"]["size"] == [size] and found["c1"]["length"] == size
    assert manifest["counts"] | {"ok": 3} == manifest["counts"]
    before = json.loads(verbs.run_folder.plan.read_text())
    plan = verbs.plan([], "cells", inputs=[str(tmp_path / "cells.csv")])
    assert plan["recipe"] == before["recipe"]
    assert [s["shard"] for s in plan["shards"]] == [s["shard"] for s in before["shards"]]


def test_a_workload_that_takes_its_inputs_as_they_are(verbs, tmp_path):
    path = tmp_path / "notes.xlsx"
    path.write_bytes(b"PK\x03\x04\n\n\xff\n")
    found, _ = whole_run(verbs, "files", path)
    assert found["notes"]["size"] == [8] and found["notes"]["length"] == 3
    assert json.loads(verbs.run_folder.plan.read_text())["lengths"] == {
        "total": 3,
        "longest": 3,
        "costliest": 8,
        "unit": "lines",
    }
    said = verbs("init", path, "--workload", "files", "--output", tmp_path / "my.yaml")
    assert "1 record, 3 lines" in said and "median length 3, longest 3 (notes)" in said
    assert "# 1 good record, 3 lines." in (tmp_path / "my.yaml").read_text()


def test_init_speaks_of_reads_and_rows(verbs, tmp_path):
    (tmp_path / "r.fq").write_text(FASTQ)
    said = verbs("init", tmp_path / "r.fq", "--workload", "bases")
    assert "r.fq: FASTQ" in said and f"1 record, {len(GENE)} bases" in said
    (tmp_path / "c.csv").write_text("id,age,count,text\nc1,1,2,x\n")
    said = verbs("init", tmp_path / "c.csv", "--workload", "cells")
    assert "id from column 'id', values from 'age', 'count', 'text'" in said
    assert "1 record, 32 bytes" in said
