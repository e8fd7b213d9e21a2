"""merge: every record accounted for, every vector with its own id, nothing damaged delivered."""

import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from plans import read_sealed, write_sealed
from programs import Verbs, rows_of

import featuremill
from featuremill import __main__
from featuremill.base.errors import IntegrityError, UserError
from featuremill.config import Config
from featuremill.kit.hdf5 import dataset_name
from featuremill.merge import accounts, gather, provenance, shuffle
from featuremill.merge.command import _say, merge, merge_partial
from featuremill.merge.provenance import carried
from featuremill.outputs import parquet, parquet_dataset
from featuremill.plan.announce import large_outputs
from featuremill.plan.retry import retry
from featuremill.store.delivery import Delivery
from featuremill.store.files import temporary_file
from featuremill.store.formats import RECORD
from featuremill.store.journal import Journal, part_schema
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import Part, order_of, read_shard
from featuremill.store.results import Results

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
ALL = ["parquet", "per_protein_h5", "npy"]
RECORDS = [
    *(("sp|P1|A_B", "MKVLA"), ("with/slash", "ACDEFGHIK"), ("100%", "WWWWWW"), ("twin", "MKVLA")),
    *(("refused", "MK*LA"), ("sp|P1|A_B", "MKVLA"), ("ünïcode🧬", "GGG"), (".", "PPPP")),
    *((f"r{n}", "ACDE" * (n + 1)) for n in range(30)),
]


def composition(sequence):
    return [sequence.count(letter) / len(sequence) for letter in LETTERS]


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, environment):
    """Return the verbs of a run whose shards are all extracted."""
    verbs = Verbs(tmp_path_factory.mktemp("merge"), environment)
    plan = verbs.plan(RECORDS, cost=300)
    assert len(plan["shards"]) > 3
    verbs.extract(plan)
    return verbs


@pytest.fixture
def run(extracted, tmp_path):
    """Return a copy of that run's folder, to be damaged at will."""
    shutil.copytree(extracted.run_folder.root, tmp_path / "run")
    return Results(tmp_path / "run")


def refused(run, sentence, outputs=ALL, error=IntegrityError):
    with pytest.raises(error, match=sentence):
        merge(run, outputs, 0)


def expected():
    """Return id → sequence of what has to come out, in order."""
    out = dict(RECORDS)
    del out["refused"]
    return out


def test_every_output_has_every_id_with_its_own_vector(run):
    result = merge(run, ALL, 0)
    told = {"input": 38, "ok": 36, "failed": 0, "refused": 1, "duplicate": 1}
    assert result.counts.as_json() == told
    table = pq.read_table(run.root / "embeddings.parquet")
    assert table["id"].to_pylist() == list(expected())
    for row in table.to_pylist():
        assert row["composition"] == pytest.approx(composition(expected()[row["id"]]))
        assert row["length"] == len(expected()[row["id"]])
    both = np.load(run.root / "embeddings.npy")
    assert both[:, :20].tolist() == table["composition"].to_pylist()
    assert both[:, 20:].tolist() == table["hydropathy"].to_pylist()
    with h5py.File(run.root / "per-protein.h5") as file:
        assert len(file) == 36
        assert file.attrs["columns"] == "composition,hydropathy"
        for id, sequence in expected().items():
            dataset = file[dataset_name(id)]
            assert dataset.attrs["original_id"] == id
            assert dataset[:20] == pytest.approx(composition(sequence))


def test_the_failed_table_has_every_record_without_values(run):
    merge(run, ALL, 0)
    rows = rows_of(run.root / "failed.tsv")
    told = [(row["id"], row["line"], row["status"]) for row in rows]
    assert told == [("refused", "9", "refused")]
    assert "stop codon" in rows[0]["reason"]


