"""A table of labels or groups names records by whole ids or accessions: all commands take both."""

import csv
import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import Verbs

from featuremill.__main__ import main
from featuremill.base import id_columns

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
HEADERS = [f"sp|P{10000 + number}|NAME{number}_HUMAN" for number in range(40)]
RECORDS = [(id, "MK" + LETTERS[n % 20] * (n + 3) + "AC") for n, id in enumerate(HEADERS)]
RECORDS.append(("sp|P20000|BAD_HUMAN", "MK*L"))
KINDS = {id: "xy"[number % 2] for number, id in enumerate(HEADERS)}


@pytest.fixture(autouse=True)
def no_handlers(monkeypatch):
    """Let no test log to the screen of one before it."""
    monkeypatch.setattr(logging.getLogger("featuremill"), "handlers", [])


@pytest.fixture(scope="module")
def run(tmp_path_factory, environment):
    verbs = Verbs(tmp_path_factory.mktemp("run"), environment)
    verbs.extract(verbs.plan(RECORDS, cost=400, options={"hydropathy": False}))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "--max-failed", "1")
    return verbs.run_folder.root


def accession(id):
    return id.split("|")[1]


def table(path, name=accession, id_column="Entry", kinds=KINDS):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("number", id_column, "kind"))
        rows.writerows((n, name(id), kind) for n, (id, kind) in enumerate(kinds.items()))
    return path


def said(capfd, *words, status=0):
    assert main([*map(str, words)]) == status
    return capfd.readouterr().err


def words_of(command, run, path, output):
    if command == "head":
        more = ["--labels", path, "--output", output / "h"]
        return ["head", "train", run, "--column=kind", *more]
    if command == "transfer":
        return ["transfer", run, "--column=kind", "--labels", path, "--output", output / "t.tsv"]
    return ["groups", run, "--column=kind", "--table", path, "--output", output / "g.parquet"]


def results_of(command, output):
    if command == "head":
        card = json.loads((output / "h/head.json").read_text())
        held_out = pq.read_table(output / "h/held_out.parquet").to_pylist()
        return card["counts"], card["scores"], held_out
    if command == "transfer":
        return (output / "t.tsv").read_text(), (output / "t.missing.tsv").read_text()
    return pq.read_table(output / "g.parquet").to_pylist(), (output / "g.members.tsv").read_text()


COMMANDS = ("head", "transfer", "groups")


@pytest.mark.parametrize("command", COMMANDS)
def test_accessions_give_what_whole_ids_give(run, tmp_path, capfd, command):
    found = {}
    for name in (accession, str):
        output = tmp_path / name.__name__
        output.mkdir()
        path = table(output / "kinds.csv", name)
        assert "warning: kinds" not in said(capfd, *words_of(command, run, path, output))
        found[name] = results_of(command, output)
    assert found[accession] == found[str]
    other = tmp_path / "other"
    other.mkdir()
    path = table(other / "kinds.csv", id_column="my protein")
    refused = said(capfd, *words_of(command, run, path, other), status=2)
    sentence = "no column of ids is found (columns: 'number', 'my protein', 'kind'); call the right"
    assert sentence in refused
    assert "--id-column" in refused
    said(capfd, *words_of(command, run, path, other), "--id-column", "my protein")
    assert results_of(command, other) == found[str]


@pytest.mark.parametrize("command", COMMANDS)
def test_few_matches_are_an_error_and_some_are_said(run, tmp_path, capfd, command):
    kinds = {id if n < 15 else id.lower(): kind for n, (id, kind) in enumerate(KINDS.items())}
    path = table(tmp_path / "kinds.csv", kinds=kinds)
    words = words_of(command, run, path, tmp_path)
    refused = said(capfd, *words, status=2)
    assert f"{path}: only 15 of its 40 ids is a record of {run}" in refused
    assert "in other capitals, 25 of the others would match" in refused
    path = table(tmp_path / "kinds.csv", kinds=KINDS | {"a|b|c": "x", "a|d|c": "y"})
    assert f"{path}: 2 of its 42 ids are no record of {run}: 'b', 'd'." in said(capfd, *words)


