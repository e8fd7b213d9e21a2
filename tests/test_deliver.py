"""deliver: results shard by shard hold what results in the order of the input hold."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import read_sealed, write_sealed
from programs import Verbs, Workflow, flip, random_records, write_samples, written
from test_journal import Disk

import featuremill
from featuremill import features
from featuremill.base.errors import IntegrityError, UserError
from featuremill.config import read
from featuremill.features.index import Index
from featuremill.flow import preflight
from featuremill.merge import by_shard, clean, deliver
from featuremill.merge.command import merge
from featuremill.merge.deliver import Delivering
from featuremill.merge.export import export, export_of
from featuremill.merge.identities import lay_out
from featuremill.steps.transfer import Transfer
from featuremill.steps.transfer import command as transfer
from featuremill.store import delivered_shards, ours, row_order
from featuremill.store.results import Results

OUTPUTS = ["parquet_dataset"]
BY_SHARD = {"order": "shard", "outputs": OUTPUTS}
RECORDS = [
    *(("sp|P1|A_B", "MKVLA"), ("with/slash", "ACDEFGHIK"), ("twin", "MKVLA")),
    *(("refused", "MK*LA"), ("sp|P1|A_B", "MKVLA"), ("ünïcode🧬", "GGG")),
    *((f"r{n}", "ACDE" * (n + 1)) for n in range(30)),
    *random_records(60),
]
FAILING = [
    *random_records(40, 3),
    *(("bad", "RAISE"), ("twin of bad", "RAISE"), ("worse", "RAISEK"), ("refused", "REFVSE")),
]


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, environment):
    """Return a run whose shards are all extracted, and whose config asks for rows by shard."""
    verbs = Verbs(tmp_path_factory.mktemp("deliver"), environment)
    plan = verbs.plan(RECORDS, cost=300, **BY_SHARD)
    assert len(plan["shards"]) > 6
    verbs.extract(plan)
    ask(verbs, BY_SHARD)
    return verbs


def ask(verbs, config, **more):
    """Write down what the config asks for, as a workflow does."""
    about = {"run": "test", "inputs": ["in.fa"], "workload": "composition", "device": "cpu"}
    run = read(verbs.folder / written(about | config | more))
    preflight.write_run(run.model_copy(update={"folder": str(verbs.run_folder.root)}))


@pytest.fixture
def run(extracted, tmp_path):
    """Return a copy of that run's folder, to be damaged at will."""
    shutil.copytree(extracted.run_folder.root, tmp_path / "run")
    return Results(tmp_path / "run")


@pytest.fixture
def copied(extracted, tmp_path):
    """Return verbs on a copy of it in its place."""
    shutil.copytree(extracted.folder, tmp_path, dirs_exist_ok=True)
    return Verbs(tmp_path, extracted.environment)


def by_jobs(folder, outputs=OUTPUTS, num_threads=2):
    """Deliver all shards as jobs do; return what they say."""
    plan = folder.read_plan()
    groups = row_order.groups_of(plan)
    with closing(lay_out(folder, plan)) as identities:
        delivering = Delivering(folder, plan, outputs, identities)
        return [delivering.job(number, group, num_threads) for number, group in enumerate(groups)]


def rows(folder):
    """Return the rows of a folder's dataset, sorted by id."""
    table = ds.dataset(folder.root / "embeddings", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: (row.get("sample"), row["id"]))


def contents(folder):
    """Return the bytes of all that merge wrote by shard."""
    root = folder.root
    paths = [*(root / "embeddings").rglob("*.parquet"), root / "embeddings.ids.npy"]
    paths += [root / name for name in ("failed.tsv", "failed.fa", "notes.tsv")]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def compared(folder):
    """Merge in both orders; return the rows, which are the same, and both counts."""
    shard = merge(folder, OUTPUTS, 99, order="shard")
    found, lists = rows(folder), (folder.root / "failed.tsv").read_text()
    sequences = (folder.root / "failed.fa").read_text()
    whole = merge(folder, OUTPUTS, 99, order="input")
    pairs = zip(found, rows(folder), strict=True)
    assert not [row["id"] for row, other in pairs if row != other]  # a diff of all takes minutes
    assert (folder.root / "failed.tsv").read_text() == lists
    assert (folder.root / "failed.fa").read_text() == sequences
    assert shard.counts == whole.counts
    assert shard.row_order == "shard" and "row_order" not in whole.as_json()
    return found, whole.counts