def test_a_table_is_loaded_by_its_own_path_and_partial_results_only_so(run):
    plan = json.loads(run.plan.read_text())
    part = run.part(plan["recipe"], plan["shards"][0]["shard"])
    kept = part.read_bytes()
    part.unlink()
    merge_partial(run, ["parquet"])
    with pytest.raises(UserError, match="these results are partial") as refused:
        featuremill.load(run.root)
    (call,) = re.findall(r"featuremill\.load\('(.*)'\)$", str(refused.value))
    some = featuremill.load(call)
    part.write_bytes(kept)
    merge(run, ["parquet", "parquet_dataset", "npy"], 0)
    whole = featuremill.load(run.root)
    assert 0 < len(some) < len(whole)
    for table in (run.root / "embeddings.parquet", str(run.root / "embeddings")):
        pd.testing.assert_frame_equal(featuremill.load(table), whole)
        ids, vectors = featuremill.load_matrix(table, "composition")
        assert ids == list(whole.index) and vectors.shape == (len(ids), 20)
    (run.root / "cut.parquet").write_bytes(kept)
    for name, problem in (
        ("embeddings.npy", "this is no table of results;"),
        ("gone.parquet", "there is no such table;"),
        ("cut.parquet", "this is no table of results that is whole;"),
    ):
        with pytest.raises(UserError, match=problem):
            featuremill.load(run.root / name)


def test_results_load_in_python(run):
    merge(run, ALL, 0)
    frame = featuremill.load(run.root)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.index) == list(expected())
    assert frame.loc["with/slash", "composition"] == pytest.approx(composition("ACDEFGHIK"))
    with pytest.raises(UserError, match="choose one of composition, hydropathy"):
        featuremill.load_matrix(run.root)
    ids, mapped = featuremill.load_matrix(run.root, "composition")
    assert isinstance(mapped, np.memmap) and mapped.shape == (36, 20)
    np.save(run.root / "other.npy", mapped[1:])  # its rows would be taken for those of the ids
    (run.root / "other.npy").replace(run.root / "embeddings.npy")
    with pytest.raises(UserError, match=r"embeddings\.npy: this is not what merge wrote"):
        featuremill.load_matrix(run.root, "composition")
    merge(run, ["parquet"], 0)
    again, read = featuremill.load_matrix(run.root, "hydropathy")
    assert again == ids and read.shape == (36, 1)
    with pytest.raises(UserError, match="it has composition, hydropathy"):
        featuremill.load_matrix(run.root, "nothing")
    with pytest.raises(UserError, match="no such result"):
        featuremill.load(run.root / "elsewhere")


def result_bytes(run):
    files = [path for path in run.root.glob("*") if path.suffix in {".h5", ".npy", ".parquet"}]
    files += [*run.root.glob("embeddings/*"), run.root / "failed.tsv", run.root / "failed.fa"]
    return {str(path.relative_to(run.root)): path.read_bytes() for path in files}


def test_small_blocks_and_twice_give_the_same_bytes(run, monkeypatch):
    merge(run, ALL, 0)
    before = result_bytes(run)
    assert len(before) == 6  # with records.parquet
    merge(run, ALL, 0)
    assert before == result_bytes(run)
    monkeypatch.setattr(gather, "BLOCK_BYTES", 500)
    merge(run, ALL, 0)
    assert before["embeddings.npy"] == (run.root / "embeddings.npy").read_bytes()
    assert before["per-protein.h5"] == (run.root / "per-protein.h5").read_bytes()


