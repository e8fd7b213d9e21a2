"""Samples: a sheet in place of inputs, from its checks to each table that names them."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from plans import read_sealed, write_sealed
from programs import Verbs, Workflow, random_records, rows_of, wait_for, write_samples
from report_runs import Page, points_of

import featuremill
from featuremill import config, features
from featuremill.base.errors import UserError, WorkloadError
from featuremill.base.id_columns import KEYS, WHOLE, IdColumns
from featuremill.config import project
from featuremill.features.table import Table
from featuremill.inputs import labels, samples
from featuremill.merge.command import merge
from featuremill.plan import reading
from featuremill.report import facts, page
from featuremill.store.results import Results
from featuremill.workload import Record
from featuremill.workloads import scores

SHEET = "sample\tfile\tsite\n"
OF_SAMPLES = IdColumns(KEYS)
OUTPUTS = ["parquet", "parquet_dataset", "per_protein_h5", "npy", "tsv", "h5ad", "safetensors"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sample\tfil\na\ta.fa\n", ":1: a sheet of samples has a column 'file', and here are"),
        ("file\na.fa\n", ":1: a sheet of samples has a column 'sample', and here are 'file'"),
        ("sample\tfile\tlength\na\ta.fa\t1\n", ":1: a column cannot be called 'length' here"),
        (SHEET + "\ta.fa\tx\n", ":2: this row names no sample"),
        (SHEET + "NA\ta.fa\tx\n", ":2: this row names no sample ('NA' is a word for a missing"),
        (SHEET + "a\tNULL\tx\n", ":2: this row names no file"),
        (SHEET + "a/b\ta.fa\tx\n", ":2: sample 'a/b': use letters, digits"),
        (SHEET + "a\ta.fa\tx\nA\tb.fa\tx\n", ":3: sample 'A' differs from 'a' in line 2 only"),
        (SHEET + "a\t\tx\n", ":2: this row names no file"),
        (SHEET + "a\t~/a.fa\tx\n", ":2: ~/a.fa: ~ works only in a shell"),
        (SHEET + "a\ta.fa\tx\n\na\t./a.fa\tx\n", ":4: a.fa is a file of sample 'a' in line 2"),
        (SHEET + "a\ta.fa\tx\na\tb.fa\ty\n", ":3: sample 'a' has site 'y' here and 'x' in line 2"),
        (SHEET, ": there is no record in this file"),
        (">a\nMKV\n", ": this looks like FASTA"),
    ],
)
def test_a_wrong_sheet_is_refused_with_its_line(tmp_path, text, problem):
    path = tmp_path / "samples.tsv"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        samples.read(path)
    assert str(refused.value).startswith(f"{path}{problem}")


def test_a_sheet_is_the_same_in_any_format_and_order(tmp_path):
    columns = {"sample": ["b", "a", "a"], "file": ["b.fa", "x.fa", "b.fa"]}
    table = pd.DataFrame({**columns, "year": ["01", "2", "2"]})
    table.to_csv(tmp_path / "s.csv", index=False)
    table[::-1].sort_values("file", ascending=False).to_csv(tmp_path / "s.tsv", index=0, sep="\t")
    table.to_parquet(tmp_path / "s.parquet")
    found = [samples.read(tmp_path / f"s.{suffix}") for suffix in ("csv", "tsv", "parquet")]
    for sheet in found:
        assert sheet.about == {"sample": ["a", "b"], "year": ["2", "01"]}
        told = [(row.owner, row.file) for row in sheet.rows]
        assert told == [(0, "x.fa"), (0, "b.fa"), (1, "b.fa")]
        assert sheet.shared == ["b.fa"]
        assert [*sheet.passes()] == [{"x.fa": 0, "b.fa": 0}, {"b.fa": 1}]
    with pytest.raises(UserError, match=r"s\.csv:3: x\.fa: this file does not exist"):
        found[0].refuse_missing(["b.fa"])


def test_all_that_is_wrong_with_a_sheet_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.csv").write_text("sample,file\nok,gone.fa\nno/name,a.fa\nx,~/a.fa\n")
    with pytest.raises(UserError) as caught:
        samples.read(Path("s.csv"))
    said = str(caught.value)
    assert re.search(
        r"s\.csv:3: sample 'no/name': .* And s\.csv:4: ~/a\.fa: ~ works only in a ", said
    )
    assert "And s.csv:2: gone.fa: this file does not exist" in said
    (tmp_path / "s.csv").write_text("sample,file\na,gone.fa\nb,b.fa\n")
    with pytest.raises(UserError, match=r"s\.csv:2: gone\.fa: this file .*1 more such row"):
        samples.read(Path("s.csv")).refuse_missing()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"inputs": ["a.fa"]}, "with samples, the files stand in the sheet"),
        ({"samples": "~/s.tsv"}, "works only in a shell"),
    ],
)
def test_a_config_with_samples_is_checked(keys, problem):
    with pytest.raises(UserError, match=problem):
        project.validate({"samples": "s.tsv", "workload": "composition", **keys})


def test_a_folder_called_like_a_samples_says_nothing_of_a_file_in_it(tmp_path):
    """A run may lie in such a folder; only folders inside a table name samples."""
    (tmp_path / "sample=7").mkdir()
    (tmp_path / "sample=7/embeddings/sample=a").mkdir(parents=True)
    rows = pa.table({"id": ["p1"]})
    for name in ("embeddings.parquet", "embeddings/sample=a/part-0.parquet"):
        pq.write_table(rows, tmp_path / "sample=7" / name)
    table = Table(tmp_path / "sample=7/embeddings.parquet")
    assert table.schema.names == table.id_columns.names == ["id"]
    ((_, rows),) = table.batches(WHOLE)
    assert rows.to_pylist() == [{"sample": "", "id": "p1"}]
    inside = Table(tmp_path / "sample=7/embeddings")
    assert inside.schema.names == ["id", "sample"]
    assert inside.id_columns == OF_SAMPLES
    ((_, rows),) = inside.batches(WHOLE)
    assert rows.to_pylist() == [{"sample": "a", "id": "p1"}]


def test_a_step_whose_files_cannot_name_a_sample_refuses_them():
    heads = {"h": {"labels": "l.csv", "column": "c"}}
    told = {"samples": "s.tsv", "translate": {"by": "virnucpro"}, "heads": heads, "virnucpro": {}}
    said = "^config: virnucpro: this step takes no samples; leave it"
    with pytest.raises(UserError, match=said):
        project.validate({"workload": "composition", **told})


def test_labels_are_of_a_record_of_a_sample(tmp_path):
    """Two samples have an id in common, which is two records with labels of their own."""
    table = tmp_path / "labels.tsv"
    table.write_text("id\tsample\tkind\tgenus\np1\tb\tx\tg\np1\ta\ty\tg\np2\ta\t\tg\n")
    found, num_empty = labels.read(table, "kind", None, OF_SAMPLES)
    assert found == {"b/p1": ("x", "b", 2), "a/p1": ("y", "a", 3)}
    assert [OF_SAMPLES.cells(id) for id in found] == [["b", "p1"], ["a", "p1"]]
    assert num_empty == 1
    groups, _ = labels.read(table, "kind", "genus", OF_SAMPLES)
    assert {label.group for label in groups.values()} == {"g"}
    with pytest.raises(UserError, match=r":3: 'p1' has a label in line 2 already"):
        labels.read(table, "kind", None)
    table.write_text("id\tsample\tkind\np1\t\tx\n")
    with pytest.raises(UserError, match=r":2: this row does not say whose 'p1' is"):
        labels.read(table, "kind", None, OF_SAMPLES)
    table.write_text("id\tkind\np1\tx\n")
    with pytest.raises(UserError, match=r"no column 'sample'; add it"):
        labels.read(table, "kind", None, OF_SAMPLES)


def test_tables_that_name_records_are_held_against_the_files_of_all_samples(tmp_path):
    """Whichever pass over the files has them; and no file is read for another sample."""
    for name in "xyz":
        (tmp_path / f"{name}.fa").write_text(f">{name}1\nMKV\n>{name}2\nMAV\n")
    rows = [("a", "x"), ("a", "z"), ("b", "z"), ("c", "y"), ("c", "z")]
    sheet = "".join(f"{sample}\t{tmp_path}/{name}.fa\n" for sample, name in rows)
    (tmp_path / "s.tsv").write_text(f"sample\tfile\n{sheet}")
    table = tmp_path / "v.tsv"
    table.write_text("id\tvariant\nx1\tK2A\nz2\tA2K\ny1\tV3A\n")
    options = scores.Options(variants="listed", variants_file=str(table))
    asked = config.validate({"samples": str(tmp_path / "s.tsv"), "workload": "scores"})

    def records():
        found = list(_chunks(asked, options, tmp_path, samples.read(tmp_path / "s.tsv")))
        assert [chunk.first for chunk in found] == [0, 4, 8]
        rows = [zip(chunk.owners, chunk.ids, chunk.payloads, strict=True) for chunk in found]
        return [one for some in rows for one in some]

    letters = {"1": b"MKV", "2": b"MAV"}
    listed = {"x1": b"K2A", "z2": b"A2K", "y1": b"V3A"}
    assert records() == [
        (number, id, letters[id[1]] + b"\n" + listed.get(id, b""))
        for number, names in enumerate(("xz", "z", "yz"))
        for id in (f"{name}{n}" for name in names for n in (1, 2))
    ]
    table.write_text("id\tvariant\nx1\tK2A\nw1\tK2A\n")
    with pytest.raises(UserError, match=r"v\.tsv:3: no protein of the inputs is called 'w1'"):
        records()


def test_a_file_that_samples_share_is_read_once(tmp_path, monkeypatch):
    """However many have it; and all its records come in the place of each of them."""
    names = [f"s{n:02}" for n in range(20)]
    for name in (*names, "control"):
        (tmp_path / f"{name}.fa").write_text(f">{name}\nMKV\n>p\nMAV\n")
    rows = [(s, file) for s in names for file in (s, "control")]
    monkeypatch.chdir(tmp_path)
    text = "".join(f"{sample}\t{file}.fa\n" for sample, file in rows)
    (tmp_path / "s.tsv").write_text(f"sample\tfile\n{text}")
    (tmp_path / "v.tsv").write_text("id\tvariant\ns19\tK2A\ncontrol\tK2A\n")
    opened = []
    monkeypatch.setattr(scores, "records", _noting(opened, scores.records))
    options = scores.Options(variants="listed", variants_file="v.tsv")
    asked = config.validate({"samples": "s.tsv", "workload": "scores"})
    chunks = _chunks(asked, options, tmp_path, samples.read(tmp_path / "s.tsv"))
    rows = [zip(chunk.owners, chunk.sources, chunk.ids, strict=True) for chunk in chunks]
    each = [(number, file) for number, s in enumerate(names) for file in (s, "control")]
    expected = [(number, f"{file}.fa", id) for number, file in each for id in (file, "p")]
    assert [one for some in rows for one in some] == expected
    assert opened == ["s00.fa", "control.fa", *(f"{s}.fa" for s in names[1:])]


def _chunks(asked, options, folder, sheet):
    """Yield the chunks of the files of a sheet."""
    files = list(map(Path, dict.fromkeys(row.file for row in sheet.rows)))
    return reading._chunks(asked, files, options, folder, sheet)


def _noting(opened, records):
    """Return `records` that notes what it is to read."""

    def noted(paths, options):
        opened.extend(map(str, paths))
        return records(paths, options)

    return noted


def test_records_of_a_shared_file_come_again_as_they_were(tmp_path):
    every_byte = bytes(range(256))
    given = [
        Record("r\u00e9", "a\tdescription\n", every_byte, "a.fa", 1, "", "J read as X", 7),
        Record("s", "", b"", "a.fa", np.int64(3), "empty"),
    ]
    with (tmp_path / "kept").open("w+b") as kept:
        once = reading._Once(iter(given), ["a.fa"], kept)
        assert list(once.records_of("a.fa")) == given
        assert [list(once.records_of("a.fa")) for _ in range(2)] == [given, given]


def test_records_of_shared_files_in_another_order_are_a_fault_of_the_workload(tmp_path):
    files = ["a.fa", "b.fa", "a.fa"]
    of = iter([Record(f"r{n}", "", b"M", file, n) for n, file in enumerate(files)])
    with (tmp_path / "kept").open("w+b") as kept:
        once = reading._Once(of, {"b.fa"}, kept)
        read = [[one.id for one in once.records_of(f"{name}.fa")] for name in "abb"]
        assert read == [["r0"], ["r1"], ["r1"]]
        said = r"a\.fa:2: this record comes after those of another"
        with pytest.raises(WorkloadError, match=said):
            once.refuse_more()


@pytest.fixture(scope="module")
def of_samples(tmp_path_factory, environment):
    """Return a run of two samples with the same ids, and a file that both have."""
    verbs = Verbs(tmp_path_factory.mktemp("samples"), environment)
    files = {"a": ">p1\nMKV\n>p2\nAAAA\n>bad\n12\n", "b": ">p1\nWWW\n", "c": ">p3\nMKV\n>p3\nMKV\n"}
    for name, text in files.items():
        (verbs.folder / f"{name}.fa").write_text(text)
    sheet = (
        "sample\tfile\tsite\nlate\tb.fa\tsea\nlate\tc.fa\tsea\nearly\tc.fa\t01\nearly\ta.fa\t01\n"
    )
    (verbs.folder / "samples.tsv").write_text(sheet)
    told = {"samples": "samples.tsv", "inputs": [], "more": ("--threads", "1")}
    return verbs.run_folder, verbs.finish([], *OUTPUTS, **told)


ROWS = [
    ("early", "p3", "MKV"),
    ("early", "p1", "MKV"),
    ("early", "p2", "AAAA"),
    ("late", "p1", "WWW"),
    ("late", "p3", "MKV"),
]


def test_every_table_says_which_sample(of_samples):
    run, found = of_samples
    assert found["counts"] == {"input": 8, "refused": 1, "duplicate": 2, "planned": 5, "unique": 3}
    assert [(entry["path"], entry["records"]) for entry in found["inputs"]] == [
        ("samples.tsv", 0),
        ("c.fa", 2),
        ("a.fa", 3),
        ("b.fa", 1),
    ]
    keys = [(sample, id) for sample, id, _ in ROWS]
    names = [f"{sample}/{id}" for sample, id in keys]
    frame = featuremill.load(run.root)
    assert list(zip(frame["sample"], frame.index, strict=True)) == keys
    assert frame["composition"].iloc[3][LETTER_W] == 1
    assert featuremill.load(run.root, samples=["late"]).index.tolist() == ["p1", "p3"]
    with pytest.raises(UserError, match="no record of sample 'none'"):
        featuremill.load(run.root, samples=["none"])
    in_one = pq.read_table(run.root / "embeddings.parquet")
    columns = ["id", "accession", "description", "length", "sha256", "sample"]
    assert in_one.column_names[:6] == columns
    folders = pq.read_table(run.root / "embeddings")
    assert folders.column_names[-1] == "sample"
    assert folders["sample"].cast(pa.string()).to_pylist() == [sample for sample, _ in keys]
    assert featuremill.load_matrix(run.root, "composition")[0] == names
    with h5py.File(run.root / "per-protein.h5") as file:
        assert {f"{group}/{name}" for group in file for name in file[group]} == set(names)
    table = anndata.read_h5ad(run.root / "embeddings.h5ad")
    assert table.obs_names.tolist() == names
    assert table.obs["site"].tolist() == ["01", "01", "01", "sea", "sea"]
    assert table.obs["id"].tolist() == [id for _, id in keys]
    rows = pd.read_csv(run.root / "embeddings.tsv", sep="\t")
    assert list(zip(rows["sample"], rows["id"], strict=True)) == keys
    assert len(np.load(run.root / "embeddings.npy")) == len(ROWS)
    opened = features.open(run.root, "composition")
    assert opened.samples() == {"sample": ["early", "late"], "site": ["01", "sea"]}
    assert [id for ids, _ in opened.blocks() for id in ids] == names
    assert opened.rows_of(["late/p1"]) == {"late/p1": 3}
    assert opened.records_of(np.array([4]))[4].id == "late/p3"


LETTER_W = "ACDEFGHIKLMNPQRSTVWY".index("W")


def test_each_sample_is_accounted_for(of_samples):
    run, _ = of_samples
    early, late = rows_of(run.root / "samples.tsv")
    assert early.pop("seconds") and late.pop("seconds")
    counts = {"records": "5", "ok": "3", "failed": "0", "refused": "1", "duplicate": "1"}
    assert early == {"sample": "early", "site": "01", **counts, "noted": "0"}
    assert (late["records"], late["ok"], late["duplicate"]) == ("3", "2", "1")
    (failed,) = rows_of(run.root / "failed.tsv")
    assert (failed["sample"], failed["id"], failed["line"]) == ("early", "bad", "5")


def test_seconds_of_samples_are_those_of_all_devices(of_samples, tmp_path):
    run, found = of_samples
    folder = Results(tmp_path / "run")
    shutil.copytree(run.root, folder.root)
    for shard in found["shards"]:
        path = folder.receipt(found["recipe"], shard["shard"])
        told = read_sealed(path)
        told["seconds"]["total"], told["devices"] = 7.0, 3 * told["devices"]
        write_sealed(path, told)
    for order in ("input", "shard"):
        merge(folder, ["parquet_dataset"], 0, order=order)
        seconds = sum(float(row["seconds"]) for row in rows_of(folder.root / "samples.tsv"))
        assert seconds == pytest.approx(21.0 * len(found["shards"]), abs=0.01)


def test_failures_are_told_and_retried_by_sample(tmp_path, environment):
    verbs = Verbs(tmp_path, environment)
    of_sample = {
        "a": [("p1", "MKV"), ("p2", "WA"), ("p3", "WK")],
        "b": [("p1", "WA"), ("p2", "AA")],
    }
    options = {"marker": "W", "alphabet": "proteins"}
    verbs.extract(verbs.plan([], "marked", options, **write_samples(tmp_path, of_sample)))
    root = verbs.run_folder.root

    def failed():
        said = json.loads(verbs.type("featuremill", "status", root, "--json", status=1).out)
        return [(group["samples"], group["examples"]) for group in said["reasons"]]

    assert failed() == [({"a": 2, "b": 1}, ["a/p2", "a/p3", "b/p1"])]
    assert "of samples a (2), b (1)" in verbs.type("featuremill", "status", root, status=1).text
    assert "results/test has no such sample; records.parquet there has a and b" in verbs(
        "retry", root, "--sample", "c", status=2
    )
    verbs("merge", root, "--max-failed", "3")
    assert [f.id for f in features.open(root, "marks").failures()] == ["a/p2", "a/p3", "b/p1"]
    assert "2 failed records will run again" in verbs("retry", root, "--sample", "b")
    rows = pq.read_table(verbs.run_folder.records).to_pylist()
    places = {(row["sample"], row["id"]): row["shard"] for row in rows}
    assert places["b", "p1"] == places["a", "p2"] != places["a", "p3"]
    assert "no record of b failed" in verbs("retry", root, "--sample", "b")


def test_the_report_lists_some_of_many_files(of_samples, monkeypatch):
    run, _ = of_samples
    found = facts.read(run.root)
    drawn = page.draw(found)
    told = ("<bdi>b.fa</bdi>", "  b.fa&#39;")
    page.write_report(run.root / "report.html", found, drawn)
    text = (run.root / "report.html").read_text()
    assert all(one in text for one in told) and "manifest.json" not in text
    monkeypatch.setattr(page, "MOST_INPUTS", 3)
    monkeypatch.setattr(page, "MOST_CHECKED", 3)
    page.write_report(run.root / "report.html", found, drawn)
    text = (run.root / "report.html").read_text()
    assert not any(one in text for one in told)
    assert "<p>1 more: manifest.json, beside this page, has all.</p>" in text
    assert "# 1 more file: manifest.json has the digests" in text


def test_the_report_has_a_table_of_samples_and_colours_the_map_by_them(of_samples):
    run, _ = of_samples
    found = facts.read(run.root)
    assert found.labels.texts == ["early"] * 3 + ["late"] * 2
    by_site = facts.read(run.root, label="site")
    assert by_site.labels.texts == ["01"] * 3 + ["sea"] * 2
    with pytest.raises(UserError, match=r"samples\.tsv: there is no column 'sight'"):
        facts.read(run.root, label="sight")
    table = run.root.parent / "kinds.tsv"
    table.write_text("sample\tid\tkind\nlate\tp1\tx\nearly\tp1\ty\nlate\tp2\tz\n")
    assert facts.read(run.root, False, table, "kind").labels.texts == [None, "y", None, "x", None]
    frame = pd.read_csv(table, sep="\t")
    frame.to_parquet(table.with_suffix(".parquet"))
    found = facts.read(run.root, False, table.with_suffix(".parquet"), "kind")
    assert found.labels.texts == [None, "y", None, "x", None]
    table.write_text("sample\tid\tkind\nlate\tp9\tx\n")
    mismatch = facts.read(run.root, False, table, "kind").labels.mismatch
    assert mismatch.endswith("the first id is 'late/p9', and the run's first is 'early/p3'")
    frame[["id", "kind"]].to_csv(table, sep="\t", index=False)
    with pytest.raises(UserError, match="this table has no column 'sample'"):
        facts.read(run.root, False, table, "kind")
    page.write_report(run.root / "report.html", by_site, page.draw(by_site))
    text = (run.root / "report.html").read_text()
    points = points_of(Page(run.root / "report.html"))
    assert [point["id"] for point in points] == [f"{sample}/{id}" for sample, id, _ in ROWS]
    assert [point["site"] for point in points] == ["01"] * 3 + ["sea"] * 2
    read = list(facts._columns(Table(run.root / "embeddings.parquet"), ["id", "length"]))
    assert [name for batch in read for name in batch["id"].to_pylist()] == [
        f"{sample}/{id}" for sample, id, _ in ROWS
    ]
    assert read[0].schema.names == ["id", "length"]
    assert '<td class="text">early</td>' in text and text.count("<meter") == 2
    assert "samples: samples.tsv" in text and "column: site" in text


@pytest.mark.slow
def test_a_killed_run_of_samples_ends_as_each_sample_does_alone(tmp_path, environment):
    """And the sample that is added afterwards costs its own records alone."""
    records = random_records(90)
    work = Workflow(tmp_path, environment, records, batch_seconds=0.05)
    lots = {"a": records[:40], "b": records[30:70], "c": [*records[60:], ("r1", "MKVLW")]}
    for name, some in lots.items():
        text = "".join(f">{id}\n{sequence}\n" for id, sequence in some)
        (tmp_path / f"{name}.fa").write_text(text)

    def ask(names):
        (tmp_path / "s.tsv").write_text("sample\tfile\n" + "".join(f"{n}\t{n}.fa\n" for n in names))

    def run(samples=None, inputs=(), name="test"):
        asked = {"samples": samples} if samples else {"inputs": inputs}
        told = yaml.safe_load((tmp_path / "config.yaml").read_text())
        old = ("inputs", "samples", "groups")
        told = {key: value for key, value in told.items() if key not in old}
        told |= {**asked, "run": name, "outputs": "parquet"}
        told |= {"groups": {"each": {"pool": "sum"}}} if samples else {}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(told))

    ask("ab")
    run("s.tsv")
    process = work.start()
    wait_for((tmp_path / "computed.txt").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    work()
    work.news()
    ask("abc")
    work()
    new = {sequence for _, sequence in lots["c"]} - {s for lot in "ab" for _, s in lots[lot]}
    assert sorted(work.news()) == sorted(new)
    found = featuremill.load(tmp_path / "results/test")
    each = pq.read_table(tmp_path / "results/test/groups/each.parquet").to_pylist()
    sums = found.groupby("sample")["letters"].sum()
    assert {row["group"]: row["sum"] for row in each} == {s: sums[s].tolist() for s in lots}
    for name in lots:
        run(inputs=f"{name}.fa", name=f"alone-{name}")
        work()
        alone = featuremill.load(tmp_path / f"results/alone-{name}")
        pd.testing.assert_frame_equal(found[found["sample"] == name].drop(columns="sample"), alone)