def test_both_orders_hold_the_same_rows_and_the_input_has_no_trace_of_it(run):
    by_jobs(run)
    found, counts = compared(run)
    assert len(found) == counts.ok == len(dict(RECORDS)) - 1
    assert not {path.name for path in run.store.iterdir()} & {"delivered", "identities"}
    assert not (run.root / "embeddings.ids.npy").exists()
    merged = [set(merge(run, OUTPUTS, 0, order=order).as_json()) for order in ("input", "auto")]
    assert merged[0] == merged[1]


@settings(max_examples=15, deadline=None)
@given(
    num_jobs=st.integers(1, 9),
    block_bytes=st.sampled_from([1, 200, 2**20]),
    bucket=st.sampled_from([1, 7, 2**20]),
    chunk=st.sampled_from([1, 3000, 2**27]),
    num_threads=st.integers(1, 3),
    skipped=st.sets(st.integers(0, 8)),
)
def test_neither_jobs_nor_blocks_change_a_row(
    tmp_path_factory, extracted, num_jobs, block_bytes, bucket, chunk, num_threads, skipped
):
    """`skipped` are jobs that did not run: merge does their work."""
    place = tmp_path_factory.mktemp("any")
    folder = Results(place / "run")
    shutil.copytree(extracted.run_folder.root, folder.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_order, "LEAST_JOBS", num_jobs)
        patch.setattr(deliver, "BLOCK_BYTES", block_bytes)
        patch.setattr(by_shard, "ROWS_A_BUCKET", bucket)
        patch.setattr("featuremill.merge.shuffle.CHUNK_BYTES", chunk)
        by_jobs(folder, num_threads=num_threads)
        for number in skipped:
            (folder.root / f"receipts/delivered/{number:04d}.json").unlink(missing_ok=True)
        merge(folder, OUTPUTS, 0, num_threads, order="shard")
    some = features.open(folder.root, "composition")
    ids = some.ids_of(np.arange(some.num_rows))
    assert Index(some).rows_of(ids).tolist() == some.index().rows_of(ids).tolist()
    vectors = dict(zip(ids, some.take(np.arange(some.num_rows)), strict=True))
    wanted = dict(RECORDS)
    del wanted["refused"]
    assert set(vectors) == set(wanted)
    for id, sequence in wanted.items():
        assert vectors[id] == pytest.approx(composition(sequence))
    shutil.rmtree(place)


def composition(sequence):
    return [sequence.count(letter) / len(sequence) for letter in "ACDEFGHIKLMNPQRSTVWY"]


@pytest.mark.parametrize(
    ("workload", "options", "kinds"),
    [
        ("bulky", {}, {"string", "int64", "struct", "list"}),
        ("residues", {"last": True}, {"fixed_size_list", "list"}),
    ],
)
def test_both_orders_hold_the_same_rows_of_every_kind_of_column(
    tmp_path, environment, workload, options, kinds
):
    """Of the toys, each of whose values tells whose it is; shards of several batches, samples."""
    verbs = Verbs(tmp_path, environment)
    records = [(id, text.replace("W", "V")) for id, text in random_records(60, 8)]
    of_sample = {"b": [*records[:40], ("twin", records[50][1])]}
    of_sample |= {"a": [*records[30:], ("p0", records[1][1])]}
    config = {**BY_SHARD, **write_samples(tmp_path, of_sample)}
    plan = verbs.plan([], workload, options, cost=16, **config)
    verbs.extract(plan)
    folder = verbs.run_folder
    assert len(plan["shards"]) > 2
    by_jobs(folder)
    found, counts = compared(folder)
    assert counts.ok == len(found) == 40 + 1 + 30 + 1
    table = ds.dataset(folder.root / "embeddings", partitioning="hive").to_table()
    assert kinds <= {str(type).partition("<")[0] for type in table.schema.types}


def test_files_are_on_the_disk_before_a_job_says_so(run, monkeypatch):
    disk, there = Disk(monkeypatch), []
    write = delivered_shards.Delivered.write

    def told(self, path, **more):
        for place in (delivered_shards.folder_of(run, shard.key) for shard in self.shards):
            for made in (place, *place.iterdir()):
                there.append(disk.holds(made) == (made.read_bytes() if made.is_file() else True))
        write(self, path, **more)

    monkeypatch.setattr(delivered_shards.Delivered, "write", told)
    by_jobs(run)
    assert len(there) >= 4 * len(run.read_plan().shards) and all(there)