def test_the_number_of_threads_changes_no_byte(run, monkeypatch):
    monkeypatch.setattr(gather, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(shuffle, "CHUNK_BYTES", 700)
    monkeypatch.setattr(parquet_dataset, "ROWS_A_FILE", 7)
    found = []
    for num_threads in (1, 3, 8):
        merge(run, [*ALL, "parquet_dataset"], 0, num_threads)
        found.append(result_bytes(run))
        assert len(found[-1]) == 6 + 6, "36 rows, 7 a file"
    assert found[0] == found[1] == found[2]


def test_a_dataset_is_the_table_in_files(run, monkeypatch):
    monkeypatch.setattr(parquet_dataset, "ROWS_A_FILE", 10)
    result = merge(run, ["parquet", "parquet_dataset"], 0)
    folder = run.root / "embeddings"
    names = [f"part-{number:05d}.parquet" for number in range(4)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert [pq.read_metadata(folder / name).num_rows for name in names] == [10, 10, 10, 6]
    whole = pq.read_table(run.root / "embeddings.parquet")
    assert pq.read_table(folder).equals(whole)
    assert pd.read_parquet(folder)["id"].tolist() == list(expected())
    for name in names:
        assert pq.read_schema(folder / name).metadata == whole.schema.metadata
    told = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, check=True)
    about = result.outputs["embeddings"]
    assert about.sha256 == hashlib.sha256(told.stdout).hexdigest()
    assert about.bytes == sum((folder / name).stat().st_size for name in names)


def test_a_dataset_alone_loads_and_replaces_the_last_one(run, monkeypatch):
    merge(run, ["parquet_dataset"], 0)
    assert len(list((run.root / "embeddings").iterdir())) == 1
    monkeypatch.setattr(parquet_dataset, "ROWS_A_FILE", 20)
    merge(run, ["parquet_dataset", "npy"], 0)
    (run.root / "embeddings" / ".snakemake_timestamp").touch()  # as Snakemake does
    assert list(featuremill.load(run.root).index) == list(expected())
    assert featuremill.load_matrix(run.root, "composition")[1].shape == (36, 20)
    assert __main__.main(["report", str(run.root)]) == 0
    assert "All 36 records, by composition:" in (run.root / "report.html").read_text()
    merge(run, ["npy"], 0)
    assert not (run.root / "embeddings").exists()
    assert {path.stat().st_mode & 0o777 for path in run.root.iterdir() if path.is_file()} == {0o644}


def test_a_dataset_on_a_full_disk_is_an_error_and_not_half_a_result(run, monkeypatch):
    class Full(parquet.Writer):
        def write(self, block):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "Writer", Full)
    refused(run, "No space left", ["parquet_dataset"], error=OSError)
    assert not [path for path in run.root.iterdir() if "embeddings" in path.name]
    assert not (run.root / "manifest.json").exists()


def rewrite(run, values, row_of):
    """Write every part anew, with the rows that `row_of` makes of a digest, and its receipt."""
    plan = json.loads(run.plan.read_text())
    for shard in plan["shards"]:
        path = run.part(plan["recipe"], shard["shard"])
        path.unlink()
        written = Journal(path, part_schema(values), 1)
        for digest in read_shard(run.shard(shard["shard"]))["sha256"].to_pylist():
            row = {"sha256": digest, "status": "ok", "reason": None, **row_of(digest)}
            written.commit(pa.RecordBatch.from_pylist([row], schema=part_schema(values)))
        receipt = read_sealed(run.receipt(plan["recipe"], shard["shard"]))
        receipt["part"] = written.finish()
        write_sealed(run.receipt(plan["recipe"], shard["shard"]), receipt)


def test_every_output_keeps_the_number_type_of_the_values(run):
    """A workload that delivers float16 gets float16 everywhere, the numbers unchanged."""
    pair = pa.list_(pa.float16(), 2)
    values = pa.schema({"pooled": pair, "residues": pa.list_(pair)})

    def vector(digest):
        return (np.frombuffer(digest[:2], np.uint8).astype(np.float16) / 7).tolist()

    rewrite(run, values, lambda d: {"pooled": vector(d), "residues": [vector(d)] * 3})
    merge(run, ["parquet", "parquet_dataset", "npy", "per_protein_h5", "per_residue_h5"], 0)
    array = np.load(run.root / "embeddings.npy")
    assert array.dtype == np.float16
    for path in (run.root / "embeddings.parquet", run.root / "embeddings"):
        table = pq.read_table(path)
        assert table.schema.field("pooled").type == pair
        assert table["pooled"].to_pylist() == array.tolist()
    proteins, residues = (h5py.File(run.root / f"per-{what}.h5") for what in ("protein", "residue"))
    with proteins, residues:
        for id, digest in zip(table["id"].to_pylist(), table["sha256"].to_pylist(), strict=True):
            of_protein, of_residues = proteins[dataset_name(id)], residues[dataset_name(id)]
            assert (of_protein.dtype, of_residues.dtype) == ("f2", "f2")
            assert of_protein[:].tolist() == vector(bytes.fromhex(digest))
            assert of_residues[:].tolist() == [vector(bytes.fromhex(digest))] * 3
    assert featuremill.load_matrix(run.root, "pooled")[1].dtype == np.float16


