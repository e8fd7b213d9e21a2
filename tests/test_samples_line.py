"""Samples along the whole line: two samples with the same ids are never one, from contigs to
verdicts."""

import csv
import gzip
import json
import logging
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import debian
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from programs import Desk, Verbs, rows_of, wait_for
from programs import write_samples as write_sheet

from featuremill import __main__, features
from featuremill.base.errors import UserError
from featuremill.base.id_columns import KEYS, IdColumns
from featuremill.config.project import validate
from featuremill.flow import refusals
from featuremill.flow.context import validated
from featuremill.flow.screen import RefusedError
from featuremill.inputs import labels as labels_of
from featuremill.inputs import samples
from featuremill.steps.heads import Head, card, figures
from featuremill.steps.heads import labels as labels_of_heads
from featuremill.steps.heads import network as network_of
from featuremill.steps.heads.labels import of_fragments
from featuremill.steps.transfer.search import search
from featuremill.steps.translate import options as names_of
from featuremill.steps.translate.command import translate
from featuremill.steps.translate.folder import Translation, fragments, untranslated, whole
from featuremill.steps.verdicts.command import write
from featuremill.store import files, state
from featuremill.store.results import Results

SAMPLES = "abcdef"
PATIENT = {"a": "one", "b": "one"}
"""Of two samples; each other one is of its own."""


def read(features, table, column, group):
    head = Head(labels=table and str(table), column=column, group=group)
    return labels_of_heads.read(features, head)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(logging.getLogger("featuremill"), "handlers", [])
    monkeypatch.setattr(figures, "RESAMPLES", 50)
    torch.set_num_threads(1)


def kind_of(sample, n):
    """Return the class of record p<n> of a sample: that of the next sample is the other one."""
    return "xy"[(n + SAMPLES.index(sample)) % 2]


def proteins(sample, rng):
    """Return records p0 to p7, whose residues tell their class."""
    letters = {"x": "DEFGHIK", "y": "LMNPQRS"}
    return [(f"p{n}", "".join(rng.choice(list(letters[kind_of(sample, n)]), 30))) for n in range(8)]


def computed(folder, environment, of_sample, sheet, **options):
    """Compute a run of these samples in `folder`; return where its results are."""
    folder.mkdir()
    verbs = Verbs(folder, environment)
    verbs.finish([], "parquet", options=options, **write_sheet(folder, of_sample, **sheet))
    return verbs.run_folder.root


@pytest.fixture(scope="module")
def runs(tmp_path_factory, environment):
    """Return two finished runs of six samples that have the same ids and other sequences; the
    second has no record p3 of b."""
    folder = tmp_path_factory.mktemp("line")
    rng = np.random.default_rng(0)
    of_sample = {sample: proteins(sample, rng) for sample in SAMPLES}
    of_sample["e"][0] = of_sample["c"][0]  # the same sequence, of another group
    sheet = {
        "patient": {s: PATIENT.get(s, s) for s in SAMPLES},
        "site": {s: ["lake", "sea", ""][SAMPLES.index(s) % 3] for s in SAMPLES},
    }
    one = computed(folder / "one", environment, of_sample, sheet)
    less = of_sample | {"b": [(id, s) for id, s in of_sample["b"] if id != "p3"]}
    return one, computed(folder / "two", environment, less, sheet, hydropathy=False)


@pytest.fixture
def labels(tmp_path):
    """Return a table of labels of some records of each sample, in another order."""
    rows = [f"{s},p{n},{kind_of(s, n)}" for n in range(6) for s in reversed(SAMPLES)]
    (tmp_path / "labels.csv").write_text("\n".join(["sample,id,kind", *rows]) + "\n")
    return tmp_path / "labels.csv"


def head(*words, status=0):
    assert __main__.main(["head", *map(str, words)]) == status


def cells_of(page, name):
    """Return the cells of the only row that begins with `name`, by the name of their column."""
    (row,) = re.findall(rf'<tr><td class="text"><bdi>{name}</bdi></td>(.*?)</tr>', page)
    return dict(re.findall(r'data-label="([^"]*):">([^<]*)<', row))