def test_what_results_say_of_versions_is_delivered_anew(run):
    """The part is the same, and its receipt is of another Python."""
    plan = run.read_plan()
    by_jobs(run)
    path = run.receipt(plan.recipe, plan.shards[1].shard)
    told = read_sealed(path)
    write_sealed(path, told | {"versions": told["versions"] | {"python": "3.0"}})
    assert sum(job.num_kept for job in by_jobs(run)) == len(plan.shards) - 1
    merge(run, OUTPUTS, 0, order="shard")
    attributes = [
        json.loads(json.loads(pq.read_schema(file).metadata[b"featuremill"])["versions"])
        for file in sorted((run.root / "embeddings").iterdir())
    ]
    is_of_it = [number == 1 for number in range(len(plan.shards))]
    assert [about["python"] == "3.0" for about in attributes] == is_of_it


def test_what_was_delivered_of_another_part_is_not_known(run):
    """Another part, computed anew, has the times of the first."""
    plan = run.read_plan()
    by_jobs(run)
    path = run.receipt(plan.recipe, plan.shards[1].shard)
    write_sealed(path, read_sealed(path) | {"part": "0" * 32})
    with closing(lay_out(run, plan)) as identities:
        known = Delivering(run, plan, OUTPUTS, identities).known()
    assert sorted(known) == [n for n in range(len(plan.shards)) if n != 1]


def test_other_programs_read_the_files_as_one_table(run):
    merge(run, OUTPUTS, 0, order="shard")
    folder = run.root / "embeddings"
    assert len(list(folder.glob("*.parquet"))) == len(run.read_plan().shards)
    wanted = sorted(dict(RECORDS).keys() - {"refused"})
    by_polars = polars.scan_parquet(f"{folder}/*.parquet").select("id").collect()["id"].to_list()
    assert sorted(by_polars) == wanted
    (found,) = zip(*duckdb.sql(f"select id from '{folder}/*.parquet'").fetchall(), strict=True)
    assert sorted(found) == wanted
    assert sorted(ds.dataset(folder).to_table()["id"].to_pylist()) == wanted
    assert sorted(pd.read_parquet(folder)["id"]) == wanted
    for file in folder.iterdir():
        about = json.loads(pq.read_schema(file).metadata[b"featuremill"])
        assert about["recipe"] == run.read_plan().recipe


def test_rows_by_their_ids(run, tmp_path):
    merge(run, OUTPUTS, 0, order="shard")
    ids = ["r29", "twin", "ünïcode🧬", "r0", "with/slash", "r0"]
    some = featuremill.load(run.root, ids=ids)
    assert list(some.index) == ids
    for id, vector in zip(ids, some["composition"], strict=True):
        assert vector == pytest.approx(composition(dict(RECORDS)[id]))
    assert list(featuremill.load(run.root, ids="twin").index) == ["twin"]
    recipe = run.read_plan().recipe
    assert (some.attrs["workload"], some.attrs["recipe"]) == ("composition", recipe)
    with pytest.raises(UserError, match="there is no record 'refused', 'nobody' in it"):
        featuremill.load(run.root, ids=["r1", "refused", "nobody"])
    export_of(run, ["npy", "parquet"], tmp_path / "few", ids[:5])
    table = pq.read_table(tmp_path / "few" / "embeddings.parquet")
    assert table["id"].to_pylist() == ids[:5]
    npy = np.load(tmp_path / "few" / "embeddings.npy")
    assert npy[:, :20].tolist() == table["composition"].to_pylist()
    known = {row["id"]: row for row in pq.read_table(run.root / "embeddings").to_pylist()}
    assert table.to_pylist() == [known[id] for id in ids[:5]]