@pytest.mark.parametrize(
    ("number", "said"), [(float("nan"), "not finite"), (float("inf"), "not finite"), (None, "no x")]
)
def test_an_ok_row_without_a_number_is_never_delivered(run, number, said):
    """Whatever the receipt says: this one is right about the bytes."""
    values = pa.schema({"x": pa.list_(pa.float32(), 1)})
    wrong = hashlib.sha256(b"GGG").digest()
    vector = None if number is None else [number]
    rewrite(run, values, lambda digest: {"x": vector if digest == wrong else [1.0]})
    refused(run, said, ["parquet", "npy"])
    assert {path.name for path in run.root.glob(".*")} == {RECORD, ".state"}
    assert not (run.root / "embeddings.parquet").exists()


def test_a_row_of_another_record_is_never_delivered(run, monkeypatch):
    """Rows are looked up by their place, and every one is compared with its record."""
    right = Part.row_numbers
    monkeypatch.setattr(Part, "row_numbers", lambda part: right(part)[::-1].copy())
    refused(run, "not that of its record", ["parquet"])


def test_parts_with_other_columns_are_refused(run):
    plan = json.loads(run.plan.read_text())
    rewrite(run, pa.schema({"x": pa.list_(pa.float32(), 1)}), lambda digest: {"x": [1.0]})
    one = plan["shards"][0]["shard"]
    path, receipt = run.part(plan["recipe"], one), run.receipt(plan["recipe"], one)
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    table = table.rename_columns([*table.column_names[:3], "y"])
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)
    write_sealed(receipt, read_sealed(receipt) | {"part": digest_of_file(path)})
    refused(run, "its columns are not those of the other parts", ["parquet"])


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(run, monkeypatch, caplog):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 7_000))
    with pytest.raises(UserError, match=r"embeddings\.npy 3\.0 kB, temporary files") as refused:
        merge(run, ["parquet", "npy"], 0)  # 36 × 21 × 4 bytes of values
    assert "has 7.0 kB free" in str(refused.value) and "featuremill clean" in str(refused.value)
    assert not [path for path in run.root.iterdir() if "embeddings" in path.name]
    with monkeypatch.context() as silent:  # a file system that says nothing of its size
        silent.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))
        merge(run, ["parquet", "npy"], 0)
    monkeypatch.setenv("FEATUREMILL_WITHOUT_ROOM", "1")
    monkeypatch.setattr(logging.getLogger("featuremill"), "propagate", True)
    merge(run, ["parquet", "npy"], 0)
    assert "continuing, as FEATUREMILL_WITHOUT_ROOM=1 is set" in caplog.text


def test_parts_swapped_with_their_digests_are_found(run):
    plan = json.loads(run.plan.read_text())
    first, second = (shard["shard"] for shard in plan["shards"][:2])
    shutil.copy(run.part(plan["recipe"], first), run.part(plan["recipe"], second))
    told = read_sealed(run.receipt(plan["recipe"], first)) | {"shard": second}
    write_sealed(run.receipt(plan["recipe"], second), told)
    with pytest.raises(IntegrityError):
        merge(run, ALL, 0)


def test_all_damaged_parts_are_set_aside_at_once(run):
    plan = json.loads(run.plan.read_text())
    for shard in plan["shards"][:3]:
        run.part(plan["recipe"], shard["shard"]).write_bytes(b"rubbish")
    run.receipt(plan["recipe"], plan["shards"][3]["shard"]).write_text("")
    refused(run, "3 more like it")
    left = [s for s in plan["shards"] if run.receipt(plan["recipe"], s["shard"]).exists()]
    assert len(left) == len(plan["shards"]) - 4


def test_old_results_never_stand_beside_new_ones(run):
    merge(run, ALL, 0)
    left = temporary_file(run.root / "embeddings.npy")
    merge(run, ["per_protein_h5"], 0)
    assert not (run.root / "embeddings.npy").exists()
    assert not (run.root / "embeddings.parquet").exists()
    assert not left.exists()
    (run.root / "embeddings.parquet").write_bytes(b"from elsewhere")
    with pytest.raises(UserError, match="is parquet in outputs"):
        featuremill.load(run.root)