def test_a_head_knows_whose_record_an_id_is(runs, labels, tmp_path):
    """Labels, vectors, held-out scores and what lacks are joined by sample and id: each join by the
    id alone would take another sample's, whose class is the other one."""
    words = ("--labels", labels, "--column", "kind", "--output", tmp_path / "h")
    head("train", *runs, "--vectors", "composition", *words)
    held_out = pd.read_parquet(tmp_path / "h/held_out.parquet")
    assert len(held_out) == 35
    assert (held_out["group"] == held_out["sample"]).all()
    pairs = zip(held_out["sample"], held_out["id"], strict=True)
    assert held_out["label"].tolist() == [kind_of(s, int(id[1:])) for s, id in pairs]
    assert card.Card.read(tmp_path / "h/head.json").scores["accuracy"][0] == 1
    page = (tmp_path / "h/head.html").read_text()
    assert cells_of(page, "b") == {"Records": "5", "Right": "5", "Share": "1.000"}
    (lacks,) = rows_of(tmp_path / "h/missing.tsv")
    about = {"run": str(runs[1]), "reason": "it has no such record"}
    assert lacks == {"sample": "b", "id": "p3", **about}
    for name in ("p.tsv", "p.parquet"):
        head("predict", tmp_path / "h", *runs, "--output", tmp_path / name)
    rows = rows_of(tmp_path / "p.tsv")
    assert [row["class"] for row in rows] == [kind_of(r["sample"], int(r["id"][1:])) for r in rows]
    seen = ["yes" if int(row["id"][1:]) < 6 else "no" for row in rows]
    assert [row["seen_in_training"] for row in rows] == seen
    assert rows_of(tmp_path / "p.missing.tsv") == [lacks]
    # Each row has the scores of its own record's vectors, or of the head that did not see it.
    one, two = (features.open(run, "composition") for run in runs)
    scored = pd.read_parquet(tmp_path / "p.parquet")
    ids = (scored["sample"] + "/" + scored["id"]).tolist()
    x = [of.take(np.array([of.rows_of(ids)[id] for id in ids])) for of in (one, two)]
    _, tensors = card.read(tmp_path / "h")
    expected = pd.DataFrame(network_of.softmax(network_of.logits(tensors, np.hstack(x))), ids)
    expected.loc[(held_out["sample"] + "/" + held_out["id"]).tolist()] = held_out[
        ["score_x", "score_y"]
    ].to_numpy()
    np.testing.assert_array_equal(scored[["score_x", "score_y"]], expected)


def test_a_group_is_the_sample_unless_a_column_says_otherwise(runs, labels):
    """A column of the labels comes first, then one of the sheet: two samples of one patient."""
    of = features.open(runs[0], "composition")
    default = read(of, labels, "kind", None)
    groups = {f"{s}/p{n}": s for s in SAMPLES for n in range(6)}
    assert {id: one.group for id, one in default.of_id.items()} == groups
    assert default.used.group == "sample"
    patients = read(of, labels, "kind", "patient")
    assert {patients.of_id[id].group for id in ("a/p1", "b/p2")} == {"one"}
    assert patients.of_id["c/p1"].group == "c"
    own = read(of, labels, "kind", "id")
    assert all(one.group == id for id, one in own.of_id.items())
    labels.write_text(labels.read_text().replace("sample,id", "sample,accession"))
    assert read(of, labels, "kind", "id") == own._replace(used=read(of, labels, "kind", "id").used)
    with pytest.raises(UserError, match=r"sample '[cf]' has no site in the sheet"):
        read(of, labels, "kind", "site")


def test_labels_may_be_of_samples(runs, tmp_path):
    of = features.open(runs[0], "composition")
    found = read(of, None, "site", None)
    assert {id: one[:2] for id, one in found.of_id.items()} == {
        f"{s}/p{n}": (["lake", "sea"][SAMPLES.index(s) % 3], s) for s in "abde" for n in range(8)
    }
    assert (found.num_empty, found.used.file, found.used.column) == (2, "samples.tsv", "site")
    patients = read(of, None, "site", "patient").of_id.values()
    assert {one.group for one in patients} == {"one", "d", "e"}
    own = read(of, None, "site", "id")
    assert own.of_id == {id: one._replace(group=id) for id, one in found.of_id.items()}
    assert own.used.group == "id"
    for column, group, problem in [
        ("kind", None, "no column 'kind'; it has sample, patient and site"),
        ("site", "genus", "no column 'genus'"),
    ]:
        with pytest.raises(UserError, match=problem):
            read(of, None, column, group)


def test_labels_of_a_table_need_no_sheet(runs, labels, tmp_path):
    """Where results were copied without the records of their plan."""
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    Results(copy).records.unlink()
    of = features.open(copy, "composition")
    assert read(of, labels, "kind", None).of_id == read(of, labels, "kind", "sample").of_id
    for table, column, group in [(None, "site", None), (labels, "kind", "patient")]:
        with pytest.raises(UserError, match=r"records.parquet: there is no such file.*; copy it"):
            read(of, table, column, group)