def test_equally_near_records_come_by_their_sequences_in_both_orders(run, tmp_path):
    """All of `r…` have one vector, so that only ties tell which of them are found and vote."""
    labels = {f"r{n}": "xyz"[n % 3] for n in range(0, 30, 2)}
    kinds = "".join(f"{id},{kind}\n" for id, kind in labels.items())
    (tmp_path / "kinds.csv").write_text(f"id,kind\n{kinds}")
    found = []
    for order in ("input", "shard"):
        merge(run, OUTPUTS, 0, order=order)
        hits = featuremill.search(run.root, ["r3", "r20"], k=6, column="composition")
        output = tmp_path / f"{order}.tsv"
        chosen = {"labels": str(tmp_path / "kinds.csv"), "column": "kind", "k": 3}
        transfer.transfer(run.root, None, Transfer(**chosen, vectors="composition"), output)
        _, *table = output.read_text("utf-8").splitlines()
        found.append((hits.to_dict("records"), sorted(table)))
    assert found[0] == found[1]
    shas = {id: hashlib.sha256(text.encode()).hexdigest() for id, text in RECORDS}
    nearest = [hit["id"] for hit in found[0][0][:6]]
    alike = [id for id in shas if id[0] == "r" and id != "refused"]
    assert nearest == sorted(alike, key=shas.get)[:6]


def test_an_exported_matrix_gives_no_id_the_vector_of_another_one(run):
    """It is in the order of the input, and the table is not."""
    merge(run, OUTPUTS, 0, order="shard")
    export(run, ["npy", "parquet"])
    for ids, vectors in (
        featuremill.load_matrix(run.root, "composition"),
        next(features.open(run.root, "composition").blocks()),
    ):
        for id, vector in zip(ids, vectors, strict=True):
            assert vector == pytest.approx(composition(dict(RECORDS)[id]))


def test_a_table_without_its_index_is_read_all_the_same(run):
    merge(run, OUTPUTS, 0, order="shard")
    (run.root / "embeddings.ids.npy").write_bytes(b"no index")
    assert list(featuremill.load(run.root, ids=["r3", "twin"]).index) == ["r3", "twin"]


@pytest.mark.parametrize("is_delivered", [False, True])
def test_a_damaged_part_ends_it_before_or_after_it_was_delivered(run, is_delivered):
    plan = run.read_plan()
    if is_delivered:
        by_jobs(run)
    flip(run.part(plan.recipe, plan.shards[2].shard))
    with pytest.raises(IntegrityError, match="its bytes are not those that were written"):
        merge(run, OUTPUTS, 0, order="shard")
    assert not run.delivery.exists()
    assert not run.receipt(plan.recipe, plan.shards[2].shard).exists(), "it is computed anew"


@pytest.mark.parametrize("is_told", [False, True])
def test_a_damaged_delivered_file_is_written_again(run, is_told):
    by_jobs(run)
    (file, *_) = sorted((run.store / "delivered").glob("*/parquet_dataset-0"))
    flip(file)
    if is_told:
        assert sum(job.num_kept for job in by_jobs(run)) == len(run.read_plan().shards) - 1
    compared(run)


def test_a_row_of_another_sequence_ends_it(run):
    table = pq.read_table(run.records)
    sha256 = table["sha256"].to_pylist()
    first, second = (n for n, id in enumerate(table["id"].to_pylist()) if id in ("r1", "r2"))
    sha256[first], sha256[second] = sha256[second], sha256[first]
    place = table.schema.get_field_index("sha256")
    changed = table.set_column(place, table.schema.field(place), [pa.array(sha256, pa.binary(32))])
    pq.write_table(changed, run.records)
    digest = ours.sha256_of(run.records)
    write_sealed(run.plan, read_sealed(run.plan) | {"records_sha256": digest})
    wrong = rf"{run.store}/parts/\w+/\w+\.arrows: a row of this part is not that of its record"
    with pytest.raises(IntegrityError, match=wrong):
        by_jobs(run)
    for order in ("shard", "input"):
        with pytest.raises(IntegrityError, match=wrong):
            merge(run, OUTPUTS, 0, order=order)


@pytest.mark.parametrize("key", ["rows", "failed", "files"])
def test_an_unaccounted_record_ends_it(run, key):
    by_jobs(run)
    path = run.root / "receipts/delivered/0001.json"
    told = read_sealed(path)
    shard = told["shards"][0]
    if key == "files":
        shard["files"][0]["rows"] -= 1
    else:
        shard[key] += 1
        (folder,) = (run.store / "delivered").glob(shard["key"])
        rows = pa.record_batch(
            [pa.array([0]), pa.array(["x"]), pa.array([b"M"], pa.large_binary())],
            schema=deliver.OF_FAILURES,
        )
        with pa.ipc.new_file(str(folder / deliver.FAILURES), deliver.OF_FAILURES) as file:
            file.write_batch(rows)
    write_sealed(path, told)
    with pytest.raises(IntegrityError, match="records were delivered and"):
        merge(run, OUTPUTS, 0, order="shard")
    assert not run.delivery.exists()