def test_a_manifest_that_lost_a_row_is_refused(run):
    pq.write_table(pq.read_table(run.records).slice(0, 37), run.records)
    refused(run, "does not belong to plan")
    run.records.unlink()
    refused(run, r"it is gone; delete plan\.json")
    with pytest.raises(IntegrityError, match=r"it is gone; delete plan\.json"):
        retry([run], [])


def test_a_key_of_the_config_goes_into_manifest_json_when_that_has_a_field_for_it(run, monkeypatch):
    class WiderConfig(Config):
        project: str = ""

    class WiderDelivery(Delivery):
        project: str = ""

    config = WiderConfig(inputs="in.fa", project="ours")
    assert carried(config) == {}
    monkeypatch.setattr(provenance, "Config", WiderConfig)
    monkeypatch.setattr(provenance, "Delivery", WiderDelivery)
    told = carried(config)
    assert told == {"project": "ours"}
    merge(run, ["npy"], 0, extra_fields=told)
    assert json.loads((run.root / "manifest.json").read_text())["project"] == "ours"


@pytest.mark.parametrize("kind", ["input", "refused", "duplicate"])
def test_sums_that_do_not_agree_are_never_delivered(run, kind):
    """As a plan would have them whose reading lost a record, or counted one twice."""
    plan = read_sealed(run.plan)
    plan["counts"][kind] += 1
    write_sealed(run.plan, plan)
    refused(run, "the records don't add up")
    assert not list(run.root.glob("*embeddings*")) and not list(run.root.glob("*.h5"))


def test_rows_that_are_lost_on_the_way_are_never_delivered(run, monkeypatch):
    pieces = gather.Gatherer.pieces

    def all_but_the_last(self):
        blocks = list(pieces(self))
        yield from [*blocks[:-1], blocks[-1].slice(0, blocks[-1].num_rows - 1)]

    monkeypatch.setattr(gather.Gatherer, "pieces", all_but_the_last)
    refused(run, "35 rows written for 36 ok records")
    assert not list(run.root.glob("*embeddings*")) and not list(run.root.glob("*.h5"))


def test_an_output_with_nothing_to_hold_is_refused(run):
    refused(run, "per_residue_h5 needs per_residue: true", ["per_residue_h5"], error=UserError)
    assert not list(run.root.glob(".per-residue*"))


def test_more_failures_than_allowed_deliver_nothing_and_name_the_list(verbs):
    records = [("good", "MKV"), ("bad with a story", "RAISEA"), ("same", "RAISEA")]
    verbs.extract(verbs.plan([*records, ("no", "M*V")], "poison"))
    said = verbs("merge", verbs.run_folder.root, "--outputs", "parquet", status=2)
    assert "2 of 4 records failed and max_failed is 0" in said and "failed.tsv has each one" in said
    said = said.replace(f"{verbs.folder}/", "")
    assert "failed.fa their sequences; featuremill retry results/test" in said
    sequences = (verbs.run_folder.store / "failed.fa").read_text()
    assert sequences == ">bad with a story\nRAISEA\n>same\nRAISEA\n"
    listed = (verbs.run_folder.store / "failed.tsv").read_text()
    assert "bad\tin.fa\t3\tfailed\terror in the workload: ValueError" in listed
    assert not (verbs.run_folder.root / "embeddings.parquet").exists()
    said = verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "npy", "--max-failed", "2")
    assert "1 of 4 records has features, 2 failed, 1 was refused" in said
    assert (verbs.run_folder.root / "failed.fa").read_text() == sequences
    assert pq.read_table(verbs.run_folder.root / "embeddings.parquet")["id"].to_pylist() == ["good"]


def test_only_failures_make_empty_results(verbs):
    verbs.finish([("bad", "RAISEA")], *ALL, max_failed=1, workload="poison")
    assert np.load(verbs.run_folder.root / "embeddings.npy").shape == (0, 1)
    assert len(featuremill.load(verbs.run_folder.root)) == 0