def test_labels_of_an_edited_sheet_wait_for_its_results(runs, labels, tmp_path, environment):
    copy = tmp_path / "one"
    shutil.copytree(runs[0].parents[1], copy)
    verbs = Verbs(copy, environment)
    (copy / "samples.tsv").write_text((copy / "samples.tsv").read_text().replace("lake", "pond"))
    verbs.plan([], more=("--threads", "1"), samples="samples.tsv", inputs=[], options={})
    of = features.open(verbs.run_folder.root, "composition")
    assert read(of, labels, "kind", None).used.group == "sample"
    for table, column, group in [(None, "site", None), (labels, "kind", "patient")]:
        with pytest.raises(UserError, match="sheet of samples was planned anew after these resul"):
            read(of, table, column, group)


def test_features_of_samples_are_not_joined_with_others(runs, labels, tmp_path, environment, capfd):
    (tmp_path / "none").mkdir()
    verbs = Verbs(tmp_path / "none", environment)
    verbs.finish([("a/p1", "MKV")], "parquet")
    words = ("--labels", labels, "--column", "kind", "--output", tmp_path / "h")
    both = (runs[0], verbs.run_folder.root)
    head("train", *both, "--vectors", "composition", *words, status=2)
    assert "its records are of samples, and those of" in capfd.readouterr().err
    alone = ("--column", "kind", "--output", tmp_path / "h", "--vectors", "composition")
    head("train", both[1], *alone, status=2)
    assert "it is a run without samples" in capfd.readouterr().err


def test_a_sequence_in_memory_may_be_named_by_sample_and_id(runs):
    """Then it is that record, and not the other of its id, nor a number of its own."""
    root = runs[0]
    letters = (root.parents[1] / "b.fa").read_text().split()[1]
    for name, first in (("b/p0", False), ("a/p0", True), ("p0", True)):
        hits = search(root, {name: letters}, 1, column="composition", exclude_self=True)
        assert (hits["id"].tolist() == ["b/p0"]) is first


# ---- contigs ----

CONTIGS = {
    "b": [("c1", "GCTGCTGCTGCTGCT"), ("c2", "TAATTAGTTAATTAGTTAA")],
    "a": [("c1", "AAAAAAAAAAAA"), ("c3", "ATGAAAGTTCTGGCT")],
    "stops": [("c1", "TAATTAGTTAATTAGTTAA")],
}
"""Two samples with a contig c1 each, and one whose contigs have a stop in each frame."""


def translated(folder, of_sample=CONTIGS, *more):
    """Translate these samples into `folder`, from where a run is started; return its summary."""
    write_sheet(folder, of_sample, site={sample: f"at {sample}" for sample in of_sample})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ("--samples", "samples.tsv", "--output", "out", "--by", "chunks", *more)
        assert __main__.main(["translate", *words]) == 0
    return Translation.read(folder / "out/translate.json")


def test_each_sample_is_translated_by_itself(tmp_path, monkeypatch):
    """Its folder is what its files alone would give, and the fragments say whose they are."""
    monkeypatch.chdir(tmp_path)
    done = translated(tmp_path)
    assert done.samples == ["a", "b", "stops"]
    assert done.contigs.read == 5
    for sample in CONTIGS:
        words = ("translate", f"{sample}.fa", "--output", f"alone/{sample}", "--by", "chunks")
        assert __main__.main([*words]) == 0
        assert files_in(tmp_path / f"out/sample={sample}") == files_in(tmp_path / "alone" / sample)
    whole(tmp_path / "out")
    tables = fragments(tmp_path / "out", ["contig", "id"])
    pairs = [pair for some in tables for pair in zip(*some.to_pydict().values(), strict=True)]
    assert len(pairs) == done.fragments
    assert {contig for contig, _ in pairs} == {"a/c1", "a/c3", "b/c1"}
    assert all(id.startswith(f"{contig}_chunk_") for contig, id in pairs)
    assert [row["contig"] for row in untranslated(tmp_path / "out")] == ["b/c2", "stops/c1"]
    for kind, file in (("proteins", "proteins.faa.gz"), ("nucleotides", "nucleotides.fna.gz")):
        sheet = samples.read(tmp_path / f"out/{kind}.samples.parquet")
        assert sheet.about == {"sample": ["a", "b"], "site": ["at a", "at b"]}
        assert [row.file for row in sheet.rows] == [f"out/sample={s}/{file}" for s in "ab"]