def test_of_an_edited_input_only_shards_with_other_records_are_delivered_again(copied):
    verbs, folder = copied, copied.run_folder
    by_jobs(folder)
    merge(folder, OUTPUTS, 0, order="shard")
    before = contents(folder)
    plan = verbs.plan([("first", "WWWWWWWWWW"), *RECORDS], cost=300, order="shard", outputs=OUTPUTS)
    verbs.extract(plan)
    jobs = by_jobs(folder)
    num_shards = len(plan["shards"])
    assert sum(job.num_kept for job in jobs) == num_shards - 1, "all moved, one has a new record"
    merge(folder, OUTPUTS, 0, order="shard")
    after = contents(folder)
    assert sum(after.get(name) != content for name, content in before.items()) <= 3
    assert len(list((folder.store / "delivered").iterdir())) == num_shards
    assert len(list((folder.store / "identities").iterdir())) == 1
    compared(folder)


def test_failed_records_are_listed_and_tried_again(tmp_path, environment):
    verbs = Verbs(tmp_path, environment)
    verbs.extract(verbs.plan(FAILING, "poison", cost=10, max_failed=9, **BY_SHARD))
    folder = verbs.run_folder
    for _ in range(2):
        by_jobs(folder)
        found, counts = compared(folder)
        assert counts.failed == 3 and len(found) == len(FAILING) - 4
        assert counts.refused == 1
        verbs("retry", folder.root)
        verbs.extract(json.loads(folder.plan.read_text()))
    with pytest.raises(UserError, match="3 of 44 records failed and max_failed is 2"):
        merge(folder, OUTPUTS, 2, order="shard")
    assert not folder.delivery.exists()


def test_samples_are_a_folder_each(tmp_path, environment):
    verbs = Verbs(tmp_path, environment)
    sheets = {"a": RECORDS[:20], "b.b": RECORDS[10:40], "c": [("x", "WWW")]}
    sheets |= {"empty": [("only", "M*M")]}
    asked = write_samples(tmp_path, sheets, place=dict.fromkeys(sheets, "sea"))
    verbs.extract(verbs.plan([], cost=100, **BY_SHARD, **asked))
    folder = verbs.run_folder
    by_jobs(folder)
    found, counts = compared(folder)
    assert counts.refused == 2 and {row["sample"] for row in found} == {"a", "b.b", "c"}
    merge(folder, OUTPUTS, 0, order="shard")
    names = {path.name for path in (folder.root / "embeddings").iterdir()}
    assert names == {"sample=a", "sample=b.b", "sample=c"}
    ids = ["c/x", "b.b/r9", "a/r9", "a/twin"]
    assert list(featuremill.load(folder.root, ids=ids).index) == ["x", "r9", "r9", "twin"]
    some = features.open(folder.root, "composition")
    known = some.rows_of(ids)
    assert some.ids_of(np.array(list(known.values()))) == list(known) == ids
    assert len((folder.root / "samples.tsv").read_text().splitlines()) == 1 + len(sheets)
    export_of(folder, ["parquet"], tmp_path / "few", ids)
    few = pq.read_table(tmp_path / "few/embeddings.parquet")
    assert few.select(["sample", "id"]).to_pylist() == [
        {"sample": sample, "id": id}
        for sample, id in (("c", "x"), ("b.b", "r9"), ("a", "r9"), ("a", "twin"))
    ]


def test_parts_of_a_store_are_delivered_too(tmp_path, environment):
    (tmp_path / "store").mkdir()
    first, second = tmp_path / "first", tmp_path / "second"
    for place, records in ((first, RECORDS[:40]), (second, RECORDS)):
        place.mkdir()
        verbs = Verbs(place, environment)
        verbs.extract(verbs.plan(records, cost=300, store=str(tmp_path / "store"), **BY_SHARD))
        by_jobs(verbs.run_folder)
    folder = verbs.run_folder
    assert folder.read_plan().taken
    _, counts = compared(folder)
    assert counts.taken
    merge(folder, OUTPUTS, 0, order="shard")
    flip(tmp_path / folder.read_plan().taken[0].path)
    with pytest.raises(IntegrityError, match="its bytes are not those that were written"):
        merge(folder, OUTPUTS, 0, order="shard")
    assert not folder.plan.exists(), "the next run plans without it"