@pytest.mark.parametrize("command", COMMANDS)
def test_two_rows_of_a_record_are_refused(run, tmp_path, capfd, command):
    names = dict.fromkeys(HEADERS) | {accession(HEADERS[3]): None}
    path = table(tmp_path / "kinds.csv", str, kinds=dict.fromkeys(names, "x"))
    refused = said(capfd, *words_of(command, run, path, tmp_path), status=2)
    assert f"{path}:42: 'P10003' is the record 'sp|P10003|NAME3_HUMAN', which has" in refused


def test_what_is_no_number_is_no_label_and_words_for_it_are_said(run, tmp_path, capfd):
    """As polars and Arrow keep it; pandas writes nulls."""
    values = [float("nan") if n % 5 == 0 else float(n % 2) for n in range(40)]
    path = tmp_path / "kinds.parquet"
    pq.write_table(pa.table({"id": HEADERS, "kind": pa.array(values, from_pandas=False)}), path)
    said(capfd, *words_of("head", run, path, tmp_path))
    card = json.loads((tmp_path / "h/head.json").read_text())
    assert card["classes"] == ["0.0", "1.0"] and card["counts"]["rows_without_label"] == 8
    said(capfd, *words_of("transfer", run, path, tmp_path))
    assert "NaN" not in (tmp_path / "t.tsv").read_text()
    said(capfd, *words_of("groups", run, path, tmp_path))
    assert sorted(pq.read_table(tmp_path / "g.parquet")["group"].to_pylist()) == ["0.0", "1.0"]
    kinds = {id: ("nan", "virus", "Virus")[n % 3] for n, id in enumerate(HEADERS)}
    path = table(tmp_path / "kinds.csv", kinds=kinds)
    told = said(capfd, *words_of("groups", run, path, tmp_path))
    assert f"{path}: in 'kind', 'nan' counts as a label like any other; for no label" in told
    assert "in 'kind', 'Virus' and 'virus' count as different labels; write them alike" in told


# ---- the accession of an id ----

CASES = {
    "sp|P12345|AATM_RABIT": "P12345",
    "tr|A0A023FBW4|A0A023FBW4_9HEMI": "A0A023FBW4",
    "sp|P12345-2|AATM_RABIT": "P12345-2",
    "tr|P12345": "P12345",
    "P12345": "P12345",
    "AATM_RABIT": "AATM_RABIT",
    "UniRef50_P12345": "P12345",
    "UniRef100_A0A023FBW4": "A0A023FBW4",
    "UniRef90_UPI0000ABCDEF": "UPI0000ABCDEF",
    "UniRef90_UPI0000": "UniRef90_UPI0000",
    "AF-P12345-F1": "P12345",
    "AFDB:AF-P12345-F1-model_v4": "P12345",
    "ref|NP_000549.1|": "NP_000549.1",
    "gi|4504345|ref|NP_000549.1|": "NP_000549.1",
    "gi|129295|sp|P01013.1|OVAX_CHICK": "P01013",
    "gb|AAA12345.1|": "AAA12345.1",
    "emb|CAA12345.1|": "CAA12345.1",
    "ref|WP_012345678.1|": "WP_012345678.1",
    "NP_000549.1": "NP_000549.1",
    "lcl|NC_000913.3_prot_NP_414542.1_1": "NP_414542.1",
    "gi|4504345": "gi|4504345",
    "pdb|4HHB|A": "pdb|4HHB|A",
    "sp|P1|A_B": "sp|P1|A_B",
    "sp|p12345|lower": "sp|p12345|lower",
    "sp|P12345|A|B": "sp|P12345|A|B",
    "sp||": "sp||",
    "k127_9 flag=1": "k127_9 flag=1",
    "sp|P12345\u00e9|X": "sp|P12345\u00e9|X",
    "": "",
}


@pytest.mark.parametrize("chunked", [False, True])
def test_the_accession_of_each_kind_of_id(chunked):
    ids = pa.array(CASES)
    found = id_columns.accessions(pa.chunked_array([ids[:3], ids[3:]]) if chunked else ids)
    assert dict(zip(CASES, found.to_pylist(), strict=True)) == CASES
    assert {id: id_columns.accession(id) for id in CASES} == CASES


def test_no_ids_are_no_accessions():
    assert id_columns.accessions(pa.array([], pa.string())).to_pylist() == []