def test_a_sample_without_any_long_contig_stops_no_other(tmp_path, monkeypatch, capfd):
    """But a sheet without any fragment ends the command: nothing could read its sheets."""
    more = {"few": [("c1", "AC")], "wrong": [("c1", "AC-GT"), ("c2", "ACGT!")]}
    done = translated(tmp_path, CONTIGS | more)
    assert "3 samples have no fragment: few, stops, wrong." in capfd.readouterr().err
    assert done.samples == ["a", "b", "few", "stops", "wrong"]
    assert (done.contigs.read, done.contigs.refused, done.contigs.without_fragments) == (8, 2, 3)
    for sample, counts in (("few", (1, 1, 0)), ("wrong", (2, 0, 2))):
        one = Translation.read(tmp_path / f"out/sample={sample}/translate.json")
        contigs = one.contigs
        assert (contigs.read, contigs.without_fragments, contigs.refused) == counts
        assert (one.fragments, one.nucleotides) == (0, 2 if sample == "few" else 0)
    listed = {row["contig"]: row["reason"] for row in untranslated(tmp_path / "out")}
    assert listed["few/c1"] == "shorter than a codon"
    assert listed["wrong/c2"] == "not a nucleotide: '!' at base 5"
    assert samples.read(tmp_path / "out/proteins.samples.parquet").about["sample"] == ["a", "b"]
    write_sheet(tmp_path, more)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the samples are done by then
        with pytest.raises(UserError) as caught:
            translate(Path("samples.tsv"), Path("out"), "chunks")
        assert str(caught.value) == (
            "samples.tsv: no sample has a fragment (2 of 3 contigs refused; "
            "untranslated.tsv of each sample has the reasons); check the files that this sheet "
            "names."
        )
    assert not (tmp_path / "out/translate.json").exists()


def test_all_samples_are_on_the_disk_before_the_summary_says_so(tmp_path, monkeypatch):
    """Together: a sync of each file of each sample takes longer than to translate it."""
    synced, num_there = [], []
    summaries = [tmp_path / f"out/sample={s}/translate.json" for s in CONTIGS]

    def sync_all():
        assert not (tmp_path / "out/translate.json").exists()
        num_there.append(sum(path.exists() for path in summaries))

    monkeypatch.setattr(files, "MOST_SYNCED", 0)
    monkeypatch.setattr(files, "sync", synced.append)
    monkeypatch.setattr(files.os, "sync", sync_all)
    translated(tmp_path)
    assert num_there == [len(CONTIGS)]
    out = tmp_path / "out"
    assert synced and not [path for path in synced if "sample=" in str(path)]
    summaries[0].with_name("proteins.faa.gz").write_bytes(b"")  # as after a loss of power
    (out / "translate.json").unlink()
    translated(tmp_path)
    whole(out)
    assert summaries[0].with_name("proteins.faa.gz").stat().st_size


def test_a_sheet_named_in_another_way_is_the_same(tmp_path, monkeypatch):
    """Else status would ask for ever for what a run does not do."""
    done = translated(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".state").mkdir()
    paths = [f"./{entry.path}" for entry in done.inputs]
    listed = state.stated({}, {entry.path: entry.sha256 for entry in done.inputs})
    assert listed.others(paths, tmp_path / ".state") == []
    assert listed.others(paths[1:], tmp_path / ".state") == [done.inputs[0].path]
    letters = (tmp_path / "a.fa").read_text()
    (tmp_path / "a.fa").write_text(letters[:-2] + "G" + letters[-1])
    assert listed.others(paths, tmp_path / ".state") == ["a.fa"]


def test_an_edited_sheet_translates_what_is_new(tmp_path):
    """And a sheet is another one where only the content of a file is: Snakemake looks at it."""
    first = translated(tmp_path)
    sheet = tmp_path / "out/proteins.samples.parquet"
    names = {s: tmp_path / f"out/sample={s}/translate.json" for s in CONTIGS}
    before = {s: path.stat().st_mtime_ns for s, path in names.items()}
    content = sheet.read_bytes()
    assert translated(tmp_path) == first
    assert {s: path.stat().st_mtime_ns for s, path in names.items()} == before
    assert sheet.read_bytes() == content
    less = {s: CONTIGS[s] for s in ("a", "b")}
    other = translated(tmp_path, less | {"b": [("c1", "GCTGCTGCTGCTGCA")]})
    assert not names["stops"].parent.exists()
    assert names["a"].stat().st_mtime_ns == before["a"]
    assert names["b"].stat().st_mtime_ns != before["b"]
    assert (other.fragments, other.samples) == (first.fragments, ["a", "b"])
    assert sheet.read_bytes() != content
    Translation.read(names["a"]).model_copy(update={"by": "orfs"}).write(names["a"])
    said = r"sample=a/translate\.json: it is not what translate wrote"
    with pytest.raises(UserError, match=said):
        whole(tmp_path / "out")