def test_what_goes_of_it_with_clean(run, caplog):
    by_jobs(run)
    merge(run, OUTPUTS, 0, order="shard")
    before = contents(run)
    files = list((run.root / "embeddings").iterdir())
    assert all(path.stat().st_nlink == 2 for path in files)
    going = clean.removable(run, "results")
    delivered = [path for path in going if "delivered" in path.parts and "store" in path.parts]
    assert clean.usage_of([path for path in delivered if path.stat().st_nlink > 1]).bytes == 0
    clean.remove(going, clean.folders_of(run, "results"))
    assert contents(run) == before
    assert all(path.stat().st_nlink == 1 for path in files)
    assert not (run.store / "delivered").exists() and not (run.store / "identities").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "sha256_of", lambda path: pytest.fail(f"it reads all of {path}"))
        assert ours.is_ours(run.root / "embeddings")


def test_what_a_person_changed_is_kept_and_changes_no_result(run):
    merge(run, OUTPUTS, 0, order="shard")
    before = contents(run)
    file = run.root / "embeddings" / "part-00001.parquet"
    file.write_bytes(b"mine")  # in place: the delivered file is the same one
    merge(run, OUTPUTS, 0, order="shard")
    assert contents(run) == before
    (kept,) = run.root.glob("embeddings.yours-*")
    assert (kept / file.name).read_bytes() == b"mine"


@pytest.mark.parametrize("has_links", [False, True])
def test_a_disk_without_second_names_has_copies(run, monkeypatch, has_links):
    def refuse(*_):
        raise OSError(95, "no such thing")

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    merge(run, OUTPUTS, 0, order="shard")
    compared(run)


def test_nothing_is_ok(tmp_path, environment):
    verbs = Verbs(tmp_path, environment)
    verbs.extract(verbs.plan([("a", "RAISE"), ("b", "RAISEK")], "poison", cost=1))
    folder = verbs.run_folder
    found, counts = compared(folder)
    assert found == [] and counts.failed == 2
    merge(folder, OUTPUTS, 2, order="shard")
    assert np.load(folder.root / "embeddings.ids.npy").shape == (2, 0)
    table = pq.read_table(folder.root / "embeddings" / "part-00000.parquet")
    assert table.num_rows == 0 and "letters" in table.column_names


def test_large_runs_come_by_shard_of_themselves(run, monkeypatch):
    plan = run.read_plan()

    def is_by_shard(*outputs, order="auto"):
        return row_order.is_by_shard(order, outputs, run, plan)

    assert not is_by_shard("parquet_dataset")
    assert is_by_shard("parquet_dataset", order="shard")
    monkeypatch.setattr(row_order, "FROM_RECORDS", plan.counts.planned)
    assert is_by_shard("parquet_dataset")
    assert not is_by_shard("parquet_dataset", order="input")
    assert not is_by_shard("parquet_dataset", "npy") and not is_by_shard()
    monkeypatch.setattr(row_order, "MOST_FILES", len(plan.sources) - 1)
    assert not is_by_shard("parquet_dataset"), "samples would make too many files"
    with pytest.raises(UserError, match="npy cannot be written shard by shard"):
        is_by_shard("parquet_dataset", "npy", order="shard")


def test_what_is_refused(copied, tmp_path):
    verbs, root = copied, copied.run_folder.root
    (tmp_path / "my.yaml").write_text("inputs: in.fa\nworkload: composition\norder: shard\n")
    said = verbs("plan", "results/other", "--config", "my.yaml", status=2)
    assert "my.yaml:3: order: parquet, per_protein_h5 cannot be written shard by shard" in said
    assert "from 0, and no 99" in verbs("deliver", root, "99", status=2)
    (tmp_path / "ids.txt").write_text("r1\nr2\nr1\n")
    words = ("export", root, "--to", "npy", "--ids", tmp_path / "ids.txt")
    assert "with --ids, name a folder, too" in verbs(*words, status=2)
    assert "'r1' is in it more than once" in verbs(*words, "--output", "few", status=2)
    ask(verbs, {"order": "input", "outputs": OUTPUTS})
    assert "order: shard in the config changes that" in verbs("deliver", root, status=2)