def test_records_that_were_cleaned_are_listed_with_what_was_done(verbs):
    records = [("a\tb", "MKV"), ("stop", "MKV*"), ("odd", "MKJ"), ("both", "MKJL*")]
    verbs.extract(verbs.plan(records, "composition"))
    merge(verbs.run_folder, ["parquet"], 2)
    head, *rows = (verbs.run_folder.root / "notes.tsv").read_text().splitlines()
    assert head == "id\tsource\tline\tnote"
    told = {row.split("\t")[0]: row.split("\t")[2:] for row in rows}
    dropped, read = "* at the end dropped", "J read as X"
    assert told == {"stop": ["3", dropped], "odd": ["5", read], "both": ["7", f"{dropped}; {read}"]}
    verbs.extract(verbs.plan([("good", "MKV")], "composition"))
    merge(verbs.run_folder, ["parquet"], 2)
    assert (verbs.run_folder.root / "notes.tsv").read_text() == f"{head}\n"


def test_failed_records_that_are_no_sequences_leave_the_fasta_empty(verbs, monkeypatch, caplog):
    verbs.extract(verbs.plan([("bad", "RAISEA"), ("worse", "RAISEC")], "poison"))
    monkeypatch.setattr(accounts, "SEQUENCE", re.compile(b"[A-Z]*A"))
    monkeypatch.setattr(logging.getLogger("featuremill"), "propagate", True)
    with caplog.at_level("INFO"):
        merge(verbs.run_folder, ["parquet"], 2)
    assert "failed.fa is left empty: these records are no sequences." in caplog.text
    assert (verbs.run_folder.root / "failed.fa").read_bytes() == b""


def test_a_failed_row_of_another_record_is_never_listed(verbs, monkeypatch):
    verbs.extract(verbs.plan([("bad", "RAISEA"), ("good", "MKV"), ("fine", "MKL")], "poison"))
    monkeypatch.setattr(accounts, "order_of", lambda sha256: np.roll(order_of(sha256), 1))
    with pytest.raises(IntegrityError, match=r"arrows: a row of this part is not that of"):
        merge(verbs.run_folder, ["parquet"], 1)


def test_a_failed_record_whose_shard_is_gone_is_a_sentence(verbs):
    plan = verbs.plan([("good", "MKV"), ("bad", "RAISEA")], "poison")
    verbs.extract(plan)
    verbs.run_folder.shard(plan["shards"][0]["shard"]).unlink()
    said = verbs("merge", verbs.run_folder.root, "--max-failed", "1", status=4)
    assert "this shard is gone, and some of its records failed" in said


@pytest.mark.parametrize(
    ("outputs", "num_records", "named"),
    [
        ("parquet npy per_protein_h5", 1_000_000, []),
        ("parquet npy per_protein_h5", 1_000_001, ["per_protein_h5"]),
        ("parquet per_residue_h5 npy", 5_000_001, ["parquet", "per_residue_h5"]),
        ("parquet_dataset npy", 10**8, []),
        ("", 10**8, []),
    ],
)
def test_an_output_that_is_too_small_for_the_run_is_named(outputs, num_records, named):
    found = large_outputs(num_records, outputs.split())
    assert [text.split()[1] for text in found] == named
    assert all("parquet_dataset" in text and f"{num_records:,} records" in text for text in found)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_records(tmp_path, environment):
    """A gigabyte of values in as much memory as twice a chunk of the shuffle and a few blocks."""
    words = ["-m", "bench.merge_scale", "--records", "2000000", "--width", "128"]
    more = {"cwd": ROOT, "env": {**environment, "TMPDIR": str(tmp_path)}, "text": True}
    told = subprocess.check_output([sys.executable, *words], **more)
    assert float(re.search(r"([0-9.]+) GiB at most", told)[1]) < 2, told


@pytest.mark.parametrize("refused", [0, 1])
def test_files_of_failures_are_named_where_there_are_any(refused, tmp_path, caplog):
    counts = SimpleNamespace(has_all=not refused, in_words="in words", failed=0, refused=refused)
    delivered = SimpleNamespace(counts=counts, warnings=[], outputs=["embeddings.npy"])
    caplog.set_level("INFO")
    _say(Results(tmp_path), delivered)
    assert ("failed.tsv, failed.fa" in caplog.text) == bool(refused)