def test_a_folder_of_samples_becomes_one_of_files_and_back(tmp_path, monkeypatch):
    translated(tmp_path)
    (tmp_path / "out/translate.json").unlink()  # as Snakemake does before the job
    monkeypatch.chdir(tmp_path)
    words = ("--output", "out", "--by", "chunks")
    assert __main__.main(["translate", "a.fa", *words]) == 0
    assert sorted(files_in(tmp_path / "out")) == sorted((*names_of.FILES, names_of.SUMMARY))
    assert "samples" not in json.loads((tmp_path / "out/translate.json").read_text())
    translated(tmp_path)
    kept = {*names_of.SHEETS.values(), names_of.SUMMARY, *(f"sample={s}" for s in CONTIGS)}
    assert {path.name for path in (tmp_path / "out").glob("[!.]*")} == kept
    (tmp_path / "out/sample=mine").mkdir()
    (tmp_path / "out/sample=mine/notes.txt").touch()
    (tmp_path / "out/translate.json").unlink()
    assert __main__.main(["translate", "--samples", "samples.tsv", *words]) == 2
    assert (tmp_path / "out/sample=mine/notes.txt").exists()
    assert __main__.main(["translate", "--samples", "samples.tsv", "a.fa", *words]) == 2


@pytest.mark.parametrize("mine", ["sample=b/notes.txt", "sample=b/old/notes.txt", "sample=notes"])
def test_what_no_translation_wrote_is_not_removed_from_a_sample(mine, tmp_path, monkeypatch):
    translated(tmp_path)
    place = tmp_path / "out" / mine
    place.parent.mkdir(exist_ok=True)
    place.write_text("mine")
    monkeypatch.chdir(tmp_path)
    write_sheet(tmp_path, {sample: CONTIGS[sample] for sample in "a"})  # the others' folders go
    for of in (Path("samples.tsv"), [Path("a.fa")]):
        with pytest.raises(UserError) as caught:
            translate(of, Path("out"), "chunks")
        named = "sample=b/old" if "old" in mine else mine
        assert str(caught.value) == (
            f"out: there is {named!r}, which is of no translation; name a new folder, or an empty "
            "one."
        )
        assert place.read_text() == "mine"
        assert (tmp_path / "out/sample=b/proteins.faa.gz").exists()