def test_commands_by_hand(copied, tmp_path):
    verbs, folder = copied, copied.run_folder
    verbs("deliver", folder.root, "--lay-out")
    assert (folder.store / "identities").is_dir() and not (folder.store / "delivered").exists()
    verbs("deliver", folder.root)
    verbs("merge", folder.root)
    assert json.loads(folder.delivery.read_text())["row_order"] == "shard"
    lines = (folder.root / "run.log").read_text().splitlines()
    assert sum(" deliver " in line for line in lines) == row_order.LEAST_JOBS
    (tmp_path / "ids.txt").write_text("r1\n\n r2 \n")
    verbs("export", folder.root, "--to", "tsv", "--ids", "ids.txt", "--output", "few")
    assert len((tmp_path / "few/embeddings.tsv").read_text().splitlines()) == 3
    said = verbs.type("featuremill", "status", folder.root, "--verify").text
    unwrapped = " ".join(said.split())  # lines are as long as the folder's path lets them be
    assert unwrapped.startswith(f"{folder.root}: done: 94 of 96 records have features")


def test_a_run_with_jobs_that_deliver(tmp_path, environment):
    workflow = Workflow(tmp_path, environment, random_records(240))
    workflow.ask(order="shard", outputs="parquet_dataset")
    workflow()
    folder = workflow.run_folder
    assert " deliver " in (folder.root / "run.log").read_text()
    assert len(workflow.news()) == 240
    before = contents(folder)
    assert len(list((folder.root / "receipts/delivered").iterdir())) == row_order.LEAST_JOBS
    assert "Nothing to be done" in workflow()
    workflow("--forceall", "merge")
    assert workflow.news() == [] and contents(folder) == before
    lines = (folder.root / "run.log").read_text().splitlines()
    jobs = [line for line in lines if " deliver " in line]
    assert len(jobs) == 2 * row_order.LEAST_JOBS
    assert all("kept" in line for line in jobs[row_order.LEAST_JOBS :])
    workflow.write(random_records(240)[1:])
    workflow("merge")
    assert workflow.news() == [] and len(rows(folder)) == 239
    workflow.ask(order="input")
    workflow("merge")
    assert workflow.news() == [] and len(rows(folder)) == 239
    assert not (folder.store / "delivered").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_delivering_jobs_survive_fifty_kills(tmp_path, environment):
    """Each is killed at a random moment, and the next one goes on."""
    verbs = Verbs(tmp_path, environment)
    verbs.extract(verbs.plan(random_records(1200, 5), cost=2000, **BY_SHARD))
    ask(verbs, BY_SHARD)
    folder = verbs.run_folder
    shutil.copytree(folder.root, tmp_path / "whole")
    whole = Results(tmp_path / "whole")
    by_jobs(whole)
    merge(whole, OUTPUTS, 0, order="shard")
    rng = random.Random(5)
    num_kills, moments = 0, set()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(folder.root)], **pipes) as forking:

        def start():
            forking.stdin.write("\n")
            forking.stdin.flush()
            return int(forking.stdout.readline())

        began = time.monotonic()
        start()
        assert int(forking.stdout.readline()) == 0
        seconds = time.monotonic() - began
        assert forget(folder)
        while num_kills < 50:
            pid = start()
            time.sleep(rng.uniform(0, seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if int(forking.stdout.readline()) == -signal.SIGKILL:
                num_kills += 1
                there = folder.store / "delivered"
                moments.add((len([*there.glob("[0-9a-f]*")]), len([*there.glob(".*")])))
            if rng.random() < 0.5:  # else the next one goes on
                forget(folder)
        forking.stdin.close()
    assert len(moments) > 10, "at moments that differ"
    verbs("deliver", folder.root)
    verbs("merge", folder.root)
    assert contents(folder) == contents(whole)
    assert not [*(folder.store / "delivered").glob(".*")]


def forget(folder):
    """Remove all that was delivered; return whether there was anything."""
    places = (folder.store / "delivered", folder.store / "identities")
    found = [place for place in (*places, folder.root / "receipts/delivered") if place.exists()]
    for place in found:
        shutil.rmtree(place)
    return len(found) == 3


KILLED = """
import os, signal, sys
from featuremill import __main__
from featuremill.merge import deliver
for _ in sys.stdin:
    pid = os.fork()
    if not pid:
        os._exit(__main__.main(["deliver", sys.argv[1], "--threads", "2"]))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