def predict(path, rows):
    """Write predictions as head predict does; `rows` have sample, id and the score of virus."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(["sample", "id", "class", "score_others", "score_virus"])
        table.writerows([sample, id, "", 1 - score, score] for sample, id, score in rows)
    return path


def test_two_samples_with_a_contig_of_one_name_are_two_verdicts(tmp_path):
    """The last contig of a has the name of the first of b, and what is said of each is its own."""
    done = translated(tmp_path, CONTIGS | {"a": CONTIGS["a"][:1]})
    ids = [id for some in fragments(tmp_path / "out", ["id"]) for id in some["id"].to_pylist()]
    score = {"a": 0.75, "b": 0.25}
    rows = [(*id.split("/", 1), score[id[0]]) for id in ids]
    path = predict(tmp_path / "p.tsv", rows)
    write(tmp_path / "out", path, tmp_path / "v.tsv", by="mean")
    assert [(r["sample"], r["contig"], r["verdict"]) for r in rows_of(tmp_path / "v.tsv")] == [
        ("a", "c1", "virus"),
        ("b", "c1", "others"),
        ("b", "c2", "-"),
        ("stops", "c1", "-"),
    ]
    counts = [int(r["fragments"]) for r in rows_of(tmp_path / "v.tsv")]
    assert sum(counts) == done.fragments
    page = (tmp_path / "v.html").read_text()
    told = {"Contigs": "2", "others": "1", "virus": "0", "Without a verdict": "1"}
    assert cells_of(page, "b") == told
    (table,) = re.findall(r'id="contig-rows">(.*?)</script>', page)
    assert json.loads(table)["columns"][:3] == ["sample", "contig", "verdict"]
    assert json.loads(table)["rows"][1][:3] == ["b", "c1", "others"]
    # Without what is of b, its fragments have no prediction, and those of a theirs.
    write(tmp_path / "out", predict(path, rows[: counts[0]]), tmp_path / "v.tsv")
    told = [(r["sample"], r["verdict"], r["status"]) for r in rows_of(tmp_path / "v.tsv")[:2]]
    assert told == [("a", "virus", "ok"), ("b", "-", "failed")]
    with pytest.raises(UserError, match=r"'b/c1_chunk_1F1' is no fragment of .* another order"):
        write(tmp_path / "out", predict(path, rows[::-1][counts[1] - 1 :]), tmp_path / "v.tsv")
    path.write_text(path.read_text().replace("sample\t", "").replace("a\t", "").replace("b\t", ""))
    with pytest.raises(UserError, match="'c1_chunk_1F1' is no fragment of"):
        write(tmp_path / "out", path, tmp_path / "v.tsv")


def test_labels_of_contigs_and_of_samples_are_those_of_fragments(tmp_path):
    translated(tmp_path)
    found = {"a/c1": labels_of.Label("x", "g", 2), "b/c2": labels_of.Label("y", "g", 3)}
    of, num_without = of_fragments(found, tmp_path / "kinds.csv", tmp_path / "out", IdColumns(KEYS))
    assert {id.partition("_")[0] for id in of} == {"a/c1"}
    assert num_without == 1
    assert set(of.values()) == {found["a/c1"]}


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


# ---- the config ----

GC = {"labels": "kinds.tsv", "column": "kind", "vectors": "composition"}
ALONE = {"column": "kind", "vectors": "composition"}
MAIN = SimpleNamespace(is_main_snakefile=lambda: True)
OF = {"workload": "composition"}
SOIL = {"run": "soil", "samples": "samples.tsv", "translate": {"by": "chunks"}, "verdicts": {}}
SOIL |= {"features": {"proteins": OF, "dna": {**OF, "of": "nucleotides"}}, "heads": {"gc": GC}}


@pytest.fixture
def soil(tmp_path, monkeypatch):
    """Be in a folder with a sheet of samples, and a table of labels."""
    monkeypatch.chdir(tmp_path)
    write_sheet(tmp_path, CONTIGS, site={sample: sample for sample in CONTIGS})
    (tmp_path / "kinds.tsv").write_text("sample\tid\tkind\na\tc1\tx\nb\tc2\ty\n")
    return tmp_path


def test_features_are_of_the_sheets_that_translate_makes(soil):
    found = begun(SOIL)
    sheets = {name.rpartition("/")[2]: run.samples for name, run in found.runs.items()}
    assert sheets == {
        "proteins": "results/soil/translate/proteins.samples.parquet",
        "dna": "results/soil/translate/nucleotides.samples.parquet",
    }
    assert all(run.files == [run.samples] for run in found.runs.values())
    before, after = found.products_around
    assert before[0].inputs == found.files == ["samples.tsv", "a.fa", "b.fa", "stops.fa"]
    assert before[0].stands() == "no"
    translate(Path("samples.tsv"), Path("results/soil/translate"), "chunks")
    assert before[0].stands() == "yes"
    assert before[0].figures()["contigs"] == 5
    assert found.runs["soil/dna"].files[1:] == [
        f"results/soil/translate/sample={sample}/nucleotides.fna.gz" for sample in "ab"
    ]
    (soil / "b.fa").write_text(">c1\nGCTGCTGCTGCTGCA\n")
    assert before[0].stands() == "older"
    assert [one.label for one in after] == ["heads.gc", "predictions.gc", "verdicts"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"heads": {"gc": ALONE}}, "heads.gc.column: samples.tsv: there is "),
        ({"heads": {"gc": {**GC, "group": "patient"}}}, "heads.gc.group: kinds.tsv: there is no c"),
        ({"heads": {"gc": {**GC, "labels": "bare.tsv"}}}, "no column 'sample'; add it"),
        ({"samples": "", "inputs": "a.fa", "heads": {"gc": ALONE}}, "name a table"),
        ({"samples": "gone.tsv"}, "samples: gone.tsv:2: gone.fa: this file does not exist"),
        ({"features": {"proteins": {**SOIL["features"]["proteins"], "labels": {"column": "lake"}}}},
         "labels: samples.tsv: there is no column 'lake'"),
    ],
)  # fmt: skip
def test_what_samples_lack_is_refused_before_the_first_job(soil, change, problem):
    (soil / "bare.tsv").write_text("id\tkind\nc1\tx\nc2\ty\n")
    (soil / "gone.tsv").write_text("sample\tfile\na\tgone.fa\n")
    with pytest.raises((RefusedError, UserError)) as refused:
        begun({key: value for key, value in {**SOIL, **change}.items() if value})
    assert problem in str(refused.value)
    columns = [{**GC, "group": "site"}, {**GC, "labels": None, "column": "site"}]
    columns.append({**GC, "group": "id"})
    for head in columns:
        begun({**SOIL, "heads": {"gc": head}})
    (soil / "kinds.tsv").write_text("sample\taccession\tkind\na\tc1\tx\nb\tc2\ty\n")
    for head in ({**GC, "group": "id"}, {**ALONE, "column": "site", "group": "id"}):
        begun({**SOIL, "heads": {"gc": head}})


def test_a_missing_sheet_and_a_wrong_column_of_labels_have_their_line(soil, monkeypatch):
    """Also where the config is named from another folder than its sheet is seen from."""

    def refused(text):
        Path("my.yaml").write_text(text)
        place = Path.cwd() / "my.yaml"
        with pytest.raises(RefusedError) as caught:
            for run in begun(yaml.safe_load(text), place).runs.values():
                workflow = SimpleNamespace(configfiles=[place], is_main_process=True, modifier=MAIN)
                refusals.refuse_missing(workflow, run)
                refusals.refuse_missing_here(run)
        return str(caught.value)

    head = "run: soil\nworkload: composition\n"
    said = refused(head + "samples: gone.tsv\n")
    assert said.startswith("my.yaml:3: samples: gone.tsv: this file does not exist")
    labels = "labels:\n  column: lake\n"
    said = refused(head + "samples: samples.tsv\n" + labels)
    assert said.startswith("my.yaml:5: labels: samples.tsv: there is no column 'lake'")
    said = refused(head + "samples: samples.tsv\n" + labels + "  file: kinds.tsv\n")
    assert said.startswith("my.yaml:5: labels: kinds.tsv: there is no column 'lake'")
    said = refused(head + "samples: samples.tsv\n" + labels + "  file: gone.tsv\n")
    assert said.startswith("my.yaml:6: labels: gone.tsv: this file does not exist")
    (soil / "deep").mkdir()
    text = head + "samples: samples.tsv\n"
    (soil / "my.yaml").write_text(text)
    monkeypatch.chdir(soil / "deep")
    with pytest.raises(RefusedError) as caught:
        begun(yaml.safe_load(text), soil / "my.yaml")
    said = str(caught.value)
    assert said.startswith("../my.yaml:3: samples: samples.tsv: this file does not exist")
    assert said.endswith("It is there seen from ..; so type: cd .. && featuremill run my.yaml")


@pytest.mark.parametrize("key", ["translate", "workload"])
def test_rules_may_make_the_files_of_a_sheet_but_not_the_sheet(key, soil):
    """Where another workflow imports this one."""
    plain = {"run": "soil", "samples": "samples.tsv", "workload": "composition"}
    asked = next(config for config in (plain, SOIL) if key in config)
    (soil / "samples.tsv").write_text("sample\tfile\na\tclean/a.fa\nb\tb.fa\n")
    imported = SimpleNamespace(namespace="m", is_main_snakefile=lambda: False)
    workflow = SimpleNamespace(configfiles=[], is_main_process=True, modifier=imported)
    asked = {name: asked[name] for name in asked if name not in ("heads", "verdicts")}
    found = validate(asked, "config", {})

    def refuse(is_made):
        for run in found.runs.values():
            refusals.refuse_missing(workflow, run, is_made)
        refusals.refuse_missing_of_steps(workflow, found, is_made)

    refuse({"clean/a.fa"}.__contains__)
    said = r"samples\.tsv:2: clean/a\.fa: this file does not exist"
    with pytest.raises(RefusedError, match=said):
        refuse({"clean/b.fa"}.__contains__)
    (soil / "samples.tsv").unlink()
    with pytest.raises(RefusedError, match="but not the sheet itself"):
        refusals.refuse_sheet(workflow, found)


def test_labels_are_checked_by_the_features_that_a_head_reads(soil, runs):
    """Those of a finished run may have samples where the project has none, and the reverse."""
    (soil / "bare.tsv").write_text("id\tkind\nc1\tx\nc2\ty\n")
    known = soil / "results/known"
    known.mkdir(parents=True)
    (known / "manifest.json").touch()
    bare = {**GC, "labels": "bare.tsv", "of": "results/known"}
    begun({**SOIL, "verdicts": None, "heads": {"gc": bare}})
    with pytest.raises(RefusedError, match=r"heads.gc.column: results/known is a run without sa"):
        begun({**SOIL, "verdicts": None, "heads": {"gc": {**ALONE, "of": "results/known"}}})
    of_samples = {**GC, "of": str(runs[0])}
    none = {"run": "none", "inputs": "a.fa", "workload": "composition"}
    begun({**none, "heads": {"gc": of_samples, "alone": {**ALONE, "of": str(runs[0])}}})
    begun({**none, "heads": {"gc": {**of_samples, "group": "patient"}}})
    with pytest.raises(RefusedError, match="no column 'sample'; add it"):
        begun({**none, "heads": {"gc": {**of_samples, "labels": "bare.tsv"}}})


def begun(config, *files):
    """Validate a config, read from these `files`, as the main process does before the first
    job."""
    workflow = SimpleNamespace(configfiles=files, is_main_process=True, modifier=MAIN)
    found = validated(config, workflow)
    refusals.refuse_missing_of_steps(workflow, found)
    return found


# ---- the whole line ----

ESM2 = {"workload": "esm2", "options": {"model": "mill_t6_8M"}, "shards": {"cost": 40_000}}
LINE = SOIL | {"translate": {"by": "chunks", "window": 150}, "verdicts": {"by": "mean"}}
LINE["features"] = {
    "proteins": {**ESM2, "device": "cpu", "outputs": ["parquet"]},
    "letters": {**OF, "of": "proteins", "outputs": ["tsv", "parquet"]},
}
LINE["heads"] = {"gc": {**GC, "group": "id", "vectors": ["mean_layer_6", "composition"]}}
MADE = (
    *("verdicts.tsv", "predictions/gc.tsv", "predictions/gc.missing.tsv"),
    *("heads/gc/held_out.parquet", "heads/gc/missing.tsv"),
    *("letters/embeddings.tsv", "letters/failed.tsv"),
    *(f"translate/{name}" for name in names_of.SHEETS.values()),
    *(f"translate/sample={part}/translate.json" for part in "123"),
)


def gc_of(letters):
    return "gc" if sum(map(letters.count, "GC")) > len(letters) / 2 else "at"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_samples_of_reads_come_to_their_verdicts_through_kills(tmp_path, environment):
    """Reads of the phage λ in three parts, whose ids are the same: what is killed twice and typed
    again ends as what was left alone, and each verdict is that of its sample's own read."""
    place = debian.unpacked("bowtie2-examples", tmp_path)
    fastq = place / "usr/share/doc/bowtie2/examples/reads/reads_1.fq.gz"
    reads = gzip.decompress(fastq.read_bytes()).decode().split("\n")[1::4]
    of_sample = {
        part: [(f"read_{n}", read) for n, read in enumerate(reads[start : start + 80])]
        for part, start in (("1", 0), ("2", 3_300), ("3", 6_600))
    }
    desks = []
    for name in ("alone", "killed"):
        desks.append(Desk(tmp_path / name, environment))
        desks[-1].folder.mkdir()
        write_sheet(desks[-1].folder, of_sample, lane={"1": "x", "2": "y", "3": "y"})
        known = [(part, *one) for part, records in of_sample.items() for one in records[:60]]
        rows = [f"{part}\t{id}\t{gc_of(read)}" for part, id, read in known]
        (desks[-1].folder / "kinds.tsv").write_text("\n".join(["sample\tid\tkind", *rows]) + "\n")
        (desks[-1].folder / "soil.yaml").write_text(json.dumps(LINE))
    alone, killed = desks
    words = ("featuremill", "run", "soil.yaml", "--cores", "2")
    alone.type(*words)
    for middle in ("translate/sample=2/translate.json", "proteins/store/parts/*/*.json"):
        process = killed.start(*words, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_for(lambda middle=middle: any((killed.folder / "results/soil").glob(middle)))
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    killed.type(*words)
    one, other = (desk.folder / "results/soil" for desk in desks)
    for name in MADE:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    tables = (pq.read_table(results / "proteins/embeddings.parquet") for results in (one, other))
    assert next(tables).equals(next(tables))
    assert "Nothing to be done" in killed.type(*words).text

    scores = {}
    for row in rows_of(other / "predictions/gc.tsv"):
        contig = row["id"].partition("_chunk_")[0]
        scores.setdefault((row["sample"], contig), []).append(float(row["score_gc"]))
    verdicts = {(row["sample"], row["contig"]): row for row in rows_of(other / "verdicts.tsv")}
    assert verdicts.keys() == {(s, id) for s, records in of_sample.items() for id, _ in records}
    for key, each in scores.items():
        assert float(verdicts[key]["score_gc"]) == pytest.approx(np.mean(each), abs=1e-6)
        assert int(verdicts[key]["fragments"]) == len(each)
    labelled = [
        verdicts[part, id]["verdict"] == gc_of(read)
        for part, records in of_sample.items()
        for id, read in records
        if (part, id) in scores
    ]
    assert np.mean(labelled) > 0.7
    # Another column of the sheet computes and translates nothing, and no part is made anew.
    times = {path: path.stat().st_mtime_ns for path in other.glob("*/store/parts/*/*.arrows")}
    times |= {path: path.stat().st_mtime_ns for path in other.glob("translate/*/translate.json")}
    write_sheet(killed.folder, of_sample, lane={"1": "x", "2": "x", "3": "y"})
    killed.type(*words)
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert [row["lane"] for row in rows_of(other / "letters/samples.tsv")] == ["x", "x", "y"]
